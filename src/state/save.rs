//! The goal that makes the context durable: every chunk that holds tokens gets a good copy in the
//! swap file, column by column, so that what an early stop leaves is a prefix. Nothing is evicted
//! and nothing stops being ready.
//!
//! What is then on flash counts only once it was written down, by whoever takes the report and
//! answers with [`Event::Sealed`](super::Event::Sealed). Until then no slot is written to: a slot
//! that is free today may be one of those just named. Evictions that arrive meanwhile go on with
//! what needs no slot.

use super::evict::Stop;
use super::machine::{Action, Goal, Machine, Outcome, Paths, Roles, Step};
use super::table::chunk_id;
use super::unit::{Copies, Phase};
use crate::error::{Code, Error, Result};
use crate::limits::CHUNK_TOKENS;
use crate::units::{ChunkId, TokenCount, Unit};

/// What a save found on flash when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveReport {
    /// Tokens of the context when it began.
    pub tokens: TokenCount,
    /// How many of them, from the first on, have good copies in the swap file.
    pub on_flash: TokenCount,
    /// Why it ended: `Reached` when all were written that there were.
    pub stop: Stop,
    /// The failure that ended it, if one did.
    pub error: Option<Error>,
    /// Whether it is worth being written down, as it is when the report is taken: it is all, or
    /// more than what is durable already. [`Event::Sealed`](super::Event::Sealed) must then follow.
    pub to_seal: bool,
}

/// A running save.
#[derive(Clone, Copy, Debug)]
pub(super) struct Save {
    tokens: TokenCount,
    /// How far the scan for chunks without a copy got, column by column.
    position: u32,
    stop: Option<Stop>,
    error: Option<Error>,
}

impl Save {
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }
}

impl Machine {
    pub(super) fn begin_save(&mut self) -> Result<Step> {
        self.require_idle("save")?;
        if self.sealing.is_some() {
            return Err(Error::new(Code::BadState, "save: the last one is being sealed"));
        }
        if self.flash_is_gone {
            return Err(Error::new(Code::Poisoned, "swap file"));
        }
        if self.plan.times.read_chunk.is_none() {
            return Err(Error::new(Code::BadState, "save: there is no swap file"));
        }
        if let Some(token) = self.lost() {
            return Err(Error::new(Code::Corrupt, "KV chunk; recompute from token").with(token));
        }
        self.saved = None;
        self.goal = Goal::Save(Save { tokens: self.tokens, position: 0, stop: None, error: None });
        Ok(Step::touch_all())
    }

    pub(super) fn stop_save(&mut self, stop: Stop) -> Result<Step> {
        match &mut self.goal {
            Goal::Save(save) => {
                save.stop = save.stop.or(Some(stop));
                Ok(Step::default())
            }
            _ => Err(Error::new(Code::BadState, "stop save")),
        }
    }

    fn save(&mut self) -> &mut Save {
        match &mut self.goal {
            Goal::Save(save) => save,
            _ => unreachable!("called while a save is running"),
        }
    }

    pub(super) fn next_save(&mut self, roles: Roles) -> Step {
        let Save { stop, error, .. } = *self.save();
        if stop.is_some() || error.is_some() || !roles.contains(Roles::READ) {
            return Step::default();
        }
        let Some(id) = self.next_to_save() else { return Step::default() };
        let chunk = *self.table.chunk(id);
        let is_resident = chunk.copies.contains(Copies::RESIDENT);
        self.table.update_chunk(id, |chunk| {
            chunk.phase = Phase::Saving;
            // Compute may commit more while the copy is made.
            chunk.flash_tokens = if is_resident { chunk.tokens } else { chunk.ram_tokens };
        });
        Step::act(match is_resident {
            true => Action::Write { id },
            false => Action::Spill { id, record: chunk.ram },
        })
    }

    /// The next chunk that has tokens, a source, and no copy on flash.
    fn next_to_save(&mut self) -> Option<ChunkId> {
        let layers = u32::from(self.table.kv_layers);
        let count = layers * u32::from(self.table.columns);
        loop {
            let position = self.save().position;
            if position >= count {
                return None;
            }
            let [layer, column] = [position % layers, position / layers].map(u16::try_from);
            let id = chunk_id(layer.unwrap_or(u16::MAX), column.unwrap_or(u16::MAX));
            self.save().position += 1;
            let chunk = self.table.chunk(id);
            let has_source = !chunk.copies.is_empty();
            let is_clean = chunk.copies.contains(Copies::FLASH);
            if chunk.phase == Phase::Idle && chunk.tokens > 0 && has_source && !is_clean {
                return Some(id);
            }
        }
    }

