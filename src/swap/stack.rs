//! The book of the RAM swap: a stack of segments that begins empty, grows by one segment when
//! needed and gives each back when its last record is freed (paper 4.4).
//!
//! ```text
//! segment of worker 0   |rec|rec|  hole  |rec|<- used        |   open: new records go here
//! segment of worker 1   |rec|rec|rec|rec|rec|rec|<- used     |   closed: the next did not fit
//! ```
//!
//! It holds numbers only. It is stepped under the handle's lock; memory is allocated, copied and
//! released outside of it, through [`Layout`]. Workers push at the same time, so each has an open
//! segment of its own. Invariant: live records never overlap and never move, and a segment that
//! was handed out for release holds none. It never waits and does no I/O.
//!
//! Chunks are packed in tail order and restored in head order, so frees arrive from the top down,
//! give or take a few. Freeing the topmost record lowers `used`. Of the records freed before those
//! above them one stretch, the highest, is remembered and merged when `used` comes down to it;
//! lower ones are waste until the segment is empty. A closed segment that was lowered is filled
//! again before a new one is asked for.
//!
//! Giving a segment's memory back takes longer than unpacking its records where many threads do it
//! at once, so a restore leaves empty segments *vacant* until it is over. Whoever pushes meanwhile
//! takes those first.
//!
//! There is no table of records, so a wrong `free` is recognised by what contradicts it. At once:
//! an unknown segment, an earlier generation, a segment that holds nothing, an end above `used`
//! (every popped record), an overlap with the remembered stretch, more bytes than the live records
//! have, or a rest that no number of records could have. Otherwise when the segment's last record
//! is freed: sums over what was pushed and freed then disagree, the free is refused, and the
//! segment stays allocated. So a record that is freed twice never takes the memory of a live one.
//! What passes unseen is a made-up record of just the right sizes. A generation repeats after
//! 65,536 releases of one segment.

mod list;
mod segment;

use super::record::Layout;
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::WORKERS_MAX;
use crate::units::{RamRecord as Record, SegmentIndex};
use list::List;
use segment::{Phase, Segment};

/// Lowered segments looked at before a new one is asked for; records are about equally large, so
/// the first nearly always has room.
const LOWERED_LOOKS: usize = 8;

/// Answer to [`Stack::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The place is taken; write the record there.
    At(Record),
    /// Allocate this segment, say `segment_ready` or `segment_failed`, then reserve again.
    NeedSegment(SegmentIndex),
}

/// What a worker pushes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Desk {
    Idle,
    /// Told to allocate this segment.
    Waiting(SegmentIndex),
    Open(SegmentIndex),
}

/// Sizes for reports, in bytes unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackStats {
    /// Live records.
    pub records: u64,
    /// Bytes of live records, as asked for.
    pub live_bytes: u64,
    /// Segments whose memory is allocated.
    pub segments: u16,
    /// Bytes of allocated segments that hold no live record: room, holes and alignment.
    pub waste_bytes: u64,
}

/// The RAM swap's book.
#[derive(Debug)]
pub struct Stack {
    layout: Layout,
    segments: &'static mut [Segment],
    desks: &'static mut [Desk],
    /// Segments without memory.
    free: List,
    /// Closed segments that were lowered since.
    lowered: List,
    /// Empty segments with memory.
    vacant: List,
    records: u64,
    live_bytes: u64,
    allocated: u16,
    /// Of those, segments whose memory is being given back.
    releasing: u16,
}

impl Stack {
    /// Adds what [`Stack::new`] places.
    pub fn size(sizer: &mut Sizer, layout: &Layout, workers: usize) -> Result<()> {
        check_arguments(layout, workers)?;
        sizer.slice::<Segment>(usize::from(layout.segments))?;
        sizer.slice::<Desk>(workers)
    }

