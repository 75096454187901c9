//! Dispatch of finished actions, and the invariants.

use super::machine::{Action, Machine, Outcome, Step};
use super::table::chunk_id;
use super::unit::{Copies, Phase};
use crate::error::{Code, Error, Result};
use crate::units::LayerIndex;

impl Machine {
    pub(super) fn done(&mut self, action: Action, outcome: Outcome) -> Result<Step> {
        let unit = action.unit();
        if !self.table.contains(unit) {
            return Err(Error::new(Code::InvalidArgument, "unit of an action"));
        }
        if !self.is_given_out(&action) {
            return Err(Error::new(Code::BadState, "action was not given out"));
        }
        match action {
            Action::Pack { id, .. } => self.done_pack(id, outcome),
            Action::Write { id } => self.done_write(id, outcome),
            Action::Spill { id, .. } => self.done_spill(id, outcome),
            Action::Release { unit } => self.done_release(unit, outcome),
            Action::Allocate { unit, .. } => self.done_allocate(unit, outcome),
            Action::ReadWeights { layer, part } => self.done_read_weights(layer, part, outcome),
            Action::ReadChunk { id, .. } | Action::Unpack { id, .. } => {
                self.done_fill_chunk(id, outcome)
            }
        }
    }

    /// Whether a worker has this very action. A unit that exists tells all of it.
    fn is_given_out(&self, action: &Action) -> bool {
        let phase = self.table.phase(action.unit());
        match *action {
            Action::Pack { id, tokens } => {
                phase == Phase::Packing && tokens == self.table.chunk(id).tokens
            }
            Action::Write { id } => {
                let resident = self.table.chunk(id).copies.contains(Copies::RESIDENT);
                phase == Phase::Writing || (phase == Phase::Saving && resident)
            }
            Action::Spill { id, record } => {
                let chunk = self.table.chunk(id);
                let saving = phase == Phase::Saving && !chunk.copies.contains(Copies::RESIDENT);
                (phase == Phase::Spilling || saving) && record == chunk.ram
            }
            Action::Release { .. } => phase == Phase::Releasing,
            Action::Allocate { unit, is_new } => {
                phase == Phase::Allocating && is_new == self.table.is_new(unit)
            }
            Action::ReadWeights { layer, part } => {
                let busy = self.table.weights(layer).parts_busy;
                busy.checked_shr(part).is_some_and(|from_part| from_part & 1 != 0)
            }
            Action::ReadChunk { id, record, tokens } => {
                let chunk = self.table.chunk(id);
                let from = (!chunk.restores_from_ram(), chunk.flash, chunk.flash_tokens);
                phase == Phase::Filling && from == (true, record, tokens)
            }
            Action::Unpack { id, record, tokens } => {
                let chunk = self.table.chunk(id);
                let from = (chunk.restores_from_ram(), chunk.ram, chunk.ram_tokens);
                phase == Phase::Filling && from == (true, record, tokens)
            }
        }
    }

    /// Recounts everything and looks at every unit; an error names the first broken invariant.
    /// Takes time in proportion to the number of units: for tests and simulators.
    pub fn check(&mut self) -> Result<()> {
        let broken = |what| Err(Error::new(Code::Corrupt, what));
        let (tally, layers_agree) = self.table.recount();
        if tally != self.table.tally {
            return broken("tally");
        }
        if !layers_agree {
            return broken("layer counts");
        }
        for column in 0..self.table.columns_max() {
            for layer in 0..self.table.kv_layers {
                let chunk = self.table.chunk(chunk_id(layer, column));
                let resident = chunk.copies.contains(Copies::RESIDENT);
                if resident && !chunk.has_buffer {
                    return broken("resident chunk without a buffer");
                }
                if chunk.has_buffer && !resident && chunk.phase == Phase::Idle {
                    return broken("idle chunk with an unfilled buffer");
                }
                if resident && chunk.phase == Phase::Idle && chunk.copies.contains(Copies::RAM) {
                    return broken("resident chunk with a packed twin");
                }
                let is_source = chunk.copies.intersects(Copies::RESIDENT | Copies::RAM);
                if chunk.phase == Phase::Saving && !is_source {
                    return broken("saving without a source");
                }
                if column >= self.table.columns && !chunk.copies.is_empty() {
                    return broken("copy beyond the context");
                }
                let lacks = |copy, tokens| chunk.copies.contains(copy) && tokens < chunk.tokens;
                if lacks(Copies::RAM, chunk.ram_tokens) || lacks(Copies::FLASH, chunk.flash_tokens)
                {
                    return broken("copy that lacks tokens");
                }
            }
        }
        if self.durable > self.tokens {
            return broken("durable tokens");
        }
        for layer in 0..self.table.weight_units() {
            let weights = self.table.weights(LayerIndex::new(layer));
            if weights.resident && !weights.has_buffer {
                return broken("resident weights without a buffer");
            }
            let known = weights.parts_done + weights.parts_failed + weights.parts_busy.count_ones();
            if known != weights.parts_given || weights.parts_given > weights.parts {
                return broken("weight parts");
            }
        }
        Ok(())
    }
}
