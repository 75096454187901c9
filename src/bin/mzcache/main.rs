//! The program `mzcache`: parses the command line, runs a command, turns its outcome into messages
//! and an exit code. 0 is success, 1 a failure, 2 a wrong command line.
//!
//! `cli` says what may be asked for, `commands` what is done, on an `engine`,
//! which may compute on an `accelerator`. Text goes through
//! `text`, `template` and `sample`; models with random weights come from `shape` and `synthetic`;
//! files are written by `place` under `paths`. Never unsafe, never a panic for what a user or a
//! file does.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::todo)]

mod accelerator;
mod amount;
mod baseline;
mod choice;
mod cli;
mod commands;
mod cores;
mod engine;
mod failure;
mod measure;
mod paths;
mod place;
mod progress;
mod random;
mod report;
mod sample;
mod shape;
mod steps;
mod synthetic;
mod talk;
mod template;
mod text;

use clap::Parser;
use cli::{Cli, Command};
use commands::Console;
use failure::{Exit, Failure, Outcome};
use std::io::{Write, stderr, stdout};
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
    match run(&cli) {
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
    let _ = stderr().write_all(text.as_bytes());
    ExitCode::from(code)
}

fn run(cli: &Cli) -> Outcome<()> {
    let (mut out, mut notes) = (stdout(), stderr());
    let mut console = Console::new(&cli.common, &mut out, &mut notes);
    match &cli.command {
        Command::Profile(arguments) => commands::profile(&cli.common, arguments, &mut console),
        Command::Run(arguments) => commands::run(&cli.common, arguments, &mut console),
        Command::Chat(arguments) => commands::chat(&cli.common, arguments, &mut console),
        Command::CompileOpencl { request } => accelerator::compile(request),
        Command::Bench(which) => commands::bench(&cli.common, which, &mut console),
        Command::Demo(arguments) => commands::demo(&cli.common, arguments, &mut console),
    }
}
