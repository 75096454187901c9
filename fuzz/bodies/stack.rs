//! The RAM swap's book: any order of reserving and freeing, by several workers, with memory that
//! may lack. Live records never overlap, a segment is handed out for release once and empty, what
//! was never a record is refused, and the sums hold after each.
//!
//! ```text
//! 0 segment bytes, workers; then one operation a byte, low bits what, high bits on which
//! ```

use super::memory::with_memory;
use super::reader::Reader;
use mzcache::Code;
use mzcache::arena::{Arena, Sizer};
use mzcache::swap::record::Layout;
use mzcache::swap::stack::{Reserve, Stack};
use mzcache::units::{RamRecord, SegmentIndex};

const SEGMENTS: u16 = 5;

/// Plays the bytes; whether a record was ever freed.
pub fn stack(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let setup = reader.byte();
    let segment_bytes = 4096 * (1 + u32::from(setup & 3));
    let workers = 1 + usize::from(setup >> 2 & 3);
    let layout = Layout { first_slot: 3, segments: SEGMENTS, segment_bytes };
    let mut sizer = Sizer::new();
    Stack::size(&mut sizer, &layout, workers).unwrap();
    // SAFETY: the stack, which alone refers to the memory, ends with the closure.
    unsafe {
        with_memory(sizer.required().unwrap(), |memory| {
            let mut arena = Arena::new(memory).unwrap();
            let stack = Stack::new(&mut arena, &layout, workers).unwrap();
            let mut run = Run { stack, layout, workers, live: vec![], has_freed: false };
            while let Some(byte) = reader.next() {
                run.happen(byte, &mut reader);
                run.look();
            }
            run.end();
            run.has_freed
        })
    }
}

struct Run {
    stack: Stack,
    layout: Layout,
    workers: usize,
    live: Vec<RamRecord>,
    has_freed: bool,
}

impl Run {
    fn happen(&mut self, byte: u8, reader: &mut Reader<'_>) {
        let which = usize::from(byte >> 3);
        match byte & 7 {
            0..=2 => {
                let bytes = u32::from(u16::from_le_bytes([reader.byte(), reader.byte()]));
                self.reserve(which % self.workers, bytes, byte & 7 != 0);
            }
            3 | 4 if !self.live.is_empty() => {
                let record = self.live.remove(which % self.live.len());
                self.free(record);
            }
            // From the top down, as restores do.
            5 if !self.live.is_empty() => {
                let record = self.live.pop().unwrap();
                self.free(record);
            }
            6 => self.forge(which, reader),
            _ => self.release_idle(),
        }
    }

    fn reserve(&mut self, worker: usize, bytes: u32, has_memory: bool) {
        loop {
            match self.stack.reserve(worker, bytes) {
                Ok(Reserve::At(record)) => {
                    assert_eq!(record.bytes, bytes);
                    return self.live.push(record);
                }
                Ok(Reserve::NeedSegment(segment)) if has_memory => {
                    self.stack.segment_ready(worker, segment).unwrap();
                }
                Ok(Reserve::NeedSegment(segment)) => {
                    return self.stack.segment_failed(segment).unwrap();
                }
                Err(error) => {
                    let is_legal = bytes > 0 && bytes <= self.layout.segment_bytes;
                    let code = if is_legal { Code::SwapFull } else { Code::InvalidArgument };
                    return assert_eq!(error.code, code);
                }
            }
        }
    }

    fn free(&mut self, record: RamRecord) {
        self.has_freed = true;
        if let Some(segment) = self.stack.free(record).unwrap() {
            assert!(self.live.iter().all(|other| other.segment != segment), "a record is in it");
            match record.offset.is_multiple_of(128) {
                true => self.release(segment),
                false => self.stack.segment_vacant(segment).unwrap(),
            }
        }
    }

    fn release_idle(&mut self) {
        while let Some(segment) = self.stack.take_idle().or_else(|| self.stack.take_vacant()) {
            self.release(segment);
        }
        assert!(!self.stack.has_vacant());
    }

    fn release(&mut self, segment: SegmentIndex) {
        assert!(self.stack.is_releasing());
        self.stack.segment_released(segment).unwrap();
        self.stack.segment_released(segment).unwrap_err();
        self.stack.segment_vacant(segment).unwrap_err();
    }

    /// Something that was never a record, made from one that is.
    fn forge(&mut self, which: usize, reader: &mut Reader<'_>) {
        let count = self.live.len().max(1);
        let mut record = self.live.get(which % count).copied().unwrap_or_default();
        let detail = u16::from(reader.byte());
        match reader.byte() % 6 {
            0 => record.segment = SegmentIndex::new(SEGMENTS + detail),
            1 => record.generation = record.generation.wrapping_add(1 + detail),
            2 => record.offset += 1 + u32::from(detail % 63),
            3 => record.bytes = 0,
            4 => record.bytes = self.layout.segment_bytes + 1 + u32::from(detail),
            _ => record.offset = u32::MAX - u32::from(detail),
        }
        let before = self.stack.stats();
        self.stack.free(record).unwrap_err();
        assert_eq!(self.stack.stats(), before);
    }

    fn look(&self) {
        self.stack.check().unwrap();
        let stats = self.stack.stats();
        let bytes: u64 = self.live.iter().map(|record| u64::from(record.bytes)).sum();
        assert_eq!((stats.records, stats.live_bytes), (self.live.len() as u64, bytes));
        assert!(!self.stack.is_releasing());
        for (index, record) in self.live.iter().enumerate() {
            let end = |record: &RamRecord| record.offset + record.bytes;
            assert!(record.offset.is_multiple_of(64) && end(record) <= self.layout.segment_bytes);
            for other in &self.live[..index] {
                let is_apart = other.segment != record.segment
                    || end(other) <= record.offset
                    || end(record) <= other.offset;
                assert!(is_apart, "{record:?} overlaps {other:?}");
            }
        }
    }

    /// Everything is freed: no segment may keep its memory.
    fn end(&mut self) {
        while let Some(record) = self.live.pop() {
            self.free(record);
            self.look();
        }
        self.release_idle();
        assert_eq!(self.stack.stats(), Default::default());
    }
}
