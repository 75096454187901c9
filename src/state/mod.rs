//! What is where, and the eviction state machine.
//!
//! [`Machine`] takes one [`Event`] at a time and answers with one [`Step`]: at most one action for
//! the worker that brought the event, and what changed. It decides by asking [`crate::policy`],
//! does no I/O, holds no lock, knows no thread. Invariants, checked by [`Machine::check`]:
//!
//! * A chunk that holds tokens has at least one good copy, unless the storage lost it; then
//!   [`Machine::lost`] names its first token.
//! * A copy leaves the set only after another one entered it, except by truncation or corruption.
//! * The tally (counts, bytes, restore times) equals what a recount over all units gives.
//!
//! An event that does not fit the present state is a typed error and changes nothing.
//!
//! ```text
//! evict:    idle -> packing | writing -> releasing -> idle (not resident)
//!           idle (packed in RAM) -> spilling -> idle (on flash)
//! restore:  idle -> allocating -> prepared -> filling -> idle (resident)
//! save:     idle -> saving -> idle (where it was, and on flash)
//! ```
//!
//! `unit` is one unit's state, `table` all of them with the tally, `machine` the events, `evict`
//! and `restore` the two goals that move memory, `save` the third, which makes the context durable,
//! `recover` the start from what an earlier process made so, `poison` the loss of the swap file.

mod check;
mod context;
mod evict;
mod machine;
mod poison;
mod recover;
mod restore;
mod save;
mod table;
mod unit;

pub use evict::{EvictReport, Stop};
pub use machine::{
    Action, Config, Event, EvictPolicy, Machine, Outcome, Paths, Roles, Step, Touched,
};
pub use recover::SavedChunk;
pub use save::SaveReport;
pub use table::{Tally, UnitCounts};
pub use unit::{Chunk, Copies, Phase, Weights, part_bytes};

#[cfg(test)]
mod tests;