    pub(super) fn settle_save(&mut self) -> bool {
        let save = *self.save();
        if self.table.tally.busy > 0 {
            return false;
        }
        let has_stopped = save.stop.is_some() || save.error.is_some();
        let count = u32::from(self.table.kv_layers) * u32::from(self.table.columns);
        if !has_stopped && save.position < count {
            return false;
        }
        // What was asked for may be done by the time that somebody wants it to stop.
        let is_all = self.on_flash(save.tokens) == save.tokens && save.error.is_none();
        let stop = if is_all { Stop::Reached } else { save.stop.unwrap_or(Stop::Reached) };
        self.end_save(stop);
        true
    }

    /// Writes the report. An eviction that comes first ends a save before its last actions.
    pub(super) fn end_save(&mut self, stop: Stop) {
        let Save { tokens, error, .. } = *self.save();
        let on_flash = self.on_flash(tokens);
        let is_worth_it = on_flash == tokens || on_flash > self.durable;
        let to_seal = error.is_none() && stop != Stop::Cancelled && is_worth_it;
        self.sealing = to_seal.then_some(on_flash);
        self.saved = Some(SaveReport { tokens, on_flash, stop, error, to_seal });
    }

    /// The report of the last save, once. What is to be sealed is what is on flash now.
    pub fn take_saved(&mut self) -> Option<SaveReport> {
        let mut report = self.saved.take()?;
        if report.to_seal {
            report.on_flash = self.on_flash(report.tokens);
            self.sealing = Some(report.on_flash);
        }
        Some(report)
    }

    /// The context is cut. What a report that nobody took yet is about is no longer there: another
    /// context may grow in its chunks before it is written down.
    pub(super) fn disown_saved(&mut self) {
        if let Some(report) = &mut self.saved {
            report.to_seal = false;
            report.stop = Stop::Cancelled;
            self.sealing = None;
        }
    }

    /// How many of the first `tokens` tokens have good copies in the swap file, in every layer.
    fn on_flash(&self, tokens: TokenCount) -> TokenCount {
        // A good copy lacks none of its chunk's tokens, and the context was not cut since.
        let lacks = |layer: u16, column: u16| {
            !self.table.chunk(chunk_id(layer, column)).copies.contains(Copies::FLASH)
        };
        let columns = u16::try_from(tokens.chunks()).unwrap_or(u16::MAX);
        let is_there = columns.min(self.table.columns);
        let layers = self.table.kv_layers;
        let first = (0..is_there).find(|column| (0..layers).any(|layer| lacks(layer, *column)));
        let end = u32::from(first.unwrap_or(is_there)) * u32::from(CHUNK_TOKENS);
        TokenCount::new(end).min(tokens)
    }

    /// A copy for durability is made, or is not; the chunk is where it was.
    pub(super) fn done_save(&mut self, id: ChunkId, outcome: Outcome) -> Result<Step> {
        let error = match outcome {
            Outcome::Written(record) => {
                self.table.update_chunk(id, |chunk| {
                    chunk.phase = Phase::Idle;
                    if chunk.flash_tokens >= chunk.tokens {
                        chunk.copies |= Copies::FLASH;
                        chunk.flash = record;
                    }
                });
                self.look_again();
                return Ok(Step::touch(Unit::Kv(id)));
            }
            Outcome::Failed(error) => error,
            _ => return Err(Error::new(Code::BadState, "outcome of save")),
        };
        self.heed(error);
        self.table.update_chunk(id, |chunk| chunk.phase = Phase::Idle);
        self.look_again();
        match &mut self.goal {
            Goal::Save(save) => save.error = save.error.or(Some(error)),
            // An eviction that came first learns of a path that is closed.
            _ if error.code != Code::Leased => {
                self.note_failure(error, Paths { ram: true, flash: false });
            }
            _ => {}
        }
        Ok(Step::touch(Unit::Kv(id)))
    }

    pub(super) fn sealed(&mut self, result: Result<()>) -> Result<Step> {
        let Some(durable) = self.sealing.take() else {
            return Err(Error::new(Code::BadState, "sealed"));
        };
        match result {
            Ok(()) => self.durable = durable,
            Err(error) => self.heed(error),
        }
        // Evictions may have waited for slots.
        self.look_again();
        Ok(Step::touch_all())
    }
}
