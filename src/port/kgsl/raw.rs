//! What crosses into the driver: arguments of its calls, their numbers, its flags (`msm_kgsl.h`).
//!
//! The driver takes arguments that are shorter or longer than its own. Sizes and offsets of 64-bit
//! systems are asserted below, and so is each call's number, which holds the size.

use crate::port::linux::control::{Call, Direction};

const LETTER: u8 = 0x09;

bitflags::bitflags! {
    /// What an object is to be, and what it became: the driver answers with the flags it granted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct MemFlags: u64 {
        /// Two bits that say how CPUs cache it; both set for write-back.
        const WRITEBACK = 3 << 26;
        /// The GPU's address is chosen by the mapping, and is the CPU's.
        const USE_CPU_MAP = 1 << 28;
        /// The GPU sees what is in the CPU's caches.
        const IOCOHERENT = 1 << 31;
    }
}

impl MemFlags {
    /// Write-combined memory has neither bit, uncached memory the first one; what is written
    /// through is cached too.
    const CACHED: u64 = 2 << 26;
    const ALIGN_SHIFT: u32 = 16;

    /// The alignment of the address, as a power of two.
    pub(super) const fn aligned(self, power: u32) -> MemFlags {
        MemFlags::from_bits_retain(self.bits() | (power as u64) << Self::ALIGN_SHIFT)
    }

    /// Whether the CPU's caches have to be told of the GPU.
    pub(super) const fn needs_sync(self) -> bool {
        self.bits() & Self::CACHED != 0 && !self.contains(MemFlags::IOCOHERENT)
    }
}

/// What a cache sync does: the CPU's writes go to memory.
pub(super) const TO_GPU: u32 = 1;
/// The CPU forgets what it has cached.
pub(super) const FROM_GPU: u32 = 2;
/// [`GpumemSyncCache`] has an offset and a length.
pub(super) const RANGE: u32 = 1 << 31;

/// [`GpuobjImport`] of a dma-buf.
pub(super) const IMPORT_DMABUF: u32 = 3;

/// Which property [`GetProperty`] asks for: a word in a place of two.
pub(super) const DEVICE_INFO: usize = 1;
/// See [`DEVICE_INFO`].
pub(super) const VERSION: usize = 8;
/// See [`DEVICE_INFO`].
pub(super) const GPU_MODEL: usize = 0x29;

/// The GPU, as the driver describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceInfo {
    /// Counts from 1.
    pub device_id: u32,
    /// The chip: core, major, minor and patch, a byte each.
    pub chip_id: u32,
    /// Whether the GPU has addresses of its own.
    pub mmu_enabled: u32,
    /// Where its on-chip memory lies.
    pub gmem_address: usize,
    /// Such as 660; of newer generations it is not the name on the package.
    pub gpu_id: u32,
    /// Bytes of on-chip memory.
    pub gmem_bytes: usize,
}

