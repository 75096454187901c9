//! What a `mz_handle` points to: one runtime, the leases that C holds, the last error.
//!
//! Invariant: a handle is used only between `open` and `close`, which refuses while another call is
//! inside or a lease is out. The `'static` references into the caller's memory end with `close`: it
//! is alone with the handle then, and drops the runtime, unless that is a model's, which drops it
//! itself.

use super::config;
use super::door::{self, Head, Object, Visit};
use super::holds::{Holds, Side};
use super::ports::{Company, LogPort, Owner, Tables};
use super::raw;
use super::tables::MzPorts;
use super::types::{MZ_OK, MzConfig, MzHandle};
use crate::arena::{Arena, Sizer};
use crate::codec::{RotaryPairs, Steps};
use crate::error::{Code, Error, Result};
use crate::limits::{CHUNK_TOKENS, CHUNKS_PER_LAYER_MAX};
use crate::port::lock::Lock;
use crate::port::{Park, Ports};
use crate::runtime::{self, Config, Report, Runtime};
use crate::units::{ByteCount, ChunkId, ChunkIndex, Kind, KvShape, LayerIndex, Nanos, TokenCount};
use core::ffi::c_int;
use core::mem::{ManuallyDrop, MaybeUninit};
use static_assertions::assert_impl_all;

/// An open handle.
#[repr(C)]
pub(super) struct Handle {
    head: Head,
    runtime: ManuallyDrop<Runtime>,
    /// Whether somebody else ends the runtime.
    is_lent: bool,
    holds: Lock<Holds>,
    last: Lock<Option<Error>>,
    /// Keeps the library's own ports open.
    owner: ManuallyDrop<Option<Visit<Owner>>>,
    log: LogPort,
    shape: KvShape,
    weight_units: u16,
    columns_max: u16,
}

// Calls may come from any thread.
assert_impl_all!(Handle: Sync);

// SAFETY: it begins with a head.
unsafe impl Object for Handle {
    const MAGIC: u32 = 0x6D7A_6348;
    const NAME: &'static str = "handle";
    const NOT_OPEN: &'static str = "handle is not open";
    const BUSY: &'static str = "handle: other calls are running";
}

/// A call inside a handle.
pub(super) type Call = Visit<Handle>;

/// Units whose leases are counted: weight units, then chunks.
fn units(config: &Config<'_>) -> Result<usize> {
    let chunks = usize::from(config.shape.layers) * usize::from(columns_max(config)?);
    Ok(config.weights.len() + chunks)
}

fn columns_max(config: &Config<'_>) -> Result<u16> {
    let tokens = config.options.context_tokens_max;
    u16::try_from(tokens.chunks())
        .ok()
        .filter(|columns| (1..=CHUNKS_PER_LAYER_MAX).contains(columns))
        .ok_or(Error::new(Code::LimitExceeded, "context tokens").with(tokens.get()))
}

/// Bytes that [`open`] needs, at any alignment.
pub(super) fn required_bytes(config: &Config<'_>) -> Result<usize> {
    let mut sizer = Sizer::new();
    place_sizes(&mut sizer, config)?;
    sizer.required()
}

fn place_sizes(sizer: &mut Sizer, config: &Config<'_>) -> Result<()> {
    sizer.value::<Tables>()?;
    runtime::size(sizer, config)?;
    size(sizer, config)
}

/// Opens a handle in the caller's memory, of which `places` must be no part.
///
/// # Safety
///
/// As for `mz_open`.
pub(super) unsafe fn open(
    config: *const MzConfig,
    ports: *const MzPorts,
    memory: *mut MaybeUninit<u8>,
    bytes: usize,
    places: &[(usize, usize)],
) -> Result<*mut MzHandle> {
    // SAFETY: the caller's promise.
    let (tables, company) = unsafe { Tables::read(ports) }?;
    let place = |config: &Config<'_>| {
        let required = required_bytes(config)?;
        if bytes < required {
            return Err(Error::new(Code::MemoryTooSmall, "memory").with(required));
        }
        if !config.options.workers.is_empty() && tables.threads.is_none() {
            return Err(Error::new(Code::InvalidArgument, "mz_ports.threads"));
        }
        raw::check_apart(memory, bytes, places)?;
        let steps = config.options.steps.unwrap_or_default();
        raw::check_apart(memory, bytes, &[raw::extent(steps.as_ptr(), steps.len())])?;
        for unit in config.weights {
            let extents = raw::extent(unit.extents.as_ptr(), unit.extents.len());
            raw::check_apart(memory, bytes, &[extents])?;
        }
        // SAFETY: the caller's promise; an error gives the memory back, and so does `close`.
        let memory = unsafe { raw::memory(memory, bytes) }?;
        place(config, tables, company, memory)
    };
    // SAFETY: the caller's promise.
    unsafe { config::with(config, place) }
}

