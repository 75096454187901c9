//! The stack against a model that knows every live record.

use super::super::record::RECORD_ALIGN;
use super::list::Links;
use super::*;
use crate::limits::IO_ALIGN;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

const SEGMENT_BYTES: u32 = IO_ALIGN as u32;

fn layout(segments: u16) -> Layout {
    Layout { first_slot: 5, segments, segment_bytes: SEGMENT_BYTES }
}

fn stack(segments: u16, workers: usize) -> Stack {
    let mut sizer = Sizer::new();
    Stack::size(&mut sizer, &layout(segments), workers).unwrap();
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    let stack = Stack::new(&mut arena, &layout(segments), workers).unwrap();
    assert_eq!(arena.seal(), sizer.used());
    stack
}

/// Reserves as the runtime does when memory is always to be had.
fn push(stack: &mut Stack, worker: usize, bytes: u32) -> Result<Record> {
    match stack.reserve(worker, bytes)? {
        Reserve::At(record) => Ok(record),
        Reserve::NeedSegment(segment) => {
            stack.segment_ready(worker, segment)?;
            match stack.reserve(worker, bytes)? {
                Reserve::At(record) => Ok(record),
                other => panic!("a fresh segment has room: {other:?}"),
            }
        }
    }
}

/// Frees as the runtime does.
fn pop(stack: &mut Stack, record: Record) -> Result<bool> {
    match stack.free(record)? {
        None => Ok(false),
        Some(segment) => {
            assert_eq!(segment, record.segment);
            stack.segment_released(segment)?;
            Ok(true)
        }
    }
}

fn code<T: core::fmt::Debug>(result: Result<T>) -> Code {
    result.unwrap_err().code
}

/// What is live, and that no two records overlap.
#[derive(Default)]
struct Model {
    live: Vec<Record>,
}

impl Model {
    fn check(&self, stack: &Stack) {
        stack.check().unwrap();
        let mut ends: BTreeMap<(u16, u32), u32> = BTreeMap::new();
        for record in &self.live {
            assert_eq!(record.offset % RECORD_ALIGN, 0);
            let end = record.offset + record.bytes;
            assert!(end <= SEGMENT_BYTES);
            let old = ends.insert((record.segment.get(), record.offset), end);
            assert_eq!(old, None, "two records at one place");
        }
        let mut last = (u16::MAX, 0);
        let mut segments = 0;
        for ((segment, offset), end) in ends {
            assert!(segment != last.0 || offset >= last.1, "records overlap");
            segments += u16::from(segment != last.0);
            last = (segment, end);
        }
        let live_bytes: u64 = self.live.iter().map(|record| u64::from(record.bytes)).sum();
        let stats = stack.stats();
        assert_eq!(stats.records, self.live.len() as u64);
        assert_eq!(stats.live_bytes, live_bytes);
        assert_eq!(stats.segments, segments, "a segment without records stays allocated");
        assert_eq!(stats.waste_bytes, u64::from(segments) * u64::from(SEGMENT_BYTES) - live_bytes);
    }
}

/// xorshift64*; a seed names a run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}

#[test]
fn random_runs_of_several_workers_agree_with_the_model() {
    for seed in 1..=200 {
        let mut random = Random(seed);
        let workers = 1 + random.below(4);
        let mut stack = stack(1 + random.below(12) as u16, workers);
        let mut model = Model::default();
        let mut full = 0;
        for _ in 0..400 {
            if random.below(5) < 3 {
                let bytes_max = 1 + random.below(SEGMENT_BYTES as usize);
                let bytes = 1 + random.below(bytes_max) as u32;
                match push(&mut stack, random.below(workers), bytes) {
                    Ok(record) => model.live.push(record),
                    Err(error) => {
                        assert_eq!(error.code, Code::SwapFull);
                        full += 1;
                    }
                }
            } else if !model.live.is_empty() {
                // Near the top most of the time, as restores do.
                let reach = 1 + random.below(model.live.len()).min(random.below(6));
                let record = model.live.remove(model.live.len() - reach);
                if pop(&mut stack, record).unwrap() {
                    assert_eq!(code(stack.free(record)), Code::BadState, "its segment is gone");
                }
            }
            model.check(&stack);
        }
        assert!(full > 0 || stack.stats().segments > 0, "seed {seed} did nothing");
        while let Some(record) = model.live.pop() {
            pop(&mut stack, record).unwrap();
        }
        model.check(&stack);
        assert_eq!(stack.stats(), StackStats::default());
    }
}

