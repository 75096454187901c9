//! How fast memory is given back, by level: each eviction begins with everything in memory and
//! ends with the report that its caller gets. Bound: the packing on all cores, the writing by
//! storage, whichever takes longer.

use super::plot::Plot;
use super::subject::{Subject, rate};
use super::table::{At, Cells, Findings, Times, median, ms, sweep, times};
use crate::amount::{Percent, Size};
use crate::cli::BenchRestore as Options;
use crate::commands::Console;
use crate::failure::Outcome;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    at: At,
    bytes_asked: u64,
    bytes_freed: u64,
    /// By how much the process shrank; not known where a device has memory of its own.
    bytes_measured: Option<i64>,
    ms: f64,
    spread_ms: f64,
    mb_per_s: f64,
    bound_ms: f64,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        let measured = self
            .bytes_measured
            .map_or("-".to_owned(), |bytes| Size(u64::try_from(bytes).unwrap_or(0)).to_string());
        self.at.with([
            Size(self.bytes_asked).to_string(),
            Size(self.bytes_freed).to_string(),
            measured,
            ms(self.ms),
            ms(self.spread_ms),
            format!("{:.0}", self.mb_per_s),
            ms(self.bound_ms),
            times(self.ms, self.bound_ms),
        ])
    }
}

const COLUMNS: [&str; 10] = [
    "context",
    "remaining",
    "asked",
    "freed",
    "measured",
    "time",
    "spread",
    "MB/s",
    "bound",
    "of bound",
];

pub fn run(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let rows = sweep(subject, options, console, |subject, at, level| {
        measure(subject, options.rounds, at, level).map(Some)
    })?;
    let line = rows.iter().map(|row| (row.at.remaining_pct, row.ms)).collect();
    Findings {
        bench: "evict",
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &COLUMNS,
        plot: Plot::lines("Eviction", "remaining, %", "ms", vec![("evict".to_owned(), line)]),
    }
    .report(options, console)
}

fn measure(subject: &mut Subject, rounds: u16, at: At, level: Percent) -> Outcome<Row> {
    subject.watch()?;
    let mut taken = Vec::new();
    let mut last = None;
    let mut bounds = Vec::new();
    for _ in 0..rounds {
        let report = subject.evict_to(level, subject.policy())?;
        taken.push(Duration::from_nanos(report.elapsed.get()));
        last = Some(report);
        bounds.push(subject.evict_bound_ms());
        subject.restore()?;
    }
    let times = Times::of(taken);
    let (asked, freed) =
        last.map_or((0, 0), |report| (report.booked.asked.get(), report.booked.freed.get()));
    let seconds = Duration::from_secs_f64(times.median_ms / 1e3);
    Ok(Row {
        at,
        bytes_asked: asked,
        bytes_freed: freed,
        bytes_measured: last.and_then(|report| report.measured),
        ms: times.median_ms,
        spread_ms: times.spread_ms,
        mb_per_s: rate(freed, seconds) / 1e6,
        bound_ms: median(bounds),
    })
}
