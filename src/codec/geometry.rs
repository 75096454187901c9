//! What follows from a geometry: which values of a chunk are valid, and whether it is one at all.

use super::{Geometry, PLANE_ALIGN};
use crate::error::{Code, Error, Result};
use crate::limits::{CHUNK_TOKENS, HEAD_DIM_MAX, HEAD_DIM_MIN, KV_HEADS_MAX};
use core::ops::Range;

/// Rows are whole vectors of this many values, for the kernels' sake.
const HEAD_DIM_MULTIPLE: u16 = 8;

impl Geometry {
    /// Values of one head's valid rows.
    pub(super) fn head_values(&self) -> usize {
        usize::from(self.tokens) * usize::from(self.shape.head_dim)
    }

    /// Values of all valid rows of K and V.
    pub(super) fn valid_values(&self) -> usize {
        self.heads().len() * self.head_values()
    }

    /// Bytes that the valid rows take in F16, filled up to whole planes.
    pub(super) fn raw_payload_bytes(&self) -> usize {
        (2 * self.valid_values()).next_multiple_of(PLANE_ALIGN)
    }

    /// The valid rows of each head of K, then of V, as ranges of the chunk's values.
    pub(super) fn heads(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        let stride = usize::from(CHUNK_TOKENS) * usize::from(self.shape.head_dim);
        let head_values = self.head_values();
        (0..2 * usize::from(self.shape.kv_heads)).map(move |head| {
            let start = head * stride;
            start..start + head_values
        })
    }

    /// Checks the caller's arguments: every number in its range, and a chunk that is long enough.
    pub(super) fn check(&self, chunk_values: usize) -> Result<()> {
        let refuse = |what, value: u16| Err(Error::new(Code::InvalidArgument, what).with(value));
        let shape = &self.shape;
        if !(1..=KV_HEADS_MAX).contains(&shape.kv_heads) {
            return refuse("kv_heads", shape.kv_heads);
        }
        if !(HEAD_DIM_MIN..=HEAD_DIM_MAX).contains(&shape.head_dim)
            || !shape.head_dim.is_multiple_of(HEAD_DIM_MULTIPLE)
        {
            return refuse("head_dim", shape.head_dim);
        }
        if !(1..=CHUNK_TOKENS).contains(&self.tokens) {
            return refuse("tokens", self.tokens);
        }
        if chunk_values < 2 * shape.block_values() {
            return Err(Error::new(Code::InvalidArgument, "chunk buffer").with(chunk_values));
        }
        Ok(())
    }
}
