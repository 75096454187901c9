//! The shared buffers of a handle, one slot a unit (or a segment of the RAM swap).
//!
//! Owns every region that the memory port handed out. Invariant: a slot's region is set exactly
//! while its [`Access`] is not absent, and slices of it are given out as that word allows: disjoint
//! [`Part`]s while it is being filled, then one [`Exclusive`] or any number of [`Lease`]s. Never
//! waits; a slot that cannot be had is a typed error. A `Lease` is also what keeps eviction away
//! from units that compute is using.
//!
//! An accelerator leases and locks as compute on the host does ([`DeviceLease`],
//! [`DeviceExclusive`]), holds on until its commands have run, and gets names of the memory instead
//! of slices. Where host and accelerator cannot see a buffer at the same time, the port hands it
//! over at the first use by the other one; a buffer that the other one is using is then `Leased`.
//! Where the host has no address of its own for a buffer, each use gets one while it lasts.

use super::{Filling, Region, SharedMemory, Use};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::PARTS_MAX;
use crate::sync::{Access, Counter, PartSet};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut, Range};
use core::ptr::NonNull;

mod device;

pub use device::{DeviceExclusive, DeviceLease};

struct Slot {
    access: Access,
    /// Parts handed out since the buffer was allocated.
    parts: PartSet,
    held: UnsafeCell<Option<Held>>,
}

#[derive(Clone, Copy)]
struct Held {
    region: Region,
    usage: Use,
    /// Bytes the caller asked for; the region may be larger.
    bytes: usize,
    part_bytes: usize,
}

/// All slots, and the port their memory comes from.
pub struct Buffers {
    slots: &'static [Slot],
    memory: &'static dyn SharedMemory,
    allocated: Counter,
}

// SAFETY: a slot's cell is written only by the holder of its exclusive access and read only by
// holders of exclusive access, a part or a lease; `Access` orders the two (acquire/release).
unsafe impl Sync for Buffers {}
// SAFETY: a region's pointer may be used from any thread (contract of `SharedMemory`).
unsafe impl Send for Buffers {}

const ABSENT: Error = Error::new(Code::BadState, "buffer is not resident");
const LEASED: Error = Error::new(Code::Leased, "buffer");

impl Buffers {
    /// Adds what [`Buffers::new`] places.
    pub fn size(sizer: &mut Sizer, slots: usize) -> Result<()> {
        sizer.slice::<Slot>(slots)
    }

    /// All slots absent.
    pub fn new(arena: &mut Arena, slots: usize, memory: &'static dyn SharedMemory) -> Result<Self> {
        let slots = arena.slice(slots, |_| Slot {
            access: Access::new(),
            parts: PartSet::new(),
            held: UnsafeCell::new(None),
        })?;
        Ok(Buffers { slots, memory, allocated: Counter::new() })
    }

