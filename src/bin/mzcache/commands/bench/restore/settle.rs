//! Free memory that is there at once, as it is on the machines that this is about.
//!
//! A guest of a hypervisor lends the memory that it freed to its host, some of it within a second,
//! and getting it back costs up to seven times what a page costs otherwise. A phone has no host. So
//! before a restore is timed, of whatever system, as much memory as it will take is taken once and
//! freed.

use mzcache::port::linux::AnonymousMemory;
use std::time::{Duration, Instant};

/// Does so for that many bytes, and says what taking them takes then. Where they cannot be had, a
/// restore will say so better.
pub fn settle(bytes: u64) -> Duration {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let _nothing_to_be_had = AnonymousMemory.rehearse(bytes);
    let start = Instant::now();
    let _nothing_to_be_had = AnonymousMemory.rehearse(bytes);
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_can_be_asked_for() {
        for bytes in [0, 5 << 20, 1 << 60, u64::MAX] {
            settle(bytes);
        }
    }
}
