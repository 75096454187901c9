//! The start from what an earlier process left in the swap file: a fresh machine takes a context
//! over whose chunks are on flash, or lost. Nothing here believes that the slots hold what the
//! records say: the ordinary restore finds out.

use super::context::tokens_in_column;
use super::machine::{Machine, Step};
use super::table::chunk_id;
use super::unit::{Chunk, Copies};
use crate::error::{Code, Error, Result};
use crate::units::{ChunkId, FlashRecord, TokenCount};

/// A chunk's copy in the swap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedChunk {
    /// What its slot holds.
    pub record: FlashRecord,
    /// Tokens in it.
    pub tokens: u16,
}

impl Machine {
    /// Takes over a context of `tokens` tokens, as one event that has more to say than fits into
    /// an [`Event`](super::Event): `saved` tells what there is of each chunk. One that lacks tokens
    /// counts as lost. Only on a machine without a context; on an error nothing changed.
    pub fn recover(
        &mut self,
        tokens: TokenCount,
        mut saved: impl FnMut(ChunkId) -> Option<SavedChunk>,
    ) -> Result<Step> {
        self.require_idle("recover")?;
        // Without columns there are no tokens.
        if self.table.columns > 0 {
            return Err(Error::new(Code::BadState, "recover: there is a context"));
        }
        if self.flash_is_gone {
            return Err(Error::new(Code::Poisoned, "swap file"));
        }
        self.extend(tokens)?;
        self.pass_undisturbed = false;
        for column in 0..self.table.columns {
            let filled = tokens_in_column(tokens, u32::from(column));
            for layer in 0..self.table.kv_layers {
                let id = chunk_id(layer, column);
                let copy = saved(id).filter(|saved| saved.tokens >= filled);
                self.table.update_chunk(id, |chunk| {
                    *chunk = Chunk { tokens: filled, ..Chunk::EMPTY };
                    if let Some(SavedChunk { record, tokens }) = copy {
                        chunk.copies = Copies::FLASH;
                        chunk.flash = record;
                        chunk.flash_tokens = tokens;
                    }
                });
            }
        }
        self.tokens = tokens;
        self.durable = self.lost().map_or(tokens, TokenCount::new);
        Ok(Step::touch_all())
    }

    /// What there is of a chunk in the swap file, if it is good.
    pub fn saved_chunk(&self, id: ChunkId) -> Option<SavedChunk> {
        let chunk = self.chunk(id)?;
        let saved = SavedChunk { record: chunk.flash, tokens: chunk.flash_tokens };
        chunk.copies.contains(Copies::FLASH).then_some(saved)
    }
}
