//! Inner loops of the transformer: dequantisation, matrix products, softmax.
//!
//! Each loop is written once over `vector::Vector` and compiled for every instruction set; the
//! portable instance is the oracle of the others. [`MathKernels`] is the table, picked once and
//! owned by its user; its methods check lengths, and only then is anything unsafe called. A result
//! depends on the table, never on how many threads share the work.
//!
//! `kind` names the weight encodings, `dequant` decodes them, `tile` and `rows` multiply, `softmax`
//! holds what is not linear, `half` converts single values.

mod dequant;
pub mod half;
mod kind;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rows;
mod softmax;
mod table;
#[cfg(test)]
mod tests;
mod tile;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use kind::WeightType;
pub use softmax::MASKED;
pub use table::{Isa, MathKernels, Strided};
