//! Threads behind callbacks, and what each thread is to run.
//!
//! A body is a reference of two words, a callback's argument one: so each thread has a slot, and C
//! carries the slot's address. Invariant: a slot is taken from before its thread is asked for until
//! it was joined, so the address stays good; the table lies in memory that does not move while
//! there are threads.

use super::ports::{self, Context, missing};
use super::tables::MzThreads;
use crate::error::{Code, Error, Result};
use crate::limits::WORKERS_MAX;
use crate::port::{Body, ThreadId, ThreadSpec, Threads};
use crate::sync::Word;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_void};

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// A thread's first function, as C calls it.
pub(super) type Run = unsafe extern "C" fn(*mut c_void);
type Spawn =
    unsafe extern "C" fn(Context, *const c_char, usize, Option<Run>, *mut c_void, *mut u64) -> i64;

/// What one thread runs, and its number.
pub(super) struct Slot<W> {
    word: Word,
    /// Written by who took the slot, before the thread exists, and read by the thread.
    work: UnsafeCell<Option<W>>,
    /// Touched by who took the slot alone.
    number: UnsafeCell<u64>,
}

/// A slot for each thread alive.
pub(super) struct Slots<W, const N: usize>([Slot<W>; N]);

// SAFETY: cells are touched as said at each of them, ordered by the slot's word and by the thread's
// start; the work goes to one other thread.
unsafe impl<W: Copy + Send> Sync for Slot<W> {}
// SAFETY: work and number may go to any thread.
unsafe impl<W: Copy + Send> Send for Slot<W> {}

impl<W: Copy + Send, const N: usize> Slots<W, N> {
    /// All free.
    pub(super) fn new() -> Self {
        Slots(core::array::from_fn(|_| Slot {
            word: Word::new(FREE),
            work: UnsafeCell::new(None),
            number: UnsafeCell::new(0),
        }))
    }

    /// Has a thread started, which is told its slot; its place here.
    pub(super) fn start(
        &self,
        work: W,
        spawn: impl FnOnce(&Slot<W>) -> Result<u64>,
    ) -> Result<u64> {
        let free = self.0.iter().position(|slot| slot.word.replace(FREE, TAKEN));
        let index = free.ok_or(Error::new(Code::LimitExceeded, "threads").with(N))?;
        let slot = &self.0[index];
        // SAFETY: the slot is taken, by us, and has no thread yet.
        unsafe { *slot.work.get() = Some(work) };
        match spawn(slot) {
            Ok(number) => {
                // SAFETY: the slot is taken, by us.
                unsafe { *slot.number.get() = number };
                Ok(index as u64)
            }
            Err(error) => {
                slot.word.store(FREE);
                Err(error)
            }
        }
    }

    /// Joins the thread of a place that `start` gave.
    pub(super) fn finish(&self, place: u64, join: impl FnOnce(u64)) {
        let slot = usize::try_from(place).ok().and_then(|index| self.0.get(index));
        let Some(slot) = slot.filter(|slot| slot.word.load() == TAKEN) else {
            unreachable!("a thread that was started")
        };
        // SAFETY: the slot is taken, and joined once, so nobody else touches the number.
        join(unsafe { *slot.number.get() });
        slot.word.store(FREE);
    }
}

impl<W: Copy> Slot<W> {
    /// On the slot's own thread: what it is to run.
    pub(super) fn work(&self) -> Option<W> {
        // SAFETY: it was written before the thread was asked for, and nobody writes until that was
        // joined.
        unsafe { *self.work.get() }
    }
}

/// A table of callbacks.
pub(super) struct ThreadsPort {
    context: Context,
    spawn: Spawn,
    join: unsafe extern "C" fn(Context, u64),
    pin: Option<unsafe extern "C" fn(Context, u32) -> i64>,
    slots: Slots<&'static dyn Body, WORKERS_MAX>,
}

// SAFETY: the table's author promises that the callbacks may be called from any thread; the context
// is only handed to them.
unsafe impl Sync for ThreadsPort {}
// SAFETY: as above.
unsafe impl Send for ThreadsPort {}

impl ThreadsPort {
    pub(super) fn new(table: &MzThreads) -> Result<Self> {
        ports::check_flags(table.flags, "mz_threads.flags")?;
        Ok(ThreadsPort {
            context: table.context,
            spawn: table.spawn.ok_or(missing("mz_threads.spawn"))?,
            join: table.join.ok_or(missing("mz_threads.join"))?,
            pin: table.pin,
            slots: Slots::new(),
        })
    }
}

/// A new thread's first function.
// SAFETY: only the port calls it, once, with the argument that it was given.
unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: the argument is the address of a taken slot, which outlives its thread.
    let slot = unsafe { &*argument.cast::<Slot<&'static dyn Body>>() };
    if let Some(body) = slot.work() {
        body.run();
    }
}

impl Threads for ThreadsPort {
    fn spawn(&self, spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        let mut name = [0u8; 16];
        let (room, _end) = name.split_at_mut(15);
        for (place, byte) in room.iter_mut().zip(spec.name.bytes()) {
            *place = byte;
        }
        let name = name.as_ptr().cast();
        let start = |slot: &Slot<&'static dyn Body>| {
            let argument = core::ptr::from_ref(slot).cast_mut().cast();
            let (bytes, mut number) = (spec.stack_bytes, 0);
            let to = &raw mut number;
            // SAFETY: the name ends with a 0 byte; it and the number live during the call, the slot
            // as long as the thread.
            let value = unsafe { (self.spawn)(self.context, name, bytes, Some(run), argument, to) };
            ports::done(value, "mz_threads.spawn").map(|()| number)
        };
        self.slots.start(body, start).map(ThreadId)
    }

    fn join(&self, thread: ThreadId) {
        // SAFETY: the port made a thread of that number, which was not joined before.
        self.slots.finish(thread.0, |number| unsafe { (self.join)(self.context, number) });
    }

    fn pin(&self, core: u16) -> Result<()> {
        let pin = self.pin.ok_or(Error::new(Code::Unsupported, "mz_threads.pin"))?;
        // SAFETY: the callback takes its own context.
        ports::done(unsafe { pin(self.context, core.into()) }, "mz_threads.pin")
    }
}
