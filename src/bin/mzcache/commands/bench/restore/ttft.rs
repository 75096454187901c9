//! Figure 9: time to the first token by what remained in memory, for ours and the baselines.

use super::bound::Bound;
use super::paging::swap::Home;
use super::paging::{self, Paged};
use super::plot::Plot;
use super::settle::settle;
use super::subject::Subject;
use super::table::{Cells, Findings, Times, median, ms, times};
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
    /// What was to remain.
    level_pct: f64,
    /// What remained; measured where the system decides that.
    remaining_pct: f64,
    /// Whether that is as little as was asked for.
    is_reached: bool,
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
            self.remaining(),
            self.system.to_owned(),
            ms(self.ttft_ms),
            ms(self.spread_ms),
            ms(self.bound_ms),
            times(self.ttft_ms, self.bound_ms),
            self.bound_by.to_owned(),
        ]
    }
}

impl Row {
    /// Marked where it is more than was asked for.
    fn remaining(&self) -> String {
        match self.is_reached {
            true => format!("{} %", self.level_pct),
            false => format!("{:.1} % (not {} %)", self.remaining_pct, self.level_pct),
        }
    }
}

/// By so many hundredths of the whole may remain more than was asked for (the paper's 6.2).
const MARGIN_PCT: f64 = 3.0;

const COLUMNS: [&str; 8] =
    ["context", "remaining", "system", "first token", "spread", "bound", "of bound", "bound by"];

pub fn run(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut restore = options.restore.with_levels(&Percent::LEVELS);
    // Commands that know when they ran cost a little, so only for who looks at that.
    restore.engine.accelerator.is_measured = options.trace.is_some();
    let restore = &restore;
    let homes = homes(&options.systems);
    if !homes.is_empty() {
        paging::check(&homes, cache)?;
    }
    let mut subject = Subject::open(cache, restore, console)?;
    let mut rows = Vec::new();
    for context in &restore.contexts {
        subject.fill(*context, console)?;
        let paged = match homes.is_empty() {
            true => None,
            false => Some(Paged::open(&homes, cache, subject.path(), *context, restore, console)?),
        };
        let mut compared = Compared { subject: &mut subject, paged, bounds: Vec::new() };
        for level in restore.levels.iter().copied() {
            rows.extend(compared.measure(options, *context, level)?);
        }
    }
    if let Some(path) = &options.trace {
        let level = restore.levels.last().copied().unwrap_or(Percent::HALF);
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

/// Where pages go that the system takes.
fn homes(systems: &[System]) -> Vec<Home> {
    let paging = [(System::OsPaging, Home::Zram), (System::OsPagingStorage, Home::Storage)];
    let asked = paging.into_iter().filter(|(system, _)| systems.contains(system));
    asked.map(|(_, home)| home).collect()
}

/// The systems that are compared, with the same context.
struct Compared<'a> {
    subject: &'a mut Subject,
    paged: Option<Paged>,
    /// Of each round of ours at a level.
    bounds: Vec<Bound>,
}

/// What was measured of one system.
#[derive(Clone, Default)]
struct Measured {
    taken: Vec<Duration>,
    remaining_pct: Vec<f64>,
}

impl Compared<'_> {
    /// Systems take turns, so that what changes on the machine meanwhile meets all of them.
    fn measure(
        &mut self,
        options: &Options,
        context_tokens: u32,
        level: Percent,
    ) -> Outcome<Vec<Row>> {
        self.subject.watch()?;
        self.bounds.clear();
        let mut all = vec![Measured::default(); options.systems.len()];
        for _ in 0..options.restore.rounds {
            for (system, measured) in options.systems.iter().zip(&mut all) {
                let (remaining_pct, taken) = self.once(*system, level)?;
                measured.taken.push(taken);
                measured.remaining_pct.push(remaining_pct);
            }
        }
        let rows = options.systems.iter().zip(all).map(|(system, measured)| {
            let Times { median_ms, spread_ms } = Times::of(measured.taken);
            let remaining_pct = median(measured.remaining_pct);
            let bound = self.bound(level, Percent::nearest(remaining_pct))?;
            Ok(Row {
                model: self.subject.name(),
                context_tokens,
                level_pct: level.get(),
                remaining_pct,
                is_reached: remaining_pct <= level.get() + MARGIN_PCT,
                system: system.name(),
                ttft_ms: median_ms,
                spread_ms,
                bound_ms: bound.ms,
                bound_by: bound.by,
            })
        });
        rows.collect()
    }

    /// What remained, and the time to the first token.
    fn once(&mut self, system: System, level: Percent) -> Outcome<(f64, Duration)> {
        let subject = &mut *self.subject;
        let taken = match system {
            System::Mzcache => {
                subject.evict_to(level, subject.policy())?;
                let work = subject.work(true);
                let taken = subject.ask()?;
                subject.watch_storage()?;
                self.bounds.push(subject.bound_of(&work));
                taken
            }
            System::PartialOffload => {
                let (restoring, answering) = subject.partial_offload(level)?;
                restoring + answering
            }
            System::OsPaging => return self.paged_once(Home::Zram, level),
            System::OsPagingStorage => return self.paged_once(Home::Storage, level),
        };
        Ok((level.get(), taken))
    }

    /// The same of the model that the system pages.
    fn paged_once(&mut self, home: Home, level: Percent) -> Outcome<(f64, Duration)> {
        let paged = self.paged.as_mut().ok_or_else(|| Failure::new("nothing is paged"))?;
        let remaining_pct = paged.evict_to(home, level.get())?;
        settle(Percent::nearest(remaining_pct).rest().of(self.subject.total()));
        Ok((remaining_pct, paged.ask()?))
    }

    /// That of what ours evicts to as much, for all.
    fn bound(&mut self, level: Percent, remaining: Percent) -> Outcome<Bound> {
        let ours = Bound::median(self.bounds.clone()).filter(|_| level == remaining);
        if let Some(bound) = ours {
            return Ok(bound);
        }
        let subject = &mut *self.subject;
        subject.evict_to(remaining, subject.policy())?;
        let bound = subject.bound_of(&subject.work(true));
        subject.restore()?;
        Ok(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_paging_could_not_reach_is_marked() {
        let mut row = Row {
            model: "m".to_owned(),
            context_tokens: 1,
            level_pct: 25.0,
            remaining_pct: 40.82,
            is_reached: false,
            system: System::OsPaging.name(),
            ttft_ms: 1.0,
            spread_ms: 0.0,
            bound_ms: 1.0,
            bound_by: "storage",
        };
        assert_eq!(row.remaining(), "40.8 % (not 25 %)");
        row.is_reached = true;
        assert_eq!(row.remaining(), "25 %");
    }
}
