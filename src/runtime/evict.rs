//! `evict(bytes, deadline)`: frees memory and says truly how much.

use super::Runtime;
use super::open::Shared;
use crate::error::{Code, Error, Result};
use crate::state::{Event, EvictPolicy, EvictReport, Stop};
use crate::units::{ByteCount, Nanos};

/// What an eviction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the state machine booked.
    pub booked: EvictReport,
    /// By how much the process's measured memory fell; `None` without a meter. Other threads'
    /// allocations count too, so it may be negative.
    pub measured: Option<i64>,
    /// How long it took.
    pub elapsed: Nanos,
}

/// A bit beside the number of guests: no more may come in.
const CLOSED: u32 = 1 << 31;

impl Runtime {
    /// Frees at least `bytes` of shared buffers and RAM swap, or says how much could be freed and
    /// why no more. Ends soon after `deadline` (a duration from now) in a consistent state: a unit
    /// that a worker has at that moment is finished, no other is begun. A restore under way is
    /// cancelled; units that compute leases stay. A pass under way ends in `Cancelled` too, so
    /// evictions that come faster than a pass takes let none come to its end.
    pub fn evict(&self, bytes: ByteCount, deadline: Option<Nanos>) -> Result<Report> {
        self.shared.evict(bytes, deadline, self.shared.evict_policy)
    }

    /// As [`Runtime::evict`], by another policy than the one that was opened with.
    pub fn evict_by(
        &self,
        policy: EvictPolicy,
        bytes: ByteCount,
        deadline: Option<Nanos>,
    ) -> Result<Report> {
        self.shared.evict(bytes, deadline, policy)
    }

    /// A handle with which another thread frees memory while compute has the runtime.
    pub fn evictor(&self) -> Evictor {
        Evictor { shared: self.shared }
    }
}

/// Frees memory from any thread, at any moment of a pass. Outlives its runtime harmlessly: every
/// call then answers `BadState`.
#[derive(Clone, Copy)]
pub struct Evictor {
    shared: &'static Shared,
}

impl Evictor {
    /// As [`Runtime::evict`].
    pub fn evict(&self, bytes: ByteCount, deadline: Option<Nanos>) -> Result<Report> {
        // One word, so that of a guest who comes and an owner who closes one sees the other.
        let result = match self.shared.guests.increment() & CLOSED {
            0 => self.shared.evict(bytes, deadline, self.shared.evict_policy),
            _ => Err(Error::new(Code::BadState, "runtime is closed")),
        };
        self.shared.guests.decrement();
        self.shared.ports.park.wake_all(&self.shared.guests);
        result
    }
}

impl Shared {
    /// One caller at a time, so that each gets its own report.
    fn evict(
        &self,
        bytes: ByteCount,
        deadline: Option<Nanos>,
        policy: EvictPolicy,
    ) -> Result<Report> {
        if !self.evicting.replace(0, 1) {
            return Err(Error::new(Code::BadState, "evict: another eviction is running"));
        }
        let result = self.evict_alone(Event::Evict { bytes, policy }, deadline);
        self.evicting.store(0);
        result
    }

    fn evict_alone(&self, eviction: Event, deadline: Option<Nanos>) -> Result<Report> {
        let start = self.ports.clock.now();
        let measured_before = self.measured();
        // Before workers take units away from where they are looked at.
        if self.core.lock().machine.tokens().get() > 0 {
            self.freeze_steps()?;
        }
        self.event(eviction)?;
        let mut stopped = false;
        let booked = loop {
            let seen = self.work.load();
            if let Some(report) = self.take_evicted() {
                break report;
            }
            let left = deadline.map(|deadline| remaining(start, deadline, self.ports.clock.now()));
            if left == Some(Nanos::new(0)) && !stopped {
                stopped = true;
                // The eviction may have ended since it was looked at; then there is a report.
                let _ = self.event(Event::StopEvict(Stop::Deadline));
                continue;
            }
            self.pass_time(seen, left.filter(|_| !stopped));
        };
        self.release_idle_segments();
        Ok(Report {
            booked,
            measured: measured_before.and_then(|before| Some(before - self.measured()?)),
            elapsed: self.ports.clock.now().since(start),
        })
    }

    /// The report of the last eviction, once segments that it emptied have been given back too.
    fn take_evicted(&self) -> Option<EvictReport> {
        let mut core = self.core.lock();
        match core.owes_memory() {
            true => None,
            false => core.machine.take_evicted(),
        }
    }

    /// Segments that were allocated for a record that then went elsewhere.
    fn release_idle_segments(&self) {
        loop {
            let idle = self.core.lock().stack.take_idle();
            if idle.is_none() {
                return;
            }
            self.release_segment(idle);
        }
    }

    fn measured(&self) -> Option<i64> {
        let bytes = self.ports.meter?.resident_bytes().ok()?;
        i64::try_from(bytes).ok()
    }

    /// Lets no more guests in, ends evictions that some run, and waits until they have returned.
    pub(super) fn see_guests_off(&self) {
        self.guests.set(CLOSED);
        loop {
            let guests = self.guests.load();
            if guests & !CLOSED == 0 {
                return;
            }
            // None may be running at this moment.
            let _ = self.event(Event::StopEvict(Stop::Cancelled));
            self.ports.park.wait(&self.guests, guests, Some(Nanos::new(1_000_000)));
        }
    }
}

pub(super) fn remaining(start: Nanos, deadline: Nanos, now: Nanos) -> Nanos {
    Nanos::new(deadline.get().saturating_sub(now.since(start).get()))
}
