//! What the program, not the library, reads of a model file: its vocabulary and its chat template.
//! These are the program's own modules, included here.

mod failure;
#[path = "../../../src/bin/mzcache/template.rs"]
mod template;
mod template_body;
#[path = "../../../src/bin/mzcache/text/mod.rs"]
mod text;
mod tokenizer_body;

pub use template_body::template;
pub use tokenizer_body::tokenizer;
