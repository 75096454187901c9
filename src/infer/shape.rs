//! Hyper-parameters of a model, read from its file and checked.

use super::gguf::Gguf;
use crate::codec::RotaryPairs;
use crate::error::{Code, Error, Result};
use crate::limits::{
    CHUNK_TOKENS, CHUNKS_PER_LAYER_MAX, HEAD_DIM_MAX, HEAD_DIM_MIN, KV_HEADS_MAX, LAYERS_MAX,
    ROW_VALUES_MAX,
};
use crate::units::KvShape;

/// Architectures this build computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Pre-norm blocks, rotary pairs side by side.
    Llama,
    /// Pre-norm blocks, RMS norm of each query and key head, rotary pairs half a head apart.
    Qwen3,
}

impl Architecture {
    const ALL: [Architecture; 2] = [Architecture::Llama, Architecture::Qwen3];

    /// As files name it.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen3 => "qwen3",
        }
    }

    /// Which channels of a head rotate together.
    pub const fn rotary_pairs(self) -> RotaryPairs {
        match self {
            Architecture::Llama => RotaryPairs::Adjacent,
            Architecture::Qwen3 => RotaryPairs::Halves,
        }
    }

    /// Whether queries and keys are normalised head by head.
    pub const fn has_head_norms(self) -> bool {
        matches!(self, Architecture::Qwen3)
    }
}

/// A model's dimensions and constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// How its blocks are built.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: u16,
    /// Values of the residual stream.
    pub hidden: usize,
    /// Values inside the feed-forward part.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u16,
    /// Values of one head; even.
    pub head_dim: u16,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Longest context the model was made for, and that chunk tables hold.
    pub context_tokens: u32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Added to the mean square in RMS norms.
    pub norm_epsilon: f32,
}

impl Shape {
    /// Reads and checks the metadata; `Unsupported` for what would compute something else.
    pub fn read(gguf: &Gguf<'_>) -> Result<Self> {
        let architecture = architecture(gguf)?;
        refuse_variants(gguf, architecture.name())?;
        let fields = Fields { gguf, prefix: architecture.name() };
        let hidden = fields.count("embedding_length", 1, ROW_VALUES_MAX)?;
        let heads = fields.count("attention.head_count", 1, ROW_VALUES_MAX)?;
        let kv_heads = match fields.optional("attention.head_count_kv")? {
            None => heads,
            Some(_) => fields.count("attention.head_count_kv", 1, heads)?,
        };
        if !heads.is_multiple_of(kv_heads) || kv_heads > usize::from(KV_HEADS_MAX) {
            return fail(Code::Unsupported, "attention.head_count_kv", kv_heads);
        }
        let head_dim = head_dim(&fields, hidden, heads)?;
        if heads.checked_mul(usize::from(head_dim)).is_none_or(|values| values > ROW_VALUES_MAX) {
            return fail(Code::LimitExceeded, "attention.head_count", heads);
        }
        let chunks_max = u32::from(CHUNKS_PER_LAYER_MAX) * u32::from(CHUNK_TOKENS);
        let context_tokens = fields.number("context_length", 1, u32::MAX)?.min(chunks_max);
        Ok(Shape {
            architecture,
            layers: fields.small("block_count", 1, LAYERS_MAX - 1)?,
            hidden,
            feed_forward: fields.count("feed_forward_length", 1, ROW_VALUES_MAX)?,
            heads,
            kv_heads: u16::try_from(kv_heads).unwrap_or(KV_HEADS_MAX),
            head_dim,
            vocabulary: vocabulary(gguf, &fields)?,
            context_tokens,
            rope_base: fields.positive("rope.freq_base", Some(10_000.0), f32::MAX)?,
            norm_epsilon: fields.positive("attention.layer_norm_rms_epsilon", None, 1.0)?,
        })
    }

    /// What a KV chunk's size follows from.
    pub const fn kv(&self) -> KvShape {
        KvShape { layers: self.layers, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// Values of all query heads of a token.
    pub fn query_values(&self) -> usize {
        self.heads * usize::from(self.head_dim)
    }

    /// Values of all key (or value) heads of a token.
    pub fn kv_values(&self) -> usize {
        usize::from(self.kv_heads) * usize::from(self.head_dim)
    }

    /// Query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / usize::from(self.kv_heads)
    }
}

fn architecture(gguf: &Gguf<'_>) -> Result<Architecture> {
    let name = gguf.architecture()?;
    let known = Architecture::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or(Error::new(Code::Unsupported, refusal(name)))
}

/// Errors carry static text, so architectures that exist but are not computed have theirs here.
fn refusal(name: &str) -> &'static str {
    match name {
        "exaone4" => "architecture exaone4",
        "gemma" => "architecture gemma",
        "gemma2" => "architecture gemma2",
        "gemma3" => "architecture gemma3",
        "phi3" => "architecture phi3",
        "qwen2" => "architecture qwen2",
        "qwen2moe" => "architecture qwen2moe",
        "qwen3moe" => "architecture qwen3moe",
        _ => "general.architecture",
    }
}

