//! What an accelerator holds: the same leases and locks, without slices.

use super::{Buffers, Slot, refusal};
use crate::error::Result;
use crate::port::{DeviceRegion, Region, SharedMemory};

impl Buffers {
    /// Shares a resident buffer with the accelerator, which only reads it. `Leased` while the host
    /// uses it and both cannot.
    pub fn lease_device(&self, slot: usize) -> Result<DeviceLease<'_>> {
        let entry = self.slot(slot)?;
        if !entry.access.lease() {
            return Err(refusal(entry).with(slot));
        }
        match self.begin(entry) {
            Ok(hold) => Ok(DeviceLease { entry, hold }),
            Err(error) => {
                entry.access.unlease();
                Err(error)
            }
        }
    }

    /// Takes a resident buffer for the accelerator to write to it; `Leased` while somebody else
    /// uses it.
    pub fn lock_device(&self, slot: usize) -> Result<DeviceExclusive<'_>> {
        let entry = self.slot(slot)?;
        if !entry.access.lock() {
            return Err(refusal(entry).with(slot));
        }
        match self.begin(entry) {
            Ok(hold) => Ok(DeviceExclusive { entry, hold }),
            Err(error) => {
                entry.access.unlock();
                Err(error)
            }
        }
    }

    /// For a caller that has the slot leased or exclusively.
    fn begin(&self, entry: &Slot) -> Result<Hold> {
        let held = self.held(entry);
        // SAFETY: the region is live while the caller's access lasts; `Hold` ends the use.
        let device = unsafe { self.memory.begin_device(&held.region)? };
        Ok(Hold { memory: self.memory, region: held.region, device, bytes: held.bytes })
    }
}

/// A use of a region by the accelerator, until it is ended.
struct Hold {
    memory: &'static dyn SharedMemory,
    region: Region,
    device: DeviceRegion,
    bytes: usize,
}

impl Hold {
    fn end(&self) {
        // SAFETY: begun when this was made and ended once, by its owner's drop, which gives up its
        // access to the slot afterwards; so the region is live.
        unsafe { self.memory.end(&self.region) };
    }
}

/// A resident buffer that the accelerator reads, and that stays so until this is dropped.
pub struct DeviceLease<'a> {
    entry: &'a Slot,
    hold: Hold,
}

// SAFETY: as a `Lease`; a region may be ended from any thread (contract of `SharedMemory`).
unsafe impl Send for DeviceLease<'_> {}
// SAFETY: as above; all methods only read.
unsafe impl Sync for DeviceLease<'_> {}

impl DeviceLease<'_> {
    /// As the accelerator names it.
    pub fn region(&self) -> DeviceRegion {
        self.hold.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.hold.bytes
    }
}

impl Drop for DeviceLease<'_> {
    fn drop(&mut self) {
        self.hold.end();
        self.entry.access.unlease();
    }
}

/// A resident buffer that the accelerator writes to, with nobody else on it.
pub struct DeviceExclusive<'a> {
    entry: &'a Slot,
    hold: Hold,
}

impl DeviceExclusive<'_> {
    /// As the accelerator names it.
    pub fn region(&self) -> DeviceRegion {
        self.hold.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.hold.bytes
    }
}

impl Drop for DeviceExclusive<'_> {
    fn drop(&mut self) {
        self.hold.end();
        self.entry.access.unlock();
    }
}
