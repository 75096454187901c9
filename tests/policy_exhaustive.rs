//! Drives the eviction policy from many starts to the end, for every small configuration, and
//! checks at every stop what the paper promises (sections 4.3 and 4.4). The model below keeps its
//! own books and computes every expected value without the library.

use mzcache::policy::{Load, Move, Order, Plan, Scheme, Stage, Times, next_move, stage, threshold};
use mzcache::units::{ByteCount, LayerIndex, Nanos, Unit};

/// t_dKV in nanoseconds: a prime, so that remainders of all sizes occur.
const UNPACK: u64 = 997;
/// t_rW of a layer in thousandths of t_dKV.
const LAYER_RATIOS: [u64; 9] = [300, 500, 900, 1000, 1500, 2750, 7000, 13_300, 50_000];
/// t_rKV in thousandths of t_dKV.
const READ_RATIOS: [u64; 6] = [200, 370, 1000, 1700, 5300, 20_000];
/// t_rW of the output head in thousandths of a layer's; 0 is no head.
const HEAD_RATIOS: [u64; 5] = [0, 500, 1000, 3700, 10_000];
const LAYERS_MAX: u16 = 6;
const CHUNKS_MAX: u16 = 40;

fn part(of: u64, thousandths: u64) -> u64 {
    (of * thousandths / 1000).max(1)
}

/// One configuration. Times are in nanoseconds.
#[derive(Clone, Debug)]
struct Config {
    scheme: Scheme,
    order: Order,
    kv_layers: u16,
    chunks_per_layer: u16,
    /// t_rW of each weight unit, by its index.
    weights: Vec<u64>,
    unpack: Option<u64>,
    read: Option<u64>,
    /// Units that are evicted already, in the order of eviction, before the first move.
    packed_before: u32,
    dropped_before: u16,
}

impl Config {
    fn chunks(&self) -> u32 {
        u32::from(self.kv_layers) * u32::from(self.chunks_per_layer)
    }

    fn units(&self) -> u16 {
        u16::try_from(self.weights.len()).unwrap()
    }

    /// At one byte a nanosecond, times of weights are their sizes.
    fn plan(&self) -> Plan {
        let times = Times {
            unpack_chunk: self.unpack.map(Nanos::new),
            read_chunk: self.read.map(Nanos::new),
            read_bytes_per_s: 1_000_000_000,
        };
        let weights = self.weights.iter().copied().map(ByteCount::new);
        Plan { scheme: self.scheme, threshold: threshold(&times, weights), times }
    }

    /// T by the paper's formula, with one more term for a unit of another size.
    fn expected_threshold(&self) -> u64 {
        let Some(unpack) = self.unpack else { return 0 };
        let layer = self.weights[0];
        let layers = self.weights.iter().filter(|w| **w == layer).count() as u64;
        let others = self.weights.iter().filter(|w| **w != layer);
        layers * (layer / unpack) + others.map(|w| w / unpack).sum::<u64>()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Resident,
    Packed,
    Written,
    Spilled,
}

/// Where every unit is, and the restore time of each path.
struct Model<'a> {
    config: &'a Config,
    by_age: Vec<LayerIndex>,
    homes: Vec<Home>,
    dropped: Vec<bool>,
    chunks_gone: u32,
    weights_gone: u16,
    ram: u64,
    flash: u64,
}

impl<'a> Model<'a> {
    fn new(config: &'a Config) -> Self {
        let mut model = Model {
            config,
            by_age: (0..config.units()).rev().map(LayerIndex::new).collect(),
            homes: vec![Home::Resident; config.chunks() as usize],
            dropped: vec![false; config.weights.len()],
            chunks_gone: 0,
            weights_gone: 0,
            ram: 0,
            flash: 0,
        };
        (0..config.packed_before).for_each(|_| model.apply(Move::Pack));
        (0..config.dropped_before).for_each(|_| model.apply(Move::DropWeights));
        model
    }

    fn count(&self, home: Home) -> u32 {
        u32::try_from(self.homes.iter().filter(|h| **h == home).count()).unwrap()
    }

