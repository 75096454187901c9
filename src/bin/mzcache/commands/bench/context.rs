//! A context that nobody had to read: keys and values by the statistics of real ones.
//!
//! Drawn after SmolLM2-135M's cache over English prose: a key's channel has a mean that is small
//! for most channels and large for some, and varies by about 1; a value's channel lies around 0 and
//! varies more from layer to layer, by 0.03 in the first and 1.3 in the last.

use crate::failure::Outcome;
use crate::random::Random;
use mzcache::infer::Session;
use mzcache::kernel::Kernels;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::port::linux::host_cpu;
use mzcache::units::{ChunkId, ChunkIndex, KvShape, LayerIndex, TokenCount};

/// Chunks of a layer that differ; later ones repeat them.
const PATTERNS: u16 = 2;

/// The chunks that a model's context is made of.
pub struct Patterns {
    shape: KvShape,
    /// F16, little-endian; each layer's, one after the other.
    bytes: Vec<u8>,
}

impl Patterns {
    pub fn draw(session: &Session) -> Patterns {
        let shape = session.model().shape.kv();
        let mut chunk = vec![0u16; shape.chunk_bytes() / 2];
        let mut bytes = Vec::new();
        for layer in 0..shape.layers {
            for pattern in 0..PATTERNS {
                draw(shape, layer, pattern, &mut chunk);
                bytes.extend(chunk.iter().flat_map(|half| half.to_le_bytes()));
            }
        }
        Patterns { shape, bytes }
    }

    /// Gives an empty session a context of that many tokens.
    pub fn fill(&self, session: &Session, tokens: u32) -> Outcome<()> {
        let runtime = session.runtime();
        runtime.begin_pass(TokenCount::new(tokens))?;
        runtime.finish_restore()?;
        let of_layers = self.bytes.chunks(self.shape.chunk_bytes() * usize::from(PATTERNS));
        for (layer, patterns) in (0..self.shape.layers).zip(of_layers) {
            let repeated = patterns.chunks(self.shape.chunk_bytes()).cycle();
            for (chunk, bytes) in (0..runtime.chunks()).zip(repeated) {
                let id = ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(chunk) };
                runtime.kv_mut(id)?.copy_from_slice(bytes);
            }
        }
        Ok(runtime.commit(TokenCount::new(tokens))?)
    }
}

/// How a channel of a layer is distributed.
#[derive(Clone, Copy)]
struct Channel {
    mean: f32,
    deviation: f32,
}

fn draw(shape: KvShape, layer: u16, pattern: u16, chunk: &mut [u16]) {
    let mut random = Random::stream(11, u64::from(layer));
    let head_dim = usize::from(shape.head_dim);
    let depth = f32::from(layer + 1) / f32::from(shape.layers);
    let channels = usize::from(shape.kv_heads) * head_dim;
    let keys: Vec<Channel> = (0..channels).map(|_| key_channel(&mut random)).collect();
    let values: Vec<Channel> = (0..channels).map(|_| value_channel(&mut random, depth)).collect();
    let mut random = Random::stream(12 + u64::from(pattern), u64::from(layer));
    let kernels = Kernels::select(host_cpu());
    let mut row = vec![0.0f32; head_dim];
    // Each [head][token][channel], K before V.
    let rows = chunk.chunks_exact_mut(head_dim);
    let tokens = usize::from(CHUNK_TOKENS);
    let heads = keys.chunks(head_dim).chain(values.chunks(head_dim));
    let channels = heads.flat_map(|head| std::iter::repeat_n(head, tokens));
    for (halves, channels) in rows.zip(channels) {
        for (value, channel) in row.iter_mut().zip(channels) {
            *value = channel.mean + channel.deviation * normal(&mut random);
        }
        kernels.f32_to_f16.call(&row, halves);
    }
}

fn key_channel(random: &mut Random) -> Channel {
    Channel { mean: 0.25 * normal(random).powi(3), deviation: (0.4 * normal(random)).exp() }
}

fn value_channel(random: &mut Random, depth: f32) -> Channel {
    let deviation = 1.3 * depth * (0.25 * normal(random)).exp();
    Channel { mean: 0.3 * deviation * normal(random), deviation }
}

/// Close to a normal distribution: the sum of twelve uniform numbers.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
fn normal(random: &mut Random) -> f32 {
    ((0..12).map(|_| random.unit()).sum::<f64>() - 6.0) as f32
}
