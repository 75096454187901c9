//! Which unit goes next: the four eviction orders, and the one restoration order.
//!
//! An order maps positions to units: position 0 is evicted first. Chunks and weight units are
//! ordered separately; `stage` says of which kind the next one is. Each order is a bijection on
//! `0..n` that is computed anew at every call and stores nothing.
//!
//! Backward-out with forward-in is the paper's policy (section 4.4): what computation needs first
//! leaves last and comes back first. The others exist for comparison.

use crate::units::{ChunkId, ChunkIndex, LayerIndex, Unit};

/// The order of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Last layer first; within a layer the last chunk first.
    #[default]
    BackwardOut,
    /// First layer first; within a layer the first chunk first.
    ForwardOut,
    /// A permutation that the seed picks.
    Random(u64),
    /// The least recently used layer first; within a layer the first chunk first.
    Lru,
}

impl Order {
    /// As command lines and reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            Order::BackwardOut => "backward-out",
            Order::ForwardOut => "forward-out",
            Order::Random(_) => "random",
            Order::Lru => "lru",
        }
    }

    /// The order of that name. Only `random` takes the seed.
    pub fn from_name(name: &str, seed: u64) -> Option<Self> {
        [Order::BackwardOut, Order::ForwardOut, Order::Random(seed), Order::Lru]
            .into_iter()
            .find(|order| order.name() == name)
    }

    /// The chunk that is evicted at `position`, below `layers * chunks_per_layer`.
    ///
    /// `by_age` names each layer once, least recently used first; layers that hold no KV (from
    /// `layers` on) are passed over. Only [`Order::Lru`] reads it.
    pub fn chunk_at(
        self,
        position: u32,
        layers: u16,
        chunks_per_layer: u16,
        by_age: &[LayerIndex],
    ) -> ChunkId {
        let count = u32::from(layers) * u32::from(chunks_per_layer);
        assert!(position < count, "position beyond the last chunk");
        let forward = match self {
            Order::BackwardOut => count - 1 - position,
            Order::ForwardOut | Order::Lru => position,
            Order::Random(seed) => shuffled(position, count, seed),
        };
        let (layer, chunk) = split(forward, chunks_per_layer);
        let layer = if self == Order::Lru { aged(layer, layers, by_age) } else { layer };
        ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(chunk) }
    }

    /// The weight unit that is dropped at `position`, below `count`. `by_age` as for chunks.
    pub fn weights_at(self, position: u16, count: u16, by_age: &[LayerIndex]) -> LayerIndex {
        assert!(position < count, "position beyond the last weight unit");
        LayerIndex::new(match self {
            Order::BackwardOut => count - 1 - position,
            Order::ForwardOut => position,
            Order::Random(seed) => split(shuffled(position.into(), count.into(), seed), 1).0,
            Order::Lru => aged(position, count, by_age),
        })
    }
}

/// The unit that is restored at `position`, in the order in which computation needs them
/// (forward-in): layer by layer from the front, a layer's weights and then its chunks in order;
/// last the weight units that have no KV, such as the output head.
///
/// `position` is below `weight_units + layers * chunks_per_layer`, and `layers <= weight_units`.
pub fn restore_unit_at(
    position: u32,
    weight_units: u16,
    layers: u16,
    chunks_per_layer: u16,
) -> Unit {
    assert!(layers <= weight_units, "more layers with KV than weight units");
    let per_layer = u32::from(chunks_per_layer) + 1;
    let in_layers = u32::from(layers) * per_layer;
    if position >= in_layers {
        let (beyond, _) = split(position - in_layers, 1);
        assert!(beyond < weight_units - layers, "position beyond the last unit");
        return Unit::Weights(LayerIndex::new(layers + beyond));
    }
    let (layer, _) = split(position / per_layer, 1);
    let layer = LayerIndex::new(layer);
    match split(position % per_layer, 1).0.checked_sub(1) {
        None => Unit::Weights(layer),
        Some(chunk) => Unit::Kv(ChunkId { layer, chunk: ChunkIndex::new(chunk) }),
    }
}

