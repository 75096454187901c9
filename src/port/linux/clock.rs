//! Time: `clock_gettime(CLOCK_MONOTONIC)`, which neither jumps nor goes back.

use crate::port::Clock;
use crate::units::Nanos;

/// Nanoseconds since boot, without time spent suspended.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a live timespec that the call fills.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        // The call can only fail for an unknown clock or a bad pointer.
        assert!(answer == 0);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Nanos::new(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}
