//! The OpenCL port on a real driver, PoCL, and on planted ones.
//!
//! Without PoCL the tests that need it say so and pass, unless `MZ_CI` is set.

mod blocks;
mod support;
