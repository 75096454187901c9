//! Shared buffers on an accelerator: the [`SharedMemory`] port in three modes.
//!
//! Invariant: a region is the host's or the device's, as its [`Turn`] says, and is handed over
//! only when nobody uses it. Fine-grain regions are both's, at all times.
//!
//! | mode | region | to the device | to the host |
//! |---|---|---|---|
//! | fine | shared memory | nothing | nothing |
//! | coarse | shared memory | unmap, enqueued before the kernels | map, after the kernels |
//! | buffers | memory of the device | upload | download into pages of the host |
//!
//! So the order around a pass is: readers and unpackers fill a region; compute begins a device
//! lease, enqueues kernels, waits for them, ends the lease. Nothing is handed back then: the next
//! pass finds the region where it left it, and only an eviction that packs a chunk, or a checkpoint
//! that writes it, takes it back. Weights are dropped without ever going back.
//!
//! A region of buffers is the device's from its allocation on. Whoever fills a part of it writes to
//! [`Staging`], and the part is uploaded as soon as it is filled, by the same worker: compute finds
//! everything in place, and host pages are as many as there are workers.
//!
//! Without shared addresses all KV chunks lie in one buffer, the [`Pool`], so that a kernel finds
//! them by offsets from one argument; its memory goes back when the last chunk is released.
//! Segments of the RAM swap are ordinary memory in every mode. Nothing is freed before every
//! command of the compute queue has run.
//!
//! Each region of shared memory is an allocation of its own, so that evicting a unit gives exactly
//! that unit back; larger allocations, handed out piece by piece, would be held by their last unit.
//! Where the driver allocates slowly, [`DeviceBuffers::with_spares`] keeps some of what is released
//! for the next allocation of its size, even across an eviction; without it nothing is kept. Cards
//! with memory of their own need it least: there [`MemoryMode::best`] chooses buffers.
//!
//! When the device is lost, fine-grain regions are still the host's to read. Of the other modes the
//! regions that the device held at that moment are gone with it, and handing one over answers with
//! the driver's error; regions of the host, and what was evicted before, are not touched. Releasing
//! works in every mode, so that eviction gives back whatever needs no copy.

use super::api::{Handle, MAP_READ, MAP_WRITE, MAP_WRITE_INVALIDATE};
use super::context::{Context, Object};
use super::memory::{MemoryMode, Shared, buffer_region, create_buffer, shared_region};
use super::pool::Pool;
use super::queue::Queue;
use super::spares::Spares;
use super::staging::{HostPages, Staging};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::linux::turns::enter;
use crate::port::linux::{AnonymousMemory, FutexPark};
use crate::port::lock::Lock;
use crate::port::{DeviceRegion, Filling, Region, SharedMemory, Use};
use crate::sync::{Party, Turn};
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::num::NonZero;
use core::ops::Range;
use core::ptr::NonNull;

const WHAT: &str = "shared buffer";
/// The token of memory that is not in the table.
const ORDINARY: u64 = 0;

/// What one region is made of.
enum Backing {
    Shared(Shared),
    /// A buffer of its own, or a block of the pool.
    Buffer(Option<Object>, usize),
}

struct Row {
    turn: Turn,
    /// Set while the region is live. Freed by hand: rows lie in the arena, which drops nothing.
    backing: UnsafeCell<ManuallyDrop<Option<Backing>>>,
    /// What the host has of a region of buffers, while it is the host's turn.
    host: UnsafeCell<Option<HostPages>>,
}

/// Rows and blocks that are free.
struct Free {
    rows: &'static mut [u32],
    count: usize,
    pool: Pool,
    spares: Spares,
}

/// Shared buffers of one device.
pub struct DeviceBuffers {
    context: Context,
    compute: Queue,
    /// For what must not wait behind kernels: handing new memory to the host, and uploads.
    transfer: Queue,
    mode: MemoryMode,
    staging: Staging,
    rows: &'static [Row],
    free: Lock<Free>,
}

// SAFETY: a row's backing is written only by `allocate` and `release`, for a row that the free list
// gave to nobody else, and read only while the region is live; the `Lock` orders the two. Its host
// pages are written by these two and by whoever hands the region over, with nobody in, and read
// while it is the host's turn; `Turn` orders these.
unsafe impl Sync for DeviceBuffers {}
// SAFETY: what it holds may be used from any thread.
unsafe impl Send for DeviceBuffers {}

impl DeviceBuffers {
    /// Adds what [`DeviceBuffers::new`] places for that many weight units and KV chunks.
    pub fn size(sizer: &mut Sizer, regions_max: usize) -> Result<()> {
        sizer.slice::<Row>(regions_max)?;
        sizer.slice::<u32>(regions_max)?;
        sizer.slice::<bool>(regions_max)
    }

