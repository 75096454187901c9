//! Wrong pointers, handles and numbers: each gives its code, and nothing else happens.

use super::super::leases::*;
use super::super::raw::Table;
use super::super::types::*;
use super::super::*;
use super::world::*;
use crate::error::{Code, Error};
use crate::units::CodecId;
use core::ptr;
use std::ffi::CStr;
use std::vec;
use std::vec::Vec;

const INVALID: c_int = MzErr::InvalidArgument as c_int;
const BAD_STATE: c_int = MzErr::BadState as c_int;
const LIMIT: c_int = MzErr::LimitExceeded as c_int;
const CANCELLED: c_int = MzErr::Cancelled as c_int;

/// Every function that takes a handle, with good arguments otherwise.
fn all_calls(handle: *mut MzHandle) -> Vec<c_int> {
    let (mut span, mut count, mut token) = (no_span(), 1, 0);
    let (mut error, mut pointer) = (answer::details(None), ptr::null_mut());
    let (mut energies, mut written) = ([0.0f32; 32], 0);
    // SAFETY: zeroes are tables.
    let (mut report, mut stats): (MzReport, MzStats) = unsafe { core::mem::zeroed() };
    report.struct_bytes = MzReport::own_bytes();
    stats.struct_bytes = MzStats::own_bytes();
    // SAFETY: the handle is one of those that the functions must refuse, all else lives.
    unsafe {
        vec![
            mz_restore_begin(handle, 1),
            mz_restore_poll(handle),
            mz_restore_poll_roles(handle, 7),
            mz_wait_weights(handle, 0, &mut span),
            mz_release_weights(handle, 0),
            mz_wait_kv(handle, 0, &mut span, &mut count),
            mz_wait_kv_table(handle, 0, &mut pointer, &mut count),
            mz_release_kv(handle, 0, 0),
            mz_repin(handle),
            mz_kv_tail(handle, 0, 0, &mut span),
            mz_release_tail(handle, 0, 0),
            mz_release_all(handle),
            mz_restore_end(handle, 0),
            mz_restore(handle),
            mz_restore_cancel(handle),
            mz_evict(handle, 1, 0, &mut report),
            mz_truncate(handle, 0),
            mz_lost(handle, &mut token),
            mz_stats_get(handle, &mut stats),
            mz_add_query_energy(handle, 0, 0, 1, energies.as_ptr(), energies.len()),
            mz_steps(handle, energies.as_mut_ptr().cast(), 4, &mut written),
            mz_last_error(handle, &mut error),
            mz_close(handle),
        ]
    }
}

#[test]
fn a_pointer_that_is_no_handle_is_refused_by_every_function() {
    let world = World::filled();
    for handle in [ptr::null_mut(), world.handle.wrapping_byte_add(1)] {
        assert!(all_calls(handle).iter().all(|result| *result == INVALID));
    }
    let mut zeroes = vec![0u64; 64];
    assert!(all_calls(zeroes.as_mut_ptr().cast()).iter().all(|result| *result == BAD_STATE));
    // A handle's bytes at another address are no handle.
    // SAFETY: a handle is longer than the 64 bytes that are copied.
    unsafe { ptr::copy_nonoverlapping(world.handle.cast::<u64>(), zeroes.as_mut_ptr(), 8) };
    assert!(all_calls(zeroes.as_mut_ptr().cast()).iter().all(|result| *result == BAD_STATE));
    world.check_all();
}

#[test]
fn a_closed_handle_is_refused_by_every_function() {
    let world = World::filled();
    assert_eq!(world.close(), MZ_OK);
    assert_eq!(world.live_regions(), 0);
    // The words that a call looks at first; the memory is the caller's again.
    // SAFETY: the handle began with these two words.
    let words = || unsafe { world.handle.cast::<[u32; 2]>().read_volatile() };
    let before = words();
    assert_eq!(before[0], 0, "not a handle's mark any more");
    assert!(all_calls(world.handle).iter().all(|result| *result == BAD_STATE));
    assert_eq!(words(), before);
}

