//! One weight unit or KV chunk: its good copies, what is being done to it, where its copies lie.

use crate::limits::{IO_ALIGN, PART_BYTES_MIN, PARTS_MAX};
use crate::units::{FlashRecord, Nanos, RamRecord, SegmentIndex, align_up};
use bitflags::bitflags;

bitflags! {
    /// Where good copies of a chunk are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Copies: u8 {
        /// F16 in a shared buffer.
        const RESIDENT = 1;
        /// Packed in the RAM swap, at [`Chunk::ram`].
        const RAM = 2;
        /// In the swap file, raw or packed as [`Chunk::flash`] says.
        const FLASH = 4;
    }
}

/// What is being done to a unit. All but `Idle` and `Prepared` mean that a worker has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    #[default]
    Idle,
    /// Being packed into the RAM swap.
    Packing,
    /// Being written to the swap file.
    Writing,
    /// Its packed copy is being moved from the RAM swap to the swap file.
    Spilling,
    /// Being copied to the swap file, from wherever it is and stays.
    Saving,
    /// Its shared buffer is being given back.
    Releasing,
    /// Its shared buffer is being allocated.
    Allocating,
    /// Its shared buffer is there, to be filled.
    Prepared,
    /// Being read or unpacked into its shared buffer.
    Filling,
}

impl Phase {
    /// Whether a worker has the unit.
    pub const fn is_busy(self) -> bool {
        !matches!(self, Phase::Idle | Phase::Prepared)
    }
}

/// State of a KV chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where good copies are.
    pub copies: Copies,
    /// What is being done to it.
    pub phase: Phase,
    /// Whether it has a shared buffer.
    pub has_buffer: bool,
    /// Left alone for the rest of this eviction, because compute leases it or its eviction failed.
    pub skipped: bool,
    /// Tokens of the context in it.
    pub tokens: u16,
    /// Tokens that the copy in the RAM swap holds; at least `tokens` while it is good.
    pub ram_tokens: u16,
    /// The same for the copy in the swap file; what a copy under way will hold.
    pub flash_tokens: u16,
    /// Its record while `copies` has `RAM`.
    pub ram: RamRecord,
    /// Its record while `copies` has `FLASH`.
    pub flash: FlashRecord,
}

impl Chunk {
    /// No tokens, no copies, no buffer.
    pub const EMPTY: Chunk = Chunk {
        copies: Copies::empty(),
        phase: Phase::Idle,
        has_buffer: false,
        skipped: false,
        tokens: 0,
        ram_tokens: 0,
        flash_tokens: 0,
        ram: RamRecord { segment: SegmentIndex::new(0), generation: 0, offset: 0, bytes: 0 },
        flash: FlashRecord { bytes: 0, crc: 0, packed: false },
    };

    /// Whether compute may use it now.
    pub fn is_ready(&self) -> bool {
        let at_rest = matches!(self.phase, Phase::Idle | Phase::Saving);
        self.copies.contains(Copies::RESIDENT) && at_rest
    }

    /// Whether an eviction may take it.
    pub fn is_evictable(&self) -> bool {
        self.is_ready() && self.phase == Phase::Idle && !self.skipped
    }

    /// Whether it is restored by unpacking from RAM; false means by reading.
    pub fn restores_from_ram(&self) -> bool {
        self.copies.contains(Copies::RAM)
    }

    /// Whether the storage lost its last copy.
    pub fn is_lost(&self) -> bool {
        self.tokens > 0 && self.copies.is_empty()
    }
}

/// State of a weight unit. The model file is its other copy, always good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Whether its bytes are in its shared buffer.
    pub resident: bool,
    /// What is being done to it.
    pub phase: Phase,
    /// Whether it has a shared buffer.
    pub has_buffer: bool,
    /// See [`Chunk::skipped`].
    pub skipped: bool,
    /// Size of its shared buffer.
    pub bytes: u64,
    /// Time to read it (t_rW).
    pub read_ns: Nanos,
    /// Parts of one read, so that several readers share the unit.
    pub parts: u32,
    /// Parts handed to readers since the buffer was allocated.
    pub parts_given: u32,
    /// Parts that arrived.
    pub parts_done: u32,
    /// Parts that failed; the buffer is then given back and the unit read anew.
    pub parts_failed: u32,
    /// Parts that readers have now, one bit each.
    pub parts_busy: u64,
}

impl Weights {
    /// A unit of that size that is not in memory.
    pub fn new(bytes: u64, read_ns: Nanos) -> Self {
        let part_bytes = part_bytes(bytes);
        let parts = u32::try_from(bytes.div_ceil(part_bytes)).unwrap_or(PARTS_MAX);
        Weights {
            resident: false,
            phase: Phase::Idle,
            has_buffer: false,
            skipped: false,
            bytes,
            read_ns,
            parts,
            parts_given: 0,
            parts_done: 0,
            parts_failed: 0,
            parts_busy: 0,
        }
    }

    /// Whether compute may use it now.
    pub fn is_ready(&self) -> bool {
        self.resident && self.phase == Phase::Idle
    }

    /// Whether an eviction may take it.
    pub fn is_evictable(&self) -> bool {
        self.is_ready() && !self.skipped
    }
}

/// Bytes of one part of a weight unit's read: at most [`PARTS_MAX`] parts, page-aligned.
pub fn part_bytes(unit_bytes: u64) -> u64 {
    let share = unit_bytes.div_ceil(u64::from(PARTS_MAX)).max(PART_BYTES_MIN);
    align_up(share, IO_ALIGN as u64).unwrap_or(u64::MAX)
}
