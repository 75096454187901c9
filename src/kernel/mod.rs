//! The one SIMD seam: a table of typed functions, chosen once at open and owned by the handle.
//!
//! `portable` is the oracle of all others. Typed wrappers check lengths; only then is anything
//! unsafe called. There is no global state: two handles may use different tables.

#[cfg(feature = "infer")]
pub mod math;

/// The chosen functions.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {}
