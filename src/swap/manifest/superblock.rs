//! One superblock: written, and read back from bytes that may be anything.

use super::table::RECORD_BYTES;
use super::{SUPERBLOCK_BYTES, table_bytes_max};
use crate::codec::{ChunkLayout, Steps};
use crate::error::{Code, Error, Result};
use crate::kernel::Crc32c;
use crate::limits::{CHUNK_TOKENS, IO_ALIGN};
use crate::swap::file::Slots;
use crate::units::{CodecId, KvShape, Tag, TokenCount};

const MAGIC: [u8; 8] = *b"mzcKEPT\0";
const VERSION: u32 = 1;
const CRC_AT: usize = SUPERBLOCK_BYTES - 4;
const END: usize = 76;

/// More checkpoints than anybody lives to see; a higher number is no checkpoint's.
pub(super) const GENERATION_MAX: u64 = u64::MAX >> 1;

/// What two processes must have in common for one to take over the other's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Shape of the KV cache.
    pub shape: KvShape,
    /// How chunks are laid out.
    pub layout: ChunkLayout,
    /// How they are packed.
    pub codec: CodecId,
    /// Shape of the swap file.
    pub slots: Slots,
    /// Digest of the model file.
    pub model: u64,
}

/// What a superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Numbers checkpoints; the higher is the later.
    pub generation: u64,
    /// The caller's name for the tokens.
    pub tag: Tag,
    /// Tokens of the context.
    pub tokens: TokenCount,
    /// Name of the step profile, as [`Steps::id`] has it; 0 for none.
    pub steps_id: u32,
    /// CRC-32C of the table.
    pub table_crc: u32,
}

impl Superblock {
    /// Records in its table.
    pub fn records(&self, slots: &Slots) -> usize {
        self.tokens.chunks() as usize * usize::from(slots.layers)
    }

    /// Bytes of its step profile.
    pub fn steps_bytes(&self, shape: &KvShape) -> usize {
        if self.steps_id == 0 { 0 } else { Steps::serialised_bytes(shape) }
    }

    /// Bytes of its table on flash.
    pub fn table_bytes(&self, own: &Fingerprint) -> usize {
        let records = self.records(&own.slots) * RECORD_BYTES;
        (records + self.steps_bytes(&own.shape)).next_multiple_of(IO_ALIGN)
    }

