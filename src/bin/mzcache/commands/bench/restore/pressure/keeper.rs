//! The process that plays the device: its memory is a cgroup's limit, its apps are a `hog`, and
//! one model stays in the background. It tidies up when its input ends.
//!
//! The kernel's out-of-memory killer is what kills, and it takes the model first, as it would any
//! app in the background. What a swap device holds compressed counts as used memory, which the
//! kernel does not charge to a cgroup: the limit is lowered by as much.

use super::super::paging::cgroup::{Cgroup, Place, Takes};
use super::super::paging::keeper::Killed;
use super::super::paging::model;
use super::super::paging::partner::{Partner, number, serve};
use super::super::paging::swap::{Home, Swap};
use super::super::subject::drop_pages;
use super::hog;
use super::{Round, Sample};
use crate::cli::PagedModel as Options;
use crate::commands::Console;
use crate::failure::{Failure, Outcome, output};
use crate::paths::CacheDir;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What it is asked for: the first with the points that a notification evicts, none for paging;
/// the other with the apps that are started in a round.
pub const OPEN: &str = "open";
pub const ROUND: &str = "round";

/// The device has so many times the memory of the model.
const DEVICE_MODELS: u64 = 2;
/// Every app takes that share of the model's memory, in percent...
const APP_PCT: u64 = 20;
/// ... and grows to it in so many steps.
const APP_STEPS: u64 = 8;
/// The model is notified while less than that share of the model's memory is free.
const LOW_PCT: u64 = 30;

/// Serves the bench that started it.
pub fn run(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut keeper = None;
    serve(console, &mut |request| {
        let (what, rest) = request.split_once(' ').unwrap_or((request, ""));
        match (what, &mut keeper) {
            (OPEN, None) => {
                let points = if rest.is_empty() { None } else { Some(number(rest)?) };
                let opened = keeper.insert(Keeper::open(cache, options, points)?);
                Ok(opened.device.folder().display().to_string())
            }
            (ROUND, Some(keeper)) => {
                let round = keeper.round(number(rest)?)?;
                serde_json::to_string(&round).map_err(|error| output(error.into()))
            }
            _ => Err(Failure::new(format!("unknown request `{request}`"))),
        }
    })
}

/// Fields are dropped in this order.
struct Keeper {
    model: Killed,
    swap: Option<Swap>,
    background: Cgroup,
    foreground: Cgroup,
    device: Cgroup,
    /// Points of the model's memory that it evicts when it is notified; none if it is paged.
    points: Option<f64>,
    cache: PathBuf,
    options: Options,
    /// What the model's process holds when nothing is evicted.
    full: u64,
    start: Instant,
}

impl Keeper {
    fn open(cache: &CacheDir, options: &Options, points: Option<f64>) -> Outcome<Keeper> {
        let device = Cgroup::new(&Place::find()?)?;
        let background = device.part("background")?;
        let foreground = device.part("foreground")?;
        foreground.take(Takes::Files)?;
        background.take(if points.is_none() { Takes::All } else { Takes::Files })?;
        let codec = if points.is_none() { None } else { options.codec };
        let options = Options { codec, ..options.clone() };
        let mut model = start_model(cache.root(), &options, &background)?;
        model.ask(model::OPEN)?;
        let full = background.used_bytes()?;
        let mut swap = match points {
            None => Some(Swap::new(Home::Zram, 2 * full, cache)?),
            Some(_) => None,
        };
        swap.as_mut().map_or(Ok(()), Swap::start)?;
        let cache = cache.root().to_path_buf();
        let start = Instant::now();
        let keeper = Keeper {
            model,
            swap,
            background,
            foreground,
            device,
            points,
            cache,
            options,
            full,
            start,
        };
        keeper.keep_limit()?;
        Ok(keeper)
    }

    /// Apps come, apps go, the user returns.
    fn round(&mut self, apps: u64) -> Outcome<Round> {
        let mut memory = vec![self.sample()?];
        let arguments = ["--quiet", "bench", "memory-hog"].map(OsString::from);
        let mut hog = Partner::start("the apps in the foreground", &arguments)?;
        self.foreground.admit(hog.id())?;
        'apps: for _ in 0..apps {
            for _ in 0..APP_STEPS {
                if !self.grow(&mut hog)? {
                    break 'apps;
                }
                self.keep_limit()?;
                memory.push(self.sample()?);
            }
            self.notify()?;
            memory.push(self.sample()?);
        }
        drop(hog);
        let ttft_ns = self.answer()?;
        if ttft_ns.is_none() {
            self.model = start_model(&self.cache, &self.options, &self.background)?;
            self.model.ask(model::OPEN)?;
        }
        self.keep_limit()?;
        memory.push(self.sample()?);
        Ok(Round { ttft_ns, memory })
    }

    /// Lets the apps take a little more. False when they were killed: the model was already, and
    /// they alone need more than the device has.
    fn grow(&self, hog: &mut Partner) -> Outcome<bool> {
        let step = self.full * APP_PCT / 100 / APP_STEPS;
        match hog.ask(&format!("{} {step}", hog::GROW)) {
            Ok(_) => Ok(true),
            Err(_) if hog.has_ended() => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Tells the model that memory is low, if it is.
    fn notify(&mut self) -> Outcome<()> {
        let (Some(points), true) = (self.points, self.model.is_running()) else { return Ok(()) };
        let free = self.size().saturating_sub(self.device.used_bytes()?);
        if free < self.full * LOW_PCT / 100 {
            match self.model.ask(&format!("{} {points}", model::EVICT)) {
                Err(failure) if !self.model.has_ended() => return Err(failure),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// The time to the first token; none from a model that was killed.
    fn answer(&mut self) -> Outcome<Option<u64>> {
        if !self.model.is_running() {
            return Ok(None);
        }
        match self.model.ask(model::ASK) {
            Ok(nanos) => Ok(Some(number(&nanos)?)),
            Err(_) if self.model.has_ended() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    const fn size(&self) -> u64 {
        self.full * DEVICE_MODELS
    }

    fn keep_limit(&self) -> Outcome<()> {
        self.device.limit(self.size().saturating_sub(self.swapped()?))
    }

    fn swapped(&self) -> Outcome<u64> {
        self.swap.as_ref().map_or(Ok(0), Swap::used_bytes)
    }

    /// What the model holds now, compressed pages included.
    fn sample(&self) -> Outcome<Sample> {
        let bytes = self.background.used_bytes()? + self.swapped()?;
        Ok(Sample { seconds: self.start.elapsed().as_secs_f64(), bytes })
    }
}

/// A model in the background, which the kernel kills before anybody else.
fn start_model(cache: &Path, options: &Options, background: &Cgroup) -> Outcome<Killed> {
    drop_pages(&options.model)?;
    let arguments = options.arguments("paged-model", cache);
    let model = Killed(Partner::start("the model in the background", &arguments)?);
    background.admit(model.id())?;
    let path = PathBuf::from(format!("/proc/{}/oom_score_adj", model.id()));
    std::fs::write(&path, "1000").map_err(|error| Failure::file("write", &path, &error))?;
    Ok(model)
}
