//! The machine against a small model of the world, at random: several actions in flight, failures,
//! evictions during restores, growth and truncation, and after every event the invariants.

mod copies;
mod evicting;
mod failing;
mod guards;
mod promises;
mod restoring;
mod rules;
mod save;
mod world;

use self::world::World;
use super::table::chunk_id;
use super::*;
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error};
use crate::limits::CHUNK_TOKENS;
use crate::policy::{self, Order, Plan, Profile, Scheme, Setup, Times};
use crate::units::{ByteCount, CodecId, FlashRecord, Kind, KvShape, LayerIndex, TokenCount, Unit};
use std::boxed::Box;
use std::vec;

const SHAPE: KvShape = KvShape { layers: 4, kv_heads: 1, head_dim: 32 };
const CHUNK_BYTES: u64 = 32 << 10;
const PACKED_BYTES: u32 = 17 << 10;
const WEIGHT_BYTES: [u64; 5] = [9 << 20, 5 << 20, 5 << 20, 5 << 20, 40 << 20];

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn machine(scheme: Scheme, flash: bool, lossless: bool) -> Machine {
    let times = Times::new(
        &Profile::DEFAULT,
        &Setup {
            codec: CodecId::Q8,
            chunk_bytes: ByteCount::new(CHUNK_BYTES),
            packed_bytes: ByteCount::new(u64::from(PACKED_BYTES)),
            stored_bytes: ByteCount::new(CHUNK_BYTES),
            unpackers: 1,
            ram_is_open: true,
            flash_is_open: flash,
        },
    )
    .unwrap();
    let sizes = WEIGHT_BYTES.iter().map(|bytes| ByteCount::new(*bytes));
    // A small threshold, so that few chunks suffice to pass through all stages.
    let plan = Plan { scheme, threshold: policy::threshold(&times, sizes).min(9), times };
    let config = Config {
        shape: SHAPE,
        columns_max: 8,
        weight_bytes: &WEIGHT_BYTES,
        // With and without a bound below what a chunk takes.
        packed_bytes_max: if lossless { CHUNK_BYTES + 64 } else { CHUNK_BYTES - 64 },
        lossless,
        plan,
    };
    let mut sizer = Sizer::new();
    Machine::size(&mut sizer, WEIGHT_BYTES.len(), SHAPE.layers, 8).unwrap();
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    let machine = Machine::new(&mut arena, &config).unwrap();
    assert_eq!(arena.seal(), sizer.used());
    machine
}

/// Fails an action as its port might.
fn failure(random: &mut Random, action: &Action) -> Option<Error> {
    let damage = Error::new(Code::Corrupt, "test");
    let io = Error::new(Code::Io, "test");
    Some(match action {
        Action::Pack { .. } if random.chance(50) => Error::new(Code::OutOfMemory, "test"),
        Action::Pack { .. } => Error::new(Code::Leased, "test"),
        Action::Write { .. } | Action::Spill { .. } => Error::new(Code::NoSpace, "test"),
        Action::Allocate { .. } => Error::new(Code::OutOfMemory, "test"),
        Action::ReadWeights { .. } => io,
        Action::ReadChunk { .. } | Action::Unpack { .. } if random.chance(10) => damage,
        Action::ReadChunk { .. } | Action::Unpack { .. } => io,
        Action::Release { .. } => Error::new(Code::Leased, "test"),
    })
}

fn evict(policy: EvictPolicy, bytes: u64) -> Event {
    Event::Evict { bytes: ByteCount::new(bytes), policy }
}

fn restore(tokens: TokenCount) -> Event {
    Event::Restore { tokens, allocate_first: false }
}

struct Run {
    policy: EvictPolicy,
    machine: Machine,
    world: World,
    random: Random,
    failures_percent: u64,
}

impl Run {
    fn step(&mut self, event: Event) -> Result<(), Error> {
        let before = (promises::gates(&self.machine), *self.machine.tally());
        let step = self.machine.step(event)?;
        promises::check(&before, event, &step, &self.machine);
        self.world.take(step);
        self.machine.check().unwrap();
        self.world.compare(&self.machine);
        Ok(())
    }

