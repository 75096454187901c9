//! The 8-bit format: one signed code a value, one 16-bit scale word a group of up to 64 values.
//!
//! A group is a slice of one token's row in one head: values `64 g .. 64 g + 64` of `head_dim`, the
//! last group possibly shorter. Two planes, each filled up with zeros to a multiple of 64 bytes:
//!
//! ```text
//! scale words  u16  [K, V][kv_head][token][group]
//! codes        i8   [K, V][kv_head][token][head_dim]
//! ```
//!
//! A value is its code times the group's step, rounded to F16. A scale word with the sign bit clear
//! is the step itself, an F16 `s` with `s = f16(f16(127 s) / 127)`; with the sign bit set, for
//! groups whose greatest magnitude is below 2^-7, it holds that magnitude and the step is 1/127 of
//! it, but at least 2^-24. Either way the greatest value gets a code from which the same word
//! follows again, and every code lies well within half a step of what it unpacks to. Packing what
//! was unpacked therefore gives the same bytes: nothing changes after the first cycle. The error of
//! the first is below 0.57 steps, plus 2^-25 where F16 values are subnormal. Minus zero becomes
//! zero.
//!
//! A chunk with a NaN or an infinity is stored raw. A head of 64 values takes 8.25 bits a value,
//! which saves 48.4 %.

use super::header::{self, Format, HEADER_BYTES, PLANE_ALIGN, Payload};
use super::{Codec, Geometry, raw};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::portable::{Q8_ABSMAX_FORM, Q8_STEP_FORM_FROM, Q8_STEP_MAX};
use crate::kernel::{Kernels, Q8_GROUP};
use crate::units::CodecId;

const VERSION: u8 = 1;

/// The q8 codec.
#[derive(Clone, Copy, Debug)]
pub struct Q8;

impl Codec for Q8 {
    fn id(&self) -> CodecId {
        CodecId::Q8
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        let payload_bytes = format(geometry).payload_bytes.max(geometry.raw_payload_bytes());
        HEADER_BYTES + payload_bytes
    }

    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + format(geometry).payload_bytes
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
        let payload = header::payload_mut(packed, format.payload_bytes)?;
        if write(kernels, geometry, chunk, payload)? {
            let payload = Payload::Own(format.payload_bytes);
            return header::seal(kernels, geometry, &format, payload, packed);
        }
        let raw_bytes = geometry.raw_payload_bytes();
        raw::write(geometry, chunk, header::payload_mut(packed, raw_bytes)?);
        header::seal(kernels, geometry, &format, Payload::Raw(raw_bytes), packed)
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
            Payload::Own(payload) => read(kernels, geometry, payload, chunk),
            Payload::Raw(payload) => raw::read(geometry, payload, chunk),
        }
    }
}

fn format(geometry: &Geometry) -> Format {
    let payload_bytes = scales_plane_bytes(geometry) + codes_plane_bytes(geometry);
    Format { id: CodecId::Q8, version: VERSION, payload_bytes, has_raw_fallback: true }
}

/// Scale words of one head's valid rows.
fn head_scales(geometry: &Geometry) -> usize {
    usize::from(geometry.tokens) * usize::from(geometry.shape.head_dim).div_ceil(Q8_GROUP)
}

fn scales_plane_bytes(geometry: &Geometry) -> usize {
    (2 * head_scales(geometry) * geometry.heads().len()).next_multiple_of(PLANE_ALIGN)
}

fn codes_plane_bytes(geometry: &Geometry) -> usize {
    geometry.valid_values().next_multiple_of(PLANE_ALIGN)
}

const MISALIGNED: Error = Error::new(Code::InvalidArgument, "packed buffer alignment");

/// Fills a payload; false when a value is not finite.
fn write(
    kernels: &Kernels,
    geometry: &Geometry,
    chunk: &[u16],
    payload: &mut [u8],
) -> Result<bool> {
    let (scales, codes) = payload.split_at_mut(scales_plane_bytes(geometry));
    let mut scales = view::numbers_mut::<u16>(scales).ok_or(MISALIGNED)?;
    let mut codes = view::numbers_mut::<i8>(codes).ok_or(MISALIGNED)?;
    let row_values = usize::from(geometry.shape.head_dim);
    for rows in geometry.heads() {
        let (head_scales, scales_behind) = scales.split_at_mut(head_scales(geometry));
        let (head_codes, codes_behind) = codes.split_at_mut(rows.len());
        if !kernels.q8_pack.call(&chunk[rows], row_values, head_scales, head_codes) {
            return Ok(false);
        }
        (scales, codes) = (scales_behind, codes_behind);
    }
    scales.fill(0);
    codes.fill(0);
    Ok(true)
}

/// Reads a payload whose checksum was right.
fn read(kernels: &Kernels, geometry: &Geometry, payload: &[u8], chunk: &mut [u16]) -> Result<()> {
    let (scales, codes) = payload.split_at(scales_plane_bytes(geometry));
    let scales = view::numbers::<u16>(scales).ok_or(MISALIGNED)?;
    let codes = view::numbers::<i8>(codes).ok_or(MISALIGNED)?;
    let (scales, scales_padding) = scales.split_at(head_scales(geometry) * geometry.heads().len());
    let (codes, codes_padding) = codes.split_at(geometry.valid_values());
    if let Some(word) = scales.iter().find(|&&word| !is_scale_word(word)) {
        return Err(Error::new(Code::Corrupt, "packed scale word").with(*word));
    }
    if scales_padding.iter().any(|&word| word != 0) || codes_padding.iter().any(|&code| code != 0) {
        return Err(Error::new(Code::Corrupt, "packed padding"));
    }
    let row_values = usize::from(geometry.shape.head_dim);
    let scales = scales.chunks_exact(head_scales(geometry));
    let codes = codes.chunks_exact(geometry.head_values());
    for (rows, (scales, codes)) in geometry.heads().zip(scales.zip(codes)) {
        kernels.q8_unpack.call(scales, codes, row_values, &mut chunk[rows]);
    }
    Ok(())
}

/// Whether packing could have written this word.
fn is_scale_word(word: u16) -> bool {
    if word & Q8_ABSMAX_FORM == 0 {
        word <= Q8_STEP_MAX
    } else {
        word & !Q8_ABSMAX_FORM < Q8_STEP_FORM_FROM
    }
}
