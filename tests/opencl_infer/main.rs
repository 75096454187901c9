//! The transformer on an OpenCL device: the oracles' tokens, the CPU's probabilities, and the same
//! answers from every level of eviction, in every mode of memory.
//!
//! Runs on PoCL unless MZ_TEST_OPENCL_DEVICE names another device.

#[path = "../models/broken.rs"]
mod broken;
#[path = "../models/mod.rs"]
mod models;
#[path = "../planted/numbers.rs"]
mod numbers;
#[path = "../planted/mod.rs"]
mod planted;

mod commands;
mod cycles;
mod device;
mod failures;
mod faults;
mod levels;
mod lost;
mod oracles;
mod order;
mod steps;
