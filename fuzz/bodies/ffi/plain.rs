//! Tables that may be wrong, and the calls that need nothing of the world.

use super::super::reader::Reader;
use super::world::{CHUNKS_MAX, HEAD_DIM, size_of_u32};
use super::{BYTES, NUMBERS};
use mzcache::ffi::types::{MzConfig, MzError, MzHandle, MzReport, MzStats};
use mzcache::ffi::{mz_add_query_energy, mz_evict, mz_last_error, mz_stats_get, mz_steps};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

/// A table, or what is wrong with it.
pub fn table<T>(reader: &mut Reader<'_>, right: T) -> (Vec<T>, *mut T, bool)
where
    T: Copy,
{
    let wrong = reader.byte();
    let mut tables = vec![right; 2];
    let place = tables.as_mut_ptr();
    let bytes = match wrong {
        // SAFETY: every table begins with a u32.
        1 => return (tables, ptr::null_mut(), true),
        2 => return (tables, place.wrapping_byte_add(1), true),
        3 => 0,
        4 => size_of_u32::<T>() - 1,
        5 => 1025,
        6 => u32::MAX,
        // As if it had grown.
        7 => size_of_u32::<T>() + 8,
        _ => size_of_u32::<T>(),
    };
    // SAFETY: every table begins with a u32; there are two of them.
    unsafe { place.cast::<u32>().write(bytes) };
    // Older versions of some tables were shorter, so that one may be accepted.
    (tables, place, matches!(wrong, 3 | 5 | 6))
}

/// One field of a configuration, or its size.
pub fn spoil(config: &mut MzConfig, wrong: u8, reader: &mut Reader<'_>) {
    let number = reader.pick(&NUMBERS);
    match wrong {
        0..=15 => {}
        16 => config.struct_bytes = number,
        17 => config.kv_layers = number,
        18 => config.kv_heads = number,
        19 => config.head_dim = number,
        20 => config.context_tokens_max = number,
        21 => config.weight_units = number,
        22 => config.extents = ptr::null(),
        23 => config.extents = config.extents.wrapping_byte_add(1),
        24 => config.extent_count = number.min(2),
        25 => config.swap_file = number,
        26 => config.order = number,
        27 => config.scheme = number,
        28 => config.segment_bytes = number,
        29 => config.worker_count = number,
        30 => config.paths = number,
        31 => config.reserved = number,
        32 => config.steps_bytes = number.into(),
        33 => config.read_bytes_per_s = number.into(),
        34 => config.pack_bytes_per_s = number.into(),
        _ => config.order_seed = number.into(),
    }
}

/// # Safety
///
/// As for the library's functions: the handle is one or is refused.
pub unsafe fn evict(handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
    let (bytes, deadline) = (reader.pick(&BYTES), reader.pick(&BYTES));
    // SAFETY: zeroes are a table.
    let (tables, report, is_wrong) = table::<MzReport>(reader, unsafe { zeroed() });
    // SAFETY: the caller's promise; the report is live, null, or made to be refused.
    let result = unsafe { mz_evict(handle, bytes, deadline, report) };
    assert!(!is_wrong || report.is_null() || result < 0);
    if result == 0 && !report.is_null() {
        assert!(tables[0].asked_bytes == bytes && tables[0].stop <= 3);
    }
    result
}

/// # Safety
///
/// As for `evict`.
pub unsafe fn stats(handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
    // SAFETY: zeroes are a table.
    let (tables, stats, is_wrong) = table::<MzStats>(reader, unsafe { zeroed() });
    // SAFETY: the caller's promise; the table is live or made to be refused.
    let result = unsafe { mz_stats_get(handle, stats) };
    assert!(!is_wrong || result < 0);
    if result == 0 {
        assert!(tables[0].chunks_per_layer as usize <= CHUNKS_MAX);
        assert!(tables[0].allocated_bytes >= tables[0].weight_bytes + tables[0].kv_bytes);
    }
    result
}

/// # Safety
///
/// As for `evict`.
pub unsafe fn last_error(handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
    // SAFETY: zeroes are a table.
    let (tables, error, is_wrong) = table::<MzError>(reader, unsafe { zeroed() });
    // SAFETY: the caller's promise; the table is live or made to be refused.
    let result = unsafe { mz_last_error(handle, error) };
    assert!(!is_wrong || result < 0);
    if result == 0 {
        assert!(tables[0].what[63] == 0 && tables[0].code <= 0);
    }
    result
}

/// # Safety
///
/// As for `evict`.
pub unsafe fn steps(handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
    let mut memory = vec![0u8; usize::from(reader.byte()) * 8];
    let (place, mut written) = (memory.as_mut_ptr().cast(), 0);
    // SAFETY: the caller's promise; the memory is as long as it says.
    let result = unsafe { mz_steps(handle, place, memory.len(), &mut written) };
    assert!(written <= memory.len());
    result
}

/// # Safety
///
/// As for `evict`.
pub unsafe fn energy(handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
    let count = reader.pick(&[HEAD_DIM, 0, 31, 33]);
    let values = [f32::from(reader.byte()); 33];
    let (layer, halves) = (reader.pick(&NUMBERS), u32::from(reader.byte() % 3));
    let tokens = reader.pick(&NUMBERS);
    // SAFETY: the caller's promise; there are at least as many values as it says.
    unsafe { mz_add_query_energy(handle, layer, halves, tokens, values.as_ptr(), count) }
}
