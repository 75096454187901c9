//! The functions that lease units: what compute waits for, uses, and lets go.
//!
//! As in the module above, nothing here but pointers made into values and results into codes.

use super::handle::Handle;
use super::holds::{Device, Host, OnDevice, Side};
use super::raw::{self, Place, Table, Tables};
use super::types::{MZ_OK, MzDeviceSpan, MzHandle, MzSpan};
use super::{answer, inside};
use crate::port::Region;
use core::ffi::{c_int, c_void};

/// A side, and how C sees what it leased.
trait Spans: Side {
    type Span: Table;

    fn span(index: u32, place: &Self::Place) -> Self::Span;
}

impl Spans for Host {
    type Span = MzSpan;

    fn span(index: u32, place: &Region) -> MzSpan {
        answer::span(index, place)
    }
}

impl Spans for Device {
    type Span = MzDeviceSpan;

    fn span(index: u32, place: &OnDevice) -> MzDeviceSpan {
        answer::device_span(index, place)
    }
}

/// # Safety
///
/// As for the functions of C below, and so are the next two.
unsafe fn weights<S: Spans>(handle: *mut MzHandle, layer: u32, span: *mut S::Span) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let place = unsafe { Tables::one(span) }?;
        place.write(0, &S::span(layer, &handle.lease_weights::<S>(layer)?));
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// # Safety
///
/// As above.
unsafe fn kv<S: Spans>(
    handle: *mut MzHandle,
    layer: u32,
    spans: *mut S::Span,
    count: *mut u32,
) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let count = unsafe { Place::new(count, "count") }?;
        let room = usize::try_from(count.get()).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let places = unsafe { Tables::array(spans, room) }?;
        let tell = |chunks: u16| count.set(u32::from(chunks));
        let put = |chunk: u16, place: S::Place| {
            places.write(usize::from(chunk), &S::span(u32::from(chunk), &place));
        };
        handle.lease_kv::<S>(layer, places.count(), tell, put).map(|()| MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// # Safety
///
/// As above.
unsafe fn tail<S: Spans>(
    handle: *mut MzHandle,
    layer: u32,
    token: u32,
    span: *mut S::Span,
) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let place = unsafe { Tables::one(span) }?;
        let (chunk, leased) = handle.lease_tail::<S>(layer, token)?;
        place.write(0, &S::span(u32::from(chunk), &leased));
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Waits until a weight unit is in memory and leases it: it stays until mz_release_weights. While
/// it waits, the caller executes actions. MZ_ERR_CANCELLED: it was evicted, and no restore is
/// bringing it back.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_wait_weights(
    handle: *mut MzHandle,
    layer: u32,
    span: *mut MzSpan,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { weights::<Host>(handle, layer, span) }
}

/// Ends one lease of a weight unit, by mz_wait_weights or mz_wait_weights_device.
/// MZ_ERR_BAD_STATE when there is none.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_release_weights(handle: *mut MzHandle, layer: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.release_weights(layer).map(|()| MZ_OK)) }
}

/// Waits until all chunks of a layer are in memory and leases them, in the order of the context:
/// 256 tokens each, first K and then V, as F16 values `[kv_head][256][head_dim]`.
///
/// *count is the room in spans, and becomes the number of chunks, those that a pass added included;
/// with too little room the result is MZ_ERR_MEMORY_TOO_SMALL and nothing is leased. Set
/// struct_bytes in the first span.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_wait_kv(
    handle: *mut MzHandle,
    layer: u32,
    spans: *mut MzSpan,
    count: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { kv::<Host>(handle, layer, spans, count) }
}

/// As mz_wait_kv, but fills a table of pointers to the chunks' first bytes, as attention kernels
/// walk it. *count is the room in the table, and becomes the number of chunks.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_wait_kv_table(
    handle: *mut MzHandle,
    layer: u32,
    table: *mut *mut c_void,
    count: *mut u32,
) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let count = unsafe { Place::new(count, "count") }?;
        let room = usize::try_from(count.get()).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let places = unsafe { raw::Places::new(table, room, "table") }?;
        let tell = |chunks: u16| count.set(u32::from(chunks));
        let put = |chunk: u16, region: Region| {
            places.set(usize::from(chunk), region.start.as_ptr().cast());
        };
        handle.lease_kv::<Host>(layer, room, tell, put).map(|()| MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Ends one lease of each of a layer's first chunks, as many as mz_wait_kv or mz_wait_kv_device
/// said.
/// MZ_ERR_BAD_STATE when one of them is not leased; then nothing happens.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_release_kv(handle: *mut MzHandle, layer: u32, count: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.release_kv(layer, count).map(|()| MZ_OK)) }
}

/// Waits for a layer's chunks and takes the chunk of a token that is not committed yet, to write
/// the K and V of new tokens to it: until mz_release_tail nobody else touches the chunk, and
/// mz_wait_kv gives the same memory. MZ_ERR_LEASED while mz_wait_kv's leases of it are out.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_kv_tail(
    handle: *mut MzHandle,
    layer: u32,
    token: u32,
    span: *mut MzSpan,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { tail::<Host>(handle, layer, token, span) }
}

/// Ends one lease by mz_kv_tail or mz_kv_tail_device, with the same arguments. MZ_ERR_BAD_STATE
/// when there is none.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_release_tail(handle: *mut MzHandle, layer: u32, token: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.release_tail(layer, token).map(|()| MZ_OK)) }
}

/// Ends all leases, of all threads; for a pass that is given up.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_release_all(handle: *mut MzHandle) -> c_int {
    let body = |handle: &'static Handle| {
        handle.release_all();
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// As mz_wait_weights, for commands of an accelerator: the unit stays until mz_release_weights,
/// which may come once they have *run*, not when they are enqueued. Waits while worker threads use
/// a unit that host and accelerator cannot see at once. MZ_ERR_LEASED while the caller's own leases
/// of the unit for the host are out, and the other way round.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_wait_weights_device(
    handle: *mut MzHandle,
    layer: u32,
    span: *mut MzDeviceSpan,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { weights::<Device>(handle, layer, span) }
}

/// As mz_wait_kv, for commands of an accelerator that read the chunks: they stay until
/// mz_release_kv, which may come once the commands have run. Leases of the two sides exclude each
/// other as in mz_wait_weights_device.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_wait_kv_device(
    handle: *mut MzHandle,
    layer: u32,
    spans: *mut MzDeviceSpan,
    count: *mut u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { kv::<Device>(handle, layer, spans, count) }
}

/// As mz_kv_tail, for commands of an accelerator that write the K and V of new tokens:
/// mz_release_tail may come once they have run, and mz_wait_kv_device gives the same memory.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_kv_tail_device(
    handle: *mut MzHandle,
    layer: u32,
    token: u32,
    span: *mut MzDeviceSpan,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { tail::<Device>(handle, layer, token, span) }
}
