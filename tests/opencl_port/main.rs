//! The OpenCL port on a real driver, PoCL, and on planted ones.
//!
//! Without PoCL the tests that need it say so and pass, unless `MZ_CI` is set.

mod blocks;
mod cache;
mod failures;
#[path = "../manager/mod.rs"]
mod manager;
#[path = "../planted/numbers.rs"]
mod numbers;
#[path = "../planted/mod.rs"]
mod planted;
mod regions;
mod runtime;
mod support;
