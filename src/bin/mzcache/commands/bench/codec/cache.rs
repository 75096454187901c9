//! The KV cache of a session as a list of chunks, and chunks back into the session.

use crate::failure::{Failure, Outcome};
use mzcache::arena::view;
use mzcache::codec::{ChunkLayout, Geometry};
use mzcache::infer::Session;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::units::{ChunkId, ChunkIndex, KvShape, LayerIndex};

/// One chunk's values as they lie in its shared buffer.
pub struct Chunk {
    pub geometry: Geometry,
    pub values: Vec<u16>,
}

/// All chunks, layer by layer.
pub struct Cache {
    shape: KvShape,
    pub chunks: Vec<Chunk>,
}

impl Cache {
    /// Copies what a session that is wholly in memory holds.
    pub fn read(session: &Session) -> Outcome<Cache> {
        let shape = session.model().shape.kv();
        let tokens = session.tokens().get();
        let mut chunks = Vec::new();
        for layer in 0..shape.layers {
            for (index, first) in (0..).zip((0..tokens).step_by(CHUNK_TOKENS.into())) {
                let id = ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(index) };
                let lease = session.runtime().kv(id)?;
                let values = view::numbers::<u16>(&lease[..shape.chunk_bytes()]);
                let values = values.ok_or_else(misaligned)?.to_vec();
                let tokens = u16::try_from(tokens - first).unwrap_or(u16::MAX).min(CHUNK_TOKENS);
                let layout = ChunkLayout::TokenMajor;
                chunks.push(Chunk { geometry: Geometry { shape, id, tokens, layout }, values });
            }
        }
        Ok(Cache { shape, chunks })
    }

    /// Puts other values in their place.
    pub fn replace(&self, session: &Session, values: &[Vec<u16>]) -> Outcome<()> {
        for (chunk, values) in self.chunks.iter().zip(values) {
            let mut exclusive = session.runtime().kv_mut(chunk.geometry.id)?;
            exclusive[..2 * values.len()].copy_from_slice(view::bytes_of(values));
        }
        Ok(())
    }

    /// F16 bytes of all tokens.
    pub fn bytes(&self) -> usize {
        let token_bytes = 4 * usize::from(self.shape.kv_heads) * usize::from(self.shape.head_dim);
        self.chunks.iter().map(|chunk| usize::from(chunk.geometry.tokens) * token_bytes).sum()
    }
}

fn misaligned() -> Failure {
    Failure::new("a chunk lies at an odd address")
}
