//! Runs scenarios under strace, which makes calls fail.

use crate::scenario::{Outcome, run};
use std::path::Path;
use std::process::Command;

/// Tells the scenario which file to use.
pub const FILE: &str = "MZCACHE_TEST_FILE";

/// Runs a scenario with strace's `inject=` expressions in force for calls on `file`, or for all
/// calls where there is none.
pub fn under_strace(injections: &[&str], file: Option<&Path>, scenario: &str) -> Outcome {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null"]);
    for injection in injections {
        strace.arg("-e").arg(format!("inject={injection}"));
    }
    if let Some(file) = file {
        strace.arg("-P").arg(file).env(FILE, file);
    }
    strace.arg(std::env::current_exe().unwrap());
    run(strace, scenario)
}
