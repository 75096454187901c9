//! Algorithm 1 of the paper: the stage of an eviction and its next move; and the baseline that the
//! paper compares with.
//!
//! Each path has a load: the time that restoring what was evicted to it will take. The paper splits
//! chunks in inverse proportion to t_dKV and t_rKV (KvOnly), then packs floor(t_rW / t_dKV) chunks
//! for each dropped layer (KvAndW). Followed literally, the remainders that floor discards add up
//! over the layers to many units' time, and a start out of balance stays out of balance. Here the
//! next unit goes to the path that finishes sooner *with* it:
//!
//! ```text
//! pack  if  ram + t_dKV <= flash + t_rKV   (KvOnly)   else write the chunk
//! pack  if  ram + t_dKV <= flash + t_rW    (KvAndW)   else drop the layer
//! ```
//!
//! From balance this gives the paper's split, to within one unit of the inverse proportion, and
//! floor or floor + 1 chunks a layer, for any rates and sizes. It also never reads a large unit
//! before the other path has as much to do, so an eviction that stops early restores early.
//!
//! Invariant, while both paths can take a unit: after a move,
//! `|ram - flash| <= max(|ram - flash| before, t_dKV, time of the other path's next unit)`. From a
//! start out of balance (chunks were restored only in part) the path that is behind takes
//! everything until it caught up.
//!
//! Nothing here knows which units are meant; `order` does. Moves say only where the next one goes.

use super::times::Times;
use crate::units::Nanos;

/// Where an eviction stands (paper 4.3). Stages come in this order, some may be passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// More KV chunks than the unpack path is given: chunks go to both paths, weights stay.
    KvOnly,
    /// The chunks set aside are packed while weights are dropped.
    KvAndW,
    /// Only weights are left.
    WOnly,
    /// Only packed chunks are left.
    CompKv,
    /// Nothing is left.
    Empty,
}

/// How evicted units are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Algorithm 1.
    #[default]
    Hybrid,
    /// The baseline (paper 6.1): whole layers to flash, from the rear: a layer's chunks are
    /// written, then its weights dropped. Nothing is ever packed.
    PartialOffload,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 2] = [Scheme::Hybrid, Scheme::PartialOffload];

    /// As command lines and reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Hybrid => "hybrid",
            Scheme::PartialOffload => "partial-offload",
        }
    }

    /// The scheme of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }
}

/// What stays the same during an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How evicted units are placed.
    pub scheme: Scheme,
    /// T, from [`super::threshold()`].
    pub threshold: u64,
    /// Per-unit times. A path that fails on the way is closed by setting its time to `None`.
    pub times: Times,
}

/// What an eviction has before it, and behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Resident KV chunks.
    pub kv_left: u32,
    /// Resident weight units.
    pub weights_left: u32,
    /// Chunks in the RAM swap.
    pub packed_left: u32,
    /// Restore time of all that is in the RAM swap.
    pub ram: Nanos,
    /// Restore time of all that must be read: dropped weights, chunks in the swap file.
    pub flash: Nanos,
    /// t_rW of the weight unit that would be dropped next.
    pub next_weights: Nanos,
    /// Whether the rearmost layer of which something is resident has resident chunks.
    pub rear_layer_has_kv: bool,
}

/// What to do with the next unit of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Pack the next KV chunk into the RAM swap.
    Pack,
    /// Write the next KV chunk to the swap file; a clean one is only dropped.
    Write,
    /// Drop the next weight unit.
    DropWeights,
    /// Move a packed chunk from the RAM swap to the swap file.
    Spill,
    /// Nothing can be evicted any more.
    Nothing,
}

