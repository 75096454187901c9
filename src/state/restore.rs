//! Restoration: forward-in. Cursors run over the units layer by layer, a layer's weights before its
//! chunks: one reads, one unpacks, and for either path one allocates. A worker takes from the
//! cursors its roles allow, the frontmost unit first. Only where one path has no buffer to fill and
//! the other has, the one without is given the next: what an eviction left to read may begin many
//! layers behind what it packed, and both paths are to be busy from the start.

use super::machine::{Action, Goal, Machine, Outcome, Roles, Step};
use super::table::chunk_id;
use super::unit::{Copies, Phase};
use crate::error::{Code, Error, Result};
use crate::limits::CHUNK_TOKENS;
use crate::policy;
use crate::units::{ChunkId, LayerIndex, TokenCount, Unit};

/// A running restore.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restoration {
    /// Positions in the forward order, see [`policy::restore_unit_at`].
    allocate_to_read: u32,
    allocate_to_unpack: u32,
    read: u32,
    unpack: u32,
    /// Nothing is filled while something still wants a buffer.
    allocate_first: bool,
    stopping: bool,
    error: Option<Error>,
}

impl Restoration {
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub(super) fn error(&self) -> Option<Error> {
        self.error
    }

    fn fail(&mut self, error: Error) {
        self.error = self.error.or(Some(error));
        self.stopping = true;
    }

    /// Looks at all units once more.
    fn rewind(&mut self) {
        self.allocate_to_read = 0;
        self.allocate_to_unpack = 0;
        self.read = 0;
        self.unpack = 0;
    }
}

impl Machine {
    pub(super) fn begin_restore(
        &mut self,
        tokens: TokenCount,
        allocate_first: bool,
    ) -> Result<Step> {
        self.require_idle("restore")?;
        if let Some(token) = self.lost() {
            return Err(Error::new(Code::Corrupt, "KV chunk; recompute from token").with(token));
        }
        self.extend(tokens)?;
        self.restored = None;
        self.goal = Goal::Restore(Restoration { allocate_first, ..Restoration::default() });
        Ok(Step::touch_all())
    }

    pub(super) fn cancel_restore(&mut self) -> Result<Step> {
        match &mut self.goal {
            Goal::Restore(restoration) => {
                restoration.fail(Error::new(Code::Cancelled, "restore"));
                Ok(Step::touch_all())
            }
            _ => Err(Error::new(Code::BadState, "cancel restore")),
        }
    }

    /// The first token of the first chunk whose last copy the storage lost. The context is sound up
    /// to there: truncate to it and recompute the rest.
    pub fn lost(&self) -> Option<u32> {
        if self.table.tally.lost == 0 {
            return None;
        }
        let lost_in = |column: u16| {
            (0..self.table.kv_layers)
                .any(|layer| self.table.chunk(chunk_id(layer, column)).is_lost())
        };
        let column = (0..self.table.columns).find(|column| lost_in(*column))?;
        Some(u32::from(column) * u32::from(CHUNK_TOKENS))
    }

    /// Why the running restore is being given up, if it is; it ends when its last actions have.
    pub fn restore_failure(&self) -> Option<Error> {
        match &self.goal {
            Goal::Restore(restoration) => restoration.error(),
            _ => None,
        }
    }

    fn restoration(&mut self) -> &mut Restoration {
        match &mut self.goal {
            Goal::Restore(restoration) => restoration,
            _ => unreachable!("called while a restore is running"),
        }
    }

    pub(super) fn next_restore(&mut self, roles: Roles) -> Step {
        if self.restoration().stopping {
            return self.sweep_prepared(roles);
        }
        let fills = if self.waits_for_buffers() { Roles::empty() } else { roles };
        let offers = [
            fills.contains(Roles::READ).then(|| self.next_read()),
            fills.contains(Roles::UNPACK).then(|| self.next_unpack()),
            roles.contains(Roles::ALLOCATE).then(|| self.next_allocate()),
        ];
        let Some((_, action)) = frontmost(offers.map(Option::flatten)) else {
            return Step::default();
        };
        self.begin(action);
        Step::act(action)
    }

