//! Every maximum in one place, with the relations among them checked at compile time.

/// Tokens in one KV chunk (paper 4.3: reads of a chunk then saturate the storage).
pub const CHUNK_TOKENS: u16 = 256;
/// Weight units of one model: transformer layers and the output head.
pub const LAYERS_MAX: u16 = 256;
/// Chunks of one layer: 262,144 tokens of context.
pub const CHUNKS_PER_LAYER_MAX: u16 = 1024;
/// Head sizes that codecs and kernels take.
pub const HEAD_DIM_MIN: u16 = 32;
/// See [`HEAD_DIM_MIN`].
pub const HEAD_DIM_MAX: u16 = 256;
/// KV heads of one layer.
pub const KV_HEADS_MAX: u16 = 64;
/// Pieces of the model file that make up one weight unit.
pub const EXTENTS_PER_UNIT_MAX: usize = 64;
/// Worker threads of one handle.
pub const WORKERS_MAX: usize = 32;
/// Cores of a machine that are looked at: those with the lowest numbers.
pub const CORES_MAX: usize = 64;
/// Segments of the RAM swap.
pub const SEGMENTS_MAX: u16 = 8192;
/// Alignment of everything that touches storage. 512 would do on most file systems, but f2fs falls
/// back to buffered reads silently below 4096.
pub const IO_ALIGN: usize = 4096;
/// Parts into which a unit's read may be split so that several readers share it.
pub const PARTS_MAX: u32 = 64;
/// Keys of a model file.
pub const GGUF_KEYS_MAX: usize = 256;
/// Tensors of a model file.
pub const GGUF_TENSORS_MAX: u64 = 8192;
/// Longest row of a weight matrix that compute takes, in values.
pub const ROW_VALUES_MAX: usize = 1 << 18;
/// Tokens that compute takes at once.
pub const BATCH_TOKENS_MAX: usize = 256;
/// Smallest part: storage saturates at 512 KiB, larger parts cost fewer calls.
pub const PART_BYTES_MIN: u64 = 1 << 20;

const _: () = assert!(HEAD_DIM_MIN <= HEAD_DIM_MAX);
const _: () = assert!(IO_ALIGN.is_power_of_two());
const _: () = assert!(PART_BYTES_MIN.is_multiple_of(IO_ALIGN as u64));
const _: () = assert!(PARTS_MAX <= u64::BITS);
