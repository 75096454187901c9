//! One machine's life: steps with everything that must hold after each, and the end of it.

use super::setup::{self, CHUNKS, Choices, SHAPE, WEIGHT_BYTES};
use super::world::{World, chunk_id, place};
use mzcache::policy::Scheme;
use mzcache::state::{Action, Chunk, Copies, Event, EvictPolicy, Machine, Outcome, Paths, Roles};
use mzcache::state::{Step, Stop, Tally, Weights};
use mzcache::units::{ByteCount, LayerIndex, TokenCount, Unit};
use mzcache::{Code, Error, Result};
use std::mem::MaybeUninit;

/// More steps than any goal of so few units takes.
const STEPS_MAX: usize = 2000;

pub struct Run {
    pub machine: Machine,
    /// Whether tokens were ever committed.
    pub has_grown: bool,
    pub world: World,
    pub choices: Choices,
    /// A save's report was taken, and what it found is being written down.
    is_sealing: bool,
    /// The last eviction: bytes held when it began, and the ways out that it has for chunks.
    eviction: (u64, Paths),
}

/// All that can be seen of a machine.
#[derive(PartialEq)]
struct Sight {
    tally: Tally,
    tokens: TokenCount,
    columns: u16,
    activity: [bool; 4],
    durable: TokenCount,
    chunks: [Chunk; CHUNKS],
    weights: [Weights; WEIGHT_BYTES.len()],
}

impl Run {
    pub fn new(setup: u8, memory: &'static mut [MaybeUninit<u8>]) -> Self {
        let choices = Choices::new(setup);
        let machine = setup::machine(&choices, memory);
        let world = World::new(choices.lossless, choices.packs_badly);
        let eviction = (0, Paths::BOTH);
        Run { machine, has_grown: false, world, choices, is_sealing: false, eviction }
    }

    fn sight(&self) -> Sight {
        let machine = &self.machine;
        let chunk = |place: usize| {
            let place = u16::try_from(place).unwrap();
            *machine.chunk(chunk_id(place % SHAPE.layers, place / SHAPE.layers)).unwrap()
        };
        let weights = |place: usize| {
            *machine.weights(LayerIndex::new(u16::try_from(place).unwrap())).unwrap()
        };
        Sight {
            tally: *machine.tally(),
            tokens: machine.tokens(),
            columns: machine.columns(),
            activity: [
                machine.is_idle(),
                machine.is_evicting(),
                machine.is_restoring(),
                machine.is_saving(),
            ],
            durable: machine.durable(),
            chunks: std::array::from_fn(chunk),
            weights: std::array::from_fn(weights),
        }
    }

    /// One event. An error must change nothing.
    pub fn step(&mut self, event: Event) -> Result<Step> {
        let before = self.sight();
        let result = self.machine.step(event);
        match &result {
            Err(error) => {
                assert!(!error.what.is_empty());
                assert!(before == self.sight(), "{event:?} failed and changed something");
            }
            Ok(step) => {
                if let Event::Evict { policy: EvictPolicy { paths, scheme, .. }, .. } = event {
                    let ram = paths.ram && self.choices.ram && scheme == Scheme::Hybrid;
                    let flash = paths.flash && self.choices.flash;
                    self.eviction = (before.tally.total_bytes(), Paths { ram, flash });
                }
                self.world.take(step);
                self.note(event, &before);
            }
        }
        self.look();
        result
    }

    /// What the event means to compute.
    fn note(&mut self, event: Event, before: &Sight) {
        match event {
            Event::Commit(tokens) if tokens > before.tokens => {
                self.world.commit(before.tokens, tokens);
                self.has_grown = true;
            }
            // A pass begins, or what it was based on is cut.
            Event::Restore { tokens, .. } if tokens > before.tokens => self.world.forget_drafts(),
            Event::Truncate(_) => self.world.forget_drafts(),
            Event::Sealed(_) => self.is_sealing = false,
            _ => {}
        }
    }

    fn look(&mut self) {
        self.machine.check().unwrap();
        self.world.compare(&self.machine);
        // Readers share a weight unit.
        let units = self.world.in_flight.iter().fold(0u32, |units, action| units | bit(action));
        assert_eq!(units.count_ones(), self.machine.tally().busy);
        if self.machine.is_idle() {
            self.world.compare_at_rest(&self.machine);
        }
        self.look_at_report();
        self.look_at_save();
        if let Some(Ok(())) = self.machine.take_restored() {
            assert_eq!(self.machine.tally().missing, 0);
        }
    }

