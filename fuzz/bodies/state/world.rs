//! The world that the machine acts on: what each copy holds, and what compute wrote.

use super::setup::{PACKED_BYTES, PACKED_BYTES_MAX, SHAPE};
use mzcache::limits::CHUNK_TOKENS;
use mzcache::state::{Action, Copies, Machine, Outcome, Step};
use mzcache::units::{
    ChunkId, ChunkIndex, FlashRecord, LayerIndex, RamRecord, SegmentIndex, TokenCount, Unit,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a copy of a chunk holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The commit that its tokens come from; 0 before the first.
    version: u32,
    /// Whether a codec that loses something came between.
    lossy: bool,
    /// The computation that wrote behind the committed tokens.
    draft: u32,
}

/// What a failed transfer leaves behind.
const GARBAGE: Content = Content { version: u32::MAX, lossy: true, draft: u32::MAX };

#[derive(Default)]
pub struct World {
    lossless: bool,
    packs_badly: bool,
    buffers: BTreeMap<ChunkId, Content>,
    weights: BTreeMap<LayerIndex, u64>,
    pub records: BTreeMap<u32, Content>,
    slots: BTreeMap<ChunkId, Content>,
    /// The last commit of each chunk.
    truth: BTreeMap<ChunkId, u32>,
    /// What compute wrote in this pass and relies on.
    drafts: BTreeMap<ChunkId, u32>,
    draft_next: u32,
    /// Chunks of which a copy was damaged since their last commit.
    damaged: BTreeSet<ChunkId>,
    pub in_flight: Vec<Action>,
    record_next: u32,
}

pub fn chunk_id(layer: u16, column: u16) -> ChunkId {
    ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(column) }
}

/// Chunks of the columns from that of `tokens` on.
pub fn chunks_from(tokens: TokenCount, columns: u32) -> impl Iterator<Item = ChunkId> {
    let first = tokens.get() / u32::from(CHUNK_TOKENS);
    let columns = first..columns;
    columns.flat_map(|column| {
        (0..SHAPE.layers).map(move |layer| chunk_id(layer, u16::try_from(column).unwrap()))
    })
}

impl World {
    pub fn new(lossless: bool, packs_badly: bool) -> Self {
        World { lossless, packs_badly, ..World::default() }
    }

    /// Applies a step and remembers its action.
    pub fn take(&mut self, step: &Step) {
        if let Some(record) = step.forget {
            assert!(self.records.remove(&record.offset).is_some(), "record forgotten twice");
        }
        match step.publish {
            Some(Unit::Kv(id)) => assert!(self.buffers.contains_key(&id)),
            Some(Unit::Weights(layer)) => assert!(self.weights.contains_key(&layer)),
            None => {}
        }
        self.in_flight.extend(step.action);
    }

