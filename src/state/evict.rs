//! Eviction: picks the next victim that policy asks for, books what came of it.

use super::machine::{Action, EvictPolicy, Goal, Machine, Outcome, Paths, Roles, Step};
use super::table::chunk_id;
use super::unit::{Copies, Phase};
use crate::error::{Code, Error, Result};
use crate::policy::{self, Load, Move, Stage};
use crate::units::{ByteCount, ChunkId, FlashRecord, LayerIndex, Nanos, RamRecord, Unit};

/// Why an eviction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// What was asked for is free.
    Reached,
    /// Nothing evictable is left.
    Exhausted,
    /// The deadline passed.
    Deadline,
    /// The caller stopped it.
    Cancelled,
}

/// What an eviction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictReport {
    /// Bytes asked for.
    pub asked: ByteCount,
    /// Bytes freed: shared buffers given back, less what the RAM swap grew by.
    pub freed: ByteCount,
    /// The stage that the next eviction would start in.
    pub stage: Stage,
    /// Why it ended.
    pub stop: Stop,
    /// Units that stayed because compute was using them.
    pub leased: u32,
    /// The first failure, if one path out of memory had to be closed.
    pub error: Option<Error>,
}

/// A running eviction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eviction {
    asked: u64,
    start_bytes: u64,
    paths: Paths,
    stop: Option<Stop>,
    exhausted: bool,
    leased: u32,
    error: Option<Error>,
    /// How far the scans for victims got, in eviction order.
    kv_position: u32,
    weights_position: u16,
    spill_position: u32,
}

impl Eviction {
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }
}

impl Machine {
    pub(super) fn begin_evict(&mut self, bytes: ByteCount, policy: EvictPolicy) -> Result<Step> {
        match &mut self.goal {
            Goal::Idle => {}
            Goal::Restore(restoration) => {
                // The memory is wanted now; whoever waits for the restore is told to try again.
                let error = Error::new(Code::Cancelled, "restore: an eviction came first");
                let error = restoration.error().unwrap_or(error);
                self.restored = Some(Err(error));
            }
            Goal::Save(_) => self.end_save(Stop::Cancelled),
            _ => return Err(Error::new(Code::BadState, "evict")),
        }
        self.sort_by_age();
        self.clear_skipped();
        self.evicted = None;
        self.plan.scheme = policy.scheme;
        self.order = policy.order;
        self.goal = Goal::Evict(Eviction {
            asked: bytes.get(),
            start_bytes: self.table.tally.total_bytes(),
            paths: policy.paths,
            stop: None,
            exhausted: false,
            leased: 0,
            error: None,
            kv_position: 0,
            weights_position: 0,
            spill_position: 0,
        });
        Ok(Step::touch_all())
    }

    pub(super) fn stop_evict(&mut self, stop: Stop) -> Result<Step> {
        match &mut self.goal {
            Goal::Evict(eviction) => {
                eviction.stop = eviction.stop.or(Some(stop));
                Ok(Step::default())
            }
            _ => Err(Error::new(Code::BadState, "stop evict")),
        }
    }

    fn clear_skipped(&mut self) {
        for layer in 0..self.table.weight_units() {
            self.table.update_weights(LayerIndex::new(layer), |weights| weights.skipped = false);
        }
        for column in 0..self.table.columns {
            for layer in 0..self.table.kv_layers {
                self.table.update_chunk(chunk_id(layer, column), |chunk| chunk.skipped = false);
            }
        }
    }

    /// Layers by last use, for the LRU order. Insertion sort: there are few, and almost in order.
    fn sort_by_age(&mut self) {
        for index in 0..self.by_age.len() {
            self.by_age[index] = super::machine::layer_at(index);
        }
        let layers = &self.table.layers;
        for end in 1..self.by_age.len() {
            let mut at = end;
            while at > 0
                && layers[self.by_age[at - 1].index()].used_at
                    > layers[self.by_age[at].index()].used_at
            {
                self.by_age.swap(at - 1, at);
                at -= 1;
            }
        }
    }

    fn eviction(&mut self) -> &mut Eviction {
        match &mut self.goal {
            Goal::Evict(eviction) => eviction,
            _ => unreachable!("called while an eviction is running"),
        }
    }

