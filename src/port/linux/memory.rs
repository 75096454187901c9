//! Shared buffers on the host: anonymous private memory, one mapping a buffer.
//!
//! Invariant: exactly the pages of a unit's buffer are resident from `allocate` to `release`, so
//! that what an eviction frees is what the process loses; of a swap segment, those that were
//! written. Huge pages are asked for only inside the buffer: a huge page over its end would make
//! memory resident that nobody asked for, and would keep it when a neighbour is released.

use super::errno;
use super::pages::{advise, map, page_bytes, unmap, whole_pages};
use crate::error::{Code, Error, Result};
use crate::port::{Region, SharedMemory, Use};
use core::ptr::NonNull;

/// Size and alignment from which a buffer is backed by transparent huge pages: faulting 512 pages
/// at once is several times cheaper than one by one.
pub(super) const HUGE_BYTES: usize = 2 << 20;
pub(super) const WHAT: &str = "shared buffer";

/// Anonymous memory as the shared-memory port.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnonymousMemory;

impl AnonymousMemory {
    /// Takes that many bytes in huge pages, where the system has them, and gives them back. For
    /// benchmarks on guests of a hypervisor, where memory has to be touched before it costs what it
    /// costs elsewhere.
    pub fn rehearse(&self, bytes: usize) -> Result<()> {
        let region = self.allocate(Use::Weights, bytes)?;
        give_back(region.start, region.bytes);
        Ok(())
    }

    /// The region that `allocate` made at `start` for that many bytes.
    #[cfg(feature = "opencl")]
    pub(in crate::port) fn region(start: NonNull<u8>, bytes: usize) -> Region {
        Region { start, bytes: bytes.next_multiple_of(page_bytes()), token: 0 }
    }
}

// SAFETY: a region is a fresh private mapping of at least the size asked for, zero-filled by the
// kernel, and stays mapped until `release`.
unsafe impl SharedMemory for AnonymousMemory {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        let bytes = whole_pages(WHAT, bytes)?;
        if usage == Use::Swap {
            return segment(bytes);
        }
        let start = if bytes < HUGE_BYTES { map(WHAT, bytes, 0)? } else { map_aligned(bytes)? };
        advise_huge(start, bytes);
        if let Err(error) = populate(start, bytes) {
            give_back(start, bytes);
            return Err(error);
        }
        Ok(Region { start, bytes, token: 0 })
    }

    unsafe fn release(&self, _usage: Use, region: Region) {
        give_back(region.start, region.bytes);
    }
}

/// A segment of the RAM swap fills record by record, while memory is short: its pages come one by
/// one with the records, and what a half-full segment lacks is never resident.
fn segment(bytes: usize) -> Result<Region> {
    let start = map(WHAT, bytes, 0)?;
    // SAFETY: the range is the fresh mapping; the advice drops nothing.
    let _declined = unsafe { advise(start, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(Region { start, bytes, token: 0 })
}

/// Maps at a multiple of [`HUGE_BYTES`]: maps more, then cuts both ends off.
pub(super) fn map_aligned(bytes: usize) -> Result<NonNull<u8>> {
    let spare = HUGE_BYTES - page_bytes();
    let total = bytes.checked_add(spare).ok_or(Error::new(Code::OutOfMemory, WHAT).with(bytes))?;
    let start = map(WHAT, total, 0)?;
    let skip = start.align_offset(HUGE_BYTES);
    assert!(skip <= spare);
    // SAFETY: `skip` is at most `spare`, so the result lies inside the mapping.
    let aligned = unsafe { start.add(skip) };
    if skip > 0 {
        // A cut that fails leaves address space reserved, never memory.
        // SAFETY: the range is the mapping's head, which nobody has seen.
        unsafe { unmap(start, skip) };
    }
    if spare > skip {
        // SAFETY: `skip + bytes` is inside the mapping; the range is its tail, unseen as well.
        unsafe { unmap(aligned.add(bytes), spare - skip) };
    }
    Ok(aligned)
}

/// Huge pages for the part that they fill, none beyond. A kernel without them declines; the buffer
/// is as good with small pages.
fn advise_huge(start: NonNull<u8>, bytes: usize) {
    let huge = match start.addr().get().is_multiple_of(HUGE_BYTES) {
        true => bytes - bytes % HUGE_BYTES,
        false => 0,
    };
    if huge > 0 {
        // SAFETY: the range is inside the fresh mapping; the advice drops nothing.
        let _declined = unsafe { advise(start, huge, libc::MADV_HUGEPAGE) };
    }
    if bytes > huge {
        // SAFETY: as above.
        let _declined = unsafe { advise(start.add(huge), bytes - huge, libc::MADV_NOHUGEPAGE) };
    }
}

/// Makes every page resident now, so that compute and readers meet no page fault.
pub(super) fn populate(start: NonNull<u8>, bytes: usize) -> Result<()> {
    loop {
        // SAFETY: the range is the fresh mapping; the advice drops nothing.
        match unsafe { advise(start, bytes, libc::MADV_POPULATE_WRITE) } {
            Ok(()) => return Ok(()),
            Err(libc::EINTR | libc::EAGAIN) => {}
            // The kernel is older than 5.14 and does not know the advice.
            Err(libc::EINVAL) => {
                touch(start, bytes);
                return Ok(());
            }
            Err(libc::EFAULT) => return Err(Error::new(Code::OutOfMemory, WHAT).with(libc::EFAULT)),
            Err(errno) => return Err(errno::error(WHAT, errno)),
        }
    }
}

/// Writes one zero into each page of memory that is zero anyway.
fn touch(start: NonNull<u8>, bytes: usize) {
    for offset in (0..bytes).step_by(page_bytes()) {
        // SAFETY: the offset is inside the fresh mapping, which nobody else has seen.
        unsafe { start.add(offset).write_volatile(0) };
    }
}

/// Unmaps a buffer. Cutting a hole into merged mappings can exceed the process's number of
/// mappings; then the pages go back all the same and only address space stays reserved.
pub(super) fn give_back(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the region came from `allocate` and nothing refers to it any more: it is fresh and
    // unseen, or the caller of `release` promised so.
    if !unsafe { unmap(start, bytes) } {
        // SAFETY: as above.
        let _declined = unsafe { advise(start, bytes, libc::MADV_DONTNEED) };
    }
}