/// All sequences of six steps, each one of: either worker pushes one of three sizes, or one of the
/// four records pushed last is freed. Shorter sequences are among them, as frees without a record
/// do nothing.
#[test]
fn every_short_sequence_agrees_with_the_model() {
    const STEPS: u32 = 6;
    const CHOICES: u32 = 10;
    const SIZES: [u32; 3] = [64, 1000, 2500];
    let mut stack = stack(3, 2);
    for sequence in 0..CHOICES.pow(STEPS) {
        let mut model = Model::default();
        let mut rest = sequence;
        for _ in 0..STEPS {
            let choice = (rest % CHOICES) as usize;
            rest /= CHOICES;
            if choice < 6 {
                if let Ok(record) = push(&mut stack, choice / 3, SIZES[choice % 3]) {
                    model.live.push(record);
                }
            } else if let Some(at) = model.live.len().checked_sub(choice - 5) {
                let record = model.live.remove(at);
                pop(&mut stack, record).unwrap();
            }
        }
        model.check(&stack);
        for record in model.live {
            pop(&mut stack, record).unwrap();
        }
        assert_eq!(stack.stats(), StackStats::default());
    }
}

#[test]
fn it_grows_by_a_segment_and_releases_the_emptied_one() {
    let mut stack = stack(2, 1);
    assert_eq!(stack.stats(), StackStats::default());
    let first = push(&mut stack, 0, 4000).unwrap();
    let second = push(&mut stack, 0, 100).unwrap();
    assert_eq!((first.segment.get(), second.segment.get()), (0, 1));
    assert_eq!(stack.stats().segments, 2);
    assert_eq!(stack.stats().waste_bytes, 2 * 4096 - 4100);
    assert_eq!(code(stack.reserve(0, 4096)), Code::SwapFull);
    // What was open stays open.
    let third = push(&mut stack, 0, 100).unwrap();
    assert_eq!((third.segment.get(), third.offset), (1, 128));
    assert_eq!(stack.free(first), Ok(Some(first.segment)));
    assert_eq!(stack.stats().segments, 2, "allocated until the release is done");
    assert!(stack.is_releasing());
    stack.segment_released(first.segment).unwrap();
    assert!(!stack.is_releasing());
    assert_eq!(stack.stats().segments, 1);
    stack.check().unwrap();
}

#[test]
fn a_popped_top_is_used_again_and_so_are_records_freed_below_it() {
    let mut stack = stack(2, 1);
    let records: Vec<_> = (0..4).map(|_| push(&mut stack, 0, 1024).unwrap()).collect();
    let next = push(&mut stack, 0, 1024).unwrap();
    assert_eq!(next.segment.get(), 1);
    // Out of order: 2, then 1 below it, then the top.
    for index in [2, 1, 3] {
        assert_eq!(stack.free(records[index]), Ok(None));
        stack.check().unwrap();
    }
    // The open segment first, then the one that was lowered: no third segment is needed.
    for _ in 0..3 {
        assert_eq!(push(&mut stack, 0, 1024).unwrap().segment.get(), 1);
    }
    for offset in [1024, 2048, 3072] {
        let record = push(&mut stack, 0, 1024).unwrap();
        assert_eq!((record.segment.get(), record.offset), (0, offset));
    }
    assert_eq!(stack.stats().waste_bytes, 0);
    stack.check().unwrap();
}

#[test]
fn a_lowered_segment_without_enough_room_is_passed_over() {
    let mut stack = stack(4, 1);
    let sizes = [3000, 1000, 3000, 900, 64, 4096];
    let records = sizes.map(|bytes| push(&mut stack, 0, bytes).unwrap());
    assert_eq!(records.map(|record| record.segment.get()), [0, 0, 1, 1, 1, 2]);
    for index in [1, 4] {
        assert_eq!(stack.free(records[index]), Ok(None));
    }
    assert_eq!(push(&mut stack, 0, 1000).unwrap().segment.get(), 0);
    stack.check().unwrap();
}

