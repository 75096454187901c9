//! Where dma-bufs come from. One heap is chosen at open, the newest interface that there is.

use super::raw::*;
use crate::error::{Code, Error, Result};
use crate::port::linux::errno::device_error;
use crate::port::linux::open::open_device;
use std::os::fd::{FromRawFd, OwnedFd};

const HEAP: &str = "/dev/dma_heap/system";
const ION: &str = "/dev/ion";

/// An open heap of ordinary, cached pages.
pub(super) enum Heap {
    /// Since Linux 5.6.
    System(OwnedFd),
    /// From 4.12 to 5.10.
    Ion(OwnedFd),
    /// Before.
    IonHandles(OwnedFd),
}

impl Heap {
    /// `NoDevice` where neither node can be opened, with the dma-heap's errno.
    pub(super) fn open() -> Result<Heap> {
        let missing = match open_device(c"/dev/dma_heap/system", libc::O_RDONLY, HEAP) {
            Ok(fd) => return Ok(Heap::System(fd)),
            Err(error) => error,
        };
        let fd =
            open_device(c"/dev/ion", libc::O_RDONLY, ION).map_err(|error| match error.code {
                Code::NoDevice => missing,
                _ => error,
            })?;
        // The newer interface has no handles to free.
        // SAFETY: the argument holds no address.
        match unsafe { ION_FREE.make(&fd, &mut IonHandle::default()) } {
            Err(libc::ENOTTY) => Ok(Heap::Ion(fd)),
            _ => Ok(Heap::IonHandles(fd)),
        }
    }

    /// A zeroed dma-buf of that many bytes, whole pages, close-on-exec.
    pub(super) fn allocate(&self, bytes: usize) -> Result<OwnedFd> {
        const WHAT: &str = "dma-buf";
        let number = match self {
            Heap::System(heap) => dma_heap(heap, bytes),
            Heap::Ion(heap) => ion(heap, bytes),
            Heap::IonHandles(heap) => ion_by_handle(heap, bytes),
        };
        let number = number.map_err(|errno| device_error(WHAT, errno))?;
        if number < 0 {
            return Err(Error::new(Code::DeviceFailed, WHAT).with(number));
        }
        // SAFETY: the driver just made this descriptor for the caller, and nobody else knows it.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        match number {
            // Of a process without standard files. As the name of a buffer, 0 is none.
            0 => file
                .try_clone()
                .map_err(|error| device_error(WHAT, error.raw_os_error().unwrap_or(libc::EMFILE))),
            _ => Ok(file),
        }
    }
}

fn dma_heap(heap: &OwnedFd, bytes: usize) -> Result<i32, i32> {
    let fd_flags = (libc::O_RDWR | libc::O_CLOEXEC).cast_unsigned();
    let mut argument = DmaHeapAllocation { len: bytes as u64, fd_flags, ..Default::default() };
    // SAFETY: the argument holds no address.
    unsafe { DMA_HEAP_ALLOC.make(heap, &mut argument)? };
    Ok(argument.fd.cast_signed())
}

fn ion(heap: &OwnedFd, bytes: usize) -> Result<i32, i32> {
    let (heap_id_mask, flags) = (ION_SYSTEM_HEAP, ION_CACHED);
    let mut argument =
        IonAllocation { len: bytes as u64, heap_id_mask, flags, ..Default::default() };
    // SAFETY: the argument holds no address.
    unsafe { ION_ALLOC.make(heap, &mut argument)? };
    Ok(argument.fd.cast_signed())
}

/// The file keeps the memory; the handle is freed as soon as it is there, or cannot be.
fn ion_by_handle(heap: &OwnedFd, bytes: usize) -> Result<i32, i32> {
    let (heap_id_mask, flags) = (ION_SYSTEM_HEAP, ION_CACHED);
    let mut argument =
        IonHandleAllocation { len: bytes, heap_id_mask, flags, ..Default::default() };
    // SAFETY: the argument holds no address.
    unsafe { ION_HANDLE_ALLOC.make(heap, &mut argument)? };
    let handle = i32::try_from(argument.handle & 0xFFFF_FFFF).map_err(|_| libc::EOVERFLOW)?;
    let mut shared = IonFd { handle, fd: -1 };
    // SAFETY: as above.
    let answer = unsafe { ION_SHARE.make(heap, &mut shared) };
    // SAFETY: as above. A handle that cannot be freed goes with the heap's file.
    let _kept = unsafe { ION_FREE.make(heap, &mut IonHandle { handle }) };
    answer.map(|()| shared.fd)
}
