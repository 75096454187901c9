//! Memory of a transfer's own, for buffers that direct transfers cannot reach.
//!
//! A direct transfer needs the pages of its buffer, and the kernel gives none (`EFAULT`) of a
//! mapping that a driver made of bare addresses, as dma-heaps and ION do. The transfer then goes
//! through these pages, still past the page cache. They live as long as one transfer.

use super::pages::{map, unmap, whole_pages};
use super::transfer::{pread, pwrite};
use crate::error::Result;
use core::ptr::NonNull;
use std::os::fd::OwnedFd;

/// Storage is about as fast with pieces of this size as with larger ones.
const BYTES_MAX: usize = 512 << 10;

pub(super) struct Bounce {
    start: NonNull<u8>,
    bytes: usize,
}

impl Bounce {
    /// For a transfer that has `left` bytes to go.
    pub(super) fn new(what: &'static str, left: usize) -> Result<Bounce> {
        let bytes = whole_pages(what, left.min(BYTES_MAX))?;
        Ok(Bounce { start: map(what, bytes, libc::MAP_POPULATE)?, bytes })
    }

    /// As [`pread`].
    pub(super) fn read(
        &mut self,
        fd: &OwnedFd,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, i32> {
        let own = self.part(into.len());
        let moved = pread(fd, offset, own)?;
        into[..moved].copy_from_slice(&own[..moved]);
        Ok(moved)
    }

    /// As [`pwrite`].
    pub(super) fn write(&mut self, fd: &OwnedFd, offset: u64, from: &[u8]) -> Result<usize, i32> {
        let own = self.part(from.len());
        own.copy_from_slice(&from[..own.len()]);
        pwrite(fd, offset, own)
    }

    fn part(&mut self, bytes: usize) -> &mut [u8] {
        let bytes = bytes.min(self.bytes);
        // SAFETY: mapped zero-filled until this is dropped, at least so many bytes, and borrowed
        // with `self`.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), bytes) }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; parts were lent for as long as this lived.
        unsafe { unmap(self.start, self.bytes) };
    }
}
