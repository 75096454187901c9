//! The kernels in OpenCL C: their sources, the macros they are built with, how they are launched.
//!
//! Invariant: macros and work-group sizes of one kernel come from the same value here, since a
//! kernel whose macros disagree with its launch computes nonsense. What each argument is stands at
//! the top of the kernel's file. Nothing here calls OpenCL.

use crate::limits::{CHUNK_TOKENS, CHUNKS_PER_LAYER_MAX};
use core::ffi::CStr;

mod attention;

pub use attention::{
    AttentionMatrix, AttentionShape, AttentionStream, AttentionTile, KeySplit, STREAM_QUERIES_MAX,
};

/// One entry point and the text it is built from: each piece after the other.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Name of the entry point.
    pub name: &'static CStr,
    /// Pieces of source.
    pub pieces: &'static [&'static str],
}

const COMMON: &str = include_str!("../../kernels/common.cl");
const WEIGHTS: &str = include_str!("../../kernels/weights.cl");
const ROWS: &str = include_str!("../../kernels/rows.cl");
const NVIDIA: &str = include_str!("../../kernels/nvidia.cl");

macro_rules! source {
    ($name:literal, $($piece:expr),+) => {
        Source { name: $name, pieces: &[COMMON, $($piece),+] }
    };
}

/// Attention of a few queries, one split of the chunks a work-group.
pub const ATTENTION_STREAM: Source =
    source!(c"mz_attention_stream", include_str!("../../kernels/attention_stream.cl"));
/// The same on NVIDIA's matrix units, and the splits added up.
pub const ATTENTION_MATRIX: Source =
    source!(c"mz_attention_matrix", NVIDIA, include_str!("../../kernels/attention_matrix.cl"));
/// Adds the splits of [`ATTENTION_STREAM`] up.
pub const ATTENTION_COMBINE: Source =
    source!(c"mz_attention_combine", include_str!("../../kernels/attention_combine.cl"));
/// Attention of many queries.
pub const ATTENTION_TILE: Source =
    source!(c"mz_attention_tile", include_str!("../../kernels/attention_tile.cl"));
/// Matrix product for up to [`FEW_TOKENS_MAX`] tokens, of normalised values if asked for.
pub const MATMUL_FEW: Source =
    source!(c"mz_matmul_few", WEIGHTS, ROWS, include_str!("../../kernels/matmul_few.cl"));
/// Matrix product for any number of tokens.
pub const MATMUL_MANY: Source =
    source!(c"mz_matmul_many", WEIGHTS, ROWS, include_str!("../../kernels/matmul_many.cl"));
/// RMS norm of rows.
pub const RMS_NORM: Source = source!(c"mz_rms_norm", include_str!("../../kernels/rms_norm.cl"));
/// Norms of heads, rotary embedding, and new keys and values into chunks.
pub const HEADS: Source = source!(c"mz_heads", include_str!("../../kernels/heads.cl"));
/// Sums of squared queries by channel of K.
pub const ENERGY: Source = source!(c"mz_energy", include_str!("../../kernels/energy.cl"));
/// Index of each row's largest value.
pub const ARGMAX: Source = source!(c"mz_argmax", include_str!("../../kernels/argmax.cl"));

/// All of them.
pub const SOURCES: [Source; 10] = [
    ATTENTION_STREAM,
    ATTENTION_MATRIX,
    ATTENTION_COMBINE,
    ATTENTION_TILE,
    MATMUL_FEW,
    MATMUL_MANY,
    RMS_NORM,
    HEADS,
    ENERGY,
    ARGMAX,
];

/// Defined where queries and keys are multiplied in half precision; queries then arrive as halves.
pub const HALF: &str = "MZ_HALF";
/// Defined where tables hold offsets into one buffer, the last argument of kernels with a table.
pub const POOL: &str = "MZ_POOL";
/// Defined where subgroup functions may be used.
pub const SUBGROUP: &str = "MZ_SUBGROUP";

/// One chunk of a layer, as kernels read it: a table is an array of these in the order of chunks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableEntry {
    /// Shared address, or offset into the pool; a multiple of 16.
    pub address: u64,
    /// How the chunk is encoded.
    pub kind: u32,
    /// Tokens that it holds.
    pub tokens: u32,
}

impl TableEntry {
    const KIND_F16: u32 = 1;

    /// Halves: `[K block, V block]`, each `[kv_head][CHUNK_TOKENS][head_dim]`.
    pub const fn f16(address: u64, tokens: u32) -> Self {
        TableEntry { address, kind: TableEntry::KIND_F16, tokens }
    }

    /// As it lies in device memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.tokens.to_ne_bytes());
        bytes
    }
}

