//! The process that owns what paging needs of the system: a cgroup, swap devices, the model's
//! process. It tidies up when its input ends, that is also when the bench is interrupted or killed.
//!
//! Memory is taken as the paper has it (6.2): weights are dropped first, then the KV cache is
//! swapped out. What is compressed counts as remaining, so some levels cannot be reached. So does
//! what was written to storage but is in memory still.
//!
//! One model serves all swap devices: two would share the pages of their mapped weights, and
//! neither could be rid of them. A device is on from an eviction to the answer after it, no other
//! meanwhile, and the next eviction finds all in memory again.

use super::cgroup::{Cgroup, Place, Takes};
use super::model;
use super::partner::{Partner, number, serve};
use super::swap::{Home, Swap};
use crate::cli::PagedModel as Options;
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;

/// What it is asked for; to open and to evict with the name of a swap device, which is added to
/// those that are there, and to evict with the share that is to remain, in percent.
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
            (OPEN, None) => {
                let home = Home::named(rest)?;
                keeper.insert(Keeper::open(cache, options)?).add(home, cache)
            }
            (OPEN, Some(keeper)) => keeper.add(Home::named(rest)?, cache),
            (EVICT, Some(keeper)) => {
                let (home, level) = rest.split_once(' ').unwrap_or((rest, ""));
                Ok(keeper.evict_to(Home::named(home)?, number(level)?)?.to_string())
            }
            (ASK, Some(keeper)) => keeper.ask(),
            _ => Err(Failure::new(format!("unknown request `{request}`"))),
        }
    })
}

/// Fields are dropped in this order.
struct Keeper {
    model: Killed,
    swaps: Vec<Swap>,
    cgroup: Cgroup,
    /// What the model's process holds when nothing is evicted...
    full: u64,
    /// ... and what of it may be swapped out.
    anonymous: u64,
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
        let cgroup = Cgroup::new(&Place::find()?)?;
        // Pages that are cached already are charged to whoever read them, not to the model.
        super::super::subject::drop_pages(&options.model)?;
        let partner =
            Partner::start("the paged model", &options.arguments("paged-model", cache.root()))?;
        let mut model = Killed(partner);
        cgroup.admit(model.id())?;
        let weights: u64 = number(&model.ask(model::OPEN)?)?;
        let full = cgroup.used_bytes()?;
        let anonymous = full.saturating_sub(weights);
        Ok(Keeper { model, swaps: Vec::new(), cgroup, full, anonymous })
    }

    /// Adds a swap device; what it is.
    fn add(&mut self, home: Home, cache: &CacheDir) -> Outcome<String> {
        let swap = Swap::new(home, 2 * self.anonymous.max(1 << 20), cache)?;
        let description = swap.description()?;
        self.swaps.push(swap);
        Ok(format!("paging to {description} in {}", self.cgroup.folder().display()))
    }

    /// What remains then, in percent.
    fn evict_to(&mut self, home: Home, level: f64) -> Outcome<f64> {
        self.stop()?;
        let swap = self.swaps.iter_mut().find(|swap| swap.home() == home);
        let swap = swap.ok_or_else(|| Failure::new(format!("{} is not open", home.name())))?;
        swap.start()?;
        let goal = share(self.full, level);
        let taken = self.take(goal);
        self.cgroup.lift()?;
        taken?;
        Ok(percent(self.remaining()?, self.full))
    }

    fn ask(&mut self) -> Outcome<String> {
        let answer = self.model.ask(model::ASK)?;
        self.stop()?;
        Ok(answer)
    }

    fn stop(&mut self) -> Outcome<()> {
        self.swaps.iter_mut().try_for_each(Swap::stop)
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
        let compressed = self.swaps.iter().map(Swap::used_bytes).sum::<Outcome<u64>>()?;
        Ok(self.cgroup.used_bytes()? + compressed)
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
