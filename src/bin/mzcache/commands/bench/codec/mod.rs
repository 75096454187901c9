//! `mzcache bench codec`: what each KV codec saves, what that costs in quality, and how fast it is.
//!
//! A model reads the first part of a text. Its cache is then replaced by what a codec makes of it,
//! and the rest of the text is scored against the scores that the untouched cache gives. Rates are
//! those of F16 bytes of this very cache, beside a copy of the same bytes in the same run.

mod cache;
mod packing;
mod quality;
mod speed;

use super::{Report, processor};
use crate::cli::BenchCodec as Options;
use crate::commands::{Console, read_text};
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::text::Special;
use cache::Cache;
use mzcache::codec::codec;
use mzcache::kernel::Kernels;
use mzcache::port::linux::host_cpu;
use mzcache::units::CodecId;
use packing::{CodecPacking, Lz4, Packing, Zstd};
use quality::{Quality, Reference, SCORE_BATCH};
use serde::Serialize;
use speed::Speed;

#[derive(Serialize)]
struct Row {
    codec: String,
    /// Bits a value, headers and padding included.
    bits: f64,
    /// Part of the F16 bytes that is saved.
    saving: f64,
    #[serde(flatten)]
    quality: Quality,
    #[serde(flatten)]
    speed: Speed,
}

/// Runs it.
pub fn run(cache_dir: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let (model, threads) = (&options.model, options.threads);
    let mut engine = Engine::open_to_score(model, threads, SCORE_BATCH, cache_dir, console)?;
    let text = read_text(&options.text)?;
    let tokens = engine.tokenizer.encode_start(&text, Special::AsText)?.ids;
    let [context, score] = [options.tokens, options.score].map(|count| count as usize);
    let Some((read, scored)) = tokens.split_at_checked(context) else {
        return Err(too_short(tokens.len(), context + score));
    };
    let scored = scored.get(..score).ok_or_else(|| too_short(tokens.len(), context + score))?;
    let bar = console.bars().steps("reading the text", context as u64);
    engine.read(read, &bar)?;
    // Also freezes the steps, by the queries of what was read.
    engine.evict(0)?;
    let steps =
        engine.session.runtime().steps().ok_or_else(|| Failure::new("there are no steps"))?;
    let cache = Cache::read(&engine.session)?;
    let reference = Reference::new(&mut engine.session, scored, options.greedy as usize)?;
    let kernels = Kernels::select(host_cpu());
    let codecs = CodecId::ALL.map(|id| CodecPacking { codec: codec(id), kernels: &kernels, steps });
    let mut packings: Vec<&dyn Packing> = codecs.iter().map(|codec| codec as _).collect();
    packings.extend([&Lz4 as &dyn Packing, &Zstd { level: 3 }]);
    let mut rows = Vec::new();
    let bar = console.bars().steps("measuring codecs", packings.len() as u64);
    for packing in packings {
        rows.push(measure(&mut engine, packing, &cache, &reference)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let machine = processor(speed::cores());
    match options.json {
        true => console.print_json(&Report { bench: "codec", machine, rows }),
        false => console.print(&table(&machine, &rows)),
    }
}

fn too_short(have: usize, need: usize) -> Failure {
    Failure::new(format!("the text has {have} tokens, and {need} are needed"))
        .hint("give a longer one, or less with --tokens and --score")
}

fn measure(
    engine: &mut Engine,
    packing: &dyn Packing,
    cache: &Cache,
    reference: &Reference,
) -> Outcome<Row> {
    let packed = speed::pack_all(packing, cache)?;
    let unpacked = speed::unpack_all(packing, cache, &packed)?;
    cache.replace(&engine.session, &unpacked)?;
    let quality = reference.compare(&mut engine.session)?;
    let speed = Speed::measure(packing, cache, &packed)?;
    let packed_bytes: usize = packed.iter().map(Vec::len).sum();
    let ratio = ratio(packed_bytes, cache.bytes());
    Ok(Row { codec: packing.name(), bits: 16.0 * ratio, saving: 1.0 - ratio, quality, speed })
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

fn table(machine: &str, rows: &[Row]) -> String {
    let head = ["codec", "bits", "saving", "KLD", "top-1", "PPL", "greedy"];
    let rates = ["pack", "unpack", "all cores", "memcpy"];
    let mut text = format!("{machine}; GB/s of F16 bytes\n");
    let mut line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>10}")).collect();
        text.push_str(cells.concat().trim_end());
        text.push('\n');
    };
    line(&head.into_iter().chain(rates).map(str::to_owned).collect::<Vec<_>>());
    for Row { codec, bits, saving, quality, speed } in rows {
        line(&[
            codec.clone(),
            format!("{bits:.2}"),
            format!("{:.1} %", 100.0 * saving),
            format!("{:.5}", quality.kld),
            format!("{:.1} %", 100.0 * quality.top1),
            format!("{:+.1} %", 100.0 * quality.ppl_change),
            format!("{:.0} %", 100.0 * quality.greedy),
            format!("{:.2}", speed.pack_gb_per_s),
            format!("{:.2}", speed.unpack_gb_per_s),
            format!("{:.2}", speed.unpack_all_cores_gb_per_s),
            format!("{:.2}", speed.memcpy_gb_per_s),
        ]);
    }
    text
}
