//! Shared buffers on an accelerator: the [`SharedMemory`] port in three modes.
//!
//! Invariant: a region is the host's or the device's, as its [`Turn`] says, and is handed over
//! only when nobody uses it. Fine-grain regions are both's, at all times.
//!
//! | mode | region | to the device | to the host |
//! |---|---|---|---|
//! | fine | shared memory | nothing | nothing |
//! | coarse | shared memory | unmap, enqueued before the kernels | map, after the kernels |
//! | buffers | pages of the host | upload, pages dropped | pages filled by a download |
//!
//! So the order around a pass is: readers and unpackers fill a region, which is the host's from its
//! allocation on; compute begins a device lease, enqueues kernels, waits for them, ends the lease.
//! Nothing is handed back then: the next pass finds the region where it left it, and only an
//! eviction that packs a chunk, or a checkpoint that writes it, takes it back. Weights are dropped
//! without ever going back.
//!
//! Without shared addresses all KV chunks lie in one buffer, the pool, so that a kernel finds them
//! by offsets from one argument; its memory goes back when the last chunk is released. Segments of
//! the RAM swap are ordinary memory in every mode. Nothing is freed before every command of the
//! compute queue has run.
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
use super::queue::Queue;
use super::spares::Spares;
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::linux::{AnonymousMemory, FutexPark, drop_whole_pages};
use crate::port::lock::Lock;
use crate::port::{DeviceRegion, Region, SharedMemory, Use};
use crate::sync::{Entry, Party, Turn};
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;

const WHAT: &str = "shared buffer";
/// The token of memory that is not in the table.
const ORDINARY: u64 = 0;

/// What one region is made of.
enum Backing {
    Shared(Shared),
    /// A buffer, or a block of the pool, and the host's pages.
    Buffer {
        own: Option<Object>,
        block: usize,
        host: Region,
    },
}

struct Row {
    turn: Turn,
    /// Set while the region is live. Freed by hand: rows lie in the arena, which drops nothing.
    backing: UnsafeCell<ManuallyDrop<Option<Backing>>>,
}

/// The one buffer of all KV chunks.
struct Pool {
    buffer: ManuallyDrop<Option<Object>>,
    block_bytes: usize,
    taken: &'static mut [bool],
    used: usize,
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
    pool_bytes: usize,
    rows: &'static [Row],
    free: Lock<Free>,
}

