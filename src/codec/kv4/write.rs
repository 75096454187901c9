//! Packing: rows are brought together where they do not lie so, measured and coded.

use super::{
    CONSTANT, K_STEPS, MISALIGNED, Planes, TILE_STRIDE, TOKENS, V_TOKENS, VERBATIM, WIDTH_BLIND,
};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, LayerSteps};
use crate::error::Result;
use crate::kernel::portable::f32_from_f16;
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
    pub tile: &'a mut [u16],
}

impl Writer<'_> {
    /// Calls `body` with each channel's index and its valid values along the tokens.
    fn k_rows(
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
        let heads = usize::from(self.geometry.shape.kv_heads);
        let tokens = usize::from(self.geometry.tokens);
        let row_bytes = self.geometry.head_dim() / 2;
        let (before, mut codes) = fixed.split_at_mut(self.planes.v_codes);
        let scales = &mut before[self.planes.v_scales..];
        let mut scales = view::numbers_mut::<u16>(scales).ok_or(MISALIGNED)?;
        for part in chunk.chunks_exact(self.geometry.part_values()).skip(heads).take(heads) {
            let (part_scales, scales_behind) = scales.split_at_mut(tokens);
            let (part_codes, codes_behind) = codes.split_at_mut(tokens * row_bytes);
            if !self.write_v_part(part, part_scales, part_codes) {
                return Ok(false);
            }
            (scales, codes) = (scales_behind, codes_behind);
        }
        scales.fill(0);
        codes.fill(0);
        Ok(true)
    }

    /// Writes the rows of one head; false when a value is not finite.
    fn write_v_part(&mut self, part: &[u16], scales: &mut [u16], codes: &mut [u8]) -> bool {
        let (head_dim, encode) = (self.geometry.head_dim(), self.kernels.kv4_v_encode);
        if self.geometry.layout == ChunkLayout::TokenMajor {
            return encode.call(&part[..scales.len() * head_dim], head_dim, scales, codes);
        }
        let groups = scales.chunks_mut(V_TOKENS).zip(codes.chunks_mut(V_TOKENS * head_dim / 2));
        for ((scales, codes), first) in groups.zip((0..).step_by(V_TOKENS)) {
            let rows = &mut self.tile[..scales.len() * head_dim];
            let matrix = Matrix {
                rows: head_dim,
                columns: scales.len(),
                from_stride: TOKENS,
                to_stride: head_dim,
            };
            self.kernels.transpose.call(&matrix, &part[first..], rows);
            if !encode.call(rows, head_dim, scales, codes) {
                return false;
            }
        }
        true
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
            Self::k_rows(kernels, geometry, self.tile, part, |channel, values| {
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
