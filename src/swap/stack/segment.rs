//! One segment of the stack: a bump pointer, counts of what is live below it, and one stretch that
//! is known to be free. Invariant: live records lie below `used`, outside of the stretch. It knows
//! neither workers nor memory.

use super::super::record::RECORD_ALIGN;
use super::ensure;
use super::list::Links;
use crate::error::{Code, Error, Result};
use crate::units::RamRecord as Record;

/// What a segment is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No memory; in the free list.
    Free,
    /// A worker was told to allocate it.
    Pending(usize),
    /// A worker pushes into it.
    Open(usize),
    /// A record did not fit, and nothing was popped since.
    Closed,
    /// Closed, and popped since; in the list of lowered segments.
    Lowered,
    /// Empty, with memory; in the list of vacant segments.
    Vacant,
    /// Empty; its memory is being given back.
    Releasing,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) phase: Phase,
    pub(super) links: Links,
    pub(super) generation: u16,
    /// Bytes below which everything lies.
    used: u32,
    /// Aligned bytes of live records.
    held: u32,
    pub(super) live_bytes: u32,
    pub(super) records: u32,
    /// Sum of the tags of live records.
    tags: u32,
    /// The highest stretch known to be free below `used`; empty when the ends are equal.
    hole: Hole,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hole {
    start: u32,
    end: u32,
}

impl Segment {
    pub(super) const fn new() -> Self {
        Segment {
            phase: Phase::Free,
            links: Links::NONE,
            generation: 0,
            used: 0,
            held: 0,
            live_bytes: 0,
            records: 0,
            tags: 0,
            hole: Hole { start: 0, end: 0 },
        }
    }

