//! The kernels in OpenCL C: their sources, the macros they are built with, how they are launched.
//!
//! Invariant: macros and work-group sizes of one kernel come from the same value here, since a
//! kernel whose macros disagree with its launch computes nonsense. What each argument is stands at
//! the top of the kernel's file. Nothing here calls OpenCL.

use crate::limits::{CHUNK_TOKENS, CHUNKS_PER_LAYER_MAX, HEAD_DIM_MAX};
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
/// Matrix product for up to [`FEW_TOKENS_MAX`] tokens.
pub const MATMUL_FEW: Source =
    source!(c"mz_matmul_few", WEIGHTS, include_str!("../../kernels/matmul_few.cl"));
/// Matrix product for any number of tokens.
pub const MATMUL_MANY: Source =
    source!(c"mz_matmul_many", WEIGHTS, include_str!("../../kernels/matmul_many.cl"));
/// RMS norm of rows.
pub const RMS_NORM: Source = source!(c"mz_rms_norm", include_str!("../../kernels/rms_norm.cl"));
/// Rotary embedding, and a scale.
pub const ROTARY: Source = source!(c"mz_rotary", include_str!("../../kernels/rotary.cl"));
/// New keys and values into chunks.
pub const KV_STORE: Source = source!(c"mz_kv_store", include_str!("../../kernels/kv_store.cl"));
/// Single to half precision.
pub const TO_HALF: Source = source!(c"mz_to_half", include_str!("../../kernels/to_half.cl"));
/// Gated activation.
pub const SWIGLU: Source = source!(c"mz_swiglu", include_str!("../../kernels/swiglu.cl"));
/// Sum of two vectors.
pub const ADD: Source = source!(c"mz_add", include_str!("../../kernels/add.cl"));
/// Sum of a bias and each row.
pub const ADD_BIAS: Source = source!(c"mz_add_bias", include_str!("../../kernels/add_bias.cl"));
/// Index of each row's largest value; all ones where a row has only NaN.
pub const ARGMAX: Source = source!(c"mz_argmax", include_str!("../../kernels/argmax.cl"));

/// All of them.
pub const SOURCES: [Source; 14] = [
    ATTENTION_STREAM,
    ATTENTION_MATRIX,
    ATTENTION_COMBINE,
    ATTENTION_TILE,
    MATMUL_FEW,
    MATMUL_MANY,
    RMS_NORM,
    ROTARY,
    KV_STORE,
    TO_HALF,
    SWIGLU,
    ADD,
    ADD_BIAS,
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
}

impl Weights {
    /// All of them, in the order of the numbers in weights.cl.
    pub const ALL: [Weights; 5] =
        [Weights::F32, Weights::F16, Weights::Q8_0, Weights::Q4_0, Weights::Q4_1];

    /// The macro that chooses it.
    pub const fn format(self) -> Macro {
        ("MZ_WEIGHTS", self as u32)
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

/// Sizes of [`RMS_NORM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmsNorm {
    width: u32,
}

impl RmsNorm {
    /// For rows of so many values.
    pub const fn new(values: usize) -> Self {
        RmsNorm { width: if values <= HEAD_DIM_MAX as usize { 64 } else { 256 } }
    }

    /// The macro.
    pub const fn macros(&self) -> [Macro; 1] {
        [("MZ_WIDTH", self.width)]
    }

    /// For so many rows.
    pub fn launch(&self, rows: usize) -> Launch {
        Launch::new(rows, 1, self.width as usize)
    }
}

/// Of [`ARGMAX`].
pub fn argmax_launch(rows: usize) -> Launch {
    Launch::new(rows, 1, 256)
}

#[cfg(test)]
mod tests;
