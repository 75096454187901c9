//! What the fuzz targets do with their bytes, without a fuzzer, so that a test can replay inputs.
//!
//! A body returns when the library kept its promises for the input and panics when it broke one.
//! The answer says whether the library accepted the input, so that a corpus of nothing but refusals
//! is noticed. Every input is legal. Bodies keep nothing between calls.

mod canary;
mod ffi;
#[cfg(feature = "infer")]
mod gguf;
mod kernels;
mod kvh;
mod memory;
mod packed;
mod profile;
#[cfg(feature = "cli")]
mod program;
mod reader;
mod record;
mod stack;
mod state;
mod steps;
mod swapfile;

pub use canary::canary;
pub use ffi::ffi;
#[cfg(feature = "infer")]
pub use gguf::gguf;
pub use kernels::kernels;
pub use kvh::kvh;
pub use packed::{PACKED_AT, packed};
pub use profile::profile;
#[cfg(feature = "cli")]
pub use program::{template, tokenizer};
pub use record::record;
pub use stack::stack;
pub use state::state;
pub use steps::steps;
pub use swapfile::swapfile;

use mzcache::units::CodecId;

/// Packed chunks of every codec as inputs: target, name, bytes. They are made anew each time, so
/// that they are accepted whatever becomes of a format.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut seeds = vec![];
    for id in CodecId::ALL {
        match packed::seeds(id) {
            Some([whole, sealed]) => {
                seeds.push(("packed", format!("{}_whole", id.name()), whole));
                seeds.push(("packed", format!("{}_sealed", id.name()), sealed));
            }
            None => seeds.push(("kvh", format!("{}_payload", id.name()), kvh::seed())),
        }
    }
    seeds
}