    /// One worker asks for work, or one action ends.
    fn work(&mut self) {
        let pending = self.world.in_flight.len();
        if pending > 0 && (pending >= 4 || self.random.chance(50)) {
            let at = usize::try_from(self.random.below(pending as u64)).unwrap();
            let action = self.world.in_flight.swap_remove(at);
            let releases_unfilled = match action {
                Action::Release { unit: Unit::Kv(id) } => {
                    !self.machine.chunk(id).unwrap().copies.contains(Copies::RESIDENT)
                }
                Action::Release { unit: Unit::Weights(layer) } => {
                    !self.machine.weights(layer).unwrap().resident
                }
                _ => false,
            };
            let fails = !releases_unfilled && self.random.chance(self.failures_percent);
            let outcome = match failure(&mut self.random, &action).filter(|_| fails) {
                Some(error) => Outcome::Failed(error),
                None => self.world.perform(action),
            };
            self.step(Event::Done(action, outcome)).unwrap();
            return;
        }
        let roles = Roles::from_bits_truncate(u8::try_from(1 + self.random.below(7)).unwrap());
        self.step(Event::Next(roles)).unwrap();
    }

    /// Works until nothing more is to be done.
    fn settle(&mut self) {
        let mut left = 100_000;
        while !self.machine.is_idle() || !self.world.in_flight.is_empty() {
            left -= 1;
            assert!(left > 0, "no end: {:?}", self.machine.tally());
            self.work();
        }
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.step(restore(self.machine.tokens()))?;
        self.finish_restore()
    }

    fn finish_restore(&mut self) -> Result<(), Error> {
        self.settle();
        self.machine.take_restored().expect("a restore ends with a result")
    }

    /// Compute appends tokens: extend, restore, write, commit.
    fn append(&mut self, tokens: u32) {
        let before = self.machine.tokens().get();
        let after = (before + tokens).min(8 * u32::from(CHUNK_TOKENS));
        if self.step(restore(TokenCount::new(after))).is_err() || self.finish_restore().is_err() {
            return;
        }
        // Compute writes into the tail chunks; what it writes counts once it is committed.
        let from = before / u32::from(CHUNK_TOKENS);
        for column in from..after.div_ceil(u32::from(CHUNK_TOKENS)) {
            for layer in 0..SHAPE.layers {
                let id = chunk_id(layer, u16::try_from(column).unwrap());
                let truth = self.world.truth.entry(id).or_insert(0);
                *truth += 1;
                self.world.buffers.insert(id, *truth);
            }
        }
        self.machine.step(Event::Commit(TokenCount::new(after))).unwrap();
        self.machine.check().unwrap();
        self.world.compare(&self.machine);
    }

    fn truncate(&mut self, tokens: u32) {
        self.step(Event::Truncate(TokenCount::new(tokens))).unwrap();
        self.settle();
        // Records and copies of cut chunks are gone from the table; forget their history too.
        let columns = self.machine.columns();
        self.world.truth.retain(|id, _| id.chunk.get() < columns);
    }

    fn evict(&mut self, bytes: u64) -> EvictReport {
        self.step(evict(self.policy, bytes)).unwrap();
        self.settle();
        self.machine.take_evicted().expect("an eviction ends with a report")
    }
}

fn run(seed: u64, failures_percent: u64) -> Run {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let order = match random.below(4) {
        0 => Order::ForwardOut,
        1 => Order::Random(seed),
        2 => Order::Lru,
        _ => Order::BackwardOut,
    };
    let scheme = if random.chance(20) { Scheme::PartialOffload } else { Scheme::Hybrid };
    let machine = machine(scheme, random.chance(80), random.chance(50));
    let policy = EvictPolicy { scheme, order, paths: Paths::BOTH };
    Run { policy, machine, world: World::default(), random, failures_percent }
}

fn random_life(seed: u64, failures_percent: u64) {
    let mut run = run(seed, failures_percent);
    for _ in 0..40 {
        match run.random.below(10) {
            0..3 => {
                let tokens = u32::try_from(1 + run.random.below(600)).unwrap();
                run.append(tokens);
            }
            3..6 => {
                let total = run.machine.tally().total_bytes();
                let bytes = run.random.below(total + total / 8 + 1);
                let report = run.evict(bytes);
                let freed_enough = report.freed.get() >= bytes;
                assert_eq!(freed_enough, report.stop == Stop::Reached, "{report:?}");
            }
            6 => {
                let _ = run.restore();
            }
            7 => interrupted_restore(&mut run),
            8 => {
                let layer = LayerIndex::new(u16::try_from(run.random.below(5)).unwrap());
                run.step(Event::Used(layer)).unwrap();
            }
            _ => {
                let tokens = u32::try_from(run.random.below(2500)).unwrap();
                run.truncate(tokens.min(run.machine.tokens().get()));
            }
        }
        if let Some(token) = run.machine.lost() {
            run.truncate(token);
            assert_eq!(run.machine.lost(), None);
        }
    }
    // With the faults gone everything comes back.
    run.failures_percent = 0;
    run.restore().unwrap();
    assert_eq!(run.machine.tally().missing, 0);
    // And everything can go, as far as there is a place for it.
    let total = run.machine.tally().total_bytes();
    run.evict(total);
    if run.machine.plan.times.read_chunk.is_some() {
        assert_eq!(run.machine.tally().total_bytes(), 0);
    }
    run.restore().unwrap();
    run.truncate(0);
    assert_eq!((run.machine.tally().kv_bytes, run.world.records.len()), (0, 0));
}

