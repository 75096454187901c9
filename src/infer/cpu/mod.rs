//! The transformer on the CPU.
//!
//! Activations of a batch lie in panels (`batch`): `[panel][feature][lane]`, a lane being a token.
//! A matrix product reads panels and writes panels, norms and rotations run down the lanes, and
//! attention takes a head's rows as they lie; nothing is transposed but the embedding, new keys and
//! values, and the rows whose logits are wanted. Work is shared out by output rows (`linear`) and
//! by heads (`attention`), never along a sum, so results do not depend on the number of threads.
//!
//! [`Transformer`] owns the scratch memory, all of it placed in the arena at open. Holds no weights
//! and no KV beyond the leases of the layer it is computing.

mod attention;
mod batch;
mod fold;
mod linear;
mod pointwise;
mod transformer;

pub use transformer::{ComputeConfig, ComputePorts, Transformer};
