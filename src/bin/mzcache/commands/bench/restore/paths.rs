//! Figure 12: both ways back at once, beside one after the other, by level.
//!
//! Restored without a question. In parallel, each path's time is from the restore's start to its
//! last action's end. One after the other, workers may first only unpack, then only read; fresh
//! buffers are taken meanwhile either way.

use super::plot::Plot;
use super::recorder::{is_reading, is_unpacking};
use super::subject::Subject;
use super::table::{Cells, Findings, Times, ms, times};
use crate::amount::Percent;
use crate::cli::BenchRestore as Options;
use crate::commands::Console;
use crate::failure::Outcome;
use mzcache::state::Roles;
use mzcache::units::Nanos;
use serde::Serialize;
use std::time::{Duration, Instant};

#[derive(Serialize)]
struct Row {
    model: String,
    context_tokens: u32,
    remaining_pct: f64,
    /// When the last chunk was unpacked, both paths at work.
    ram_ms: f64,
    /// When the last read ended, both paths at work.
    flash_ms: f64,
    parallel_ms: f64,
    spread_ms: f64,
    /// Each path alone.
    ram_alone_ms: f64,
    flash_alone_ms: f64,
    sequential_ms: f64,
    bound_ms: f64,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.context_tokens.to_string(),
            format!("{} %", self.remaining_pct),
            ms(self.ram_ms),
            ms(self.flash_ms),
            ms(self.parallel_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.parallel_ms, self.bound_ms),
            ms(self.ram_alone_ms),
            ms(self.flash_alone_ms),
            ms(self.sequential_ms),
        ]
    }
}

const COLUMNS: [&str; 11] = [
    "context",
    "remaining",
    "RAM",
    "flash",
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
    parallel: Vec<Duration>,
    ram_alone: Vec<Duration>,
    flash_alone: Vec<Duration>,
}

pub fn run(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut rows = Vec::new();
    for context in &options.contexts {
        subject.fill(*context, console)?;
        for level in options.levels_or(&Percent::LEVELS) {
            rows.push(measure(subject, options, *context, level)?);
        }
    }
    let series = |name: &'static str, value: fn(&Row) -> f64| {
        (name.to_owned(), rows.iter().map(|row| (row.remaining_pct, value(row))).collect())
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

fn measure(
    subject: &Subject,
    options: &Options,
    context_tokens: u32,
    level: Percent,
) -> Outcome<Row> {
    let mut taken = Taken::default();
    let mut bound_ms = 0.0;
    for _ in 0..options.rounds {
        subject.evict_to(level, subject.policy())?;
        bound_ms = subject.restore_bound().ms;
        in_parallel(subject, &mut taken)?;
        subject.evict_to(level, subject.policy())?;
        one_by_one(subject, &mut taken)?;
    }
    let parallel = Times::of(taken.parallel);
    let [ram, flash, ram_alone, flash_alone] =
        [taken.ram, taken.flash, taken.ram_alone, taken.flash_alone]
            .map(|times| Times::of(times).median_ms);
    Ok(Row {
        model: subject.name(),
        context_tokens,
        remaining_pct: level.get(),
        ram_ms: ram,
        flash_ms: flash,
        parallel_ms: parallel.median_ms,
        spread_ms: parallel.spread_ms,
        ram_alone_ms: ram_alone,
        flash_alone_ms: flash_alone,
        sequential_ms: ram_alone + flash_alone,
        bound_ms,
    })
}

fn in_parallel(subject: &Subject, taken: &mut Taken) -> Outcome<()> {
    subject.recorder.clear();
    taken.parallel.push(subject.restore()?);
    let record = subject.recorder.read();
    let start = record.span(|_| true).map_or(Nanos::new(0), |(start, _)| start);
    let until = |end: Option<(Nanos, Nanos)>| {
        end.map_or(Duration::ZERO, |(_, end)| Duration::from_nanos(end.since(start).get()))
    };
    taken.ram.push(until(record.span(is_unpacking)));
    taken.flash.push(until(record.span(is_reading)));
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
            model: String::new(),
            context_tokens: 1,
            remaining_pct: 50.0,
            ram_ms: 1.0,
            flash_ms: 2.0,
            parallel_ms: 2.0,
            spread_ms: 0.1,
            ram_alone_ms: 1.0,
            flash_alone_ms: 1.5,
            sequential_ms: 2.5,
            bound_ms: 1.0,
        };
        assert_eq!(row.cells().len(), COLUMNS.len());
    }
}