fn place(
    config: &Config<'_>,
    tables: Tables,
    company: Company,
    memory: &'static mut [MaybeUninit<u8>],
) -> Result<*mut MzHandle> {
    let mut arena = Arena::new(memory)?;
    let tables: &'static Tables = arena.value(tables)?;
    let ports = Ports {
        model: &tables.model,
        swap: tables.swap.as_ref().map(|swap| swap as _),
        memory: &tables.memory,
        clock: &tables.clock,
        park: &tables.park,
        threads: tables.threads.as_ref().map(|threads| threads as _),
        meter: tables.meter.as_ref().map(|meter| meter as _),
    };
    let runtime = Runtime::place(config, &mut arena, ports)?;
    let handle = stand(&mut arena, config, runtime, &tables.park, company)?;
    let used = arena.seal();
    let mut sizer = Sizer::new();
    place_sizes(&mut sizer, config)?;
    assert_eq!(used, sizer.used(), "the size query and the placement agree");
    Ok(handle)
}

/// Adds what [`stand`] places.
pub(super) fn size(sizer: &mut Sizer, config: &Config<'_>) -> Result<()> {
    Holds::size(sizer, units(config)?)?;
    sizer.value::<Handle>()
}

/// An open handle on a runtime.
fn stand(
    arena: &mut Arena,
    config: &Config<'_>,
    runtime: Runtime,
    park: &'static dyn Park,
    company: Company,
) -> Result<*mut MzHandle> {
    let columns_max = columns_max(config)?;
    let holds = Holds::new(arena, units(config)?)?;
    let log = company.log;
    let handle: &'static mut Handle = arena.value(Handle {
        head: Head::new(),
        runtime: ManuallyDrop::new(runtime),
        is_lent: false,
        holds: Lock::new(holds, park),
        last: Lock::new(None, park),
        owner: ManuallyDrop::new(company.owner),
        log,
        shape: config.shape,
        weight_units: u16::try_from(config.weights.len()).unwrap_or(u16::MAX),
        columns_max,
    })?;
    handle.is_lent = company.is_lent;
    let stats = handle.runtime.stats();
    if stats.workers_unpinned > 0 {
        let about = Error::new(Code::Unsupported, "mz_worker.core");
        log.warn(c"some workers run on any core", about.with(stats.workers_unpinned));
    }
    log.info(c"opened", "weight units", config.weights.len() as u64);
    handle.open();
    Ok(core::ptr::from_mut(handle).cast())
}

/// As [`stand`], on a runtime that somebody else ends, after [`Handle::retire`].
#[cfg(feature = "infer")]
pub(super) fn lend(
    arena: &mut Arena,
    config: &Config<'_>,
    runtime: &Runtime,
    park: &'static dyn Park,
    log: LogPort,
) -> Result<*mut MzHandle> {
    let runtime = ManuallyDrop::into_inner(runtime.lend());
    stand(arena, config, runtime, park, Company { owner: None, log, is_lent: true })
}

/// Ends a handle and gives its memory back to the caller.
///
/// # Safety
///
/// As for [`door::find`].
pub(super) unsafe fn close(pointer: *mut MzHandle) -> Result<()> {
    let pointer = pointer.cast::<Handle>();
    {
        // SAFETY: the caller's promise.
        let handle = unsafe { door::find(pointer) }?;
        if handle.is_lent {
            return Err(Error::new(Code::BadState, "handle belongs to a model"));
        }
        handle.retire()?;
        handle.log.info(c"closed", "", 0);
    }
    // SAFETY: nobody is inside, none can come in since it was shut, and no lease is out, so this is
    // the only reference; as it is not found any more, this happens once.
    unsafe {
        ManuallyDrop::drop(&mut (*pointer).runtime);
        ManuallyDrop::drop(&mut (*pointer).owner);
    }
    Ok(())
}

