//! Records in real segments, with readers and writers in each other's way.

use super::*;
use crate::arena::{Arena, Sizer};
use crate::port::heap::Heap;
use std::boxed::Box;
use std::vec;

const LAYOUT: Layout = Layout { first_slot: 2, segments: 3, segment_bytes: 8192 };
const SEGMENT: SegmentIndex = SegmentIndex::new(1);
const RECORD: Record = Record { segment: SEGMENT, generation: 0, offset: 128, bytes: 100 };

fn buffers(heap: &'static Heap) -> Buffers {
    let mut sizer = Sizer::new();
    Buffers::size(&mut sizer, 5).unwrap();
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    Buffers::new(&mut arena, 5, heap).unwrap()
}

#[test]
fn a_record_comes_back_and_its_neighbours_are_untouched() {
    let heap = Heap::leaked(1 << 20);
    let buffers = buffers(heap);
    LAYOUT.allocate(&buffers, SEGMENT).unwrap();
    assert_eq!(heap.live_bytes(), 8192);
    let bytes: [u8; 100] = core::array::from_fn(|i| i as u8 + 1);
    LAYOUT.write_record(&buffers, RECORD, &bytes).unwrap();
    assert_eq!(*LAYOUT.read_record(&buffers, RECORD).unwrap(), bytes);
    let segment = buffers.lease(3).unwrap();
    assert_eq!(segment[128..228], bytes);
    assert!(segment[..128].iter().chain(&segment[228..]).all(|byte| *byte == 0));
    drop(segment);
    LAYOUT.release(&buffers, SEGMENT).unwrap();
    assert_eq!(heap.live_bytes(), 0);
}

#[test]
fn readers_and_writers_refuse_each_other_for_a_moment() {
    let buffers = buffers(Heap::leaked(1 << 20));
    LAYOUT.allocate(&buffers, SEGMENT).unwrap();
    let reader = LAYOUT.read_record(&buffers, RECORD).unwrap();
    assert!(LAYOUT.read_record(&buffers, RECORD).is_ok(), "readers share");
    let write = || LAYOUT.write_record(&buffers, RECORD, &[7; 100]);
    assert_eq!(write().unwrap_err().code, Code::Leased);
    assert_eq!(LAYOUT.release(&buffers, SEGMENT).unwrap_err().code, Code::Leased);
    assert_eq!(retry_leased(10, write).unwrap_err().code, Code::Leased);
    drop(reader);
    write().unwrap();
    let writer = buffers.lock(3).unwrap();
    let read = LAYOUT.read_record(&buffers, RECORD);
    assert_eq!(read.err().unwrap().code, Code::Leased);
    drop(writer);
    assert_eq!(*LAYOUT.read_record(&buffers, RECORD).unwrap(), [7; 100]);
    LAYOUT.release(&buffers, SEGMENT).unwrap();
}

#[test]
fn retrying_ends_with_success_another_error_or_the_tries() {
    let leased = Error::new(Code::Leased, "buffer");
    let io = Error::new(Code::Io, "buffer");
    for (tries, good_at, expected, calls_expected) in
        [(5, 3, Ok(3), 3), (3, 3, Ok(3), 3), (2, 3, Err(leased), 2), (0, 3, Err(leased), 1)]
    {
        let mut calls = 0;
        let result = retry_leased(tries, || {
            calls += 1;
            if calls < good_at { Err(leased) } else { Ok(calls) }
        });
        assert_eq!((result, calls), (expected, calls_expected));
    }
    let mut calls = 0;
    let result: Result<()> = retry_leased(9, || {
        calls += 1;
        Err(io)
    });
    assert_eq!((result, calls), (Err(io), 1));
}

#[test]
fn records_outside_of_a_resident_segment_are_refused() {
    let buffers = buffers(Heap::leaked(8192));
    let code = |record: Record| {
        let bytes = vec![0; record.bytes.min(10_000) as usize];
        let write = LAYOUT.write_record(&buffers, record, &bytes).unwrap_err().code;
        let read = LAYOUT.read_record(&buffers, record).err().unwrap().code;
        (write, read)
    };
    assert_eq!(code(RECORD), (Code::BadState, Code::BadState), "no memory yet");
    LAYOUT.allocate(&buffers, SEGMENT).unwrap();
    let refused = (Code::InvalidArgument, Code::InvalidArgument);
    assert_eq!(code(Record { offset: 8192 - 64, ..RECORD }), refused);
    assert_eq!(code(Record { offset: u32::MAX, ..RECORD }), refused);
    assert_eq!(code(Record { bytes: 8192 - 127, ..RECORD }), refused);
    assert_eq!(code(Record { segment: SegmentIndex::new(3), ..RECORD }), refused);
    let short = LAYOUT.write_record(&buffers, RECORD, &[0; 99]).unwrap_err();
    assert_eq!((short.code, short.value), (Code::InvalidArgument, 99));
    LAYOUT.write_record(&buffers, Record { bytes: 8192 - 128, ..RECORD }, &[1; 8064]).unwrap();
    // A refusal leaves neither lease nor lock behind.
    assert!(buffers.lock(3).is_ok());
    LAYOUT.release(&buffers, SEGMENT).unwrap();
}

#[test]
fn segments_that_cannot_be_allocated_are_errors() {
    let buffers = buffers(Heap::leaked(8192));
    LAYOUT.allocate(&buffers, SEGMENT).unwrap();
    let code = |index| LAYOUT.allocate(&buffers, SegmentIndex::new(index)).unwrap_err().code;
    assert_eq!(code(0), Code::OutOfMemory);
    assert_eq!(code(1), Code::BadState);
    assert_eq!(code(3), Code::InvalidArgument);
    assert_eq!(LAYOUT.release(&buffers, SegmentIndex::new(0)).unwrap_err().code, Code::BadState);
    let outside = LAYOUT.release(&buffers, SegmentIndex::new(3)).unwrap_err();
    assert_eq!(outside.code, Code::InvalidArgument);
    LAYOUT.release(&buffers, SEGMENT).unwrap();
}

/// Whoever loses a race for a resident segment hears `Leased`, also when the other side has just
/// let go: anything else would end the retries.
#[test]
fn threads_that_meet_on_a_segment_all_get_through() {
    let buffers = buffers(Heap::leaked(1 << 20));
    LAYOUT.allocate(&buffers, SEGMENT).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let buffers = &buffers;
            let record = Record { offset: 1024 * u32::from(thread), ..RECORD };
            scope.spawn(move || {
                for round in 0..20_000 {
                    let bytes = [thread ^ round as u8; 100];
                    until_free(|| LAYOUT.write_record(buffers, record, &bytes));
                    let lease = until_free(|| LAYOUT.read_record(buffers, record));
                    assert_eq!(*lease, bytes);
                }
            });
        }
    });
    LAYOUT.release(&buffers, SEGMENT).unwrap();
}

fn until_free<T>(mut attempt: impl FnMut() -> Result<T>) -> T {
    loop {
        match retry_leased(100, &mut attempt) {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.code, Code::Leased),
        }
        std::thread::yield_now();
    }
}
