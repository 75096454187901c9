//! The shared-memory port on KGSL, and what of the process's memory is the driver's.
//!
//! Regions are cached write-back. Where the driver keeps caches coherent (most chips since SM8450),
//! host and GPU may use a region at the same time. Elsewhere they take turns, and each hand-over is
//! a cache sync of the whole region: `TO_GPU` before the GPU's commands, `FROM_GPU` before the host
//! looks again. Nothing is synced that the other side does not ask for, and never with a user in:
//! forgetting cached lines would lose what another thread just wrote.
//!
//! Segments of the RAM swap are the GPU's in no mode: they are ordinary memory, whose pages come
//! one by one with the records, where the driver would back a whole segment at once.

use super::device::{KgslDevice, Object};
use super::raw::{FROM_GPU, MemFlags, TO_GPU};
use crate::error::{Code, Error, Result};
use crate::port::linux::maps::is_of_device;
use crate::port::linux::number::read_number;
use crate::port::linux::pages::{page_bytes, unmap, whole_pages};
use crate::port::linux::turns::{Turns, enter};
use crate::port::linux::{AnonymousMemory, ProcessMeter};
use crate::port::{DeviceRegion, Meter, Region, SharedMemory, Use, shared_address};
use crate::sync::{Counter, Party, Turn};
use core::ffi::CStr;
use core::ptr::NonNull;

const WHAT: &str = "KGSL buffer";
const SVM: &str = "KGSL memory at one address";
const PROC_ROOT: &CStr = c"/sys/class/kgsl/kgsl/proc";

/// What every region asks for.
const FLAGS: MemFlags =
    MemFlags::WRITEBACK.union(MemFlags::USE_CPU_MAP).union(MemFlags::IOCOHERENT);

/// GPU memory of this process, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuBytes {
    /// The driver: all of the process's objects that are mapped, other libraries' too.
    Driver(u64),
    /// This port, of its own regions: the driver's figure is absent, or hidden from apps.
    Own(u64),
}

/// Objects of KGSL as the shared-memory port. A region's token is the object's number in its lower
/// 32 bits, and its mapping's size in pages in the upper ones; 0 for memory that is not the GPU's.
pub struct KgslMemory {
    device: KgslDevice,
    /// Where host and GPU take turns.
    turns: Option<Turns>,
    /// Whether the kernel counts mapped objects as shared memory of the process.
    is_counted: bool,
    allocated: Counter,
    proc_root: &'static CStr,
}

impl KgslMemory {
    /// Tries the device out with one page. `Unsupported` where it does not give memory that host
    /// and GPU have at one address.
    pub fn open(device: KgslDevice) -> Result<KgslMemory> {
        let mut memory = KgslMemory {
            device,
            turns: None,
            is_counted: false,
            allocated: Counter::new(),
            proc_root: PROC_ROOT,
        };
        let (object, start) = memory.make(page_bytes())?;
        let same = memory.device.address(object.id).map(|address| address == shared_address(start));
        let counted = is_of_device(start).map(|is_device| !is_device);
        // SAFETY: made above, and seen by nobody else.
        unsafe { memory.destroy(start, &object) };
        if !same? {
            return Err(Error::new(Code::Unsupported, SVM));
        }
        // Where this cannot be found out: a sum that is too small would hide memory.
        memory.is_counted = counted.unwrap_or(false);
        if object.flags.needs_sync() {
            memory.turns = Some(Turns::new()?);
        }
        Ok(memory)
    }

    /// The same with the driver's counters below another folder than sysfs's.
    pub fn with_proc_root(self, proc_root: &'static CStr) -> KgslMemory {
        KgslMemory { proc_root, ..self }
    }

    /// The device.
    pub fn device(&self) -> &KgslDevice {
        &self.device
    }

    /// Whether host and GPU may use a region at the same time, without a call in between.
    pub fn is_coherent(&self) -> bool {
        self.turns.is_none()
    }

    /// GPU memory that this process has mapped. A figure of the driver's below this port's own is
    /// another process's: numbers of processes differ from one container to the next.
    pub fn gpu_bytes(&self) -> GpuBytes {
        let own = self.allocated.get();
        // SAFETY: the call only answers a question.
        let process = unsafe { libc::getpid() };
        let file = format_args!("/{process}/gpumem_mapped");
        match read_number(self.proc_root, file, "gpumem_mapped") {
            Some(bytes) if bytes >= own => GpuBytes::Driver(bytes),
            _ => GpuBytes::Own(own),
        }
    }

    /// A new object and its mapping, both checked.
    fn make(&self, bytes: usize) -> Result<(Object, NonNull<u8>)> {
        let too_large = Error::new(Code::LimitExceeded, WHAT).with(bytes);
        let size = u32::try_from(whole_pages(WHAT, bytes)?).map_err(|_| too_large)?;
        let object = self.device.allocate(size, FLAGS.aligned(align_power(bytes)))?;
        let mapped = match object.flags.contains(MemFlags::USE_CPU_MAP) {
            true => self.device.map(&object),
            false => Err(Error::new(Code::Unsupported, SVM)),
        };
        match mapped {
            Ok(start) => Ok((object, start)),
            Err(error) => {
                self.device.free(object.id);
                Err(error)
            }
        }
    }

