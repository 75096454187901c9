//! The world that the machine acts on: what each copy holds, and what compute wrote.

use super::setup::{CHUNKS, PACKED_BYTES, PACKED_BYTES_MAX, SHAPE, WEIGHT_BYTES};
use mzcache::limits::CHUNK_TOKENS;
use mzcache::state::{Action, Copies, Machine, Outcome, Step};
use mzcache::units::{
    ChunkId, ChunkIndex, FlashRecord, LayerIndex, RamRecord, SegmentIndex, TokenCount, Unit,
};

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

/// What the world knows of a chunk.
#[derive(Clone, Copy, Default)]
struct Known {
    buffer: Option<Content>,
    slot: Option<Content>,
    /// The last commit.
    truth: u32,
    /// What compute wrote in this pass and relies on.
    draft: Option<u32>,
    /// A copy was damaged since the last commit.
    damaged: bool,
}

#[derive(Default)]
pub struct World {
    lossless: bool,
    packs_badly: bool,
    /// What is known of each chunk, see [`place`].
    chunks: [Known; CHUNKS],
    /// The parts that each weight unit's buffer holds, one bit each, if there is a buffer.
    weights: [Option<u64>; WEIGHT_BYTES.len()],
    /// Packed chunks, by their records' offsets.
    pub records: Vec<(u32, Content)>,
    draft_next: u32,
    pub in_flight: Vec<Action>,
    record_next: u32,
}

pub fn chunk_id(layer: u16, column: u16) -> ChunkId {
    ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(column) }
}

