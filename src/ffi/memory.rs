//! Shared buffers behind callbacks.
//!
//! Invariant: whatever a callback answers, regions are aligned and large enough, and so is what the
//! host gets of one; a use that was begun wrongly is ended before the error goes out. Callbacks
//! that a table has not got do what the trait's default bodies do.

use super::ports::{Context, check_flags, done, missing};
use super::raw::Table;
use super::tables::{MzMemory, MzRegion, MzUse};
use super::types::MzDeviceSpan;
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::{DeviceRegion, Filling, Region, SharedMemory, Use, shared_address};
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{self, NonNull};

/// A `mz_memory`.
pub(super) struct MemoryPort {
    table: MzMemory,
    allocate: unsafe extern "C" fn(Context, *mut MzRegion) -> i64,
    release: unsafe extern "C" fn(Context, *const MzRegion),
}

// SAFETY: the table's author promises that the callbacks may be called from any thread; the context
// is only handed to them.
unsafe impl Sync for MemoryPort {}
// SAFETY: as above.
unsafe impl Send for MemoryPort {}

impl MemoryPort {
    pub(super) fn new(table: MzMemory) -> Result<Self> {
        check_flags(table.flags, "mz_memory.flags")?;
        let allocate = table.allocate.ok_or(missing("mz_memory.allocate"))?;
        let release = table.release.ok_or(missing("mz_memory.release"))?;
        match (table.begin_fill, table.end_fill) {
            (Some(_), None) => Err(missing("mz_memory.end_fill")),
            (None, Some(_)) => Err(missing("mz_memory.begin_fill")),
            _ => Ok(MemoryPort { table, allocate, release }),
        }
    }
}

fn purpose(usage: Use) -> MzUse {
    match usage {
        Use::Weights => MzUse::Weights,
        Use::Kv => MzUse::Kv,
        Use::Swap => MzUse::Swap,
    }
}

/// A region as C sees it. Its purpose is known while it is allocated and released.
fn given(purpose: MzUse, region: &Region) -> MzRegion {
    MzRegion {
        struct_bytes: MzRegion::own_bytes(),
        purpose: purpose as u32,
        start: region.start.as_ptr().cast(),
        bytes: region.bytes,
        token: region.token,
    }
}

/// A live region for the callbacks between the two.
fn live(region: &Region) -> MzRegion {
    given(MzUse::Weights, region)
}

/// Memory that the host may use: not null, aligned, and it does not wrap around.
fn host_memory(start: *mut c_void, bytes: usize) -> Option<NonNull<u8>> {
    let start = NonNull::new(start.cast::<u8>())?;
    let address = start.addr().get();
    let fits = address.is_multiple_of(IO_ALIGN)
        && isize::try_from(bytes).is_ok()
        && address.checked_add(bytes).is_some();
    fits.then_some(start)
}

