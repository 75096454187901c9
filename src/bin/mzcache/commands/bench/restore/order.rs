//! Figure 11b: what the order of eviction does to the first token. By chance means: another order
//! each round.

use super::plot::Plot;
use super::subject::Subject;
use super::table::{Cells, Findings, Times, ms, times};
use crate::amount::Percent;
use crate::cli::BenchRestore as Options;
use crate::commands::Console;
use crate::failure::Outcome;
use mzcache::policy::Order;
use mzcache::state::EvictPolicy;
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    model: String,
    context_tokens: u32,
    remaining_pct: f64,
    order: &'static str,
    ttft_ms: f64,
    spread_ms: f64,
    bound_ms: f64,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        vec![
            self.context_tokens.to_string(),
            format!("{} %", self.remaining_pct),
            self.order.to_owned(),
            ms(self.ttft_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.ttft_ms, self.bound_ms),
        ]
    }
}

const COLUMNS: [&str; 7] =
    ["context", "remaining", "order", "first token", "spread", "bound", "of bound"];

/// The orders; by chance, the seed is the round's.
fn orders(round: u16) -> [Order; 4] {
    [Order::BackwardOut, Order::ForwardOut, Order::Random(round.into()), Order::Lru]
}

pub fn run(subject: &mut Subject, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut rows = Vec::new();
    for context in &options.contexts {
        subject.fill(*context, console)?;
        for level in options.levels_or(&[Percent::HALF]) {
            rows.extend(measure(subject, options, *context, level)?);
        }
    }
    let bars = rows.iter().map(|row| (row.order.to_owned(), row.ttft_ms)).collect();
    Findings {
        bench: "order",
        about: subject.name(),
        machine: subject.machine(),
        rows: &rows,
        columns: &COLUMNS,
        plot: Plot::bars("First token by order of eviction", "ms", bars),
    }
    .report(options, console)
}

fn measure(
    subject: &mut Subject,
    options: &Options,
    context_tokens: u32,
    level: Percent,
) -> Outcome<Vec<Row>> {
    let mut taken: [Vec<_>; 4] = Default::default();
    let mut bounds = [0.0; 4];
    for round in 0..options.rounds {
        for ((order, taken), bound) in orders(round).into_iter().zip(&mut taken).zip(&mut bounds) {
            subject.evict_to(level, EvictPolicy { order, ..subject.policy() })?;
            *bound = subject.bound().ms;
            taken.push(subject.ask()?);
        }
    }
    let model = subject.name();
    let rows = orders(0).into_iter().zip(taken).zip(bounds).map(|((order, taken), bound_ms)| {
        let Times { median_ms, spread_ms } = Times::of(taken);
        Row {
            model: model.clone(),
            context_tokens,
            remaining_pct: level.get(),
            order: order.name(),
            ttft_ms: median_ms,
            spread_ms,
            bound_ms,
        }
    });
    Ok(rows.collect())
}
