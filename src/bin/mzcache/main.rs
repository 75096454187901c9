//! The program `mzcache`: parses the command line, runs a command, turns its outcome into messages
//! and an exit code. 0 is success, 1 a failure, 2 a wrong command line.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]

mod amount;
mod cli;
mod failure;
mod paths;
mod place;
mod profile;
mod progress;
mod random;
mod report;
mod sample;
mod shape;
mod synthetic;
mod talk;
mod template;
mod text;

use clap::Parser;
use cli::Cli;
use failure::{Exit, Failure};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed output leaves nobody to tell.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure),
    }
}

fn end(failure: &Failure) -> ExitCode {
    let code = match failure.exit {
        Exit::Error => 1,
        Exit::Usage => 2,
        Exit::OutputClosed => return ExitCode::SUCCESS,
    };
    let mut text = format!("error: {failure}\n");
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    // If the error stream is closed too, the exit code says it.
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(code)
}

fn run(cli: Cli) -> failure::Outcome<()> {
    Err(Failure::new(format!("{:?} is not part of this build", cli.command)))
}