    /// Buffers for kernels that run on `compute`. Without shared memory, all KV chunks together
    /// take `pool_bytes`, which the device must be able to allocate at once.
    pub fn new(
        arena: &mut Arena,
        regions_max: usize,
        context: &Context,
        compute: &Queue,
        mode: MemoryMode,
        pool_bytes: usize,
    ) -> Result<DeviceBuffers> {
        if !mode.is_offered(context.device()) {
            return Err(Error::new(Code::Unsupported, mode.name()));
        }
        let rows = arena.slice(regions_max, |_| Row {
            turn: Turn::new(),
            backing: UnsafeCell::new(ManuallyDrop::new(None)),
            host: UnsafeCell::new(None),
        })?;
        let too_many = Error::new(Code::LimitExceeded, "regions").with(regions_max);
        let count = u32::try_from(regions_max).map_err(|_| too_many)?;
        let mut numbers = (0..count).rev();
        let free = arena.slice(regions_max, |_| numbers.next().unwrap_or_default())?;
        let taken = arena.slice(regions_max, |_| false)?;
        let pool = Pool::new(pool_bytes, taken);
        let transfer = Queue::new(context, false)?;
        let staging = Staging::none(&transfer)?;
        Ok(DeviceBuffers {
            context: context.share()?,
            compute: compute.share()?,
            transfer,
            mode,
            staging,
            rows,
            free: Lock::new(
                Free { rows: free, count: regions_max, pool, spares: Spares::new(0) },
                &FutexPark,
            ),
        })
    }

    /// The same, keeping up to that many bytes of shared memory that was released for the next
    /// allocation. What is kept counts as given back, in this library's books, but not for the
    /// system; [`SharedMemory::trim`] gives it back too.
    pub fn with_spares(self, bytes_max: usize) -> Self {
        self.free.lock().spares = Spares::new(bytes_max);
        self
    }

    /// The same, with about that many bytes of pinned memory of the host, through which regions of
    /// buffers are filled; other modes need none. Where the driver has none to give, or where it is
    /// all in use, whoever fills takes fresh pages.
    pub fn with_staging(mut self, bytes: usize) -> Self {
        if self.mode == MemoryMode::Buffers {
            let _refused = self.staging.pin(&self.context, bytes);
        }
        self
    }

    /// The mode.
    pub fn mode(&self) -> MemoryMode {
        self.mode
    }

    fn take_row(&self) -> Result<u32> {
        let mut free = self.free.lock();
        let full = Error::new(Code::LimitExceeded, "regions").with(self.rows.len());
        free.count = free.count.checked_sub(1).ok_or(full)?;
        Ok(free.rows[free.count])
    }

    fn give_row(&self, row: u32) {
        let free = &mut *self.free.lock();
        free.rows[free.count] = row;
        free.count += 1;
    }

