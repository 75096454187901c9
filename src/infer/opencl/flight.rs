//! What the device is using: leases of the layers whose commands have not run yet.
//!
//! Invariant: a lease is dropped only after the last command that was enqueued under it has run, or
//! the whole queue was waited for. A bounded number of layers is under way, so that an eviction
//! during a long pass finds the first layers free again.

use crate::arena::{Arena, Sizer};
use crate::error::Result;
use crate::infer::DeviceMemory;
use crate::limits::{BATCH_TOKENS_MAX, CHUNK_TOKENS};
use crate::port::DeviceRegion;
use crate::port::buffers::{DeviceExclusive, DeviceLease};
use crate::port::opencl::Event;
use crate::units::{ChunkId, ChunkIndex, LayerIndex};
use core::mem::ManuallyDrop;
use core::ops::Range;

/// Layers that may be enqueued and not done: enough that the device never waits for the host.
const LAYERS_AT_ONCE: usize = 8;

/// Chunks that the tokens of one batch fall into.
const TAILS_MAX: usize = BATCH_TOKENS_MAX / CHUNK_TOKENS as usize + 1;

type Held = ManuallyDrop<Option<DeviceLease<'static>>>;

/// One layer under way.
struct Layer {
    weights: Option<DeviceLease<'static>>,
    tails: [Option<DeviceExclusive<'static>>; TAILS_MAX],
    /// Dropped by hand, since the arena drops nothing.
    chunks: &'static mut [Held],
    done: Option<Event>,
}

impl Layer {
    fn release(&mut self) {
        self.done = None;
        self.weights = None;
        self.tails = [const { None }; TAILS_MAX];
        for chunk in self.chunks.iter_mut() {
            drop(chunk.take());
        }
    }
}

pub(super) struct Flight {
    layers: [Layer; LAYERS_AT_ONCE],
    /// Addresses or offsets of the chunks of the layer that is being enqueued.
    entries: &'static mut [u64],
}

/// A layer's chunks, leased.
pub(super) struct Chunks<'a> {
    /// What the table has to hold.
    pub(super) entries: &'a [u64],
    /// Those of the chunks that are written to.
    pub(super) tails: &'a [u64],
    /// The buffer that all of them are in, where there is no shared memory.
    pub(super) pool: Option<DeviceRegion>,
}

impl Flight {
    pub(super) fn size(sizer: &mut Sizer, columns: usize) -> Result<()> {
        for _ in 0..LAYERS_AT_ONCE {
            sizer.slice::<Held>(columns)?;
        }
        sizer.slice::<u64>(columns)
    }

    pub(super) fn new(arena: &mut Arena, columns: usize) -> Result<Flight> {
        let mut chunks: [&'static mut [Held]; LAYERS_AT_ONCE] = Default::default();
        for chunks in &mut chunks {
            *chunks = arena.slice(columns, |_| ManuallyDrop::new(None))?;
        }
        let layers = chunks.map(|chunks| Layer {
            weights: None,
            tails: [const { None }; TAILS_MAX],
            chunks,
            done: None,
        });
        Ok(Flight { layers, entries: arena.slice(columns, |_| 0)? })
    }

    fn layer(&mut self, unit: LayerIndex) -> &mut Layer {
        &mut self.layers[unit.index() % LAYERS_AT_ONCE]
    }

    /// Waits for a unit of weights and holds it. The unit that had its place is waited for first.
    pub(super) fn weights(
        &mut self,
        memory: &dyn DeviceMemory,
        unit: LayerIndex,
    ) -> Result<DeviceRegion> {
        let place = self.layer(unit);
        if let Some(done) = place.done.take() {
            done.wait()?;
        }
        place.release();
        let lease = memory.weights(unit)?;
        let region = lease.region();
        place.weights = Some(lease);
        Ok(region)
    }

    /// Waits for a layer's chunks and holds the first `count`; `tails` are those written to.
    pub(super) fn chunks(
        &mut self,
        memory: &dyn DeviceMemory,
        unit: LayerIndex,
        count: usize,
        tails: Range<usize>,
    ) -> Result<Chunks<'_>> {
        memory.wait_kv(unit)?;
        let place = &mut self.layers[unit.index() % LAYERS_AT_ONCE];
        let mut pool = None;
        let entries = &mut self.entries[..count];
        for (column, entry) in entries.iter_mut().enumerate() {
            let chunk = ChunkIndex::new(u16::try_from(column).unwrap_or(u16::MAX));
            let id = ChunkId { layer: unit, chunk };
            let region = if tails.contains(&column) {
                let tail = memory.kv_mut(id)?;
                place.tails[column - tails.start].insert(tail).region()
            } else {
                let lease = memory.kv(id)?;
                place.chunks[column].insert(lease).region()
            };
            *entry = region.entry();
            pool = Some(region).filter(|region| region.buffer != 0);
        }
        Ok(Chunks { entries, tails: &entries[tails], pool })
    }

    /// The last command that uses what a unit's place holds, unless it has run.
    pub(super) fn until(&mut self, unit: LayerIndex, done: Option<Event>) {
        self.layer(unit).done = done;
    }

    /// Lets everything go; the queue was waited for.
    pub(super) fn release_all(&mut self) {
        for layer in &mut self.layers {
            layer.release();
        }
    }
}

impl Drop for Flight {
    /// The owner has waited for the queue.
    fn drop(&mut self) {
        self.release_all();
    }
}
