//! Which worker threads belong on which cores. Pure: `linux` reads the cores and pins threads.
//!
//! [`Topology`] is what a system says of its cores, [`CoreMap`] the cores of each role: ranked from
//! a topology by [`CoreMap::rank`], or the preset of a chip, or the caller's own. A role without
//! cores runs anywhere.
//!
//! The rule. Only cores that are online and allowed count. They are sorted by capacity, then by
//! maximum frequency, strongest first. Cores of one capacity are one cluster unless their
//! frequencies differ by an eighth or more; less is how makers grade cores of one kind. Cores below
//! half of the strongest are little. Of the other clusters the weakest is the middle, and all
//! above it are big.
//!
//! ```text
//! big unpack and read, middle allocate, little do nothing
//! one cluster besides little ones:   it does everything
//! one cluster in all:                nothing is pinned
//! ```
//!
//! On a symmetric machine every core suits every role as well, and compute runs on all of them: a
//! pinned worker would wait for the compute thread on its core while another core is idle, so the
//! scheduler is left to place it.
//!
//! A capacity, or a frequency, that is not known of every core counts for none.

mod map;
mod topology;

#[cfg(test)]
mod tests;

pub use map::{CoreList, CoreMap};
pub use topology::{Core, Topology};
