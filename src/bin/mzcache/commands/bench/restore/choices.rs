//! Figures 11a and 11b: what each overlap gains, and what the order of eviction does to the first
//! token, from half of memory unless other levels are asked for.

use super::plot::Plot;
use super::subject::Subject;
use super::table::{At, Cells, Findings, Times, median, ms, sweep, times};
use crate::amount::Percent;
use crate::cli::{BenchRestore as Options, Overlap};
use crate::commands::Console;
use crate::failure::Outcome;
use clap::ValueEnum;
use mzcache::policy::Order;
use mzcache::runtime;
use mzcache::state::EvictPolicy;
use serde::Serialize;
use std::time::Duration;

/// What is chosen, as its key and value in a row.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Name {
    Mode(&'static str),
    Order(&'static str),
}

impl Name {
    const fn text(self) -> &'static str {
        match self {
            Name::Mode(text) | Name::Order(text) => text,
        }
    }
}

/// One way to evict and to restore.
#[derive(Clone, Copy)]
struct Choice {
    name: Name,
    policy: EvictPolicy,
    overlap: runtime::Overlap,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    at: At,
    #[serde(flatten)]
    name: Name,
    ttft_ms: f64,
    spread_ms: f64,
    bound_ms: f64,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        self.at.with([
            self.name.text().to_owned(),
            ms(self.ttft_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.ttft_ms, self.bound_ms),
        ])
    }
}

/// Figure 11a.
pub fn overlap(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let policy = subject.policy();
    let choose =
        |mode: &Overlap| Choice { name: Name::Mode(mode.name()), policy, overlap: mode.runtime() };
    let choices = |_| Overlap::value_variants().iter().map(choose).collect();
    run(subject, options, console, "overlap", "First token by overlap", &choices)
}

/// Figure 11b. By chance means: another order each round.
pub fn order(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let policy = subject.policy();
    let choose = |order: Order| Choice {
        name: Name::Order(order.name()),
        policy: EvictPolicy { order, ..policy },
        overlap: runtime::Overlap::all(),
    };
    let choices = |round: u16| {
        let orders =
            [Order::BackwardOut, Order::ForwardOut, Order::Random(round.into()), Order::Lru];
        orders.map(choose).to_vec()
    };
    run(subject, options, console, "order", "First token by order of eviction", &choices)
}

fn run(
    subject: &mut Subject,
    options: &Options,
    console: &mut Console<'_>,
    bench: &'static str,
    title: &'static str,
    choices: &dyn Fn(u16) -> Vec<Choice>,
) -> Outcome<()> {
    let rows = sweep(subject, options, console, |subject, at, level| {
        measure(subject, options.rounds, at, level, choices)
    })?;
    let bars = rows.iter().map(|row| (row.name.text().to_owned(), row.ttft_ms)).collect();
    Findings {
        bench,
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &["context", "remaining", bench, "first token", "spread", "bound", "of bound"],
        plot: Plot::bars(title, "ms", bars),
    }
    .report(options, console)
}

/// Choices take turns, so that what changes on the machine meanwhile meets all of them.
fn measure(
    subject: &mut Subject,
    rounds: u16,
    at: At,
    level: Percent,
    choices: &dyn Fn(u16) -> Vec<Choice>,
) -> Outcome<Vec<Row>> {
    subject.watch()?;
    let named = choices(0);
    let mut taken = vec![(Vec::new(), Vec::new()); named.len()];
    for round in 0..rounds {
        for (choice, (taken, bounds)) in choices(round).into_iter().zip(&mut taken) {
            subject.evict_to(level, choice.policy)?;
            let work = subject.work(true);
            taken.push(ask(subject, choice.overlap)?);
            subject.watch_storage()?;
            bounds.push(subject.bound_of(&work).ms);
        }
    }
    let rows = named.into_iter().zip(taken).map(|(choice, (taken, bounds))| {
        let Times { median_ms, spread_ms } = Times::of(taken);
        let bound_ms = median(bounds);
        Row { at: at.clone(), name: choice.name, ttft_ms: median_ms, spread_ms, bound_ms }
    });
    Ok(rows.collect())
}

/// An answer with only so much overlap.
fn ask(subject: &mut Subject, overlap: runtime::Overlap) -> Outcome<Duration> {
    subject.engine.session.runtime().set_overlap(overlap);
    let answered = subject.ask();
    subject.engine.session.runtime().set_overlap(runtime::Overlap::all());
    answered
}
