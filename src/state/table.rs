//! All units and the tally over them. `update_*` are the only ways to change a unit: they keep the
//! tally right by taking the unit's old share out and putting its new one in.

use super::unit::{Chunk, Copies, Phase, Weights};
use crate::arena::{Arena, Sizer};
use crate::error::Result;
use crate::units::{ChunkId, ChunkIndex, LayerIndex, Nanos, Unit};

/// Sums over all units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Chunks that an eviction may take.
    pub kv_left: u32,
    /// Weight units that an eviction may take.
    pub weights_left: u32,
    /// Chunks that are, or are about to be, restorable only by unpacking from RAM.
    pub on_ram: u32,
    /// Chunks that are, or are about to be, restorable only by reading the swap file.
    pub on_flash: u32,
    /// Those of them whose record is there, and packed.
    pub on_flash_packed: u32,
    /// Bytes of their records.
    pub on_flash_bytes: u64,
    /// Chunks in the RAM swap that no worker has: CompKv may spill them.
    pub packed_idle: u32,
    /// Time to read all weight units that are not in memory.
    pub weights_out: Nanos,
    /// Units that a worker has.
    pub busy: u32,
    /// Units with a buffer that waits to be filled.
    pub prepared: u32,
    /// Units of the context or the model that compute may not use now.
    pub missing: u32,
    /// Chunks whose last copy the storage lost.
    pub lost: u32,
    /// Bytes in shared buffers of weight units.
    pub weight_bytes: u64,
    /// Bytes in shared buffers of chunks.
    pub kv_bytes: u64,
    /// Packed bytes in the RAM swap.
    pub ram_bytes: u64,
    /// Chunks with a good copy in the swap file.
    pub flash_chunks: u32,
    /// Bytes that the evictions under way will free, at least.
    pub pending_bytes: u64,
}

impl Tally {
    /// Bytes held now: shared buffers and the RAM swap.
    pub const fn total_bytes(&self) -> u64 {
        self.weight_bytes + self.kv_bytes + self.ram_bytes
    }
}

/// Counts per layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCounts {
    /// Chunks of the layer that compute may not use now.
    pub kv_missing: u32,
    /// Chunks of the layer that an eviction may take.
    pub kv_left: u32,
    /// When compute last used the layer; for LRU.
    pub used_at: u32,
}

/// The units of one handle.
pub(super) struct Table {
    weights: &'static mut [Weights],
    chunks: &'static mut [Chunk],
    pub(super) layers: &'static mut [UnitCounts],
    pub(super) tally: Tally,
    /// Layers that hold KV.
    pub(super) kv_layers: u16,
    /// Chunk columns in use.
    pub(super) columns: u16,
    pub(super) chunk_bytes: u64,
    /// Worst-case size of a packed chunk.
    pub(super) packed_bytes_max: u64,
}

impl Table {
    pub(super) fn size(sizer: &mut Sizer, weights: usize, chunks: usize) -> Result<()> {
        sizer.slice::<Weights>(weights)?;
        sizer.slice::<Chunk>(chunks)?;
        sizer.slice::<UnitCounts>(weights)
    }

    pub(super) fn new(
        arena: &mut Arena,
        weights: impl Iterator<Item = Weights> + Clone,
        kv_layers: u16,
        columns_max: u16,
        chunk_bytes: u64,
        packed_bytes_max: u64,
    ) -> Result<Self> {
        let count = weights.clone().count();
        let mut source = weights;
        let nothing = Weights::new(0, Nanos::default());
        let mut table = Table {
            weights: arena.slice(count, |_| source.next().unwrap_or(nothing))?,
            chunks: arena
                .slice(usize::from(kv_layers) * usize::from(columns_max), |_| Chunk::EMPTY)?,
            layers: arena.slice(count, |_| UnitCounts::default())?,
            tally: Tally::default(),
            kv_layers,
            columns: 0,
            chunk_bytes,
            packed_bytes_max,
        };
        for index in 0..count {
            let weights = table.weights[index];
            table.count_weights(&weights, true);
        }
        Ok(table)
    }

