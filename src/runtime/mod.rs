//! Executes what the state machine decides: the only place where threads meet.
//!
//! [`Runtime::open`] places everything in the caller's memory and starts the workers; after that
//! nothing allocates but shared buffers, through their port. Whoever brings an event takes the one
//! lock, steps the machine, applies the step, lets go; transfers, packing and waiting happen
//! outside. Work is pulled: a free worker asks the machine for something that its roles allow, so
//! there is no queue to overflow, and restoration is one forward-in order from which everybody
//! draws.
//!
//! A gate is one word per layer and kind of unit. It opens when the last unit of the layer is
//! published, and it turns *off* when nobody is bringing the layer back, so a waiter never hangs.
//!
//! Without threads the same code runs inline: a caller that waits executes the actions itself.
//!
//! `config` has the inputs and the size query, `worker_list` workers by a core map, `open`
//! placement and threads, `worker` the loop, `pin` workers on their cores, `execute` one action,
//! `step` the lock's critical section, `gate` the waiting, `pass` what compute uses, `evict`
//! eviction with a deadline, `checkpoint` what outlives the process, `steps` the codec's step
//! profile, `trace` who hears of all this, `weights` where weight units lie in the model file.

mod checkpoint;
mod config;
mod evict;
mod execute;
mod gate;
mod open;
mod pass;
mod pin;
mod step;
mod steps;
mod trace;
mod weights;
mod worker;
mod worker_list;

pub use checkpoint::{CheckpointReport, Recovered};
pub use config::{Config, Options, Worker, required_bytes, size};
pub use evict::{Evictor, Report};
pub use open::Runtime;
pub use pass::{Overlap, Stats};
pub use trace::Trace;
pub use worker_list::{WorkerCounts, WorkerList};