    fn look_at_report(&mut self) {
        let Some(report) = self.machine.take_evicted() else { return };
        let tally = self.machine.tally();
        let (start_bytes, paths) = self.eviction;
        assert_eq!(report.freed.get(), start_bytes.saturating_sub(tally.total_bytes()));
        assert_eq!(report.freed >= report.asked, report.stop == Stop::Reached);
        if report.stop == Stop::Exhausted {
            assert_eq!(tally.weights_left, 0, "weights could have been dropped");
            if report.error.is_none() && (paths.ram || paths.flash) {
                assert_eq!(tally.kv_left, 0, "chunks could have been evicted: {report:?}");
            }
            if report.error.is_none() && paths.flash {
                assert_eq!(tally.packed_idle, 0, "chunks could have been spilled: {report:?}");
            }
        }
    }

    /// What a save says is on flash is there, at this moment.
    fn look_at_save(&mut self) {
        let Some(report) = self.machine.take_saved() else { return };
        assert!(report.on_flash <= report.tokens && (report.error.is_none() || !report.to_seal));
        self.is_sealing |= report.to_seal;
        if report.error.is_none() && report.stop == Stop::Reached && report.to_seal {
            assert!(report.on_flash == report.tokens || report.on_flash > self.machine.durable());
        }
    }

    /// A worker without faults, for one step.
    pub fn work(&mut self, roles: Roles) -> bool {
        if self.world.in_flight.is_empty() {
            let step = self.step(Event::Next(roles)).unwrap();
            return step.action.is_some() || step.again;
        }
        let action = self.world.in_flight.remove(0);
        let outcome = self.world.perform(action);
        self.step(Event::Done(action, outcome)).unwrap();
        true
    }

    /// The action at `index` ends badly.
    pub fn fail(&mut self, index: usize, code: Code) {
        let action = self.world.in_flight[index];
        let error = Error::new(code, "injected");
        if self.is_unfilled_release(action) {
            // Nobody can lease a buffer that was never published.
            self.step(Event::Done(action, Outcome::Failed(error))).unwrap_err();
            return;
        }
        self.world.in_flight.remove(index);
        self.world.fail(action, code != Code::Io && code != Code::Leased);
        self.step(Event::Done(action, Outcome::Failed(error))).unwrap();
    }

    fn is_unfilled_release(&self, action: Action) -> bool {
        match action {
            Action::Release { unit: Unit::Kv(id) } => {
                !self.machine.chunk(id).unwrap().copies.contains(Copies::RESIDENT)
            }
            Action::Release { unit: Unit::Weights(layer) } => {
                !self.machine.weights(layer).unwrap().resident
            }
            _ => false,
        }
    }

    /// Workers without faults, until nothing is left to do.
    pub fn settle(&mut self) {
        if self.is_sealing {
            self.step(Event::Sealed(Ok(()))).unwrap();
        }
        for _ in 0..STEPS_MAX {
            if self.machine.is_idle() {
                return;
            }
            assert!(self.work(Roles::all()) || self.machine.is_idle(), "nothing to do, and no end");
        }
        unreachable!("no end: {:?}", self.machine.tally());
    }

    fn restore(&mut self) {
        self.step(Event::Restore { tokens: self.machine.tokens(), allocate_first: false }).unwrap();
        self.settle();
        assert_eq!(self.machine.tally().missing, 0, "not everything came back");
    }

    /// The faults are over: everything comes back, can go, comes back again, and can be given up.
    pub fn end(&mut self) {
        self.settle();
        if let Some(token) = self.machine.lost() {
            self.step(Event::Restore { tokens: self.machine.tokens(), allocate_first: false })
                .unwrap_err();
            self.step(Event::Truncate(TokenCount::new(token))).unwrap();
            self.settle();
            assert_eq!(self.machine.lost(), None);
        }
        self.restore();
        let bytes = self.machine.tally().total_bytes();
        let all = WEIGHT_BYTES.iter().sum::<u64>();
        assert!(bytes >= all);
        let evict = Event::Evict {
            bytes: ByteCount::new(bytes),
            policy: EvictPolicy { order: self.choices.order, ..EvictPolicy::default() },
        };
        self.step(evict).unwrap();
        self.settle();
        if self.choices.flash {
            assert_eq!(self.machine.tally().total_bytes(), 0);
        }
        self.restore();
        self.step(Event::Truncate(TokenCount::default())).unwrap();
        self.settle();
        assert_eq!(self.machine.tally().kv_bytes, 0);
        assert!(self.world.records.is_empty());
    }
}

/// Each unit's own bit.
fn bit(action: &Action) -> u32 {
    match action.unit() {
        Unit::Weights(layer) => 1 << layer.index(),
        Unit::Kv(id) => 1 << (WEIGHT_BYTES.len() + place(id)),
    }
}