    /// Bytes that the port gave and has not got back.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.get()
    }

    /// Allocates a buffer into an absent slot and leaves it prepared, to be filled in at most
    /// [`PARTS_MAX`] parts of `part_bytes` (the last one may be shorter).
    pub fn allocate(&self, slot: usize, usage: Use, bytes: usize, part_bytes: usize) -> Result<()> {
        self.prepare(slot, usage, bytes, part_bytes, false)
    }

    /// Allocates a zero-filled buffer into an absent slot and leaves it prepared; there is nothing
    /// to be filled.
    pub fn allocate_zeroed(&self, slot: usize, usage: Use, bytes: usize) -> Result<()> {
        self.prepare(slot, usage, bytes, bytes, true)
    }

    fn prepare(
        &self,
        slot: usize,
        usage: Use,
        bytes: usize,
        part_bytes: usize,
        zeroed: bool,
    ) -> Result<()> {
        let entry = self.slot(slot)?;
        if bytes == 0 || part_bytes == 0 {
            return Err(Error::new(Code::InvalidArgument, "buffer size"));
        }
        let parts = bytes.div_ceil(part_bytes);
        if parts > PARTS_MAX as usize {
            return Err(Error::new(Code::InvalidArgument, "buffer parts").with(parts));
        }
        if !entry.access.claim() {
            return Err(Error::new(Code::BadState, "buffer exists already").with(slot));
        }
        let region = match self.region(usage, bytes, zeroed) {
            Ok(region) => region,
            Err(error) => {
                entry.access.vacate();
                return Err(error);
            }
        };
        // SAFETY: exclusive access was claimed above, so nobody else touches the cell.
        unsafe { *entry.held.get() = Some(Held { region, usage, bytes, part_bytes }) };
        entry.parts.clear();
        self.allocated.add(region.bytes as u64);
        entry.access.prepare();
        Ok(())
    }

    fn region(&self, usage: Use, bytes: usize, zeroed: bool) -> Result<Region> {
        let region = self.memory.allocate(usage, bytes)?;
        assert!(region.bytes >= bytes);
        if !zeroed {
            return Ok(region);
        }
        // SAFETY: the region is fresh.
        if let Err(error) = unsafe { self.memory.zero(&region) } {
            // SAFETY: it is given up here, and nobody has seen it.
            unsafe { self.memory.release(usage, region) };
            return Err(error);
        }
        Ok(region)
    }

    /// Part `part` of a prepared buffer, to be written whole: anything may lie in it. Each part is
    /// handed out once.
    pub fn part(&self, slot: usize, part: u32) -> Result<Part<'_>> {
        let entry = self.slot(slot)?;
        if !entry.access.begin_part() {
            return Err(Error::new(Code::BadState, "buffer is not being filled").with(slot));
        }
        let held = self.held(entry);
        let start = held.part_bytes.saturating_mul(part as usize);
        if start >= held.bytes || !entry.parts.claim(part) {
            entry.access.end_part();
            return Err(Error::new(Code::InvalidArgument, "part of a buffer").with(part));
        }
        let range = start..held.bytes.min(start + held.part_bytes);
        // SAFETY: the region is live while the part counts; the range is inside it, and the claim
        // makes it this part's alone. `Part` ends the use.
        match unsafe { self.memory.begin_fill(&held.region, range.clone()) } {
            Ok(filling) => {
                let (memory, region) = (self.memory, held.region);
                Ok(Part { entry, memory, region, range, filling: Some(filling) })
            }
            Err(error) => {
                entry.parts.unclaim(part);
                entry.access.end_part();
                Err(error)
            }
        }
    }

    /// Makes a filled buffer resident.
    pub fn publish(&self, slot: usize) -> Result<()> {
        match self.slot(slot)?.access.publish() {
            true => Ok(()),
            false => Err(Error::new(Code::BadState, "buffer is still being filled").with(slot)),
        }
    }

    /// Takes a resident buffer to write to it; `Leased` while somebody reads it.
    pub fn lock(&self, slot: usize) -> Result<Exclusive<'_>> {
        let entry = self.slot(slot)?;
        if !entry.access.lock() {
            return Err(refusal(entry).with(slot));
        }
        let held = self.held(entry);
        // SAFETY: the region is live while the access is exclusive; `Exclusive` ends the use.
        match unsafe { self.memory.begin_host(&held.region) } {
            Ok(start) => Ok(Exclusive { entry, memory: self.memory, held, start }),
            Err(error) => {
                entry.access.unlock();
                Err(error)
            }
        }
    }

    /// Shares a resident buffer.
    pub fn lease(&self, slot: usize) -> Result<Lease<'_>> {
        let entry = self.slot(slot)?;
        if !entry.access.lease() {
            return Err(refusal(entry).with(slot));
        }
        let held = self.held(entry);
        // SAFETY: the region is live while it is leased; `Lease` ends the use.
        match unsafe { self.memory.begin_host(&held.region) } {
            Ok(start) => Ok(Lease { entry, memory: self.memory, held, start }),
            Err(error) => {
                entry.access.unlease();
                Err(error)
            }
        }
    }

    /// Gives a buffer's memory back; `Leased` while somebody uses it.
    pub fn release(&self, slot: usize) -> Result<()> {
        let entry = self.slot(slot)?;
        if !entry.access.lock_to_release() {
            let absent = entry.access.is_absent();
            return Err(if absent { ABSENT } else { LEASED }.with(slot));
        }
        let held = self.held(entry);
        // SAFETY: exclusive access was taken above, so nobody else touches the cell.
        unsafe { *entry.held.get() = None };
        // SAFETY: the region came from `allocate` of the same port; it left the cell, and with
        // exclusive access no part, lease or exclusive guard of it is alive.
        unsafe { self.memory.release(held.usage, held.region) };
        self.allocated.sub(held.region.bytes as u64);
        entry.access.vacate();
        Ok(())
    }

    /// Whether compute holds a lease; a hint that may be stale at once.
    pub fn is_leased(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|entry| entry.access.users() > 0)
    }

    fn slot(&self, slot: usize) -> Result<&Slot> {
        self.slots.get(slot).ok_or(Error::new(Code::InvalidArgument, "buffer slot").with(slot))
    }

    /// What a slot holds, for a caller that has it exclusively, in part or leased.
    fn held(&self, entry: &Slot) -> Held {
        // SAFETY: the caller's hold on `access` excludes writers of the cell.
        let held = unsafe { *entry.held.get() };
        let Some(held) = held else { unreachable!("a slot that is not absent has a region") };
        held
    }
}

