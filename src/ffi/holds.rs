//! The leases that C holds.
//!
//! Rust's guards end with their scope; here they are kept, one a unit, until C ends the last of its
//! leases on the unit. Invariant: a unit's guard is there exactly while one of its counts is above
//! zero, so no count can fall below the leases that were taken. A chunk that C writes to is its
//! own: reading it in the same pass needs no second guard, and gets the same memory.

use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::port::Region;
use crate::port::buffers::{Exclusive, Lease};
use core::mem::ManuallyDrop;
use core::ops::Range;

enum Guard {
    Read(Lease<'static>),
    Write(Exclusive<'static>),
}

// SAFETY: a lease may go to any thread. An exclusive guard is one atomic word and the address of
// memory that any thread may use (contract of `SharedMemory`); no slice of it is ever made here.
unsafe impl Send for Guard {}

impl Guard {
    fn region(&self) -> Region {
        match self {
            Guard::Read(lease) => lease.region(),
            Guard::Write(exclusive) => exclusive.region(),
        }
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

    /// One more lease for reading; `lease` is taken if C has the unit not yet.
    pub(super) fn add_read(
        &mut self,
        unit: usize,
        lease: impl FnOnce() -> Result<Lease<'static>>,
    ) -> Result<Region> {
        let hold = &mut self.holds[unit];
        let reads = hold.reads.checked_add(1).ok_or(TOO_MANY)?;
        let region = match hold.guard.as_ref() {
            Some(guard) => guard.region(),
            None => hold.guard.insert(Guard::Read(lease()?)).region(),
        };
        hold.reads = reads;
        self.count += 1;
        Ok(region)
    }

    /// One more lease for writing. `Leased` while C only reads the unit: its other threads may.
    pub(super) fn add_write(
        &mut self,
        unit: usize,
        exclusive: impl FnOnce() -> Result<Exclusive<'static>>,
    ) -> Result<Region> {
        let hold = &mut self.holds[unit];
        let writes = hold.writes.checked_add(1).ok_or(TOO_MANY)?;
        let region = match hold.guard.as_ref() {
            Some(Guard::Write(exclusive)) => exclusive.region(),
            Some(Guard::Read(_)) => return Err(Error::new(Code::Leased, "chunk is being read")),
            None => hold.guard.insert(Guard::Write(exclusive()?)).region(),
        };
        hold.writes = writes;
        self.count += 1;
        Ok(region)
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
    fn settle(&mut self) {
        if self.reads == 0 && self.writes == 0 {
            *self.guard = None;
        }
    }
}
