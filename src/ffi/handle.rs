//! What a `mz_handle` points to: one runtime, the leases that C holds, the last error.
//!
//! ```text
//! not open -> open, n calls inside -> closed          (calls: 0.. -> CLOSED)
//! ```
//!
//! Invariant: a handle is used only between `open` and `close`, which waits for nobody: it refuses
//! while another call is inside or a lease is out. A word that depends on the handle's own address
//! tells it from other memory. The `'static` references into the caller's memory end with `close`:
//! it is alone with the handle then, and drops the runtime.

use super::config;
use super::holds::Holds;
use super::ports::Tables;
use super::raw;
use super::tables::MzPorts;
use super::types::{MZ_OK, MzConfig, MzHandle};
use crate::arena::{Arena, Sizer};
use crate::codec::{RotaryPairs, Steps};
use crate::error::{Code, Error, Result};
use crate::limits::{CHUNK_TOKENS, CHUNKS_PER_LAYER_MAX};
use crate::port::lock::Lock;
use crate::port::{Ports, Region};
use crate::runtime::{self, Config, Runtime};
use crate::sync::Word;
use crate::units::{ChunkId, ChunkIndex, Kind, KvShape, LayerIndex, TokenCount};
use core::ffi::c_int;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use static_assertions::assert_impl_all;

/// What an open handle begins with, mixed with its address.
const MAGIC: u32 = 0x6D7A_6348;
/// Count of calls inside, for a handle that takes none any more.
const CLOSED: u32 = 1 << 31;

/// An open handle.
#[repr(C)]
pub(super) struct Handle {
    /// First, so that it is what is looked at before anything else is believed.
    magic: Word,
    calls: Word,
    runtime: ManuallyDrop<Runtime>,
    holds: Lock<Holds>,
    last: Lock<Option<Error>>,
    shape: KvShape,
    weight_units: u16,
    columns_max: u16,
}

// Calls may come from any thread.
assert_impl_all!(Handle: Sync);

const NOT_OPEN: Error = Error::new(Code::BadState, "handle is not open");

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
    Holds::size(sizer, units(config)?)?;
    sizer.value::<Handle>()
}

/// Opens a handle in the caller's memory.
///
/// # Safety
///
/// As for `mz_open`.
pub(super) unsafe fn open(
    config: *const MzConfig,
    ports: *const MzPorts,
    memory: *mut MaybeUninit<u8>,
    bytes: usize,
) -> Result<*mut MzHandle> {
    // SAFETY: the caller's promise.
    let tables = unsafe { Tables::read(ports) }?;
    let place = |config: &Config<'_>| {
        let required = required_bytes(config)?;
        if bytes < required {
            return Err(Error::new(Code::MemoryTooSmall, "memory").with(required));
        }
        // SAFETY: the caller's promise; an error gives the memory back, and so does `close`.
        let memory = unsafe { raw::memory(memory, bytes) }?;
        place(config, tables, memory)
    };
    // SAFETY: the caller's promise.
    unsafe { config::with(config, place) }
}

fn place(
    config: &Config<'_>,
    tables: Tables,
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
        threads: None,
        meter: None,
    };
    let runtime = Runtime::place(config, &mut arena, ports)?;
    let holds = Holds::new(&mut arena, units(config)?)?;
    let handle = arena.value(Handle {
        magic: Word::new(0),
        calls: Word::new(0),
        runtime: ManuallyDrop::new(runtime),
        holds: Lock::new(holds, &tables.park),
        last: Lock::new(None, &tables.park),
        shape: config.shape,
        weight_units: u16::try_from(config.weights.len()).unwrap_or(u16::MAX),
        columns_max: columns_max(config)?,
    })?;
    let used = arena.seal();
    let mut sizer = Sizer::new();
    place_sizes(&mut sizer, config)?;
    assert_eq!(used, sizer.used(), "the size query and the placement agree");
    handle.magic.store(magic_at(handle));
    Ok(core::ptr::from_mut(handle).cast())
}

fn magic_at(handle: *const Handle) -> u32 {
    let address = handle.addr() as u64;
    let folded = (address >> 32 ^ address) & u64::from(u32::MAX);
    MAGIC ^ u32::try_from(folded).unwrap_or(0)
}

