//! The apps in the foreground: a process that takes memory and never gives any back.

use super::super::paging::partner::{number, serve};
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::random::Random;

/// What it is asked for, with a number of bytes.
pub const GROW: &str = "grow";

/// Serves whoever started it.
pub fn run(console: &mut Console<'_>) -> Outcome<()> {
    let mut random = Random::new(3);
    let mut taken = Vec::new();
    serve(console, &mut |request| match request.split_once(' ') {
        Some((GROW, bytes)) => {
            let words = number::<usize>(bytes)? / size_of::<u64>();
            // Nothing that compresses: each page is needed as it is.
            taken.push((0..words).map(|_| random.next()).collect::<Vec<u64>>());
            Ok(taken.len().to_string())
        }
        _ => Err(Failure::new(format!("unknown request `{request}`"))),
    })
}
