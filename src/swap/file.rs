//! The flash swap: fixed, sparse slots of one chunk of one layer in the swap file.
//!
//! ```text
//! chunk 0: layer 0 | layer 1 | ... | chunk 1: layer 0 | layer 1 | ...
//! slot = chunk * layers + layer
//! ```
//!
//! A slot is a multiple of 4 KiB, so its place follows from its name and raw chunks move straight
//! between the shared buffer and the file. Invariant: what a read gives back has the checksum that
//! its write computed, whether the file lost bits, lost the write or answered from another place;
//! and once a sync failed, nothing that the file holds is believed. All methods may be called from
//! any thread; two transfers of one slot at the same time are excluded by the unit's state. It
//! keeps no record of what is stored: [`FlashRecord`]s are kept by the residency table.

use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::kernel::Crc32c;
use crate::limits::{CHUNKS_PER_LAYER_MAX, IO_ALIGN, LAYERS_MAX};
use crate::port::Storage;
use crate::sync::{Counter, PartSet, Word};
use crate::units::{ChunkId, FlashRecord};
use core::fmt;

/// Shape of the swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Layers that hold KV.
    pub layers: u16,
    /// Chunks of one layer.
    pub chunks: u16,
    /// Bytes of a slot, a multiple of [`IO_ALIGN`]: the larger of a raw and a packed chunk.
    pub slot_bytes: u32,
}

impl Slots {
    /// Checks the fields against the limits.
    pub fn check(&self) -> Result<()> {
        if self.layers == 0 || self.layers > LAYERS_MAX {
            return Err(Error::new(Code::LimitExceeded, "swap file layers").with(self.layers));
        }
        if self.chunks == 0 || self.chunks > CHUNKS_PER_LAYER_MAX {
            return Err(Error::new(Code::LimitExceeded, "swap file chunks").with(self.chunks));
        }
        let bytes = self.slot_bytes as usize;
        if bytes == 0 || !bytes.is_multiple_of(IO_ALIGN) {
            return Err(Error::new(Code::InvalidArgument, "swap file slot bytes").with(bytes));
        }
        Ok(())
    }

    /// [`PartSet`]s that have one member a slot.
    const fn part_sets(&self) -> usize {
        (self.layers as usize * self.chunks as usize).div_ceil(PART_SET_SIZE as usize)
    }

    /// The slot of a chunk; 16 bits times 16 bits plus 16 bits fit into 32.
    fn index(&self, id: ChunkId) -> Result<u32> {
        if id.layer.get() >= self.layers {
            return Err(Error::new(Code::InvalidArgument, "swap file layer").with(id.layer.get()));
        }
        if id.chunk.get() >= self.chunks {
            return Err(Error::new(Code::InvalidArgument, "swap file chunk").with(id.chunk.get()));
        }
        Ok(u32::from(id.chunk.get()) * u32::from(self.layers) + u32::from(id.layer.get()))
    }

    /// First byte of a chunk's slot in the file; 32 bits times 32 bits fit into 64.
    pub fn offset(&self, id: ChunkId) -> Result<u64> {
        Ok(u64::from(self.index(id)?) * u64::from(self.slot_bytes))
    }
}

/// Sizes for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStats {
    /// Bytes of completed writes, which wear the flash.
    pub written_bytes: u64,
    /// Bytes of completed reads.
    pub read_bytes: u64,
    /// Slots that may take up room: written to, successfully or not, and not discarded since.
    pub slots_used: u64,
}

/// The flash swap.
pub struct SwapFile {
    storage: &'static dyn Storage,
    slots: Slots,
    checksum: Crc32c,
    /// [`SOUND`] or [`POISONED`].
    health: Word,
    used: &'static [PartSet],
    written_bytes: Counter,
    read_bytes: Counter,
    slots_used: Counter,
}

const SOUND: u32 = 0;
const POISONED: u32 = 1;

impl SwapFile {
    /// Adds what [`SwapFile::new`] places.
    pub fn size(sizer: &mut Sizer, slots: &Slots) -> Result<()> {
        slots.check()?;
        sizer.slice::<PartSet>(slots.part_sets())
    }

    /// A swap file of that shape; what the storage holds already is neither read nor changed.
    pub fn new(
        arena: &mut Arena,
        storage: &'static dyn Storage,
        slots: &Slots,
        checksum: Crc32c,
    ) -> Result<Self> {
        slots.check()?;
        let used = arena.slice(slots.part_sets(), |_| PartSet::new())?;
        Ok(SwapFile {
            storage,
            slots: *slots,
            checksum,
            health: Word::new(SOUND),
            used,
            written_bytes: Counter::new(),
            read_bytes: Counter::new(),
            slots_used: Counter::new(),
        })
    }

    /// The shape given at `new`.
    pub const fn slots(&self) -> Slots {
        self.slots
    }

    /// Sizes for reports.
    pub fn stats(&self) -> FileStats {
        FileStats {
            written_bytes: self.written_bytes.get(),
            read_bytes: self.read_bytes.get(),
            slots_used: self.slots_used.get(),
        }
    }

    /// Writes a whole raw chunk from its shared buffer. Address and length are multiples of
    /// [`IO_ALIGN`]. After an error the slot's content is undefined: an earlier record of it is
    /// lost too.
    pub fn write_raw(&self, id: ChunkId, chunk: &[u8]) -> Result<FlashRecord> {
        self.write(id, chunk, chunk.len(), false)
    }