/// Where a chunk stands in an array of all.
pub fn place(id: ChunkId) -> usize {
    id.chunk.index() * usize::from(SHAPE.layers) + id.layer.index()
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

    fn chunk(&mut self, id: ChunkId) -> &mut Known {
        &mut self.chunks[place(id)]
    }

    fn record(&self, offset: u32) -> Option<Content> {
        self.records.iter().find(|(other, _)| *other == offset).map(|(_, content)| *content)
    }

    /// Applies a step and remembers its action.
    pub fn take(&mut self, step: &Step) {
        if let Some(record) = step.forget {
            let before = self.records.len();
            self.records.retain(|(offset, _)| *offset != record.offset);
            assert_eq!(self.records.len(), before - 1, "a record is forgotten once");
        }
        match step.publish {
            Some(Unit::Kv(id)) => assert!(self.chunk(id).buffer.is_some()),
            Some(Unit::Weights(layer)) => assert!(self.weights[layer.index()].is_some()),
            None => {}
        }
        self.in_flight.extend(step.action);
    }

    /// Does what a worker would.
    pub fn perform(&mut self, action: Action) -> Outcome {
        match action {
            Action::Pack { id, .. } => {
                let buffer = self.chunk(id).buffer.unwrap();
                let lossy = buffer.lossy || !self.lossless;
                self.record_next += 1;
                let offset = self.record_next;
                self.records.push((offset, Content { lossy, draft: 0, ..buffer }));
                let bytes = if self.packs_badly { PACKED_BYTES_MAX } else { PACKED_BYTES };
                let segment = SegmentIndex::new(1);
                return Outcome::Packed(RamRecord { segment, generation: 0, offset, bytes });
            }
            Action::Write { id } => {
                let chunk = self.chunk(id);
                chunk.slot = Some(chunk.buffer.unwrap());
                return Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: false });
            }
            Action::Spill { id, record } => {
                self.chunk(id).slot = Some(self.record(record.offset).unwrap());
                return Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: true });
            }
            Action::Release { unit: Unit::Kv(id) } => {
                self.chunk(id).buffer.take().unwrap();
            }
            Action::Release { unit: Unit::Weights(layer) } => {
                self.weights[layer.index()].take().unwrap();
            }
            Action::Allocate { unit: Unit::Kv(id), .. } => {
                let before = self.chunk(id).buffer.replace(Content::default());
                assert_eq!(before, None, "a chunk has one buffer");
            }
            Action::Allocate { unit: Unit::Weights(layer), .. } => {
                assert_eq!(self.weights[layer.index()].replace(0), None, "a unit has one buffer");
            }
            Action::ReadWeights { layer, part } => {
                let parts = self.weights[layer.index()].as_mut().unwrap();
                assert!(*parts & 1 << part == 0, "a part is read once");
                *parts |= 1 << part;
            }
            Action::ReadChunk { id, .. } => self.fill(id, self.chunks[place(id)].slot),
            Action::Unpack { id, record, .. } => self.fill(id, self.record(record.offset)),
        }
        Outcome::Done
    }

    fn fill(&mut self, id: ChunkId, content: Option<Content>) {
        let before = self.chunk(id).buffer.replace(content.unwrap());
        assert!(before.is_some(), "a chunk is filled in its buffer");
    }

    /// Does half of it, and badly.
    pub fn fail(&mut self, action: Action, is_damage: bool) {
        match action {
            Action::Write { id } | Action::Spill { id, .. } => {
                self.chunk(id).slot = Some(GARBAGE);
            }
            Action::ReadChunk { id, .. } | Action::Unpack { id, .. } => {
                self.fill(id, Some(GARBAGE));
                self.chunk(id).damaged |= is_damage;
            }
            _ => {}
        }
    }

    /// Compute writes behind the committed tokens, wherever it may.
    pub fn compute(&mut self, machine: &Machine) {
        self.draft_next += 1;
        let draft = self.draft_next;
        for id in chunks_from(machine.tokens(), machine.columns().into()) {
            if machine.chunk(id).is_some_and(|chunk| chunk.is_ready()) {
                let chunk = self.chunk(id);
                chunk.draft = Some(draft);
                chunk.buffer.as_mut().unwrap().draft = draft;
            }
        }
    }

    /// Compute starts over: what it wrote does not count.
    pub fn forget_drafts(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.draft = None);
    }

    /// The machine took all tokens from `before` on for written.
    pub fn commit(&mut self, before: TokenCount, tokens: TokenCount) {
        let full = tokens.get() / u32::from(CHUNK_TOKENS);
        for id in chunks_from(before, tokens.chunks()) {
            let chunk = self.chunk(id);
            let buffer = chunk.buffer.as_mut().unwrap();
            if let Some(draft) = chunk.draft {
                assert_eq!(buffer.draft, draft, "{id:?} is committed but was lost");
            }
            chunk.truth += 1;
            (buffer.version, buffer.lossy) = (chunk.truth, false);
            chunk.damaged = false;
            // Behind the last token the draft goes on.
            chunk.draft = chunk.draft.filter(|_| u32::from(id.chunk.get()) >= full);
        }
    }

    /// Every copy that the machine believes in is there and holds what was committed.
    pub fn compare(&self, machine: &Machine) {
        for id in chunks_from(TokenCount::default(), machine.columns().into()) {
            let chunk = machine.chunk(id).unwrap();
            let Known { buffer, slot, truth, damaged, .. } = self.chunks[place(id)];
            assert_eq!(buffer.is_some(), chunk.has_buffer, "{id:?}");
            if chunk.tokens == 0 {
                continue;
            }
            let is_good = |content: Option<Content>| content.is_some_and(|c| c.version == truth);
            if chunk.copies.contains(Copies::RESIDENT) {
                assert!(is_good(buffer), "{id:?} {chunk:?} {buffer:?}");
            }
            if chunk.copies.contains(Copies::RAM) {
                let record = self.record(chunk.ram.offset);
                assert!(is_good(record), "{id:?} {chunk:?} {record:?}");
            }
            if chunk.copies.contains(Copies::FLASH) {
                assert!(is_good(slot), "{id:?} {chunk:?} {slot:?}");
            }
            if chunk.copies.contains(Copies::RESIDENT | Copies::FLASH) {
                let lossy = |content: Option<Content>| content.map(|content| content.lossy);
                assert_eq!(lossy(buffer), lossy(slot), "{id:?} would change by being dropped");
            }
            assert!(!chunk.is_lost() || damaged, "{id:?} is lost for nothing");
        }
        for (layer, parts) in (0..).map(LayerIndex::new).zip(self.weights) {
            let weights = machine.weights(layer).unwrap();
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
        let known = self.chunks.iter().filter(|chunk| chunk.buffer.is_some()).count();
        assert_eq!(buffers, known, "buffers leak");
    }
}