    fn weights_left(&self) -> u16 {
        self.config.units() - self.weights_gone
    }

    fn next_weights(&self) -> usize {
        let order = self.config.order;
        order.weights_at(self.weights_gone, self.config.units(), &self.by_age).index()
    }

    fn load(&self) -> Load {
        let per_layer = usize::from(self.config.chunks_per_layer).max(1);
        let rear_kv = self.homes.iter().rposition(|h| *h == Home::Resident).map(|i| i / per_layer);
        let rear_weights = self.dropped.iter().rposition(|dropped| !dropped);
        let next = (self.weights_left() > 0).then(|| self.config.weights[self.next_weights()]);
        Load {
            kv_left: self.count(Home::Resident),
            weights_left: self.weights_left().into(),
            packed_left: self.count(Home::Packed),
            ram: Nanos::new(self.ram),
            flash: Nanos::new(self.flash),
            next_weights: Nanos::new(next.unwrap_or(0)),
            rear_layer_has_kv: rear_kv.is_some() && rear_kv >= rear_weights,
        }
    }

    fn take_chunk(&mut self, home: Home) {
        let Config { order, kv_layers, chunks_per_layer, .. } = *self.config;
        let id = order.chunk_at(self.chunks_gone, kv_layers, chunks_per_layer, &self.by_age);
        let index = id.layer.index() * usize::from(chunks_per_layer) + id.chunk.index();
        assert_eq!(self.homes[index], Home::Resident, "{:?}: chunk taken twice", self.config);
        self.homes[index] = home;
        self.chunks_gone += 1;
    }

    fn apply(&mut self, step: Move) {
        match step {
            Move::Pack => {
                self.take_chunk(Home::Packed);
                self.ram += self.config.unpack.expect("packed over a closed path");
            }
            Move::Write => {
                self.take_chunk(Home::Written);
                self.flash += self.config.read.expect("written over a closed path");
            }
            Move::DropWeights => {
                let index = self.next_weights();
                assert!(!self.dropped[index], "{:?}: weights dropped twice", self.config);
                self.dropped[index] = true;
                self.weights_gone += 1;
                self.flash += self.config.weights[index];
            }
            Move::Spill => {
                assert!(self.config.read.is_some(), "spilled over a closed path");
                let packed = self.homes.iter().position(|h| *h == Home::Packed);
                self.homes[packed.expect("nothing to spill")] = Home::Spilled;
            }
            Move::Nothing => {}
        }
    }

    fn lead(&self) -> i128 {
        i128::from(self.ram) - i128::from(self.flash)
    }

    /// Every unit has one home, and what is resident is what the order leaves.
    fn check_homes(&self) {
        let homes = [Home::Resident, Home::Packed, Home::Written, Home::Spilled];
        let counts = homes.map(|home| self.count(home));
        assert_eq!(counts.iter().sum::<u32>(), self.config.chunks());
        assert_eq!(counts[0], self.config.chunks() - self.chunks_gone);
        let dropped = self.dropped.iter().filter(|d| **d).count();
        assert_eq!(dropped, usize::from(self.weights_gone));
        let evicted = |index: usize| self.homes[index] != Home::Resident;
        let kv = 0..self.homes.len();
        match self.config.order {
            Order::BackwardOut => {
                assert!(kv.map(evicted).is_sorted(), "{:?}", self.config);
                assert!(self.dropped.is_sorted(), "{:?}", self.config);
            }
            Order::ForwardOut => {
                assert!(kv.rev().map(evicted).is_sorted(), "{:?}", self.config);
                assert!(self.dropped.iter().rev().is_sorted(), "{:?}", self.config);
            }
            _ => {}
        }
    }
}

