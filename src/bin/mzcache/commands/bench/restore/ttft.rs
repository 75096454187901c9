//! Figure 9: time to the first token by what remained in memory, for ours and the baselines.

use super::plot::Plot;
use super::subject::Subject;
use super::table::{Cells, Findings, Times, ms, times};
use super::trace;
use crate::amount::Percent;
use crate::cli::{BenchTtft as Options, System};
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Row {
    model: String,
    context_tokens: u32,
    remaining_pct: f64,
    system: &'static str,
    ttft_ms: f64,
    spread_ms: f64,
    bound_ms: f64,
    /// The resource that sets the bound.
    bound_by: &'static str,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.context_tokens.to_string(),
            format!("{} %", self.remaining_pct),
            self.system.to_owned(),
            ms(self.ttft_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.ttft_ms, self.bound_ms),
            self.bound_by.to_owned(),
        ]
    }
}

const COLUMNS: [&str; 8] =
    ["context", "remaining", "system", "first token", "spread", "bound", "of bound", "bound by"];

pub fn run(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let restore = &options.restore;
    let mut subject = Subject::open(cache, restore, console)?;
    let mut rows = Vec::new();
    for context in &restore.contexts {
        subject.fill(*context, console)?;
        for level in restore.levels_or(&Percent::LEVELS) {
            rows.extend(measure(&mut subject, options, *context, level)?);
        }
    }
    if let Some(path) = &options.trace {
        let levels = restore.levels_or(&Percent::LEVELS);
        let level = levels.last().copied().unwrap_or(Percent::HALF);
        trace::write_restore(&mut subject, level, path)?;
    }
    Findings {
        bench: "ttft",
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &COLUMNS,
        plot: plot(&rows, options),
    }
    .report(restore, console)
}

fn plot(rows: &[Row], options: &Options) -> Plot {
    let mut lines = Vec::new();
    for context in &options.restore.contexts {
        for system in &options.systems {
            let of_both = rows
                .iter()
                .filter(|row| row.context_tokens == *context && row.system == system.name());
            let points = of_both.map(|row| (row.remaining_pct, row.ttft_ms)).collect();
            lines.push((format!("{}, {context} tokens", system.name()), points));
        }
    }
    Plot::lines("Time to first token", "remaining, %", "ms", lines)
}

/// Systems take turns, so that what changes on the machine meanwhile meets all of them.
fn measure(
    subject: &mut Subject,
    options: &Options,
    context_tokens: u32,
    level: Percent,
) -> Outcome<Vec<Row>> {
    let mut taken: Vec<Vec<Duration>> = vec![Vec::new(); options.systems.len()];
    // That of what ours evicts, for all: they free the same.
    subject.evict_to(level, subject.policy())?;
    let bound = subject.bound();
    subject.restore()?;
    for _ in 0..options.restore.rounds {
        for (system, taken) in options.systems.iter().zip(&mut taken) {
            taken.push(match system {
                System::Mzcache => {
                    subject.evict_to(level, subject.policy())?;
                    subject.ask()?
                }
                System::PartialOffload => {
                    let (restoring, answering) = subject.partial_offload(level)?;
                    restoring + answering
                }
                System::OsPaging => return Err(Failure::new("not yet")),
            });
        }
    }
    let rows = options.systems.iter().zip(taken).map(|(system, taken)| {
        let Times { median_ms, spread_ms } = Times::of(taken);
        Row {
            model: subject.name(),
            context_tokens,
            remaining_pct: level.get(),
            system: system.name(),
            ttft_ms: median_ms,
            spread_ms,
            bound_ms: bound.ms,
            bound_by: bound.by,
        }
    });
    Ok(rows.collect())
}