impl Handle {
    /// Takes nobody in any more, if nobody is inside and no lease is out.
    pub(super) fn retire(&self) -> Result<()> {
        self.shut()?;
        if !self.holds.lock().is_empty() {
            self.reopen();
            return Err(Error::new(Code::Leased, "handle"));
        }
        self.end();
        Ok(())
    }

    /// The runtime.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Remembers why a call failed.
    pub(super) fn note(&self, error: Error) {
        *self.last.lock() = Some(error);
        self.log.failed(error);
    }

    /// Frees memory; says what came of it.
    pub(super) fn evict(&self, bytes: ByteCount, deadline: Option<Nanos>) -> Result<Report> {
        let done = self.runtime.evict(bytes, deadline)?;
        if let Some(error) = done.booked.error {
            *self.last.lock() = Some(error);
            self.log.warn(c"a way out of memory was closed", error);
        }
        self.log.info(c"evicted", "bytes freed", done.booked.freed.get());
        Ok(done)
    }

    /// Why the last call that failed did.
    pub(super) fn last(&self) -> Option<Error> {
        *self.last.lock()
    }

    fn kv_layer(&self, layer: u32) -> Result<LayerIndex> {
        self.layer_below(layer, self.shape.layers)
    }

    fn layer_below(&self, layer: u32, end: u16) -> Result<LayerIndex> {
        let index = u16::try_from(layer).ok().filter(|layer| *layer < end);
        index.map(LayerIndex::new).ok_or(Error::new(Code::InvalidArgument, "layer").with(layer))
    }

    /// The unit of a chunk in [`Holds`].
    fn unit(&self, id: ChunkId) -> usize {
        let row = id.chunk.index() * usize::from(self.shape.layers);
        usize::from(self.weight_units) + row + id.layer.index()
    }

    /// The first chunks of a layer.
    fn chunk_units(&self, layer: LayerIndex, count: u16) -> impl Iterator<Item = usize> + Clone {
        (0..count).map(move |chunk| self.unit(ChunkId { layer, chunk: ChunkIndex::new(chunk) }))
    }

    /// Waits at the gate of a weight unit and leases it.
    pub(super) fn lease_weights<S: Side>(&'static self, layer: u32) -> Result<S::Place> {
        let layer = self.layer_below(layer, self.weight_units)?;
        self.holds.lock().check_side::<S>(layer.index())?;
        let lease = S::weights(&self.runtime, layer)?;
        self.holds.lock().add_read::<S>(layer.index(), || Ok(lease))
    }

    /// Ends one lease of a weight unit.
    pub(super) fn release_weights(&self, layer: u32) -> Result<()> {
        let layer = self.layer_below(layer, self.weight_units)?;
        self.holds.lock().end_reads(core::iter::once(layer.index()))
    }

    /// Waits at the gate of a layer's chunks and leases them all, if there is room to say where
    /// they lie. `tell` gets their number, then `put` each one.
    pub(super) fn lease_kv<S: Side>(
        &'static self,
        layer: u32,
        room: usize,
        tell: impl FnOnce(u16),
        mut put: impl FnMut(u16, S::Place),
    ) -> Result<()> {
        let layer = self.kv_layer(layer)?;
        let count = self.runtime.chunks();
        tell(count);
        if usize::from(count) > room {
            return Err(Error::new(Code::MemoryTooSmall, "spans").with(count));
        }
        self.runtime.wait(layer, Kind::Kv)?;
        let mut holds = self.holds.lock();
        for chunk in 0..count {
            let id = ChunkId { layer, chunk: ChunkIndex::new(chunk) };
            match holds.add_read::<S>(self.unit(id), || S::kv(&self.runtime, id)) {
                Ok(place) => put(chunk, place),
                Err(error) => {
                    // Those before were leased a moment ago under the same lock.
                    let undone = holds.end_reads(self.chunk_units(layer, chunk));
                    return Err(undone.err().unwrap_or(error));
                }
            }
        }
        Ok(())
    }