    /// What policy needs to know.
    fn load(&mut self) -> Load {
        let next_weights = self.next_weights();
        let tally = &self.table.tally;
        let scaled = |count: u32, each: Option<Nanos>| {
            u64::from(count).saturating_mul(each.unwrap_or_default().get())
        };
        let flash = scaled(tally.on_flash, self.plan.times.read_chunk);
        let layer_has_kv = |layer: LayerIndex| self.table.layers[layer.index()].kv_left > 0;
        Load {
            kv_left: tally.kv_left,
            weights_left: tally.weights_left,
            packed_left: tally.packed_idle,
            ram: Nanos::new(scaled(tally.on_ram, self.plan.times.unpack_chunk)),
            flash: Nanos::new(flash.saturating_add(tally.weights_out.get())),
            next_weights: next_weights
                .map_or(Nanos::default(), |layer| self.table.weights(layer).read_ns),
            rear_layer_has_kv: next_weights.is_some_and(layer_has_kv),
        }
    }

    /// The plan with the paths that failed, or that the caller closed, taken out.
    fn open_plan(&self, paths: Paths) -> policy::Plan {
        let mut plan = self.plan;
        if !paths.ram {
            plan.times.unpack_chunk = None;
        }
        if !paths.flash {
            plan.times.read_chunk = None;
        }
        plan
    }

    pub(super) fn next_evict(&mut self, roles: Roles) -> Step {
        if self.table.tally.prepared > 0 {
            return self.sweep_prepared(roles);
        }
        let eviction = *self.eviction();
        let tally = &self.table.tally;
        let target = eviction.start_bytes.saturating_sub(eviction.asked);
        if eviction.stop.is_some()
            || tally.total_bytes() <= target.saturating_add(tally.pending_bytes)
        {
            return Step::default();
        }
        let load = self.load();
        match policy::next_move(&load, &self.open_plan(eviction.paths)) {
            Move::Pack if roles.contains(Roles::UNPACK) => self.take_chunk(Phase::Packing),
            Move::Write if roles.contains(Roles::READ) => self.take_chunk(Phase::Writing),
            Move::Spill if roles.contains(Roles::READ) => self.take_spill(),
            Move::DropWeights if roles.contains(Roles::ALLOCATE) => self.take_weights(),
            Move::Nothing => self.exhaust(),
            // The move is for a worker with another role.
            _ => Step::default(),
        }
    }

    /// Nothing is left to take, unless what is under way makes something (a chunk that is being
    /// packed can be spilled later).
    fn exhaust(&mut self) -> Step {
        let at_rest = self.table.tally.busy == 0;
        self.eviction().exhausted = at_rest;
        Step::default()
    }

    fn take_chunk(&mut self, phase: Phase) -> Step {
        let Some(id) = self.next_chunk() else {
            return self.exhaust();
        };
        let chunk = *self.table.chunk(id);
        if self.holds_uncommitted(id) {
            self.pass_undisturbed = false;
        }
        let clean = chunk.copies.contains(Copies::FLASH) && phase == Phase::Writing;
        if chunk.tokens == 0 || clean {
            self.table.update_chunk(id, |chunk| chunk.phase = Phase::Releasing);
            return Step::act(Action::Release { unit: Unit::Kv(id) });
        }
        if phase == Phase::Writing && self.sealing.is_some() {
            return Step::default();
        }
        self.table.update_chunk(id, |chunk| chunk.phase = phase);
        Step::act(match phase {
            Phase::Packing => Action::Pack { id, tokens: chunk.tokens },
            _ => Action::Write { id },
        })
    }

    /// Whether compute may have written tokens to the chunk that are not committed yet.
    fn holds_uncommitted(&self, id: ChunkId) -> bool {
        self.table.chunk(id).tokens < crate::limits::CHUNK_TOKENS
    }

    fn take_weights(&mut self) -> Step {
        let Some(layer) = self.next_weights() else {
            return self.exhaust();
        };
        self.table.update_weights(layer, |weights| weights.phase = Phase::Releasing);
        Step::act(Action::Release { unit: Unit::Weights(layer) })
    }

    fn take_spill(&mut self) -> Step {
        let Some(id) = self.next_packed() else {
            return self.exhaust();
        };
        let record = self.table.chunk(id).ram;
        if self.table.chunk(id).copies.contains(Copies::FLASH) {
            self.table.update_chunk(id, |chunk| chunk.copies.remove(Copies::RAM));
            return Step { forget: Some(record), again: true, ..Step::default() };
        }
        if self.sealing.is_some() {
            return Step::default();
        }
        self.table.update_chunk(id, |chunk| chunk.phase = Phase::Spilling);
        Step::act(Action::Spill { id, record })
    }