    /// The row of a live region; `None` for ordinary memory.
    fn row(&self, region: &Region) -> Option<&'static Row> {
        match region.token {
            ORDINARY => None,
            token => {
                let index = usize::try_from(token - 1).unwrap_or(usize::MAX);
                Some(&self.rows[index])
            }
        }
    }

    fn back(&self, usage: Use, bytes: usize) -> Result<(Backing, Region)> {
        if self.mode != MemoryMode::Buffers {
            let fine = self.mode == MemoryMode::Fine;
            let spare = self.free.lock().spares.take(bytes);
            let shared = match spare {
                Some(spare) => spare,
                None => Shared::new(&self.context, fine, bytes)?,
            };
            if !fine {
                // SAFETY: fresh or spare coarse-grain memory, which nobody has mapped.
                unsafe { self.transfer.map(shared.start, bytes, MAP_WRITE_INVALIDATE)? };
            }
            let region = Region { start: shared.start, bytes, token: ORDINARY };
            return Ok((Backing::Shared(shared), region));
        }
        let backing = match usage {
            Use::Kv => Backing::Buffer(None, self.free.lock().pool.take(&self.context, bytes)?),
            _ => Backing::Buffer(Some(create_buffer(&self.context, bytes)?), 0),
        };
        // Nobody's memory: each use of the host gets pages.
        const NOWHERE: NonZero<usize> = NonZero::new(IO_ALIGN).unwrap();
        let start = NonNull::without_provenance(NOWHERE);
        Ok((backing, Region { start, bytes, token: ORDINARY }))
    }

    /// The buffer of a region that has one, and the region's place in it.
    fn buffer(&self, own: &Option<Object>, block: usize) -> (Handle, usize) {
        match own {
            Some(object) => (object.handle(), 0),
            None => self.free.lock().pool.place(block),
        }
    }

    fn name(&self, backing: &Backing) -> DeviceRegion {
        match backing {
            Backing::Shared(shared) => shared_region(shared.start),
            Backing::Buffer(own, block) => {
                let (handle, offset) = self.buffer(own, *block);
                buffer_region(handle, offset)
            }
        }
    }

    /// What a live region is made of.
    fn backing<'a>(&self, row: &'a Row) -> &'a Backing {
        // SAFETY: the caller has a live region, so the cell is set and nobody writes to it.
        let backing = unsafe { (*row.backing.get()).as_ref() };
        let Some(backing) = backing else { unreachable!("a live region has a backing") };
        backing
    }

    /// Buffer and offset of a region that the host sees pages of; `None` for shared memory.
    fn copied(&self, region: &Region) -> Option<(Handle, usize)> {
        let row = self.row(region)?;
        match self.backing(row) {
            Backing::Shared(_) => None,
            Backing::Buffer(own, block) => Some(self.buffer(own, *block)),
        }
    }

    /// With nobody in.
    fn hand_to_device(&self, row: &Row) -> Result<()> {
        match self.backing(row) {
            // SAFETY: mapped when it was allocated or last handed to the host, and no host user is
            // in (its turn is being handed over).
            Backing::Shared(shared) => unsafe { self.compute.unmap(shared.start) },
            Backing::Buffer(own, block) => {
                let (handle, offset) = self.buffer(own, *block);
                // SAFETY: nobody is in, so nobody else looks at the cell.
                let host = unsafe { &mut *row.host.get() };
                let Some(pages) = *host else { unreachable!("the host had pages in its turn") };
                // SAFETY: taken for this region, and no host user is in.
                self.transfer.write_buffer(handle, offset, unsafe { pages.as_slice() })?;
                *host = None;
                // SAFETY: they left the cell, and no host user is in.
                unsafe { self.staging.give(pages) };
                Ok(())
            }
        }
    }

    /// With nobody in.
    fn hand_to_host(&self, row: &Row, region: &Region) -> Result<()> {
        match self.backing(row) {
            // On the compute queue, behind the kernels and the unmapping before them.
            Backing::Shared(shared) => {
                // SAFETY: live coarse-grain memory, unmapped when it was handed to the device.
                unsafe { self.compute.map(shared.start, region.bytes, MAP_READ | MAP_WRITE) }
            }
            Backing::Buffer(own, block) => {
                let (handle, offset) = self.buffer(own, *block);
                let pages = self.staging.take(region.bytes, true)?;
                // SAFETY: just taken, and seen by nobody else.
                let bytes = unsafe { pages.as_slice_mut() };
                if let Err(error) = self.compute.read_buffer(handle, offset, bytes) {
                    // SAFETY: taken above, and given up here.
                    unsafe { self.staging.give(pages) };
                    return Err(error);
                }
                // SAFETY: nobody is in, so nobody else looks at the cell.
                unsafe { *row.host.get() = Some(pages) };
                Ok(())
            }
        }
    }

    /// Lets a party in, handing the region over where needed.
    ///
    /// # Safety
    ///
    /// The region is live until its use ends.
    unsafe fn enter(&self, region: &Region, party: Party) -> Result<()> {
        if self.mode == MemoryMode::Fine {
            return Ok(());
        }
        let Some(row) = self.row(region) else { return Ok(()) };
        enter(&row.turn, party, WHAT, || match party {
            Party::Device => self.hand_to_device(row),
            Party::Host => self.hand_to_host(row, region),
        })
    }
}