/// A restore that is cancelled, or into which an eviction falls.
fn interrupted_restore(run: &mut Run) {
    let (tokens, allocate_first) = (run.machine.tokens(), run.random.chance(30));
    run.step(Event::Restore { tokens, allocate_first }).unwrap();
    for _ in 0..run.random.below(30) {
        run.work();
    }
    if run.machine.is_restoring() && run.random.chance(50) {
        run.step(Event::Cancel).unwrap();
    } else if !run.machine.is_idle() {
        let total = run.machine.tally().total_bytes();
        let bytes = run.random.below(total + 1);
        run.step(evict(run.policy, bytes)).unwrap();
        assert!(run.machine.take_restored().is_some_and(|result| result.is_err()));
        if run.random.chance(30) && run.machine.is_evicting() {
            run.step(Event::StopEvict(Stop::Deadline)).unwrap();
        }
    }
    run.settle();
}

#[test]
fn random_lives_without_faults() {
    for seed in 0..300 {
        random_life(seed, 0);
    }
}

#[test]
fn random_lives_with_faults() {
    for seed in 1000..1600 {
        random_life(seed, 8);
    }
}

#[test]
fn when_asked_nothing_is_filled_before_everything_has_a_buffer() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.evict(run.machine.tally().total_bytes() * 3 / 4);
    run.step(Event::Restore { tokens: run.machine.tokens(), allocate_first: true }).unwrap();
    let mut filled = 0;
    while !run.machine.is_idle() {
        run.work();
        let is_fill = |action: &Action| !matches!(action, Action::Allocate { .. });
        if run.world.in_flight.iter().any(is_fill) {
            filled += 1;
            assert!(run.world.in_flight.iter().all(is_fill));
            let lacks = |layer| !run.machine.weights(LayerIndex::new(layer)).unwrap().has_buffer;
            assert!(!(0..SHAPE.layers).any(lacks));
        }
    }
    assert!(filled > 0 && run.machine.take_restored() == Some(Ok(())));
}

/// A machine that holds nothing yet.
fn idle(order: Order, scheme: Scheme) -> Run {
    let machine = machine(scheme, true, true);
    let world = World::default();
    let policy = EvictPolicy { scheme, order, paths: Paths::BOTH };
    Run { policy, machine, world, random: Random(7), failures_percent: 0 }
}

fn full(order: Order, scheme: Scheme) -> Run {
    let mut run = idle(order, scheme);
    run.append(8 * u32::from(CHUNK_TOKENS) - 100);
    run
}

#[test]
fn backward_out_keeps_the_front_at_every_level() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let total = run.machine.tally().total_bytes();
    for _ in 0..20 {
        run.evict(total / 20);
        let ready = |kind, layer| run.machine.is_ready(LayerIndex::new(layer), kind);
        for kind in [Kind::Weights, Kind::Kv] {
            let first_missing = (0..4).find(|layer| !ready(kind, *layer)).unwrap_or(4);
            assert!((first_missing + 1..4).all(|layer| !ready(kind, layer)), "{kind:?}");
        }
    }
    assert_eq!(run.machine.tally().total_bytes(), 0);
    run.restore().unwrap();
    assert_eq!(run.machine.tally().total_bytes(), total);
}

#[test]
fn stages_come_in_order_and_everything_can_go() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let total = run.machine.tally().total_bytes();
    let mut stage = policy::Stage::KvOnly;
    for _ in 0..200 {
        let report = run.evict(total / 200 + 1);
        assert!(report.stage >= stage, "{report:?}");
        stage = report.stage;
    }
    assert_eq!(stage, policy::Stage::Empty);
    assert_eq!(run.machine.tally().total_bytes(), 0);
}

