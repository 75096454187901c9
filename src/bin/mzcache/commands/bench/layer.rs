//! `mzcache bench layer`: what a pass spends in each part of a layer, beside the time that moving
//! the part's bytes takes at the copy bandwidth of the same run.
//!
//! It watches real passes: weights were read from the file, chunks hold random keys and values.

use super::device::Device;
use super::restore::copy_bytes_per_s;
use super::stopwatch::{Sample, Stopwatch, now};
use super::{Report, processor};
use crate::choice::Expected;
use crate::cli::{self, BenchLayer as Options, Common};
use crate::commands::{Console, run::fits};
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::synthetic;
use mzcache::infer::model::{Model, Role};
use mzcache::infer::{Part, Session};
use mzcache::units::{Nanos, TokenCount};
use serde::Serialize;
use std::path::PathBuf;

/// More than the caches of any device hold.
const COLD_BYTES: u64 = 256 << 20;
/// Of a copy on the device.
const COPY_BYTES: usize = 256 << 20;
/// Passes that are measured, after one that warms up.
const ROUNDS: usize = 7;

/// Parts of the table: what [`Part`] calls them, and what users do.
const PARTS: [(Part, &str); 6] = [
    (Part::Project, "norm, qkv"),
    (Part::Heads, "rotary, store"),
    (Part::Attention, "attention"),
    (Part::Output, "output"),
    (Part::FeedForward, "feed-forward"),
    (Part::Head, "head"),
];

#[derive(Serialize)]
struct Row {
    model: String,
    context_tokens: u32,
    queries: u32,
    part: &'static str,
    /// Of one layer; 0 on the processor.
    commands: usize,
    us: f64,
    bytes: u64,
    bound_us: f64,
    ratio: f64,
    copy_gb_per_s: f64,
    /// Where times come from: the device's events, or the host's clock.
    clock: &'static str,
}

pub fn run(common: &Common, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    let path = model_path(options, &cache, console)?;
    let engine = cli::Engine {
        backend: options.backend,
        accelerator: cli::Accelerator { is_measured: true, ..options.accelerator.clone() },
        ..cli::Engine::to_measure(options.threads)
    };
    let mut engine = Engine::open(&path, &engine, Expected::NOTHING, &cache, console)?;
    let (machine, copy) = match engine.session.opencl().is_some() {
        true => {
            let device = Device::open(&options.accelerator)?;
            (device.describe(), device.copy_bytes_per_s(COPY_BYTES)?)
        }
        false => {
            (processor(usize::from(engine.threads)), copy_bytes_per_s(usize::from(engine.threads)))
        }
    };
    console.note(&format!("measuring on {machine}"));
    let name = path.file_stem().map(PathBuf::from).unwrap_or_default().display().to_string();
    let mut rows = Vec::new();
    for context in &options.contexts {
        fits(&engine, *context as usize + options.queries as usize)?;
        let measured = measure(&mut engine.session, *context, options.queries)?;
        let pass =
            Pass { model: engine.session.model(), context: *context, queries: options.queries };
        rows.extend(table_rows(&name, &pass, &measured, copy)?);
        engine.session.truncate(TokenCount::new(0))?;
    }
    if options.json {
        return console.print_json(&Report { bench: "layer", machine, rows });
    }
    console.print(&table(&machine, &rows))
}

/// The model file, written first if a shape is asked for.
fn model_path(options: &Options, cache: &CacheDir, console: &mut Console<'_>) -> Outcome<PathBuf> {
    if let Some(path) = &options.model {
        return Ok(path.clone());
    }
    let layers = COLD_BYTES.div_ceil(options.shape.config().layer_bytes());
    let layers = u32::try_from(layers).unwrap_or(u32::MAX);
    let model = synthetic::Model::with_layers(options.shape, layers);
    let bars = console.bars();
    synthetic::ensure(&model, &cache.models(), bars, &mut |text| console.note(text))
}

/// What the rounds came to, and by which clock.
struct Measured {
    samples: Vec<Sample>,
    clock: &'static str,
}

fn measure(session: &mut Session, context: u32, queries: u32) -> Outcome<Measured> {
    super::context::Patterns::draw(session).fill(session, context)?;
    let watch: &'static Stopwatch = Box::leak(Box::new(Stopwatch::new()));
    let vocabulary = u32::try_from(session.model().shape.vocabulary).unwrap_or(u32::MAX);
    let tokens: Vec<u32> = (0..queries).map(|token| token % vocabulary).collect();
    let mut samples = Vec::new();
    session.watch(Some(watch));
    for round in 0..=ROUNDS {
        watch.begin();
        session.predict(&tokens)?;
        let round_samples = watch.take(now())?;
        if round > 0 {
            samples.extend(round_samples);
        }
        session.truncate(TokenCount::new(context))?;
    }
    session.watch(None);
    Ok(Measured { samples, clock: watch.clock().name() })
}

/// What was computed each time.
struct Pass<'a> {
    model: &'a Model,
    context: u32,
    queries: u32,
}

