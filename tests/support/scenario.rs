//! Runs the test `scenario` of the same program in a process of its own.

use mzcache::{Error, Result};
use std::fmt::Debug;
use std::process::{Command, ExitStatus};

/// Tells the scenario which one it is.
pub const SCENARIO: &str = "MZCACHE_TEST_SCENARIO";

/// What a scenario said, a line for each `say`.
pub struct Outcome {
    pub said: Vec<String>,
    pub status: ExitStatus,
}

impl Outcome {
    #[track_caller]
    pub fn assert_said(&self, expected: &[&str]) {
        assert!(self.status.success(), "{:?} after {:?}", self.status, self.said);
        assert_eq!(self.said, expected);
    }
}

pub fn run(mut command: Command, scenario: &str) -> Outcome {
    command.args(["--exact", "scenario", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(SCENARIO, scenario).output().unwrap_or_else(|error| {
        panic!("cannot run {command:?}: {error}; some tests need Debian's package strace")
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let complaint = errors.lines().find(|line| {
        // Of a path below /proc/self it only says that it looks for its target as well.
        line.starts_with("strace:") && !line.contains("resolved into")
    });
    assert_eq!(complaint, None);
    let said: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("> "))
        .map(|(_, rest)| rest.into())
        .collect();
    assert!(!said.is_empty(), "the scenario did not start: {text} {errors}");
    Outcome { said, status: output.status }
}

pub fn say(what: impl AsRef<str>) {
    println!("> {}", what.as_ref());
}

pub fn show<T: Debug>(result: Result<T>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(Error { code, what, value }) => format!("{code:?}, {what}, {value}"),
    }
}
