//! The library's own shared buffers as callbacks: those of a machine, and those of a device.
//!
//! As in `linux`: every context is one of the library's own ports, which are open.

use super::linux::{done, ports};
use super::ports::Context;
use super::raw::Table;
use super::tables::{MzMemory, MzRegion, MzUse};
use super::types::MzDeviceSpan;
use crate::port::{Filling, Region, Use};
use core::ffi::c_void;
use core::ptr::NonNull;

fn usage(purpose: u32) -> Use {
    const KV: u32 = MzUse::Kv as u32;
    const SWAP: u32 = MzUse::Swap as u32;
    match purpose {
        KV => Use::Kv,
        SWAP => Use::Swap,
        _ => Use::Weights,
    }
}

/// A live region, and what it is for.
///
/// # Safety
///
/// The pointer is to a region that `allocate` filled in.
unsafe fn live(region: *const MzRegion) -> (Use, Region) {
    // SAFETY: the caller's promise.
    let region = unsafe { &*region };
    let Some(start) = NonNull::new(region.start.cast::<u8>()) else {
        unreachable!("a region has a start")
    };
    (usage(region.purpose), Region { start, bytes: region.bytes, token: region.token })
}

// SAFETY: see `mz_memory`; the context is of the table that has this callback.
unsafe extern "C" fn allocate(context: Context, region: *mut MzRegion) -> i64 {
    // SAFETY: the caller of the callback gives a region to fill in, and the table's own context.
    let (region, ports) = unsafe { (&mut *region, ports(context)) };
    let taken = ports.memory.allocate(usage(region.purpose), region.bytes);
    done(taken.map(|given| {
        region.start = given.start.as_ptr().cast();
        region.bytes = given.bytes;
        region.token = given.token;
    }))
}

// SAFETY: as for `allocate`.
unsafe extern "C" fn release(context: Context, region: *const MzRegion) {
    // SAFETY: the caller of the callback gives a region that came from it, and its own context.
    let ((usage, region), ports) = unsafe { (live(region), ports(context)) };
    // SAFETY: it came from `allocate`, and who releases it has no other reference to it.
    unsafe { ports.memory.release(usage, region) };
}

// SAFETY: as for `release`, and so are those below: each gets a live region.
unsafe extern "C" fn zero(context: Context, region: *const MzRegion) -> i64 {
    // SAFETY: as in `release`.
    let ((_, region), ports) = unsafe { (live(region), ports(context)) };
    // SAFETY: the region is fresh, as the caller of the callback promises.
    done(unsafe { ports.memory.zero(&region) })
}

// SAFETY: as for `zero`.
unsafe extern "C" fn begin_host(
    context: Context,
    region: *const MzRegion,
    start: *mut *mut c_void,
) -> i64 {
    // SAFETY: as in `release`.
    let ((_, region), ports) = unsafe { (live(region), ports(context)) };
    // SAFETY: the region is live until `end`.
    let begun = unsafe { ports.memory.begin_host(&region) };
    // SAFETY: the caller of the callback gives a place for it.
    done(begun.map(|first| unsafe { start.write(first.as_ptr().cast()) }))
}

// SAFETY: as for `zero`.
unsafe extern "C" fn begin_fill(
    context: Context,
    region: *const MzRegion,
    offset: usize,
    bytes: usize,
    start: *mut *mut c_void,
    token: *mut u64,
) -> i64 {
    // SAFETY: as in `release`.
    let ((_, region), ports) = unsafe { (live(region), ports(context)) };
    // SAFETY: the range lies in the region and is this user's alone until `end_fill`.
    let begun = unsafe { ports.memory.begin_fill(&region, offset..offset + bytes) };
    done(begun.map(|filling| {
        // SAFETY: the caller of the callback gives places for both.
        unsafe {
            start.write(filling.start.as_ptr().cast());
            token.write(filling.token);
        }
    }))
}

// SAFETY: as for `zero`.
unsafe extern "C" fn end_fill(
    context: Context,
    region: *const MzRegion,
    offset: usize,
    bytes: usize,
    start: *mut c_void,
    token: u64,
    is_filled: u32,
) -> i64 {
    // SAFETY: as in `release`.
    let ((_, region), ports) = unsafe { (live(region), ports(context)) };
    let Some(start) = NonNull::new(start.cast::<u8>()) else {
        unreachable!("as begin_fill set it")
    };
    let (range, filling) = (offset..offset + bytes, Filling { start, token });
    // SAFETY: begun by `begin_fill` with the same region and range.
    done(unsafe { ports.memory.end_fill(&region, range, filling, is_filled != 0) })
}

// SAFETY: as for `zero`.
unsafe extern "C" fn begin_device(
    context: Context,
    region: *const MzRegion,
    device: *mut MzDeviceSpan,
) -> i64 {
    // SAFETY: as in `release`.
    let ((_, region), ports) = unsafe { (live(region), ports(context)) };
    // SAFETY: the region is live until `end`.
    let begun = unsafe { ports.memory.begin_device(&region) };
    done(begun.map(|named| {
        // SAFETY: the caller of the callback gives a table to fill in.
        let device = unsafe { &mut *device };
        device.address = named.address;
        device.offset = named.offset;
        device.buffer = super::answer::buffer(&named);
    }))
}

// SAFETY: as for `zero`.
unsafe extern "C" fn end(context: Context, region: *const MzRegion) {
    // SAFETY: as in `release`.
    let ((_, region), ports) = unsafe { (live(region), ports(context)) };
    // SAFETY: begun before, and ended once.
    unsafe { ports.memory.end(&region) };
}

// SAFETY: as for `allocate`.
unsafe extern "C" fn trim(context: Context) {
    // SAFETY: the table's own context.
    unsafe { ports(context) }.memory.trim();
}

/// The table of the shared buffers behind a context. Those that host and accelerator both see at
/// all times need nothing but the first two callbacks.
pub(super) fn table(context: Context, takes_turns: bool) -> MzMemory {
    let own = MzMemory {
        struct_bytes: MzMemory::own_bytes(),
        flags: 0,
        context,
        allocate: Some(allocate),
        release: Some(release),
        zero: None,
        begin_host: None,
        begin_fill: None,
        end_fill: None,
        begin_device: None,
        end: None,
        trim: None,
    };
    match takes_turns {
        false => own,
        true => MzMemory {
            zero: Some(zero),
            begin_host: Some(begin_host),
            begin_fill: Some(begin_fill),
            end_fill: Some(end_fill),
            begin_device: Some(begin_device),
            end: Some(end),
            trim: Some(trim),
            ..own
        },
    }
}
