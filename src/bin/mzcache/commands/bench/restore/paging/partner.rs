//! Another process of this program, with whom one speaks by lines: a request in, an answer out.
//!
//! Closing its input is what ends it, so that it ends too when the one who started it is killed,
//! and has then the time to tidy up.

use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Stands in an answer where a message has a line of its own.
const BREAK: char = '\u{1f}';

/// The other process; ended and waited for when dropped.
pub struct Partner {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    name: &'static str,
}

impl Partner {
    /// Starts this program with these arguments, in a process group of its own: an interrupt from
    /// the terminal must not keep it from tidying up.
    pub fn start(name: &'static str, arguments: &[OsString]) -> Outcome<Partner> {
        let cannot = |error| Failure::new(format!("cannot start {name}: {error}"));
        let program = std::env::current_exe().map_err(cannot)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(cannot)?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or_else(|| Failure::new("a process without an output"))?;
        Ok(Partner { child, requests, answers: BufReader::new(answers), name })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks for something and waits for the answer.
    pub fn ask(&mut self, request: &str) -> Outcome<String> {
        let ended = |name| Failure::new(format!("{name} ended before it had answered"));
        let requests = self.requests.as_mut().ok_or_else(|| ended(self.name))?;
        writeln!(requests, "{request}").map_err(|_| ended(self.name))?;
        let mut answer = String::new();
        let read = self.answers.read_line(&mut answer);
        if read.is_err() || !answer.ends_with('\n') {
            return Err(ended(self.name));
        }
        understood(answer.trim_end())
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether one that did not answer has ended, or is just doing so.
    pub fn has_ended(&mut self) -> bool {
        for _ in 0..200 {
            if !self.is_running() {
                return true;
            }
            sleep(Duration::from_millis(10));
        }
        false
    }

    /// Ends it at once, whatever it does.
    pub fn kill(&mut self) {
        // One that has ended by itself is as good.
        let _ = self.child.kill();
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// Answers requests until there are no more.
pub fn serve(
    console: &mut Console<'_>,
    answer: &mut dyn FnMut(&str) -> Outcome<String>,
) -> Outcome<()> {
    for request in stdin().lines() {
        let Ok(request) = request else { break };
        console.print(&(written(answer(&request)) + "\n"))?;
    }
    Ok(())
}

fn written(answer: Outcome<String>) -> String {
    let line = match answer {
        Ok(text) => format!("ok {text}"),
        Err(Failure { message, hint: None, .. }) => format!("failed {message}"),
        Err(Failure { message, hint: Some(hint), .. }) => format!("failed {message}{BREAK}{hint}"),
    };
    line.replace('\n', " ")
}

fn understood(line: &str) -> Outcome<String> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("ok", text) => Ok(text.to_owned()),
        ("failed", text) => Err(match text.split_once(BREAK) {
            Some((message, hint)) => Failure::new(message).hint(hint),
            None => Failure::new(text),
        }),
        _ => Err(Failure::new(format!("an answer that makes no sense: {line}"))),
    }
}

/// A number in an answer.
pub fn number<T: std::str::FromStr>(text: &str) -> Outcome<T> {
    text.trim().parse().map_err(|_| Failure::new(format!("`{text}` is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_arrive_as_they_were_given() {
        for answer in [
            Ok("1 2".to_owned()),
            Ok(String::new()),
            Err(Failure::new("no such thing")),
            Err(Failure::new("no such thing").hint("make it")),
        ] {
            assert_eq!(understood(&written(answer.clone())), answer);
        }
        let lines = understood(&written(Err(Failure::new("two\nlines"))));
        assert_eq!(lines, Err(Failure::new("two lines")));
        assert!(understood("hello").is_err() && understood("").is_err());
    }

    #[test]
    fn numbers_are_numbers() {
        assert_eq!(number::<u64>("17 ").unwrap(), 17);
        assert!(number::<u64>("").unwrap_err().message.contains("not a number"));
    }
}
