//! The flash swap: fixed, sparse slots of one chunk of one layer in the swap file, two a chunk.
//!
//! ```text
//! head: what a checkpoint says, see `manifest`
//! chunk 0: layer 0: side 0 | side 1 | layer 1: side 0 | side 1 | ... | chunk 1: layer 0: ...
//! place = chunk * layers + layer, slot = 2 * place + side
//! ```
//!
//! A slot is a multiple of 4 KiB, so its place follows from its name and raw chunks move straight
//! between the shared buffer and the file. A slot that the last checkpoint names is *kept*: the
//! chunk's next copy goes to the other side, so nothing that happens between two checkpoints harms
//! the earlier one. Invariant: what a read gives back has the checksum that
//! its write computed, whether the file lost bits, lost the write or answered from another place;
//! and once a sync failed, nothing that the file holds is believed. All methods may be called from
//! any thread; two transfers of one slot at the same time are excluded by the unit's state. It
//! keeps no record of what is stored: [`FlashRecord`]s are the residency table's.

use super::manifest;
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

    /// Chunks of all layers.
    pub(super) const fn places(&self) -> usize {
        self.layers as usize * self.chunks as usize
    }

    /// [`PartSet`]s that have one member a chunk.
    const fn part_sets(&self) -> usize {
        self.places().div_ceil(PART_SET_SIZE as usize)
    }

    /// The place of a chunk; 16 bits times 16 bits plus 16 bits fit into 32.
    fn index(&self, id: ChunkId) -> Result<u32> {
        if id.layer.get() >= self.layers {
            return Err(Error::new(Code::InvalidArgument, "swap file layer").with(id.layer.get()));
        }
        if id.chunk.get() >= self.chunks {
            return Err(Error::new(Code::InvalidArgument, "swap file chunk").with(id.chunk.get()));
        }
        Ok(u32::from(id.chunk.get()) * u32::from(self.layers) + u32::from(id.layer.get()))
    }

    /// First byte of one of a chunk's two slots in the file; 33 bits times 32 bits fit into 64, and
    /// limits keep the head small.
    pub fn offset(&self, id: ChunkId, side: Side) -> Result<u64> {
        let slot = 2 * u64::from(self.index(id)?) + side as u64;
        Ok(manifest::head_bytes(self) + slot * u64::from(self.slot_bytes))
    }
}

/// The two slots of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    /// The one in front.
    #[default]
    First = 0,
    /// The one behind it.
    Second = 1,
}

impl Side {
    /// The other one.
    pub const fn other(self) -> Side {
        match self {
            Side::First => Side::Second,
            Side::Second => Side::First,
        }
    }
}

/// Sizes for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStats {
    /// Bytes of completed writes, which wear the flash.
    pub written_bytes: u64,
    /// Bytes of completed reads.
    pub read_bytes: u64,
    /// Slots that may take up room: written to, successfully or not, or recovered, and not
    /// discarded since.
    pub slots_used: u64,
}

