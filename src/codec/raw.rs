//! The lossless format: the valid rows as they are, `[K, V][kv_head][token][head_dim]` in F16, then
//! zeros up to a multiple of 64 bytes.
//!
//! Any bit pattern is a value, NaNs included, and comes back unchanged. It is also what other
//! codecs store for a chunk that does not fit their own format.

use super::header::{self, Format, HEADER_BYTES, Payload};
use super::{Codec, Geometry};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::units::CodecId;

const VERSION: u8 = 1;

/// The raw codec.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Codec for Raw {
    fn id(&self) -> CodecId {
        CodecId::Raw
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + geometry.raw_payload_bytes()
    }

    fn pack(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        geometry.check(chunk.len())?;
        let format = format(geometry);
        write(geometry, chunk, header::payload_mut(packed, format.payload_bytes)?);
        header::seal(kernels, geometry, &format, Payload::Own(format.payload_bytes), packed)
    }

    fn unpack(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        packed: &[u8],
        chunk: &mut [u16],
    ) -> Result<()> {
        geometry.check(chunk.len())?;
        match header::open(kernels, geometry, &format(geometry), packed)? {
            Payload::Own(payload) | Payload::Raw(payload) => read(geometry, payload, chunk),
        }
    }
}

fn format(geometry: &Geometry) -> Format {
    let payload_bytes = geometry.raw_payload_bytes();
    Format { id: CodecId::Raw, version: VERSION, payload_bytes, has_raw_fallback: false }
}

/// Fills a payload of [`Geometry::raw_payload_bytes`].
pub(super) fn write(geometry: &Geometry, chunk: &[u16], payload: &mut [u8]) {
    let mut rest = payload;
    for rows in geometry.heads() {
        let rows = view::bytes_of(&chunk[rows]);
        let (target, behind) = rest.split_at_mut(rows.len());
        target.copy_from_slice(rows);
        rest = behind;
    }
    rest.fill(0);
}

/// Reads a checked payload of [`Geometry::raw_payload_bytes`].
pub(super) fn read(geometry: &Geometry, payload: &[u8], chunk: &mut [u16]) -> Result<()> {
    let rows_bytes = 2 * geometry.valid_values();
    let (values, padding) = payload.split_at(rows_bytes);
    if padding.iter().any(|&byte| byte != 0) {
        return Err(Error::new(Code::Corrupt, "packed padding"));
    }
    let (values, _) = values.as_chunks::<2>();
    for (rows, values) in geometry.heads().zip(values.chunks_exact(geometry.head_values())) {
        for (half, &bytes) in chunk[rows].iter_mut().zip(values) {
            *half = u16::from_le_bytes(bytes);
        }
    }
    Ok(())
}