    /// The next chunk in eviction order that may be taken.
    fn next_chunk(&mut self) -> Option<ChunkId> {
        let from = self.eviction().kv_position;
        let (id, position) = self.scan(from, |machine, id| machine.table.chunk(id).is_evictable());
        self.eviction().kv_position = position;
        id
    }

    fn next_packed(&mut self) -> Option<ChunkId> {
        let from = self.eviction().spill_position;
        let (id, position) = self.scan(from, |machine, id| {
            let chunk = machine.table.chunk(id);
            let idle = chunk.phase == Phase::Idle && !chunk.is_ready() && !chunk.skipped;
            idle && chunk.copies.contains(Copies::RAM)
        });
        self.eviction().spill_position = position;
        id
    }

    fn scan(&self, from: u32, fits: impl Fn(&Self, ChunkId) -> bool) -> (Option<ChunkId>, u32) {
        let (layers, columns) = (self.table.kv_layers, self.table.columns);
        let count = u32::from(layers) * u32::from(columns);
        for position in from..count {
            let id = self.order.chunk_at(position, layers, columns, self.by_age);
            if fits(self, id) {
                return (Some(id), position);
            }
        }
        (None, count)
    }

    /// The next weight unit in eviction order that may be taken.
    fn next_weights(&mut self) -> Option<LayerIndex> {
        let count = self.table.weight_units();
        for position in self.eviction().weights_position..count {
            let layer = self.order.weights_at(position, count, self.by_age);
            if self.table.weights(layer).is_evictable() {
                self.eviction().weights_position = position;
                return Some(layer);
            }
        }
        self.eviction().weights_position = count;
        None
    }

    pub(super) fn settle_evict(&mut self) -> bool {
        let eviction = *self.eviction();
        let tally = &self.table.tally;
        if tally.busy > 0 || tally.prepared > 0 {
            return false;
        }
        let freed = eviction.start_bytes.saturating_sub(tally.total_bytes());
        let stop = if freed >= eviction.asked {
            Stop::Reached
        } else if let Some(stop) = eviction.stop {
            stop
        } else if eviction.exhausted || tally.total_bytes() == 0 {
            Stop::Exhausted
        } else {
            return false;
        };
        let stage = policy::stage(&self.load(), &self.open_plan(eviction.paths));
        self.evicted = Some(EvictReport {
            asked: ByteCount::new(eviction.asked),
            freed: ByteCount::new(freed),
            stage,
            stop,
            leased: eviction.leased,
            error: eviction.error,
        });
        true
    }

    pub(super) fn done_pack(&mut self, id: ChunkId, outcome: Outcome) -> Result<Step> {
        match outcome {
            Outcome::Packed(record) => Ok(self.copied_to_ram(id, record)),
            Outcome::Failed(error) => {
                Ok(self.failed_to_leave(id, error, Paths { ram: false, flash: true }))
            }
            _ => Err(Error::new(Code::BadState, "outcome of pack")),
        }
    }

    fn copied_to_ram(&mut self, id: ChunkId, record: RamRecord) -> Step {
        self.table.update_chunk(id, |chunk| {
            chunk.copies |= Copies::RAM;
            chunk.ram = record;
            chunk.ram_tokens = chunk.tokens;
            chunk.phase = Phase::Releasing;
        });
        Step::act(Action::Release { unit: Unit::Kv(id) })
    }

    pub(super) fn done_write(&mut self, id: ChunkId, outcome: Outcome) -> Result<Step> {
        match self.believed(outcome) {
            outcome if self.table.chunk(id).phase == Phase::Saving => self.done_save(id, outcome),
            Outcome::Written(record) => {
                self.table.update_chunk(id, |chunk| {
                    chunk.copies |= Copies::FLASH;
                    chunk.flash = record;
                    chunk.flash_tokens = chunk.tokens;
                    chunk.phase = Phase::Releasing;
                });
                Ok(Step::act(Action::Release { unit: Unit::Kv(id) }))
            }
            Outcome::Failed(error) => {
                // Nothing is known of the slot after a failed write.
                self.table.update_chunk(id, |chunk| chunk.copies.remove(Copies::FLASH));
                Ok(self.failed_to_leave(id, error, Paths { ram: true, flash: false }))
            }
            _ => Err(Error::new(Code::BadState, "outcome of write")),
        }
    }

    pub(super) fn done_spill(&mut self, id: ChunkId, outcome: Outcome) -> Result<Step> {
        match self.believed(outcome) {
            outcome if self.table.chunk(id).phase == Phase::Saving => self.done_save(id, outcome),
            Outcome::Written(record) => Ok(self.copied_to_flash(id, record)),
            Outcome::Failed(error) => {
                Ok(self.failed_to_leave(id, error, Paths { ram: true, flash: false }))
            }
            _ => Err(Error::new(Code::BadState, "outcome of spill")),
        }
    }

