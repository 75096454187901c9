//! What compute uses: a pass begins, takes leases layer by layer, and commits.

use super::Runtime;
use super::open::{Core, Shared};
use crate::error::{Code, Error, Result};
use crate::port::buffers::{DeviceExclusive, DeviceLease, Exclusive, Lease};
use crate::port::lock::Guard;
use crate::state::{Event, Tally};
use crate::swap::file::FileStats;
use crate::swap::stack::StackStats;
use crate::units::{ChunkId, Kind, LayerIndex, TokenCount, Unit};
use bitflags::bitflags;

/// Numbers for people and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Tokens in the context.
    pub tokens: TokenCount,
    /// How many of them outlive the process, by the last checkpoint.
    pub durable: TokenCount,
    /// Sums over all units.
    pub tally: Tally,
    /// The RAM swap.
    pub ram: StackStats,
    /// The swap file, if there is one.
    pub flash: Option<FileStats>,
    /// Bytes that the memory port gave and has not got back, segments included.
    pub allocated_bytes: u64,
    /// Whether the model file is read past the page cache.
    pub model_is_direct: bool,
    /// The same for the swap file.
    pub swap_is_direct: Option<bool>,
    /// Worker threads that got the core they want, when they last asked.
    pub workers_pinned: usize,
    /// Worker threads that run anywhere because they did not get it: it is offline, or outside of
    /// the process's cpuset.
    pub workers_unpinned: usize,
}

bitflags! {
    /// What may happen at once while a pass restores. All of it, but for measurements.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Overlap: u32 {
        /// Taking buffers, and filling those that were taken.
        const ALLOCATE_RELOAD = 1;
        /// Filling buffers, and computing on the layers that are complete.
        const RELOAD_PREFILL = 2;
    }
}

impl Runtime {
    /// What may happen at once in restores from now on.
    pub fn set_overlap(&self, overlap: Overlap) {
        self.shared.overlap.store(overlap.bits());
    }

    /// Begins a pass after which the context may have up to `tokens`: adds chunks for them and
    /// begins to restore whatever is not in memory. Compute follows through [`Runtime::wait`].
    /// Evictions and checkpoints that are running are stopped first, and so are those that begin
    /// before the pass does.
    pub fn begin_pass(&self, tokens: TokenCount) -> Result<()> {
        let overlap = Overlap::from_bits_truncate(self.shared.overlap.load());
        let allocate_first = !overlap.contains(Overlap::ALLOCATE_RELOAD);
        self.when_idle(Event::Restore { tokens, allocate_first })?;
        match overlap.contains(Overlap::RELOAD_PREFILL) {
            true => Ok(()),
            false => self.finish_restore(),
        }
    }

    /// Brings everything back and returns when it is there.
    pub fn restore(&self) -> Result<()> {
        self.begin_pass(self.tokens())?;
        self.finish_restore()
    }

    /// Waits until the running restore ends, if there is one.
    pub fn finish_restore(&self) -> Result<()> {
        self.wait_idle();
        let core = self.shared.core.lock();
        match core.restore_error {
            Some(error) => Err(error),
            None if core.machine.tally().missing > 0 => {
                Err(Error::new(Code::Cancelled, "restore: units were evicted since"))
            }
            None => Ok(()),
        }
    }

    /// Stops a restore: each unit is then as it was before, or fully restored.
    pub fn cancel_restore(&self) -> Result<()> {
        self.shared.event(Event::Cancel)?;
        self.wait_idle();
        Ok(())
    }

    /// Compute wrote K and V of all tokens below `tokens` in every layer. `Cancelled` when chunks
    /// it wrote to were evicted meanwhile: the context is as before the pass, run it again.
    pub fn commit(&self, tokens: TokenCount) -> Result<()> {
        self.shared.event(Event::Commit(tokens))
    }

    /// Cuts the context. Chunks beyond its new end are given up.
    pub fn truncate(&self, tokens: TokenCount) -> Result<()> {
        self.when_idle(Event::Truncate(tokens))?;
        self.wait_idle();
        Ok(())
    }

    /// Tokens in the context.
    pub fn tokens(&self) -> TokenCount {
        self.shared.core.lock().machine.tokens()
    }

    /// Chunks of each layer: those of the context, and those that a pass added.
    pub fn chunks(&self) -> u16 {
        self.shared.core.lock().machine.columns()
    }

    /// The first token of a chunk that the storage lost, if that happened: truncate to it and
    /// compute the rest again.
    pub fn lost(&self) -> Option<TokenCount> {
        self.shared.core.lock().machine.lost().map(TokenCount::new)
    }

