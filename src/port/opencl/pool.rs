//! The one buffer of all KV chunks, where there are no shared addresses.
//!
//! Kernels find a chunk by its offset in one argument. Invariant: the buffer is there exactly while
//! a block of it is taken, and a block belongs to one chunk.

use super::api::Handle;
use super::context::{Context, Object};
use super::memory::create_buffer;
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use core::mem::ManuallyDrop;

pub(super) struct Pool {
    /// Freed by hand: it lies in the arena, which drops nothing.
    buffer: ManuallyDrop<Option<Object>>,
    /// What it may take.
    bytes_max: usize,
    block_bytes: usize,
    taken: &'static mut [bool],
    used: usize,
}

impl Pool {
    pub(super) const fn new(bytes_max: usize, taken: &'static mut [bool]) -> Pool {
        Pool { buffer: ManuallyDrop::new(None), bytes_max, block_bytes: 0, taken, used: 0 }
    }

    /// A block of that many bytes. The first one makes the buffer, and says how large blocks are.
    pub(super) fn take(&mut self, context: &Context, bytes: usize) -> Result<usize> {
        const WHAT: &str = "pool of KV chunks";
        if self.used == 0 {
            let block_bytes = bytes.checked_next_multiple_of(IO_ALIGN).unwrap_or(usize::MAX);
            let wanted = block_bytes.saturating_mul(self.taken.len()).min(self.bytes_max);
            if wanted < block_bytes {
                return Err(Error::new(Code::OutOfMemory, WHAT).with(wanted));
            }
            *self.buffer = Some(create_buffer(context, wanted)?);
            self.block_bytes = block_bytes;
        }
        if bytes > self.block_bytes {
            return Err(Error::new(Code::LimitExceeded, "KV chunk of the pool").with(bytes));
        }
        let blocks = self.taken.len().min(self.bytes_max / self.block_bytes);
        let found = self.taken[..blocks].iter().position(|taken| !taken);
        let block = found.ok_or(Error::new(Code::OutOfMemory, WHAT).with(blocks))?;
        self.taken[block] = true;
        self.used += 1;
        Ok(block)
    }

    pub(super) fn give(&mut self, block: usize) {
        self.taken[block] = false;
        self.used -= 1;
        if self.used == 0 {
            *self.buffer = None;
        }
    }

    /// The buffer, and where a taken block lies in it.
    pub(super) fn place(&self, block: usize) -> (Handle, usize) {
        let handle = self.buffer.as_ref().map(Object::handle);
        let Some(handle) = handle else { unreachable!("a pool with blocks has a buffer") };
        (handle, block * self.block_bytes)
    }
}