// SAFETY: a row's cell is written only by `allocate` and `release`, for a row that the free list
// gave to nobody else, and read only while the region is live. The `Lock` orders the two.
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
        })?;
        let too_many = Error::new(Code::LimitExceeded, "regions").with(regions_max);
        let count = u32::try_from(regions_max).map_err(|_| too_many)?;
        let mut numbers = (0..count).rev();
        let free = arena.slice(regions_max, |_| numbers.next().unwrap_or_default())?;
        let taken = arena.slice(regions_max, |_| false)?;
        let buffer = ManuallyDrop::new(None);
        let pool = Pool { buffer, block_bytes: 0, taken, used: 0 };
        Ok(DeviceBuffers {
            context: context.share()?,
            compute: compute.share()?,
            transfer: Queue::new(context, false)?,
            mode,
            pool_bytes,
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
        let mut free = self.free.lock();
        let count = free.count;
        free.rows[count] = row;
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
            // SAFETY: memory of that size, the host's, and seen by nobody else. Drivers keep freed
            // memory, as the spares do, and give it out again as it is.
            unsafe { shared.start.write_bytes(0, bytes) };
            let region = Region { start: shared.start, bytes, token: ORDINARY };
            return Ok((Backing::Shared(shared), region));
        }
        let (own, block) = match usage {
            Use::Kv => (None, self.take_block(bytes)?),
            _ => (Some(create_buffer(&self.context, bytes)?), 0),
        };
        match AnonymousMemory.allocate(usage, bytes) {
            Ok(host) => Ok((Backing::Buffer { own, block, host }, Region { bytes, ..host })),
            Err(error) => {
                if own.is_none() {
                    self.give_block(block);
                }
                Err(error)
            }
        }
    }

    /// A block of the pool, which is made for the first one.
    fn take_block(&self, bytes: usize) -> Result<usize> {
        let mut free = self.free.lock();
        let pool = &mut free.pool;
        if pool.used == 0 {
            let block_bytes = bytes.checked_next_multiple_of(IO_ALIGN).unwrap_or(usize::MAX);
            let wanted = block_bytes.saturating_mul(pool.taken.len()).min(self.pool_bytes);
            if wanted < block_bytes {
                return Err(Error::new(Code::OutOfMemory, "pool of KV chunks").with(wanted));
            }
            *pool.buffer = Some(create_buffer(&self.context, wanted)?);
            pool.block_bytes = block_bytes;
        }
        if bytes > pool.block_bytes {
            return Err(Error::new(Code::LimitExceeded, "KV chunk of the pool").with(bytes));
        }
        let blocks = pool.taken.len().min(self.pool_bytes / pool.block_bytes);
        let found = pool.taken[..blocks].iter().position(|taken| !taken);
        let block = found.ok_or(Error::new(Code::OutOfMemory, "pool of KV chunks").with(blocks))?;
        pool.taken[block] = true;
        pool.used += 1;
        Ok(block)
    }

    fn give_block(&self, block: usize) {
        let mut free = self.free.lock();
        let pool = &mut free.pool;
        pool.taken[block] = false;
        pool.used -= 1;
        if pool.used == 0 {
            *pool.buffer = None;
        }
    }

    /// The buffer of a region that has one, and the region's place in it.
    fn buffer(&self, own: &Option<Object>, block: usize) -> (Handle, usize) {
        match own {
            Some(object) => (object.handle(), 0),
            None => {
                let free = self.free.lock();
                let handle = free.pool.buffer.as_ref().map(Object::handle);
                let Some(handle) = handle else { unreachable!("a pool with blocks has a buffer") };
                (handle, block * free.pool.block_bytes)
            }
        }
    }

    fn name(&self, backing: &Backing) -> DeviceRegion {
        match backing {
            Backing::Shared(shared) => shared_region(shared.start),
            Backing::Buffer { own, block, .. } => {
                let (handle, offset) = self.buffer(own, *block);
                buffer_region(handle, offset)
            }
        }
    }

    fn hand_to_device(&self, backing: &Backing, region: &Region) -> Result<()> {
        match backing {
            // SAFETY: mapped when it was allocated or last handed to the host, and no host user is
            // in (its turn is being handed over).
            Backing::Shared(shared) => unsafe { self.compute.unmap(shared.start) },
            Backing::Buffer { own, block, host } => {
                let (handle, offset) = self.buffer(own, *block);
                // SAFETY: the pages are the region's, readable, and no user is in.
                let bytes =
                    unsafe { core::slice::from_raw_parts(region.start.as_ptr(), region.bytes) };
                self.transfer.write_buffer(handle, offset, bytes)?;
                // SAFETY: nobody looks at the pages before a download has filled them again.
                unsafe { drop_whole_pages(region.start, host.bytes) };
                Ok(())
            }
        }
    }

    fn hand_to_host(&self, backing: &Backing, region: &Region) -> Result<()> {
        match backing {
            // On the compute queue, behind the kernels and the unmapping before them.
            Backing::Shared(shared) => {
                // SAFETY: live coarse-grain memory, unmapped when it was handed to the device.
                unsafe { self.compute.map(shared.start, region.bytes, MAP_READ | MAP_WRITE) }
            }
            Backing::Buffer { own, block, .. } => {
                let (handle, offset) = self.buffer(own, *block);
                // SAFETY: the pages are the region's, and no user is in.
                let bytes =
                    unsafe { core::slice::from_raw_parts_mut(region.start.as_ptr(), region.bytes) };
                self.compute.read_buffer(handle, offset, bytes)
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
        match row.turn.enter(party) {
            Entry::Joined => Ok(()),
            Entry::Busy => Err(Error::new(Code::Leased, WHAT)),
            Entry::HandOver => {
                // SAFETY: live (the caller's promise), so the cell is set and nobody writes to it.
                let backing = unsafe { (*row.backing.get()).as_ref() };
                let Some(backing) = backing else { unreachable!("a live region has a backing") };
                let (other, result) = match party {
                    Party::Device => (Party::Host, self.hand_to_device(backing, region)),
                    Party::Host => (Party::Device, self.hand_to_host(backing, region)),
                };
                match result {
                    Ok(()) => row.turn.settle(party, true),
                    Err(_) => row.turn.settle(other, false),
                }
                result
            }
        }
    }
}

// SAFETY: a region is memory of the driver or the kernel of at least the size asked for, zeroed
// after allocation, given to nobody else until `release`, and mapped while the host uses it.
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
        row.turn.settle(Party::Host, false);
        // SAFETY: the free list gave the row to this call alone.
        unsafe { **row.backing.get() = Some(backing) };
        Ok(region)
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
            Backing::Buffer { own, block, host } => {
                match own {
                    Some(buffer) => drop(buffer),
                    None => self.give_block(block),
                }
                // SAFETY: the pages came with the region.
                unsafe { AnonymousMemory.release(usage, host) };
            }
        }
        self.give_row(u32::try_from(region.token - 1).unwrap_or_default());
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enter(region, Party::Host) }
    }

    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        let Some(row) = self.row(region) else {
            return Err(Error::new(Code::InvalidArgument, "memory that is not the device's"));
        };
        // SAFETY: the caller's promise.
        unsafe { self.enter(region, Party::Device)? };
        // SAFETY: as above, so the cell is set and nobody writes to it.
        let backing = unsafe { (*row.backing.get()).as_ref() };
        let Some(backing) = backing else { unreachable!("a live region has a backing") };
        Ok(self.name(backing))
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
