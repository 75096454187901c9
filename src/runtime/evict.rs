//! `evict(bytes, deadline)`: frees memory and says truly how much.

use super::Runtime;
use crate::error::Result;
use crate::state::{Event, EvictReport, Paths, Stop};
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

impl Runtime {
    /// Frees at least `bytes` of shared buffers and RAM swap, or says how much could be freed and
    /// why no more. Ends soon after `deadline` (a duration from now) in a consistent state: a unit
    /// that a worker has at that moment is finished, no other is begun. A restore under way is
    /// cancelled; units that compute leases stay.
    pub fn evict(&self, bytes: ByteCount, deadline: Option<Nanos>) -> Result<Report> {
        self.evict_over(bytes, deadline, Paths::BOTH)
    }

    /// As [`Runtime::evict`], with ways out of memory closed to chunks.
    pub fn evict_over(
        &self,
        bytes: ByteCount,
        deadline: Option<Nanos>,
        paths: Paths,
    ) -> Result<Report> {
        let shared = self.shared;
        let start = shared.ports.clock.now();
        let measured_before = self.measured();
        shared.event(Event::Evict { bytes, paths })?;
        let mut stopped = false;
        let booked = loop {
            let seen = shared.work.load();
            if let Some(report) = shared.core.lock().machine.take_evicted() {
                break report;
            }
            let left = deadline.map(|deadline| remaining(start, deadline, shared.ports.clock.now()));
            if left == Some(Nanos::new(0)) && !stopped {
                stopped = true;
                // The eviction may have ended since it was looked at; then there is a report.
                let _ = shared.event(Event::StopEvict(Stop::Deadline));
                continue;
            }
            self.pass_time(seen, left.filter(|_| !stopped));
        };
        self.release_idle_segments();
        Ok(Report {
            booked,
            measured: measured_before.and_then(|before| Some(before - self.measured()?)),
            elapsed: shared.ports.clock.now().since(start),
        })
    }

    /// Segments that were allocated for a record that then went elsewhere.
    fn release_idle_segments(&self) {
        loop {
            let idle = self.shared.core.lock().stack.take_idle();
            if idle.is_none() {
                return;
            }
            self.shared.release_segment(idle);
        }
    }

    fn measured(&self) -> Option<i64> {
        let bytes = self.shared.ports.meter?.resident_bytes().ok()?;
        i64::try_from(bytes).ok()
    }
}

fn remaining(start: Nanos, deadline: Nanos, now: Nanos) -> Nanos {
    Nanos::new(deadline.get().saturating_sub(now.since(start).get()))
}