    /// An empty stack for that many workers; no segment has memory yet.
    pub fn new(arena: &mut Arena, layout: &Layout, workers: usize) -> Result<Self> {
        check_arguments(layout, workers)?;
        let segments = arena.slice(usize::from(layout.segments), |_| Segment::new())?;
        let desks = arena.slice(workers, |_| Desk::Idle)?;
        let mut free = List::new();
        for index in (0..layout.segments).rev() {
            free.push(segments, SegmentIndex::new(index));
        }
        Ok(Stack {
            layout: *layout,
            segments,
            desks,
            free,
            lowered: List::new(),
            vacant: List::new(),
            records: 0,
            live_bytes: 0,
            allocated: 0,
            releasing: 0,
        })
    }

    /// The layout given at `new`, for allocating and copying outside of the lock.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Takes room for a record of `bytes` in the worker's open segment, or names a segment to
    /// allocate first. `SwapFull` when there is none left; what was open stays open.
    pub fn reserve(&mut self, worker: usize, bytes: u32) -> Result<Reserve> {
        let desk = self.desk(worker)?;
        if bytes == 0 || bytes > self.layout.segment_bytes {
            return Err(Error::new(Code::InvalidArgument, "record bytes").with(bytes));
        }
        if let Desk::Waiting(segment) = desk {
            return Err(Error::new(Code::BadState, "swap segment is awaited").with(segment.get()));
        }
        if let Desk::Open(segment) = desk
            && let Some(record) = self.push(segment, bytes)
        {
            return Ok(Reserve::At(record));
        }
        if let Some((segment, record)) = self.push_lowered(bytes) {
            self.close(desk);
            self.lowered.remove(self.segments, segment);
            self.open(worker, segment);
            return Ok(Reserve::At(record));
        }
        if let Some(segment) = self.vacant.first() {
            self.vacant.remove(self.segments, segment);
            self.close(desk);
            self.segments[segment.index()].renew();
            self.open(worker, segment);
            return match self.push(segment, bytes) {
                Some(record) => Ok(Reserve::At(record)),
                None => unreachable!("an empty segment has room for every record"),
            };
        }
        let Some(segment) = self.free.first() else {
            return Err(Error::new(Code::SwapFull, "swap segments").with(self.layout.segments));
        };
        self.free.remove(self.segments, segment);
        self.close(desk);
        self.segments[segment.index()].phase = Phase::Pending(worker);
        self.desks[worker] = Desk::Waiting(segment);
        Ok(Reserve::NeedSegment(segment))
    }

    /// The memory that `reserve` asked this worker for exists and is resident.
    pub fn segment_ready(&mut self, worker: usize, segment: SegmentIndex) -> Result<()> {
        if self.desk(worker)? != Desk::Waiting(segment) {
            return Err(not_awaited(segment));
        }
        self.allocated += 1;
        self.open(worker, segment);
        Ok(())
    }

    /// The memory that `reserve` asked for could not be had. The worker may reserve again.
    pub fn segment_failed(&mut self, segment: SegmentIndex) -> Result<()> {
        self.layout.slot(segment)?;
        let Phase::Pending(worker) = self.segments[segment.index()].phase else {
            return Err(not_awaited(segment));
        };
        self.desks[worker] = Desk::Idle;
        self.segments[segment.index()].phase = Phase::Free;
        self.free.push(self.segments, segment);
        Ok(())
    }

    /// Frees a record, whose lease must be dropped. When it was its segment's last one, the segment
    /// is returned: release its memory, then say [`Stack::segment_released`]; or leave it for later
    /// with [`Stack::segment_vacant`].
    ///
    /// A record that cannot be live is refused (`InvalidArgument` for a segment that does not
    /// exist, else `BadState`) and changes nothing; the module's doc says what is recognised.
    pub fn free(&mut self, record: Record) -> Result<Option<SegmentIndex>> {
        let index = record.segment;
        self.layout.slot(index)?;
        let segment = &mut self.segments[index.index()];
        let lowered = segment.remove(record)?;
        let phase = segment.phase;
        let is_empty = segment.is_empty();
        self.records -= 1;
        self.live_bytes -= u64::from(record.bytes);
        if is_empty {
            self.retire(index);
            return Ok(Some(index));
        }
        if lowered && phase == Phase::Closed {
            self.segments[index.index()].phase = Phase::Lowered;
            self.lowered.push(self.segments, index);
        }
        Ok(None)
    }

