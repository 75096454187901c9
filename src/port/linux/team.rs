//! Fork and join on helper threads that were made at open: how CPU compute splits a layer.
//!
//! A run publishes its job and as many tickets as the team is wide; helpers and the caller draw
//! tickets until none is left, so a helper that wakes late costs nothing. Helpers look for tickets
//! a short while, then park.
//!
//! Invariant: a job is called only by who drew one of its tickets, and `run` returns after every
//! drawn ticket was finished; so the job, which lies on the caller's stack, outlives its calls.
//! A run that finds the team busy (nested, or from another thread) does all its parts itself: it
//! neither waits nor deadlocks.

use crate::error::{Code, Error, Result};
use crate::limits::WORKERS_MAX;
use crate::port::lock::Lock;
use crate::port::{Body, Park, Team, ThreadId, ThreadSpec, Threads};
use crate::sync::Word;
use core::cell::UnsafeCell;
use core::hint::spin_loop;

/// Stack of one helper; compute kernels keep their tiles in the arena.
pub const TEAM_STACK_BYTES: usize = 256 << 10;

/// Looks at a word before parking: some ten microseconds, about what a futex wake costs.
const SPINS: u32 = 2000;

/// `tickets` and `unfinished` hold a count, and a bit that says somebody is parked on them.
const PARKED: u32 = 1 << 31;
/// Instead of tickets: helpers return.
const STOP: u32 = 1 << 30;
const COUNT: u32 = STOP - 1;

/// States of a team.
const CLOSED: u32 = 0;
const IDLE: u32 = 1;
const BUSY: u32 = 2;
/// Busy, and somebody waits to close it.
const AWAITED: u32 = 3;

type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// A team of threads; place it in a `static` or in the arena, open it, and close it at the end.
pub struct ThreadTeam {
    threads: &'static dyn Threads,
    state: Word,
    width: Word,
    helpers: Lock<[Option<ThreadId>; WORKERS_MAX]>,
    desk: Desk,
}

/// Where tickets are drawn: what the helpers see of a team.
struct Desk {
    park: &'static dyn Park,
    tickets: Word,
    unfinished: Word,
    /// The job of the present run; written by who moved the state to busy, read by ticket holders.
    job: UnsafeCell<Option<*const Job<'static>>>,
}

// SAFETY: the job cell is written only in the busy state, by its one owner, while no ticket is
// out, and read only by holders of a ticket; the job itself is Sync.
unsafe impl Sync for Desk {}
// SAFETY: a desk that can be moved is not in a run, so it holds no job.
unsafe impl Send for Desk {}

impl ThreadTeam {
    /// A team of the caller alone, until it is opened.
    pub const fn new(threads: &'static dyn Threads, park: &'static dyn Park) -> Self {
        ThreadTeam {
            threads,
            state: Word::new(CLOSED),
            width: Word::new(1),
            helpers: Lock::new([None; WORKERS_MAX], park),
            desk: Desk {
                park,
                tickets: Word::new(0),
                unfinished: Word::new(0),
                job: UnsafeCell::new(None),
            },
        }
    }

    /// Starts the helpers of a team of `width`, the caller included. They run anywhere: a run ends
    /// with its last part, so one that waits for its core would hold up all. On failure the helpers
    /// that had started are gone again.
    pub fn open(&'static self, width: usize) -> Result<()> {
        if !(1..=WORKERS_MAX).contains(&width) {
            return Err(Error::new(Code::InvalidArgument, "team width").with(width));
        }
        let mut helpers = self.helpers.lock();
        if self.state.load() != CLOSED {
            return Err(Error::new(Code::BadState, "team is open already"));
        }
        self.desk.tickets.store(0);
        for (index, helper) in helpers.iter_mut().take(width - 1).enumerate() {
            let mut name = *b"mz-team-00";
            name[8] += u8::try_from(index / 10).unwrap_or(0);
            name[9] += u8::try_from(index % 10).unwrap_or(0);
            let spec = ThreadSpec {
                name: core::str::from_utf8(&name).unwrap_or("mz-team"),
                stack_bytes: TEAM_STACK_BYTES,
            };
            match self.threads.spawn(spec, &self.desk) {
                Ok(thread) => *helper = Some(thread),
                Err(error) => {
                    self.stop(&mut helpers[..]);
                    return Err(error);
                }
            }
        }
        self.width.store(u32::try_from(width).unwrap_or(1));
        self.state.store(IDLE);
        Ok(())
    }

