//! The world that the machine's tests act on: which version of its content each copy holds.

use super::super::table::chunk_id;
use super::super::*;
use super::{PACKED_BYTES, SHAPE};
use crate::units::{ChunkId, FlashRecord, LayerIndex, RamRecord, SegmentIndex, Unit};
use std::collections::BTreeMap;
use std::vec::Vec;

/// What a chunk's bytes stand for: which commit of it, and whether a lossy codec came between.
type Version = u32;

/// As many tokens as somebody asks for.
const ANY: u16 = u16::MAX;

#[derive(Default)]
pub(super) struct World {
    pub(super) buffers: BTreeMap<ChunkId, Version>,
    weights: BTreeMap<LayerIndex, u64>,
    /// Each copy with the tokens it holds.
    pub(super) records: BTreeMap<(SegmentIndex, u32), (Version, u16)>,
    pub(super) slots: BTreeMap<ChunkId, (Version, u16)>,
    pub(super) truth: BTreeMap<ChunkId, Version>,
    pub(super) in_flight: Vec<Action>,
    record_next: u32,
}

impl World {
    /// Applies a step and remembers its action.
    pub(super) fn take(&mut self, step: Step) {
        if let Some(record) = step.forget {
            let known = self.records.remove(&(record.segment, record.offset));
            assert!(known.is_some(), "record forgotten twice");
        }
        if let Some(Unit::Kv(id)) = step.publish {
            assert!(self.buffers.contains_key(&id));
        }
        self.in_flight.extend(step.action);
    }

    pub(super) fn perform(&mut self, action: Action) -> Outcome {
        match action {
            Action::Pack { id, tokens } => {
                let version = self.buffers[&id];
                self.record_next += 1;
                let record = RamRecord {
                    segment: SegmentIndex::new(1),
                    generation: 0,
                    offset: self.record_next,
                    bytes: PACKED_BYTES,
                };
                self.records.insert((record.segment, record.offset), (version, tokens));
                Outcome::Packed(record)
            }
            Action::Write { id } => {
                // A raw chunk holds all that there is.
                self.slots.insert(id, (self.buffers[&id], ANY));
                Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: false })
            }
            Action::Spill { id, record } => {
                self.slots.insert(id, self.records[&(record.segment, record.offset)]);
                Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: true })
            }
            Action::Release { unit: Unit::Kv(id) } => {
                self.buffers.remove(&id).unwrap();
                Outcome::Done
            }
            Action::Release { unit: Unit::Weights(layer) } => {
                self.weights.remove(&layer).unwrap();
                Outcome::Done
            }
            Action::Allocate { unit: Unit::Kv(id), .. } => {
                assert!(self.buffers.insert(id, 0).is_none(), "a chunk has one buffer");
                Outcome::Done
            }
            Action::Allocate { unit: Unit::Weights(layer), .. } => {
                assert!(self.weights.insert(layer, 0).is_none(), "a unit has one buffer");
                Outcome::Done
            }
            Action::ReadWeights { layer, part } => {
                let parts = self.weights.get_mut(&layer).unwrap();
                assert!(*parts & (1 << part) == 0, "a part is read once");
                *parts |= 1 << part;
                Outcome::Done
            }
            Action::ReadChunk { id, tokens, .. } => {
                let copy = self.slots[&id];
                self.fill(id, tokens, copy)
            }
            Action::Unpack { id, record, tokens } => {
                let copy = self.records[&(record.segment, record.offset)];
                self.fill(id, tokens, copy)
            }
        }
    }

    /// A packed copy unpacks as what it was packed as, and as nothing else.
    fn fill(&mut self, id: ChunkId, tokens: u16, (version, held): (Version, u16)) -> Outcome {
        assert!(held == ANY || held == tokens, "{id:?} holds {held} tokens, not {tokens}");
        self.buffers.insert(id, version);
        Outcome::Done
    }

    /// Every chunk that compute may use holds what was committed; every copy the machine believes
    /// in is there.
    pub(super) fn compare(&self, machine: &Machine) {
        for column in 0..machine.columns() {
            for layer in 0..SHAPE.layers {
                let id = chunk_id(layer, column);
                let chunk = machine.chunk(id).unwrap();
                let truth = self.truth.get(&id).copied().unwrap_or(0);
                if chunk.tokens == 0 {
                    continue;
                }
                if chunk.copies.contains(Copies::RESIDENT) {
                    assert_eq!(self.buffers[&id], truth, "{id:?} {chunk:?}");
                }
                if chunk.copies.contains(Copies::RAM) {
                    let key = (chunk.ram.segment, chunk.ram.offset);
                    assert_eq!(self.records[&key].0, truth, "{id:?} {chunk:?}");
                }
                if chunk.copies.contains(Copies::FLASH) {
                    assert_eq!(self.slots[&id].0, truth, "{id:?} {chunk:?}");
                }
                assert!(!chunk.is_lost() || machine.lost().is_some());
            }
        }
    }
}
