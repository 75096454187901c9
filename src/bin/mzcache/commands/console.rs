//! Where a command writes: its result to the output, notes and bars to the error stream.

use crate::cli::Common;
use crate::failure::{Outcome, output};
use crate::progress::Bars;
use serde::Serialize;
use std::io::{self, Write};

/// The streams of one command.
pub struct Console<'a> {
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    is_quiet: bool,
}

impl<'a> Console<'a> {
    pub fn new(common: &Common, out: &'a mut dyn Write, notes: &'a mut dyn Write) -> Self {
        Console { out, notes, is_quiet: common.quiet }
    }

    /// The same without notes and bars.
    pub const fn quiet(&mut self) -> Console<'_> {
        Console { out: self.out, notes: self.notes, is_quiet: true }
    }

    /// Bars, unless they are not wanted.
    pub const fn bars(&self) -> Bars {
        if self.is_quiet { Bars::Hidden } else { Bars::Auto }
    }

    /// Says something beside the result, unless that is not wanted.
    pub fn note(&mut self, text: &str) {
        if !self.is_quiet {
            // A closed error stream does not stop the work.
            let _ = writeln!(self.notes, "{text}");
        }
    }

    /// A part of the result, at once.
    pub fn print(&mut self, text: &str) -> Outcome<()> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).map_err(output)
    }

    /// The result as one JSON object.
    pub fn print_json(&mut self, value: &impl Serialize) -> Outcome<()> {
        let text = serde_json::to_string_pretty(value);
        let text = text.map_err(|error| output(io::Error::from(error)))?;
        self.print(&(text + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(is_quiet: bool) -> (String, String) {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let common = Common { cache_dir: None, quiet: is_quiet };
        let mut console = Console::new(&common, &mut out, &mut notes);
        console.note("note");
        console.print("text\n").unwrap();
        console.print_json(&[1]).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
    }

    #[test]
    fn results_and_notes_go_to_their_streams() {
        assert_eq!(written(false), ("text\n[\n  1\n]\n".to_owned(), "note\n".to_owned()));
        assert_eq!(written(true).1, "");
    }

    #[test]
    fn a_closed_output_ends_quietly() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let common = Common { cache_dir: None, quiet: true };
        let mut notes = Vec::new();
        let failure = Console::new(&common, &mut Closed, &mut notes).print("x").unwrap_err();
        assert_eq!(failure.exit, crate::failure::Exit::OutputClosed);
    }
}