/// Row and column of a position in rows of `width`. The row fits: positions come from products of
/// two 16-bit numbers, or are 16-bit numbers with `width` 1.
fn split(position: u32, width: u16) -> (u16, u16) {
    let width = u32::from(width);
    let narrow = |n: u32| u16::try_from(n).unwrap_or_else(|_| unreachable!("index beyond 16 bits"));
    (narrow(position / width), narrow(position % width))
}

fn aged(position: u16, count: u16, by_age: &[LayerIndex]) -> u16 {
    let mut layers = by_age.iter().map(|layer| layer.get()).filter(|layer| *layer < count);
    let layer = layers.nth(position.into());
    assert!(layer.is_some(), "by_age does not name every layer");
    layer.unwrap_or_default()
}

const ROUNDS: u64 = 4;

/// A permutation of `0..count` picked by the seed: a Feistel network over the smallest even number
/// of bits that holds `count`, walked until it comes back into the range. It does come back, as
/// the network permutes its domain and the walk started inside; the domain is less than four times
/// the range, so the walk is short.
fn shuffled(position: u32, count: u32, seed: u64) -> u32 {
    let half_bits = (u32::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u32 << half_bits) - 1;
    let mut walked = position;
    loop {
        let (mut left, mut right) = (walked >> half_bits, walked & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mixed(right, seed, round) & mask));
        }
        walked = (left << half_bits) | right;
        if walked < count {
            return walked;
        }
    }
}

