//! Threads on stacks of known size, without the allocations of `std::thread`.
//!
//! Owns a fixed table of threads and the mapping each one's stack lies in:
//!
//! ```text
//! | guard page, no access | stack, growing down <- | start page |
//! ```
//!
//! Invariant: a mapping lives from `spawn` until its thread was joined, so the thread may use its
//! start page even if the table is moved or dropped meanwhile. A dropped table leaves its running
//! threads alone. The C library itself allocates a thread's control block; nothing else does.

use super::affinity::pin_current;
use super::errno;
use super::pages::{map, page_bytes, unmap, whole_pages};
use crate::error::{Code, Error, Result};
use crate::limits::WORKERS_MAX;
use crate::port::{Body, ThreadId, ThreadSpec, Threads};
use crate::sync::Word;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

/// Threads alive at once: the workers, a team of as many, and some spare.
pub const THREADS_MAX: usize = 2 * WORKERS_MAX + 8;

/// Name bytes that the kernel keeps, and the NUL.
const NAME_BYTES: usize = 16;

/// A slot's word holds its phase in the low bits, and above them how often it was reused.
const PHASES: u32 = 4;
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const RUNNING: u32 = 2;

struct Slot {
    word: Word,
    /// Set exactly while the phase is running; touched only by who moved the phase to taken.
    thread: UnsafeCell<Option<Thread>>,
}

#[derive(Clone, Copy)]
struct Thread {
    handle: libc::pthread_t,
    stack: Stack,
}

/// The mapping of one thread.
#[derive(Clone, Copy)]
struct Stack {
    start: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
}

/// What a new thread reads before its body runs.
struct Start {
    name: [u8; NAME_BYTES],
    body: &'static dyn Body,
}

/// Makes threads through `pthread_create`.
pub struct PosixThreads {
    slots: [Slot; THREADS_MAX],
}

// SAFETY: a slot's cell is touched only by the thread that moved its word to taken, and the word
// orders one such thread after the other.
unsafe impl Sync for PosixThreads {}
// SAFETY: handles and mappings may be used from any thread.
unsafe impl Send for PosixThreads {}

impl PosixThreads {
    /// An empty table.
    pub const fn new() -> Self {
        PosixThreads {
            slots: [const { Slot { word: Word::new(FREE), thread: UnsafeCell::new(None) } };
                THREADS_MAX],
        }
    }

    /// Moves a free slot to taken; its index and word.
    fn take_slot(&self) -> Option<(usize, u32)> {
        self.slots.iter().enumerate().find_map(|(index, slot)| {
            let word = slot.word.load();
            let free = word % PHASES == FREE;
            (free && slot.word.replace(word, word + TAKEN)).then_some((index, word))
        })
    }
}

impl Default for PosixThreads {
    fn default() -> Self {
        Self::new()
    }
}

impl Threads for PosixThreads {
    fn spawn(&self, spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        let name = name_bytes(spec.name)?;
        let stack = Stack::map(spec.stack_bytes)?;
        let Some((index, free)) = self.take_slot() else {
            stack.unmap();
            return Err(Error::new(Code::LimitExceeded, "threads").with(THREADS_MAX));
        };
        let slot = &self.slots[index];
        match create(stack, Start { name, body }) {
            Ok(handle) => {
                // SAFETY: the slot is taken, by us.
                unsafe { *slot.thread.get() = Some(Thread { handle, stack }) };
                slot.word.store(free + RUNNING);
                let index = u64::try_from(index).unwrap_or(0);
                Ok(ThreadId(u64::from(free + RUNNING) << 32 | index))
            }
            Err(errno) => {
                stack.unmap();
                slot.word.store(free);
                Err(create_error(errno))
            }
        }
    }

    fn join(&self, thread: ThreadId) {
        let index = usize::try_from(thread.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let running = u32::try_from(thread.0 >> 32).unwrap_or(0);
        assert!(running % PHASES == RUNNING);
        let slot = &self.slots[index];
        // Joining twice, or what another table made, would free a stack in use.
        assert!(slot.word.replace(running, running - RUNNING + TAKEN));
        // SAFETY: the slot is taken, by us.
        let held = unsafe { (*slot.thread.get()).take() };
        let Some(Thread { handle, stack }) = held else { unreachable!("a running slot is set") };
        // SAFETY: the handle came from pthread_create and is joined once: its slot was running.
        let joined = unsafe { libc::pthread_join(handle, ptr::null_mut()) };
        // It fails only for a thread that joins itself, whose stack must not go.
        assert!(joined == 0);
        stack.unmap();
        slot.word.store((running - RUNNING).wrapping_add(PHASES));
    }

    fn pin(&self, core: u16) -> Result<()> {
        pin_current(core)
    }
}

impl Stack {
    /// Maps a stack of at least `stack_bytes`, the guard below it and the start page above it.
    fn map(stack_bytes: usize) -> Result<Self> {
        let page_bytes = page_bytes();
        let stack = whole_pages("thread stack", stack_bytes.max(libc::PTHREAD_STACK_MIN))?;
        let bytes = stack
            .checked_add(2 * page_bytes)
            .ok_or(Error::new(Code::OutOfMemory, "thread stack").with(stack_bytes))?;
        let start = map("thread stack", bytes, libc::MAP_STACK | libc::MAP_NORESERVE)?;
        let mapped = Stack { start, bytes, page_bytes };
        // SAFETY: the first page of the fresh mapping, which nobody has seen.
        if unsafe { libc::mprotect(start.as_ptr().cast(), page_bytes, libc::PROT_NONE) } != 0 {
            let error = errno::error("thread stack", errno::last());
            mapped.unmap();
            return Err(error);
        }
        Ok(mapped)
    }