#[test]
fn null_and_misaligned_places_are_refused() {
    let world = World::filled();
    let handle = world.handle;
    let mut room = [no_span(); 2];
    let odd = (&raw mut room).cast::<u8>().wrapping_add(1);
    let mut count = 2;
    for place in [ptr::null_mut(), odd] {
        // SAFETY: a misaligned place is refused before it is touched.
        let results = unsafe {
            [
                mz_wait_weights(handle, 0, place.cast()),
                mz_wait_kv(handle, 0, place.cast(), &mut count),
                mz_wait_kv(handle, 0, room.as_mut_ptr(), place.cast()),
                mz_kv_tail(handle, 0, TOKENS, place.cast()),
                mz_lost(handle, place.cast()),
                mz_stats_get(handle, place.cast()),
                mz_add_query_energy(handle, 0, 0, 1, place.cast(), 32),
                mz_steps(handle, room.as_mut_ptr().cast(), 64, place.cast()),
                mz_last_error(handle, place.cast()),
            ]
        };
        assert_eq!(results, [INVALID; 9]);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { mz_evict(handle, 1, 0, odd.cast()) }, INVALID);
    // SAFETY: a null report is allowed.
    assert_eq!(unsafe { mz_evict(handle, 1, 0, ptr::null_mut()) }, MZ_OK);
    // Nothing was leased by the calls that failed.
    assert_eq!(world.evict().leased, 0);
    world.check_all();
}

#[test]
fn opening_refuses_null_and_misaligned_pointers() {
    let mut world = World::new();
    let ports = world.ports();
    let mut bytes = 0;
    let odd = ptr::without_provenance_mut::<u8>(4097);
    for bad in [ptr::null_mut(), odd] {
        let (config, memory) = (&raw const world.config, &raw mut bytes);
        let mut error = answer::details(None);
        // SAFETY: a misaligned pointer is refused before it is touched.
        let results = unsafe {
            [
                mz_required_bytes(bad.cast(), memory, &mut error),
                mz_required_bytes(config, bad.cast(), &mut error),
                mz_open(bad.cast(), &ports, memory.cast(), 8, &mut world.handle, &mut error),
                mz_open(config, bad.cast(), memory.cast(), 8, &mut world.handle, &mut error),
                mz_open(config, &ports, memory.cast(), 8, bad.cast(), &mut error),
            ]
        };
        assert_eq!(results, [INVALID; 5]);
        assert_eq!(error.code, INVALID);
        assert_eq!(&what(&error)[..6], "handle");
    }
    // SAFETY: as above; a null error is allowed.
    assert_eq!(unsafe { mz_required_bytes(&world.config, &mut bytes, odd.cast()) }, INVALID);
    // SAFETY: as above.
    assert_eq!(unsafe { mz_required_bytes(&world.config, &mut bytes, ptr::null_mut()) }, MZ_OK);
    assert!(world.handle.is_null());
}

