//! Figure 11a: what each overlap gains, from half of memory.

use super::plot::Plot;
use super::subject::Subject;
use super::table::{Cells, Findings, Times, ms, times};
use crate::amount::Percent;
use crate::cli::{BenchRestore as Options, Overlap};
use crate::commands::Console;
use crate::failure::Outcome;
use clap::ValueEnum;
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    model: String,
    context_tokens: u32,
    remaining_pct: f64,
    mode: &'static str,
    ttft_ms: f64,
    spread_ms: f64,
    bound_ms: f64,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.context_tokens.to_string(),
            format!("{} %", self.remaining_pct),
            self.mode.to_owned(),
            ms(self.ttft_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.ttft_ms, self.bound_ms),
        ]
    }
}

const COLUMNS: [&str; 7] =
    ["context", "remaining", "overlap", "first token", "spread", "bound", "of bound"];

pub fn run(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut rows = Vec::new();
    for context in &options.contexts {
        subject.fill(*context, console)?;
        for level in options.levels_or(&[Percent::HALF]) {
            rows.extend(measure(subject, options, *context, level)?);
        }
    }
    let bars = rows.iter().map(|row| (row.mode.to_owned(), row.ttft_ms)).collect();
    Findings {
        bench: "overlap",
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &COLUMNS,
        plot: Plot::bars("First token by overlap", "ms", bars),
    }
    .report(options, console)
}

/// Modes take turns, so that what changes on the machine meanwhile meets all of them.
fn measure(
    subject: &mut Subject,
    options: &Options,
    context_tokens: u32,
    level: Percent,
) -> Outcome<Vec<Row>> {
    let modes = Overlap::value_variants();
    let mut taken = vec![Vec::new(); modes.len()];
    let mut bounds = vec![0.0; modes.len()];
    for _ in 0..options.rounds {
        for ((mode, taken), bound) in modes.iter().zip(&mut taken).zip(&mut bounds) {
            subject.evict_to(level, subject.policy())?;
            *bound = subject.bound().ms;
            subject.engine.session.runtime().set_overlap(mode.runtime());
            let answered = subject.ask();
            subject.engine.session.runtime().set_overlap(Overlap::Arp.runtime());
            taken.push(answered?);
        }
    }
    let model = subject.name();
    let rows = modes.iter().zip(taken).zip(bounds).map(|((mode, taken), bound_ms)| {
        let Times { median_ms, spread_ms } = Times::of(taken);
        Row {
            model: model.clone(),
            context_tokens,
            remaining_pct: level.get(),
            mode: mode.name(),
            ttft_ms: median_ms,
            spread_ms,
            bound_ms,
        }
    });
    Ok(rows.collect())
}
