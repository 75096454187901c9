//! mzcache gives an LLM's memory back piece by piece, in the order that is cheapest to restore, and
//! answers at once from any state: compute starts on the layers that are still in memory while
//! worker threads restore the rest ahead of it. It follows the paper "mzCache: On-Device LLM Memory
//! Management under Multitasking" (MobiCom '26).
//!
//! Four principles hold everywhere:
//!
//! 1. Nothing allocates. `runtime::required_bytes` says how much memory a configuration needs; the
//!    caller gives it once and it is never resized. Buffers come and go through a [`port`].
//! 2. A KV chunk that holds tokens always has one good copy.
//! 3. Bytes from outside are hostile: checked before use, answered with a typed [`Error`].
//! 4. Decisions (`policy`) and bookkeeping (`state`) do no I/O; `runtime` executes them.
//!
//! Imports go one way: `units, error, limits, sync` < `arena, kernel` < `policy, state` < `codec` <
//! `port` (traits) < `swap` < `runtime` < `infer` < `ffi`, the program.

#![no_std]
#![deny(unsafe_op_in_unsafe_fn, missing_docs, rust_2018_idioms)]
#![deny(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

#[cfg(any(feature = "host", test))]
extern crate std;

pub mod arena;
pub mod codec;
pub mod error;
pub mod ffi;
#[cfg(feature = "infer")]
pub mod infer;
pub mod kernel;
pub mod limits;
pub mod policy;
pub mod port;
pub mod runtime;
pub mod state;
pub mod swap;
pub mod sync;
pub mod units;

pub use error::{Code, Error, Result};

/// The README's example is compiled with the documentation tests.
#[cfg(all(doctest, feature = "infer"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