/// The flash swap.
pub struct SwapFile {
    storage: &'static dyn Storage,
    slots: Slots,
    checksum: Crc32c,
    /// [`SOUND`] or [`POISONED`].
    health: Word,
    /// Which slots may take up room, by side.
    used: [&'static [PartSet]; 2],
    /// Chunks whose last copy went to, or was recovered from, the second side.
    second: &'static [PartSet],
    /// Chunks of which the last checkpoint names a slot, by side.
    kept: [&'static [PartSet]; 2],
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
        (0..5).try_for_each(|_| sizer.slice::<PartSet>(slots.part_sets()))
    }

    /// A swap file of that shape; what the storage holds already is neither read nor changed.
    pub fn new(
        arena: &mut Arena,
        storage: &'static dyn Storage,
        slots: &Slots,
        checksum: Crc32c,
    ) -> Result<Self> {
        slots.check()?;
        let mut set = || -> Result<&'static [PartSet]> {
            Ok(arena.slice(slots.part_sets(), |_| PartSet::new())?)
        };
        let (used, second, kept) = ([set()?, set()?], set()?, [set()?, set()?]);
        Ok(SwapFile {
            storage,
            slots: *slots,
            checksum,
            health: Word::new(SOUND),
            used,
            second,
            kept,
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

    /// Gives the room of a chunk's copy back to the file system; its content is lost in any case.
    /// A slot that is kept stays as it is.
    pub fn discard(&self, id: ChunkId) -> Result<()> {
        let (index, part) = self.part(id)?;
        self.ensure_sound()?;
        let side = self.side(id)?;
        if self.kept[side as usize][index].contains(part) {
            return Ok(());
        }
        let offset = self.slots.offset(id, side)?;
        self.observe(self.storage.discard(offset, u64::from(self.slots.slot_bytes)))?;
        if self.used[side as usize][index].unclaim(part) {
            self.slots_used.sub(1);
        }
        Ok(())
    }

    /// Which of a chunk's slots its copy is in.
    pub fn side(&self, id: ChunkId) -> Result<Side> {
        let (index, part) = self.part(id)?;
        Ok(if self.second[index].contains(part) { Side::Second } else { Side::First })
    }

    /// Says which slot a chunk's copy is in: after recovery.
    pub(super) fn set_side(&self, id: ChunkId, side: Side) -> Result<()> {
        let (index, part) = self.part(id)?;
        match side {
            Side::First => self.second[index].unclaim(part),
            Side::Second => self.second[index].claim(part),
        };
        if self.used[side as usize][index].claim(part) {
            self.slots_used.add(1);
        }
        Ok(())
    }

    /// From now on the slot of this side is kept, and the other is not; or neither is. Nobody
    /// writes to the chunk's slots at this moment.
    pub(super) fn keep(&self, id: ChunkId, side: Option<Side>) -> Result<()> {
        let (index, part) = self.part(id)?;
        for each in [Side::First, Side::Second] {
            match side == Some(each) {
                true => self.kept[each as usize][index].claim(part),
                false => self.kept[each as usize][index].unclaim(part),
            };
        }
        Ok(())
    }

    /// The side that a chunk's next copy goes to.
    fn side_to_write(&self, id: ChunkId) -> Result<Side> {
        let (index, part) = self.part(id)?;
        let side = self.side(id)?;
        let is_kept = self.kept[side as usize][index].contains(part);
        Ok(if is_kept { side.other() } else { side })
    }

    /// Writes a part of the head.
    pub(super) fn write_head(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.ensure_sound()?;
        self.observe(self.storage.write_at(offset, bytes))?;
        self.written_bytes.add(bytes.len() as u64);
        self.ensure_sound()
    }

    /// Reads a part of the head; what the file lacks is zeros.
    pub(super) fn read_head(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.ensure_sound()?;
        let read = self.observe(self.storage.read_at(offset, into))?;
        let read = read.min(into.len());
        self.read_bytes.add(read as u64);
        into[read..].fill(0);
        Ok(())
    }

    /// How what is in the file is checksummed.
    pub(super) const fn checksum(&self) -> Crc32c {
        self.checksum
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
        let side = self.side_to_write(id)?;
        let offset = self.prepare(id, side, transfer)?;
        let bytes = u32::try_from(bytes).map_err(|_| TRANSFER)?;
        let crc = self.checksum.call(0, transfer);
        self.set_side(id, side)?;
        self.observe(self.storage.write_at(offset, transfer))?;
        // A sync that failed meanwhile may have dropped this write.
        self.ensure_sound()?;
        self.written_bytes.add(transfer.len() as u64);
        Ok(FlashRecord { bytes, crc, packed })
    }

    fn read(&self, id: ChunkId, transfer: &mut [u8], record: FlashRecord) -> Result<()> {
        let offset = self.prepare(id, self.side(id)?, transfer)?;
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
    fn prepare(&self, id: ChunkId, side: Side, transfer: &[u8]) -> Result<u64> {
        let offset = self.slots.offset(id, side)?;
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

    /// Where in the sets a chunk is.
    fn part(&self, id: ChunkId) -> Result<(usize, u32)> {
        let index = self.slots.index(id)?;
        Ok(((index / PART_SET_SIZE) as usize, index % PART_SET_SIZE))
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