/// Why a resident buffer could not be had.
fn refusal(entry: &Slot) -> Error {
    if entry.access.may_be_had_later() { LEASED } else { ABSENT }
}

/// One part of a buffer that is being filled. Dropped unfinished, it is given up, and the buffer is
/// good for a release only.
pub struct Part<'a> {
    entry: &'a Slot,
    memory: &'static dyn SharedMemory,
    region: Region,
    range: Range<usize>,
    /// Until the use has ended.
    filling: Option<Filling>,
}

impl Part<'_> {
    /// Where in the buffer it lies.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let Some(filling) = &self.filling else { unreachable!("a finished part is gone") };
        // SAFETY: the port's promise for a range that is being filled: memory of its length, this
        // part's alone until `end`.
        unsafe { core::slice::from_raw_parts_mut(filling.start.as_ptr(), self.range.len()) }
    }

    /// Every byte is written. After an error the part counts as given up.
    pub fn finish(mut self) -> Result<()> {
        self.end(true)
    }

    fn end(&mut self, is_filled: bool) -> Result<()> {
        let Some(filling) = self.filling.take() else { return Ok(()) };
        // SAFETY: begun when this was made, and ended once; the region is live until the access is
        // given up.
        unsafe { self.memory.end_fill(&self.region, self.range.clone(), filling, is_filled) }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let _given_up = self.end(false);
        self.entry.access.end_part();
    }
}

/// A resident buffer with nobody else on it.
pub struct Exclusive<'a> {
    entry: &'a Slot,
    memory: &'static dyn SharedMemory,
    held: Held,
    start: NonNull<u8>,
}

impl Exclusive<'_> {
    /// The buffer's memory, for callers that cannot keep a slice; valid while this is held.
    pub fn region(&self) -> Region {
        Region { start: self.start, bytes: self.held.bytes, ..self.held.region }
    }
}

impl Deref for Exclusive<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: exclusive access; the region is live and initialised (zero-filled at first).
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.held.bytes) }
    }
}

impl DerefMut for Exclusive<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: exclusive access, and `&mut self` makes this the only borrow.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.held.bytes) }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // SAFETY: begun when this was made; the region is live until the access is given up.
        unsafe { self.memory.end(&self.held.region) };
        self.entry.access.unlock();
    }
}

/// A resident buffer that stays so until the lease is dropped.
pub struct Lease<'a> {
    entry: &'a Slot,
    memory: &'static dyn SharedMemory,
    held: Held,
    start: NonNull<u8>,
}

// SAFETY: a lease is shared read access to memory that any thread may read.
unsafe impl Send for Lease<'_> {}
// SAFETY: as above.
unsafe impl Sync for Lease<'_> {}

impl Lease<'_> {
    /// The buffer's memory, for callers that cannot keep a slice; valid while this is held.
    pub fn region(&self) -> Region {
        Region { start: self.start, bytes: self.held.bytes, ..self.held.region }
    }
}

impl Deref for Lease<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: while leases are out nobody has exclusive access, so nobody writes or releases.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.held.bytes) }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // SAFETY: begun when this was made; the region is live until the access is given up.
        unsafe { self.memory.end(&self.held.region) };
        self.entry.access.unlease();
    }
}

#[cfg(test)]
mod tests;
