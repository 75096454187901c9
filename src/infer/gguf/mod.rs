//! A reader for GGUF, versions 2 and 3 (little-endian), over the bytes of a whole file.
//!
//! ```text
//! magic "GGUF" | version u32 | tensors u64 | keys u64
//! key: string, value type u32, value         (strings: length u64, bytes)
//! tensor: name string, dimensions u32, u64 each, type u32, offset u64
//! padding to general.alignment, then the data that the offsets count from
//! ```
//!
//! Invariant: a [`Gguf`] exists only for a file whose every length, offset, key, name and tensor
//! range was checked against the bytes that are really there. Nothing is copied or allocated; work
//! is bounded by the size of the file and the limits, whatever its count fields claim. Never
//! interprets weights.

mod cursor;
mod file;
mod tensor;
#[cfg(test)]
mod tests;
mod value;

pub use file::Gguf;
pub use tensor::{TensorInfo, Tensors};
pub use value::{Array, Items, Scalar, Value};
