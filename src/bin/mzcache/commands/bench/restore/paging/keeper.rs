//! The process that owns what paging needs of the system: a cgroup, a swap device, the model's
//! process. It tidies up when its input ends, that is also when the bench is interrupted or killed.
//!
//! Memory is taken as the paper has it (6.2): weights are dropped first, then the KV cache is
//! swapped out. What is compressed counts as remaining, so some levels cannot be reached.

use super::cgroup::{Cgroup, Place, Takes};
use super::model;
use super::partner::{Partner, number, serve};
use super::zram::{Tools, Zram};
use crate::cli::PagedModel as Options;
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;

/// What it is asked for; eviction with the share that is to remain, in percent.
pub const OPEN: &str = "open";
pub const EVICT: &str = "evict";
pub const ASK: &str = "ask";

/// Memory is swapped out in so many steps, each followed by a look at what remains.
const STEPS: u64 = 64;
/// The system may take nothing at a first try, since it looks at a page's use twice.
const TRIES: usize = 3;

/// Serves the bench that started it.
pub fn run(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut keeper = None;
    serve(console, &mut |request| {
        let (what, rest) = request.split_once(' ').unwrap_or((request, ""));
        match (what, &mut keeper) {
            (OPEN, None) => Ok(keeper.insert(Keeper::open(cache, options)?).description()?),
            (EVICT, Some(keeper)) => Ok(keeper.evict_to(number(rest)?)?.to_string()),
            (ASK, Some(keeper)) => keeper.model.ask(model::ASK),
            _ => Err(Failure::new(format!("unknown request `{request}`"))),
        }
    })
}

/// Fields are dropped in this order.
struct Keeper {
    model: Killed,
    swap: Zram,
    cgroup: Cgroup,
    /// What the model's process holds when nothing is evicted.
    full: u64,
}

/// A model's process that is not asked to end but killed: it has nothing to tidy up.
pub struct Killed(pub Partner);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl std::ops::Deref for Killed {
    type Target = Partner;

    fn deref(&self) -> &Partner {
        &self.0
    }
}

impl std::ops::DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Partner {
        &mut self.0
    }
}

impl Keeper {
    fn open(cache: &CacheDir, options: &Options) -> Outcome<Keeper> {
        let tools = Tools::find()?;
        let cgroup = Cgroup::new(&Place::find()?)?;
        // Pages that are cached already are charged to whoever read them, not to the model.
        super::super::subject::drop_pages(&options.model)?;
        let partner =
            Partner::start("the paged model", &options.arguments("paged-model", cache.root()))?;
        let mut model = Killed(partner);
        cgroup.admit(model.id())?;
        let weights: u64 = number(&model.ask(model::OPEN)?)?;
        let full = cgroup.used_bytes()?;
        // Twice what may be swapped out.
        let swap = Zram::new(&tools, 2 * full.saturating_sub(weights).max(1 << 20))?;
        Ok(Keeper { model, swap, cgroup, full })
    }

    fn description(&self) -> Outcome<String> {
        let (device, cgroup) = (self.swap.device(), self.cgroup.folder());
        let algorithm = self.swap.algorithm()?;
        Ok(format!("paging to {} ({algorithm}) in {}", device.display(), cgroup.display()))
    }

    /// What remains then, in percent.
    fn evict_to(&mut self, level: f64) -> Outcome<f64> {
        let goal = share(self.full, level);
        let taken = self.take(goal);
        self.cgroup.lift()?;
        taken?;
        Ok(percent(self.remaining()?, self.full))
    }

    fn take(&self, goal: u64) -> Outcome<()> {
        self.cgroup.take(Takes::Files)?;
        self.step(|_| goal, goal)?;
        self.cgroup.take(Takes::All)?;
        let step = self.full / STEPS;
        self.step(|used| used.saturating_sub(step), goal)
    }

    /// Shrinks until no more than `goal` remains, or until nothing more can be had.
    fn step(&self, next: impl Fn(u64) -> u64, goal: u64) -> Outcome<()> {
        let mut tries = TRIES;
        while tries > 0 && self.remaining()? > goal {
            let used = self.cgroup.used_bytes()?;
            self.cgroup.shrink(next(used))?;
            tries = if self.cgroup.used_bytes()? < used { TRIES } else { tries - 1 };
        }
        Ok(())
    }

    /// Bytes in memory, compressed ones included.
    fn remaining(&self) -> Outcome<u64> {
        Ok(self.cgroup.used_bytes()? + self.swap.used_bytes()?)
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a size; the cast saturates"
)]
fn share(bytes: u64, percent: f64) -> u64 {
    (bytes as f64 * percent / 100.0) as u64
}

#[expect(clippy::cast_precision_loss, reason = "sizes for a ratio")]
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 * 100.0
}
