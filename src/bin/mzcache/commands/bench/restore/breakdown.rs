//! Figure 10: allocation, reload and prefill one after the other, ours without overlap beside
//! partial offload.

use super::plot::Plot;
use super::recorder::{Record, is_allocation};
use super::subject::Subject;
use super::table::{At, Cells, Findings, Times, median, ms, sweep, times};
use crate::amount::Percent;
use crate::cli::BenchRestore as Options;
use crate::commands::Console;
use crate::failure::Outcome;
use mzcache::runtime::Overlap;
use mzcache::units::Nanos;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    at: At,
    system: &'static str,
    allocation_ms: f64,
    reload_ms: f64,
    prefill_ms: f64,
    spread_ms: f64,
    bound_ms: f64,
}

impl Row {
    fn sum(&self) -> f64 {
        self.allocation_ms + self.reload_ms + self.prefill_ms
    }
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        self.at.with([
            self.system.to_owned(),
            ms(self.allocation_ms),
            ms(self.reload_ms),
            ms(self.prefill_ms),
            ms(self.sum()),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.sum(), self.bound_ms),
        ])
    }
}

const COLUMNS: [&str; 10] = [
    "context",
    "remaining",
    "system",
    "allocation",
    "reload",
    "prefill",
    "sum",
    "spread",
    "bound",
    "of bound",
];

#[derive(Default)]
struct Taken {
    allocation: Vec<Duration>,
    reload: Vec<Duration>,
    prefill: Vec<Duration>,
    sum: Vec<Duration>,
    bounds: Vec<f64>,
}

impl Taken {
    fn add(&mut self, record: &Record, prefill: Duration) {
        let (allocation, reload) = phases(record);
        self.allocation.push(allocation);
        self.reload.push(reload);
        self.prefill.push(prefill);
        self.sum.push(allocation + reload + prefill);
    }

    fn row(self, at: At, system: &'static str) -> Row {
        let [allocation_ms, reload_ms, prefill_ms] =
            [self.allocation, self.reload, self.prefill].map(|times| Times::of(times).median_ms);
        Row {
            at,
            system,
            allocation_ms,
            reload_ms,
            prefill_ms,
            spread_ms: Times::of(self.sum).spread_ms,
            bound_ms: median(self.bounds),
        }
    }
}

pub fn run(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let rows = sweep(subject, options, console, |subject, at, level| {
        measure(subject, options.rounds, at, level)
    })?;
    let bars = rows.iter().flat_map(|row| {
        let parts = [
            ("allocation", row.allocation_ms),
            ("reload", row.reload_ms),
            ("prefill", row.prefill_ms),
        ];
        parts.map(|(part, ms)| (format!("{} {part}", row.system), ms))
    });
    Findings {
        bench: "breakdown",
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &COLUMNS,
        plot: Plot::bars("Phases without overlap", "ms", bars.collect()),
    }
    .report(options, console)
}

fn measure(subject: &mut Subject, rounds: u16, at: At, level: Percent) -> Outcome<[Row; 2]> {
    subject.watch()?;
    let (mut ours, mut offload) = (Taken::default(), Taken::default());
    for _ in 0..rounds {
        subject.evict_to(level, subject.policy())?;
        let work = subject.work(true);
        let runtime = subject.engine.session.runtime();
        runtime.set_overlap(Overlap::empty());
        let restored = runtime.restore();
        runtime.set_overlap(Overlap::all());
        restored?;
        subject.watch_storage()?;
        let bound_ms = subject.bound_of(&work).ms;
        ours.bounds.push(bound_ms);
        offload.bounds.push(bound_ms);
        let record = subject.recorder.read();
        ours.add(&record, subject.ask()?);
        let (_, prefill) = subject.partial_offload(level)?;
        offload.add(&subject.recorder.read(), prefill);
    }
    let ours = ours.row(at.clone(), "mzcache, no overlap");
    Ok([ours, offload.row(at, "partial offload")])
}

/// Where allocation came first, its span and that of the rest; where one thread did one thing
/// after the other, their sums.
fn phases(record: &Record) -> (Duration, Duration) {
    let duration = |nanos: Nanos| Duration::from_nanos(nanos.get());
    let is_filling = |action: &_| !is_allocation(action);
    let span = |span: Option<(Nanos, Nanos)>| span.unwrap_or_default();
    let (allocation, filling) = (span(record.span(is_allocation)), span(record.span(is_filling)));
    match allocation.1 <= filling.0 {
        true => (duration(allocation.1.since(allocation.0)), duration(filling.1.since(filling.0))),
        false => (duration(record.total(is_allocation)), duration(record.total(is_filling))),
    }
}
