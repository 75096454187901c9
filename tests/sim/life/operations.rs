//! What a life consists of: each operation draws its operands, does one thing to the world, and
//! hands back the error that it met.

use super::{Keepsake, Life};
use crate::device::Mishap;
use crate::swarm;
use mzcache::runtime::{Overlap, Runtime};
use mzcache::state::{Roles, Stop};
use mzcache::units::{ByteCount, Nanos, Tag, TokenCount};
use mzcache::{Code, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Threads beside an operation.
#[derive(Default)]
pub(super) struct Others {
    pub(super) threads: Vec<usize>,
    pub(super) over: Arc<AtomicBool>,
    /// One of them evicts.
    pub(super) press: bool,
}

impl Life {
    /// Threads that do something during an operation, if there are to be any.
    pub(super) fn start_others(&mut self, may_be: bool) -> Others {
        let mut others = Others::default();
        let one_in = self.options.pressure_one_in;
        while may_be && others.threads.len() < 3 && self.draw(|random| random.one_in(one_in)) {
            let helps = self.draw(|random| random.one_in(3));
            others.press |= !helps;
            let thread = if helps { self.help(&others.over) } else { self.press(&others.over) };
            others.threads.push(thread);
        }
        others
    }

    /// A thread that wants memory again and again until it is told to stop.
    fn press(&mut self, over: &Arc<AtomicBool>) -> usize {
        let evictor = self.world().runtime.evictor();
        let (stop, scheduler) = (over.clone(), self.scheduler());
        self.scheduler().start(move || {
            for _ in 0..8 {
                let (pause, bytes) =
                    scheduler.draw(|random| (1 << random.below(20), random.below(400_000)));
                scheduler.pause(pause);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                match evictor.evict(ByteCount::new(bytes), None) {
                    Ok(report) => assert_eq!(report.booked.asked.get(), bytes),
                    Err(error) => assert_eq!(error.code, Code::BadState, "{error}"),
                }
            }
        })
    }

    /// A thread of the integrator's own that executes actions, beside workers or instead.
    fn help(&mut self, over: &Arc<AtomicBool>) -> usize {
        // SAFETY: the runtime stays where it is until the operation has waited for the thread, or
        // the run has ended it.
        let runtime: &'static Runtime = unsafe { &*std::ptr::from_ref(&*self.world().runtime) };
        let (stop, scheduler) = (over.clone(), self.scheduler());
        self.scheduler().start(move || {
            while !stop.load(Ordering::Relaxed) {
                let (bits, pause) =
                    scheduler.draw(|random| (random.below(8), 1 << random.below(16)));
                runtime.poll_roles(Roles::from_bits_truncate(bits.to_le_bytes()[0]));
                scheduler.pause(pause);
            }
        })
    }

    pub(super) fn append(&mut self) -> Result<(), Error> {
        let room = self.options.setup.tokens_max - self.world().tokens;
        let most = u64::from(room.min(300));
        let tokens = self.draw(|random| random.below(most + 1));
        self.tell(|| format!("append {tokens}"));
        self.world().pass(u32::try_from(tokens).unwrap())
    }

    pub(super) fn evict(&mut self, alone: bool) -> Result<(), Error> {
        let total = self.world().runtime.stats().tally.total_bytes();
        let default = self.options.setup.evict;
        let (policy, bytes, deadline) = self.draw(|random| {
            let policy = if random.one_in(2) { default } else { swarm::policy(random) };
            let bytes = match random.below(4) {
                0 => u64::MAX,
                _ => random.below(total + total / 8 + 2),
            };
            let deadline = random.one_in(4).then(|| Nanos::new(1 << random.below(24)));
            (policy, bytes, deadline)
        });
        self.tell(|| format!("evict {bytes} of {total} {policy:?} {deadline:?}"));
        if alone {
            return self.world().evict(policy, bytes, deadline).map(|_| ());
        }
        let report = self.world().runtime.evict_by(policy, ByteCount::new(bytes), deadline)?;
        assert_eq!(report.booked.asked.get(), bytes);
        Ok(())
    }

    pub(super) fn restore(&mut self) -> Result<(), Error> {
        self.tell(|| "restore".into());
        self.world().restore()
    }

    /// Begins a pass, lets some of it happen, and gives it up.
    pub(super) fn cancel(&mut self) -> Result<(), Error> {
        let polls = self.some_polls();
        self.tell(|| format!("cancel after {polls}"));
        let tokens = self.world().runtime.tokens();
        self.world().runtime.begin_pass(tokens)?;
        self.poll(polls);
        match self.world().runtime.cancel_restore() {
            // It was complete, or failed, or an eviction came first.
            Err(error) if error.code != Code::BadState => Err(error),
            _ => Ok(()),
        }
    }

    fn some_polls(&mut self) -> u64 {
        let most = self.world().actions_max() / 8;
        self.draw(|random| random.below(most))
    }

    /// Lets restoration go on, by whoever does that here.
    fn poll(&mut self, times: u64) {
        for _ in 0..times {
            if self.world().runtime.is_inline() {
                let bits = self.draw(|random| random.below(8)).to_le_bytes()[0];
                self.world().runtime.poll_roles(Roles::from_bits_truncate(bits));
            } else {
                self.scheduler().pause(1000);
            }
        }
    }

    /// A pass in whose midst memory is wanted, by the same thread.
    pub(super) fn interleave(&mut self) -> Result<(), Error> {
        let polls = self.some_polls();
        let total = self.world().runtime.stats().tally.total_bytes();
        let bytes = self.draw(|random| random.below(total + 1));
        let room = self.options.setup.tokens_max - self.world().tokens;
        let end = self.world().tokens + room.min(40);
        self.tell(|| format!("evict {bytes} after {polls} of a pass to {end}"));
        self.world().runtime.begin_pass(TokenCount::new(end))?;
        self.poll(polls);
        self.world().runtime.evict(ByteCount::new(bytes), None)?;
        match self.world().compute(end) {
            Err(error) if error.code == Code::Cancelled => Ok(()),
            result => result,
        }
    }

    /// What is in memory is to outlive the process.
    pub(super) fn checkpoint(&mut self) -> Result<(), Error> {
        if !self.options.setup.swap_file || self.weather.is_poisoned() {
            return Ok(());
        }
        let deadline =
            self.draw(|random| random.one_in(3).then(|| Nanos::new(1 << random.below(24))));
        self.tell(|| format!("checkpoint {deadline:?}"));
        self.tags += 1;
        let tag = Tag::new(self.tags);
        self.keeping = Some(tag);
        let before = self.world().runtime.stats().durable;
        let (result, kept) = self.world().checkpoint(tag, deadline);
        self.keeping = None;
        let is_old = self.weather.all_is_doubtful();
        match result {
            Ok(report) => {
                let is_sealed = report.stop == Stop::Reached || report.durable > before;
                assert!(report.stop != Stop::Reached || report.durable.get() == kept.tokens);
                let durable = Some(report.durable.get());
                self.kept.extend(is_sealed.then_some(Keepsake { kept, durable, is_old }));
                Ok(())
            }
            Err(error) => {
                self.kept.push(Keepsake { kept, durable: None, is_old });
                Err(error)
            }
        }
    }

    pub(super) fn truncate(&mut self) -> Result<(), Error> {
        let tokens = u64::from(self.world().tokens);
        let tokens = self.draw(|random| random.below(tokens + 1));
        self.tell(|| format!("truncate to {tokens}"));
        self.world().truncate(u32::try_from(tokens).unwrap())
    }

    /// Everything is to leave while some of it is in use.
    pub(super) fn hold(&mut self) -> Result<(), Error> {
        let (layer, policy) = self.draw(|random| (random.below(2), swarm::policy(random)));
        self.tell(|| format!("evict all but what is leased {policy:?}"));
        self.world().hold_and_evict(u16::try_from(layer).unwrap(), policy)
    }

    pub(super) fn rot(&mut self) -> Result<(), Error> {
        self.tell(|| "rot".into());
        // Only where bits may rot at all; else each loss is a bug.
        if self.options.one_in[Mishap::ReadFlips as usize] > 0 {
            self.swap.get().rot();
        }
        Ok(())
    }

    pub(super) fn change_pace(&mut self) -> Result<(), Error> {
        let (heat, rest) = self.draw(|random| (random.pick(&[1, 1, 100]), random.one_in(3)));
        let overlap = self.draw(|random| random.pick(&[u32::MAX, 0, 1, 2]));
        self.tell(|| format!("heat {heat}, rest {rest}, overlap {overlap}"));
        self.scheduler().set_heat(heat);
        self.world().runtime.set_overlap(Overlap::from_bits_truncate(overlap));
        let rest = rest || self.is_lame;
        self.world().runtime.rest_workers(rest);
        Ok(())
    }

    /// A worker dies while it has nothing in hand.
    pub(super) fn kill(&mut self) -> Result<(), Error> {
        if self.options.one_in[Mishap::NoThread as usize] > 0 && self.scheduler().kill_one() {
            self.tell(|| "a worker dies".into());
            self.sums.deaths += 1;
            self.is_lame = true;
            self.world().runtime.rest_workers(true);
        }
        Ok(())
    }
}
