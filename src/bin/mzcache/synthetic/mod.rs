//! Models of well-known shapes with random weights: for a demonstration without a download.
//!
//! `container` writes the head of a GGUF file, `words` makes up a vocabulary, `weights` the
//! numbers, `model` puts the three together and into the cache directory.

mod container;
mod model;
mod weights;
mod words;

pub use model::{Model, ensure};