    /// Fills a page.
    pub fn write(&self, own: &Fingerprint, crc: Crc32c, page: &mut [u8; SUPERBLOCK_BYTES]) {
        page.fill(0);
        let KvShape { layers, kv_heads, head_dim } = own.shape;
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[12..14].copy_from_slice(&CHUNK_TOKENS.to_le_bytes());
        page[14] = number_of(own.layout);
        page[15] = own.codec as u8;
        page[16..18].copy_from_slice(&layers.to_le_bytes());
        page[18..20].copy_from_slice(&kv_heads.to_le_bytes());
        page[20..22].copy_from_slice(&head_dim.to_le_bytes());
        page[22..24].copy_from_slice(&own.slots.chunks.to_le_bytes());
        page[24..28].copy_from_slice(&own.slots.slot_bytes.to_le_bytes());
        page[28..32].copy_from_slice(&self.steps_id.to_le_bytes());
        page[32..40].copy_from_slice(&self.generation.to_le_bytes());
        page[40..48].copy_from_slice(&own.model.to_le_bytes());
        page[48..64].copy_from_slice(&self.tag.get().to_le_bytes());
        page[64..68].copy_from_slice(&self.tokens.get().to_le_bytes());
        let steps_bytes = u32::try_from(self.steps_bytes(&own.shape)).unwrap_or(0);
        page[68..72].copy_from_slice(&steps_bytes.to_le_bytes());
        page[72..76].copy_from_slice(&self.table_crc.to_le_bytes());
        let sum = crc.call(0, &page[..CRC_AT]);
        page[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads a page.
    ///
    /// # Errors
    ///
    /// [`Code::BadMagic`] where there is none, [`Code::Corrupt`] (checksum, a field that no
    /// checkpoint has), [`Code::Unsupported`] (version), [`Code::Mismatch`] with the name of the
    /// first part of the fingerprint that is another.
    pub fn parse(own: &Fingerprint, crc: Crc32c, page: &[u8; SUPERBLOCK_BYTES]) -> Result<Self> {
        if page[..8] != MAGIC {
            return Err(Error::new(Code::BadMagic, "checkpoint"));
        }
        if crc.call(0, &page[..CRC_AT]) != u32_at(page, CRC_AT) {
            return Err(Error::new(Code::Corrupt, "checkpoint"));
        }
        if u32_at(page, 8) != VERSION {
            return Err(Error::new(Code::Unsupported, "checkpoint version").with(u32_at(page, 8)));
        }
        compare(own, page)?;
        let superblock = Superblock {
            generation: u64_at(page, 32),
            tag: Tag::new(u128::from_le_bytes(bytes_at(page, 48))),
            tokens: TokenCount::new(u32_at(page, 64)),
            steps_id: u32_at(page, 28),
            table_crc: u32_at(page, 72),
        };
        if superblock.generation == 0 || superblock.generation > GENERATION_MAX {
            return Err(Error::new(Code::Corrupt, "checkpoint generation"));
        }
        if superblock.tokens.chunks() > u32::from(own.slots.chunks) {
            let error = Error::new(Code::Corrupt, "checkpoint tokens");
            return Err(error.with(superblock.tokens.get()));
        }
        let steps_bytes = superblock.steps_bytes(&own.shape);
        if u32_at(page, 68) as usize != steps_bytes {
            return Err(Error::new(Code::Corrupt, "checkpoint steps").with(u32_at(page, 68)));
        }
        let is_zero = page[END..CRC_AT].iter().all(|byte| *byte == 0);
        let fits = superblock.table_bytes(own) as u64 <= table_bytes_max(&own.slots);
        match is_zero && fits {
            true => Ok(superblock),
            false => Err(Error::new(Code::Corrupt, "checkpoint reserved bytes")),
        }
    }
}

/// The first part of the fingerprint that differs.
fn compare(own: &Fingerprint, page: &[u8; SUPERBLOCK_BYTES]) -> Result<()> {
    let KvShape { layers, kv_heads, head_dim } = own.shape;
    let word = |at| u64::from(u16::from_le_bytes(bytes_at(page, at)));
    let parts = [
        ("checkpoint chunk tokens", word(12), u64::from(CHUNK_TOKENS)),
        ("checkpoint chunk layout", u64::from(page[14]), u64::from(number_of(own.layout))),
        ("checkpoint codec", u64::from(page[15]), u64::from(own.codec as u8)),
        ("checkpoint layers", word(16), u64::from(layers)),
        ("checkpoint kv_heads", word(18), u64::from(kv_heads)),
        ("checkpoint head_dim", word(20), u64::from(head_dim)),
        ("checkpoint context_tokens_max", word(22), u64::from(own.slots.chunks)),
        ("checkpoint slot bytes", u64::from(u32_at(page, 24)), u64::from(own.slots.slot_bytes)),
        ("checkpoint model", u64_at(page, 40), own.model),
    ];
    match parts.iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, _)) => Err(Error::new(Code::Mismatch, what).with(*found)),
        None => Ok(()),
    }
}

const fn number_of(layout: ChunkLayout) -> u8 {
    match layout {
        ChunkLayout::TokenMajor => 0,
        ChunkLayout::ChannelMajor => 1,
    }
}

fn u32_at(page: &[u8; SUPERBLOCK_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(page, at))
}

fn u64_at(page: &[u8; SUPERBLOCK_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(page, at))
}

/// What stands at a fixed place.
pub(super) fn bytes_at<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&from[at..][..N]);
    bytes
}
