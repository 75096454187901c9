//! The driver's node, and its calls on objects.
//!
//! Drivers of the last years have the `GPUOBJ` calls, older ones `GPUMEM` calls for the same
//! things; which there are is found at open, by asking after an object that cannot be. Invariant: a
//! [`Name`] is freed once. Never retries what failed for good; interrupted calls are made again.

use super::raw::*;
use crate::error::{Code, Error, Result};
use crate::port::linux::errno::device_error;
use crate::port::linux::open::open_device;
use crate::port::linux::pages::{map_device, page_bytes};
use core::ffi::CStr;
use core::ptr::{self, NonNull};
use std::os::fd::{AsRawFd, OwnedFd};

/// An object of the driver, as the calls name it; 0 is none.
pub(in crate::port) type Name = u32;

/// What the driver made.
pub(super) struct Object {
    pub(super) id: Name,
    /// Bytes of its mapping: the size in whole pages, and a guard page where the driver wants one.
    pub(super) footprint: usize,
    pub(super) flags: MemFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Gpuobj,
    Gpumem,
}

/// The name of the GPU, such as "Adreno 830v2".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuModel([u8; 32]);

impl GpuModel {
    /// As text; empty where it is none.
    pub fn text(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        core::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

/// The open driver. All of a process's opens share one set of objects and one space of addresses.
#[derive(Debug)]
pub struct KgslDevice {
    fd: OwnedFd,
    calls: Calls,
}

const PATH: &CStr = c"/dev/kgsl-3d0";
const NODE: &str = "/dev/kgsl-3d0";

impl KgslDevice {
    /// Opens the first GPU; `NoDevice` where there is none, or none for this process.
    pub fn open() -> Result<KgslDevice> {
        let fd = open_device(PATH, libc::O_RDWR, NODE)?;
        // SAFETY: the argument holds no address.
        let asked = unsafe { GPUOBJ_INFO.make(&fd, &mut GpuobjInfo::default()) };
        let calls = match asked {
            Err(libc::ENOTTY | libc::ENOSYS) => Calls::Gpumem,
            _ => Calls::Gpuobj,
        };
        Ok(KgslDevice { fd, calls })
    }

    /// The GPU.
    pub fn info(&self) -> Result<DeviceInfo> {
        self.property(DEVICE_INFO, DeviceInfo::default())
    }

    /// The driver's version and the device's.
    pub fn version(&self) -> Result<Version> {
        self.property(VERSION, Version::default())
    }

    /// The GPU's name; `DeviceFailed` of drivers that do not tell.
    pub fn model(&self) -> Result<GpuModel> {
        self.property(GPU_MODEL, [0; 32]).map(GpuModel)
    }

    /// A property, all of whose bytes may be anything.
    fn property<T>(&self, property: usize, mut value: T) -> Result<T> {
        let address = ptr::from_mut(&mut value).expose_provenance();
        let mut argument = GetProperty { property, value: address, bytes: size_of::<T>() };
        // SAFETY: the value is writable for its size; the types asked for are integers and arrays
        // of such.
        let answer = unsafe { GETPROPERTY.make(&self.fd, &mut argument) };
        answer.map_err(|errno| device_error("KGSL property", errno))?;
        Ok(value)
    }

    /// A new object of that many bytes, zeroed, all of its pages there.
    pub(super) fn allocate(&self, bytes: u32, flags: MemFlags) -> Result<Object> {
        const WHAT: &str = "KGSL allocation";
        let lost = |errno| device_error(WHAT, errno);
        let (id, footprint, flags) = match self.calls {
            Calls::Gpuobj => {
                let mut argument =
                    GpuobjAlloc { size: bytes.into(), flags: flags.bits(), ..Default::default() };
                // SAFETY: the argument holds no address.
                unsafe { GPUOBJ_ALLOC.make(&self.fd, &mut argument) }.map_err(lost)?;
                (argument.id, argument.mmapsize, argument.flags)
            }
            Calls::Gpumem => {
                let size = bytes as usize;
                let flags = u32::try_from(flags.bits()).map_err(|_| lost(libc::EINVAL))?;
                let mut argument = GpumemAllocId { size, flags, ..Default::default() };
                // SAFETY: the argument holds no address.
                unsafe { GPUMEM_ALLOC_ID.make(&self.fd, &mut argument) }.map_err(lost)?;
                (argument.id, argument.mmapsize as u64, argument.flags.into())
            }
        };
        let flags = MemFlags::from_bits_retain(flags);
        match usize::try_from(footprint) {
            Ok(footprint) if is_footprint(footprint, bytes) => Ok(Object { id, footprint, flags }),
            _ => {
                self.free(id);
                Err(Error::new(Code::DeviceFailed, "KGSL mapping size").with(footprint))
            }
        }
    }

    /// Maps an object; the address is the GPU's too.
    pub(super) fn map(&self, object: &Object) -> Result<NonNull<u8>> {
        // The offset stands for the object: its number, in pages.
        let offset = u64::from(object.id) * page_bytes() as u64;
        let mapped = map_device(&self.fd, offset, object.footprint);
        mapped.map_err(|errno| device_error("KGSL mapping", errno))
    }

    /// Frees an object. Its pages go back when it is not mapped any more.
    pub(in crate::port) fn free(&self, id: Name) {
        // SAFETY: neither argument holds an address.
        let freed = unsafe {
            match self.calls {
                Calls::Gpuobj => {
                    GPUOBJ_FREE.make(&self.fd, &mut GpuobjFree { id, ..Default::default() })
                }
                Calls::Gpumem => GPUMEM_FREE_ID.make(&self.fd, &mut GpumemFreeId { id, pad: 0 }),
            }
        };
        // A device that is gone has freed all.
        let _gone = freed;
    }

    /// Makes what the CPU wrote to the object the GPU's ([`TO_GPU`]), or the other way round.
    pub(super) fn sync(&self, id: Name, bytes: usize, operation: u32) -> Result<()> {
        let item = GpuobjSyncItem { offset: 0, length: bytes as u64, id, operation };
        let answer = match self.calls {
            Calls::Gpuobj => {
                let mut argument = GpuobjSync {
                    items: (&raw const item).expose_provenance() as u64,
                    item_bytes: SYNC_ITEM_BYTES,
                    count: 1,
                };
                // SAFETY: one item, readable through the call.
                unsafe { GPUOBJ_SYNC.make(&self.fd, &mut argument) }
            }
            Calls::Gpumem => {
                let operation = operation | RANGE;
                let mut argument =
                    GpumemSyncCache { id, operation, length: bytes, ..Default::default() };
                // SAFETY: the argument holds no address.
                unsafe { GPUMEM_SYNC_CACHE.make(&self.fd, &mut argument) }
            }
        };
        answer.map_err(|errno| device_error("KGSL cache sync", errno))
    }

    /// Where the GPU sees an object; 0 before it is mapped, where the mapping decides.
    pub(in crate::port) fn address(&self, id: Name) -> Result<u64> {
        let lost = |errno| device_error("KGSL object", errno);
        match self.calls {
            Calls::Gpuobj => {
                let mut argument = GpuobjInfo { id, ..Default::default() };
                // SAFETY: the argument holds no address.
                unsafe { GPUOBJ_INFO.make(&self.fd, &mut argument) }.map_err(lost)?;
                Ok(argument.gpuaddr)
            }
            Calls::Gpumem => {
                let mut argument = GpumemGetInfo { id, ..Default::default() };
                // SAFETY: the argument holds no address.
                unsafe { GPUMEM_GET_INFO.make(&self.fd, &mut argument) }.map_err(lost)?;
                Ok(argument.gpuaddr as u64)
            }
        }
    }

    /// An object made of a dma-buf's pages, at an address of the GPU's own.
    pub(in crate::port) fn import(&self, dma_buf: &OwnedFd) -> Result<Name> {
        let from = ImportDmabuf { fd: dma_buf.as_raw_fd() };
        let mut argument = GpuobjImport {
            private: (&raw const from).expose_provenance() as u64,
            private_bytes: size_of::<ImportDmabuf>() as u64,
            kind: IMPORT_DMABUF,
            ..Default::default()
        };
        // SAFETY: a descriptor of that size is readable through the call.
        let answer = unsafe { GPUOBJ_IMPORT.make(&self.fd, &mut argument) };
        answer.map_err(|errno| device_error("KGSL import", errno))?;
        Ok(argument.id)
    }
}

/// Whole pages, enough, and not so many that the driver means something else.
fn is_footprint(footprint: usize, bytes: u32) -> bool {
    footprint >= bytes as usize
        && footprint.is_multiple_of(page_bytes())
        && u32::try_from(footprint).is_ok()
}
