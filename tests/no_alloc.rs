//! Nothing allocates after open: a global allocator that refuses everything while it is armed, on
//! every thread of the process.

#![cfg(feature = "host")]

mod manager;

use manager::*;
use mzcache::units::{ByteCount, CodecId, TokenCount};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Refusing;

static ARMED: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator, or answered with null, which is legal.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(Ordering::SeqCst) {
            // A null answer ends the process by an abort that names the layout.
            REFUSED.fetch_add(1, Ordering::SeqCst);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::SeqCst) {
            REFUSED.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Runs with the allocator armed and says how often it was called.
fn armed(work: impl FnOnce()) -> u64 {
    REFUSED.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    work();
    ARMED.store(false, Ordering::SeqCst);
    REFUSED.load(Ordering::SeqCst)
}

fn evict_and_restore(name: &str, setup: &Setup) {
    let fixture = open(name, setup);
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let calls = armed(|| {
        for percent in [60, 0, 30] {
            evict_to(runtime, percent, total);
            // New chunks are added on the way: the context passes a chunk's end.
            pass(&fixture, 100).unwrap();
        }
        runtime.truncate(TokenCount::new(CONTEXT)).unwrap();
        runtime.evict(ByteCount::new(total / 2), None).unwrap();
        runtime.restore().unwrap();
        runtime.stats();
    });
    assert_eq!(calls, 0);
    if setup.codec == CodecId::Raw {
        assert!(kv_values(runtime) == expected_values());
    }
}

/// One test, since the allocator is the whole process's.
#[test]
fn evict_restore_and_pass_allocate_nothing() {
    // The check itself: a single allocation is seen.
    let seen = armed(|| assert!(Vec::<u8>::new().try_reserve(100).is_err()));
    assert_eq!(seen, 1);
    for codec in [CodecId::Raw, CodecId::Q8] {
        evict_and_restore("no-alloc-threads", &Setup { codec, ..Setup::default() });
        let workers = Vec::new();
        evict_and_restore("no-alloc-inline", &Setup { codec, workers, ..Setup::default() });
    }
}
