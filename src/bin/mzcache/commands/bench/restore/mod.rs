//! `mzcache bench ttft`, `breakdown`, `overlap`, `order`, `paths`, `evict` and `pressure`: the
//! paper's evaluation (section 6) on this machine.
//!
//! `paging` is the baseline that leaves memory to the system, `pressure` what becomes of it and of
//! ours when apps want that memory.
//!
//! `subject` is the model under measurement, `rates`, `reading`, `cores` and `bound` say how fast
//! it could be at best, `trial` by which rates its evictions are planned, `recorder` hears what the
//! runtime does when, `settle` has the memory ready that a restore takes, `table` is how contexts
//! and levels are gone through and everything is printed, `plot` drawn and `trace` written for
//! Perfetto. Each bench repeats and reports medians and spreads.

mod bound;
mod breakdown;
mod choices;
mod cores;
mod evict;
mod paging;
mod paths;
mod plot;
mod pressure;
mod rates;
mod reading;
mod recorder;
mod settle;
mod subject;
mod table;
mod trace;
mod trial;
mod ttft;

use crate::amount::Percent;
use crate::cli::{BenchPressure, BenchRestore, BenchTtft, Common, PagedModel};
use crate::commands::Console;
use crate::failure::Outcome;
use crate::paths::CacheDir;
use subject::Subject;

pub use pressure::hog as memory_hog;
pub use rates::copy_bytes_per_s;

/// One of the benches that take the same options.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Breakdown,
    Overlap,
    Order,
    Paths,
    Evict,
}

impl Kind {
    /// The levels of the paper's figure.
    const fn levels(self) -> &'static [Percent] {
        match self {
            Kind::Breakdown | Kind::Overlap | Kind::Order => &[Percent::HALF],
            Kind::Paths | Kind::Evict => &Percent::LEVELS,
        }
    }
}

/// Time to first token by level and system.
pub fn ttft(common: &Common, options: &BenchTtft, console: &mut Console<'_>) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    ttft::run(&cache, options, console)
}

/// The process that pages a model for [`ttft`].
pub fn keep_paging(
    common: &Common,
    options: &PagedModel,
    console: &mut Console<'_>,
) -> Outcome<()> {
    paging::keep(&CacheDir::find(common.cache_dir.clone())?, options, console)
}

/// The process of the model that is paged.
pub fn paged_model(
    common: &Common,
    options: &PagedModel,
    console: &mut Console<'_>,
) -> Outcome<()> {
    paging::serve_model(&CacheDir::find(common.cache_dir.clone())?, options, console)
}

/// Rounds of memory pressure.
pub fn pressure(
    common: &Common,
    options: &BenchPressure,
    console: &mut Console<'_>,
) -> Outcome<()> {
    pressure::run(&CacheDir::find(common.cache_dir.clone())?, options, console)
}

/// The process that plays the device for [`pressure`].
pub fn keep_pressure(
    common: &Common,
    options: &PagedModel,
    console: &mut Console<'_>,
) -> Outcome<()> {
    pressure::keep(&CacheDir::find(common.cache_dir.clone())?, options, console)
}

/// Any of the others.
pub fn run(
    common: &Common,
    kind: Kind,
    options: &BenchRestore,
    console: &mut Console<'_>,
) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    let options = &options.with_levels(kind.levels());
    let mut subject = Subject::open(&cache, options, console)?;
    match kind {
        Kind::Breakdown => breakdown::run(&mut subject, options, console),
        Kind::Overlap => choices::overlap(&mut subject, options, console),
        Kind::Order => choices::order(&mut subject, options, console),
        Kind::Paths => paths::run(&mut subject, options, console),
        Kind::Evict => evict::run(&mut subject, options, console),
    }
}
