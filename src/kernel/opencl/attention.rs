//! Sizes of the attention kernels: macros, work-groups, and how the cache is divided among them.

use super::{Launch, Macro};
use crate::limits::{CHUNK_TOKENS, HEAD_DIM_MAX, HEAD_DIM_MIN};

/// What attention works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values of a head.
    pub head_dim: u32,
    /// Queries at once.
    pub queries: u32,
}

impl AttentionShape {
    /// Whether kernels can be built for it.
    pub fn is_supported(&self) -> bool {
        let dims = u32::from(HEAD_DIM_MIN)..=u32::from(HEAD_DIM_MAX);
        let heads = self.kv_heads > 0 && self.heads > 0 && self.heads.is_multiple_of(self.kv_heads);
        heads
            && self.queries > 0
            && dims.contains(&self.head_dim)
            && self.head_dim.is_multiple_of(8)
    }

    /// Rows of one key head: queries times the query heads that share it.
    fn rows(&self) -> u32 {
        self.queries * (self.heads / self.kv_heads)
    }

    /// Rows of all heads: those of scratch and outputs.
    pub fn rows_all(&self) -> u32 {
        self.queries * self.heads
    }

    /// Values of scratch for partial outputs of `splits` splits, and pairs of state.
    fn scratch(&self, splits: u32) -> (usize, usize) {
        let rows = splits as usize * self.rows_all() as usize;
        (rows * self.head_dim as usize, rows)
    }
}

/// More queries than this are better served by [`AttentionTile`].
pub const STREAM_QUERIES_MAX: u32 = 16;

/// Sizes of [`super::ATTENTION_STREAM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionStream {
    shape: AttentionShape,
    rows: u32,
}

impl AttentionStream {
    const WIDTH: u32 = 64;
    const ROWS_MAX: u32 = 16;

    /// As many rows a work-group as registers and `local_bytes` of local memory allow. `None` for a
    /// shape that is not supported, or too little local memory for any.
    pub fn new(shape: AttentionShape, local_bytes: u64) -> Option<Self> {
        if !shape.is_supported() {
            return None;
        }
        let mut rows = match shape.rows() {
            rows @ 1..=3 => rows,
            rows => rows.next_multiple_of(4).min(Self::ROWS_MAX),
        };
        let build = |rows| AttentionStream { shape, rows };
        while build(rows).local_bytes() > local_bytes {
            rows = match rows {
                1 => return None,
                2 | 3 => 1,
                4 => 2,
                _ => rows - 4,
            };
        }
        Some(build(rows))
    }

    /// Local memory of a work-group, at most.
    fn local_bytes(&self) -> u64 {
        let queries = self.rows * self.shape.head_dim * 4;
        let p = self.rows * u32::from(CHUNK_TOKENS) * 4;
        let rows = 3 * 4 * self.rows;
        // Shares of a reduction, and padding to the largest alignment.
        u64::from(queries + p + rows + Self::WIDTH * 4 + 128)
    }

    /// Macros.
    pub fn macros(&self) -> [Macro; 3] {
        [("MZ_HEAD_DIM", self.shape.head_dim), ("MZ_ROWS", self.rows), ("MZ_WIDTH", Self::WIDTH)]
    }

    /// The same kernel for another number of queries. Rows of a work-group that none of them fills
    /// are computed in vain.
    pub const fn with_queries(self, queries: u32) -> Self {
        let shape = AttentionShape { queries, ..self.shape };
        AttentionStream { shape, ..self }
    }

    fn blocks(&self) -> u32 {
        self.shape.rows().div_ceil(self.rows)
    }

    /// Chunks of a split, so that `chunks` chunks make about `groups` work-groups.
    pub fn split_chunks(&self, chunks: u32, groups: u32) -> u32 {
        let splits = (groups / (self.shape.kv_heads * self.blocks())).clamp(1, chunks.max(1));
        chunks.div_ceil(splits).max(1)
    }

    /// For `splits` splits.
    pub fn launch(&self, splits: u32) -> Launch {
        let groups = splits as usize * self.blocks() as usize;
        Launch::new(groups, self.shape.kv_heads as usize, Self::WIDTH as usize)
    }

    /// Values of scratch for partial outputs, and pairs of state.
    pub fn scratch(&self, splits: u32) -> (usize, usize) {
        self.shape.scratch(splits)
    }

    /// Of [`super::ATTENTION_COMBINE`], whose one macro is the first of
    /// [`AttentionStream::macros`].
    pub fn combine_launch(&self) -> Launch {
        Launch::new(self.shape.rows_all() as usize, 1, 256)
    }
}