/// The stage that these numbers are in.
///
/// Closed paths extend Algorithm 1. Without the RAM path nothing is set aside for it, so that all
/// chunks are written in KvOnly. Without the flash path all chunks are, so that KvAndW balances
/// them against weights from the start. Without both, chunks cannot be evicted and count as absent.
///
/// When weights run out before the chunks of KvAndW the stage stays KvAndW until they are gone (the
/// paper's Algorithm 1 would spill packed chunks first). For [`Scheme::PartialOffload`] KvAndW
/// means that chunks are left.
pub fn stage(load: &Load, plan: &Plan) -> Stage {
    let set_aside = match (plan.scheme, plan.times.unpack_chunk, plan.times.read_chunk) {
        (Scheme::Hybrid, None, None) | (Scheme::PartialOffload, _, None) => None,
        (Scheme::Hybrid, None, Some(_)) => Some(0),
        (Scheme::Hybrid, Some(_), None) | (Scheme::PartialOffload, _, Some(_)) => Some(u64::MAX),
        (Scheme::Hybrid, Some(_), Some(_)) => Some(plan.threshold),
    };
    match set_aside {
        Some(set_aside) if u64::from(load.kv_left) > set_aside => Stage::KvOnly,
        Some(_) if load.kv_left > 0 => Stage::KvAndW,
        _ if load.weights_left > 0 => Stage::WOnly,
        _ if load.packed_left > 0 => Stage::CompKv,
        _ => Stage::Empty,
    }
}

/// The next move. [`Move::Nothing`] comes exactly when nothing more can be evicted.
pub fn next_move(load: &Load, plan: &Plan) -> Move {
    match (stage(load, plan), plan.scheme) {
        (Stage::KvOnly, _) => pack_or_write(load, &plan.times),
        (Stage::KvAndW, Scheme::Hybrid) => pack_or_drop(load, &plan.times),
        (Stage::KvAndW, Scheme::PartialOffload) => write_or_drop(load),
        (Stage::WOnly, _) => Move::DropWeights,
        (Stage::CompKv, _) if plan.times.read_chunk.is_some() => Move::Spill,
        (Stage::CompKv | Stage::Empty, _) => Move::Nothing,
    }
}

fn pack_or_write(load: &Load, times: &Times) -> Move {
    match (times.unpack_chunk, times.read_chunk) {
        (Some(unpack), Some(read)) if !ram_is_sooner(load, unpack, read) => Move::Write,
        (Some(_), _) => Move::Pack,
        (None, Some(_)) => Move::Write,
        (None, None) => Move::Nothing,
    }
}

fn pack_or_drop(load: &Load, times: &Times) -> Move {
    match times.unpack_chunk {
        _ if load.weights_left == 0 => pack_or_write(load, times),
        Some(unpack) if ram_is_sooner(load, unpack, load.next_weights) => Move::Pack,
        _ => Move::DropWeights,
    }
}

const fn write_or_drop(load: &Load) -> Move {
    if load.rear_layer_has_kv || load.weights_left == 0 { Move::Write } else { Move::DropWeights }
}

