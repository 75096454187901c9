//! What to evict next, where to, and in which order: pure functions over numbers.
//!
//! ```text
//! profile --+
//! sizes ----+--> Times --> threshold T --> Plan --+
//!                                                 +--> stage, next_move
//!               what is still resident --> Load --+
//! order: position --> unit      budget: percent --> bytes      choice: codecs --> the soonest
//! ```
//!
//! Invariant: the same inputs give the same answer, for any inputs; sums saturate, nothing divides
//! by zero, and no answer depends on time, memory or I/O. Who owns the numbers (the residency
//! table, the profile file) is not this module's business. Paper sections 4.3 and 4.4.

pub mod budget;
pub mod choice;
pub mod order;
pub mod profile;
pub mod stage;
pub mod threshold;
pub mod times;

pub use budget::bytes_to_evict;
pub use choice::{Amounts, Candidate, Choice, choose, restore_time};
pub use order::{Order, restore_unit_at};
pub use profile::{CodecRates, Profile};
pub use stage::{Load, Move, Plan, Scheme, Stage, next_move, stage};
pub use threshold::threshold;
pub use times::{Setup, Times};
