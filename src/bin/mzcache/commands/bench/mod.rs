//! `mzcache bench`: measurements of parts, each beside its own bound from the same run.

mod attention;
mod device;
mod layer;
mod stopwatch;

use super::Console;
use crate::cli::{Bench, Common};
use crate::failure::Outcome;
use serde::Serialize;

/// What every bench prints as JSON.
#[derive(Serialize)]
struct Report<Row> {
    bench: &'static str,
    machine: String,
    rows: Vec<Row>,
}

/// Runs one.
pub fn bench(common: &Common, bench: &Bench, console: &mut Console<'_>) -> Outcome<()> {
    match bench {
        Bench::Attention(options) => attention::run(options, console),
        Bench::Layer(options) => layer::run(common, options, console),
    }
}