#[test]
fn partial_offload_takes_whole_layers_from_the_rear_and_packs_nothing() {
    let mut run = full(Order::BackwardOut, Scheme::PartialOffload);
    let total = run.machine.tally().total_bytes();
    for _ in 0..10 {
        run.evict(total / 10);
        assert_eq!(run.machine.tally().ram_bytes, 0);
        for layer in 0..4 {
            let layer = LayerIndex::new(layer);
            if !run.machine.is_ready(layer, Kind::Weights) {
                assert!(!run.machine.is_ready(layer, Kind::Kv));
            }
        }
    }
}

#[test]
fn a_clean_chunk_is_dropped_without_a_second_write() {
    let mut run = full(Order::BackwardOut, Scheme::PartialOffload);
    let total = run.machine.tally().total_bytes();
    run.evict(total);
    run.restore().unwrap();
    run.step(evict(run.policy, total)).unwrap();
    while !run.machine.is_idle() {
        run.work();
        assert!(!run.world.in_flight.iter().any(|action| matches!(action, Action::Write { .. })));
    }
}

#[test]
fn an_eviction_during_a_pass_makes_the_commit_fail_and_loses_nothing() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let tokens = run.machine.tokens();
    run.step(restore(TokenCount::new(tokens.get() + 5))).unwrap();
    run.finish_restore().unwrap();
    run.evict(CHUNK_BYTES);
    // Another thread brings everything back; what compute had written is still gone.
    run.restore().unwrap();
    let error = run.machine.step(Event::Commit(TokenCount::new(tokens.get() + 5))).unwrap_err();
    assert_eq!(error.code, Code::Cancelled);
    assert_eq!(run.machine.tokens(), tokens);
}

#[test]
fn illegal_events_are_errors_and_change_nothing() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let before = *run.machine.tally();
    let id = chunk_id(0, 0);
    let illegal = [
        restore(TokenCount::new(1)),
        restore(TokenCount::new(u32::MAX)),
        Event::Commit(TokenCount::new(u32::MAX)),
        Event::Truncate(TokenCount::new(u32::MAX)),
        Event::Used(LayerIndex::new(99)),
        Event::StopEvict(Stop::Deadline),
        Event::Cancel,
        Event::Done(Action::Pack { id, tokens: 256 }, Outcome::Done),
        Event::Done(Action::Release { unit: Unit::Weights(LayerIndex::new(900)) }, Outcome::Done),
        Event::Done(Action::Write { id: chunk_id(900, 900) }, Outcome::Done),
    ];
    for event in illegal {
        assert!(run.machine.step(event).is_err(), "{event:?}");
        assert_eq!(*run.machine.tally(), before);
        run.machine.check().unwrap();
    }
    let tokens = run.machine.tokens();
    run.step(evict(run.policy, 1 << 20)).unwrap();
    for event in [Event::Truncate(TokenCount::new(0)), restore(tokens), evict(run.policy, 1)] {
        assert_eq!(run.machine.step(event).unwrap_err().code, Code::BadState, "{event:?}");
    }
    run.step(Event::Next(Roles::all())).unwrap();
    let action = run.world.in_flight[0];
    let wrong = Event::Done(action, Outcome::Written(FlashRecord::default()));
    if !matches!(action, Action::Write { .. }) {
        assert_eq!(run.machine.step(wrong).unwrap_err().code, Code::BadState);
    }
    run.settle();
}

#[test]
fn an_action_that_nobody_has_is_refused_and_so_is_one_that_ended() {
    let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
    run.step(restore(TokenCount::new(0))).unwrap();
    for _ in 0..4 {
        run.step(Event::Next(Roles::ALLOCATE)).unwrap();
    }
    while let Some(action) = run.world.in_flight.pop() {
        let outcome = run.world.perform(action);
        run.step(Event::Done(action, outcome)).unwrap();
    }
    for _ in 0..2 {
        run.step(Event::Next(Roles::READ)).unwrap();
    }
    let [first, second] = run.world.in_flight[..] else { panic!("two parts are being read") };
    run.step(Event::Done(first, Outcome::Done)).unwrap();
    let layer = LayerIndex::new(0);
    for action in
        [first, Action::ReadWeights { layer, part: 63 }, Action::ReadWeights { layer, part: 64 }]
    {
        let error = run.machine.step(Event::Done(action, Outcome::Done)).unwrap_err();
        assert_eq!((error.code, error.what), (Code::BadState, "action was not given out"));
    }
    run.step(Event::Done(second, Outcome::Done)).unwrap();
}
