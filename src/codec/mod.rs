//! KV chunk formats: how a chunk's F16 values are packed, and nothing else.
//!
//! A codec is deterministic, keeps no state between chunks, and is idempotent in value: packing
//! what it unpacked gives the same bytes again. The worst-case packed size is known before packing.
//! Bytes handed to `unpack` are hostile; the chunk is untouched unless the checksum passed.
//!
//! A packed chunk is a 64-byte header (`header`), then planes that each start at a multiple of 64.
//! `raw` copies, `q8` holds 8-bit codes. [`codec`] finds a codec by its number.

mod geometry;
mod header;
mod q8;
mod raw;
#[cfg(test)]
mod tests;

pub use header::{HEADER_BYTES, PLANE_ALIGN};
pub use q8::Q8;
pub use raw::Raw;

use crate::error::Result;
use crate::kernel::Kernels;
use crate::units::{ChunkId, CodecId, KvShape};

/// Which chunk, how it is laid out, and how many of its tokens are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The cache's shape; a chunk is `[K, V][kv_head][256 tokens][head_dim]` in F16.
    pub shape: KvShape,
    /// Which chunk, so that one packed chunk is never taken for another.
    pub id: ChunkId,
    /// Valid tokens, 1 to 256; rows beyond are neither read nor written.
    pub tokens: u16,
}

/// One chunk format.
pub trait Codec: Sync {
    /// Its number and name.
    fn id(&self) -> CodecId;

    /// Whether unpacking gives back the very bits that were packed, on the first cycle too.
    fn is_lossless(&self) -> bool;

    /// Bytes that `pack` never exceeds, header included; a multiple of 64.
    fn packed_bytes_max(&self, geometry: &Geometry) -> usize;

    /// Bytes that `pack` uses for a chunk without exceptional values: what plans should reckon
    /// with.
    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        self.packed_bytes_max(geometry)
    }

    /// Packs `chunk` (the whole buffer as F16 bit patterns) and returns the bytes used. A buffer
    /// that is shorter than `packed_bytes_max` may do; if not, the error is `MemoryTooSmall` with
    /// the bytes that are needed. `packed` starts at an even address and holds nothing useful after
    /// an error.
    fn pack(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize>;

    /// Unpacks into the first `geometry.tokens` rows of each head of `chunk`. `packed` starts at an
    /// even address; bytes behind the packed chunk are ignored. After an error the chunk is as it
    /// was.
    fn unpack(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        packed: &[u8],
        chunk: &mut [u16],
    ) -> Result<()>;
}

/// The codec of that number.
pub fn codec(id: CodecId) -> &'static dyn Codec {
    match id {
        CodecId::Raw => &Raw,
        CodecId::Q8 => &Q8,
    }
}
