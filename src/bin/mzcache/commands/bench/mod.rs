//! `mzcache bench`: measurements of parts, each beside its own bound from the same run.

mod attention;
mod codec;
mod context;
mod device;
mod layer;
mod memory;
mod restore;
mod stopwatch;

use super::Console;
use crate::cli::{Bench, Common};
use crate::failure::Outcome;
use crate::paths::CacheDir;
use restore::Kind;
use serde::Serialize;

/// What every bench prints as JSON.
#[derive(Serialize)]
struct Report<Rows> {
    bench: &'static str,
    machine: String,
    rows: Rows,
}

/// Runs one.
pub fn bench(common: &Common, bench: &Bench, console: &mut Console<'_>) -> Outcome<()> {
    match bench {
        Bench::Attention(options) => attention::run(options, console),
        Bench::Codec(options) => {
            codec::run(&CacheDir::find(common.cache_dir.clone())?, options, console)
        }
        Bench::Memory(options) => memory::run(options, console),
        Bench::Layer(options) => layer::run(common, options, console),
        Bench::Ttft(options) => restore::ttft(common, options, console),
        Bench::Breakdown(options) => restore::run(common, Kind::Breakdown, options, console),
        Bench::Overlap(options) => restore::run(common, Kind::Overlap, options, console),
        Bench::Order(options) => restore::run(common, Kind::Order, options, console),
        Bench::Paths(options) => restore::run(common, Kind::Paths, options, console),
        Bench::PagingKeeper(options) => restore::keep_paging(common, options, console),
        Bench::PagedModel(options) => restore::paged_model(common, options, console),
        Bench::Pressure(options) => restore::pressure(common, options, console),
        Bench::PressureKeeper(options) => restore::keep_pressure(common, options, console),
        Bench::MemoryHog => restore::memory_hog(console),
        Bench::Evict(options) => restore::run(common, Kind::Evict, options, console),
    }
}

/// The processor's name, for reports.
fn processor(threads: usize) -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name =
        named.map_or(std::env::consts::ARCH, |rest| rest.trim_start_matches([' ', '\t', ':']));
    format!("{name}, {threads} threads")
}
