//! Which types are growing tables, and their layout, fixed at compile time.
//!
//! Never change a number here but by adding a field at a table's end: programs in the field were
//! compiled with these.

use super::checkpoint::{MzCheckpointReport, MzRecovered, MzTag};
use super::raw::Table;
use super::tables::{
    MzClock, MzLinuxConfig, MzLog, MzMemory, MzMeter, MzModelConfig, MzModelInfo, MzOpenClConfig,
    MzOpenClInfo, MzPark, MzPorts, MzRegion, MzStorage, MzThreads,
};
use super::types::{
    MZ_CHUNK_TOKENS, MZ_IO_ALIGN, MzConfig, MzDeviceSpan, MzErr, MzError, MzExtent, MzReport,
    MzRole, MzSpan, MzStats, MzWorker,
};
use crate::error::Code;
use crate::limits::{CHUNK_TOKENS, IO_ALIGN};
use crate::state::Roles;
use crate::units::Extent;
use core::mem::{align_of, offset_of};
use static_assertions::{assert_eq_align, assert_eq_size, const_assert_eq};

macro_rules! tables {
    ($($table:ty, $name:literal, $first_bytes:expr;)*) => {$(
        // SAFETY: the type is repr(C) and begins with a u32; it consists of integers, raw pointers
        // and optional function pointers, which admit every bit pattern; the sizes asserted below
        // are the sums of the fields' sizes, so there is no padding.
        unsafe impl Table for $table {
            const NAME: &'static str = $name;
            const FIRST_BYTES: usize = $first_bytes;
        }
    )*};
}

// The size in the first version that had the table; it stays when the table grows.
tables! {
    MzConfig, "mz_config", offset_of!(MzConfig, steps);
    MzSpan, "mz_span", size_of::<MzSpan>();
    MzReport, "mz_report", offset_of!(MzReport, measured_bytes);
    MzCheckpointReport, "mz_checkpoint_report", size_of::<MzCheckpointReport>();
    MzRecovered, "mz_recovered", size_of::<MzRecovered>();
    MzStats, "mz_stats", offset_of!(MzStats, workers_pinned);
    MzError, "mz_error", size_of::<MzError>();
    MzStorage, "mz_storage", offset_of!(MzStorage, direct);
    MzRegion, "mz_region", size_of::<MzRegion>();
    MzDeviceSpan, "mz_device_span", size_of::<MzDeviceSpan>();
    MzMemory, "mz_memory", offset_of!(MzMemory, zero);
    MzClock, "mz_clock", size_of::<MzClock>();
    MzPark, "mz_park", size_of::<MzPark>();
    MzPorts, "mz_ports", offset_of!(MzPorts, threads);
    MzThreads, "mz_threads", size_of::<MzThreads>();
    MzMeter, "mz_meter", size_of::<MzMeter>();
    MzLog, "mz_log", size_of::<MzLog>();
    MzLinuxConfig, "mz_linux_config", offset_of!(MzLinuxConfig, memory);
    MzOpenClConfig, "mz_opencl_config", size_of::<MzOpenClConfig>();
    MzOpenClInfo, "mz_opencl_info", size_of::<MzOpenClInfo>();
    MzModelConfig, "mz_model_config", size_of::<MzModelConfig>();
    MzModelInfo, "mz_model_info", size_of::<MzModelInfo>();
}

// A C array of windows is read in place as the library's own.
assert_eq_size!(MzExtent, Extent);
assert_eq_align!(MzExtent, Extent);
const_assert_eq!(offset_of!(MzExtent, file_offset), offset_of!(Extent, file_offset));
const_assert_eq!(offset_of!(MzExtent, bytes), offset_of!(Extent, bytes));
const_assert_eq!(offset_of!(MzExtent, buffer_offset), offset_of!(Extent, buffer_offset));

// An array of workers is read in place.
assert_eq_size!(MzWorker, [u32; 3]);

const_assert_eq!(MzRole::Allocate as u8, Roles::ALLOCATE.bits());
const_assert_eq!(MzRole::Read as u8, Roles::READ.bits());
const_assert_eq!(MzRole::Unpack as u8, Roles::UNPACK.bits());

const_assert_eq!(MZ_IO_ALIGN as usize, IO_ALIGN);
const_assert_eq!(MZ_CHUNK_TOKENS, CHUNK_TOKENS as u32);

const _: () = {
    let mut index = 0;
    while index < Code::ALL.len() {
        let code = Code::ALL[index];
        assert!(MzErr::of(code) as i32 == -(code as i32));
        index += 1;
    }
};

