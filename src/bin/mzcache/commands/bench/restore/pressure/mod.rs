//! Figure 15: an LLM in the background while apps take the device's memory, round after round.
//!
//! Three configurations: the system's own paging, and ours evicting 15 or 25 points of its memory
//! whenever it is told that memory is low. The bench asks a `keeper`, which plays the device; a
//! `hog` plays the apps.

mod hog;
mod keeper;

use super::paging::partner::Partner;
use super::paging::swap::Home;
use super::paging::{self, about};
use super::plot::Plot;
use super::subject::model_path;
use super::table::{Cells, Findings, millis, ms};
use crate::cli::{BenchPressure as Options, PagedModel};
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

pub use hog::run as hog;
pub use keeper::run as keep;

/// Systems, by the points that they evict when they are told.
const SYSTEMS: [(&str, Option<u32>); 3] =
    [("os_paging", None), ("mzcache_15pp", Some(15)), ("mzcache_25pp", Some(25))];
/// Apps that are started in the rounds, again and again: as the device fills up more and more.
const APPS: [u64; 4] = [6, 7, 8, 9];

/// What a keeper says of a round.
#[derive(Debug, Deserialize, Serialize)]
struct Round {
    /// Of the answer when the user returns; none if the model was killed.
    ttft_ns: Option<u64>,
    memory: Vec<Sample>,
}

/// What the model held, compressed memory included.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Sample {
    /// Since the first round began.
    seconds: f64,
    bytes: u64,
}

#[derive(Serialize)]
struct Row {
    context_tokens: u32,
    round: u16,
    /// Apps that were started, of a fifth of the model's memory each.
    apps: u64,
    system: &'static str,
    killed: bool,
    ttft_ms: Option<f64>,
    memory: Vec<Sample>,
}

impl Cells for Row {
    fn cells(&self) -> Vec<String> {
        let mb = |bytes: Option<u64>| {
            bytes.map_or("-".to_owned(), |it| format!("{} MB", it / 1_000_000))
        };
        let bytes = || self.memory.iter().map(|sample| sample.bytes);
        vec![
            self.context_tokens.to_string(),
            self.round.to_string(),
            self.apps.to_string(),
            self.system.to_owned(),
            if self.killed { "killed" } else { "survived" }.to_owned(),
            self.ttft_ms.map_or("-".to_owned(), ms),
            mb(bytes().max()),
            mb(bytes().min()),
        ]
    }
}

const COLUMNS: [&str; 8] =
    ["context", "round", "apps", "system", "ending", "first token", "most held", "least held"];

pub fn run(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let restore = &options.restore;
    paging::check(&[Home::Zram], cache)?;
    let model = model_path(restore, cache, console)?;
    let mut rows = Vec::new();
    for context_tokens in &restore.contexts {
        let model = PagedModel {
            model: model.clone(),
            context_tokens: *context_tokens,
            queries: restore.queries,
            threads: restore.engine.threads,
            codec: Some(restore.engine.codec),
        };
        for (system, points) in SYSTEMS {
            console.note(&format!("{system}, a context of {context_tokens} tokens"));
            let mut keeper = open(cache, &model, points, console)?;
            for (round, apps) in (1..=restore.rounds).zip(APPS.into_iter().cycle()) {
                let Round { ttft_ns, memory } = ask(&mut keeper, apps)?;
                let ttft_ms = ttft_ns.map(|nanos| millis(Duration::from_nanos(nanos)));
                let killed = ttft_ms.is_none();
                let context_tokens = *context_tokens;
                rows.push(Row { context_tokens, round, apps, system, killed, ttft_ms, memory });
            }
        }
    }
    let name = model.file_stem().map_or(Path::new("model"), Path::new);
    Findings {
        bench: "pressure",
        about: name.display().to_string(),
        machine: super::super::processor(
            std::thread::available_parallelism().map_or(1, usize::from),
        ),
        rows: &rows,
        columns: &COLUMNS,
        plot: plot(&rows, &restore.contexts),
    }
    .report(restore, console)
}

fn open(
    cache: &CacheDir,
    model: &PagedModel,
    points: Option<u32>,
    console: &mut Console<'_>,
) -> Outcome<Partner> {
    let arguments = model.arguments("pressure-keeper", cache.root());
    let mut keeper = Partner::start("the keeper of the model under pressure", &arguments)?;
    let points = points.map_or(String::new(), |points| format!(" {points}"));
    let cgroup = keeper.ask(&format!("{}{points}", keeper::OPEN)).map_err(about)?;
    console.note(&format!("the device's memory is that of {cgroup}"));
    Ok(keeper)
}

fn ask(keeper: &mut Partner, apps: u64) -> Outcome<Round> {
    let text = keeper.ask(&format!("{} {apps}", keeper::ROUND))?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("an answer that makes no sense: {error}")))
}

#[expect(clippy::cast_precision_loss, reason = "sizes for a drawing")]
fn plot(rows: &[Row], contexts: &[u32]) -> Plot {
    let mut lines = Vec::new();
    for context in contexts {
        for (system, _) in SYSTEMS {
            let of_both =
                rows.iter().filter(|row| row.context_tokens == *context && row.system == system);
            let samples = of_both.flat_map(|row| &row.memory);
            let points = samples.map(|sample| (sample.seconds, sample.bytes as f64 / 1e6));
            lines.push((format!("{system}, {context} tokens"), points.collect()));
        }
    }
    Plot::lines("Memory of the model under pressure", "s", "MB", lines)
}