#[test]
fn of_the_lowered_segments_those_that_were_lowered_last_are_looked_at() {
    let lowered = u16::try_from(LOWERED_LOOKS).unwrap() + 1;
    let mut stack = stack(lowered + 1, 1);
    assert_eq!(stack.layout(), layout(lowered + 1));
    let mut free = Vec::new();
    for index in 0..lowered {
        // The first one will have room for what comes last, the others will not.
        let bytes = if index == 0 { 2048 } else { 64 };
        let below = push(&mut stack, 0, SEGMENT_BYTES - bytes).unwrap();
        assert_eq!(below.segment.get(), index);
        free.push(push(&mut stack, 0, bytes).unwrap());
    }
    push(&mut stack, 0, 64).unwrap();
    for record in free {
        assert_eq!(stack.free(record), Ok(None));
    }
    stack.check().unwrap();
    assert_eq!(push(&mut stack, 0, 2048).unwrap().segment.get(), lowered);
    let error = stack.reserve(0, 2048).unwrap_err();
    assert_eq!((error.code, error.what), (Code::SwapFull, "swap segments"));
}

#[test]
fn of_two_stretches_the_higher_is_remembered() {
    let mut stack = stack(1, 1);
    let records: Vec<_> = (0..6).map(|_| push(&mut stack, 0, 64).unwrap()).collect();
    for index in [3, 1, 4, 5] {
        assert_eq!(stack.free(records[index]), Ok(None));
        stack.check().unwrap();
    }
    // 3, 4 and 5 are room again; 1 is waste below the live record 2.
    assert_eq!(push(&mut stack, 0, 64).unwrap().offset, 3 * 64);
}

#[test]
fn workers_have_segments_of_their_own() {
    let mut stack = stack(4, 3);
    let records: Vec<_> = (0..6).map(|i| push(&mut stack, i % 3, 500).unwrap()).collect();
    for (index, record) in records.iter().enumerate() {
        assert_eq!(usize::from(record.segment.get()), index % 3);
        assert_eq!(record.offset as usize, 512 * (index / 3));
    }
}

#[test]
fn a_segment_that_cannot_be_had_goes_back() {
    let mut stack = stack(1, 2);
    let Ok(Reserve::NeedSegment(segment)) = stack.reserve(0, 10) else { panic!() };
    assert_eq!(code(stack.reserve(0, 10)), Code::BadState, "one segment at a time");
    assert_eq!(code(stack.reserve(1, 10)), Code::SwapFull);
    assert_eq!(code(stack.segment_ready(1, segment)), Code::BadState);
    assert_eq!(code(stack.segment_released(segment)), Code::BadState);
    stack.check().unwrap();
    stack.segment_failed(segment).unwrap();
    assert_eq!(code(stack.segment_failed(segment)), Code::BadState);
    assert_eq!(stack.stats(), StackStats::default());
    assert_eq!(push(&mut stack, 1, 10).unwrap().segment, segment);
    stack.check().unwrap();
}

#[test]
fn a_segment_that_was_never_used_is_idle() {
    let mut stack = stack(2, 2);
    let used = push(&mut stack, 0, 10).unwrap();
    let Ok(Reserve::NeedSegment(segment)) = stack.reserve(1, 10) else { panic!() };
    assert_eq!(stack.take_idle(), None, "its memory is being allocated");
    stack.segment_ready(1, segment).unwrap();
    assert_eq!(stack.take_idle(), Some(segment));
    assert_eq!(stack.take_idle(), None);
    stack.check().unwrap();
    stack.segment_released(segment).unwrap();
    assert_eq!(stack.stats().segments, 1);
    assert_eq!(stack.free(used), Ok(Some(used.segment)));
    assert_eq!(stack.take_idle(), None, "handed out for release before");
}

#[test]
fn records_that_cannot_be_live_are_refused_and_change_nothing() {
    let mut stack = stack(3, 1);
    let low = push(&mut stack, 0, 100).unwrap();
    let middle = push(&mut stack, 0, 100).unwrap();
    let top = push(&mut stack, 0, 100).unwrap();
    assert_eq!(stack.free(middle), Ok(None));
    let before = stack.stats();
    let refused = [
        (middle, Code::BadState),
        (Record { bytes: 0, ..low }, Code::BadState),
        (Record { bytes: u32::MAX, ..low }, Code::BadState),
        (Record { offset: 1, ..low }, Code::BadState),
        (Record { offset: u32::MAX - 63, ..low }, Code::BadState),
        (Record { offset: top.offset + 128, ..low }, Code::BadState),
        (Record { bytes: 129, ..low }, Code::BadState),
        (Record { generation: 1, ..low }, Code::BadState),
        (Record { segment: SegmentIndex::new(1), ..low }, Code::BadState),
        (Record { segment: SegmentIndex::new(3), ..low }, Code::InvalidArgument),
        (Record { segment: SegmentIndex::new(u16::MAX), ..low }, Code::InvalidArgument),
    ];
    for (record, expected) in refused {
        assert_eq!(stack.free(record).map_err(|error| error.code), Err(expected), "{record:?}");
        assert_eq!(stack.stats(), before);
        stack.check().unwrap();
    }
    assert_eq!(stack.free(top), Ok(None));
    assert_eq!(code(stack.free(top)), Code::BadState, "popped before");
    assert_eq!(stack.free(low), Ok(Some(low.segment)));
    assert_eq!(code(stack.free(low)), Code::BadState, "its segment is being released");
    stack.segment_released(low.segment).unwrap();
    assert_eq!(code(stack.free(low)), Code::BadState, "its segment has no memory");
    let again = push(&mut stack, 0, 100).unwrap();
    assert_eq!((again.segment, again.offset), (low.segment, low.offset));
    assert_eq!(code(stack.free(low)), Code::BadState, "a stale record of a reused segment");
    assert!(pop(&mut stack, again).unwrap());
}

