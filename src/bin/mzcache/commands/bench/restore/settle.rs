//! Free memory that is there at once, as it is on the machines that this is about.
//!
//! A guest of a hypervisor lends the memory that it freed to its host, some of it within a second,
//! and getting it back costs up to seven times what a page costs otherwise. A phone has no host. So
//! before a restore is timed, of whatever system, as much memory as it will take is taken once and
//! freed.

use mzcache::port::linux::AnonymousMemory;

/// Does so for that many bytes. Where they cannot be had, a restore will say so better.
pub fn settle(bytes: u64) {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let _nothing_to_be_had = AnonymousMemory.rehearse(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_can_be_asked_for() {
        [0, 5 << 20, 1 << 60, u64::MAX].into_iter().for_each(settle);
    }
}
