//! Unpacking: rows are decoded along tokens and brought to where the layout wants them.

use super::{CONSTANT, MISALIGNED, Planes, Scratch, TILE_STRIDE, TOKENS, VERBATIM, k_rows};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry};
use crate::error::Result;
use crate::kernel::kv4::{self, KV4_NIBBLE_BYTES};
use crate::kernel::{Kernels, Kv4Row, Matrix};

/// A checked payload.
pub(super) struct Reader<'a> {
    pub kernels: &'a Kernels,
    pub geometry: &'a Geometry,
    pub planes: Planes,
    pub payload: &'a [u8],
}

impl Reader<'_> {
    /// Has `body` fill each channel's valid values along the tokens.
    fn rows(&self, tile: &mut [u16], part: &mut [u16], mut body: impl FnMut(usize, &mut [u16])) {
        let head_dim = self.geometry.head_dim();
        let tokens = usize::from(self.geometry.tokens);
        if self.geometry.layout == ChunkLayout::ChannelMajor {
            for (channel, row) in part.chunks_exact_mut(TOKENS).take(head_dim).enumerate() {
                body(channel, &mut row[..tokens]);
            }
            return;
        }
        for (channel, row) in tile.chunks_exact_mut(TILE_STRIDE).enumerate() {
            body(channel, &mut row[..tokens]);
        }
        let matrix = Matrix {
            rows: head_dim,
            columns: tokens,
            from_stride: TILE_STRIDE,
            to_stride: head_dim,
        };
        self.kernels.transpose.call(&matrix, tile, part);
    }

    pub(super) fn read_k(&self, head: usize, scratch: Scratch<'_>, part: &mut [u16]) -> Result<()> {
        let (ends, widths) = k_rows(&self.planes, self.payload)?;
        let first = head * self.geometry.head_dim();
        let bytes = |width: &u8| self.planes.code_bytes(*width).unwrap_or(0);
        let before: usize = widths[..first].iter().map(bytes).sum();
        let mut codes = &self.payload[self.planes.k_codes + before..];
        self.rows(scratch.tile, part, |channel, values| {
            let (&[min, max], &width) = (&ends[first + channel], &widths[first + channel]);
            let (own, behind) = codes.split_at(bytes(&width));
            codes = behind;
            match width {
                CONSTANT => values.fill(min),
                VERBATIM => {
                    let (halves, _) = own.as_chunks::<2>();
                    for (value, &half) in values.iter_mut().zip(halves) {
                        *value = u16::from_le_bytes(half);
                    }
                }
                _ => self.kernels.kv4_decode.call(&Kv4Row { min, max, width }, own, values),
            }
        });
        Ok(())
    }

    pub(super) fn read_v(&self, head: usize, scratch: Scratch<'_>, part: &mut [u16]) -> Result<()> {
        let (planes, tokens) = (&self.planes, usize::from(self.geometry.tokens));
        let scales = view::numbers::<u16>(&self.payload[planes.v_scales..planes.v_codes]);
        let scales = &scales.ok_or(MISALIGNED)?[head * tokens..][..tokens];
        let steps = &mut scratch.factors[..tokens];
        for (step, &word) in steps.iter_mut().zip(scales) {
            *step = kv4::kv4_step(word);
        }
        let row_bytes = planes.blocks * KV4_NIBBLE_BYTES;
        let first = planes.v_codes + head * self.geometry.head_dim() * row_bytes;
        let codes = &self.payload[first..planes.k_codes];
        self.rows(scratch.tile, part, |channel, values| {
            let codes = &codes[channel * row_bytes..][..row_bytes];
            self.kernels.kv4_v_decode.call(codes, scales, steps, values);
        });
        Ok(())
    }
}