    fn waits_for_buffers(&mut self) -> bool {
        if !self.restoration().allocate_first {
            return false;
        }
        let waits = self.next_allocate().is_some() || self.table.tally.busy > 0;
        self.restoration().allocate_first = waits;
        waits
    }

    fn begin(&mut self, action: Action) {
        let phase = match action {
            Action::Allocate { .. } => Phase::Allocating,
            _ => Phase::Filling,
        };
        match action.unit() {
            Unit::Weights(layer) => self.table.update_weights(layer, |weights| {
                weights.phase = phase;
                if let Action::ReadWeights { part, .. } = action {
                    weights.parts_given += 1;
                    weights.parts_busy |= 1 << part;
                }
            }),
            Unit::Kv(id) => self.table.update_chunk(id, |chunk| chunk.phase = phase),
        }
    }

    fn unit_at(&self, position: u32) -> Option<Unit> {
        let (units, layers, columns) =
            (self.table.weight_units(), self.table.kv_layers, self.table.columns);
        let count = u32::from(layers) * u32::from(columns) + u32::from(units);
        (position < count).then(|| policy::restore_unit_at(position, units, layers, columns))
    }

    fn next_allocate(&mut self) -> Option<(u32, Action)> {
        let (read, unpack) = (self.next_to_read(), self.next_to_unpack());
        let (Some(_), Some(_)) = (read, unpack) else { return read.or(unpack) };
        match (self.next_read().is_some(), self.next_unpack().is_some()) {
            (false, true) => read,
            (true, false) => unpack,
            _ => frontmost([read, unpack]),
        }
    }

    /// The frontmost unit without a buffer that readers fill, or that is new.
    fn next_to_read(&mut self) -> Option<(u32, Action)> {
        loop {
            let position = self.restoration().allocate_to_read;
            let unit = self.unit_at(position)?;
            let wanted = match unit {
                Unit::Weights(layer) => {
                    let weights = self.table.weights(layer);
                    weights.phase == Phase::Idle && !weights.has_buffer
                }
                Unit::Kv(id) => {
                    let chunk = self.table.chunk(id);
                    chunk.phase == Phase::Idle && !chunk.has_buffer && !chunk.restores_from_ram()
                }
            };
            if wanted {
                return Some((position, self.allocate(unit)));
            }
            self.restoration().allocate_to_read += 1;
        }
    }

    /// The same for those who unpack.
    fn next_to_unpack(&mut self) -> Option<(u32, Action)> {
        loop {
            let position = self.restoration().allocate_to_unpack;
            let unit = self.unit_at(position)?;
            if let Unit::Kv(id) = unit {
                let chunk = self.table.chunk(id);
                let has_none = chunk.phase == Phase::Idle && !chunk.has_buffer;
                if has_none && chunk.restores_from_ram() {
                    return Some((position, self.allocate(unit)));
                }
            }
            self.restoration().allocate_to_unpack += 1;
        }
    }

    fn allocate(&self, unit: Unit) -> Action {
        Action::Allocate { unit, is_new: self.table.is_new(unit) }
    }

    fn next_read(&mut self) -> Option<(u32, Action)> {
        loop {
            let position = self.restoration().read;
            match self.unit_at(position)? {
                Unit::Weights(layer) => {
                    let weights = self.table.weights(layer);
                    let part = weights.parts_given;
                    if !weights.resident && weights.has_buffer && part < weights.parts {
                        return Some((position, Action::ReadWeights { layer, part }));
                    }
                    if !weights.resident && !weights.has_buffer {
                        return None;
                    }
                }
                Unit::Kv(id) => {
                    let chunk = *self.table.chunk(id);
                    let from_flash =
                        !chunk.restores_from_ram() && chunk.copies.contains(Copies::FLASH);
                    let out = !chunk.copies.contains(Copies::RESIDENT);
                    if from_flash && chunk.phase == Phase::Prepared {
                        let (record, tokens) = (chunk.flash, chunk.flash_tokens);
                        return Some((position, Action::ReadChunk { id, record, tokens }));
                    }
                    if from_flash && out && chunk.phase != Phase::Filling {
                        return None;
                    }
                }
            }
            self.restoration().read += 1;
        }
    }