/// The round function: the finalizer of SplitMix64 over value, seed and round.
fn mixed(value: u32, seed: u64, round: u64) -> u32 {
    let mut x = seed ^ (u64::from(value) << 8 | round);
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let [a, b, c, d, ..] = x.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec;
    use std::vec::Vec;

    const ALL: [Order; 5] =
        [Order::BackwardOut, Order::ForwardOut, Order::Random(1), Order::Random(2), Order::Lru];

    fn chunks(order: Order, layers: u16, per_layer: u16, by_age: &[LayerIndex]) -> Vec<(u16, u16)> {
        let count = u32::from(layers) * u32::from(per_layer);
        let at = |position| order.chunk_at(position, layers, per_layer, by_age);
        (0..count).map(at).map(|id| (id.layer.get(), id.chunk.get())).collect()
    }

    fn layers(numbers: &[u16]) -> Vec<LayerIndex> {
        numbers.iter().copied().map(LayerIndex::new).collect()
    }

    #[test]
    fn orders_are_as_documented() {
        let of = |order| chunks(order, 2, 2, &layers(&[1, 2, 0]));
        assert_eq!(of(Order::BackwardOut), [(1, 1), (1, 0), (0, 1), (0, 0)]);
        assert_eq!(of(Order::ForwardOut), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(of(Order::Lru), [(1, 0), (1, 1), (0, 0), (0, 1)]);
        let weights = |order: Order| {
            [0, 1, 2].map(|position| order.weights_at(position, 3, &layers(&[1, 2, 0])).get())
        };
        assert_eq!(weights(Order::BackwardOut), [2, 1, 0]);
        assert_eq!(weights(Order::ForwardOut), [0, 1, 2]);
        assert_eq!(weights(Order::Lru), [1, 2, 0]);
    }

    #[test]
    fn every_order_takes_every_unit_once() {
        for order in ALL {
            for count in 1..=64u16 {
                let by_age: Vec<_> = (0..count).rev().map(LayerIndex::new).collect();
                let at = |position| order.weights_at(position, count, &by_age).get();
                let seen: BTreeSet<_> = (0..count).map(at).collect();
                assert!(seen.into_iter().eq(0..count));
                for per_layer in [1, 2, 3, 8, 17] {
                    let all = chunks(order, count, per_layer, &by_age);
                    let seen: BTreeSet<_> = all.iter().copied().collect();
                    let full = (0..count).flat_map(|l| (0..per_layer).map(move |c| (l, c)));
                    assert!(seen.into_iter().eq(full));
                }
            }
        }
    }

    #[test]
    fn shuffles_are_bijections_and_differ_by_seed() {
        for seed in [0, 1, u64::MAX] {
            for count in (1..=600).chain([1023, 1024, 1025, 65_535, 65_536, 262_144]) {
                let mut seen = vec![false; count as usize];
                for position in 0..count {
                    let place = &mut seen[shuffled(position, count, seed) as usize];
                    assert!(!core::mem::replace(place, true));
                }
            }
        }
        let of = |seed| (0..1000).map(|p| shuffled(p, 1000, seed)).collect::<Vec<_>>();
        assert_ne!(of(1), of(2));
        // Not close to the identity: about one fixed point is expected.
        assert!(of(1).iter().zip(0..).filter(|(value, position)| *value == position).count() < 10);
    }

    /// Seeds are quoted in reports: what one stands for does not change.
    #[test]
    fn a_seed_names_the_same_permutation_for_ever() {
        let of = |count, seed| (0..count).map(|p| shuffled(p, count, seed)).collect::<Vec<_>>();
        assert_eq!(of(5, 7), [2, 1, 0, 3, 4]);
        assert_eq!(of(16, 7), [2, 15, 6, 3, 4, 7, 0, 9, 13, 14, 11, 12, 5, 10, 1, 8]);
        assert_eq!(of(17, u64::MAX), [9, 11, 4, 6, 15, 0, 16, 1, 5, 2, 10, 13, 7, 12, 8, 14, 3]);
    }

    #[test]
    fn the_largest_counts_stay_in_range() {
        let count = u32::from(u16::MAX) * u32::from(u16::MAX);
        for order in [Order::BackwardOut, Order::ForwardOut, Order::Random(7)] {
            for position in [0, 1, count / 2, count - 1] {
                let id = order.chunk_at(position, u16::MAX, u16::MAX, &[]);
                assert!(id.layer.get() < u16::MAX && id.chunk.get() < u16::MAX);
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for order in ALL {
            let seed = if let Order::Random(seed) = order { seed } else { 9 };
            assert_eq!(Order::from_name(order.name(), seed), Some(order));
        }
        assert_eq!(Order::from_name("mru", 0), None);
    }

    #[test]
    fn restoration_goes_forward_and_takes_every_unit_once() {
        let weights = |l| Unit::Weights(LayerIndex::new(l));
        let kv = |l, c| Unit::Kv(ChunkId { layer: LayerIndex::new(l), chunk: ChunkIndex::new(c) });
        let all: Vec<_> = (0..7).map(|position| restore_unit_at(position, 3, 2, 2)).collect();
        let expected = [weights(0), kv(0, 0), kv(0, 1), weights(1), kv(1, 0), kv(1, 1), weights(2)];
        assert_eq!(all, expected);
        let all: Vec<_> = (0..3).map(|position| restore_unit_at(position, 3, 2, 0)).collect();
        assert_eq!(all, [weights(0), weights(1), weights(2)]);
        let all: Vec<_> = (0..4).map(|position| restore_unit_at(position, 4, 1, 0)).collect();
        assert_eq!(all, [weights(0), weights(1), weights(2), weights(3)]);
        assert_eq!(restore_unit_at(65_535, 1, 1, u16::MAX), kv(0, u16::MAX - 1));
    }

    #[test]
    #[should_panic = "position beyond the last chunk"]
    fn a_chunk_position_out_of_range_is_a_programmer_error() {
        Order::BackwardOut.chunk_at(6, 2, 3, &[]);
    }

    #[test]
    #[should_panic = "position beyond the last weight unit"]
    fn a_weight_position_out_of_range_is_a_programmer_error() {
        Order::BackwardOut.weights_at(3, 3, &[]);
    }

    #[test]
    #[should_panic = "by_age does not name every layer"]
    fn a_short_list_of_ages_is_a_programmer_error() {
        Order::Lru.weights_at(1, 3, &layers(&[0]));
    }

    #[test]
    #[should_panic = "position beyond the last unit"]
    fn a_restore_position_out_of_range_is_a_programmer_error() {
        restore_unit_at(7, 3, 2, 2);
    }
}