    /// The segment's memory was given back.
    pub fn segment_released(&mut self, index: SegmentIndex) -> Result<()> {
        let segment = self.releasing_segment(index)?;
        segment.phase = Phase::Free;
        segment.renew();
        self.free.push(self.segments, index);
        self.allocated -= 1;
        self.releasing -= 1;
        Ok(())
    }

    /// The segment that was to be released keeps its memory for now.
    pub fn segment_vacant(&mut self, index: SegmentIndex) -> Result<()> {
        self.releasing_segment(index)?.phase = Phase::Vacant;
        self.vacant.push(self.segments, index);
        self.releasing -= 1;
        Ok(())
    }

    /// A vacant segment, to be released like one that `free` returned.
    pub fn take_vacant(&mut self) -> Option<SegmentIndex> {
        let index = self.vacant.first()?;
        self.retire(index);
        Some(index)
    }

    /// Whether there is a vacant segment.
    pub const fn has_vacant(&self) -> bool {
        self.vacant.first().is_some()
    }

    /// A segment that was made ready and never used, to be released like one that `free` returned.
    /// Call it until it answers none, when an eviction ends.
    pub fn take_idle(&mut self) -> Option<SegmentIndex> {
        let idle = self.desks.iter().find_map(|desk| match desk {
            Desk::Open(index) if self.segments[index.index()].is_empty() => Some(*index),
            _ => None,
        })?;
        self.retire(idle);
        Some(idle)
    }

    /// Whether the memory of a segment is being given back at this moment.
    pub const fn is_releasing(&self) -> bool {
        self.releasing > 0
    }

    /// Sizes for reports.
    pub fn stats(&self) -> StackStats {
        let allocated_bytes = u64::from(self.allocated) * u64::from(self.layout.segment_bytes);
        StackStats {
            records: self.records,
            live_bytes: self.live_bytes,
            segments: self.allocated,
            waste_bytes: allocated_bytes - self.live_bytes,
        }
    }

    fn releasing_segment(&mut self, index: SegmentIndex) -> Result<&mut Segment> {
        self.layout.slot(index)?;
        match &mut self.segments[index.index()] {
            segment if segment.phase == Phase::Releasing => Ok(segment),
            _ => Err(Error::new(Code::BadState, "swap segment is not released").with(index.get())),
        }
    }

    fn desk(&self, worker: usize) -> Result<Desk> {
        match self.desks.get(worker) {
            Some(desk) => Ok(*desk),
            None => Err(Error::new(Code::InvalidArgument, "worker").with(worker)),
        }
    }

    /// Pushes a record onto a segment if it fits.
    fn push(&mut self, index: SegmentIndex, bytes: u32) -> Option<Record> {
        let segment = &mut self.segments[index.index()];
        let offset = segment.push(bytes, self.layout.segment_bytes)?;
        self.records += 1;
        self.live_bytes += u64::from(bytes);
        Some(Record { segment: index, generation: segment.generation, offset, bytes })
    }

    /// Pushes a record onto one of the segments that were lowered last.
    fn push_lowered(&mut self, bytes: u32) -> Option<(SegmentIndex, Record)> {
        let mut next = self.lowered.first();
        for _ in 0..LOWERED_LOOKS {
            let index = next?;
            if let Some(record) = self.push(index, bytes) {
                return Some((index, record));
            }
            next = List::after(self.segments, index);
        }
        None
    }

    fn open(&mut self, worker: usize, index: SegmentIndex) {
        self.segments[index.index()].phase = Phase::Open(worker);
        self.desks[worker] = Desk::Open(index);
    }

    fn close(&mut self, desk: Desk) {
        if let Desk::Open(index) = desk {
            let segment = &mut self.segments[index.index()];
            assert!(!segment.is_empty(), "an empty segment has room for every record");
            segment.phase = Phase::Closed;
        }
    }