/// Sizes of [`super::ATTENTION_MATRIX`], for NVIDIA's matrix units of compute capability 8.0 or
/// later. Its queries are halves always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMatrix {
    shape: AttentionShape,
    /// Blocks of 16 rows of a work-group.
    blocks: u32,
}

/// How the keys are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySplit {
    /// Work-groups that share the keys of a head.
    pub splits: u32,
    /// Steps of one of their warps.
    pub warp_steps: u32,
}

impl AttentionMatrix {
    const WARPS: u32 = 8;
    const BLOCK_ROWS: u32 = 16;

    /// `None` for a shape that is not supported.
    pub fn new(shape: AttentionShape) -> Option<Self> {
        let is_supported = shape.is_supported() && matches!(shape.head_dim, 64 | 128);
        // Outputs of two blocks of longer heads do not fit into registers.
        let blocks = if shape.head_dim == 64 && shape.rows() > Self::BLOCK_ROWS { 2 } else { 1 };
        is_supported.then_some(AttentionMatrix { shape, blocks })
    }

    /// Macros.
    pub fn macros(&self) -> [Macro; 2] {
        [("MZ_HEAD_DIM", self.shape.head_dim), ("MZ_BLOCKS", self.blocks)]
    }

    /// The same kernel for another number of queries.
    pub const fn with_queries(self, queries: u32) -> Self {
        let shape = AttentionShape { queries, ..self.shape };
        AttentionMatrix { shape, ..self }
    }

    /// Keys that a warp computes at once.
    const fn step_keys(&self) -> u32 {
        2048 / self.shape.head_dim
    }

    fn row_groups(&self) -> u32 {
        self.shape.rows().div_ceil(Self::BLOCK_ROWS * self.blocks)
    }

    /// Divides the keys `first_seen..end` evenly among at most `groups` work-groups in all, or one
    /// a head and row group if that is more. One takes all of a compute unit's registers.
    pub fn split(&self, first_seen: u32, end: u32, groups: u32) -> KeySplit {
        let keys = self.step_keys();
        let steps = (end.div_ceil(keys) - first_seen / keys).max(1);
        let warp_steps = steps.div_ceil(self.splits_max(groups).saturating_mul(Self::WARPS));
        KeySplit { splits: steps.div_ceil(warp_steps * Self::WARPS), warp_steps }
    }

    /// Most splits of any keys for `groups` work-groups.
    pub fn splits_max(&self, groups: u32) -> u32 {
        (groups / (self.shape.kv_heads * self.row_groups())).max(1)
    }

    /// For `splits` splits.
    pub fn launch(&self, splits: u32) -> Launch {
        let groups = splits as usize * self.row_groups() as usize;
        Launch::new(groups, self.shape.kv_heads as usize, (32 * Self::WARPS) as usize)
    }

    /// Values of scratch for partial outputs, and pairs of state.
    pub fn scratch(&self, splits: u32) -> (usize, usize) {
        self.shape.scratch(splits)
    }

    /// Words of scratch that are zero before and after every launch.
    pub fn counters(&self) -> usize {
        self.shape.kv_heads as usize * self.row_groups() as usize
    }
}

/// Sizes of [`super::ATTENTION_TILE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionTile {
    shape: AttentionShape,
    rows: u32,
}

impl AttentionTile {
    /// The same kernel for another number of queries.
    pub const fn with_queries(self, queries: u32) -> Self {
        let shape = AttentionShape { queries, ..self.shape };
        AttentionTile { shape, ..self }
    }

    /// `None` for a shape that is not supported, or too little local memory.
    pub fn new(shape: AttentionShape, local_bytes: u64) -> Option<Self> {
        let fits = |rows: &u32| AttentionTile { shape, rows: *rows }.local_bytes() <= local_bytes;
        let rows = [32, 16].into_iter().find(fits)?;
        shape.is_supported().then_some(AttentionTile { shape, rows })
    }

    /// Local memory of a work-group, at most.
    fn local_bytes(&self) -> u64 {
        const KEYS: u32 = 32;
        let queries = self.rows * self.shape.head_dim * 4;
        let tile = KEYS * (self.shape.head_dim / 8 + 1) * 16;
        let p = KEYS * self.rows * 4;
        // Lanes of a reduction, three numbers a row, padding.
        u64::from(queries + tile + p + self.rows * (16 + 3) * 4 + 128)
    }

    /// Macros.
    pub fn macros(&self) -> [Macro; 2] {
        [("MZ_HEAD_DIM", self.shape.head_dim), ("MZ_ROWS", self.rows)]
    }

    /// For all queries.
    pub fn launch(&self) -> Launch {
        let blocks = self.shape.rows().div_ceil(self.rows);
        Launch::new(blocks as usize, self.shape.kv_heads as usize, 4 * self.rows as usize)
    }
}
