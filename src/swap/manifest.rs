//! What outlives the process: the head of the swap file says which chunks its slots hold.
//!
//! ```text
//! 0        superblock 0 | superblock 1     4 KiB each
//! 8192     table 0      | table 1          whole pages, as many as the largest context takes
//! head     slots, two a chunk
//!
//! superblock:  0 magic "mzcKEPT\0"        8 version u32       12 tokens of a chunk u16
//!             14 chunk layout u8         15 codec u8          16 layers u16     18 kv_heads u16
//!             20 head_dim u16            22 chunks of a layer u16
//!             24 slot bytes u32          28 steps id u32      32 generation u64
//!             40 model u64               48 tag u128          64 tokens u32
//!             68 bytes of steps u32      72 CRC-32C of the table, padding included, u32
//!             76 zero, to 4092         4092 CRC-32C of 0..4092 u32
//! table:      one record for each (chunk, layer), 16 bytes; then the steps as `codec` writes them;
//!             then zeros up to a whole page
//! record:      0 bytes u32   4 CRC-32C u32   8 layer u16   10 chunk u16   12 tokens u16
//!             14 flags u8: 1 there is one, 2 packed, 4 in the second slot    15 zero
//! ```
//!
//! All little-endian. A record counts only if its superblock says so: a superblock whose checksum
//! fails is not there, one whose table fails its checksum is not either, and of two that are sound
//! the one with the higher generation is meant, or an older one that has the tag asked for.
//!
//! # Why no crash gives wrong bytes, and none harms the last checkpoint
//!
//! A checkpoint is written as *chunks and table, sync, superblock, sync*. (Chunks and table need no
//! sync between them: nothing names either before the superblock does.) Generation `g` takes
//! superblock and table `g % 2`, so until its last sync has returned generation `g - 1` has both of
//! its own, untouched; whatever part of the new ones arrives, in whatever order, either the new
//! superblock is sound, and then table and chunks were durable before it was written, or it is not,
//! and the old one is meant.
//!
//! Slots may be overwritten between checkpoints: the last chunk grows, the context is cut and grows
//! again, a chunk is written raw after a lossy codec had it. If such a copy went to the slot that
//! the durable manifest names, a crash would leave the new bytes under the old record. The CRC in
//! the record would turn that into a damaged chunk, but a checkpoint that an ordinary life wears
//! away is not worth much. So a chunk has two slots, a slot that the durable manifest names is
//! kept, and the next copy goes to the other one; it may be overwritten as often as there is need.
//! Slots cost nothing until they are used, and only chunks that changed use both: the last ones.
//! Between the moment at which the records of a checkpoint are collected and its last sync nothing
//! is written to slots at all (see `state::save`), since the other slot may then be named too.
//!
//! What is left to the CRC: storage that lies; a superblock whose write was reported as failed and
//! is there all the same, while its slots were written to since; and a file that is used anew
//! without having been recovered from. Each gives a damaged chunk, from which on tokens are to be
//! computed again, and never wrong bytes (but for one damage in 2^32).
//!
//! A head that holds nothing sound for this configuration is wiped before the first superblock is
//! written: one that could not be read then must not come back with a higher generation later. One
//! that was not recovered from, but is sound, is outnumbered.
//!
//! `superblock` and `table` are the formats, `keeper` their reading and writing.

mod keeper;
mod superblock;
mod table;

pub use keeper::Manifest;
pub use superblock::{Fingerprint, Superblock};
pub use table::{RECORD_BYTES, Stored};

use super::file::Slots;
use crate::codec::STEPS_HEADER_BYTES;
use crate::limits::IO_ALIGN;

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = IO_ALIGN;

/// Most bytes of a table. Steps are one F32 a channel of K: a 256th of a raw chunk a layer.
const fn table_bytes_max(slots: &Slots) -> u64 {
    let records = slots.places() as u64 * RECORD_BYTES as u64;
    let steps = STEPS_HEADER_BYTES as u64 + slots.layers as u64 * slots.slot_bytes as u64 / 256;
    (records + steps).next_multiple_of(IO_ALIGN as u64)
}

/// Bytes before the first slot.
pub const fn head_bytes(slots: &Slots) -> u64 {
    2 * SUPERBLOCK_BYTES as u64 + 2 * table_bytes_max(slots)
}

/// First byte of the superblock of a generation.
const fn superblock_at(generation: u64) -> u64 {
    generation % 2 * SUPERBLOCK_BYTES as u64
}

/// First byte of the table of a generation.
const fn table_at(slots: &Slots, generation: u64) -> u64 {
    2 * SUPERBLOCK_BYTES as u64 + generation % 2 * table_bytes_max(slots)
}

#[cfg(test)]
mod tests;