// SAFETY: the table's author promises that a region is used by nothing else until it is released,
// and that the host may use what `begin_host` and `begin_fill` set until the use ends; place and
// size are checked here.
unsafe impl SharedMemory for MemoryPort {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        let nowhere = Region { start: NonNull::dangling(), bytes, token: 0 };
        let mut region = MzRegion { start: ptr::null_mut(), ..given(purpose(usage), &nowhere) };
        // SAFETY: the callback writes to the region's fields only (its author's promise).
        let answer = unsafe { (self.allocate)(self.table.context, &raw mut region) };
        done(answer, "mz_memory.allocate")?;
        let broken = Error::new(Code::Io, "mz_memory.allocate: start or bytes");
        if region.start.is_null() {
            return Err(broken);
        }
        match host_memory(region.start, region.bytes).filter(|_| region.bytes >= bytes) {
            Some(start) => Ok(Region { start, bytes: region.bytes, token: region.token }),
            None => {
                // SAFETY: the region came from `allocate` and nothing refers to it.
                unsafe { (self.release)(self.table.context, &raw const region) };
                Err(broken.with(region.start.addr()))
            }
        }
    }

    unsafe fn zero(&self, region: &Region) -> Result<()> {
        let Some(zero) = self.table.zero else { return Ok(()) };
        // SAFETY: the region is live (the caller's promise).
        done(unsafe { zero(self.table.context, &live(region)) }, "mz_memory.zero")
    }

    unsafe fn release(&self, usage: Use, region: Region) {
        // SAFETY: the caller of `release` promises that the region came from `allocate`, was not
        // released before, and that nothing refers to it.
        unsafe { (self.release)(self.table.context, &given(purpose(usage), &region)) };
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        const WHAT: &str = "mz_memory.begin_host";
        let Some(begin) = self.table.begin_host else { return Ok(region.start) };
        let mut start = ptr::null_mut();
        // SAFETY: the region is live (the caller's promise); the callback sets a pointer.
        done(unsafe { begin(self.table.context, &live(region), &raw mut start) }, WHAT)?;
        host_memory(start, region.bytes).ok_or_else(|| {
            // SAFETY: begun a moment ago.
            unsafe { self.end(region) };
            Error::new(Code::Io, WHAT).with(start.addr())
        })
    }

    unsafe fn begin_fill(&self, region: &Region, range: Range<usize>) -> Result<Filling> {
        const WHAT: &str = "mz_memory.begin_fill";
        let Some(begin) = self.table.begin_fill else {
            // SAFETY: the caller's promise.
            return unsafe { self.begin_fill_in_place(region, range) };
        };
        let (context, mut start, mut token) = (self.table.context, ptr::null_mut(), 0);
        let (offset, bytes) = (range.start, range.len());
        let (to, name) = (&raw mut start, &raw mut token);
        // SAFETY: the region is live (the caller's promise); the callback sets two values.
        done(unsafe { begin(context, &live(region), offset, bytes, to, name) }, WHAT)?;
        match host_memory(start, bytes) {
            Some(start) => Ok(Filling { start, token }),
            None => {
                if let Some(end) = self.table.end_fill {
                    // SAFETY: begun a moment ago.
                    unsafe { end(context, &live(region), offset, bytes, start, token, 0) };
                }
                Err(Error::new(Code::Io, WHAT).with(start.addr()))
            }
        }
    }

    unsafe fn end_fill(
        &self,
        region: &Region,
        range: Range<usize>,
        filling: Filling,
        is_filled: bool,
    ) -> Result<()> {
        let Some(end) = self.table.end_fill else {
            // SAFETY: begun by `begin_fill`.
            unsafe { self.end(region) };
            return Ok(());
        };
        let (start, token) = (filling.start.as_ptr().cast(), filling.token);
        let (context, is_filled) = (self.table.context, u32::from(is_filled));
        let (offset, bytes) = (range.start, range.len());
        // SAFETY: begun by `begin_fill` with the same region and range (the caller's promise).
        let answer = unsafe { end(context, &live(region), offset, bytes, start, token, is_filled) };
        done(answer, "mz_memory.end_fill")
    }

    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        const WHAT: &str = "mz_memory.begin_device";
        let Some(begin) = self.table.begin_device else {
            let address = shared_address(region.start);
            return Ok(DeviceRegion { address, ..DeviceRegion::default() });
        };
        let mut named = MzDeviceSpan {
            struct_bytes: MzDeviceSpan::own_bytes(),
            index: 0,
            address: 0,
            offset: 0,
            buffer: ptr::null_mut(),
            bytes: region.bytes,
        };
        // SAFETY: the region is live (the caller's promise); the callback fills the table in.
        done(unsafe { begin(self.table.context, &live(region), &raw mut named) }, WHAT)?;
        let buffer = u64::try_from(named.buffer.expose_provenance()).unwrap_or(u64::MAX);
        if (named.address == 0) == (buffer == 0) {
            // SAFETY: begun a moment ago.
            unsafe { self.end(region) };
            return Err(Error::new(Code::Io, WHAT).with(named.address));
        }
        Ok(DeviceRegion { address: named.address, buffer, offset: named.offset })
    }

    unsafe fn end(&self, region: &Region) {
        if let Some(end) = self.table.end {
            // SAFETY: the region is live, and the use was begun (the caller's promise).
            unsafe { end(self.table.context, &live(region)) };
        }
    }

    fn trim(&self) {
        if let Some(trim) = self.table.trim {
            // SAFETY: the callback takes its own context.
            unsafe { trim(self.table.context) };
        }
    }
}