    /// Both: the pages stay as long as either the mapping or the name is there.
    ///
    /// # Safety
    ///
    /// Made by `make`, and nothing refers to it any more.
    unsafe fn destroy(&self, start: NonNull<u8>, object: &Object) {
        // SAFETY: the caller's promise.
        unsafe { unmap(start, object.footprint) };
        self.device.free(object.id);
    }

    /// A fresh object's token; its turn is the host's.
    fn token(&self, object: &Object) -> Result<u64> {
        match &self.turns {
            Some(turns) => turns.of(object.id)?.settle(Party::Host, false),
            // Asked of every object: it would be used without turns.
            None if object.flags.needs_sync() => {
                return Err(Error::new(Code::DeviceFailed, "KGSL coherence").with(object.id));
            }
            None => {}
        }
        let pages = (object.footprint / page_bytes()) as u64;
        Ok(pages << 32 | u64::from(object.id))
    }

    /// The object of a live region; `None` for ordinary memory.
    fn object(region: &Region) -> Option<Object> {
        let id = u32::try_from(region.token & u64::from(u32::MAX)).ok().filter(|id| *id != 0)?;
        let pages = usize::try_from(region.token >> 32).unwrap_or(0);
        Some(Object { id, footprint: pages * page_bytes(), flags: FLAGS })
    }

    fn enter(&self, region: &Region, party: Party) -> Result<()> {
        let Some((turn, object)) = self.turn(region)? else { return Ok(()) };
        let operation = match party {
            Party::Device => TO_GPU,
            Party::Host => FROM_GPU,
        };
        enter(turn, party, WHAT, || self.device.sync(object.id, region.bytes, operation))
    }

    /// The turn of a region that has one.
    fn turn(&self, region: &Region) -> Result<Option<(&Turn, Object)>> {
        let (Some(turns), Some(object)) = (&self.turns, Self::object(region)) else {
            return Ok(None);
        };
        Ok(Some((turns.of(object.id)?, object)))
    }
}

/// Large pages of the GPU, in powers of two, for buffers that fill them: the fewer there are, the
/// more the GPU's address caches reach.
fn align_power(bytes: usize) -> u32 {
    const POWERS: [u32; 3] = [21, 20, 16];
    POWERS.into_iter().find(|power| bytes >= 1 << power).unwrap_or(12)
}

// SAFETY: a region is a mapping of an object of its own, zeroed by the driver, of at least the size
// asked for, and stays mapped until `release`; segments are anonymous memory.
unsafe impl SharedMemory for KgslMemory {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        if usage == Use::Swap {
            return AnonymousMemory.allocate(usage, bytes);
        }
        let (object, start) = self.make(bytes)?;
        let token = match self.token(&object) {
            Ok(token) => token,
            Err(error) => {
                // SAFETY: made above, and seen by nobody else.
                unsafe { self.destroy(start, &object) };
                return Err(error);
            }
        };
        // The guard page is nobody's.
        let bytes = whole_pages(WHAT, bytes)?;
        self.allocated.add(bytes as u64);
        Ok(Region { start, bytes, token })
    }

    unsafe fn release(&self, usage: Use, region: Region) {
        let Some(object) = Self::object(&region) else {
            // SAFETY: the caller's promise, passed on.
            unsafe { AnonymousMemory.release(usage, region) };
            return;
        };
        // SAFETY: made by `allocate`; the rest is the caller's promise.
        unsafe { self.destroy(region.start, &object) };
        self.allocated.sub(region.bytes as u64);
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        self.enter(region, Party::Host)?;
        Ok(region.start)
    }

    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        if Self::object(region).is_none() {
            return Err(Error::new(Code::InvalidArgument, "memory that is not the device's"));
        }
        self.enter(region, Party::Device)?;
        Ok(DeviceRegion { address: shared_address(region.start), ..DeviceRegion::default() })
    }

    unsafe fn end(&self, region: &Region) {
        if let Ok(Some((turn, _))) = self.turn(region) {
            turn.leave();
        }
    }
}

impl Meter for KgslMemory {
    /// The system's figures and the GPU's, without counting twice what drivers of newer chips take
    /// from shared memory.
    fn resident_bytes(&self) -> Result<u64> {
        let (GpuBytes::Driver(bytes) | GpuBytes::Own(bytes)) = self.gpu_bytes();
        Ok(ProcessMeter.fields()?.charged_with(bytes, self.is_counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_to_the_largest_page_that_they_fill() {
        let powers = [1, 0xFFFF, 0x1_0000, 0xF_FFFF, 0x10_0000, 0x1F_FFFF, 0x20_0000, 1 << 30];
        assert_eq!(powers.map(align_power), [12, 12, 16, 16, 20, 20, 21, 21]);
        assert_eq!(FLAGS.aligned(21).bits(), 0x9C15_0000);
    }

    #[test]
    fn memory_that_is_cached_and_not_coherent_is_synced() {
        for (flags, needs_sync) in [
            (0x9C00_0000, false),
            (0x1C00_0000, true),
            (0x1800_0000, true),
            (0x1400_0000, false),
            (0x1000_0000, false),
        ] {
            assert_eq!(MemFlags::from_bits_retain(flags).needs_sync(), needs_sync, "{flags:#x}");
        }
    }
}
