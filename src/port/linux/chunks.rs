//! Shared buffers on the host, the small ones side by side in huge pages.
//!
//! A KV chunk is smaller than a huge page, and a chunk's pages one by one cost twice what the same
//! bytes cost in huge ones. So buffers below that size follow each other through addresses that
//! were advised to have huge pages: the first buffer in one makes all of it resident, and those
//! that a restore allocates next find it so. What is larger, and segments of the RAM swap, is
//! [`AnonymousMemory`]'s.
//!
//! Invariant: an address is handed out once, and unmapped with its buffer. Resident beyond what is
//! allocated is at most the rest of one huge page. What a huge page has lost with single buffers no
//! longer counts as the process's; the system has it back with the last of them, or when memory is
//! short.

use super::memory::{HUGE_BYTES, WHAT, give_back, map_aligned, populate};
use super::pages::{advise, whole_pages};
use super::{AnonymousMemory, FutexPark};
use crate::error::Result;
use crate::port::lock::Lock;
use crate::port::{Region, SharedMemory, Use};
use core::ptr::NonNull;

/// Addresses that are asked for at once, in bytes.
const STRIP_BYTES: usize = 32 << 20;
static PARK: FutexPark = FutexPark;

/// Anonymous memory as the shared-memory port, for many buffers of a size below huge pages.
pub struct ChunkMemory {
    strip: Lock<Strip>,
}

/// What is left of the addresses that small buffers are cut from.
struct Strip {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the addresses that are left belong to nobody but the strip.
unsafe impl Send for Strip {}

impl ChunkMemory {
    /// Memory without a buffer.
    pub const fn new() -> Self {
        ChunkMemory { strip: Lock::new(Strip { start: NonNull::dangling(), bytes: 0 }, &PARK) }
    }
}

impl Default for ChunkMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl Strip {
    /// Cuts whole pages off, fewer than a strip has.
    fn cut(&mut self, bytes: usize) -> Result<NonNull<u8>> {
        if self.bytes < bytes {
            let start = map_aligned(STRIP_BYTES)?;
            // SAFETY: the range is the fresh mapping; the advice drops nothing.
            let _declined = unsafe { advise(start, STRIP_BYTES, libc::MADV_HUGEPAGE) };
            self.give_rest_back();
            *self = Strip { start, bytes: STRIP_BYTES };
        }
        let start = self.start;
        // SAFETY: no more than is left, so the result lies inside the mapping or at its end.
        self.start = unsafe { start.add(bytes) };
        self.bytes -= bytes;
        Ok(start)
    }

    /// What is left, and resident with the huge page that it ends.
    fn give_rest_back(&mut self) {
        if self.bytes > 0 {
            give_back(self.start, self.bytes);
            self.bytes = 0;
        }
    }
}

impl Drop for ChunkMemory {
    fn drop(&mut self) {
        self.trim();
    }
}

// SAFETY: a region is cut from a private mapping once, so it overlaps no other; it is zero-filled
// by the kernel, and stays mapped until `release`. Larger ones are those of `AnonymousMemory`.
unsafe impl SharedMemory for ChunkMemory {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        let bytes = whole_pages(WHAT, bytes)?;
        if usage == Use::Swap || bytes >= HUGE_BYTES {
            return AnonymousMemory.allocate(usage, bytes);
        }
        let start = self.strip.lock().cut(bytes)?;
        match populate(start, bytes) {
            Ok(()) => Ok(Region { start, bytes, token: 0 }),
            Err(error) => {
                give_back(start, bytes);
                Err(error)
            }
        }
    }

    unsafe fn release(&self, _usage: Use, region: Region) {
        give_back(region.start, region.bytes);
    }

    fn trim(&self) {
        self.strip.lock().give_rest_back();
    }
}

const _: () = assert!(HUGE_BYTES < STRIP_BYTES && STRIP_BYTES.is_multiple_of(HUGE_BYTES));
