//! The paper's other baseline (6.1): a model that leaves its memory to the system, which drops its
//! mapped weights and swaps its KV cache to zram or to a file on storage.
//!
//! Three processes: the bench, a `keeper` that owns a memory `cgroup`, `swap` devices (`zram`, a
//! `file`) and the `model`'s process, and that process. They speak by lines (`partner`). The bench
//! itself changes nothing on the system.

pub(super) mod cgroup;
mod file;
pub(super) mod keeper;
pub(super) mod model;
pub(super) mod partner;
pub(super) mod swap;
mod zram;

use crate::cli::{BenchRestore, PagedModel};
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use partner::{Partner, number};
use std::path::Path;
use std::time::Duration;
use swap::Home;

pub use keeper::run as keep;
pub use model::run as serve_model;

const HINT: &str = "it needs root, a memory cgroup, mkswap, swapon, and zram or room for a swap \
                    file in the cache directory; bench ttft measures other --systems without";

/// Whether this system can page to these; the reason if not.
pub fn check(homes: &[Home], cache: &CacheDir) -> Outcome<()> {
    let found = cgroup::Place::find();
    let found = found.and_then(|_| homes.iter().try_for_each(|home| home.check(cache)));
    found.map_err(about)
}

/// A paged model with its context.
pub struct Paged {
    keeper: Partner,
}

impl Paged {
    /// Opens it with these swap devices.
    pub fn open(
        homes: &[Home],
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
        for home in homes {
            let request = format!("{} {}", keeper::OPEN, home.name());
            console.note(&keeper.ask(&request).map_err(about)?);
        }
        Ok(Paged { keeper })
    }

    /// Has the system take memory until that share remains, or as far as it goes; what remained,
    /// in percent. What it swaps out goes to that device until the next answer.
    pub fn evict_to(&mut self, home: Home, percent: f64) -> Outcome<f64> {
        number(&self.keeper.ask(&format!("{} {} {percent}", keeper::EVICT, home.name()))?)
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