/// Offsets of consecutive fields: each follows the one before without a gap, the last one ends the
/// type.
macro_rules! layout {
    ($table:ty, $bytes:literal: $($field:ident $offset:literal),*) => {
        const_assert_eq!(size_of::<$table>(), $bytes);
        const_assert_eq!(align_of::<$table>() % align_of::<u32>(), 0);
        $(const_assert_eq!(offset_of!($table, $field), $offset);)*
    };
}

#[cfg(target_pointer_width = "64")]
mod lp64 {
    use super::*;

    layout!(MzExtent, 24: file_offset 0, bytes 8, buffer_offset 16);
    layout!(MzConfig, 152: struct_bytes 0, kv_layers 4, kv_heads 8, head_dim 12,
        context_tokens_max 16, weight_units 20, extents 24, extents_per_unit 32, extent_count 40,
        swap_file 44, codec 48, order 52, scheme 56, segment_bytes 60, order_seed 64, hwcap 72,
        read_bytes_per_s 80, write_bytes_per_s 88, pack_bytes_per_s 96, unpack_bytes_per_s 104,
        steps 112, steps_bytes 120, workers 128, worker_count 136, worker_stack_bytes 140,
        paths 144, reserved 148);
    layout!(MzSpan, 32: struct_bytes 0, index 4, data 8, bytes 16, token 24);
    layout!(MzReport, 48: struct_bytes 0, stop 4, asked_bytes 8, freed_bytes 16, elapsed_ns 24,
        leased 32, error 36, measured_bytes 40);
    layout!(MzTag, 16: low 0, high 8);
    layout!(MzCheckpointReport, 32: struct_bytes 0, stop 4, written_bytes 8, elapsed_ns 16,
        durable_tokens 24, reserved 28);
    layout!(MzRecovered, 16: struct_bytes 0, tokens 4, lost 8, reserved 12);
    layout!(MzStats, 96: struct_bytes 0, tokens 4, weight_bytes 8, kv_bytes 16, ram_bytes 24,
        allocated_bytes 32, swap_written_bytes 40, swap_read_bytes 48, units_missing 56,
        units_busy 60, chunks_lost 64, chunks_on_flash 68, chunks_per_layer 72, segments 76,
        workers_pinned 80, workers_unpinned 84, model_is_direct 88, swap_is_direct 92);
    layout!(MzError, 80: struct_bytes 0, code 4, value 8, what 16);
    layout!(MzStorage, 64: struct_bytes 0, flags 4, context 8, read 16, write 24, sync 32,
        discard 40, length 48, direct 56);
    layout!(MzRegion, 32: struct_bytes 0, purpose 4, start 8, bytes 16, token 24);
    layout!(MzMemory, 88: struct_bytes 0, flags 4, context 8, allocate 16, release 24, zero 32,
        begin_host 40, begin_fill 48, end_fill 56, begin_device 64, end 72, trim 80);
    layout!(MzDeviceSpan, 40: struct_bytes 0, index 4, address 8, offset 16, buffer 24, bytes 32);
    layout!(MzClock, 24: struct_bytes 0, flags 4, context 8, now 16);
    layout!(MzPark, 32: struct_bytes 0, flags 4, context 8, wait 16, wake 24);
    layout!(MzPorts, 80: struct_bytes 0, flags 4, model 8, swap 16, memory 24, clock 32, park 40,
        threads 48, meter 56, log 64, owner 72);
    layout!(MzThreads, 40: struct_bytes 0, flags 4, context 8, spawn 16, join 24, pin 32);
    layout!(MzMeter, 24: struct_bytes 0, flags 4, context 8, resident 16);
    layout!(MzLog, 24: struct_bytes 0, level 4, context 8, entry 16);
    layout!(MzLinuxConfig, 32: struct_bytes 0, flags 4, model_path 8, swap_path 16, memory 24,
        reserved 28);
    layout!(MzOpenClConfig, 72: struct_bytes 0, flags 4, model_path 8, swap_path 16, manager 24,
        library 32, device 40, sharing 48, reserved 52, spare_bytes 56, staging_bytes 64);
    layout!(MzOpenClInfo, 40: struct_bytes 0, sharing 4, platform 8, device 16, context 24,
        queue 32);
    layout!(MzModelConfig, 80: struct_bytes 0, flags 4, model_path 8, swap_path 16, options 24,
        log 32, compute_threads 40, batch_tokens_max 44, backend 48, reserved 52,
        opencl_library 56, opencl_device 64, opencl_cache 72);
    layout!(MzModelInfo, 24: struct_bytes 0, layers 4, vocabulary 8, context_tokens_max 12,
        batch_tokens_max 16, is_accelerated 20);
}