    /// Waits at the gate of a weight unit and leases it.
    pub fn weights(&self, layer: LayerIndex) -> Result<Lease<'_>> {
        self.wait(layer, Kind::Weights)?;
        self.shared.used(layer)?;
        let slot = self.shared.slot(Unit::Weights(layer));
        self.shared.buffers.lease(slot).map_err(not_resident)
    }

    /// Leases a chunk. Wait at the layer's gate before.
    pub fn kv(&self, id: ChunkId) -> Result<Lease<'_>> {
        self.shared.buffers.lease(self.shared.kv_slot(id)?).map_err(not_resident)
    }

    /// Takes a chunk to write new tokens to it. Wait at the layer's gate before.
    pub fn kv_mut(&self, id: ChunkId) -> Result<Exclusive<'_>> {
        self.shared.buffers.lock(self.shared.kv_slot(id)?).map_err(not_resident)
    }

    /// As [`Runtime::weights`], for an accelerator: it holds the lease until its commands have run.
    /// Waits while the host uses a unit that both cannot see at once. Leases of the device outlive
    /// the call that took them; one that outlives the runtime keeps its buffer for good.
    pub fn weights_on_device(&self, layer: LayerIndex) -> Result<DeviceLease<'static>> {
        self.wait(layer, Kind::Weights)?;
        self.shared.used(layer)?;
        self.lease_device(self.shared.slot(Unit::Weights(layer)))
    }

    /// As [`Runtime::kv`], for an accelerator.
    pub fn kv_on_device(&self, id: ChunkId) -> Result<DeviceLease<'static>> {
        self.lease_device(self.shared.kv_slot(id)?)
    }

    /// As [`Runtime::kv_mut`], for an accelerator.
    pub fn kv_on_device_mut(&self, id: ChunkId) -> Result<DeviceExclusive<'static>> {
        self.shared.buffers.lock_device(self.shared.kv_slot(id)?).map_err(not_resident)
    }

    fn lease_device(&self, slot: usize) -> Result<DeviceLease<'static>> {
        let shared = self.shared;
        let leased = shared.patiently(|| shared.buffers.lease_device(slot));
        leased.map_err(not_resident)
    }

    /// Numbers for people and reports.
    pub fn stats(&self) -> Stats {
        let pins = || self.workers.iter().map(|worker| &worker.pin);
        let core = self.shared.core.lock();
        Stats {
            tokens: core.machine.tokens(),
            durable: core.machine.durable(),
            tally: *core.machine.tally(),
            ram: core.stack.stats(),
            flash: self.shared.swap.as_ref().map(|swap| swap.stats()),
            allocated_bytes: self.shared.buffers.allocated_bytes(),
            model_is_direct: self.shared.ports.model.is_direct(),
            swap_is_direct: self.shared.ports.swap.map(|swap| swap.is_direct()),
            workers_pinned: pins().filter(|pin| pin.is_pinned()).count(),
            workers_unpinned: pins().filter(|pin| pin.is_refused()).count(),
        }
    }

    /// Recounts all books; an error names the first relation that does not hold.
    pub fn check(&self) -> Result<()> {
        let mut core = self.shared.core.lock();
        core.machine.check()?;
        core.stack.check()
    }

    /// Brings an event that needs an idle machine: stops evictions and checkpoints, those too that
    /// begin while it waits, and lets a restore run to its end.
    fn when_idle(&self, event: Event) -> Result<()> {
        let shared = self.shared;
        // Without workers, nobody gives memory back but those who wait.
        let is_inline = self.is_inline();
        loop {
            let seen = shared.work.load();
            let core = shared.core.lock();
            if core.machine.is_idle() && !(is_inline && core.owes_memory()) {
                // Under the lock that it was seen under: nothing comes in between.
                return shared.event_on(core, event);
            }
            match core.machine.to_stop() {
                Some(stop) => shared.event_on(core, stop)?,
                None => {
                    drop(core);
                    shared.pass_time(seen, None);
                }
            }
        }
    }

    pub(super) fn wait_idle(&self) {
        drop(self.when_at_rest());
    }

    /// For what nothing may come before.
    pub(super) fn when_at_rest(&self) -> Guard<'_, Core> {
        loop {
            let seen = self.shared.work.load();
            let core = self.shared.core.lock();
            if core.is_at_rest() {
                return core;
            }
            drop(core);
            self.shared.pass_time(seen, None);
        }
    }
}

/// A unit that is leased exclusively or absent after its gate was open was taken by an eviction.
/// The port's own failures are none.
fn not_resident(error: Error) -> Error {
    match error.code {
        Code::BadState | Code::Leased => Error { code: Code::Cancelled, ..error },
        _ => error,
    }
}

impl Shared {
    fn kv_slot(&self, id: ChunkId) -> Result<usize> {
        let core = self.core.lock();
        match core.machine.chunk(id) {
            Some(_) => Ok(self.slot(Unit::Kv(id))),
            None => Err(Error::new(Code::InvalidArgument, "chunk").with(id.chunk.get())),
        }
    }

    /// Gives every buffer back; only when no thread works any more.
    pub(super) fn release_all(&self) {
        let segments = usize::from(self.segments.segments);
        for slot in 0..self.segments.first_slot + segments {
            // Absent slots refuse, and so do those of which a lease of the device is still held.
            let _ = self.buffers.release(slot);
        }
    }
}