    /// Writes the first `bytes` of an aligned scratch, whose rest up to the next multiple of
    /// [`IO_ALIGN`] is zeroed. Errors as for [`SwapFile::write_raw`].
    pub fn write_packed(
        &self,
        id: ChunkId,
        scratch: &mut [u8],
        bytes: usize,
    ) -> Result<FlashRecord> {
        let transfer = transfer_of(scratch, bytes)?;
        transfer[bytes..].fill(0);
        self.write(id, transfer, bytes, true)
    }

    /// Fills a shared buffer with a raw chunk. `Corrupt`, `ShortRead` or the storage's error, with
    /// the slot's offset in the file or the port's number; `chunk` is then undefined.
    pub fn read_raw(&self, id: ChunkId, chunk: &mut [u8], record: FlashRecord) -> Result<()> {
        if record.packed || chunk.len() != record.bytes as usize {
            return Err(RECORD.with(record.bytes));
        }
        self.read(id, chunk, record)
    }

    /// Reads a packed chunk into an aligned scratch and returns it. Errors as for
    /// [`SwapFile::read_raw`].
    pub fn read_packed<'a>(
        &self,
        id: ChunkId,
        scratch: &'a mut [u8],
        record: FlashRecord,
    ) -> Result<&'a [u8]> {
        if !record.packed {
            return Err(RECORD.with(record.bytes));
        }
        let bytes = record.bytes as usize;
        let transfer = transfer_of(scratch, bytes)?;
        self.read(id, transfer, record)?;
        Ok(&transfer[..bytes])
    }

    /// Gives a slot's room back to the file system; its content is lost in any case.
    pub fn discard(&self, id: ChunkId) -> Result<()> {
        let offset = self.slots.offset(id)?;
        self.ensure_sound()?;
        self.observe(self.storage.discard(offset, u64::from(self.slots.slot_bytes)))?;
        let (used, part) = self.used(id)?;
        if used.unclaim(part) {
            self.slots_used.sub(1);
        }
        Ok(())
    }

    /// Makes completed writes durable. A failure poisons the file for good: every call answers
    /// `Poisoned` from then on, and no record of it counts.
    pub fn sync(&self) -> Result<()> {
        self.ensure_sound()?;
        let result = self.storage.sync();
        if result.is_err() {
            self.health.store(POISONED);
        }
        result
    }

    /// Whether an earlier sync failed.
    pub fn is_poisoned(&self) -> bool {
        self.health.load() != SOUND
    }

    fn write(
        &self,
        id: ChunkId,
        transfer: &[u8],
        bytes: usize,
        packed: bool,
    ) -> Result<FlashRecord> {
        let offset = self.prepare(id, transfer)?;
        let bytes = u32::try_from(bytes).map_err(|_| TRANSFER)?;
        let crc = self.checksum.call(0, transfer);
        let (used, part) = self.used(id)?;
        if used.claim(part) {
            self.slots_used.add(1);
        }
        self.observe(self.storage.write_at(offset, transfer))?;
        // A sync that failed meanwhile may have dropped this write.
        self.ensure_sound()?;
        self.written_bytes.add(transfer.len() as u64);
        Ok(FlashRecord { bytes, crc, packed })
    }

    fn read(&self, id: ChunkId, transfer: &mut [u8], record: FlashRecord) -> Result<()> {
        let offset = self.prepare(id, transfer)?;
        let read = self.observe(self.storage.read_at(offset, transfer))?;
        self.ensure_sound()?;
        if read != transfer.len() {
            return Err(Error::new(Code::ShortRead, "swap file").with(offset));
        }
        if self.checksum.call(0, transfer) != record.crc {
            return Err(Error::new(Code::Corrupt, "swap file slot").with(offset));
        }
        self.read_bytes.add(transfer.len() as u64);
        Ok(())
    }

    /// Checks a transfer before it starts; the slot's offset.
    fn prepare(&self, id: ChunkId, transfer: &[u8]) -> Result<u64> {
        let offset = self.slots.offset(id)?;
        let bytes = transfer.len();
        if bytes == 0
            || bytes > self.slots.slot_bytes as usize
            || !bytes.is_multiple_of(IO_ALIGN)
            || !transfer.as_ptr().addr().is_multiple_of(IO_ALIGN)
        {
            return Err(TRANSFER.with(bytes));
        }
        self.ensure_sound()?;
        Ok(offset)
    }

    /// Where it is noted whether a slot is in use.
    fn used(&self, id: ChunkId) -> Result<(&PartSet, u32)> {
        let index = self.slots.index(id)?;
        Ok((&self.used[(index / PART_SET_SIZE) as usize], index % PART_SET_SIZE))
    }

    fn ensure_sound(&self) -> Result<()> {
        match self.is_poisoned() {
            false => Ok(()),
            true => Err(Error::new(Code::Poisoned, "swap file")),
        }
    }

    /// Passes a storage's answer on, and remembers when it says that a sync failed.
    fn observe<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error { code: Code::SyncFailed | Code::Poisoned, .. }) = result {
            self.health.store(POISONED);
        }
        result
    }
}

impl fmt::Debug for SwapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapFile")
            .field("slots", &self.slots)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The start of an aligned scratch that `bytes` are moved with.
fn transfer_of(scratch: &mut [u8], bytes: usize) -> Result<&mut [u8]> {
    let end = bytes.checked_next_multiple_of(IO_ALIGN).ok_or(SCRATCH)?;
    scratch.get_mut(..end).ok_or(SCRATCH)
}

const TRANSFER: Error = Error::new(Code::InvalidArgument, "swap file transfer");
const SCRATCH: Error = Error::new(Code::InvalidArgument, "swap file scratch");
const RECORD: Error = Error::new(Code::InvalidArgument, "swap file record");

/// Members of one [`PartSet`].
const PART_SET_SIZE: u32 = u64::BITS;

#[cfg(test)]
mod tests;