#[test]
fn arguments_are_checked() {
    let bad = [
        (Layout { segment_bytes: 0, ..layout(1) }, 1, Code::InvalidArgument),
        (Layout { segment_bytes: 4095, ..layout(1) }, 1, Code::InvalidArgument),
        (Layout { first_slot: usize::MAX, ..layout(1) }, 1, Code::InvalidArgument),
        (layout(crate::limits::SEGMENTS_MAX + 1), 1, Code::LimitExceeded),
        (layout(1), 0, Code::InvalidArgument),
        (layout(1), WORKERS_MAX + 1, Code::InvalidArgument),
    ];
    for (layout, workers, expected) in bad {
        assert_eq!(code(Stack::size(&mut Sizer::new(), &layout, workers)), expected);
        let memory = Box::leak(vec![core::mem::MaybeUninit::uninit(); 8192].into_boxed_slice());
        let mut arena = Arena::new(memory).unwrap();
        assert_eq!(code(Stack::new(&mut arena, &layout, workers)), expected);
    }
    let largest = layout(crate::limits::SEGMENTS_MAX);
    Stack::size(&mut Sizer::new(), &largest, WORKERS_MAX).unwrap();
    let mut stack = stack(1, 1);
    assert_eq!(code(stack.reserve(1, 10)), Code::InvalidArgument);
    assert_eq!(code(stack.reserve(0, 0)), Code::InvalidArgument);
    assert_eq!(code(stack.reserve(0, SEGMENT_BYTES + 1)), Code::InvalidArgument);
    assert_eq!(code(stack.reserve(0, u32::MAX)), Code::InvalidArgument);
    let nowhere = SegmentIndex::new(1);
    assert_eq!(code(stack.segment_ready(1, nowhere)), Code::InvalidArgument);
    assert_eq!(code(stack.segment_ready(0, nowhere)), Code::BadState);
    assert_eq!(code(stack.segment_failed(nowhere)), Code::InvalidArgument);
    assert_eq!(code(stack.segment_released(nowhere)), Code::InvalidArgument);
    assert_eq!(push(&mut stack, 0, SEGMENT_BYTES).unwrap().bytes, SEGMENT_BYTES);
    assert_eq!(code(self::stack(0, 1).reserve(0, 1)), Code::SwapFull, "no RAM swap at all");
}

/// Frees that nothing contradicts at first are found when the segment would be released: it is not,
/// because a live record may still be in it.
#[test]
fn a_wrong_free_is_found_before_the_segment_is_released() {
    type Wrong = fn(&[Record]) -> Record;
    let wrongs: [Wrong; 3] = [
        // Freed before, its stretch forgotten for the sake of a higher one.
        |records| records[1],
        |records| Record { bytes: 101, ..records[0] },
        |records| Record { offset: 64, ..records[0] },
    ];
    for wrong in wrongs {
        let mut stack = stack(2, 1);
        let records: Vec<_> = (0..6).map(|_| push(&mut stack, 0, 100).unwrap()).collect();
        for index in [1, 3] {
            assert_eq!(stack.free(records[index]), Ok(None));
        }
        assert_eq!(stack.free(wrong(&records)), Ok(None));
        let mut refused = 0;
        for index in [5, 4, 2, 0] {
            match stack.free(records[index]) {
                Ok(released) => assert_eq!(released, None),
                Err(error) => {
                    assert_eq!(error.code, Code::BadState);
                    refused += 1;
                }
            }
            stack.check().unwrap();
        }
        assert!(refused > 0);
        assert_eq!(stack.stats().segments, 1);
    }
}

