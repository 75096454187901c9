//! What is measured: the library's codecs, and two general compressors beside them.

use super::cache::Chunk;
use crate::failure::{Failure, Outcome};
use mzcache::arena::view;
use mzcache::codec::{Codec, Steps, Work};
use mzcache::kernel::Kernels;
use mzcache::limits::IO_ALIGN;

/// A way to pack a chunk.
pub trait Packing: Sync {
    fn name(&self) -> String;

    /// Replaces what `packed` holds.
    fn pack(&self, chunk: &Chunk, packed: &mut Vec<u8>, scratch: &mut Vec<u8>) -> Outcome<()>;

    /// Gives back what was packed.
    fn unpack(
        &self,
        chunk: &Chunk,
        packed: &[u8],
        values: &mut [u16],
        scratch: &mut Vec<u8>,
    ) -> Outcome<()>;
}

/// A codec of the library.
pub struct CodecPacking<'a> {
    pub codec: &'static dyn Codec,
    pub kernels: &'a Kernels,
    pub steps: Steps<'a>,
}

impl CodecPacking<'_> {
    fn work<'w>(&'w self, chunk: &Chunk, scratch: &'w mut Vec<u8>) -> Work<'w> {
        let bytes = self.codec.scratch_bytes(&chunk.geometry);
        if scratch.len() < bytes + IO_ALIGN {
            scratch.resize(bytes + IO_ALIGN, 0);
        }
        let start = scratch.as_ptr().align_offset(IO_ALIGN);
        Work {
            kernels: self.kernels,
            steps: self.steps.layer(chunk.geometry.id.layer),
            scratch: &mut scratch[start..][..bytes],
        }
    }
}

impl Packing for CodecPacking<'_> {
    fn name(&self) -> String {
        self.codec.id().name().to_owned()
    }

    fn pack(&self, chunk: &Chunk, packed: &mut Vec<u8>, scratch: &mut Vec<u8>) -> Outcome<()> {
        packed.resize(self.codec.packed_bytes_max(&chunk.geometry), 0);
        let mut work = self.work(chunk, scratch);
        let bytes = self.codec.pack(&mut work, &chunk.geometry, &chunk.values, packed)?;
        packed.truncate(bytes);
        Ok(())
    }

    fn unpack(
        &self,
        chunk: &Chunk,
        packed: &[u8],
        values: &mut [u16],
        scratch: &mut Vec<u8>,
    ) -> Outcome<()> {
        let mut work = self.work(chunk, scratch);
        Ok(self.codec.unpack(&mut work, &chunk.geometry, packed, values)?)
    }
}

/// LZ4's block format, of whole chunks.
pub struct Lz4;

impl Packing for Lz4 {
    fn name(&self) -> String {
        "lz4".into()
    }

    fn pack(&self, chunk: &Chunk, packed: &mut Vec<u8>, _: &mut Vec<u8>) -> Outcome<()> {
        let bytes = view::bytes_of(&chunk.values);
        packed.resize(lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
        let length = lz4_flex::block::compress_into(bytes, packed).map_err(failed)?;
        packed.truncate(length);
        Ok(())
    }

    fn unpack(
        &self,
        _: &Chunk,
        packed: &[u8],
        values: &mut [u16],
        bytes: &mut Vec<u8>,
    ) -> Outcome<()> {
        bytes.resize(2 * values.len(), 0);
        lz4_flex::block::decompress_into(packed, bytes).map_err(failed)?;
        put(bytes, values);
        Ok(())
    }
}

/// Zstandard, of whole chunks.
pub struct Zstd {
    pub level: i32,
}

impl Packing for Zstd {
    fn name(&self) -> String {
        format!("zstd-{}", self.level)
    }

    fn pack(&self, chunk: &Chunk, packed: &mut Vec<u8>, _: &mut Vec<u8>) -> Outcome<()> {
        let bytes = view::bytes_of(&chunk.values);
        packed.resize(zstd::zstd_safe::compress_bound(bytes.len()), 0);
        let length = zstd::bulk::compress_to_buffer(bytes, packed, self.level).map_err(failed)?;
        packed.truncate(length);
        Ok(())
    }

    fn unpack(
        &self,
        _: &Chunk,
        packed: &[u8],
        values: &mut [u16],
        bytes: &mut Vec<u8>,
    ) -> Outcome<()> {
        bytes.resize(2 * values.len(), 0);
        zstd::bulk::decompress_to_buffer(packed, bytes).map_err(failed)?;
        put(bytes, values);
        Ok(())
    }
}

/// The crates write bytes; the copy is a small part of what they take.
fn put(bytes: &[u8], values: &mut [u16]) {
    let (pairs, _) = bytes.as_chunks::<2>();
    for (value, &pair) in values.iter_mut().zip(pairs) {
        *value = u16::from_ne_bytes(pair);
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("a comparison failed: {error}"))
}
