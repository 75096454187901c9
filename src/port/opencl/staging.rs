//! Host memory through which bytes go to the buffers of a device and back.
//!
//! One block that the driver allocated and keeps pinned, so that the device copies straight out of
//! it, cut into [`GRANULES`] pieces that workers take turns with: a restore then needs no fresh
//! page of the host, which costs more than reading the page from flash. What does not fit gets
//! ordinary pages of its own ([`HostPages`] is either). Invariant: every granule belongs to one
//! taker at a time; the last one is zeros for good. Copies nothing itself, and waits for nothing.

use super::api::{MAP_READ, MAP_WRITE, MEM_ALLOC_HOST_PTR, MEM_READ_WRITE};
use super::context::{Context, Object};
use super::memory::create_buffer_with;
use super::queue::Queue;
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::linux::{AnonymousMemory, FutexPark};
use crate::port::lock::Lock;
use crate::port::{Filling, Region, SharedMemory, Use};
use core::ptr::NonNull;

/// What [`super::DeviceBuffers::with_staging`] is good for on a machine with a dozen workers: each
/// may have a chunk, or a part of a large weight unit, in hand.
pub const STAGING_BYTES: usize = 96 << 20;
/// Pieces, the zeros included.
const GRANULES: u32 = u64::BITS;
const ZEROS: u64 = 1 << (GRANULES - 1);

/// The block, mapped for as long as it lives.
struct Pinned {
    object: Object,
    mapped: NonNull<u8>,
    start: NonNull<u8>,
    granule_bytes: usize,
}

/// Host memory that a region, or a range of one that is being filled, has for a while.
#[derive(Clone, Copy)]
pub(super) struct HostPages {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
    /// One bit a granule; none for pages of its own.
    granules: u64,
}

impl HostPages {
    pub(super) fn filling(&self) -> Filling {
        Filling { start: self.start, token: self.granules }
    }

    /// What `filling` gave out, for that many bytes.
    pub(super) fn of(filling: Filling, bytes: usize) -> HostPages {
        HostPages { start: filling.start, bytes, granules: filling.token }
    }

    /// # Safety
    ///
    /// They were taken and not given back, and nobody writes to them while the slice lives.
    pub(super) unsafe fn as_slice<'a>(&self) -> &'a [u8] {
        // SAFETY: memory of that length; the rest is the caller's promise.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// # Safety
    ///
    /// As above, and nobody else has a slice of them.
    pub(super) unsafe fn as_slice_mut<'a>(&self) -> &'a mut [u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

pub(super) struct Staging {
    pinned: Option<Pinned>,
    queue: Queue,
    /// One bit for each granule that is out, and the zeros' for good.
    taken: Lock<u64>,
}

// SAFETY: the addresses may be used from any thread; granules are given out under the lock.
unsafe impl Send for Staging {}
// SAFETY: as above.
unsafe impl Sync for Staging {}

impl Staging {
    /// None yet: everybody gets pages of their own.
    pub(super) fn none(queue: &Queue) -> Result<Staging> {
        Ok(Staging { pinned: None, queue: queue.share()?, taken: Lock::new(ZEROS, &FutexPark) })
    }

    /// Takes a block of about `bytes` from the driver, in the place of the one there is.
    pub(super) fn pin(&mut self, context: &Context, bytes: usize) -> Result<()> {
        const WHAT: &str = "clEnqueueMapBuffer";
        let granule_bytes = (bytes / GRANULES as usize).next_multiple_of(IO_ALIGN).max(IO_ALIGN);
        let total = granule_bytes.saturating_mul(GRANULES as usize).saturating_add(IO_ALIGN);
        let flags = MEM_READ_WRITE | MEM_ALLOC_HOST_PTR;
        let object = create_buffer_with(context, flags, total)?;
        let flags = MAP_READ | MAP_WRITE;
        let mapped = self.queue.map_buffer(object.handle(), flags, total)?;
        let skip = mapped.align_offset(IO_ALIGN);
        if skip >= IO_ALIGN {
            return Err(Error::new(Code::Io, WHAT));
        }
        // SAFETY: `skip` is less than the spare bytes at the end.
        let start = unsafe { mapped.add(skip) };
        // SAFETY: the last granule lies before the spare bytes.
        let zeros = unsafe { start.add((GRANULES as usize - 1) * granule_bytes) };
        // SAFETY: as above; it is new to everybody. The others come from the driver as they are,
        // and are made resident by whoever fills them first.
        unsafe { zeros.write_bytes(0, granule_bytes) };
        self.pinned = Some(Pinned { object, mapped, start, granule_bytes });
        Ok(())
    }

    /// Memory with anything in it. Granules where so many in a row are free; whoever may keep what
    /// it takes for long (`may_stay`) leaves half of them to others.
    pub(super) fn take(&self, bytes: usize, may_stay: bool) -> Result<HostPages> {
        let staged =
            self.pinned.as_ref().and_then(|pinned| self.take_granules(pinned, bytes, may_stay));
        if let Some(pages) = staged {
            return Ok(pages);
        }
        let Region { start, .. } = AnonymousMemory.allocate(Use::Kv, bytes)?;
        Ok(HostPages { start, bytes, granules: 0 })
    }

    fn take_granules(&self, pinned: &Pinned, bytes: usize, may_stay: bool) -> Option<HostPages> {
        let count = u32::try_from(bytes.div_ceil(pinned.granule_bytes)).ok()?;
        let mask = 1u64.checked_shl(count)? - 1;
        let mut taken = self.taken.lock();
        if may_stay && taken.count_ones() + count > GRANULES / 2 {
            return None;
        }
        let first = (0..=GRANULES - count).find(|first| *taken & mask << first == 0)?;
        *taken |= mask << first;
        // SAFETY: the granule lies inside the block.
        let start = unsafe { pinned.start.add(first as usize * pinned.granule_bytes) };
        Some(HostPages { start, bytes, granules: mask << first })
    }

    /// Gives memory back.
    ///
    /// # Safety
    ///
    /// `pages` came from `take`, were not given back before, and nobody refers to them any more.
    pub(super) unsafe fn give(&self, pages: HostPages) {
        if pages.granules != 0 {
            *self.taken.lock() &= !pages.granules;
            return;
        }
        let region = AnonymousMemory::region(pages.start, pages.bytes);
        // SAFETY: the caller's promise.
        unsafe { AnonymousMemory.release(Use::Kv, region) };
    }

    /// At most that many zeros.
    pub(super) fn zeros(&self, bytes: usize) -> &[u8] {
        static FEW: [u8; 4096] = [0; 4096];
        match &self.pinned {
            None => &FEW[..bytes.min(FEW.len())],
            Some(pinned) => {
                let bytes = bytes.min(pinned.granule_bytes);
                // SAFETY: inside the block.
                let start =
                    unsafe { pinned.start.add((GRANULES as usize - 1) * pinned.granule_bytes) };
                // SAFETY: the last granule, which is never given out.
                unsafe { core::slice::from_raw_parts(start.as_ptr(), bytes) }
            }
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(pinned) = &self.pinned {
            // SAFETY: mapped by `pin`; whoever drops this uses no granule any more.
            unsafe { self.queue.unmap_buffer(pinned.object.handle(), pinned.mapped) };
        }
    }
}
