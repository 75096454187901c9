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

use super::{Region, SharedMemory, Use};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::PARTS_MAX;
use crate::sync::{Access, Counter, PartSet};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut, Range};

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

    /// Allocates a zero-filled buffer into an absent slot and leaves it prepared, to be filled in
    /// at most [`PARTS_MAX`] parts of `part_bytes` (the last one may be shorter).
    pub fn allocate(&self, slot: usize, usage: Use, bytes: usize, part_bytes: usize) -> Result<()> {
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
        let region = match self.memory.allocate(usage, bytes) {
            Ok(region) => region,
            Err(error) => {
                entry.access.vacate();
                return Err(error);
            }
        };
        assert!(region.bytes >= bytes);
        // SAFETY: exclusive access was claimed above, so nobody else touches the cell.
        unsafe { *entry.held.get() = Some(Held { region, usage, bytes, part_bytes }) };
        entry.parts.clear();
        self.allocated.add(region.bytes as u64);
        entry.access.prepare();
        Ok(())
    }

    /// Part `part` of a prepared buffer; each part is handed out once.
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
        // SAFETY: the region is live while the part counts; `Part` ends the use.
        if let Err(error) = unsafe { self.memory.begin_host(&held.region) } {
            entry.parts.unclaim(part);
            entry.access.end_part();
            return Err(error);
        }
        let range = start..held.bytes.min(start + held.part_bytes);
        Ok(Part { entry, memory: self.memory, region: held.region, range })
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
        if let Err(error) = unsafe { self.memory.begin_host(&held.region) } {
            entry.access.unlock();
            return Err(error);
        }
        Ok(Exclusive { entry, memory: self.memory, held })
    }

    /// Shares a resident buffer.
    pub fn lease(&self, slot: usize) -> Result<Lease<'_>> {
        let entry = self.slot(slot)?;
        if !entry.access.lease() {
            return Err(refusal(entry).with(slot));
        }
        let held = self.held(entry);
        // SAFETY: the region is live while it is leased; `Lease` ends the use.
        if let Err(error) = unsafe { self.memory.begin_host(&held.region) } {
            entry.access.unlease();
            return Err(error);
        }
        Ok(Lease { entry, memory: self.memory, held })
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

/// One part of a buffer that is being filled.
pub struct Part<'a> {
    entry: &'a Slot,
    memory: &'static dyn SharedMemory,
    region: Region,
    range: Range<usize>,
}

impl Part<'_> {
    /// Where in the buffer it lies.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the region (checked in `part`), parts are disjoint and each
        // was handed out once, and no lease or exclusive guard exists while parts are filled.
        unsafe {
            let start = self.region.start.as_ptr().add(self.range.start);
            core::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        // SAFETY: begun when this was made; the region is live until the access is given up.
        unsafe { self.memory.end(&self.region) };
        self.entry.access.end_part();
    }
}

/// A resident buffer with nobody else on it.
pub struct Exclusive<'a> {
    entry: &'a Slot,
    memory: &'static dyn SharedMemory,
    held: Held,
}

impl Exclusive<'_> {
    /// The buffer's memory, for callers that cannot keep a slice; valid while this is held.
    pub fn region(&self) -> Region {
        Region { bytes: self.held.bytes, ..self.held.region }
    }
}

impl Deref for Exclusive<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: exclusive access; the region is live and initialised (zero-filled at first).
        unsafe { core::slice::from_raw_parts(self.held.region.start.as_ptr(), self.held.bytes) }
    }
}

impl DerefMut for Exclusive<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: exclusive access, and `&mut self` makes this the only borrow.
        unsafe { core::slice::from_raw_parts_mut(self.held.region.start.as_ptr(), self.held.bytes) }
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
}

// SAFETY: a lease is shared read access to memory that any thread may read.
unsafe impl Send for Lease<'_> {}
// SAFETY: as above.
unsafe impl Sync for Lease<'_> {}

impl Lease<'_> {
    /// The buffer's memory, for callers that cannot keep a slice; valid while this is held.
    pub fn region(&self) -> Region {
        Region { bytes: self.held.bytes, ..self.held.region }
    }
}

impl Deref for Lease<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: while leases are out nobody has exclusive access, so nobody writes or releases.
        unsafe { core::slice::from_raw_parts(self.held.region.start.as_ptr(), self.held.bytes) }
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