    /// Takes an empty segment out of use, until its memory is released.
    fn retire(&mut self, index: SegmentIndex) {
        match self.segments[index.index()].phase {
            Phase::Open(worker) => self.desks[worker] = Desk::Idle,
            Phase::Lowered => self.lowered.remove(self.segments, index),
            Phase::Vacant => self.vacant.remove(self.segments, index),
            Phase::Closed => {}
            Phase::Free | Phase::Pending(_) | Phase::Releasing => {
                unreachable!("a segment without memory held a record")
            }
        }
        self.segments[index.index()].phase = Phase::Releasing;
        self.releasing += 1;
    }

    /// Recomputes everything that is counted and follows every link; `Corrupt`, with the name of
    /// the relation that does not hold. For tests and debug builds: linear in the segments.
    pub fn check(&self) -> Result<()> {
        let mut sums = Sums::default();
        for (index, segment) in (0..).zip(self.segments.iter()) {
            let index = SegmentIndex::new(index);
            segment.check(self.layout.segment_bytes)?;
            self.check_desk(index, segment.phase)?;
            sums.add(segment);
        }
        ensure(sums.records == self.records, "swap stack records")?;
        ensure(sums.live_bytes == self.live_bytes, "swap stack live bytes")?;
        ensure(sums.allocated == self.allocated, "swap stack segments")?;
        ensure(sums.releasing == self.releasing, "swap stack segments on their way out")?;
        for desk in self.desks.iter() {
            sums.desks += usize::from(*desk == Desk::Idle);
        }
        ensure(sums.desks == self.desks.len(), "swap stack desks")?;
        let free = self.free.count(self.segments, Phase::Free);
        ensure(free == Some(sums.free), "swap stack free list")?;
        let lowered = self.lowered.count(self.segments, Phase::Lowered);
        ensure(lowered == Some(sums.lowered), "swap stack lowered list")?;
        let vacant = self.vacant.count(self.segments, Phase::Vacant);
        ensure(vacant == Some(sums.vacant), "swap stack vacant list")
    }

    fn check_desk(&self, index: SegmentIndex, phase: Phase) -> Result<()> {
        let (worker, desk) = match phase {
            Phase::Pending(worker) => (worker, Desk::Waiting(index)),
            Phase::Open(worker) => (worker, Desk::Open(index)),
            _ => return Ok(()),
        };
        ensure(self.desks.get(worker) == Some(&desk), "swap stack desk")
    }
}

#[derive(Default)]
struct Sums {
    records: u64,
    live_bytes: u64,
    allocated: u16,
    releasing: u16,
    desks: usize,
    free: usize,
    lowered: usize,
    vacant: usize,
}

impl Sums {
    fn add(&mut self, segment: &Segment) {
        self.records += u64::from(segment.records);
        self.live_bytes += u64::from(segment.live_bytes);
        match segment.phase {
            Phase::Free => self.free += 1,
            Phase::Pending(_) => self.desks += 1,
            Phase::Open(_) => {
                self.desks += 1;
                self.allocated += 1;
            }
            Phase::Lowered => {
                self.lowered += 1;
                self.allocated += 1;
            }
            Phase::Closed => self.allocated += 1,
            Phase::Vacant => {
                self.vacant += 1;
                self.allocated += 1;
            }
            Phase::Releasing => {
                self.releasing += 1;
                self.allocated += 1;
            }
        }
    }
}

fn check_arguments(layout: &Layout, workers: usize) -> Result<()> {
    layout.check()?;
    match workers {
        1..=WORKERS_MAX => Ok(()),
        _ => Err(Error::new(Code::InvalidArgument, "workers").with(workers)),
    }
}

fn not_awaited(segment: SegmentIndex) -> Error {
    Error::new(Code::BadState, "swap segment is not awaited").with(segment.get())
}

/// `Corrupt` unless a relation holds.
fn ensure(holds: bool, what: &'static str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::new(Code::Corrupt, what)) }
}

#[cfg(test)]
mod tests;
