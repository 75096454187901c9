//! A global allocator that refuses everything while it is armed, on every thread of the process.

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
pub fn armed(work: impl FnOnce()) -> u64 {
    REFUSED.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    work();
    ARMED.store(false, Ordering::SeqCst);
    REFUSED.load(Ordering::SeqCst)
}

/// The check of the check: a single allocation is seen.
pub fn sees_one_allocation() {
    let seen = armed(|| assert!(Vec::<u8>::new().try_reserve(100).is_err()));
    assert_eq!(seen, 1);
}
