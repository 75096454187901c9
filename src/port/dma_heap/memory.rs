//! The shared-memory port on dma-bufs, and how much of the process's memory they are.

use super::heap::Heap;
use super::raw::{DMA_BUF_SYNC, Sync as Window};
use crate::error::{Code, Error, Result};
use crate::port::kgsl::{KgslDevice, Name};
use crate::port::linux::errno::device_error;
use crate::port::linux::maps::is_of_device;
use crate::port::linux::pages::{map_device, page_bytes, unmap, whole_pages};
use crate::port::linux::turns::{Turns, enter};
use crate::port::linux::{AnonymousMemory, ProcessMeter};
use crate::port::{DeviceRegion, Meter, Region, SharedMemory, Use};
use crate::sync::{Counter, Party, Turn};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

const WHAT: &str = "dma-buf";
const SYNC: &str = "DMA_BUF_IOCTL_SYNC";
/// The token of memory that is no dma-buf.
const ORDINARY: u64 = u64::MAX;
/// The host reads and writes.
const BOTH: Window = Window::READ.union(Window::WRITE);

/// Dma-bufs as the shared-memory port. A region's token is its file descriptor in the lower 32
/// bits, and the number of KGSL's object that it was imported as, or 0, in the upper ones;
/// [`u64::MAX`] for memory that is not the device's.
pub struct DmaHeapMemory {
    heap: Heap,
    /// Who imports each region.
    gpu: Option<KgslDevice>,
    turns: Turns,
    /// Whether the kernel counts mapped dma-bufs as shared memory of the process.
    is_counted: bool,
    allocated: Counter,
}

/// A mapping that no region has, unmapped when dropped.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped when this was made; whoever drops it refers to it no more.
        unsafe { unmap(self.start, self.bytes) };
    }
}

/// What a region's token says.
struct Names {
    /// Closed by `release` alone.
    file: ManuallyDrop<OwnedFd>,
    object: Name,
}

impl DmaHeapMemory {
    /// Opens a heap and tries it out with one page. `NoDevice` where there is none;
    /// `DMA_BUF_IOCTL_SYNC` is `Unsupported` before Linux 4.6.
    pub fn open() -> Result<DmaHeapMemory> {
        let mut memory = DmaHeapMemory {
            heap: Heap::open()?,
            gpu: None,
            turns: Turns::new()?,
            is_counted: false,
            allocated: Counter::new(),
        };
        let (file, mapping) = memory.make(page_bytes())?;
        // Where this cannot be found out: a sum that is too small would hide memory.
        memory.is_counted = is_of_device(mapping.start).is_ok_and(|is_device| !is_device);
        sync(&file, BOTH)?;
        sync(&file, BOTH | Window::END)?;
        Ok(memory)
    }

    /// The same for a GPU of KGSL: each region becomes an object of the driver, whose address is
    /// another than the host's.
    pub fn with_gpu(self, device: KgslDevice) -> DmaHeapMemory {
        DmaHeapMemory { gpu: Some(device), ..self }
    }

    /// A dma-buf, mapped; the host's window is not open.
    fn make(&self, bytes: usize) -> Result<(OwnedFd, Mapping)> {
        let bytes = whole_pages(WHAT, bytes)?;
        let file = self.heap.allocate(bytes)?;
        let start = map_device(&file, 0, bytes).map_err(|errno| device_error(WHAT, errno))?;
        Ok((file, Mapping { start, bytes }))
    }

    /// The GPU's object of a dma-buf, where there is a GPU.
    fn import(&self, file: &OwnedFd) -> Result<Name> {
        self.gpu.as_ref().map_or(Ok(0), |gpu| gpu.import(file))
    }

    fn forget(&self, object: Name) {
        if let Some(gpu) = self.gpu.as_ref().filter(|_| object != 0) {
            gpu.free(object);
        }
    }

