//! The paper's other baseline (6.1): a model that leaves its memory to the system, which drops its
//! mapped weights and swaps its KV cache to zram.
//!
//! Three processes: the bench, a `keeper` that owns a memory `cgroup`, a `zram` device and the
//! `model`'s process, and that process. They speak by lines (`partner`). The bench itself changes
//! nothing on the system.

pub(super) mod cgroup;
pub(super) mod keeper;
pub(super) mod model;
pub(super) mod partner;
pub(super) mod zram;

use crate::cli::{BenchRestore, PagedModel};
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use partner::{Partner, number};
use std::path::Path;
use std::time::Duration;

pub use keeper::run as keep;
pub use model::run as serve_model;

const HINT: &str = "it needs root, a memory cgroup, zram, mkswap and swapon; bench ttft measures \
                    other --systems without";

/// Whether this system can do it; the reason if not.
pub fn check() -> Outcome<()> {
    let found = cgroup::Place::find().and_then(|_| zram::Tools::find());
    found.map(drop).map_err(about)
}

/// A paged model with its context.
pub struct Paged {
    keeper: Partner,
}

impl Paged {
    pub fn open(
        cache: &CacheDir,
        model: &Path,
        context_tokens: u32,
        options: &BenchRestore,
        console: &mut Console<'_>,
    ) -> Outcome<Paged> {
        let paged = PagedModel {
            model: model.to_path_buf(),
            context_tokens,
            queries: options.queries,
            threads: options.engine.threads,
            codec: None,
        };
        let arguments = paged.arguments("paging-keeper", cache.root());
        let mut keeper = Partner::start("the keeper of the paged model", &arguments)?;
        let description = keeper.ask(keeper::OPEN).map_err(about)?;
        console.note(&description);
        Ok(Paged { keeper })
    }

    /// Has the system take memory until that share remains, or as far as it goes; what remained,
    /// in percent.
    pub fn evict_to(&mut self, percent: f64) -> Outcome<f64> {
        number(&self.keeper.ask(&format!("{} {percent}", keeper::EVICT))?)
    }

    /// From a question to its first token.
    pub fn ask(&mut self) -> Outcome<Duration> {
        Ok(Duration::from_nanos(number(&self.keeper.ask(keeper::ASK)?)?))
    }
}

/// A reason why this system cannot do it.
pub fn about(failure: Failure) -> Failure {
    // The nearer hint is on files in general, and misleads here.
    Failure { hint: Some(HINT.to_owned()), ..failure.about("paging") }
}
