//! The OpenCL port on a real driver, PoCL, and on planted ones.
//!
//! Without PoCL the tests that need it say so and pass, unless `MZ_CI` is set.

mod blocks;
mod cache;
mod failures;
#[path = "../manager/mod.rs"]
mod manager;
mod planted;
mod regions;
mod runtime;
#[path = "../support/mod.rs"]
mod scratch;
mod support;
