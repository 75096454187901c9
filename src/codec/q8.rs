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
use super::{ChunkLayout, Codec, Geometry, Idempotence, LayerSteps, Opened};
use super::{Properties, StepsUse, Work, raw};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::portable::{Q8_ABSMAX_FORM, Q8_STEP_FORM_FROM, Q8_STEP_MAX};
use crate::kernel::{Kernels, Matrix, Q8_GROUP};
use crate::limits::CHUNK_TOKENS;
use crate::units::CodecId;

const VERSION: u8 = 1;
/// Tokens that are brought into rows at a time when they do not lie so.
const TILE_TOKENS: usize = 16;

/// The q8 codec.
#[derive(Clone, Copy, Debug)]
pub struct Q8;

impl Codec for Q8 {
    fn id(&self) -> CodecId {
        CodecId::Q8
    }

    fn version(&self) -> u8 {
        VERSION
    }

    fn properties(&self) -> Properties {
        Properties {
            idempotence: Idempotence::Strong,
            is_lossless: false,
            steps: StepsUse::Ignored,
        }
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + own_payload_bytes(geometry).max(geometry.raw_payload_bytes())
    }

    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + own_payload_bytes(geometry)
    }

    fn scratch_bytes(&self, geometry: &Geometry) -> usize {
        match geometry.layout {
            ChunkLayout::TokenMajor => 0,
            ChunkLayout::ChannelMajor => 2 * TILE_TOKENS * geometry.head_dim(),
        }
    }

    fn pack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        geometry.check(chunk.len())?;
        let (kernels, format) = (work.kernels, format(geometry));
        let own_bytes = own_payload_bytes(geometry);
        let payload = header::payload_mut(packed, own_bytes)?;
        let tile = tile(work, geometry)?;
        if write(kernels, tile, geometry, chunk, payload)? {
            return header::seal(kernels, geometry, &format, Payload::Own(own_bytes), packed);
        }
        raw::seal(kernels, geometry, &format, chunk, packed)
    }

    fn open<'a>(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        _steps: Option<LayerSteps<'_>>,
        packed: &'a [u8],
    ) -> Result<Opened<'a>> {
        geometry.check_numbers()?;
        header::open(kernels, geometry, &format(geometry), packed)?.checked(check)
    }

    fn unpack_part(
        &self,
        work: &mut Work<'_>,
        opened: &Opened<'_>,
        part: usize,
        values: &mut [u16],
    ) -> Result<()> {
        let (kernels, geometry) = (work.kernels, &opened.geometry);
        let tile = tile(work, geometry)?;
        match opened.own_payload(CodecId::Q8, part, values)? {
            Some(payload) => read_part(kernels, tile, geometry, payload, part, values),
            None => Ok(()),
        }
    }
}

/// Scratch for rows that do not lie so in memory; empty where they do.
fn tile<'a>(work: &'a mut Work<'_>, geometry: &Geometry) -> Result<&'a mut [u16]> {
    match Q8.scratch_bytes(geometry) {
        0 => Ok(&mut []),
        bytes => view::numbers_mut(work.scratch(bytes)?).ok_or(MISALIGNED),
    }
}

fn format(geometry: &Geometry) -> Format {
    let payload_bytes = own_payload_bytes(geometry);
    Format {
        id: CodecId::Q8,
        version: VERSION,
        steps_id: 0,
        payload_bytes: payload_bytes..=payload_bytes,
        has_raw_fallback: true,
    }
}

fn own_payload_bytes(geometry: &Geometry) -> usize {
    scales_plane_bytes(geometry) + codes_plane_bytes(geometry)
}

/// Scale words of one token's row.
fn row_scales(geometry: &Geometry) -> usize {
    geometry.head_dim().div_ceil(Q8_GROUP)
}

/// Scale words of one part's valid rows.
fn part_scales(geometry: &Geometry) -> usize {
    usize::from(geometry.tokens) * row_scales(geometry)
}

fn scales_plane_bytes(geometry: &Geometry) -> usize {
    (2 * part_scales(geometry) * geometry.parts()).next_multiple_of(PLANE_ALIGN)
}

fn codes_plane_bytes(geometry: &Geometry) -> usize {
    geometry.valid_values().next_multiple_of(PLANE_ALIGN)
}

const MISALIGNED: Error = Error::new(Code::InvalidArgument, "packed buffer alignment");

