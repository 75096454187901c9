//! Packing: tokens are brought together where they do not lie so, measured and coded.

use super::{CONSTANT, K_STEPS, MISALIGNED, Planes, TOKENS, VERBATIM, WIDTH_BLIND};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, LayerSteps};
use crate::error::Result;
use crate::kernel::kv4::CHANNELS_MAX;
use crate::kernel::portable::f32_from_f16;
use crate::kernel::{Kernels, Kv4Channels, Kv4Row, Kv4Span, Matrix};

/// How a channel of K is stored, and with which ends.
fn choose(span: &Kv4Span, step: Option<f32>) -> Kv4Row {
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
    /// The valid values of one part by tokens.
    fn tokens<'a>(&'a mut self, part: &'a [u16]) -> &'a [u16] {
        if self.geometry.layout == ChunkLayout::TokenMajor {
            return &part[..self.geometry.part_valid_values()];
        }
        let head_dim = self.geometry.head_dim();
        let matrix = Matrix {
            rows: head_dim,
            columns: self.planes.tokens,
            from_stride: TOKENS,
            to_stride: head_dim,
        };
        self.kernels.transpose.call(&matrix, part, self.tile);
        self.tile
    }

    /// Writes both planes of V; false when a value is not finite.
    pub(super) fn write_v(&mut self, chunk: &[u16], fixed: &mut [u8]) -> Result<bool> {
        let (heads, head_dim) =
            (usize::from(self.geometry.shape.kv_heads), self.geometry.head_dim());
        let Planes { tokens, v_scales, v_codes, k_codes, .. } = self.planes;
        let (before, codes) = fixed[..k_codes].split_at_mut(v_codes);
        let scales = view::numbers_mut::<u16>(&mut before[v_scales..]).ok_or(MISALIGNED)?;
        let scales = unpadded(scales, heads * tokens);
        let codes = unpadded(codes, heads * tokens * head_dim / 2);
        let planes =
            scales.chunks_exact_mut(tokens).zip(codes.chunks_exact_mut(tokens * head_dim / 2));
        let parts = chunk.chunks_exact(self.geometry.part_values()).skip(heads).take(heads);
        for (part, (scales, codes)) in parts.zip(planes) {
            let encode = self.kernels.kv4_v_encode;
            if !encode.call(self.tokens(part), head_dim, scales, codes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the planes of K; the bytes behind the fixed ones, or `None` when these are too many.
    pub(super) fn write_k(
        &mut self,
        steps: Option<LayerSteps<'_>>,
        chunk: &[u16],
        fixed: &mut [u8],
        mut rest: &mut [u8],
    ) -> Result<Option<usize>> {
        let (planes, head_dim) = (self.planes, self.geometry.head_dim());
        let (ends, others) = fixed.split_at_mut(planes.k_widths);
        let (ends, _) = view::numbers_mut::<u16>(ends).ok_or(MISALIGNED)?.as_chunks_mut::<2>();
        let (widths, others) = others.split_at_mut(planes.v_scales - planes.k_widths);
        let nibbles = &mut others[planes.k_codes - planes.v_scales..];
        let (ends, widths) = (unpadded(ends, planes.rows), unpadded(widths, planes.rows));
        let nibbles = unpadded(nibbles, planes.rows * planes.tokens / 2);
        let room = rest.len();
        let nibbles = nibbles.chunks_exact_mut(planes.tokens * head_dim / 2);
        let channels = ends.chunks_exact_mut(head_dim).zip(widths.chunks_exact_mut(head_dim));
        let parts = chunk.chunks_exact(self.geometry.part_values()).enumerate();
        for (((head, part), nibbles), (ends, widths)) in parts.zip(nibbles).zip(channels) {
            let kernels = self.kernels;
            let values = self.tokens(part);
            let steps = steps.map(|steps| &steps.k[head * head_dim..]);
            choose_all(kernels, values, steps, ends, widths);
            let (upper, verbatim) = planes.rest_bytes(widths);
            let Some((own, behind)) = rest.split_at_mut_checked(upper + verbatim) else {
                return Ok(None);
            };
            let (upper, verbatim) = own.split_at_mut(upper);
            kernels.kv4_encode.call(values, &Kv4Channels { ends, widths }, nibbles, upper);
            let rows = verbatim.chunks_exact_mut(2 * planes.tokens);
            let verbatim = widths.iter().enumerate().filter(|(_, width)| **width == VERBATIM);
            for ((channel, _), row) in verbatim.zip(rows) {
                let values = values[channel..].iter().step_by(head_dim);
                for (to, value) in row.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *to = value.to_le_bytes();
                }
            }
            rest = behind;
        }
        Ok(Some(room - rest.len()))
    }
}

/// The values of a plane, which is filled up with zeros behind them.
fn unpadded<T: Copy + Default>(plane: &mut [T], values: usize) -> &mut [T] {
    let (own, padding) = plane.split_at_mut(values);
    padding.fill(T::default());
    own
}

/// Chooses how each channel of one head is stored.
fn choose_all(
    kernels: &Kernels,
    values: &[u16],
    steps: Option<&[f32]>,
    ends: &mut [[u16; 2]],
    widths: &mut [u8],
) {
    let mut spans = [Kv4Span::default(); CHANNELS_MAX];
    let spans = &mut spans[..widths.len()];
    kernels.kv4_spread.call(values, spans);
    for (channel, (span, (ends, width))) in
        spans.iter().zip(ends.iter_mut().zip(widths)).enumerate()
    {
        let row = choose(span, steps.and_then(|steps| steps.get(channel).copied()));
        (*ends, *width) = ([row.min, row.max], row.width);
    }
}