    /// What a live region is; `None` for ordinary memory.
    fn names(region: &Region) -> Option<Names> {
        if region.token == ORDINARY {
            return None;
        }
        let number = i32::try_from(region.token & u64::from(u32::MAX)).ok()?;
        // SAFETY: the descriptor that `allocate` put there, which is open until `release`.
        let file = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        Some(Names { file, object: Name::try_from(region.token >> 32).unwrap_or(0) })
    }

    fn turn(&self, file: &OwnedFd) -> Result<&Turn> {
        self.turns.of(file.as_raw_fd().cast_unsigned())
    }

    fn enter(&self, names: &Names, party: Party) -> Result<()> {
        let window = match party {
            Party::Device => BOTH | Window::END,
            Party::Host => BOTH,
        };
        enter(self.turn(&names.file)?, party, WHAT, || sync(&names.file, window))
    }
}

/// Opens the host's window, or ends it.
fn sync(file: &OwnedFd, window: Window) -> Result<()> {
    // SAFETY: the argument holds no address.
    let answer = unsafe { DMA_BUF_SYNC.make(file, &mut window.bits()) };
    answer.map_err(|errno| device_error(SYNC, errno))
}

// SAFETY: a region is a mapping of a dma-buf of its own, zeroed by the heap, of at least the size
// asked for, and stays mapped until `release`; segments are anonymous memory.
unsafe impl SharedMemory for DmaHeapMemory {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        if usage == Use::Swap {
            // Its pages come one by one with the records, which heaps cannot do.
            let segment = AnonymousMemory.allocate(usage, bytes)?;
            return Ok(Region { token: ORDINARY, ..segment });
        }
        let (file, mapping) = self.make(bytes)?;
        self.turn(&file)?.settle(Party::Host, false);
        let object = self.import(&file)?;
        if let Err(error) = sync(&file, BOTH) {
            self.forget(object);
            return Err(error);
        }
        let Mapping { start, bytes } = *ManuallyDrop::new(mapping);
        self.allocated.add(bytes as u64);
        let number = u64::from(file.into_raw_fd().cast_unsigned());
        Ok(Region { start, bytes, token: u64::from(object) << 32 | number })
    }

    unsafe fn release(&self, usage: Use, region: Region) {
        let Some(names) = Self::names(&region) else {
            // SAFETY: the caller's promise, passed on.
            unsafe { AnonymousMemory.release(usage, region) };
            return;
        };
        if self.turn(&names.file).is_ok_and(|turn| turn.party() == Party::Host) {
            // The pages go in any case.
            let _lost = sync(&names.file, BOTH | Window::END);
        }
        self.forget(names.object);
        drop(Mapping { start: region.start, bytes: region.bytes });
        drop(ManuallyDrop::into_inner(names.file));
        self.allocated.sub(region.bytes as u64);
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        if let Some(names) = Self::names(region) {
            self.enter(&names, Party::Host)?;
        }
        Ok(region.start)
    }

    /// A buffer without a shared address: its name is the GPU's address of it where the port has a
    /// GPU, else the file descriptor.
    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        let Some(names) = Self::names(region) else {
            return Err(Error::new(Code::InvalidArgument, "memory that is not the device's"));
        };
        let buffer = match &self.gpu {
            Some(gpu) => gpu.address(names.object)?,
            None => u64::from(names.file.as_raw_fd().cast_unsigned()),
        };
        self.enter(&names, Party::Device)?;
        Ok(DeviceRegion { buffer, ..DeviceRegion::default() })
    }

    unsafe fn end(&self, region: &Region) {
        let Some(names) = Self::names(region) else { return };
        if let Ok(turn) = self.turn(&names.file) {
            turn.leave();
        }
    }
}

impl Meter for DmaHeapMemory {
    /// The system's figures, which leave mapped dma-bufs out, and this port's regions.
    fn resident_bytes(&self) -> Result<u64> {
        Ok(ProcessMeter.fields()?.charged_with(self.allocated.get(), self.is_counted))
    }
}
