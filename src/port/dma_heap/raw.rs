//! What crosses into the heaps and dma-bufs: arguments of their calls and the calls' numbers
//! (`linux/dma-heap.h`, `linux/dma-buf.h`, ION's `ion.h` before and since Linux 4.12).

use crate::port::linux::control::{Call, Direction};
use core::mem::offset_of;
use static_assertions::const_assert_eq;

#[derive(Default)]
#[repr(C)]
pub(super) struct DmaHeapAllocation {
    pub(super) len: u64,
    /// 0 on the way in.
    pub(super) fd: u32,
    pub(super) fd_flags: u32,
    pub(super) heap_flags: u64,
}

/// ION since 4.12: files, no handles.
#[derive(Default)]
#[repr(C)]
pub(super) struct IonAllocation {
    pub(super) len: u64,
    pub(super) heap_id_mask: u32,
    pub(super) flags: u32,
    pub(super) fd: u32,
    pub(super) unused: u32,
}

/// ION before: a handle first, which is then shared as a file.
#[derive(Default)]
#[repr(C)]
pub(super) struct IonHandleAllocation {
    pub(super) len: usize,
    pub(super) align: usize,
    pub(super) heap_id_mask: u32,
    pub(super) flags: u32,
    /// The driver's has 32 bits, and padding behind them: on these little-endian machines, the
    /// upper half of a longer one.
    pub(super) handle: usize,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct IonFd {
    pub(super) handle: i32,
    pub(super) fd: i32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct IonHandle {
    pub(super) handle: i32,
}

/// Qualcomm's number of the heap of ordinary pages.
pub(super) const ION_SYSTEM_HEAP: u32 = 1 << 25;
pub(super) const ION_CACHED: u32 = 1;

bitflags::bitflags! {
    /// The host's window of access to a dma-buf; it opens, unless `END` is set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(transparent)]
    pub(super) struct Sync: u64 {
        const READ = 1;
        const WRITE = 2;
        const END = 4;
    }
}

pub(super) const DMA_HEAP_ALLOC: Call<DmaHeapAllocation> = Call::new(Direction::Both, b'H', 0);
pub(super) const DMA_BUF_SYNC: Call<u64> = Call::new(Direction::Write, b'b', 0);
pub(super) const ION_ALLOC: Call<IonAllocation> = Call::new(Direction::Both, b'I', 0);
pub(super) const ION_HANDLE_ALLOC: Call<IonHandleAllocation> = Call::new(Direction::Both, b'I', 0);
pub(super) const ION_FREE: Call<IonHandle> = Call::new(Direction::Both, b'I', 1);
pub(super) const ION_SHARE: Call<IonFd> = Call::new(Direction::Both, b'I', 4);

const_assert_eq!(DMA_HEAP_ALLOC.number(), 0xC018_4800);
const_assert_eq!(DMA_BUF_SYNC.number(), 0x4008_6200);
const_assert_eq!(ION_ALLOC.number(), 0xC018_4900);
const_assert_eq!(ION_FREE.number(), 0xC004_4901);
const_assert_eq!(ION_SHARE.number(), 0xC008_4904);
#[cfg(target_pointer_width = "64")]
const_assert_eq!(ION_HANDLE_ALLOC.number(), 0xC020_4900);

const_assert_eq!(offset_of!(DmaHeapAllocation, fd), 8);
const_assert_eq!(offset_of!(DmaHeapAllocation, fd_flags), 12);
const_assert_eq!(offset_of!(DmaHeapAllocation, heap_flags), 16);
const_assert_eq!(offset_of!(IonAllocation, heap_id_mask), 8);
const_assert_eq!(offset_of!(IonAllocation, flags), 12);
const_assert_eq!(offset_of!(IonAllocation, fd), 16);
const_assert_eq!(offset_of!(IonFd, fd), 4);
const_assert_eq!(offset_of!(IonHandleAllocation, heap_id_mask), 2 * size_of::<usize>());
const_assert_eq!(offset_of!(IonHandleAllocation, flags), 2 * size_of::<usize>() + 4);
const_assert_eq!(offset_of!(IonHandleAllocation, handle), 2 * size_of::<usize>() + 8);
