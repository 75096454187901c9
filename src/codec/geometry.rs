//! What follows from a geometry: which values of a chunk are valid, and whether it is one at all.

use super::PLANE_ALIGN;
use crate::error::{Code, Error, Result};
use crate::limits::{CHUNK_TOKENS, HEAD_DIM_MAX, HEAD_DIM_MIN, KV_HEADS_MAX};
use crate::units::{ChunkId, KvShape};
use core::ops::Range;

/// Rows are whole vectors of this many values, for the kernels' sake.
const HEAD_DIM_MULTIPLE: u16 = 8;

/// In which order the values of one head lie in a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkLayout {
    /// `[256 tokens][head_dim]`.
    #[default]
    TokenMajor,
    /// `[head_dim][256 tokens]`.
    ChannelMajor,
}

/// Which chunk, how it is laid out, and how many of its tokens are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The cache's shape; a chunk is `[K, V][kv_head]` and what the layout says, in F16.
    pub shape: KvShape,
    /// Which chunk, so that one packed chunk is never taken for another.
    pub id: ChunkId,
    /// Valid tokens, 1 to 256; values of others are neither read nor written.
    pub tokens: u16,
    /// Order of the values of one head.
    pub layout: ChunkLayout,
}

impl Geometry {
    /// Parts of the chunk, the grain by which several cores share it: the heads of K, then those of
    /// V.
    pub fn parts(&self) -> usize {
        2 * usize::from(self.shape.kv_heads)
    }

    /// Values of the chunk's buffer that belong to one part, those of tokens that are not valid
    /// included.
    pub fn part_values(&self) -> usize {
        usize::from(CHUNK_TOKENS) * usize::from(self.shape.head_dim)
    }

    /// Channels of one head.
    pub(super) fn head_dim(&self) -> usize {
        usize::from(self.shape.head_dim)
    }

    /// Valid values of one part.
    pub(super) fn part_valid_values(&self) -> usize {
        usize::from(self.tokens) * self.head_dim()
    }

    /// Valid values of the chunk.
    pub(super) fn valid_values(&self) -> usize {
        self.parts() * self.part_valid_values()
    }

    /// Bytes that the valid values take in F16, filled up to whole planes.
    pub(super) fn raw_payload_bytes(&self) -> usize {
        (2 * self.valid_values()).next_multiple_of(PLANE_ALIGN)
    }

    /// The valid values of one part, in memory order, as ranges of [`Geometry::part_values`].
    pub(super) fn runs(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let (runs, stride, values) = match self.layout {
            ChunkLayout::TokenMajor => (1, 0, self.part_valid_values()),
            ChunkLayout::ChannelMajor => {
                (self.head_dim(), usize::from(CHUNK_TOKENS), usize::from(self.tokens))
            }
        };
        (0..runs).map(move |run| run * stride..run * stride + values)
    }

    /// Checks the caller's arguments: every number in its range, and a chunk that is long enough.
    pub(super) fn check(&self, chunk_values: usize) -> Result<()> {
        self.check_numbers()?;
        if chunk_values < self.parts() * self.part_values() {
            return Err(Error::new(Code::InvalidArgument, "chunk buffer").with(chunk_values));
        }
        Ok(())
    }

    /// Checks that every number is in its range.
    pub(super) fn check_numbers(&self) -> Result<()> {
        check_shape(&self.shape)?;
        match (1..=CHUNK_TOKENS).contains(&self.tokens) {
            true => Ok(()),
            false => Err(Error::new(Code::InvalidArgument, "tokens").with(self.tokens)),
        }
    }
}

/// Checks the numbers of one layer's cache.
pub(super) fn check_shape(shape: &KvShape) -> Result<()> {
    let refuse = |what, value: u16| Err(Error::new(Code::InvalidArgument, what).with(value));
    if !(1..=KV_HEADS_MAX).contains(&shape.kv_heads) {
        return refuse("kv_heads", shape.kv_heads);
    }
    if !(HEAD_DIM_MIN..=HEAD_DIM_MAX).contains(&shape.head_dim)
        || !shape.head_dim.is_multiple_of(HEAD_DIM_MULTIPLE)
    {
        return refuse("head_dim", shape.head_dim);
    }
    Ok(())
}
