//! Index and quantity types, so that a layer is never taken for a chunk nor bytes for tokens.

use crate::limits::CHUNK_TOKENS;
use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            /// Wraps a plain number.
            pub const fn new(value: $repr) -> Self {
                $name(value)
            }

            /// The plain number.
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A weight unit: transformer layers count from 0, the output head comes after the last one.
    LayerIndex(u16)
);
number!(
    /// A 256-token block of the context; the same index names one chunk in every layer.
    ChunkIndex(u16)
);
number!(
    /// A number of bytes.
    ByteCount(u64)
);
number!(
    /// A number of tokens.
    TokenCount(u32)
);
number!(
    /// A duration, or a time since the clock's own start, in nanoseconds.
    Nanos(u64)
);

number!(
    /// A segment of the RAM swap.
    SegmentIndex(u16)
);

/// The caller's name for the tokens of a context, by which a later process recognises it. The
/// library compares tags and does nothing else with them; [`Tag::with`] is one way to make them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag(u128);

impl Tag {
    /// That of no tokens.
    pub const EMPTY: Tag = Tag(0x6C62_272E_07BB_0142_62B8_2175_6295_C58D);

    /// Wraps a plain number.
    pub const fn new(value: u128) -> Self {
        Tag(value)
    }

    /// The plain number.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// The tag of a context that goes on with these tokens: a running hash (FNV-1a, 128 bits, a
    /// token at a time). It tells contexts apart, not one who forges them.
    #[must_use]
    pub fn with(self, tokens: &[u32]) -> Tag {
        const PRIME: u128 = (1 << 88) + 0x13B;
        Tag(tokens
            .iter()
            .fold(self.0, |hash, token| (hash ^ u128::from(*token)).wrapping_mul(PRIME)))
    }
}

impl SegmentIndex {
    /// As a slice index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LayerIndex {
    /// As a slice index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ChunkIndex {
    /// As a slice index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TokenCount {
    /// Chunks needed to hold that many tokens.
    pub const fn chunks(self) -> u32 {
        self.0.div_ceil(CHUNK_TOKENS as u32)
    }
}

impl Nanos {
    /// Later of two by subtraction that stops at zero.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// In milliseconds, for people.
    #[expect(clippy::cast_precision_loss, reason = "for display only")]
    pub const fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

/// One KV chunk: 256 tokens of one layer's K and V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The layer whose K and V it holds.
    pub layer: LayerIndex,
    /// The block of the context.
    pub chunk: ChunkIndex,
}

/// What moves as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A weight layer, or the output head.
    Weights(LayerIndex),
    /// A KV chunk.
    Kv(ChunkId),
}

impl Unit {
    /// The layer it belongs to.
    pub const fn layer(self) -> LayerIndex {
        match self {
            Unit::Weights(layer) => layer,
            Unit::Kv(id) => id.layer,
        }
    }
}

/// The two kinds of unit, which have separate gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Weight layers.
    Weights,
    /// KV chunks.
    Kv,
}

/// Shape of the KV cache: what a chunk's size follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Transformer layers that hold KV.
    pub layers: u16,
    /// KV heads of a layer.
    pub kv_heads: u16,
    /// Values of one head.
    pub head_dim: u16,
}

impl KvShape {
    /// Values in the K block (or the V block) of one chunk.
    pub const fn block_values(self) -> usize {
        self.kv_heads as usize * CHUNK_TOKENS as usize * self.head_dim as usize
    }

    /// Bytes of one F16 chunk: K block, then V block, each `[kv_head][256 tokens][head_dim]`.
    pub const fn chunk_bytes(self) -> usize {
        self.block_values() * 2 * 2
    }
}

/// Where a packed chunk lies in the RAM swap. It stays valid, and in place, until it is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RamRecord {
    /// The segment that holds it.
    pub segment: SegmentIndex,
    /// How often the segment had been released before, so that a stale record is recognised.
    pub generation: u16,
    /// First byte in the segment, a multiple of 64.
    pub offset: u32,
    /// Bytes, as asked for.
    pub bytes: u32,
}

const _: () = assert!(size_of::<RamRecord>() == 12);

/// What a slot of the swap file holds, as its write said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlashRecord {
    /// Bytes of the chunk or of the packed chunk; the transfer is rounded up to
    /// [`crate::limits::IO_ALIGN`].
    pub bytes: u32,
    /// CRC-32C of the whole transfer, padding included.
    pub crc: u32,
    /// Packed by the codec, or the raw F16 chunk.
    pub packed: bool,
}

/// A page-aligned window of the model file, and where it lies in its weight unit's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Extent {
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes; the last window of a file may pass its end.
    pub bytes: u64,
    /// First byte in the unit's buffer.
    pub buffer_offset: u64,
}

/// One weight unit: windows of the model file, one after another in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightUnit<'a> {
    /// In buffer order, without gaps.
    pub extents: &'a [Extent],
}

impl WeightUnit<'_> {
    /// Size of the unit's buffer.
    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).fold(0, u64::saturating_add)
    }
}

/// Rounds up to a multiple of a power of two; `None` on overflow.
pub const fn align_up(value: u64, align: u64) -> Option<u64> {
    debug_assert!(align.is_power_of_two());
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// The KV codecs. The number is what packed headers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum CodecId {
    /// A copy: lossless, saves nothing.
    Raw = 0,
    /// 8-bit codes with one scale a group; the default.
    #[default]
    Q8 = 1,
    /// 4-bit codes, of K by channel with up to 6 bits.
    Kv4 = 2,
    /// Multiples of steps in prefix codes: saves most.
    Kvh = 3,
    /// Symbols of 5 or 4 bits in arithmetic codes, as CacheGen was released; for comparison.
    CacheGen = 4,
}

impl CodecId {
    /// All of them, in the order of their numbers.
    pub const ALL: [CodecId; 5] =
        [CodecId::Raw, CodecId::Q8, CodecId::Kv4, CodecId::Kvh, CodecId::CacheGen];

    /// As command lines, profiles and reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            CodecId::Raw => "raw",
            CodecId::Q8 => "q8",
            CodecId::Kv4 => "kv4",
            CodecId::Kvh => "kvh",
            CodecId::CacheGen => "cachegen",
        }
    }

    /// The codec of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }

    /// The codec of that number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| *codec as u8 == number)
    }
}