/// The stage that Algorithm 1 is in, with both paths open; lines 4 to 11 of the paper, except that
/// chunks which outlive the weights stay in KvAndW.
fn expected_stage(config: &Config, load: &Load) -> Stage {
    let (kv_left, weights_left) = (u64::from(load.kv_left), load.weights_left);
    let set_aside = match (config.scheme, config.unpack, config.read) {
        (Scheme::Hybrid, Some(_), Some(_)) => config.expected_threshold(),
        (Scheme::Hybrid, None, Some(_)) => 0,
        _ => u64::MAX,
    };
    let kv_can_leave =
        config.read.is_some() || (config.scheme == Scheme::Hybrid && config.unpack.is_some());
    if kv_can_leave && kv_left > set_aside {
        Stage::KvOnly
    } else if kv_can_leave && kv_left > 0 {
        Stage::KvAndW
    } else if weights_left > 0 {
        Stage::WOnly
    } else if load.packed_left > 0 {
        Stage::CompKv
    } else {
        Stage::Empty
    }
}

fn is_allowed(config: &Config, at: Stage, load: &Load, step: Move) -> bool {
    let flash = config.read.is_some();
    let partial = config.scheme == Scheme::PartialOffload;
    match (at, step) {
        (Stage::KvOnly, Move::Pack) => config.unpack.is_some(),
        (Stage::KvOnly, Move::Write) => flash,
        (Stage::KvAndW, Move::Pack) => config.unpack.is_some() && !partial,
        (Stage::KvAndW, Move::Write) => flash && (partial || load.weights_left == 0),
        (Stage::KvAndW | Stage::WOnly, Move::DropWeights) => load.weights_left > 0,
        (Stage::CompKv, Move::Spill) => flash,
        (Stage::CompKv, Move::Nothing) => !flash,
        (Stage::Empty, Move::Nothing) => true,
        _ => false,
    }
}

/// In KvOnly, from full residency: the split is within one unit of the inverse proportion, and no
/// other split of as many chunks would be restored sooner.
fn check_split(model: &Model<'_>) {
    let (Some(unpack), Some(read)) = (model.config.unpack, model.config.read) else { return };
    let (packed, gone) = (u64::from(model.count(Home::Packed)), u64::from(model.chunks_gone));
    let ideal_scaled = gone * read;
    assert!(
        (packed * (unpack + read)).abs_diff(ideal_scaled) <= unpack + read,
        "{:?}",
        model.config
    );
    let slower = |packed: u64| (packed * unpack).max((gone - packed) * read);
    let best = (0..=gone).map(slower).min();
    assert_eq!(Some(slower(packed)), best, "{:?}: not the best split", model.config);
}

/// Between two drops of KvAndW.
#[derive(Clone, Copy, Default)]
struct Interval {
    /// By how much RAM was ahead when it began.
    lead: i128,
    packs: u64,
}

/// An interval that starts in balance packs floor(t_rW / t_dKV) chunks, or one more to make up for
/// remainders; one that starts with RAM ahead (KvOnly left it so) packs what fits.
fn check_interval(config: &Config, interval: Interval, weights: u64) {
    let unpack = config.unpack.expect("KvAndW drops weights only with the RAM path open");
    let Interval { lead, packs } = interval;
    let fitting = (i128::from(weights) - lead).div_euclid(unpack.into()).max(0);
    assert_eq!(i128::from(packs), fitting, "{config:?}: {lead} ns ahead, {weights} ns dropped");
    if lead <= 0 {
        assert!(lead > -i128::from(unpack), "{config:?}");
        let floor = weights / unpack;
        assert!((floor..=floor + 1).contains(&packs), "{config:?}: {packs} for {weights} ns");
    }
    if lead == 0 {
        assert_eq!(packs, weights / unpack, "{config:?}");
    }
}

#[derive(Default)]
struct Tally {
    configs: u64,
    stops: u64,
    balanced_stops: u64,
    stages_seen: [u64; 5],
}

