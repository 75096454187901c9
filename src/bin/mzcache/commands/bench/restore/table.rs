//! How these benches go through contexts and levels, and how they report: a table or JSON on the
//! output, both and a plot as files with `--out`.

use super::super::Report;
use super::plot::Plot;
use super::subject::Subject;
use crate::amount::Percent;
use crate::cli::BenchRestore as Options;
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Where a row was measured, which it begins with.
#[derive(Clone, Debug, Default, Serialize)]
pub struct At {
    model: String,
    context_tokens: u32,
    pub remaining_pct: f64,
}

impl At {
    /// Its own cells, and those behind them.
    pub fn with<const N: usize>(&self, cells: [String; N]) -> Vec<String> {
        let own = [self.context_tokens.to_string(), format!("{} %", self.remaining_pct)];
        own.into_iter().chain(cells).collect()
    }
}

/// The rows of each context and level that the options name.
pub fn sweep<Row, Rows: IntoIterator<Item = Row>>(
    subject: &mut Subject,
    options: &Options,
    console: &mut Console<'_>,
    mut measure: impl FnMut(&mut Subject, At, Percent) -> Outcome<Rows>,
) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for context_tokens in options.contexts.iter().copied() {
        subject.fill(context_tokens, console)?;
        for level in options.levels.iter().copied() {
            let (model, remaining_pct) = (subject.name(), level.get());
            rows.extend(measure(subject, At { model, context_tokens, remaining_pct }, level)?);
        }
    }
    Ok(rows)
}

/// A finished bench.
pub struct Findings<'a, Row> {
    pub bench: &'static str,
    /// The model, its context, the machine.
    pub about: String,
    pub machine: String,
    pub rows: &'a [Row],
    pub columns: &'a [&'static str],
    pub plot: Plot,
}

/// A row of the table.
pub trait Cells {
    fn cells(&self) -> Vec<String>;
}

impl<Row: Cells + Serialize> Findings<'_, Row> {
    /// Prints it, and writes the files that were asked for.
    pub fn report(self, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
        let text = format!("{}; {}\n{}\n", self.about, self.machine, self.table());
        let json = Report { bench: self.bench, machine: self.machine, rows: self.rows };
        if let Some(folder) = &options.out {
            std::fs::create_dir_all(folder)
                .map_err(|error| Failure::file("create", folder, &error))?;
            let written = serde_json::to_string_pretty(&json)
                .map_err(|error| crate::failure::output(error.into()))?;
            write(&folder.join(format!("{}.json", self.bench)), &(written + "\n"))?;
            write(&folder.join(format!("{}.txt", self.bench)), &text)?;
            self.plot.write(&folder.join(format!("{}.svg", self.bench)))?;
        }
        match options.json {
            true => console.print_json(&json),
            false => console.print(&text),
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(self.columns);
        for row in self.rows {
            let cells = row.cells().into_iter();
            table.add_row(cells.map(|text| Cell::new(text).set_alignment(CellAlignment::Right)));
        }
        table
    }
}

pub fn write(path: &Path, text: &str) -> Outcome<()> {
    std::fs::write(path, text).map_err(|error| Failure::file("write", path, &error))
}

/// The median of some times, and how far the longest is from the shortest, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub median_ms: f64,
    pub spread_ms: f64,
}

impl Times {
    pub fn of(times: Vec<Duration>) -> Times {
        let (least, most) = (times.iter().min().copied(), times.iter().max().copied());
        let spread = most.unwrap_or_default() - least.unwrap_or_default();
        let median_ms = median(times.into_iter().map(millis).collect());
        Times { median_ms, spread_ms: millis(spread) }
    }
}

/// The one in the middle; 0 of none.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A time as the tables show it.
pub fn ms(ms: f64) -> String {
    format!("{ms:.1} ms")
}

/// How many times its bound something took.
pub fn times(ms: f64, bound_ms: f64) -> String {
    match bound_ms > 0.0 {
        true => format!("{:.2}x", ms / bound_ms),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        let of =
            |times: &[u64]| Times::of(times.iter().map(|t| Duration::from_millis(*t)).collect());
        assert_eq!(of(&[5, 1, 9]), Times { median_ms: 5.0, spread_ms: 8.0 });
        assert_eq!(of(&[4]), Times { median_ms: 4.0, spread_ms: 0.0 });
        assert_eq!(of(&[]), Times::default());
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![])), (2.0, 0.0));
        assert_eq!((times(3.0, 2.0), times(3.0, 0.0)), ("1.50x".to_owned(), "-".to_owned()));
    }
}
