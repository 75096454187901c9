//! One seed: a life of random operations under mishaps, checked after each, then the calm in which
//! everything must come back.

mod operations;

use crate::device::{Disk, Memory, Mishap, Weather};
use crate::kept::Kept;
use crate::random::Random;
use crate::scheduler::{End, Scheduler, Workers, is_end, message};
use crate::swarm::Options;
use crate::world::{Lent, World, check_closed};
use mzcache::port::{Ports, Storage, Threads};
use mzcache::state::{EvictPolicy, Paths};
use mzcache::units::Tag;
use mzcache::{Code, Error};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

/// What runs did, to be printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub operations: u64,
    pub actions: u64,
    pub points: u64,
    /// Of each kind.
    pub mishaps: [u64; Mishap::ALL.len()],
    pub power_cuts: u64,
    /// Contexts that outlived their process.
    pub recovered: u64,
    pub losses: u64,
    pub cancelled: u64,
    /// Workers that died.
    pub deaths: u64,
    /// Looks at what an eviction left: its order, its balance.
    pub looks: [u64; 2],
}

/// What a checkpoint left, or may have left.
pub(crate) struct Keepsake {
    kept: Kept,
    /// It was said to be durable, up to this token.
    durable: Option<u32>,
    /// It is, or names chunks of, one that was found in the place of a newer one, which may have
    /// written to its slots.
    is_old: bool,
}

/// Points that one action may take, and those that a call takes besides.
const POINTS_PER_ACTION: u64 = 400;

pub struct Life {
    options: Options,
    scheduler: Lent<Scheduler>,
    weather: Weather,
    model: Lent<Disk>,
    swap: Lent<Disk>,
    memory: Lent<Memory>,
    threads: Lent<Workers>,
    world: Option<World>,
    /// A worker has died.
    is_lame: bool,
    /// What checkpoints left, the newest last.
    kept: Vec<Keepsake>,
    /// The name of a checkpoint under way.
    keeping: Option<Tag>,
    tags: u128,
    pub sums: Sums,
}

impl Life {
    pub fn new(seed: u64, tells: bool) -> Self {
        let mut random = Random::new(seed);
        let mut options = Options::new(&mut random);
        options.setup.tells = tells;
        let scheduler = Scheduler::new(random);
        let weather = Weather::new(scheduler.clone(), options.one_in);
        let setup = &options.setup;
        let refuse = weather.clone();
        let refuse = Box::new(move || refuse.happens(Mishap::NoThread));
        Life {
            model: Lent::new(Box::new(Disk::model(&weather, setup.model_bytes()))),
            swap: Lent::new(Box::new(Disk::swap(&weather, setup.slots()))),
            memory: Lent::new(Box::new(Memory::new(&weather, options.memory_bytes_max))),
            threads: Lent::new(Box::new(Workers { scheduler: scheduler.clone(), refuse })),
            scheduler: Lent::new(Box::new(scheduler)),
            weather,
            world: None,
            is_lame: false,
            kept: Vec::new(),
            keeping: None,
            tags: 0,
            sums: Sums::default(),
            options,
        }
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.options.setup.tells {
            println!("{}", what());
        }
    }