impl Pass<'_> {
    /// Bytes that a part has to read and write once: weights, chunks, activations.
    fn bytes(&self, part: Part) -> u64 {
        let shape = &self.model.shape;
        let (hidden, inner) = (shape.hidden as u64, shape.feed_forward as u64);
        let (query, kv) = (shape.query_values() as u64, shape.kv_values() as u64);
        let queries = u64::from(self.queries);
        let qkv = query + 2 * kv;
        let of = |roles: &[Role], values: u64| self.weights(roles) + 4 * values * queries;
        match part {
            Part::Start => 0,
            Part::Project => {
                let roles = [Role::AttnNorm, Role::Q, Role::K, Role::V];
                of(&roles, hidden + qkv) + self.weights(&[Role::QBias, Role::KBias, Role::VBias])
            }
            Part::Heads => of(&[Role::QNorm, Role::KNorm], qkv + query) + 4 * kv * queries,
            Part::Attention => {
                let tokens = u64::from(self.context) + queries;
                4 * kv * tokens + of(&[], 2 * query)
            }
            Part::Output => of(&[Role::AttnOutput, Role::AttnOutputBias], query + 2 * hidden),
            Part::FeedForward => {
                let roles = [Role::FfnNorm, Role::Gate, Role::Up, Role::Down];
                let biases = self.weights(&[Role::GateBias, Role::UpBias, Role::DownBias]);
                of(&roles, 3 * hidden + 2 * inner) + biases
            }
            Part::Head => {
                let head = &self.model.head;
                let values = hidden + shape.vocabulary as u64;
                (head.norm.bytes + head.output.bytes) as u64 + 4 * values
            }
        }
    }

    /// Bytes of tensors, of the average layer.
    fn weights(&self, roles: &[Role]) -> u64 {
        let layers = self.model.layers.iter();
        let tensors =
            layers.flat_map(|layer| roles.iter().filter_map(|role| layer.optional(*role)));
        tensors.map(|tensor| tensor.bytes as u64).sum::<u64>() / self.model.layers.len() as u64
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
fn table_rows(name: &str, pass: &Pass<'_>, measured: &Measured, copy: f64) -> Outcome<Vec<Row>> {
    let row = |part, commands, us: f64, bytes: u64| {
        let bound_us = bytes as f64 / copy * 1e6;
        Row {
            model: name.to_owned(),
            context_tokens: pass.context,
            queries: pass.queries,
            part,
            commands,
            us,
            bytes,
            bound_us,
            ratio: bound_us / us,
            copy_gb_per_s: copy / 1e9,
            clock: measured.clock,
        }
    };
    let mut rows = Vec::new();
    let mut layer_bytes = 0;
    let mut layer_commands = 0;
    for (part, text) in PARTS {
        let samples = || measured.samples.iter().filter(|sample| sample.part == part);
        let us = median(samples().map(|sample| microseconds(sample.took)).collect())?;
        let commands = samples().map(|sample| sample.commands).max().unwrap_or(0);
        let bytes = pass.bytes(part);
        if part == Part::Head {
            // All of a layer, with what is between its commands.
            let us = median(layers(&measured.samples).collect())?;
            rows.push(row("layer", layer_commands, us, layer_bytes));
        }
        layer_bytes += bytes;
        layer_commands += commands;
        rows.push(row(text, commands, us, bytes));
    }
    Ok(rows)
}

/// What whole layers took, in us.
fn layers(samples: &[Sample]) -> impl Iterator<Item = f64> {
    let starts = samples.iter().filter(|sample| sample.part == Part::Project);
    let ends = samples.iter().filter(|sample| sample.part == Part::FeedForward);
    starts.zip(ends).map(|(first, last)| microseconds(last.end.since(first.start)))
}

fn microseconds(time: Nanos) -> f64 {
    time.as_millis_f64() * 1e3
}

fn median(mut times: Vec<f64>) -> Outcome<f64> {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().ok_or_else(|| Failure::new("nothing was measured"))
}

fn table(machine: &str, rows: &[Row]) -> String {
    let clock = rows.first().map_or("", |row| row.clock);
    let copy = rows.first().map_or(0.0, |row| row.copy_gb_per_s);
    let mut text = format!("{machine}; copies {copy:.1} GB/s; times by {clock}\n");
    text.push_str(&format!(
        "{:<32} {:>7} {:>7} {:<13} {:>8} {:>10} {:>10} {:>10} {:>6}\n",
        "model", "tokens", "queries", "part", "commands", "us", "MB", "bound us", "ratio"
    ));
    for row in rows {
        #[expect(clippy::cast_precision_loss, reason = "a size for display")]
        let megabytes = row.bytes as f64 / 1e6;
        text.push_str(&format!(
            "{:<32} {:>7} {:>7} {:<13} {:>8} {:>10.1} {megabytes:>10.3} {:>10.1} {:>6.2}\n",
            row.model,
            row.context_tokens,
            row.queries,
            row.part,
            row.commands,
            row.us,
            row.bound_us,
            row.ratio,
        ));
    }
    text
}