/// Fills a payload; false when a value is not finite.
fn write(
    kernels: &Kernels,
    tile: &mut [u16],
    geometry: &Geometry,
    chunk: &[u16],
    payload: &mut [u8],
) -> Result<bool> {
    let (scales, codes) = payload.split_at_mut(scales_plane_bytes(geometry));
    let mut scales = view::numbers_mut::<u16>(scales).ok_or(MISALIGNED)?;
    let mut codes = view::numbers_mut::<i8>(codes).ok_or(MISALIGNED)?;
    for values in chunk.chunks_exact(geometry.part_values()).take(geometry.parts()) {
        let (part_scales, scales_behind) = scales.split_at_mut(part_scales(geometry));
        let (part_codes, codes_behind) = codes.split_at_mut(geometry.part_valid_values());
        if !write_part(kernels, tile, geometry, values, part_scales, part_codes) {
            return Ok(false);
        }
        (scales, codes) = (scales_behind, codes_behind);
    }
    scales.fill(0);
    codes.fill(0);
    Ok(true)
}

/// Packs the rows of one part; false when a value is not finite.
fn write_part(
    kernels: &Kernels,
    tile: &mut [u16],
    geometry: &Geometry,
    values: &[u16],
    scales: &mut [u16],
    codes: &mut [i8],
) -> bool {
    let row_values = geometry.head_dim();
    if geometry.layout == ChunkLayout::TokenMajor {
        let rows = &values[..geometry.part_valid_values()];
        return kernels.q8_pack.call(rows, row_values, scales, codes);
    }
    let scales = scales.chunks_mut(TILE_TOKENS * row_scales(geometry));
    let codes = codes.chunks_mut(TILE_TOKENS * row_values);
    for ((first, scales), codes) in (0..).step_by(TILE_TOKENS).zip(scales).zip(codes) {
        let rows = &mut tile[..codes.len()];
        let matrix = Matrix {
            rows: row_values,
            columns: codes.len() / row_values,
            from_stride: CHUNK_TOKENS.into(),
            to_stride: row_values,
        };
        kernels.transpose.call(&matrix, &values[first..], rows);
        if !kernels.q8_pack.call(rows, row_values, scales, codes) {
            return false;
        }
    }
    true
}

/// Checks what the checksum does not, in a payload of the codec's own format.
fn check(geometry: &Geometry, payload: &[u8]) -> Result<()> {
    let (scales, codes) = planes(geometry, payload)?;
    let (scales, scales_padding) = scales.split_at(part_scales(geometry) * geometry.parts());
    let codes_padding = &codes[geometry.valid_values()..];
    if let Some(word) = scales.iter().find(|&&word| !is_scale_word(word)) {
        return Err(Error::new(Code::Corrupt, "packed scale word").with(*word));
    }
    if scales_padding.iter().any(|&word| word != 0) || codes_padding.iter().any(|&code| code != 0) {
        return Err(Error::new(Code::Corrupt, "packed padding"));
    }
    Ok(())
}

/// Scale words and codes.
fn planes<'a>(geometry: &Geometry, payload: &'a [u8]) -> Result<(&'a [u16], &'a [i8])> {
    let (scales, codes) = payload.split_at(scales_plane_bytes(geometry));
    let scales = view::numbers::<u16>(scales).ok_or(MISALIGNED)?;
    Ok((scales, view::numbers::<i8>(codes).ok_or(MISALIGNED)?))
}

/// Unpacks one part of a checked payload.
fn read_part(
    kernels: &Kernels,
    tile: &mut [u16],
    geometry: &Geometry,
    payload: &[u8],
    part: usize,
    values: &mut [u16],
) -> Result<()> {
    let (scales, codes) = planes(geometry, payload)?;
    let scales = &scales[part * part_scales(geometry)..][..part_scales(geometry)];
    let part_values = geometry.part_valid_values();
    let codes = &codes[part * part_values..][..part_values];
    let row_values = geometry.head_dim();
    if geometry.layout == ChunkLayout::TokenMajor {
        kernels.q8_unpack.call(scales, codes, row_values, &mut values[..part_values]);
        return Ok(());
    }
    let scales = scales.chunks(TILE_TOKENS * row_scales(geometry));
    let codes = codes.chunks(TILE_TOKENS * row_values);
    for ((first, scales), codes) in (0..).step_by(TILE_TOKENS).zip(scales).zip(codes) {
        let rows = &mut tile[..codes.len()];
        kernels.q8_unpack.call(scales, codes, row_values, rows);
        let matrix = Matrix {
            rows: codes.len() / row_values,
            columns: row_values,
            from_stride: row_values,
            to_stride: CHUNK_TOKENS.into(),
        };
        kernels.transpose.call(&matrix, rows, &mut values[first..]);
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