/// Whether the RAM path with one more chunk finishes no later than the flash path with its next
/// unit. A tie goes to RAM, which costs no flash writes.
const fn ram_is_sooner(load: &Load, unpack: Nanos, read: Nanos) -> bool {
    load.ram.get().saturating_add(unpack.get()) <= load.flash.get().saturating_add(read.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(unpack_chunk: Option<u64>, read_chunk: Option<u64>, threshold: u64) -> Plan {
        let times = Times {
            unpack_chunk: unpack_chunk.map(Nanos::new),
            read_chunk: read_chunk.map(Nanos::new),
            read_bytes_per_s: 1_000_000_000,
        };
        Plan { scheme: Scheme::Hybrid, threshold, times }
    }

    fn load(kv_left: u32, weights_left: u32, packed_left: u32) -> Load {
        Load { kv_left, weights_left, packed_left, next_weights: Nanos::new(70), ..Load::default() }
    }

    #[test]
    fn stages_follow_the_counts_as_in_algorithm_1() {
        let plan = plan(Some(10), Some(30), 20);
        assert_eq!(stage(&load(21, 3, 0), &plan), Stage::KvOnly);
        assert_eq!(stage(&load(20, 3, 0), &plan), Stage::KvAndW);
        assert_eq!(stage(&load(1, 0, 9), &plan), Stage::KvAndW);
        assert_eq!(stage(&load(0, 3, 9), &plan), Stage::WOnly);
        assert_eq!(stage(&load(0, 0, 9), &plan), Stage::CompKv);
        assert_eq!(stage(&load(0, 0, 0), &plan), Stage::Empty);
    }

    #[test]
    fn a_unit_goes_where_it_finishes_sooner() {
        let plan = plan(Some(10), Some(30), 20);
        let at = |ram, flash, kv_left| {
            let (ram, flash) = (Nanos::new(ram), Nanos::new(flash));
            next_move(&Load { ram, flash, ..load(kv_left, 3, 0) }, &plan)
        };
        assert_eq!(at(20, 0, 21), Move::Pack);
        assert_eq!(at(21, 0, 21), Move::Write);
        assert_eq!(at(60, 0, 20), Move::Pack);
        assert_eq!(at(61, 0, 20), Move::DropWeights);
        // Sums that do not fit are capped, and a tie is packed.
        assert_eq!(at(u64::MAX, u64::MAX, 21), Move::Pack);
        assert_eq!(at(u64::MAX, 0, 20), Move::DropWeights);
        assert_eq!(at(0, u64::MAX, 20), Move::Pack);
    }

    #[test]
    fn chunks_that_outlive_the_weights_are_split() {
        let plan = plan(Some(10), Some(30), 20);
        assert_eq!(next_move(&load(5, 0, 0), &plan), Move::Pack);
        let behind = Load { ram: Nanos::new(50), ..load(5, 0, 5) };
        assert_eq!(next_move(&behind, &plan), Move::Write);
    }

    #[test]
    fn a_closed_path_takes_no_chunk() {
        let no_ram = plan(None, Some(30), 0);
        assert_eq!(next_move(&load(1, 3, 0), &no_ram), Move::Write);
        assert_eq!(next_move(&load(0, 3, 0), &no_ram), Move::DropWeights);
        // Closed on the way, with the threshold of before.
        assert_eq!(next_move(&load(1, 3, 4), &plan(None, Some(30), 20)), Move::Write);

        let no_flash = plan(Some(10), None, 20);
        assert_eq!(stage(&load(1000, 3, 0), &no_flash), Stage::KvAndW);
        assert_eq!(next_move(&load(1000, 0, 0), &no_flash), Move::Pack);
        assert_eq!(next_move(&load(0, 0, 7), &no_flash), Move::Nothing);

        let neither = plan(None, None, 0);
        assert_eq!(next_move(&load(5, 3, 0), &neither), Move::DropWeights);
        assert_eq!(next_move(&load(5, 0, 0), &neither), Move::Nothing);
        assert_eq!(stage(&load(5, 0, 0), &neither), Stage::Empty);
    }

    #[test]
    fn a_chunk_without_a_way_out_stays() {
        // The stage counts such chunks as absent, so that nobody asks.
        let neither = plan(None, None, 0);
        assert_eq!(pack_or_write(&load(5, 0, 0), &neither.times), Move::Nothing);
    }

    #[test]
    fn partial_offload_writes_a_layer_and_then_drops_it() {
        let partial = Plan { scheme: Scheme::PartialOffload, ..plan(Some(10), Some(30), 20) };
        let rear = |rear_layer_has_kv| Load { rear_layer_has_kv, ..load(4, 3, 0) };
        assert_eq!(next_move(&rear(true), &partial), Move::Write);
        assert_eq!(next_move(&rear(false), &partial), Move::DropWeights);
        assert_eq!(next_move(&load(4, 0, 0), &partial), Move::Write);
        assert_eq!(next_move(&load(0, 1, 0), &partial), Move::DropWeights);

        let times = Times { read_chunk: None, ..partial.times };
        let no_flash = Plan { times, ..partial };
        assert_eq!(next_move(&rear(true), &no_flash), Move::DropWeights);
        assert_eq!(next_move(&load(4, 0, 0), &no_flash), Move::Nothing);
    }

    #[test]
    fn names_are_read_back() {
        for scheme in Scheme::ALL {
            assert_eq!(Scheme::from_name(scheme.name()), Some(scheme));
        }
        assert_eq!(Scheme::from_name("Hybrid"), None);
    }
}
