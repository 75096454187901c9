//! What the commands do, one module each, and the console that they share.

mod bench;
mod chat;
mod console;
mod demo;
mod profile;
mod run;

pub use bench::bench;
pub use chat::chat;
pub use console::Console;
pub use demo::demo;
pub use profile::profile;
pub use run::run;

use crate::failure::{Failure, Outcome};
use std::fs;
use std::io::Read;
use std::path::Path;

/// A text file; UTF-8 only.
fn read_text(path: &Path) -> Outcome<String> {
    let bytes = fs::read(path).map_err(|error| Failure::file("read", path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("{} is not UTF-8 at byte {at}", path.display()))
            .hint("convert it, for example with iconv -t UTF-8")
    })
}

/// The standard input, whole.
fn read_standard_input() -> Outcome<String> {
    let mut text = String::new();
    match std::io::stdin().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::new(format!("cannot read the standard input: {error}"))),
    }
}