/// One eviction from its start to its end.
fn drive(config: &Config, tally: &mut Tally) {
    let plan = config.plan();
    assert_eq!(plan.threshold, config.expected_threshold(), "{config:?}");
    let mut model = Model::new(config);
    let from_full = config.packed_before == 0 && config.dropped_before == 0;
    let bound = 2 * config.chunks() + u32::from(config.units());
    let (mut last_stage, mut moves) = (Stage::KvOnly, 0);
    let mut interval = Interval::default();
    tally.configs += 1;
    loop {
        let load = model.load();
        let at = stage(&load, &plan);
        let step = next_move(&load, &plan);
        tally.stops += 1;
        tally.stages_seen[at as usize] += 1;
        model.check_homes();
        assert_eq!(at, expected_stage(config, &load), "{config:?} {load:?}");
        assert!(at >= last_stage, "{config:?}: {at:?} after {last_stage:?}");
        assert!(is_allowed(config, at, &load, step), "{config:?}: {step:?} in {at:?}");
        last_stage = at;
        if step == Move::Nothing {
            break;
        }
        let lead = model.lead();
        model.apply(step);
        moves += 1;
        assert!(moves <= bound, "{config:?}: no end");
        if let Some(other) = other_unit(config, at, &load) {
            tally.balanced_stops += 1;
            let unit = config.unpack.unwrap().max(other);
            let allowed = lead.abs().max(i128::from(unit));
            assert!(model.lead().abs() <= allowed, "{config:?}: {} ns apart", model.lead());
            // A path that is behind by more than a unit takes the next one, and catches up.
            let was_far = lead.abs() > i128::from(unit);
            assert!(!was_far || model.lead().abs() < lead.abs(), "{config:?}: no catching up");
        }
        if at == Stage::KvOnly && from_full {
            check_split(&model);
        }
        match (at, step) {
            (Stage::KvOnly, _) => interval.lead = model.lead(),
            (Stage::KvAndW, Move::Pack) => interval.packs += 1,
            (Stage::KvAndW, Move::DropWeights) => {
                if from_full && config.scheme == Scheme::Hybrid {
                    check_interval(config, interval, load.next_weights.get());
                }
                interval = Interval { lead: model.lead(), packs: 0 };
            }
            _ => {}
        }
    }
    check_end(&model);
}

/// The time of the unit that competes with packing a chunk; `None` where there is no choice.
fn other_unit(config: &Config, at: Stage, load: &Load) -> Option<u64> {
    config.unpack?;
    match (config.scheme, at) {
        (Scheme::Hybrid, Stage::KvOnly) => config.read,
        (Scheme::Hybrid, Stage::KvAndW) if load.weights_left == 0 => config.read,
        (Scheme::Hybrid, Stage::KvAndW) => Some(load.next_weights.get()),
        _ => None,
    }
}

/// At the end everything is gone that could go.
fn check_end(model: &Model<'_>) {
    let config = model.config;
    assert_eq!(model.weights_left(), 0, "{config:?}");
    let (resident, packed) = (model.count(Home::Resident), model.count(Home::Packed));
    match (config.scheme, config.unpack, config.read) {
        (_, _, Some(_)) => assert_eq!((resident, packed), (0, 0), "{config:?}"),
        (Scheme::Hybrid, Some(_), None) => {
            assert_eq!((resident, packed), (0, config.chunks()), "{config:?}");
        }
        _ => assert_eq!((resident, packed), (config.chunks(), 0), "{config:?}"),
    }
}

/// Every shape of KV: each total on its own, and each that the layers divide evenly.
fn kv_shapes(layers: u16) -> impl Iterator<Item = (u16, u16)> {
    let plain = (0..=CHUNKS_MAX).map(|total| (1, total));
    let even = (1..=CHUNKS_MAX / layers).map(move |per_layer| (layers, per_layer));
    plain.chain(even)
}

