//! A global allocator that refuses everything while it is armed, on every thread of the process,
//! and threads of which none may be started meanwhile.

use mzcache::port::linux::PosixThreads;
use mzcache::port::{Body, ThreadId, ThreadSpec, Threads};
use mzcache::{Code, Error, Result};
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

/// Threads for runtimes that are watched.
pub static THREADS: RefusingThreads = RefusingThreads(PosixThreads::new());

pub struct RefusingThreads(PosixThreads);

impl Threads for RefusingThreads {
    fn spawn(&self, spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        if ARMED.load(Ordering::SeqCst) {
            REFUSED.fetch_add(1, Ordering::SeqCst);
            return Err(Error::new(Code::BadState, "a thread was started"));
        }
        self.0.spawn(spec, body)
    }

    fn join(&self, thread: ThreadId) {
        self.0.join(thread);
    }

    fn pin(&self, core: u16) -> Result<()> {
        self.0.pin(core)
    }
}

/// Threads of this process, whoever started them.
fn threads_alive() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Runs with the allocator and the threads armed and says how often they were called.
pub fn armed(work: impl FnOnce()) -> u64 {
    let threads = threads_alive();
    REFUSED.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    work();
    ARMED.store(false, Ordering::SeqCst);
    assert_eq!(threads_alive(), threads);
    REFUSED.load(Ordering::SeqCst)
}

struct Nothing;

impl Body for Nothing {
    fn run(&self) {}
}

/// The check of the check: a single allocation is seen, and a single thread.
pub fn sees_one_call() {
    let seen = armed(|| assert!(Vec::<u8>::new().try_reserve(100).is_err()));
    assert_eq!(seen, 1);
    let spec = ThreadSpec { name: "refused", stack_bytes: 64 << 10 };
    let seen = armed(|| assert!(THREADS.spawn(spec, &Nothing).is_err()));
    assert_eq!(seen, 1);
}