    /// From now on records of before are recognised as such.
    pub(super) const fn renew(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Puts a record on top; the offset, unless it does not fit.
    pub(super) fn push(&mut self, bytes: u32, segment_bytes: u32) -> Option<u32> {
        let held = held_by(bytes)?;
        let end = self.used.checked_add(held)?;
        if end > segment_bytes {
            return None;
        }
        let offset = self.used;
        self.used = end;
        self.held += held;
        self.live_bytes += bytes;
        self.records += 1;
        self.tags = self.tags.wrapping_add(tag_of(offset, bytes));
        assert!(self.held <= self.used);
        Some(offset)
    }

    /// Frees a record; whether `used` came down. Changes nothing when it is refused.
    pub(super) fn remove(&mut self, record: Record) -> Result<bool> {
        let Some(rest) = self.rest_without(record) else {
            return Err(Error::new(Code::BadState, "record is not live").with(record.offset));
        };
        let freed = Hole { start: record.offset, end: record.offset + (self.held - rest.held) };
        self.held = rest.held;
        self.live_bytes = rest.live_bytes;
        self.records = rest.records;
        self.tags = rest.tags;
        if self.records == 0 {
            self.used = 0;
            self.hole = Hole::default();
            return Ok(true);
        }
        if freed.end == self.used {
            self.lower_to(freed.start);
            return Ok(true);
        }
        self.hole = self.hole.joined_with(freed);
        Ok(false)
    }

    /// What would be live without the record; `None` where that contradicts what is known.
    fn rest_without(&self, record: Record) -> Option<Rest> {
        let is_in_use = matches!(self.phase, Phase::Open(_) | Phase::Closed | Phase::Lowered);
        let held = held_by(record.bytes).filter(|held| *held > 0)?;
        let end = record.offset.checked_add(held)?;
        let hole = self.hole;
        let is_in_hole = record.offset < hole.end && hole.start < end;
        if !is_in_use
            || record.generation != self.generation
            || !record.offset.is_multiple_of(RECORD_ALIGN)
            || end > self.used
            || is_in_hole
        {
            return None;
        }
        let rest = Rest {
            held: self.held.checked_sub(held)?,
            live_bytes: self.live_bytes.checked_sub(record.bytes)?,
            records: self.records.checked_sub(1)?,
            tags: self.tags.wrapping_sub(tag_of(record.offset, record.bytes)),
        };
        rest.is_possible().then_some(rest)
    }

    fn lower_to(&mut self, used: u32) {
        self.used = used;
        if self.hole.end == used {
            self.used = self.hole.start;
            self.hole = Hole::default();
        }
    }

    /// The segment's share of [`Stack::check`](super::Stack::check).
    pub(super) fn check(&self, segment_bytes: u32) -> Result<()> {
        let Segment { used, held, live_bytes, records, tags, hole, .. } = *self;
        ensure(used <= segment_bytes && used.is_multiple_of(RECORD_ALIGN), "swap segment use")?;
        ensure(Rest { held, live_bytes, records, tags }.is_possible(), "swap segment counts")?;
        ensure(hole.start <= hole.end && hole.end <= used, "swap segment hole")?;
        ensure(held <= used - (hole.end - hole.start), "swap segment live bytes")?;
        ensure(used == 0 || hole.start == hole.end || hole.end < used, "swap segment top")?;
        ensure((records == 0) == (used == 0), "swap segment records")?;
        let may_hold = matches!(self.phase, Phase::Open(_) | Phase::Closed | Phase::Lowered);
        let may_be_empty = !matches!(self.phase, Phase::Closed | Phase::Lowered);
        ensure(if records == 0 { may_be_empty } else { may_hold }, "swap segment phase")
    }
}

impl Hole {
    /// The stretch to remember after another was freed: both as one if they touch, else the higher,
    /// which the top reaches first.
    fn joined_with(self, freed: Hole) -> Hole {
        if self.start == self.end {
            freed
        } else if freed.end == self.start {
            Hole { start: freed.start, end: self.end }
        } else if freed.start == self.end {
            Hole { start: self.start, end: freed.end }
        } else if freed.start > self.start {
            freed
        } else {
            self
        }
    }
}

/// Sums over live records.
struct Rest {
    held: u32,
    live_bytes: u32,
    records: u32,
    tags: u32,
}

impl Rest {
    /// Whether that many records can have these sums: each holds its bytes rounded up.
    fn is_possible(&self) -> bool {
        let held = u64::from(self.held);
        let least = held.saturating_sub(u64::from(self.records) * u64::from(RECORD_ALIGN - 1));
        let live_bytes = u64::from(self.live_bytes);
        held >= u64::from(self.records) * u64::from(RECORD_ALIGN)
            && (self.records > 0 || (held == 0 && self.tags == 0))
            && (least..=held).contains(&live_bytes)
    }
}

/// Bytes that a record takes up.
fn held_by(bytes: u32) -> Option<u32> {
    bytes.checked_next_multiple_of(RECORD_ALIGN)
}

/// A number that hardly any other record of the segment has. A sum of them is that of no record
/// only if what was freed is what was pushed.
const fn tag_of(offset: u32, bytes: u32) -> u32 {
    let tag = (offset ^ 0x5555_5555).wrapping_mul(0x9E37_79B1);
    let tag = (tag ^ tag >> 15 ^ bytes).wrapping_mul(0x85EB_CA77);
    tag ^ tag >> 13
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every relation that `check` knows fails when it is broken.
    #[test]
    fn check_finds_each_number_that_cannot_be() {
        const BYTES: u32 = 4096;
        let segment = || {
            let mut segment = Segment { phase: Phase::Open(0), ..Segment::new() };
            for _ in 0..4 {
                segment.push(RECORD_ALIGN, BYTES).unwrap();
            }
            segment
        };
        segment().check(BYTES).unwrap();
        let full = 4 * RECORD_ALIGN;
        type Damage = fn(&mut Segment);
        let damages: [(&str, Damage); 10] = [
            ("swap segment use", |s| s.used = BYTES + RECORD_ALIGN),
            ("swap segment use", |s| s.used += 1),
            ("swap segment counts", |s| s.held = 3 * RECORD_ALIGN),
            ("swap segment counts", |s| (s.records, s.live_bytes) = (0, 0)),
            ("swap segment counts", |s| (s.records, s.live_bytes, s.held) = (0, 0, 0)),
            ("swap segment hole", |s| s.hole = Hole { start: 2, end: 1 }),
            ("swap segment hole", |s| s.hole = Hole { start: 0, end: BYTES }),
            ("swap segment live bytes", |s| s.hole = Hole { start: 0, end: RECORD_ALIGN }),
            ("swap segment top", |s| {
                s.used += RECORD_ALIGN;
                s.hole = Hole { start: s.used - RECORD_ALIGN, end: s.used };
            }),
            ("swap segment records", |s| *s = Segment { used: RECORD_ALIGN, ..Segment::new() }),
        ];
        assert_eq!(segment().used, full);
        for (index, (what, damage)) in damages.into_iter().enumerate() {
            let mut segment = segment();
            damage(&mut segment);
            let error = segment.check(BYTES).unwrap_err();
            assert_eq!((error.code, error.what), (Code::Corrupt, what), "damage {index}");
        }
    }
}