    /// Does what a worker would.
    pub fn perform(&mut self, action: Action) -> Outcome {
        match action {
            Action::Pack { id, .. } => {
                let buffer = self.buffers[&id];
                let lossy = buffer.lossy || !self.lossless;
                self.record_next += 1;
                let offset = self.record_next;
                self.records.insert(offset, Content { lossy, draft: 0, ..buffer });
                let bytes = if self.packs_badly { PACKED_BYTES_MAX } else { PACKED_BYTES };
                let segment = SegmentIndex::new(1);
                return Outcome::Packed(RamRecord { segment, generation: 0, offset, bytes });
            }
            Action::Write { id } => {
                self.slots.insert(id, self.buffers[&id]);
                return Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: false });
            }
            Action::Spill { id, record } => {
                self.slots.insert(id, self.records[&record.offset]);
                return Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: true });
            }
            Action::Release { unit: Unit::Kv(id) } => drop(self.buffers.remove(&id).unwrap()),
            Action::Release { unit: Unit::Weights(layer) } => {
                self.weights.remove(&layer).unwrap();
            }
            Action::Allocate { unit: Unit::Kv(id) } => {
                let before = self.buffers.insert(id, Content::default());
                assert_eq!(before, None, "a chunk has one buffer");
            }
            Action::Allocate { unit: Unit::Weights(layer) } => {
                assert_eq!(self.weights.insert(layer, 0), None, "a unit has one buffer");
            }
            Action::ReadWeights { layer, part } => {
                let parts = self.weights.get_mut(&layer).unwrap();
                assert!(*parts & 1 << part == 0, "a part is read once");
                *parts |= 1 << part;
            }
            Action::ReadChunk { id, .. } => drop(self.buffers.insert(id, self.slots[&id])),
            Action::Unpack { id, record, .. } => {
                self.buffers.insert(id, self.records[&record.offset]);
            }
        }
        Outcome::Done
    }

    /// Does half of it, and badly.
    pub fn fail(&mut self, action: Action, is_damage: bool) {
        match action {
            Action::Write { id } | Action::Spill { id, .. } => {
                self.slots.insert(id, GARBAGE);
            }
            Action::ReadChunk { id, .. } | Action::Unpack { id, .. } => {
                self.buffers.insert(id, GARBAGE);
                if is_damage {
                    self.damaged.insert(id);
                }
            }
            _ => {}
        }
    }

    /// Compute writes behind the committed tokens, wherever it may.
    pub fn compute(&mut self, machine: &Machine) {
        self.draft_next += 1;
        for id in chunks_from(machine.tokens(), machine.columns().into()) {
            if machine.chunk(id).is_some_and(|chunk| chunk.is_ready()) {
                self.drafts.insert(id, self.draft_next);
                self.buffers.get_mut(&id).unwrap().draft = self.draft_next;
            }
        }
    }

    /// Compute starts over: what it wrote does not count.
    pub fn forget_drafts(&mut self) {
        self.drafts.clear();
    }

    /// The machine took all tokens from `before` on for written.
    pub fn commit(&mut self, before: TokenCount, tokens: TokenCount) {
        for id in chunks_from(before, tokens.chunks()) {
            let buffer = self.buffers.get_mut(&id).unwrap();
            if let Some(draft) = self.drafts.get(&id) {
                assert_eq!(buffer.draft, *draft, "{id:?} is committed but was lost");
            }
            let truth = self.truth.entry(id).or_insert(0);
            *truth += 1;
            (buffer.version, buffer.lossy) = (*truth, false);
            self.damaged.remove(&id);
        }
        let full = tokens.get() / u32::from(CHUNK_TOKENS);
        self.drafts.retain(|id, _| u32::from(id.chunk.get()) >= full);
    }

    /// Every copy that the machine believes in is there and holds what was committed.
    pub fn compare(&self, machine: &Machine) {
        for id in chunks_from(TokenCount::default(), machine.columns().into()) {
            let chunk = machine.chunk(id).unwrap();
            assert_eq!(self.buffers.contains_key(&id), chunk.has_buffer, "{id:?}");
            if chunk.tokens == 0 {
                continue;
            }
            let truth = self.truth.get(&id).copied().unwrap_or(0);
            let is_good = |content: Content| content.version == truth;
            let (ram, flash) = (self.records.get(&chunk.ram.offset), self.slots.get(&id));
            let buffer = self.buffers.get(&id);
            if chunk.copies.contains(Copies::RESIDENT) {
                assert!(is_good(buffer.copied().unwrap()), "{id:?} {chunk:?} {buffer:?}");
            }
            if chunk.copies.contains(Copies::RAM) {
                assert!(is_good(ram.copied().unwrap()), "{id:?} {chunk:?} {ram:?}");
            }
            if chunk.copies.contains(Copies::FLASH) {
                assert!(is_good(flash.copied().unwrap()), "{id:?} {chunk:?} {flash:?}");
            }
            if chunk.copies.contains(Copies::RESIDENT | Copies::FLASH) {
                let lossy = |content: Option<&Content>| content.map(|content| content.lossy);
                assert_eq!(lossy(buffer), lossy(flash), "{id:?} would change by being dropped");
            }
            assert!(!chunk.is_lost() || self.damaged.contains(&id), "{id:?} is lost for nothing");
        }
        for layer in (0..=SHAPE.layers).map(LayerIndex::new) {
            let weights = machine.weights(layer).unwrap();
            let parts = self.weights.get(&layer);
            assert_eq!(parts.is_some(), weights.has_buffer, "{layer:?}");
            let all = parts.is_some_and(|parts| parts.count_ones() == weights.parts);
            assert!(all || !weights.is_ready(), "{layer:?} is ready before its bytes");
        }
    }

    /// What must hold when nothing is under way.
    pub fn compare_at_rest(&self, machine: &Machine) {
        assert!(self.in_flight.is_empty(), "idle with work under way");
        let (mut records, mut buffers) = (0, 0);
        for id in chunks_from(TokenCount::default(), machine.columns().into()) {
            let chunk = machine.chunk(id).unwrap();
            records += usize::from(chunk.copies.contains(Copies::RAM));
            buffers += usize::from(chunk.has_buffer);
        }
        assert_eq!(records, self.records.len(), "records leak");
        assert_eq!(buffers, self.buffers.len(), "buffers leak");
    }
}