    /// Ends and joins the helpers; waits for a run in progress, so it must not be called from a
    /// part. Later runs do all their parts on the caller, until the team is opened again. Closing
    /// a closed team does nothing.
    pub fn close(&self) {
        let mut helpers = self.helpers.lock();
        while !self.state.replace(IDLE, CLOSED) {
            if self.state.load() == CLOSED {
                return;
            }
            if self.state.replace(BUSY, AWAITED) || self.state.load() == AWAITED {
                self.desk.park.wait(&self.state, AWAITED, None);
            }
        }
        self.stop(&mut helpers[..]);
    }

    fn stop(&self, helpers: &mut [Option<ThreadId>]) {
        self.desk.tickets.swap(STOP);
        self.desk.park.wake_all(&self.desk.tickets);
        for thread in helpers.iter_mut().filter_map(Option::take) {
            self.threads.join(thread);
        }
    }
}

impl Team for ThreadTeam {
    fn width(&self) -> usize {
        usize::try_from(self.width.load()).unwrap_or(1)
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        if !self.state.replace(IDLE, BUSY) {
            return (0..self.width()).for_each(work);
        }
        let width = self.width.load();
        // SAFETY: only the lifetime changes. `Join` below waits until every ticket is finished
        // before this function returns or unwinds, and takes the pointer out again.
        let job = unsafe { core::mem::transmute::<*const Job<'_>, *const Job<'static>>(work) };
        // SAFETY: the state is busy by us and no ticket is out, so nobody else touches the cell.
        unsafe { *self.desk.job.get() = Some(job) };
        self.desk.unfinished.store(width);
        let _join = Join(self);
        if self.desk.tickets.swap(width) & PARKED != 0 {
            self.desk.park.wake_all(&self.desk.tickets);
        }
        self.desk.draw();
    }
}

/// Ends a run, also when the caller's part unwinds.
struct Join<'a>(&'a ThreadTeam);

impl Drop for Join<'_> {
    fn drop(&mut self) {
        let desk = &self.0.desk;
        desk.wait_until(&desk.unfinished, |unfinished| unfinished & COUNT == 0);
        // SAFETY: every ticket was drawn and finished, and the state is still busy by us.
        unsafe { *desk.job.get() = None };
        if self.0.state.swap(IDLE) == AWAITED {
            desk.park.wake_all(&self.0.state);
        }
    }
}

impl Body for Desk {
    /// A helper: draws tickets until it is told to stop.
    fn run(&self) {
        while self.tickets.load() & STOP == 0 {
            self.draw();
            self.wait_until(&self.tickets, |tickets| tickets & !PARKED != 0);
        }
    }
}

impl Desk {
    /// Draws tickets and does their parts until none is left.
    fn draw(&self) {
        loop {
            let tickets = self.tickets.load();
            let left = tickets & COUNT;
            if left == 0 {
                return;
            }
            if self.tickets.replace(tickets, tickets - 1) {
                self.work(left - 1);
            }
        }
    }

    fn work(&self, part: u32) {
        let _finish = Finish(self);
        // SAFETY: we drew a ticket of the present run. Its job was written before its tickets were
        // published, and stays until the ticket is finished.
        let job = unsafe { *self.job.get() };
        let Some(job) = job else { unreachable!("tickets are out, so there is a job") };
        // SAFETY: `run` does not return before this ticket is finished, so its job is alive.
        let job = unsafe { &*job };
        job(usize::try_from(part).unwrap_or(0));
    }

    /// Looks at a word until it is as wanted, a while without a break, then parked between looks.
    fn wait_until(&self, word: &Word, wanted: impl Fn(u32) -> bool) {
        for _ in 0..SPINS {
            if wanted(word.load()) {
                return;
            }
            spin_loop();
        }
        loop {
            let value = word.load();
            if wanted(value) {
                return;
            }
            // The bit and the count are one word, so whoever changes the count sees the bit, or
            // this replacement fails.
            if value & PARKED != 0 || word.replace(value, value | PARKED) {
                self.park.wait(word, value | PARKED, None);
            }
        }
    }
}

/// Finishes a ticket, also when its part unwinds.
struct Finish<'a>(&'a Desk);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let unfinished = &self.0.unfinished;
        if unfinished.decrement() == PARKED | 1 {
            self.0.park.wake_all(unfinished);
        }
    }
}
