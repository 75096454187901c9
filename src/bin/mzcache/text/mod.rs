//! Text in and out: a tokenizer made from what the model file says about its own vocabulary.
//!
//! `vocabulary` is that input, checked; `from_gguf` reads it; `pretokenize` knows how the families
//! cut text into words; `tokenizer` encodes by the `tokenizers` crate; `stream` turns tokens back
//! into text, one by one, never cutting a character. Special tokens in plain text are text; only
//! chat templates, which the model's author wrote, may produce them.
//!
//! Like `template`, it finds the rest of the program by `super`: fuzz targets include both.

use super::failure;

mod bytes;
mod from_gguf;
mod pretokenize;
mod stream;
mod tokenizer;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use bytes::to_char as byte_char;
pub use stream::TextStream;
pub use tokenizer::{Special, Tokenizer};
pub use vocabulary::Vocabulary;