/// Every relation that `check` knows fails when it is broken.
#[test]
fn check_finds_planted_damage() {
    type Damage = fn(&mut Stack);
    let damages: [(&str, Damage); 17] = [
        ("swap stack records", |s| s.records += 1),
        ("swap stack live bytes", |s| s.live_bytes -= 1),
        ("swap stack segments", |s| s.allocated -= 1),
        ("swap stack desk", |s| s.desks[1] = Desk::Idle),
        ("swap stack desks", |s| s.desks[2] = Desk::Open(SegmentIndex::new(0))),
        ("swap stack free list", |s| s.free = List::new()),
        ("swap stack lowered list", |s| s.lowered = List::new()),
        ("swap segment phase", |s| s.segments[0].phase = Phase::Free),
        ("swap segment phase", |s| s.segments[3].phase = Phase::Closed),
        ("swap segment counts", |s| s.segments[0].live_bytes += 500),
        ("swap segment counts", |s| s.segments[0].records += 100),
        ("swap stack free list", |s| {
            let second = List::after(s.segments, s.free.first().unwrap()).unwrap();
            s.segments[3].links = s.segments[second.index()].links;
        }),
        ("swap stack lowered list", |s| s.lowered.push(s.segments, SegmentIndex::new(1))),
        ("swap stack segments", |s| s.segments[4].phase = Phase::Releasing),
        ("swap stack desk", |s| s.segments[3].phase = Phase::Pending(0)),
        // The last of the free ones forgets which one is before it.
        ("swap stack free list", |s| s.segments[5].links = Links::NONE),
        // Two lists exchange a member, so that all counts are as before.
        ("swap stack free list", |s| {
            let vacant = SegmentIndex::new(3);
            s.free.remove(s.segments, vacant);
            s.vacant.push(s.segments, vacant);
            s.segments[3].phase = Phase::Vacant;
            s.allocated += 1;
            s.check().unwrap();
            s.segments[3].phase = Phase::Free;
            s.segments[4].phase = Phase::Vacant;
        }),
    ];
    for (index, (what, damage)) in damages.into_iter().enumerate() {
        let mut stack = stack(6, 3);
        // Segment 0 lowered, segment 2 open for worker 0, segment 1 for worker 1, the rest free.
        let record = push(&mut stack, 0, 3000).unwrap();
        push(&mut stack, 1, 10).unwrap();
        let top = push(&mut stack, 0, 1000).unwrap();
        assert_eq!(top.segment, record.segment);
        push(&mut stack, 0, 1000).unwrap();
        pop(&mut stack, top).unwrap();
        stack.check().unwrap();
        damage(&mut stack);
        let error = stack.check().unwrap_err();
        // A phase that is wrong is found first by whatever counts it.
        assert_eq!((error.code, error.what), (Code::Corrupt, what), "damage {index}");
    }
}

#[test]
fn vacant_segments_are_taken_before_new_ones_and_can_be_released() {
    let mut stack = stack(3, 2);
    let first = push(&mut stack, 0, 100).unwrap();
    let second = push(&mut stack, 1, 100).unwrap();
    for record in [first, second] {
        let segment = stack.free(record).unwrap().unwrap();
        stack.segment_vacant(segment).unwrap();
        assert_eq!(code(stack.segment_vacant(segment)), Code::BadState);
        assert_eq!(code(stack.segment_released(segment)), Code::BadState);
        stack.check().unwrap();
    }
    assert!(stack.has_vacant() && !stack.is_releasing());
    assert_eq!(stack.stats().segments, 2, "they keep their memory");
    // No `NeedSegment`: the memory is there.
    let Reserve::At(third) = stack.reserve(0, SEGMENT_BYTES).unwrap() else {
        panic!("a vacant segment has room")
    };
    assert_eq!(third.segment, second.segment);
    assert_eq!(code(stack.free(second)), Code::BadState, "of an earlier life");
    assert_eq!(stack.take_vacant(), Some(first.segment));
    assert_eq!((stack.take_vacant(), stack.has_vacant()), (None, false));
    stack.check().unwrap();
    stack.segment_released(first.segment).unwrap();
    assert!(pop(&mut stack, third).unwrap());
    assert_eq!(stack.stats(), StackStats::default());
    stack.check().unwrap();
}
