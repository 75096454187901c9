//! Unpacking: tokens are decoded and brought to where the layout wants them.

use super::{MISALIGNED, Planes, TOKENS, VERBATIM, k_rows};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry};
use crate::error::Result;
use crate::kernel::{Kernels, Kv4Channels, Matrix};

/// A checked payload.
pub(super) struct Reader<'a> {
    pub kernels: &'a Kernels,
    pub geometry: &'a Geometry,
    pub planes: Planes,
    pub payload: &'a [u8],
}

impl Reader<'_> {
    pub(super) fn read(&self, part: usize, tile: &mut [u16], values: &mut [u16]) -> Result<()> {
        let (tokens, head_dim) = (self.planes.tokens, self.geometry.head_dim());
        if self.geometry.layout == ChunkLayout::TokenMajor {
            return self.read_tokens(part, &mut values[..tokens * head_dim]);
        }
        self.read_tokens(part, tile)?;
        let matrix =
            Matrix { rows: tokens, columns: head_dim, from_stride: head_dim, to_stride: TOKENS };
        self.kernels.transpose.call(&matrix, tile, values);
        Ok(())
    }

    /// The valid values of one part by tokens.
    fn read_tokens(&self, part: usize, values: &mut [u16]) -> Result<()> {
        match part.checked_sub(usize::from(self.geometry.shape.kv_heads)) {
            None => self.read_k(part, values),
            Some(head) => self.read_v(head, values),
        }
    }

    fn read_k(&self, head: usize, values: &mut [u16]) -> Result<()> {
        let (ends, widths) = k_rows(&self.planes, self.payload)?;
        let head_dim = self.geometry.head_dim();
        let first = head * head_dim;
        let (upper, verbatim) = self.planes.rest_bytes(&widths[..first]);
        let rest = &self.payload[self.planes.k_rest + upper + verbatim..];
        let (ends, widths) = (&ends[first..][..head_dim], &widths[first..][..head_dim]);
        let nibbles = &self.payload[self.planes.k_codes + head * values.len() / 2..];
        let nibbles = &nibbles[..values.len() / 2];
        self.kernels.kv4_decode.call(&Kv4Channels { ends, widths }, nibbles, rest, values);
        let (upper, _) = self.planes.rest_bytes(widths);
        let (mut halves, _) = rest[upper..].as_chunks::<2>();
        for (channel, _) in widths.iter().enumerate().filter(|(_, width)| **width == VERBATIM) {
            let (own, behind) = halves.split_at(self.planes.tokens);
            for (value, &half) in values[channel..].iter_mut().step_by(head_dim).zip(own) {
                *value = u16::from_le_bytes(half);
            }
            halves = behind;
        }
        Ok(())
    }

    fn read_v(&self, head: usize, values: &mut [u16]) -> Result<()> {
        let Planes { tokens, v_scales, v_codes, .. } = self.planes;
        let scales = view::numbers::<u16>(&self.payload[v_scales..v_codes]).ok_or(MISALIGNED)?;
        let scales = &scales[head * tokens..][..tokens];
        let codes = &self.payload[v_codes + head * values.len() / 2..][..values.len() / 2];
        self.kernels.kv4_v_decode.call(scales, codes, self.geometry.head_dim(), values);
        Ok(())
    }
}