    /// Ends one lease of each of a layer's first `count` chunks.
    pub(super) fn release_kv(&self, layer: u32, count: u32) -> Result<()> {
        let layer = self.kv_layer(layer)?;
        let count = u16::try_from(count)
            .ok()
            .filter(|count| *count <= self.columns_max)
            .ok_or(Error::new(Code::InvalidArgument, "count").with(count))?;
        self.holds.lock().end_reads(self.chunk_units(layer, count))
    }

    fn chunk_of(&self, layer: LayerIndex, token: u32, chunks: u16) -> Result<ChunkId> {
        let chunk = u16::try_from(token / u32::from(CHUNK_TOKENS))
            .ok()
            .filter(|chunk| *chunk < chunks)
            .ok_or(Error::new(Code::InvalidArgument, "token").with(token))?;
        Ok(ChunkId { layer, chunk: ChunkIndex::new(chunk) })
    }

    /// Waits at the gate of a layer's chunks and takes the one of a token that is not committed
    /// yet, to write to it.
    pub(super) fn lease_tail<S: Side>(
        &'static self,
        layer: u32,
        token: u32,
    ) -> Result<(u16, S::Place)> {
        let layer = self.kv_layer(layer)?;
        let id = self.chunk_of(layer, token, self.runtime.chunks())?;
        if token < self.runtime.tokens().get() {
            // Copies of a full chunk outside memory would not get the change.
            return Err(Error::new(Code::InvalidArgument, "token is committed").with(token));
        }
        self.runtime.wait(layer, Kind::Kv)?;
        let exclusive = || S::kv_mut(&self.runtime, id);
        let place = self.holds.lock().add_write::<S>(self.unit(id), exclusive)?;
        Ok((id.chunk.get(), place))
    }

    /// Ends one lease of a chunk to write to.
    pub(super) fn release_tail(&self, layer: u32, token: u32) -> Result<()> {
        let id = self.chunk_of(self.kv_layer(layer)?, token, self.columns_max)?;
        self.holds.lock().end_write(self.unit(id))
    }

    /// Query energy of a layer's K channels, of that many tokens.
    pub(super) fn add_query_energy(
        &self,
        layer: u32,
        pairs: RotaryPairs,
        tokens: u32,
        energies: &[f32],
    ) -> Result<c_int> {
        let layer = self.kv_layer(layer)?;
        let channels = usize::from(self.shape.kv_heads) * usize::from(self.shape.head_dim);
        if energies.len() != channels {
            return Err(Error::new(Code::InvalidArgument, "energies").with(energies.len()));
        }
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
        self.runtime.add_query_energy(layer, pairs, tokens, &|channel| energies[channel]);
        Ok(MZ_OK)
    }

    /// Writes the frozen step profile; how many bytes it took.
    pub(super) fn write_steps(&self, into: &mut [u8]) -> Result<usize> {
        let steps = self.runtime.steps().ok_or(Error::new(Code::BadState, "steps"))?;
        steps.write(into)?;
        Ok(Steps::serialised_bytes(&self.shape))
    }

    /// Ends all leases.
    pub(super) fn release_all(&self) {
        self.holds.lock().end_all();
    }

    /// Cuts the context. Chunks that would be given up must not be leased: waiting for the lease's
    /// end could take for ever.
    pub(super) fn truncate(&self, tokens: u32) -> Result<()> {
        let tokens = TokenCount::new(tokens);
        let first = usize::try_from(tokens.chunks()).unwrap_or(usize::MAX);
        let kept = usize::from(self.columns_max).min(first);
        let per_chunk = usize::from(self.shape.layers);
        let chunks = usize::from(self.weight_units);
        let end = chunks + usize::from(self.columns_max) * per_chunk;
        if self.holds.lock().has_any(chunks + kept * per_chunk..end) {
            return Err(Error::new(Code::Leased, "chunks beyond the new end"));
        }
        self.runtime.truncate(tokens)
    }
}
