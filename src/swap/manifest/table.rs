//! One record of a table.

use super::superblock::{Fingerprint, bytes_at};
use crate::error::{Code, Error, Result};
use crate::limits::CHUNK_TOKENS;
use crate::swap::file::Side;
use crate::units::{ChunkId, ChunkIndex, FlashRecord, LayerIndex};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 16;

const IS_THERE: u8 = 1;
const IS_PACKED: u8 = 2;
const IS_SECOND: u8 = 4;

/// A chunk's copy, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What its slot holds.
    pub record: FlashRecord,
    /// Tokens in it.
    pub tokens: u16,
    /// Which of its slots.
    pub side: Side,
}

/// Which chunk the record at an index is about.
pub(super) fn id_at(index: usize, layers: u16) -> ChunkId {
    let layers = usize::from(layers.max(1));
    // Tables have no more than `Slots` allows, 16 bits each.
    let [layer, chunk] = [index % layers, index / layers].map(u16::try_from);
    let layer = LayerIndex::new(layer.unwrap_or(u16::MAX));
    ChunkId { layer, chunk: ChunkIndex::new(chunk.unwrap_or(u16::MAX)) }
}

pub(super) fn write(bytes: &mut [u8; RECORD_BYTES], id: ChunkId, stored: Option<Stored>) {
    bytes.fill(0);
    bytes[8..10].copy_from_slice(&id.layer.get().to_le_bytes());
    bytes[10..12].copy_from_slice(&id.chunk.get().to_le_bytes());
    let Some(Stored { record, tokens, side }) = stored else { return };
    bytes[..4].copy_from_slice(&record.bytes.to_le_bytes());
    bytes[4..8].copy_from_slice(&record.crc.to_le_bytes());
    bytes[12..14].copy_from_slice(&tokens.to_le_bytes());
    let packed = if record.packed { IS_PACKED } else { 0 };
    let second = if side == Side::Second { IS_SECOND } else { 0 };
    bytes[14] = IS_THERE + packed + second;
}

/// What a record says, or that it is none that a checkpoint has.
pub(super) fn parse(
    own: &Fingerprint,
    bytes: &[u8; RECORD_BYTES],
    id: ChunkId,
) -> Result<Option<Stored>> {
    let word = |at| u16::from_le_bytes(bytes_at(bytes, at));
    let double = |at| u32::from_le_bytes(bytes_at(bytes, at));
    let corrupt = |what, value| Err(Error::new(Code::Corrupt, what).with(value));
    if word(8) != id.layer.get() || word(10) != id.chunk.get() || bytes[15] != 0 {
        return corrupt("checkpoint record", double(8));
    }
    let flags = bytes[14];
    let record = FlashRecord { bytes: double(0), crc: double(4), packed: flags & IS_PACKED != 0 };
    let tokens = word(12);
    if flags & IS_THERE == 0 {
        return match flags == 0 && record == FlashRecord::default() && tokens == 0 {
            true => Ok(None),
            false => corrupt("checkpoint record flags", u32::from(flags)),
        };
    }
    if flags & !(IS_THERE + IS_PACKED + IS_SECOND) != 0 {
        return corrupt("checkpoint record flags", u32::from(flags));
    }
    if tokens == 0 || tokens > CHUNK_TOKENS {
        return corrupt("checkpoint record tokens", u32::from(tokens));
    }
    let fits = match record.packed {
        true => (1..=own.slots.slot_bytes).contains(&record.bytes),
        false => record.bytes as usize == own.shape.chunk_bytes(),
    };
    if !fits {
        return corrupt("checkpoint record bytes", record.bytes);
    }
    let side = if flags & IS_SECOND == 0 { Side::First } else { Side::Second };
    Ok(Some(Stored { record, tokens, side }))
}
