//! The context grows, is committed, is cut.

use super::machine::{Action, Goal, Machine, Step};
use super::table::chunk_id;
use super::unit::{Chunk, Copies, Phase};
use crate::error::{Code, Error, Result};
use crate::limits::CHUNK_TOKENS;
use crate::units::{LayerIndex, TokenCount, Unit};

impl Machine {
    /// Adds chunks for a pass.
    pub(super) fn extend(&mut self, tokens: TokenCount) -> Result<()> {
        if tokens < self.tokens {
            return Err(Error::new(Code::InvalidArgument, "context length").with(tokens.get()));
        }
        let columns = u16::try_from(tokens.chunks()).unwrap_or(u16::MAX);
        if columns > self.table.columns_max() {
            return Err(Error::new(Code::LimitExceeded, "context tokens").with(tokens.get()));
        }
        self.table.set_columns(columns.max(self.table.columns));
        // A mere restore, perhaps beside a pass, says nothing about that pass's chunks.
        self.pass_undisturbed |= tokens > self.tokens;
        Ok(())
    }

    /// Commits during an eviction or restore too: compute may be ahead of either.
    pub(super) fn commit(&mut self, tokens: TokenCount) -> Result<Step> {
        let columns = u32::from(self.table.columns);
        if tokens < self.tokens || tokens.chunks() > columns {
            return Err(Error::new(Code::InvalidArgument, "committed tokens").with(tokens.get()));
        }
        if tokens == self.tokens {
            return Ok(Step::default());
        }
        if !self.pass_undisturbed {
            // What compute wrote beyond the old length may not have survived.
            return Err(Error::new(Code::Cancelled, "pass: its chunks were evicted meanwhile"));
        }
        let first = self.tokens.get() / u32::from(CHUNK_TOKENS);
        for column in first..tokens.chunks() {
            for layer in 0..self.table.kv_layers {
                let id = chunk_id(layer, u16::try_from(column).unwrap_or(u16::MAX));
                if !self.table.chunk(id).is_ready() {
                    return Err(Error::new(Code::BadState, "committed chunk is not in memory"));
                }
            }
        }
        for column in first..tokens.chunks() {
            let filled = tokens_in_column(tokens, column);
            for layer in 0..self.table.kv_layers {
                let id = chunk_id(layer, u16::try_from(column).unwrap_or(u16::MAX));
                // Copies outside memory lack the new tokens. A resident chunk has no RAM copy.
                debug_assert!(!self.table.chunk(id).copies.contains(Copies::RAM));
                self.table.update_chunk(id, |chunk| {
                    chunk.tokens = filled;
                    chunk.copies = Copies::RESIDENT;
                    chunk.flash = Chunk::EMPTY.flash;
                });
            }
        }
        self.tokens = tokens;
        Ok(Step::default())
    }

    pub(super) fn truncate(&mut self, tokens: TokenCount) -> Result<Step> {
        self.require_idle("truncate")?;
        if tokens > self.tokens {
            return Err(Error::new(Code::InvalidArgument, "context length").with(tokens.get()));
        }
        for column in 0..self.table.columns {
            for layer in 0..self.table.kv_layers {
                let filled = tokens_in_column(tokens, u32::from(column));
                self.table.update_chunk(chunk_id(layer, column), |chunk| {
                    chunk.tokens = chunk.tokens.min(filled);
                });
            }
        }
        self.tokens = tokens;
        self.durable = self.durable.min(tokens);
        self.sealing = self.sealing.map(|durable| durable.min(tokens));
        self.disown_saved();
        self.pass_undisturbed = false;
        // It ends on the spot where there is nothing to give up.
        self.goal = Goal::Trim;
        Ok(Step::touch_all())
    }

    /// Gives up one chunk beyond the context's end.
    pub(super) fn next_trim(&mut self) -> Step {
        let first = u16::try_from(self.tokens.chunks()).unwrap_or(u16::MAX);
        for column in (first..self.table.columns).rev() {
            for layer in 0..self.table.kv_layers {
                let id = chunk_id(layer, column);
                let chunk = *self.table.chunk(id);
                if chunk.phase != Phase::Idle {
                    continue;
                }
                if chunk.has_buffer {
                    self.table.update_chunk(id, |chunk| chunk.phase = Phase::Releasing);
                    return Step::act(Action::Release { unit: Unit::Kv(id) });
                }
                if chunk.copies.is_empty() {
                    continue;
                }
                let forget = chunk.copies.contains(Copies::RAM).then_some(chunk.ram);
                self.table.update_chunk(id, |chunk| *chunk = Chunk::EMPTY);
                return Step { forget, again: true, ..Step::default() };
            }
        }
        Step::default()
    }

    pub(super) fn settle_trim(&mut self) -> bool {
        let first = u16::try_from(self.tokens.chunks()).unwrap_or(u16::MAX);
        let empty = |chunk: &Chunk| chunk.copies.is_empty() && chunk.phase == Phase::Idle;
        let all_empty = (first..self.table.columns).all(|column| {
            (0..self.table.kv_layers).all(|layer| empty(self.table.chunk(chunk_id(layer, column))))
        });
        if !all_empty {
            return false;
        }
        for column in first..self.table.columns {
            for layer in 0..self.table.kv_layers {
                self.table.update_chunk(chunk_id(layer, column), |chunk| *chunk = Chunk::EMPTY);
            }
        }
        self.table.set_columns(first);
        true
    }

    pub(super) fn used(&mut self, layer: LayerIndex) -> Result<Step> {
        if layer.get() >= self.table.weight_units() {
            return Err(Error::new(Code::InvalidArgument, "layer").with(layer.get()));
        }
        self.clock = self.clock.wrapping_add(1);
        self.table.layers[layer.index()].used_at = self.clock;
        Ok(Step::default())
    }

    pub(super) fn require_idle(&self, what: &'static str) -> Result<()> {
        if self.is_idle() { Ok(()) } else { Err(Error::new(Code::BadState, what)) }
    }
}

/// Valid tokens in a column when the context has `tokens`.
pub(super) fn tokens_in_column(tokens: TokenCount, column: u32) -> u16 {
    let start = column * u32::from(CHUNK_TOKENS);
    let filled = tokens.get().saturating_sub(start).min(u32::from(CHUNK_TOKENS));
    u16::try_from(filled).unwrap_or(CHUNK_TOKENS)
}