    fn scheduler(&self) -> &'static Scheduler {
        self.scheduler.get()
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        self.scheduler().draw(draw)
    }

    fn world(&mut self) -> &mut World {
        self.world.as_mut().unwrap()
    }

    fn open(&mut self) {
        let is_threaded = !self.options.setup.workers.is_empty();
        let ports = Ports {
            model: self.model.get(),
            swap: self.options.setup.swap_file.then_some(self.swap.get() as &dyn Storage),
            memory: self.memory.get(),
            clock: self.scheduler(),
            park: self.scheduler(),
            threads: is_threaded.then_some(self.threads.get() as &dyn Threads),
            meter: None,
        };
        while self.world.is_none() {
            match World::open(&self.options.setup, ports) {
                Ok(world) => self.world = Some(world),
                Err(error) => {
                    assert_eq!(error.code, Code::LimitExceeded, "{error}");
                    check_closed(&|usage| self.memory.get().live(usage));
                }
            }
        }
        self.is_lame = false;
    }

    /// The whole life; panics when something is wrong.
    pub fn live(&mut self) {
        self.scheduler().set_pace(self.options.pace);
        self.open();
        for _ in 0..self.options.operations {
            let one_in = self.options.power_cut_one_in;
            let cut = self.draw(|random| random.one_in(one_in).then(|| random.below(400)));
            self.scheduler().cut_power_after(cut);
            let done = catch_unwind(AssertUnwindSafe(|| self.operate()));
            self.scheduler().cut_power_after(None);
            match done {
                Ok(()) => self.sums.operations += 1,
                Err(panic) if is_end(&*panic) && self.scheduler().end() == Some(End::PowerCut) => {
                    self.reboot();
                }
                Err(panic) => resume_unwind(panic),
            }
        }
        self.weather.calm_down();
        self.recover();
        self.close();
    }

    /// The process has ended where it was; another one begins.
    fn reboot(&mut self) {
        self.tell(|| "power cut".into());
        self.sums.power_cuts += 1;
        self.scheduler().finish();
        self.scheduler().restart();
        let world = self.world.take().unwrap();
        if let Some(tag) = self.keeping.take() {
            // It may be complete all the same.
            let kept = world.kept(tag);
            let is_old = self.weather.all_is_doubtful();
            self.kept.push(Keepsake { kept, durable: None, is_old });
        }
        self.count(&world);
        // SAFETY: all threads but this one have ended, and this one has left it.
        unsafe { world.abandon() };
        self.memory.get().free_all();
        self.weather.reboot();
        self.open();
        self.recover_context();
    }

    /// The new process looks for the old one's context: what was durable is there, or something
    /// newer, unless what says so was damaged.
    fn recover_context(&mut self) {
        self.weather.doubt_all(false);
        self.bound_points();
        let newest_durable = self.kept.iter().rposition(|kept| kept.durable.is_some());
        // Those behind it may all have failed.
        let latest = self.kept.len().saturating_sub(4);
        let first = newest_durable.map_or(latest, |durable| durable.min(latest));
        for index in (first..self.kept.len()).rev() {
            let Keepsake { kept, durable, is_old } = &self.kept[index];
            let world = self.world.as_mut().unwrap();
            let found = loop {
                match world.recover(kept) {
                    // Either file may fail to answer for a while.
                    Err(error) if matches!(error.code, Code::Io | Code::ShortRead) => {}
                    found => break found,
                }
            };
            let lost = match found {
                Ok(lost) => lost,
                Err(error) => {
                    let codes = [Code::BadMagic, Code::Corrupt, Code::Mismatch];
                    assert!(codes.contains(&error.code), "{error}");
                    continue;
                }
            };
            let is_newest = newest_durable.is_none_or(|newest| index >= newest);
            assert!(is_newest || self.weather.head_is_damaged(), "an older checkpoint is found");
            // Slots of others than the last may have been written to.
            let is_old = *is_old || !is_newest;
            self.weather.doubt_all(durable.is_none() || is_old);
            if let Some(durable) = *durable {
                assert_eq!(lost.unwrap_or(kept.tokens), durable);
            }
            let tokens = lost.unwrap_or(kept.tokens);
            self.tell(|| format!("  recovered {tokens} tokens"));
            self.sums.recovered += u64::from(tokens > 0);
            self.kept[index].is_old = is_old;
            self.kept.truncate(index + 1);
            let _ = self.weather.take_told();
            return;
        }
        let is_explained = newest_durable.is_none() || self.weather.head_is_damaged();
        assert!(is_explained, "a checkpoint is gone");
        self.kept.clear();
        let _ = self.weather.take_told();
    }

    fn operate(&mut self) {
        self.bound_points();
        let kind = self.draw(|random| random.below(20));
        let others = self.start_others(!(12..16).contains(&kind));
        self.world().flash_works &= !self.weather.is_poisoned();
        let before = self.world().reference.get().actions();
        let alone = others.threads.is_empty();
        let result = match kind {
            0..=3 => self.append(),
            4..=6 => self.evict(alone),
            7..=8 => self.restore(),
            9 => self.cancel(),
            10 => self.interleave(),
            11 => self.truncate(),
            12 => self.hold(),
            13 => self.rot(),
            14 => self.change_pace(),
            15 => self.kill(),
            _ => self.checkpoint(),
        };
        let pressed = others.press;
        others.over.store(true, Ordering::Relaxed);
        for thread in others.threads {
            self.scheduler().wait_for(thread);
        }
        // A pass may end before all that it brought back is booked, or before its restore.
        let _ = self.world().runtime.finish_restore();
        let told = self.weather.take_told();
        self.tell(|| format!("  {result:?}, told {told:?}, pressed {pressed}"));
        if let Err(error) = result {
            self.judge(error, &told, pressed);
        }
        if alone {
            let actions = self.world().reference.get().actions() - before;
            let most = 2 * self.world().actions_max();
            assert!(actions <= most, "{actions} actions, more than {most}");
        }
        self.look();
    }

    /// A call that takes more points than this has no end.
    fn bound_points(&mut self) {
        let actions = self.world().actions_max();
        self.scheduler().allow_points(actions * POINTS_PER_ACTION + 100_000);
    }

    /// An error must be one that somebody was given, or the consequence of one.
    fn judge(&mut self, error: Error, told: &[Code], pressed: bool) {
        let lost = self.world().runtime.lost();
        let is_explained = match error.code {
            Code::Cancelled => pressed || !told.is_empty() || lost.is_some(),
            Code::BadState => pressed,
            Code::Corrupt => lost.is_some(),
            code => told.contains(&code),
        };
        assert!(is_explained && !error.what.is_empty(), "{error:?} out of nothing: {told:?}");
        self.sums.cancelled += u64::from(error.code == Code::Cancelled);
    }

    /// Nothing is under way: the books are right, and what is lost was damaged.
    fn look(&mut self) {
        let memory = self.memory.get();
        self.world().check_books(&|usage| memory.live(usage));
        let Some(token) = self.world().runtime.lost() else { return };
        let layers = u64::from(self.options.setup.shape.layers);
        let first = u64::from(token.get() / 256) * layers;
        assert!(
            self.weather.may_be_lost(first..first + layers),
            "token {token} is lost for nothing"
        );
        self.sums.losses += 1;
        self.tell(|| format!("  lost from {token}"));
        self.world().truncate(token.get()).unwrap();
        assert_eq!(self.world().runtime.lost(), None);
    }

    /// The calm: nothing fails any more, so everything comes back, goes, and comes back again.
    fn recover(&mut self) {
        self.tell(|| "calm".into());
        let _ = self.weather.take_told();
        let policy = EvictPolicy { paths: Paths::BOTH, ..self.options.setup.evict };
        // Damage done earlier shows when its copy is read; each finds some, or there is none.
        let mut cycles = 0;
        while self.restore_what_is_left() | self.cycle(policy) {
            cycles += 1;
            assert!(cycles <= 16, "losses go on in the calm");
        }
        self.bound_points();
        let before = self.world().reference.get().actions();
        assert!(!self.cycle(policy), "a second cycle loses something");
        let actions = self.world().reference.get().actions() - before;
        let most = self.world().actions_max();
        assert!(actions <= most, "{actions} actions in the calm, more than {most}");
        self.world().truncate(0).unwrap();
        self.look();
        assert_eq!(self.world().runtime.stats().tally.kv_bytes, 0);
        assert!(self.weather.is_poisoned() || self.weather.take_told().is_empty());
    }

    /// Everything goes and comes back; whether something was lost.
    fn cycle(&mut self, policy: EvictPolicy) -> bool {
        self.bound_points();
        self.world().flash_works &= !self.weather.is_poisoned();
        self.world().evict(policy, u64::MAX, None).unwrap();
        self.look();
        let left = self.world().runtime.stats().tally.total_bytes();
        assert!(left == 0 || !self.world().flash_works, "{left} bytes stay");
        self.restore_what_is_left()
    }

    /// Restores, and cuts off what turns out to be lost; whether something was.
    fn restore_what_is_left(&mut self) -> bool {
        let mut losses = 0;
        while let Err(error) = self.world().restore() {
            self.judge(error, &[], false);
            losses += 1;
            assert!(losses <= 16, "{error} again and again");
            self.look();
        }
        self.look();
        losses > 0
    }

    /// A world ends.
    fn count(&mut self, world: &World) {
        self.sums.actions += world.reference.get().actions();
        for (sum, looks) in self.sums.looks.iter_mut().zip(world.looks.get()) {
            *sum += looks;
        }
    }

    fn close(&mut self) {
        let world = self.world.take().unwrap();
        self.count(&world);
        self.sums.points += self.scheduler().points();
        self.sums.mishaps = self.weather.mishaps();
        // SAFETY: every thread that had an evictor was waited for.
        unsafe { world.close() };
        let memory = self.memory.get();
        check_closed(&|usage| memory.live(usage));
        memory.free_all();
        self.scheduler().finish();
    }
}

impl Life {
    /// Gives back what the run stood on, after it went well.
    fn end(self) -> Sums {
        // SAFETY: the runtime is closed and all threads have ended.
        unsafe {
            self.model.end();
            self.swap.end();
            self.memory.end();
            self.threads.end();
            self.scheduler.end();
        }
        self.sums
    }
}

/// Runs a seed, perhaps printing what happens; what it did, or what went wrong.
pub fn run(seed: u64, tells: bool) -> Result<Sums, String> {
    let mut life = Life::new(seed, tells);
    life.tell(|| format!("{:#?}", life.options));
    match catch_unwind(AssertUnwindSafe(|| life.live())) {
        Ok(()) => Ok(life.end()),
        Err(panic) => {
            let why = match life.scheduler().end() {
                Some(End::Failure(why)) => why,
                _ => message(&*panic),
            };
            // Its memory stays: somebody may still be using it.
            Err(why)
        }
    }
}
