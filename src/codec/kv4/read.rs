//! Unpacking: rows are decoded and brought to where the layout wants them.

use super::{CONSTANT, MISALIGNED, Planes, TILE_STRIDE, TOKENS, V_TOKENS, VERBATIM, k_rows};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry};
use crate::error::Result;
use crate::kernel::{Kernels, Kv4Row, Matrix};

/// A checked payload.
pub(super) struct Reader<'a> {
    pub kernels: &'a Kernels,
    pub geometry: &'a Geometry,
    pub planes: Planes,
    pub payload: &'a [u8],
}

impl Reader<'_> {
    /// Has `body` fill each K channel's valid values along the tokens.
    fn k_rows(&self, tile: &mut [u16], part: &mut [u16], mut body: impl FnMut(usize, &mut [u16])) {
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

    pub(super) fn read_k(&self, head: usize, tile: &mut [u16], part: &mut [u16]) -> Result<()> {
        let (ends, widths) = k_rows(&self.planes, self.payload)?;
        let first = head * self.geometry.head_dim();
        let bytes = |width: &u8| self.planes.code_bytes(*width).unwrap_or(0);
        let before: usize = widths[..first].iter().map(bytes).sum();
        let mut codes = &self.payload[self.planes.k_codes + before..];
        self.k_rows(tile, part, |channel, values| {
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

    pub(super) fn read_v(&self, head: usize, tile: &mut [u16], part: &mut [u16]) -> Result<()> {
        let (head_dim, tokens) = (self.geometry.head_dim(), usize::from(self.geometry.tokens));
        let Planes { v_scales, v_codes, .. } = self.planes;
        let scales = view::numbers::<u16>(&self.payload[v_scales..v_codes]).ok_or(MISALIGNED)?;
        let scales = &scales[head * tokens..][..tokens];
        let row_bytes = head_dim / 2;
        let codes = &self.payload[v_codes + head * tokens * row_bytes..][..tokens * row_bytes];
        let decode = self.kernels.kv4_v_decode;
        if self.geometry.layout == ChunkLayout::TokenMajor {
            decode.call(scales, codes, head_dim, &mut part[..tokens * head_dim]);
            return Ok(());
        }
        let groups = scales.chunks(V_TOKENS).zip(codes.chunks(V_TOKENS * row_bytes));
        for ((scales, codes), first) in groups.zip((0..).step_by(V_TOKENS)) {
            let rows = &mut tile[..scales.len() * head_dim];
            decode.call(scales, codes, head_dim, rows);
            let matrix = Matrix {
                rows: scales.len(),
                columns: head_dim,
                from_stride: head_dim,
                to_stride: TOKENS,
            };
            self.kernels.transpose.call(&matrix, rows, &mut part[first..]);
        }
        Ok(())
    }
}