    fn copied_to_flash(&mut self, id: ChunkId, record: FlashRecord) -> Step {
        let forget = self.table.chunk(id).ram;
        self.table.update_chunk(id, |chunk| {
            chunk.copies |= Copies::FLASH;
            chunk.copies.remove(Copies::RAM);
            chunk.flash = record;
            chunk.flash_tokens = chunk.ram_tokens;
            chunk.phase = Phase::Idle;
        });
        Step { forget: Some(forget), ..Step::touch(Unit::Kv(id)) }
    }

    /// A chunk stays as it was: closes the path that failed, or leaves a leased chunk alone.
    fn failed_to_leave(&mut self, id: ChunkId, error: Error, open: Paths) -> Step {
        let leased = error.code == Code::Leased;
        self.heed(error);
        self.table.update_chunk(id, |chunk| {
            chunk.phase = Phase::Idle;
            chunk.skipped = leased;
        });
        self.note_failure(error, open);
        Step::touch(Unit::Kv(id))
    }

    pub(super) fn note_failure(&mut self, error: Error, open: Paths) {
        let Goal::Evict(eviction) = &mut self.goal else { return };
        if error.code == Code::Leased {
            eviction.leased += 1;
            return;
        }
        eviction.error = eviction.error.or(Some(error));
        eviction.paths.ram &= open.ram;
        eviction.paths.flash &= open.flash;
        // The units that failed may go another way.
        eviction.kv_position = 0;
        eviction.spill_position = 0;
        eviction.exhausted = false;
    }

    /// A restore's last action ended: its unit may be taken, and the scans may have passed it.
    pub(super) fn look_again(&mut self) {
        if let Goal::Evict(eviction) = &mut self.goal {
            eviction.kv_position = 0;
            eviction.weights_position = 0;
            eviction.spill_position = 0;
        }
    }

    pub(super) fn done_release(&mut self, unit: Unit, outcome: Outcome) -> Result<Step> {
        match (outcome, unit) {
            (Outcome::Done, Unit::Weights(layer)) => {
                self.table.update_weights(layer, |weights| {
                    weights.resident = false;
                    weights.has_buffer = false;
                    weights.parts_given = 0;
                    weights.parts_done = 0;
                    weights.parts_failed = 0;
                    weights.phase = Phase::Idle;
                });
                Ok(Step::touch(unit))
            }
            (Outcome::Done, Unit::Kv(id)) => Ok(self.released_chunk(id)),
            (Outcome::Failed(error), _) => self.failed_release(unit, error),
            _ => Err(Error::new(Code::BadState, "outcome of release")),
        }
    }

    fn released_chunk(&mut self, id: ChunkId) -> Step {
        self.table.update_chunk(id, |chunk| {
            chunk.copies.remove(Copies::RESIDENT);
            chunk.has_buffer = false;
            chunk.phase = Phase::Idle;
        });
        match &mut self.goal {
            Goal::Restore(_) => self.retry_or_lose(id),
            // It can be spilled from now on; the scan may have passed it while it was packed.
            Goal::Evict(eviction) => eviction.spill_position = 0,
            _ => {}
        }
        Step::touch(Unit::Kv(id))
    }

    /// Compute took a lease in the last moment: the unit stays, and needs no packed twin in RAM.
    fn failed_release(&mut self, unit: Unit, error: Error) -> Result<Step> {
        let resident = match unit {
            Unit::Weights(layer) => self.table.weights(layer).resident,
            Unit::Kv(id) => self.table.chunk(id).copies.contains(Copies::RESIDENT),
        };
        if !resident {
            return Err(Error::new(Code::BadState, "release of a buffer nobody can lease"));
        }
        let mut forget = None;
        match unit {
            Unit::Weights(layer) => self.table.update_weights(layer, |weights| {
                weights.phase = Phase::Idle;
                weights.skipped = true;
            }),
            Unit::Kv(id) => {
                let chunk = *self.table.chunk(id);
                forget = chunk.copies.contains(Copies::RAM).then_some(chunk.ram);
                self.table.update_chunk(id, |chunk| {
                    chunk.phase = Phase::Idle;
                    chunk.skipped = true;
                    chunk.copies.remove(Copies::RAM);
                });
            }
        }
        self.note_failure(error, Paths::BOTH);
        Ok(Step { forget, ..Step::touch(unit) })
    }
}