    /// First byte and size of the part that the thread runs on.
    fn usable(self) -> (*mut c_void, usize) {
        // SAFETY: the mapping is longer than its guard page.
        let lowest = unsafe { self.start.add(self.page_bytes) };
        (lowest.as_ptr().cast(), self.bytes - 2 * self.page_bytes)
    }

    /// The page above the stack.
    fn start_page(self) -> NonNull<Start> {
        const { assert!(size_of::<Start>() <= 4096) };
        // SAFETY: the mapping ends with this whole page.
        unsafe { self.start.add(self.bytes - self.page_bytes) }.cast()
    }

    fn unmap(self) {
        // SAFETY: no thread runs on it: none was made, or it was joined.
        unsafe { unmap(self.start, self.bytes) };
    }
}

/// A name as the kernel wants it. Longer ones would be cut silently, so they are refused.
fn name_bytes(name: &str) -> Result<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    if name.len() >= NAME_BYTES || name.contains('\0') {
        return Err(Error::new(Code::InvalidArgument, "thread name").with(name.len()));
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

/// Starts the thread with all asynchronous signals blocked, so that the program's handlers never
/// run on a small stack nor interrupt a transfer.
fn create(stack: Stack, start: Start) -> Result<libc::pthread_t, c_int> {
    let argument = stack.start_page();
    // SAFETY: the page is writable, aligned for `Start`, large enough (asserted) and unseen.
    unsafe { argument.write(start) };
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: initialises the attributes.
    check(unsafe { libc::pthread_attr_init(attributes) })?;
    let (lowest, bytes) = stack.usable();
    let mut handle = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised; the stack is ours, whole pages, and stays mapped
    // until the thread was joined.
    let mut result = check(unsafe { libc::pthread_attr_setstack(attributes, lowest, bytes) });
    if result.is_ok() {
        let before = block_signals();
        // SAFETY: `entry` has the required signature, its argument lives as long as the stack.
        result = check(unsafe {
            libc::pthread_create(handle.as_mut_ptr(), attributes, entry, argument.as_ptr().cast())
        });
        // SAFETY: `before` is the mask that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    }
    // SAFETY: the attributes were initialised above, and are not used again.
    unsafe { libc::pthread_attr_destroy(attributes) };
    result?;
    // SAFETY: pthread_create succeeded, so it stored the handle.
    Ok(unsafe { handle.assume_init() })
}

fn check(result: c_int) -> Result<(), c_int> {
    if result == 0 { Ok(()) } else { Err(result) }
}

fn create_error(errno: c_int) -> Error {
    match errno {
        libc::EAGAIN => Error::new(Code::OutOfMemory, "thread").with(errno),
        errno => errno::error("thread", errno),
    }
}

/// Blocks every signal but those that a faulty instruction raises; returns the mask before.
fn block_signals() -> libc::sigset_t {
    let faults =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set; the call that follows each only changes or reads it.
    unsafe { libc::sigfillset(blocked.as_mut_ptr()) };
    for signal in faults {
        // SAFETY: the set was filled above.
        unsafe { libc::sigdelset(blocked.as_mut_ptr(), signal) };
    }
    // SAFETY: the set was filled above, and `before` is writable for a set.
    let set =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr()) };
    assert!(set == 0);
    // SAFETY: the call succeeded, so it stored the mask.
    unsafe { before.assume_init() }
}

/// The new thread's first function. A panic in the body aborts, since it cannot unwind into C.
extern "C" fn entry(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `create` wrote a `Start` there, and the page stays mapped until this thread has
    // ended; nobody writes to it again.
    let start = unsafe { &*argument.cast::<Start>() };
    // SAFETY: the name ends with a NUL, by `name_bytes`.
    unsafe { libc::prctl(libc::PR_SET_NAME, start.name.as_ptr()) };
    start.body.run();
    ptr::null_mut()
}