/// An open handle at that address, or an error.
///
/// # Safety
///
/// If the pointer is not null and aligned, a `u32` can be read there.
unsafe fn find(handle: *const MzHandle) -> Result<*const Handle> {
    let handle = handle.cast::<Handle>();
    if handle.is_null() || !handle.is_aligned() {
        return Err(Error::new(Code::InvalidArgument, "handle").with(handle.addr()));
    }
    // SAFETY: not null and aligned; the caller promises the rest. A handle begins with this word.
    let magic = unsafe { &*handle.cast::<Word>() };
    if magic.load() == magic_at(handle) { Ok(handle) } else { Err(NOT_OPEN) }
}

/// A call inside a handle.
pub(super) struct Call(&'static Handle);

impl Call {
    /// Goes in.
    ///
    /// # Safety
    ///
    /// If the pointer is not null and aligned, a `u32` can be read there; and if that is the word
    /// of an open handle, the handle's memory is as `open` left it.
    pub(super) unsafe fn enter(handle: *const MzHandle) -> Result<Call> {
        // SAFETY: the caller's promise.
        let handle = unsafe { find(handle) }?;
        // SAFETY: the word says that this is a handle, which the caller promises is true. `close`
        // does not end it while the count below is above zero.
        let handle: &'static Handle = unsafe { &*handle };
        loop {
            let calls = handle.calls.load();
            if calls >= CLOSED - 1 {
                return Err(NOT_OPEN);
            }
            if handle.calls.replace(calls, calls + 1) {
                return Ok(Call(handle));
            }
        }
    }

    /// The handle, for as long as leases of it may be kept: `close` refuses while there are any.
    pub(super) fn handle(&self) -> &'static Handle {
        self.0
    }
}

impl Deref for Call {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        self.0
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.calls.decrement();
    }
}

/// Ends a handle and gives its memory back to the caller.
///
/// # Safety
///
/// As for [`Call::enter`].
pub(super) unsafe fn close(pointer: *mut MzHandle) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { find(pointer) }?;
    let pointer = pointer.cast::<Handle>();
    {
        // SAFETY: the word says that this is a handle, which the caller promises is true.
        let handle = unsafe { &*pointer };
        if !handle.calls.replace(0, CLOSED) {
            return Err(Error::new(Code::BadState, "handle: other calls are running"));
        }
        if !handle.holds.lock().is_empty() {
            handle.calls.store(0);
            return Err(Error::new(Code::Leased, "handle"));
        }
        handle.magic.store(0);
    }
    // SAFETY: no call is inside, none can come in since `calls` was CLOSED, and no lease is out,
    // so this is the only reference; the word being zero now, it happens once.
    unsafe { ManuallyDrop::drop(&mut (*pointer).runtime) };
    Ok(())
}

impl Handle {
    /// The runtime.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Remembers why a call failed.
    pub(super) fn note(&self, error: Error) {
        *self.last.lock() = Some(error);
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
    pub(super) fn lease_weights(&'static self, layer: u32) -> Result<Region> {
        let layer = self.layer_below(layer, self.weight_units)?;
        let lease = self.runtime.weights(layer)?;
        self.holds.lock().add_read(layer.index(), || Ok(lease))
    }

    /// Ends one lease of a weight unit.
    pub(super) fn release_weights(&self, layer: u32) -> Result<()> {
        let layer = self.layer_below(layer, self.weight_units)?;
        self.holds.lock().end_reads(core::iter::once(layer.index()))
    }

    /// Waits at the gate of a layer's chunks and leases them all, if there is room to say where
    /// they lie. `tell` gets their number, then `put` each one.
    pub(super) fn lease_kv(
        &'static self,
        layer: u32,
        room: usize,
        tell: impl FnOnce(u16),
        mut put: impl FnMut(u16, Region),
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
            match holds.add_read(self.unit(id), || self.runtime.kv(id)) {
                Ok(region) => put(chunk, region),
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
    pub(super) fn lease_tail(&'static self, layer: u32, token: u32) -> Result<(u16, Region)> {
        let layer = self.kv_layer(layer)?;
        let id = self.chunk_of(layer, token, self.runtime.chunks())?;
        if token < self.runtime.tokens().get() {
            // Copies of a full chunk outside memory would not get the change.
            return Err(Error::new(Code::InvalidArgument, "token is committed").with(token));
        }
        self.runtime.wait(layer, Kind::Kv)?;
        let region = self.holds.lock().add_write(self.unit(id), || self.runtime.kv_mut(id))?;
        Ok((id.chunk.get(), region))
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