/// Versions of the driver and of its device. For reports alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Version {
    /// Of the driver.
    pub driver_major: u32,
    /// Of the driver.
    pub driver_minor: u32,
    /// Of the device.
    pub device_major: u32,
    /// Of the device.
    pub device_minor: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GetProperty {
    /// The driver's has 32 bits, and padding behind them: on these little-endian machines, the
    /// upper half of a longer one.
    pub(super) property: usize,
    pub(super) value: usize,
    pub(super) bytes: usize,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpuobjAlloc {
    pub(super) size: u64,
    pub(super) flags: u64,
    pub(super) va_len: u64,
    pub(super) mmapsize: u64,
    pub(super) id: u32,
    pub(super) metadata_len: u32,
    pub(super) metadata: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpuobjFree {
    pub(super) flags: u64,
    pub(super) private: u64,
    pub(super) id: u32,
    pub(super) kind: u32,
    pub(super) bytes: u32,
    pub(super) pad: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpuobjInfo {
    pub(super) gpuaddr: u64,
    pub(super) flags: u64,
    pub(super) size: u64,
    pub(super) va_len: u64,
    pub(super) va_addr: u64,
    pub(super) id: u32,
    pub(super) pad: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpuobjImport {
    /// Address of an [`ImportDmabuf`].
    pub(super) private: u64,
    pub(super) private_bytes: u64,
    pub(super) flags: u64,
    pub(super) kind: u32,
    pub(super) id: u32,
}

#[repr(C)]
pub(super) struct ImportDmabuf {
    pub(super) fd: i32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpuobjSync {
    /// Address of [`GpuobjSyncItem`]s.
    pub(super) items: u64,
    pub(super) item_bytes: u32,
    pub(super) count: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpuobjSyncItem {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) id: u32,
    pub(super) operation: u32,
}

/// The size of one, as the driver is told.
pub(super) const SYNC_ITEM_BYTES: u32 = 24;
const _: () = assert!(size_of::<GpuobjSyncItem>() == SYNC_ITEM_BYTES as usize);

#[derive(Default)]
#[repr(C)]
pub(super) struct GpumemAllocId {
    pub(super) id: u32,
    pub(super) flags: u32,
    pub(super) size: usize,
    pub(super) mmapsize: usize,
    pub(super) gpuaddr: usize,
    pub(super) pad: [usize; 2],
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpumemFreeId {
    pub(super) id: u32,
    pub(super) pad: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpumemGetInfo {
    pub(super) gpuaddr: usize,
    pub(super) id: u32,
    pub(super) flags: u32,
    pub(super) size: usize,
    pub(super) mmapsize: usize,
    pub(super) useraddr: usize,
    pub(super) pad: [usize; 4],
}

#[derive(Default)]
#[repr(C)]
pub(super) struct GpumemSyncCache {
    pub(super) gpuaddr: usize,
    pub(super) id: u32,
    pub(super) operation: u32,
    pub(super) offset: usize,
    pub(super) length: usize,
}

pub(super) const GETPROPERTY: Call<GetProperty> = Call::new(Direction::Both, LETTER, 0x02);
pub(super) const GPUMEM_ALLOC_ID: Call<GpumemAllocId> = Call::new(Direction::Both, LETTER, 0x34);
pub(super) const GPUMEM_FREE_ID: Call<GpumemFreeId> = Call::new(Direction::Both, LETTER, 0x35);
pub(super) const GPUMEM_GET_INFO: Call<GpumemGetInfo> = Call::new(Direction::Both, LETTER, 0x36);
pub(super) const GPUMEM_SYNC_CACHE: Call<GpumemSyncCache> =
    Call::new(Direction::Write, LETTER, 0x37);
pub(super) const GPUOBJ_ALLOC: Call<GpuobjAlloc> = Call::new(Direction::Both, LETTER, 0x45);
pub(super) const GPUOBJ_FREE: Call<GpuobjFree> = Call::new(Direction::Write, LETTER, 0x46);
pub(super) const GPUOBJ_INFO: Call<GpuobjInfo> = Call::new(Direction::Both, LETTER, 0x47);
pub(super) const GPUOBJ_IMPORT: Call<GpuobjImport> = Call::new(Direction::Both, LETTER, 0x48);
pub(super) const GPUOBJ_SYNC: Call<GpuobjSync> = Call::new(Direction::Write, LETTER, 0x49);

#[cfg(target_pointer_width = "64")]
mod lp64 {
    use super::*;
    use core::mem::offset_of;
    use static_assertions::const_assert_eq;

    /// Size, offsets, and the number of the call that takes it.
    macro_rules! layout {
        ($kind:ty, $bytes:literal: $($field:ident $offset:literal),*) => {
            const_assert_eq!(size_of::<$kind>(), $bytes);
            $(const_assert_eq!(offset_of!($kind, $field), $offset);)*
        };
    }

    layout!(DeviceInfo, 40: device_id 0, chip_id 4, mmu_enabled 8, gmem_address 16, gpu_id 24,
        gmem_bytes 32);
    layout!(Version, 16: driver_major 0, driver_minor 4, device_major 8, device_minor 12);
    layout!(GetProperty, 24: property 0, value 8, bytes 16);
    layout!(GpuobjAlloc, 48: size 0, flags 8, va_len 16, mmapsize 24, id 32, metadata_len 36,
        metadata 40);
    layout!(GpuobjFree, 32: flags 0, private 8, id 16, kind 20, bytes 24, pad 28);
    layout!(GpuobjInfo, 48: gpuaddr 0, flags 8, size 16, va_len 24, va_addr 32, id 40, pad 44);
    layout!(GpuobjImport, 32: private 0, private_bytes 8, flags 16, kind 24, id 28);
    layout!(ImportDmabuf, 4: fd 0);
    layout!(GpuobjSync, 16: items 0, item_bytes 8, count 12);
    layout!(GpuobjSyncItem, 24: offset 0, length 8, id 16, operation 20);
    layout!(GpumemAllocId, 48: id 0, flags 4, size 8, mmapsize 16, gpuaddr 24, pad 32);
    layout!(GpumemFreeId, 8: id 0, pad 4);
    layout!(GpumemGetInfo, 72: gpuaddr 0, id 8, flags 12, size 16, mmapsize 24, useraddr 32,
        pad 40);
    layout!(GpumemSyncCache, 32: gpuaddr 0, id 8, operation 12, offset 16, length 24);

    const_assert_eq!(GETPROPERTY.number(), 0xC018_0902);
    const_assert_eq!(GPUMEM_ALLOC_ID.number(), 0xC030_0934);
    const_assert_eq!(GPUMEM_FREE_ID.number(), 0xC008_0935);
    const_assert_eq!(GPUMEM_GET_INFO.number(), 0xC048_0936);
    const_assert_eq!(GPUMEM_SYNC_CACHE.number(), 0x4020_0937);
    const_assert_eq!(GPUOBJ_ALLOC.number(), 0xC030_0945);
    const_assert_eq!(GPUOBJ_FREE.number(), 0x4020_0946);
    const_assert_eq!(GPUOBJ_INFO.number(), 0xC030_0947);
    const_assert_eq!(GPUOBJ_IMPORT.number(), 0xC020_0948);
    const_assert_eq!(GPUOBJ_SYNC.number(), 0x4010_0949);
}
