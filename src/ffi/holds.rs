//! The leases that C holds.
//!
//! Rust's guards end with their scope; here they are kept, one a unit, until C ends the last of its
//! leases on the unit. Invariant: a unit's guard is there exactly while one of its counts is above
//! zero, so no count can fall below the leases that were taken. A chunk that C writes to is its
//! own: reading it in the same pass needs no second guard, and gets the same memory. A unit is
//! leased on one [`Side`] at a time, the host's or the accelerator's: the other one is refused at
//! once, where waiting for C itself would never end.

use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::port::buffers::{DeviceExclusive, DeviceLease, Exclusive, Lease};
use crate::port::{DeviceRegion, Region};
use crate::runtime::Runtime;
use crate::units::{ChunkId, LayerIndex};
use core::mem::ManuallyDrop;
use core::ops::Range;

/// What keeps a unit.
pub(super) enum Guard {
    Read(Lease<'static>),
    Write(Exclusive<'static>),
    DeviceRead(DeviceLease<'static>),
    DeviceWrite(DeviceExclusive<'static>),
}

// SAFETY: a lease may go to any thread. An exclusive guard is one atomic word and the address of
// memory that any thread may use (contract of `SharedMemory`); no slice of it is ever made here.
unsafe impl Send for Guard {}

impl Guard {
    fn is_for_writing(&self) -> bool {
        matches!(self, Guard::Write(_) | Guard::DeviceWrite(_))
    }
}

/// Who uses a unit: takes guards from a runtime, and finds the unit by them.
pub(super) trait Side {
    /// How it finds a unit.
    type Place;

    /// Where a guard of this side has the unit; `None` of the other side.
    fn place(guard: &Guard) -> Option<Self::Place>;
    /// Waits for a weight unit and leases it.
    fn weights(runtime: &'static Runtime, layer: LayerIndex) -> Result<Guard>;
    /// Leases a chunk.
    fn kv(runtime: &'static Runtime, id: ChunkId) -> Result<Guard>;
    /// Takes a chunk to write to it.
    fn kv_mut(runtime: &'static Runtime, id: ChunkId) -> Result<Guard>;
}

/// Compute on the processor.
pub(super) struct Host;

/// Compute on an accelerator.
pub(super) struct Device;

/// A unit as the accelerator finds it.
pub(super) struct OnDevice {
    pub(super) region: DeviceRegion,
    pub(super) bytes: usize,
}

impl Side for Host {
    type Place = Region;

    fn place(guard: &Guard) -> Option<Region> {
        match guard {
            Guard::Read(lease) => Some(lease.region()),
            Guard::Write(exclusive) => Some(exclusive.region()),
            Guard::DeviceRead(_) | Guard::DeviceWrite(_) => None,
        }
    }

    fn weights(runtime: &'static Runtime, layer: LayerIndex) -> Result<Guard> {
        runtime.weights(layer).map(Guard::Read)
    }

    fn kv(runtime: &'static Runtime, id: ChunkId) -> Result<Guard> {
        runtime.kv(id).map(Guard::Read)
    }

    fn kv_mut(runtime: &'static Runtime, id: ChunkId) -> Result<Guard> {
        runtime.kv_mut(id).map(Guard::Write)
    }
}

impl Side for Device {
    type Place = OnDevice;

    fn place(guard: &Guard) -> Option<OnDevice> {
        let (region, bytes) = match guard {
            Guard::DeviceRead(lease) => (lease.region(), lease.bytes()),
            Guard::DeviceWrite(exclusive) => (exclusive.region(), exclusive.bytes()),
            Guard::Read(_) | Guard::Write(_) => return None,
        };
        Some(OnDevice { region, bytes })
    }

    fn weights(runtime: &'static Runtime, layer: LayerIndex) -> Result<Guard> {
        runtime.weights_on_device(layer).map(Guard::DeviceRead)
    }

    fn kv(runtime: &'static Runtime, id: ChunkId) -> Result<Guard> {
        runtime.kv_on_device(id).map(Guard::DeviceRead)
    }

    fn kv_mut(runtime: &'static Runtime, id: ChunkId) -> Result<Guard> {
        runtime.kv_on_device_mut(id).map(Guard::DeviceWrite)
    }
}

struct Hold {
    /// The arena drops nothing, so the guard is dropped by hand: when the counts are zero.
    guard: ManuallyDrop<Option<Guard>>,
    reads: u32,
    writes: u32,
}

/// All units' leases.
pub(super) struct Holds {
    holds: &'static mut [Hold],
    /// Sum of all counts.
    count: u64,
}

const NOT_HELD: Error = Error::new(Code::BadState, "lease: there is none to end");
const OTHER_SIDE: Error = Error::new(Code::Leased, "unit: host and device take turns");
const TOO_MANY: Error = Error::new(Code::LimitExceeded, "leases of one unit");

impl Holds {
    /// Adds what [`Holds::new`] places.
    pub(super) fn size(sizer: &mut Sizer, units: usize) -> Result<()> {
        sizer.slice::<Hold>(units)
    }

    /// No leases.
    pub(super) fn new(arena: &mut Arena, units: usize) -> Result<Self> {
        let none = |_| Hold { guard: ManuallyDrop::new(None), reads: 0, writes: 0 };
        Ok(Holds { holds: arena.slice(units, none)?, count: 0 })
    }

    /// Whether C holds none.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether C holds one of these units.
    pub(super) fn has_any(&self, units: Range<usize>) -> bool {
        self.holds.get(units).is_some_and(|holds| holds.iter().any(|hold| hold.guard.is_some()))
    }

    /// Refuses a unit that the other side has.
    pub(super) fn check_side<S: Side>(&self, unit: usize) -> Result<()> {
        match self.holds[unit].guard.as_ref() {
            Some(guard) if S::place(guard).is_none() => Err(OTHER_SIDE),
            _ => Ok(()),
        }
    }

    /// One more lease for reading; `lease` is taken if C has the unit not yet.
    pub(super) fn add_read<S: Side>(
        &mut self,
        unit: usize,
        lease: impl FnOnce() -> Result<Guard>,
    ) -> Result<S::Place> {
        let hold = &mut self.holds[unit];
        let reads = hold.reads.checked_add(1).ok_or(TOO_MANY)?;
        let place = hold.place::<S>(lease)?;
        hold.reads = reads;
        self.count += 1;
        Ok(place)
    }

    /// One more lease for writing. `Leased` while C only reads the unit: its other threads may.
    pub(super) fn add_write<S: Side>(
        &mut self,
        unit: usize,
        exclusive: impl FnOnce() -> Result<Guard>,
    ) -> Result<S::Place> {
        let hold = &mut self.holds[unit];
        let writes = hold.writes.checked_add(1).ok_or(TOO_MANY)?;
        if hold.guard.as_ref().is_some_and(|guard| !guard.is_for_writing()) {
            return Err(Error::new(Code::Leased, "chunk is being read"));
        }
        let place = hold.place::<S>(exclusive)?;
        hold.writes = writes;
        self.count += 1;
        Ok(place)
    }

    /// Ends one lease for reading of each of these units, or of none.
    pub(super) fn end_reads(&mut self, units: impl Iterator<Item = usize> + Clone) -> Result<()> {
        if units.clone().any(|unit| self.holds[unit].reads == 0) {
            return Err(NOT_HELD);
        }
        for unit in units {
            let hold = &mut self.holds[unit];
            hold.reads -= 1;
            hold.settle();
            self.count -= 1;
        }
        Ok(())
    }

    /// Ends one lease for writing.
    pub(super) fn end_write(&mut self, unit: usize) -> Result<()> {
        let hold = &mut self.holds[unit];
        hold.writes = hold.writes.checked_sub(1).ok_or(NOT_HELD)?;
        hold.settle();
        self.count -= 1;
        Ok(())
    }

    /// Ends all.
    pub(super) fn end_all(&mut self) {
        for hold in self.holds.iter_mut() {
            hold.reads = 0;
            hold.writes = 0;
            hold.settle();
        }
        self.count = 0;
    }
}

impl Hold {
    /// Where the side finds the unit, by the guard that is there or by a new one.
    fn place<S: Side>(&mut self, guard: impl FnOnce() -> Result<Guard>) -> Result<S::Place> {
        if let Some(guard) = self.guard.as_ref() {
            return S::place(guard).ok_or(OTHER_SIDE);
        }
        let guard = self.guard.insert(guard()?);
        let Some(place) = S::place(guard) else { unreachable!("a guard of this side") };
        Ok(place)
    }

    fn settle(&mut self) {
        if self.reads == 0 && self.writes == 0 {
            *self.guard = None;
        }
    }
}