    fn next_unpack(&mut self) -> Option<(u32, Action)> {
        loop {
            let position = self.restoration().unpack;
            if let Unit::Kv(id) = self.unit_at(position)? {
                let chunk = *self.table.chunk(id);
                if chunk.restores_from_ram() && chunk.phase == Phase::Prepared {
                    let (record, tokens) = (chunk.ram, chunk.ram_tokens);
                    return Some((position, Action::Unpack { id, record, tokens }));
                }
                // What has a packed copy now is not in memory.
                if chunk.restores_from_ram() && chunk.phase != Phase::Filling {
                    return None;
                }
            }
            self.restoration().unpack += 1;
        }
    }

    /// A buffer that a stopped restore left unfilled, to be given back.
    pub(super) fn sweep_prepared(&mut self, roles: Roles) -> Step {
        if self.table.tally.prepared == 0 || !roles.contains(Roles::ALLOCATE) {
            return Step::default();
        }
        let mut position = 0;
        while let Some(unit) = self.unit_at(position) {
            if self.table.phase(unit) == Phase::Prepared {
                match unit {
                    Unit::Weights(layer) => {
                        self.table.update_weights(layer, |weights| weights.phase = Phase::Releasing)
                    }
                    Unit::Kv(id) => {
                        self.table.update_chunk(id, |chunk| chunk.phase = Phase::Releasing);
                    }
                }
                return Step::act(Action::Release { unit });
            }
            position += 1;
        }
        Step::default()
    }

    pub(super) fn settle_restore(&mut self) -> bool {
        let restoration = *self.restoration();
        let tally = &self.table.tally;
        if tally.busy > 0 {
            return false;
        }
        if tally.missing == 0 {
            self.restored = Some(Ok(()));
            return true;
        }
        if restoration.stopping && tally.prepared == 0 {
            let cancelled = Error::new(Code::Cancelled, "restore");
            self.restored = Some(Err(restoration.error.unwrap_or(cancelled)));
            return true;
        }
        false
    }

    pub(super) fn done_allocate(&mut self, unit: Unit, outcome: Outcome) -> Result<Step> {
        let allocated = match outcome {
            Outcome::Done => true,
            Outcome::Failed(error) => {
                self.fail_restore(error);
                false
            }
            _ => return Err(Error::new(Code::BadState, "outcome of allocate")),
        };
        let phase = if allocated { Phase::Prepared } else { Phase::Idle };
        let mut step = Step::touch(unit);
        match unit {
            Unit::Weights(layer) => self.table.update_weights(layer, |weights| {
                weights.has_buffer = allocated;
                weights.phase = phase;
            }),
            Unit::Kv(id) => {
                let empty = self.table.is_new(unit);
                self.table.update_chunk(id, |chunk| {
                    chunk.has_buffer = allocated;
                    chunk.phase = phase;
                    if allocated && empty {
                        // A new chunk is zero-filled and needs nothing more.
                        chunk.copies = Copies::RESIDENT;
                        chunk.phase = Phase::Idle;
                    }
                });
                step.publish = (allocated && empty).then_some(unit);
            }
        }
        self.look_again();
        Ok(step)
    }