    pub(super) fn weight_units(&self) -> u16 {
        // At most LAYERS_MAX, checked at open.
        u16::try_from(self.weights.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn columns_max(&self) -> u16 {
        let columns = self.chunks.len() / usize::from(self.kv_layers.max(1));
        u16::try_from(columns).unwrap_or(u16::MAX)
    }

    fn place(&self, id: ChunkId) -> usize {
        id.chunk.index() * usize::from(self.kv_layers) + id.layer.index()
    }

    pub(super) fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[self.place(id)]
    }

    pub(super) fn weights(&self, layer: LayerIndex) -> &Weights {
        &self.weights[layer.index()]
    }

    /// Whether a unit exists: the model has that layer, the context has that chunk.
    pub(super) fn contains(&self, unit: Unit) -> bool {
        match unit {
            Unit::Weights(layer) => layer.get() < self.weight_units(),
            Unit::Kv(id) => id.layer.get() < self.kv_layers && id.chunk.get() < self.columns_max(),
        }
    }

    pub(super) fn phase(&self, unit: Unit) -> Phase {
        match unit {
            Unit::Weights(layer) => self.weights(layer).phase,
            Unit::Kv(id) => self.chunk(id).phase,
        }
    }

    /// Whether it is a chunk without tokens.
    pub(super) fn is_new(&self, unit: Unit) -> bool {
        matches!(unit, Unit::Kv(id) if self.chunk(id).tokens == 0)
    }

    pub(super) fn update_chunk(&mut self, id: ChunkId, change: impl FnOnce(&mut Chunk)) {
        let before = *self.chunk(id);
        self.count_chunk(id, &before, false);
        let place = self.place(id);
        change(&mut self.chunks[place]);
        let after = self.chunks[place];
        self.count_chunk(id, &after, true);
    }

    pub(super) fn update_weights(&mut self, layer: LayerIndex, change: impl FnOnce(&mut Weights)) {
        let before = *self.weights(layer);
        self.count_weights(&before, false);
        change(&mut self.weights[layer.index()]);
        let after = self.weights[layer.index()];
        self.count_weights(&after, true);
    }

    /// Changes the number of columns in use; the columns between the two counts must be empty.
    pub(super) fn set_columns(&mut self, columns: u16) {
        assert!(columns <= self.columns_max());
        let (from, to) = (self.columns.min(columns), self.columns.max(columns));
        let growing = to == columns;
        for column in from..to {
            for layer in 0..self.kv_layers {
                let id = chunk_id(layer, column);
                assert!(*self.chunk(id) == Chunk::EMPTY);
                let missing = &mut self.layers[id.layer.index()].kv_missing;
                step(missing, 1, growing);
                step(&mut self.tally.missing, 1, growing);
            }
        }
        self.columns = columns;
    }

    fn count_chunk(&mut self, id: ChunkId, chunk: &Chunk, add: bool) {
        let in_context = id.chunk.get() < self.columns;
        let missing = u32::from(in_context && !chunk.is_ready());
        let left = u32::from(chunk.is_evictable());
        let layer = &mut self.layers[id.layer.index()];
        step(&mut layer.kv_missing, missing, add);
        step(&mut layer.kv_left, left, add);
        let tally = &mut self.tally;
        step(&mut tally.missing, missing, add);
        step(&mut tally.kv_left, left, add);
        match home(chunk) {
            Home::Ram => step(&mut tally.on_ram, 1, add),
            Home::Flash => {
                step(&mut tally.on_flash, 1, add);
                let is_there = chunk.copies.contains(Copies::FLASH);
                let packed = u32::from(is_there && chunk.flash.packed);
                step(&mut tally.on_flash_packed, packed, add);
                let bytes = u64::from(is_there) * u64::from(chunk.flash.bytes);
                step64(&mut tally.on_flash_bytes, bytes, add);
            }
            Home::Memory => {}
        }
        let has_ram = chunk.copies.contains(Copies::RAM);
        let packed_idle =
            has_ram && chunk.phase == Phase::Idle && !chunk.is_ready() && !chunk.skipped;
        step(&mut tally.packed_idle, u32::from(packed_idle), add);
        step(&mut tally.busy, u32::from(chunk.phase.is_busy()), add);
        step(&mut tally.prepared, u32::from(chunk.phase == Phase::Prepared), add);
        step(&mut tally.lost, u32::from(chunk.is_lost()), add);
        step(&mut tally.flash_chunks, u32::from(chunk.copies.contains(Copies::FLASH)), add);
        let pending = match chunk.phase {
            Phase::Packing => self.chunk_bytes.saturating_sub(self.packed_bytes_max),
            Phase::Writing | Phase::Releasing => self.chunk_bytes,
            Phase::Spilling => u64::from(chunk.ram.bytes),
            _ => 0,
        };
        step64(&mut tally.pending_bytes, pending, add);
        step64(&mut tally.kv_bytes, u64::from(chunk.has_buffer) * self.chunk_bytes, add);
        step64(&mut tally.ram_bytes, u64::from(has_ram) * u64::from(chunk.ram.bytes), add);
    }

    fn count_weights(&mut self, weights: &Weights, add: bool) {
        let tally = &mut self.tally;
        step(&mut tally.missing, u32::from(!weights.is_ready()), add);
        step(&mut tally.weights_left, u32::from(weights.is_evictable()), add);
        step(&mut tally.busy, u32::from(weights.phase.is_busy()), add);
        step(&mut tally.prepared, u32::from(weights.phase == Phase::Prepared), add);
        let is_out = !weights.resident || weights.phase == Phase::Releasing;
        let mut out = tally.weights_out.get();
        step64(&mut out, u64::from(is_out) * weights.read_ns.get(), add);
        tally.weights_out = Nanos::new(out);
        let pending = u64::from(weights.phase == Phase::Releasing) * weights.bytes;
        step64(&mut tally.pending_bytes, pending, add);
        step64(&mut tally.weight_bytes, u64::from(weights.has_buffer) * weights.bytes, add);
    }

    /// The tally and the layer counts from scratch, for [`super::Machine::check`].
    pub(super) fn recount(&mut self) -> (Tally, bool) {
        let kept = self.tally;
        self.tally = Tally::default();
        let mut layers_agree = true;
        for index in 0..self.weight_units() {
            let weights = *self.weights(LayerIndex::new(index));
            self.count_weights(&weights, true);
        }
        for layer in 0..self.kv_layers {
            let counts = self.layers[usize::from(layer)];
            self.layers[usize::from(layer)] =
                UnitCounts { used_at: counts.used_at, ..Default::default() };
            for column in 0..self.columns_max() {
                let id = chunk_id(layer, column);
                let chunk = *self.chunk(id);
                self.count_chunk(id, &chunk, true);
            }
            layers_agree &= self.layers[usize::from(layer)] == counts;
        }
        (core::mem::replace(&mut self.tally, kept), layers_agree)
    }
}

/// The path over which a chunk will come back.
enum Home {
    Memory,
    Ram,
    Flash,
}

fn home(chunk: &Chunk) -> Home {
    let leaves_flash_only = !chunk.copies.contains(Copies::RAM);
    match chunk.phase {
        Phase::Packing => Home::Ram,
        Phase::Writing | Phase::Spilling => Home::Flash,
        Phase::Releasing if chunk.copies.contains(Copies::RAM) => Home::Ram,
        Phase::Releasing if chunk.copies.contains(Copies::FLASH) => Home::Flash,
        _ if chunk.copies.contains(Copies::RESIDENT) || chunk.copies.is_empty() => Home::Memory,
        _ if leaves_flash_only => Home::Flash,
        _ => Home::Ram,
    }
}

pub(super) fn chunk_id(layer: u16, column: u16) -> ChunkId {
    ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(column) }
}

fn step(count: &mut u32, by: u32, add: bool) {
    let next = if add { count.checked_add(by) } else { count.checked_sub(by) };
    let Some(next) = next else {
        unreachable!("a unit's share is taken out once after it was put in")
    };
    *count = next;
}

fn step64(count: &mut u64, by: u64, add: bool) {
    let next = if add { count.checked_add(by) } else { count.checked_sub(by) };
    let Some(next) = next else {
        unreachable!("a unit's share is taken out once after it was put in")
    };
    *count = next;
}