/// Settings under a known architecture's name that change what it computes.
fn refuse_variants(gguf: &Gguf<'_>, prefix: &str) -> Result<()> {
    for key in ["expert_count", "attention.sliding_window"] {
        if let Some(value @ 1..) = gguf.arch_u32(prefix, key)? {
            return fail(Code::Unsupported, key, value);
        }
    }
    if gguf.arch_text(prefix, "rope.scaling.type")?.is_some_and(|kind| kind != "none") {
        return fail(Code::Unsupported, "rope.scaling.type", 0);
    }
    if gguf.arch_f32(prefix, "attention.scale")?.is_some() {
        return fail(Code::Unsupported, "attention.scale", 0);
    }
    Ok(())
}

fn head_dim(fields: &Fields<'_, '_>, hidden: usize, heads: usize) -> Result<u16> {
    let key_length = match fields.optional("attention.key_length")? {
        Some(value) => usize::try_from(value).unwrap_or(usize::MAX),
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return fail(Code::Corrupt, "attention.head_count", heads),
    };
    let range = HEAD_DIM_MIN..=HEAD_DIM_MAX;
    let head_dim = u16::try_from(key_length).ok().filter(|dim| range.contains(dim) && dim % 2 == 0);
    let Some(head_dim) = head_dim else {
        return fail(Code::Unsupported, "attention.key_length", key_length);
    };
    for key in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = fields.optional(key)?
            && other != u32::from(head_dim)
        {
            return fail(Code::Unsupported, key, other);
        }
    }
    Ok(head_dim)
}

fn vocabulary(gguf: &Gguf<'_>, fields: &Fields<'_, '_>) -> Result<usize> {
    let Some(embedding) = gguf.tensor("token_embd.weight") else {
        return fail(Code::Corrupt, "token_embd.weight is missing", 0);
    };
    let rows = embedding.dims[1];
    let stated = fields.optional("vocab_size")?;
    if stated.is_some_and(|stated| u64::from(stated) != rows) {
        return fail(Code::Mismatch, "vocab_size", rows);
    }
    match usize::try_from(rows) {
        Ok(rows) if u32::try_from(rows).is_ok() => Ok(rows),
        _ => fail(Code::LimitExceeded, "token_embd.weight", rows),
    }
}

fn fail<T>(code: Code, what: &'static str, value: impl TryInto<i64>) -> Result<T> {
    Err(Error::new(code, what).with(value))
}

/// Metadata under the architecture's name.
struct Fields<'a, 'f> {
    gguf: &'a Gguf<'f>,
    prefix: &'a str,
}

impl Fields<'_, '_> {
    fn optional(&self, key: &'static str) -> Result<Option<u32>> {
        self.gguf.arch_u32(self.prefix, key)
    }

    fn number(&self, key: &'static str, low: u32, high: u32) -> Result<u32> {
        match self.optional(key)? {
            None => fail(Code::Corrupt, key, 0),
            Some(value) if value < low => fail(Code::Corrupt, key, value),
            Some(value) if value > high => fail(Code::LimitExceeded, key, value),
            Some(value) => Ok(value),
        }
    }

    fn count(&self, key: &'static str, low: u32, high: usize) -> Result<usize> {
        let high = u32::try_from(high).unwrap_or(u32::MAX);
        let value = self.number(key, low, high)?;
        usize::try_from(value).map_err(|_| Error::new(Code::LimitExceeded, key))
    }

    fn small(&self, key: &'static str, low: u16, high: u16) -> Result<u16> {
        let value = self.number(key, low.into(), high.into())?;
        u16::try_from(value).map_err(|_| Error::new(Code::LimitExceeded, key))
    }

    fn positive(&self, key: &'static str, default: Option<f32>, below: f32) -> Result<f32> {
        match self.gguf.arch_f32(self.prefix, key)?.or(default) {
            Some(value) if value > 0.0 && value < below => Ok(value),
            _ => fail(Code::Corrupt, key, 0),
        }
    }
}