    pub(super) fn done_read_weights(
        &mut self,
        layer: LayerIndex,
        part: u32,
        outcome: Outcome,
    ) -> Result<Step> {
        let arrived = match outcome {
            Outcome::Done => true,
            Outcome::Failed(error) => {
                self.fail_restore(error);
                false
            }
            _ => return Err(Error::new(Code::BadState, "outcome of read")),
        };
        let before = *self.table.weights(layer);
        let done = before.parts_done + u32::from(arrived);
        // A failed part is never given again: the buffer is swept and the unit read anew.
        let busy = before.parts_busy & !(1 << part);
        let complete = done == before.parts;
        self.table.update_weights(layer, |weights| {
            weights.parts_done = done;
            weights.parts_failed += u32::from(!arrived);
            weights.parts_busy = busy;
            weights.resident = complete;
            weights.phase = match (complete, busy) {
                (true, _) => Phase::Idle,
                (false, 0) => Phase::Prepared,
                (false, _) => Phase::Filling,
            };
        });
        if complete {
            self.look_again();
        }
        let unit = Unit::Weights(layer);
        Ok(Step { publish: complete.then_some(unit), ..Step::touch(unit) })
    }

    pub(super) fn done_fill_chunk(&mut self, id: ChunkId, outcome: Outcome) -> Result<Step> {
        match outcome {
            Outcome::Done => Ok(self.filled_chunk(id)),
            Outcome::Failed(error) => Ok(self.failed_fill(id, error)),
            _ => Err(Error::new(Code::BadState, "outcome of fill")),
        }
    }

    fn filled_chunk(&mut self, id: ChunkId) -> Step {
        let chunk = *self.table.chunk(id);
        let forget = chunk.copies.contains(Copies::RAM).then_some(chunk.ram);
        // What is on flash is no longer what is in memory once a lossy codec came between, unless
        // it is the same packed chunk.
        let is_twin = chunk.flash.packed && chunk.flash_tokens == chunk.ram_tokens;
        let stale = forget.is_some() && !self.lossless && !is_twin;
        self.table.update_chunk(id, |chunk| {
            chunk.copies |= Copies::RESIDENT;
            chunk.copies.remove(Copies::RAM);
            if stale {
                chunk.copies.remove(Copies::FLASH);
            }
            chunk.phase = Phase::Idle;
        });
        self.look_again();
        let unit = Unit::Kv(id);
        Step { forget, publish: Some(unit), ..Step::touch(unit) }
    }

    /// Damaged bytes cost the copy they came from; any other failure stops the restore. The buffer,
    /// partly written, is given back either way.
    fn failed_fill(&mut self, id: ChunkId, error: Error) -> Step {
        let mut forget = None;
        self.heed(error);
        if is_damage(error.code) {
            let chunk = *self.table.chunk(id);
            let from = if chunk.restores_from_ram() { Copies::RAM } else { Copies::FLASH };
            forget = chunk.copies.contains(Copies::RAM).then_some(chunk.ram);
            self.table.update_chunk(id, |chunk| chunk.copies.remove(from));
        } else {
            self.fail_restore(error);
        }
        self.table.update_chunk(id, |chunk| chunk.phase = Phase::Releasing);
        Step { forget, ..Step::act(Action::Release { unit: Unit::Kv(id) }) }
    }

    /// After a damaged copy was dropped and the buffer given back: another copy, or the end.
    pub(super) fn retry_or_lose(&mut self, id: ChunkId) {
        let lost = self.table.chunk(id).is_lost();
        let token = u32::from(id.chunk.get()) * u32::from(CHUNK_TOKENS);
        let restoration = self.restoration();
        if lost {
            let what = "KV chunk; recompute from token";
            restoration.fail(Error::new(Code::Corrupt, what).with(token));
        } else {
            restoration.rewind();
        }
    }

    pub(super) fn fail_restore(&mut self, error: Error) {
        if let Goal::Restore(restoration) = &mut self.goal {
            restoration.fail(error);
        }
    }
}

fn frontmost<const N: usize>(offers: [Option<(u32, Action)>; N]) -> Option<(u32, Action)> {
    offers.into_iter().flatten().min_by_key(|(position, _)| *position)
}

/// Whether an error means that the copy read is no good, as opposed to a transfer that may succeed
/// another time.
fn is_damage(code: Code) -> bool {
    matches!(
        code,
        Code::Corrupt
            | Code::Truncated
            | Code::BadMagic
            | Code::Unsupported
            | Code::Mismatch
            | Code::ShortRead
            | Code::SyncFailed
            | Code::Poisoned
    )
}
