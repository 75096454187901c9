//! What a segment knows of its records, where the stack's tests do not reach.

use super::*;
use std::collections::BTreeSet;

const SEGMENT_BYTES: u32 = 4096;

/// An open segment with live records at 0, 128 and 256, a hole behind each of the first two, and
/// the higher hole remembered.
fn segment() -> Segment {
    let mut segment = Segment { phase: Phase::Open(0), ..Segment::new() };
    for _ in 0..5 {
        segment.push(64, SEGMENT_BYTES).unwrap();
    }
    for offset in [64, 192] {
        let record = Record {
            segment: crate::units::SegmentIndex::new(0),
            generation: 0,
            offset,
            bytes: 64,
        };
        assert_eq!(segment.remove(record), Ok(false));
    }
    assert_eq!(segment.hole, Hole { start: 192, end: 256 });
    segment
}

/// Every relation that `check` knows fails when it is broken, each by as little as can be.
#[test]
fn check_finds_planted_damage() {
    type Damage = fn(&mut Segment);
    let damages: [(&str, Damage); 14] = [
        ("swap segment use", |s| s.used = SEGMENT_BYTES + 64),
        ("swap segment use", |s| s.used += 1),
        ("swap segment counts", |s| s.live_bytes = s.held - 63 * s.records - 1),
        ("swap segment counts", |s| s.live_bytes = s.held + 1),
        ("swap segment counts", |s| s.held -= 64),
        ("swap segment counts", |s| (s.records, s.live_bytes) = (0, 0)),
        ("swap segment counts", |s| (s.records, s.live_bytes, s.held) = (0, 0, 0)),
        ("swap segment hole", |s| s.hole.start = s.hole.end + 1),
        ("swap segment hole", |s| s.hole.end = s.used + 64),
        ("swap segment live bytes", |s| s.hole.start = 128 - 64),
        ("swap segment top", |s| s.hole.end = s.used),
        ("swap segment records", |s| {
            *s = Segment { phase: Phase::Open(0), used: 64, ..Segment::new() };
        }),
        ("swap segment phase", |s| s.phase = Phase::Vacant),
        ("swap segment phase", |s| *s = Segment { phase: Phase::Closed, ..Segment::new() }),
    ];
    for (index, (what, damage)) in damages.into_iter().enumerate() {
        let mut segment = segment();
        segment.check(SEGMENT_BYTES).unwrap();
        damage(&mut segment);
        let error = segment.check(SEGMENT_BYTES).unwrap_err();
        assert_eq!((error.code, error.what), (Code::Corrupt, what), "damage {index}");
    }
}

#[test]
fn an_empty_stretch_may_lie_anywhere_below_the_top_and_records_may_fill_their_places() {
    let mut segment = segment();
    segment.hole = Hole { start: segment.used, end: segment.used };
    segment.check(SEGMENT_BYTES).unwrap();
    segment.live_bytes = segment.held - 63 * segment.records;
    segment.check(SEGMENT_BYTES).unwrap();
    let fresh = Segment { phase: Phase::Vacant, ..Segment::new() };
    fresh.check(SEGMENT_BYTES).unwrap();
}

/// Sums over tags tell records apart only as far as tags do.
#[test]
fn neighbouring_records_of_similar_sizes_have_tags_of_their_own() {
    let sizes = 1000..1064;
    let offsets = (0..256).map(|place| 64 * place);
    let tags: BTreeSet<_> =
        offsets.flat_map(|offset| sizes.clone().map(move |bytes| tag_of(offset, bytes))).collect();
    assert_eq!(tags.len(), 256 * 64);
}
