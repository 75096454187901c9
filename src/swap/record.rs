//! The memory of the RAM swap: segments, which are buffer slots, and the records in them.
//!
//! Everything here is called outside the handle's lock, with a [`Record`] that the
//! [`Stack`](super::stack::Stack) reserved. Invariant: a record is read through a lease and written
//! with its segment taken exclusively, so nobody reads half a record. It never waits: a segment
//! that somebody else uses at this moment is [`Code::Leased`], and [`retry_leased`] tries again a
//! bounded number of times.

use crate::error::{Code, Error, Result};
use crate::limits::{IO_ALIGN, SEGMENTS_MAX};
use crate::port::Use;
use crate::port::buffers::{Buffers, Lease};
use crate::units::{RamRecord as Record, SegmentIndex};
use core::ops::{Deref, Range};

/// Alignment of every record, so that kernels may load its planes directly.
pub const RECORD_ALIGN: u32 = 64;

/// Which buffer slots the segments are, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Slot of the first segment in [`Buffers`]; the others follow.
    pub first_slot: usize,
    /// Segments that may exist at once; 0 means that there is no RAM swap.
    pub segments: u16,
    /// Bytes of a segment, a multiple of [`IO_ALIGN`].
    pub segment_bytes: u32,
}

impl Layout {
    /// Checks the fields against the limits.
    pub fn check(&self) -> Result<()> {
        let bytes = self.segment_bytes as usize;
        if bytes == 0 || !bytes.is_multiple_of(IO_ALIGN) {
            return Err(Error::new(Code::InvalidArgument, "swap segment bytes").with(bytes));
        }
        if self.segments > SEGMENTS_MAX {
            return Err(Error::new(Code::LimitExceeded, "swap segments").with(self.segments));
        }
        match self.first_slot.checked_add(usize::from(self.segments)) {
            Some(_) => Ok(()),
            None => Err(Error::new(Code::InvalidArgument, "swap first slot")),
        }
    }

    /// The buffer slot of a segment.
    pub fn slot(&self, segment: SegmentIndex) -> Result<usize> {
        if segment.get() >= self.segments {
            return Err(Error::new(Code::InvalidArgument, "swap segment").with(segment.get()));
        }
        Ok(self.first_slot + segment.index())
    }

    /// Allocates a segment's memory. Then tell the stack: `segment_ready`, or `segment_failed`.
    pub fn allocate(&self, buffers: &Buffers, segment: SegmentIndex) -> Result<()> {
        let slot = self.slot(segment)?;
        let bytes = self.segment_bytes as usize;
        buffers.allocate_zeroed(slot, Use::Swap, bytes)?;
        buffers.publish(slot)
    }

    /// Gives a segment's memory back. Then tell the stack: `segment_released`. `Leased` while
    /// somebody still reads a record of it: try again later, the segment waits.
    pub fn release(&self, buffers: &Buffers, segment: SegmentIndex) -> Result<()> {
        buffers.release(self.slot(segment)?)
    }

    /// Copies `bytes` (exactly as many as were reserved) into a record. `Leased` while somebody
    /// reads or writes another record of the segment.
    pub fn write_record(&self, buffers: &Buffers, record: Record, bytes: &[u8]) -> Result<()> {
        if bytes.len() != record.bytes as usize {
            return Err(Error::new(Code::InvalidArgument, "record bytes").with(bytes.len()));
        }
        let mut segment = buffers.lock(self.slot(record.segment)?)?;
        let Some(target) = segment.get_mut(range_of(record)) else { return Err(outside(record)) };
        target.copy_from_slice(bytes);
        Ok(())
    }

    /// Shares a record's bytes. `Leased` while another record of the segment is being written.
    /// Drop the lease before freeing the record.
    pub fn read_record<'a>(&self, buffers: &'a Buffers, record: Record) -> Result<RecordLease<'a>> {
        let lease = buffers.lease(self.slot(record.segment)?)?;
        let range = range_of(record);
        if lease.get(range.clone()).is_none() {
            return Err(outside(record));
        }
        Ok(RecordLease { lease, range })
    }
}

/// Saturates where addresses have 32 bits; such a range is outside of every segment.
fn range_of(record: Record) -> Range<usize> {
    let start = record.offset as usize;
    start..start.saturating_add(record.bytes as usize)
}

fn outside(record: Record) -> Error {
    Error::new(Code::InvalidArgument, "record is outside of its segment").with(record.offset)
}

/// A record's bytes, in memory for as long as this lives.
pub struct RecordLease<'a> {
    lease: Lease<'a>,
    /// Inside the segment, checked where the lease was taken.
    range: Range<usize>,
}

impl Deref for RecordLease<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.lease[self.range.clone()]
    }
}

/// Calls `attempt` up to `tries` times for as long as it answers [`Code::Leased`], with a hint to
/// the core in between. The other side holds a segment for one copy or one unpacking; when the
/// tries are used up, the caller yields or turns to other work, and comes back.
pub fn retry_leased<T>(tries: u32, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..tries {
        match attempt() {
            Err(error) if error.code == Code::Leased => core::hint::spin_loop(),
            done => return done,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests;