/// Every configuration of sizes and rates with this order, from full residency.
fn each_config(order: Order, mut visit: impl FnMut(&mut Config)) {
    for (layers, layer_ratio, head_ratio) in (1..=LAYERS_MAX)
        .flat_map(|l| LAYER_RATIOS.map(|r| (l, r)))
        .flat_map(|(l, r)| HEAD_RATIOS.map(|h| (l, r, h)))
    {
        let layer = part(UNPACK, layer_ratio);
        let mut weights = vec![layer; usize::from(layers)];
        if head_ratio > 0 {
            weights.push(part(layer, head_ratio));
        }
        for (kv_layers, chunks_per_layer) in kv_shapes(layers) {
            for read in READ_RATIOS.map(|ratio| Some(part(UNPACK, ratio))).into_iter().chain([None])
            {
                for unpack in [Some(UNPACK), None] {
                    visit(&mut Config {
                        scheme: Scheme::Hybrid,
                        order,
                        kv_layers,
                        chunks_per_layer,
                        weights: weights.clone(),
                        unpack,
                        read,
                        packed_before: 0,
                        dropped_before: 0,
                    });
                }
            }
        }
    }
}

fn report(name: &str, tally: &Tally) {
    println!(
        "{name}: {} configurations, {} stops, {} of them checked for balance, by stage {:?}",
        tally.configs, tally.stops, tally.balanced_stops, tally.stages_seen
    );
}

#[test]
fn hybrid_keeps_its_promises_from_full_residency() {
    let mut tally = Tally::default();
    for order in [Order::BackwardOut, Order::ForwardOut] {
        each_config(order, |config| drive(config, &mut tally));
    }
    report("hybrid", &tally);
    assert!(tally.stages_seen.iter().all(|seen| *seen > 0));
}

#[test]
fn a_start_out_of_balance_catches_up() {
    let mut tally = Tally::default();
    each_config(Order::BackwardOut, |config| {
        if config.unpack.is_none() {
            return;
        }
        for packed in [0, 1, config.chunks() / 3, config.chunks() / 2] {
            for dropped in [0, 1, config.units() / 2, config.units()] {
                config.packed_before = packed.min(config.chunks());
                config.dropped_before = dropped;
                drive(config, &mut tally);
            }
        }
    });
    report("out of balance", &tally);
    assert!(tally.stages_seen.iter().all(|seen| *seen > 0));
}

#[test]
fn partial_offload_goes_layer_by_layer_from_the_rear() {
    let mut tally = Tally::default();
    each_config(Order::BackwardOut, |config| {
        config.scheme = Scheme::PartialOffload;
        drive(config, &mut tally);
        if config.read.is_none() {
            return;
        }
        // What is evicted, in restoration order reversed: a layer's chunks, then its weights.
        let mut model = Model::new(config);
        let plan = config.plan();
        for layer in (0..config.units()).rev() {
            let has_kv = layer < config.kv_layers;
            let writes = if has_kv { config.chunks_per_layer } else { 0 };
            let steps = (0..writes).map(|_| Move::Write).chain([Move::DropWeights]);
            for expected in steps {
                assert_eq!(next_move(&model.load(), &plan), expected, "{config:?}");
                model.apply(expected);
            }
        }
        assert_eq!(next_move(&model.load(), &plan), Move::Nothing, "{config:?}");
    });
    report("partial offload", &tally);
}

#[test]
fn every_order_takes_every_unit_once_and_restoration_covers_what_is_evicted() {
    let mut tally = Tally::default();
    for order in [Order::Random(1), Order::Lru] {
        each_config(order, |config| {
            // The order does not depend on rates; one of them is enough.
            if config.read == Some(UNPACK) && config.unpack.is_some() {
                drive(config, &mut tally);
            }
        });
    }
    report("other orders", &tally);
    for layers in 1..=LAYERS_MAX {
        for (kv_layers, per_layer) in kv_shapes(layers) {
            let units = u32::from(layers) + u32::from(kv_layers) * u32::from(per_layer);
            let at = |p| mzcache::policy::restore_unit_at(p, layers, kv_layers, per_layer);
            let mut keys: Vec<_> = (0..units)
                .map(|position| match at(position) {
                    Unit::Weights(layer) => (layer, 0),
                    Unit::Kv(id) => (id.layer, id.chunk.get() + 1),
                })
                .collect();
            assert!(keys.is_sorted());
            keys.dedup();
            assert_eq!(keys.len(), units as usize);
        }
    }
}
