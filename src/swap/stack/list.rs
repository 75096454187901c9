//! A list of segments, linked through the segments themselves: last in, first out, and any member
//! can leave. Invariant: a segment is in the list that its phase names, and in no other. It never
//! searches.

use super::segment::{Phase, Segment};
use crate::units::SegmentIndex;

/// Neighbours in the list that a segment is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    before: Option<SegmentIndex>,
    after: Option<SegmentIndex>,
}

impl Links {
    /// In no list.
    pub(super) const NONE: Links = Links { before: None, after: None };
}

#[derive(Debug)]
pub(super) struct List {
    first: Option<SegmentIndex>,
}

impl List {
    pub(super) const fn new() -> Self {
        List { first: None }
    }

    /// The one that came last.
    pub(super) const fn first(&self) -> Option<SegmentIndex> {
        self.first
    }

    /// The one that came before `index`.
    pub(super) fn after(segments: &[Segment], index: SegmentIndex) -> Option<SegmentIndex> {
        segments[index.index()].links.after
    }

    /// Adds a segment that is in no list.
    pub(super) fn push(&mut self, segments: &mut [Segment], index: SegmentIndex) {
        assert_eq!(segments[index.index()].links, Links::NONE);
        if let Some(first) = self.first {
            segments[first.index()].links.before = Some(index);
        }
        segments[index.index()].links.after = self.first;
        self.first = Some(index);
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, segments: &mut [Segment], index: SegmentIndex) {
        let links = core::mem::replace(&mut segments[index.index()].links, Links::NONE);
        match links.before {
            Some(before) => segments[before.index()].links.after = links.after,
            None => {
                assert_eq!(self.first, Some(index));
                self.first = links.after;
            }
        }
        if let Some(after) = links.after {
            segments[after.index()].links.before = links.before;
        }
    }

    /// Members, all of which must have the phase and be linked both ways; `None` otherwise. What is
    /// linked both ways, from one that has none before it, never comes back to itself.
    pub(super) fn count(&self, segments: &[Segment], phase: Phase) -> Option<usize> {
        let mut count = 0;
        let mut before = None;
        let mut next = self.first;
        while let Some(index) = next {
            let segment = segments.get(index.index())?;
            if segment.phase != phase || segment.links.before != before {
                return None;
            }
            count += 1;
            before = next;
            next = segment.links.after;
        }
        Some(count)
    }
}