#[test]
fn too_little_memory_is_refused_and_just_enough_will_do_at_any_address() {
    let world = World::new();
    let ports = world.ports();
    let mut bytes = 0;
    // SAFETY: all pointers are to live values.
    let sized = unsafe { mz_required_bytes(&world.config, &mut bytes, ptr::null_mut()) };
    assert_eq!(sized, MZ_OK);
    let mut memory = vec![0u8; bytes + 4096];
    let open = |first: *mut u8, bytes: usize| {
        let mut error = answer::details(None);
        let mut handle = ptr::null_mut();
        // SAFETY: all pointers are to live values, but memory that is refused by its address.
        let result =
            unsafe { mz_open(&world.config, &ports, first.cast(), bytes, &mut handle, &mut error) };
        if result == MZ_OK {
            // SAFETY: the handle was opened just now.
            assert_eq!(unsafe { mz_close(handle) }, MZ_OK);
        }
        (result, error.value)
    };
    let first = memory.as_mut_ptr();
    for skew in [0, 1, 8, 2049, 4095] {
        assert_eq!(open(first.wrapping_add(skew), bytes), (MZ_OK, 0));
    }
    let too_small = err(MzErr::MemoryTooSmall);
    assert_eq!(open(first, bytes - 1), (too_small, bytes as i64));
    assert_eq!(open(first, 0), (too_small, bytes as i64));
    assert_eq!(open(ptr::null_mut(), bytes).0, INVALID);
    assert_eq!(open(ptr::without_provenance_mut(usize::MAX - 4), bytes).0, INVALID);
    assert_eq!(open(first, usize::MAX / 2 + 1).0, INVALID);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let world = World::filled();
    for layer in [UNITS, 65536, u32::MAX] {
        assert_eq!(world.weights(layer).unwrap_err(), INVALID);
        assert_eq!(world.call_with(mz_release_weights, layer), INVALID);
    }
    // The output head has weights and no KV.
    for layer in [LAYERS, 65536, u32::MAX] {
        assert_eq!(world.kv(layer, 8).unwrap_err(), (INVALID, 8));
        assert_eq!(world.release_kv(layer, 0), INVALID);
        assert_eq!(world.tail(layer, TOKENS).unwrap_err(), INVALID);
        assert_eq!(world.release_tail(layer, TOKENS), INVALID);
    }
    // Committed, beyond the pass, beyond the longest context, beyond 16-bit chunks.
    for token in [0, TOKENS - 1, CHUNKS * 256, CONTEXT_MAX, 256 << 16, u32::MAX] {
        assert_eq!(world.tail(0, token).unwrap_err(), INVALID, "{token}");
    }
    assert_eq!(world.release_tail(0, u32::MAX), INVALID);
    assert_eq!(world.release_kv(0, u32::MAX), INVALID);
    assert_eq!(world.release_kv(0, 65536), INVALID);
    assert_eq!(world.call_with(mz_restore_begin, CONTEXT_MAX + 1), LIMIT);
    assert_eq!(world.call_with(mz_restore_begin, u32::MAX), LIMIT);
    assert_eq!(world.call_with(mz_restore_begin, TOKENS - 1), INVALID);
    assert_eq!(world.call_with(mz_restore_end, TOKENS - 1), INVALID);
    assert_eq!(world.call_with(mz_restore_end, u32::MAX), INVALID);
    assert_eq!(world.call_with(mz_truncate, TOKENS + 1), INVALID);
    assert_eq!(world.last().code, INVALID);
    world.check_all();
}

#[test]
fn waiting_for_what_nobody_restores_is_an_error() {
    let world = World::filled();
    world.evict();
    assert_eq!(world.weights(0).unwrap_err(), CANCELLED);
    assert_eq!(world.kv(0, 8).unwrap_err(), (CANCELLED, CHUNKS));
    assert_eq!(world.tail(0, TOKENS).unwrap_err(), CANCELLED);
    assert_eq!(world.call(mz_restore_poll), 0);
    assert_eq!(world.call(mz_restore_cancel), BAD_STATE);
    world.check_all();
}

#[test]
fn every_result_has_a_text_and_every_failure_its_details() {
    let text = |result| {
        // SAFETY: the text is constant and ends with a 0 byte.
        unsafe { CStr::from_ptr(mz_strerror(result)) }.to_str().unwrap()
    };
    for code in Code::ALL {
        assert_eq!(text(-(code as i32)), std::format!("{}: {}", code.message(), code.advice()));
        assert_eq!(Code::from_number(code as i32), Some(code));
    }
    assert_eq!((text(0), text(1)), ("ok", "ok"));
    for unknown in [-1, -9, -52, i32::MIN] {
        assert_eq!(text(unknown), "unknown error");
    }
    let long = "a name of a field that is too long for the table, by far, and is cut in the end";
    let details = answer::details(Some(Error::new(Code::Io, long).with(-5)));
    assert_eq!(details.what[63], 0);
    assert_eq!(what(&details), std::format!("{} -5", &long[..63]));
    // SAFETY: as above.
    let version = unsafe { CStr::from_ptr(mz_version()) };
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

#[test]
fn every_codec_has_a_number() {
    let numbers = [
        (CodecId::Raw, MzCodec::Raw),
        (CodecId::Q8, MzCodec::Q8),
        (CodecId::Kv4, MzCodec::Kv4),
        (CodecId::Kvh, MzCodec::Kvh),
        (CodecId::CacheGen, MzCodec::CacheGen),
    ];
    assert_eq!(numbers.len(), CodecId::ALL.len());
    for (codec, number) in numbers {
        assert_eq!(codec as u32 + 1, number as u32);
        let mut world = World::new();
        world.config.codec = number as u32;
        let ports = world.ports();
        assert_eq!(world.try_open(&ports).0, MZ_OK);
    }
}
