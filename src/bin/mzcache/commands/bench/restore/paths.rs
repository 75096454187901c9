//! Figure 12: both ways back at once, beside one after the other, by level.
//!
//! Restored without a question. In parallel, each path's time is from the restore's start to its
//! last action's end. How far apart both end is told where the eviction promised balance: before it
//! came to its last stages, in which one path has to take what is left. One after the other,
//! workers may first only unpack, then only read; fresh buffers are taken meanwhile either way.

use super::plot::Plot;
use super::recorder::{is_reading, is_unpacking};
use super::subject::Subject;
use super::table::{At, Cells, Findings, Times, median, ms, sweep, times};
use crate::amount::Percent;
use crate::cli::BenchRestore as Options;
use crate::commands::Console;
use crate::failure::Outcome;
use mzcache::policy::Stage;
use mzcache::state::Roles;
use mzcache::units::Nanos;
use serde::Serialize;
use std::time::{Duration, Instant};

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    at: At,
    /// When the last chunk was unpacked, both paths at work.
    ram_ms: f64,
    /// When the last read ended, both paths at work.
    flash_ms: f64,
    parallel_ms: f64,
    spread_ms: f64,
    /// By how much of the longer one both paths end apart, where balance is promised.
    apart_pct: Option<f64>,
    /// Each path alone.
    ram_alone_ms: f64,
    flash_alone_ms: f64,
    sequential_ms: f64,
    bound_ms: f64,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        self.at.with([
            ms(self.ram_ms),
            ms(self.flash_ms),
            self.apart_pct.map_or("-".to_owned(), |apart| format!("{apart:.0} %")),
            ms(self.parallel_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.parallel_ms, self.bound_ms),
            ms(self.ram_alone_ms),
            ms(self.flash_alone_ms),
            ms(self.sequential_ms),
        ])
    }
}

const COLUMNS: [&str; 12] = [
    "context",
    "remaining",
    "RAM",
    "flash",
    "apart",
    "parallel",
    "spread",
    "bound",
    "of bound",
    "RAM alone",
    "flash alone",
    "sequential",
];

/// Longer than any chunk path takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Taken {
    ram: Vec<Duration>,
    flash: Vec<Duration>,
    apart_pct: Vec<f64>,
    parallel: Vec<Duration>,
    ram_alone: Vec<Duration>,
    flash_alone: Vec<Duration>,
}

pub fn run(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let rows = sweep(subject, options, console, |subject, at, level| {
        measure(subject, options.rounds, at, level).map(Some)
    })?;
    let series = |name: &'static str, value: fn(&Row) -> f64| {
        (name.to_owned(), rows.iter().map(|row| (row.at.remaining_pct, value(row))).collect())
    };
    let lines = vec![
        series("RAM", |row| row.ram_ms),
        series("flash", |row| row.flash_ms),
        series("parallel", |row| row.parallel_ms),
        series("sequential", |row| row.sequential_ms),
    ];
    Findings {
        bench: "paths",
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &COLUMNS,
        plot: Plot::lines("Restoration by path", "remaining, %", "ms", lines),
    }
    .report(options, console)
}

fn measure(subject: &mut Subject, rounds: u16, at: At, level: Percent) -> Outcome<Row> {
    subject.watch()?;
    let mut taken = Taken::default();
    let (mut bounds, mut is_balanced) = (Vec::new(), false);
    for _ in 0..rounds {
        let report = subject.evict_to(level, subject.policy())?;
        let is_packed = subject.engine.session.runtime().stats().tally.on_ram > 0;
        is_balanced = is_packed && report.booked.stage <= Stage::KvAndW;
        let work = subject.work(false);
        in_parallel(subject, &mut taken)?;
        subject.watch_storage()?;
        bounds.push(subject.bound_of(&work).ms);
        subject.evict_to(level, subject.policy())?;
        one_by_one(subject, &mut taken)?;
    }
    let parallel = Times::of(taken.parallel);
    let [ram, flash, ram_alone, flash_alone] =
        [taken.ram, taken.flash, taken.ram_alone, taken.flash_alone]
            .map(|times| Times::of(times).median_ms);
    Ok(Row {
        at,
        ram_ms: ram,
        flash_ms: flash,
        parallel_ms: parallel.median_ms,
        spread_ms: parallel.spread_ms,
        apart_pct: is_balanced.then(|| median(taken.apart_pct)),
        ram_alone_ms: ram_alone,
        flash_alone_ms: flash_alone,
        sequential_ms: ram_alone + flash_alone,
        bound_ms: median(bounds),
    })
}

fn in_parallel(subject: &Subject, taken: &mut Taken) -> Outcome<()> {
    taken.parallel.push(subject.restore()?);
    let record = subject.recorder.read();
    let start = record.span(|_| true).map_or(Nanos::new(0), |(start, _)| start);
    let until = |end: Option<(Nanos, Nanos)>| {
        end.map_or(Duration::ZERO, |(_, end)| Duration::from_nanos(end.since(start).get()))
    };
    let (ram, flash) = (until(record.span(is_unpacking)), until(record.span(is_reading)));
    let apart = ram.abs_diff(flash).as_secs_f64() / ram.max(flash).as_secs_f64().max(1e-9);
    taken.apart_pct.push(100.0 * apart);
    taken.ram.push(ram);
    taken.flash.push(flash);
    Ok(())
}

fn one_by_one(subject: &Subject, taken: &mut Taken) -> Outcome<()> {
    let runtime = subject.engine.session.runtime();
    runtime.allow_roles(Roles::ALLOCATE | Roles::UNPACK);
    let start = Instant::now();
    let begun = runtime.begin_pass(runtime.tokens());
    // A restore that failed says so when it is waited for.
    while begun.is_ok() && runtime.stats().tally.on_ram > 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(100));
    }
    taken.ram_alone.push(start.elapsed());
    let start = Instant::now();
    runtime.allow_roles(Roles::all());
    begun?;
    runtime.finish_restore()?;
    taken.flash_alone.push(start.elapsed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_cells_agree() {
        let row = Row {
            at: At::default(),
            ram_ms: 1.0,
            flash_ms: 2.0,
            parallel_ms: 2.0,
            spread_ms: 0.1,
            apart_pct: Some(50.0),
            ram_alone_ms: 1.0,
            flash_alone_ms: 1.5,
            sequential_ms: 2.5,
            bound_ms: 1.0,
        };
        assert_eq!(row.cells().len(), COLUMNS.len());
    }
}
