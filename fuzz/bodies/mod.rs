//! What the fuzz targets do with their bytes, without a fuzzer, so that a test can replay inputs.
//!
//! A body returns when the library kept its promises for the input and panics when it broke one.
//! The answer says whether the library accepted the input, so that a corpus of nothing but refusals
//! is noticed. Every input is legal. Bodies keep nothing between calls.

mod canary;
#[cfg(feature = "infer")]
mod gguf;
mod kvh;
mod memory;
mod packed;
mod profile;
mod reader;
mod state;
mod steps;

pub use canary::canary;
#[cfg(feature = "infer")]
pub use gguf::gguf;
pub use kvh::kvh;
pub use packed::packed;
pub use profile::profile;
pub use state::state;
pub use steps::steps;