const _: () = assert!(size_of::<TableEntry>() == 16);
// As in common.cl.
const _: () = assert!(CHUNK_TOKENS == 256);
// As in attention_combine.cl.
const _: () = assert!(CHUNKS_PER_LAYER_MAX <= 1024);

/// A macro and its value.
pub type Macro = (&'static str, u32);

/// How many work-groups run, and their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Work-groups in each dimension.
    pub groups: [usize; 3],
    /// Work-items of one.
    pub local: [usize; 3],
}

impl Launch {
    fn new(first: usize, second: usize, width: usize) -> Self {
        Launch { groups: [first, second, 1], local: [width, 1, 1] }
    }
}

/// Encodings of weights that the products read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// 8-bit codes and a scale.
    Q8_0,
    /// 4-bit codes and a scale.
    Q4_0,
    /// 4-bit codes, a scale and a minimum.
    Q4_1,
    /// The upper half of IEEE single.
    Bf16,
    /// 4-bit codes, with scales and minima of 6 bits.
    Q4K,
    /// 6-bit codes, with scales of 8 bits.
    Q6K,
}

impl Weights {
    /// All of them, in the order of the numbers in weights.cl.
    pub const ALL: [Weights; 8] = [
        Weights::F32,
        Weights::F16,
        Weights::Q8_0,
        Weights::Q4_0,
        Weights::Q4_1,
        Weights::Bf16,
        Weights::Q4K,
        Weights::Q6K,
    ];

    /// Values that are encoded together; rows are multiples of it.
    pub const fn block_values(self) -> usize {
        match self {
            Weights::F32 | Weights::F16 | Weights::Bf16 => 1,
            Weights::Q8_0 | Weights::Q4_0 | Weights::Q4_1 => 32,
            Weights::Q4K | Weights::Q6K => 256,
        }
    }

    /// The macro that chooses it.
    pub const fn format(self) -> Macro {
        ("MZ_WEIGHTS", self as u32)
    }
}

/// What kernels take for the place of a norm or of biases that are not there.
pub const NOWHERE: u64 = u64::MAX;

/// Matrices that one product takes at most.
pub const MATRICES_MAX: usize = 3;

/// What becomes of a product's sums; the numbers are those of rows.cl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// They are the outputs.
    Store,
    /// They are added to the outputs.
    Add,
    /// They multiply `silu` of the outputs.
    Gate,
    /// Those of the second matrix multiply `silu` of those of the first.
    Pair,
}

impl Finish {
    /// The argument that chooses it.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Rows of a launch of matrices of `rows`: what [`few_launch`] and [`many_launch`] take.
    pub fn rows(self, rows: impl IntoIterator<Item = usize>) -> usize {
        let mut rows = rows.into_iter();
        match self {
            Finish::Pair => rows.next().unwrap_or(0).next_multiple_of(2) * 2,
            _ => rows.sum(),
        }
    }
}

/// Most tokens of [`MATMUL_FEW`].
pub const FEW_TOKENS_MAX: u32 = 16;

/// The macro of [`MATMUL_FEW`] for so many tokens, besides the weights' format.
pub const fn few_macro(tokens: u32) -> Macro {
    ("MZ_TOKENS", tokens)
}

/// Of [`MATMUL_FEW`].
pub fn few_launch(rows: usize) -> Launch {
    Launch::new(rows.div_ceil(16), 1, 64)
}

/// Of [`MATMUL_MANY`].
pub fn many_launch(rows: usize, tokens: usize) -> Launch {
    Launch::new(rows.div_ceil(64), tokens.div_ceil(32), 128)
}

/// The macro of [`HEADS`] and [`ENERGY`].
pub const fn heads_macro(head_dim: u32) -> Macro {
    ("MZ_HEAD_DIM", head_dim)
}

/// Of [`HEADS`].
pub fn heads_launch(heads: usize, kv_heads: usize, tokens: usize) -> Launch {
    Launch::new(heads + 2 * kv_heads, tokens, 64)
}

/// Of [`ENERGY`], for that many channels: a multiple of 8.
pub fn energy_launch(channels: usize) -> Launch {
    Launch::new(channels / 8, 1, 256)
}

/// Of [`RMS_NORM`].
pub fn norm_launch(rows: usize) -> Launch {
    Launch::new(rows, 1, 256)
}

/// What [`ARGMAX`] says of a row that is all NaN.
pub const ARGMAX_NONE: u32 = u32::MAX;

/// Of [`ARGMAX`].
pub fn argmax_launch(rows: usize) -> Launch {
    Launch::new(rows, 1, 256)
}

#[cfg(test)]
mod tests;