// SAFETY: a region is memory of the driver or the kernel of at least the size asked for, given to
// nobody else until `release`, zeroed by `zero`, and mapped while the host uses it; regions of
// buffers have pages of the host while it uses them, which are given back after.
unsafe impl SharedMemory for DeviceBuffers {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        if usage == Use::Swap {
            return AnonymousMemory.allocate(usage, bytes);
        }
        if bytes == 0 {
            return Err(Error::new(Code::InvalidArgument, WHAT));
        }
        let number = self.take_row()?;
        let (backing, region) = match self.back(usage, bytes) {
            Ok(made) => made,
            Err(error) => {
                self.give_row(number);
                return Err(error);
            }
        };
        let token = u64::from(number) + 1;
        let region = Region { token, ..region };
        let Some(row) = self.row(&region) else { unreachable!("tokens of rows are not zero") };
        let copied = self.mode == MemoryMode::Buffers;
        row.turn.settle(if copied { Party::Device } else { Party::Host }, false);
        // SAFETY: the free list gave the row to this call alone.
        unsafe { **row.backing.get() = Some(backing) };
        Ok(region)
    }

    unsafe fn zero(&self, region: &Region) -> Result<()> {
        let Some(row) = self.row(region) else { return Ok(()) };
        let Backing::Buffer(own, block) = self.backing(row) else {
            // SAFETY: fresh shared memory of that size, the host's, seen by nobody else. Drivers
            // keep freed memory, as the spares do, and give it out again as it is.
            unsafe { region.start.write_bytes(0, region.bytes) };
            return Ok(());
        };
        let (handle, offset) = self.buffer(own, *block);
        let mut done = 0;
        while done < region.bytes {
            let zeros = self.staging.zeros(region.bytes - done);
            self.transfer.write_buffer(handle, offset + done, zeros)?;
            done += zeros.len();
        }
        Ok(())
    }

    unsafe fn release(&self, usage: Use, region: Region) {
        let Some(row) = self.row(&region) else {
            // SAFETY: the caller's promise, passed on.
            unsafe { AnonymousMemory.release(usage, region) };
            return;
        };
        // SAFETY: the caller gives the region up, so nobody else reads the cell.
        let backing = unsafe { (*row.backing.get()).take() };
        let Some(backing) = backing else { unreachable!("a region is released once") };
        // A lost device runs nothing any more, so an error is as good an end.
        let ran = self.compute.finish();
        match backing {
            Backing::Shared(shared) => {
                let mut unmapped = Ok(());
                if self.mode == MemoryMode::Coarse && row.turn.party() == Party::Host {
                    // SAFETY: the host's, so mapped, and nobody touches it any more.
                    unmapped = unsafe { self.transfer.unmap(shared.start) };
                    unmapped = unmapped.and_then(|()| self.transfer.finish());
                }
                // What the driver may not have unmapped is of no use to anybody.
                let surplus = match ran.and(unmapped) {
                    Ok(()) => self.free.lock().spares.keep(shared),
                    Err(_) => Some(shared),
                };
                drop(surplus);
            }
            Backing::Buffer(own, block) => {
                match own {
                    Some(buffer) => drop(buffer),
                    None => self.free.lock().pool.give(block),
                }
                // SAFETY: the region is given up, so nobody else looks at the cell.
                if let Some(pages) = unsafe { (*row.host.get()).take() } {
                    // SAFETY: taken for this region, which nobody refers to any more.
                    unsafe { self.staging.give(pages) };
                }
            }
        }
        self.give_row(u32::try_from(region.token - 1).unwrap_or_default());
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        // SAFETY: the caller's promise.
        unsafe { self.enter(region, Party::Host)? };
        match self.row(region) {
            // SAFETY: it is the host's turn while this user is in, so nobody writes to the cell.
            Some(row) => Ok(unsafe { *row.host.get() }.map_or(region.start, |pages| pages.start)),
            None => Ok(region.start),
        }
    }

    unsafe fn begin_fill(&self, region: &Region, range: Range<usize>) -> Result<Filling> {
        if self.copied(region).is_some() {
            return Ok(self.staging.take(range.len(), false)?.filling());
        }
        // SAFETY: the caller's promise.
        unsafe { self.begin_fill_in_place(region, range) }
    }

    unsafe fn end_fill(
        &self,
        region: &Region,
        range: Range<usize>,
        filling: Filling,
        is_filled: bool,
    ) -> Result<()> {
        let Some((handle, offset)) = self.copied(region) else {
            // SAFETY: begun by `begin_fill`.
            unsafe { self.end(region) };
            return Ok(());
        };
        let pages = HostPages::of(filling, range.len());
        let mut sent = Ok(());
        if is_filled {
            // SAFETY: taken by `begin_fill`, and its user is done.
            let bytes = unsafe { pages.as_slice() };
            sent = self.transfer.write_buffer(handle, offset + range.start, bytes);
        }
        // SAFETY: taken by `begin_fill`, once; the driver has read them.
        unsafe { self.staging.give(pages) };
        sent
    }

    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        let Some(row) = self.row(region) else {
            return Err(Error::new(Code::InvalidArgument, "memory that is not the device's"));
        };
        // SAFETY: the caller's promise.
        unsafe { self.enter(region, Party::Device)? };
        Ok(self.name(self.backing(row)))
    }

    fn trim(&self) {
        loop {
            let spare = self.free.lock().spares.take_any();
            if spare.is_none() {
                return;
            }
        }
    }

    unsafe fn end(&self, region: &Region) {
        if self.mode == MemoryMode::Fine {
            return;
        }
        if let Some(row) = self.row(region) {
            row.turn.leave();
        }
    }
}

impl Drop for DeviceBuffers {
    /// Whoever owns regions has released them: they borrow this for `'static`.
    fn drop(&mut self) {
        let _lost = self.compute.finish();
        let _lost = self.transfer.finish();
    }
}
