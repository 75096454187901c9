//! Shared buffers out of the test program's heap, with a limit that tests set.

use super::{Region, SharedMemory, Use};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::sync::Counter;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Live bytes never exceed `bytes_max`.
pub struct Heap {
    bytes_max: u64,
    live_bytes: Counter,
}

impl Heap {
    /// An empty heap that never goes away.
    pub fn leaked(bytes_max: u64) -> &'static Heap {
        std::boxed::Box::leak(std::boxed::Box::new(Heap { bytes_max, live_bytes: Counter::new() }))
    }

    /// Bytes not yet released.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.get()
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, IO_ALIGN).unwrap()
}

// SAFETY: the allocator's memory is exclusive, writable and zeroed until `release` frees it.
unsafe impl SharedMemory for Heap {
    fn allocate(&self, _usage: Use, bytes: usize) -> Result<Region> {
        if self.live_bytes.get() + bytes as u64 > self.bytes_max {
            return Err(Error::new(Code::OutOfMemory, "heap").with(bytes));
        }
        // SAFETY: `Buffers` refuses buffers of no bytes, so the layout has a size.
        let start = unsafe { alloc_zeroed(layout(bytes)) };
        let start = NonNull::new(start).unwrap();
        self.live_bytes.add(bytes as u64);
        Ok(Region { start, bytes, token: 0 })
    }

    unsafe fn release(&self, _usage: Use, region: Region) {
        // SAFETY: the caller gives back a region of `allocate`, once; its layout had these bytes.
        unsafe { dealloc(region.start.as_ptr(), layout(region.bytes)) };
        self.live_bytes.sub(region.bytes as u64);
    }
}
