//! Packing: rows are taken along tokens, measured and coded.

use super::{
    CONSTANT, K_STEPS, MISALIGNED, Planes, Scratch, TILE_STRIDE, TOKENS, VERBATIM, WIDTH_BLIND,
};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, LayerSteps};
use crate::error::Result;
use crate::kernel::kv4::{self, KV4_NIBBLE_BYTES};
use crate::kernel::portable::{F16_INFINITY, f32_from_f16};
use crate::kernel::{Kernels, Kv4Row, Kv4Span, Matrix};

/// How a K row is stored, and with which ends.
pub(crate) fn choose(span: &Kv4Span, step: Option<f32>) -> Kv4Row {
    let Kv4Span { min, max, is_finite } = *span;
    let row = |min, max, width| Kv4Row { min, max, width };
    if !is_finite {
        return row(0, 0, VERBATIM);
    }
    if min == max {
        return row(min, max, CONSTANT);
    }
    let width = step.map_or(WIDTH_BLIND, |step| {
        let distances = (f32_from_f16(max) - f32_from_f16(min)) / (K_STEPS * step);
        match distances {
            ..=15.0 => 4,
            ..=31.0 => 5,
            _ => 6,
        }
    });
    match row(min, max, width) {
        stable if stable.is_stable() => stable,
        _ => row(0, 0, VERBATIM),
    }
}

/// Fills the planes of a payload.
pub(super) struct Writer<'a> {
    pub kernels: &'a Kernels,
    pub geometry: &'a Geometry,
    pub planes: Planes,
    pub scratch: Scratch<'a>,
}

impl Writer<'_> {
    /// Calls `body` with each channel's index and its valid values along the tokens.
    fn rows(
        kernels: &Kernels,
        geometry: &Geometry,
        tile: &mut [u16],
        part: &[u16],
        mut body: impl FnMut(usize, &[u16]),
    ) {
        let (head_dim, tokens) = (geometry.head_dim(), usize::from(geometry.tokens));
        if geometry.layout == ChunkLayout::ChannelMajor {
            for (channel, row) in part.chunks_exact(TOKENS).take(head_dim).enumerate() {
                body(channel, &row[..tokens]);
            }
            return;
        }
        let matrix = Matrix {
            rows: tokens,
            columns: head_dim,
            from_stride: head_dim,
            to_stride: TILE_STRIDE,
        };
        kernels.transpose.call(&matrix, part, tile);
        for (channel, row) in tile.chunks_exact(TILE_STRIDE).enumerate() {
            body(channel, &row[..tokens]);
        }
    }

    /// Writes both planes of V; false when a value is not finite.
    pub(super) fn write_v(&mut self, chunk: &[u16], fixed: &mut [u8]) -> Result<bool> {
        let Writer { kernels, geometry, planes, .. } = *self;
        let Scratch { tile, factors, greatest } = &mut self.scratch;
        let tokens = usize::from(geometry.tokens);
        let (before, codes) = fixed.split_at_mut(planes.v_codes);
        let scales = view::numbers_mut::<u16>(&mut before[planes.v_scales..]).ok_or(MISALIGNED)?;
        let parts = chunk.chunks_exact(geometry.part_values()).take(geometry.parts());
        let heads = parts.skip(usize::from(geometry.shape.kv_heads)).enumerate();
        let row_bytes = planes.blocks * KV4_NIBBLE_BYTES;
        for (head, part) in heads {
            let (greatest, factors) = (&mut greatest[..tokens], &mut factors[..tokens]);
            greatest.fill(0);
            Self::rows(kernels, geometry, tile, part, |_, row| kv4::absmax(row, greatest));
            let scales = &mut scales[head * tokens..][..tokens];
            for ((scale, factor), &absmax) in scales.iter_mut().zip(&mut *factors).zip(&*greatest) {
                if absmax >= F16_INFINITY {
                    return Ok(false);
                }
                *scale = kv4::kv4_scale_word(absmax);
                *factor = 1.0 / kv4::kv4_step(*scale);
            }
            let codes = &mut codes[head * geometry.head_dim() * row_bytes..];
            Self::rows(kernels, geometry, tile, part, |channel, row| {
                let codes = &mut codes[channel * row_bytes..][..row_bytes];
                kernels.kv4_v_encode.call(row, factors, codes);
            });
        }
        scales[usize::from(geometry.shape.kv_heads) * tokens..].fill(0);
        codes[planes.rows * row_bytes..].fill(0);
        Ok(true)
    }

    /// Writes the planes of K; the bytes of its codes, or `None` when these are too many.
    pub(super) fn write_k(
        &mut self,
        steps: Option<LayerSteps<'_>>,
        chunk: &[u16],
        fixed: &mut [u8],
        codes: &mut [u8],
    ) -> Result<Option<usize>> {
        let Writer { kernels, geometry, planes, .. } = *self;
        let (ends, rest) = fixed.split_at_mut(planes.k_widths);
        let (ends, _) = view::numbers_mut::<u16>(ends).ok_or(MISALIGNED)?.as_chunks_mut::<2>();
        let widths = &mut rest[..planes.v_scales - planes.k_widths];
        let mut used = Some(0usize);
        let heads = chunk.chunks_exact(geometry.part_values()).enumerate();
        for (head, part) in heads.take(usize::from(geometry.shape.kv_heads)) {
            Self::rows(kernels, geometry, self.scratch.tile, part, |channel, values| {
                let place = head * geometry.head_dim() + channel;
                let step = steps.and_then(|steps| steps.k.get(place).copied());
                let row = choose(&kernels.kv4_spread.call(values), step);
                ends[place] = [row.min, row.max];
                widths[place] = row.width;
                used = used.and_then(|start| {
                    let end = start + planes.code_bytes(row.width)?;
                    write_row(kernels, &row, values, codes.get_mut(start..end)?);
                    Some(end)
                });
            });
        }
        ends[planes.rows..].fill([0; 2]);
        widths[planes.rows..].fill(0);
        Ok(used)
    }
}

/// Writes the codes of a K row.
fn write_row(kernels: &Kernels, row: &Kv4Row, values: &[u16], codes: &mut [u8]) {
    match row.width {
        CONSTANT => {}
        VERBATIM => {
            let (halves, padding) = codes.split_at_mut(2 * values.len());
            halves.copy_from_slice(view::bytes_of(values));
            padding.fill(0);
        }
        _ => kernels.kv4_encode.call(values, row, codes),
    }
}
