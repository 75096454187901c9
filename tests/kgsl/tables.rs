//! The same memory through C's tables.

use crate::driver::{World, under};
use crate::manager::{c_path, folder};
use crate::scenario::say;
use mzcache::ffi::linux::{mz_ports_close, mz_ports_linux, mz_ports_linux_required_bytes};
use mzcache::ffi::tables::{
    MZ_MEMORY_DMA_HEAP, MZ_MEMORY_KGSL, MzLinuxConfig, MzMemory, MzPorts, MzRegion, MzUse,
};
use mzcache::ffi::types::{MZ_OK, MzDeviceSpan, MzError};
use std::mem::{size_of, zeroed};
use std::ptr;

/// A device's use of a region, and then the host's.
///
/// # Safety
///
/// The region came from that memory and is nobody's at this moment.
unsafe fn hand_over_and_back(memory: &MzMemory, region: &MzRegion) {
    // SAFETY: the caller's promise; a zeroed span may be filled in.
    unsafe {
        let mut device: MzDeviceSpan = zeroed();
        device.struct_bytes = size_of::<MzDeviceSpan>() as u32;
        let end = memory.end.unwrap();
        assert_eq!(memory.begin_device.unwrap()(memory.context, region, &mut device), 0);
        assert_ne!(device.address == 0, device.buffer.is_null());
        end(memory.context, region);
        let mut start = ptr::null_mut();
        assert_eq!(memory.begin_host.unwrap()(memory.context, region, &mut start), 0);
        assert_eq!(start, region.start);
        end(memory.context, region);
    }
}

/// Opens the ports, takes a region of each kind, gives them back, and closes.
fn lives(memory: u32) {
    let folder = folder("tables");
    std::fs::write(folder.join("model"), [7; 8192]).unwrap();
    let model_path = c_path(&folder.join("model"));
    let config = MzLinuxConfig {
        struct_bytes: size_of::<MzLinuxConfig>() as u32,
        flags: 0,
        model_path: model_path.as_ptr(),
        swap_path: ptr::null(),
        memory,
        reserved: 0,
    };
    // SAFETY: zeroes are tables; all pointers are to live values; regions are given back once.
    unsafe {
        let (mut ports, mut error): (MzPorts, MzError) = (zeroed(), zeroed());
        ports.struct_bytes = size_of::<MzPorts>() as u32;
        error.struct_bytes = size_of::<MzError>() as u32;
        let mut bytes = 0;
        assert_eq!(mz_ports_linux_required_bytes(&mut bytes, &mut error), MZ_OK);
        let mut own = vec![0u8; bytes];
        let start = own.as_mut_ptr().cast();
        let opened = mz_ports_linux(&config, start, bytes, &mut ports, &mut error);
        if opened != MZ_OK {
            return say(format!("{opened} {}", error.value));
        }
        let (memory, model) = (&*ports.memory, &*ports.model);
        let (allocate, release) = (memory.allocate.unwrap(), memory.release.unwrap());
        for purpose in [MzUse::Weights, MzUse::Kv, MzUse::Swap] {
            let mut region: MzRegion = zeroed();
            region.struct_bytes = size_of::<MzRegion>() as u32;
            (region.purpose, region.bytes) = (purpose as u32, 8192);
            assert_eq!(allocate(memory.context, &mut region), 0);
            let read = model.read.unwrap()(model.context, 0, region.start, 8192);
            assert_eq!(read, 8192);
            let values = std::slice::from_raw_parts(region.start.cast::<u8>(), 8192);
            assert_eq!(values, [7; 8192]);
            say(format!("{:?} {}", purpose, [0, u64::MAX].contains(&region.token)));
            if purpose != MzUse::Swap {
                hand_over_and_back(memory, &region);
            }
            release(memory.context, &region);
        }
        let meter = &*ports.meter;
        assert!(meter.resident.unwrap()(meter.context) > 0);
        assert_eq!(mz_ports_close(&ports, &mut error), MZ_OK);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

pub fn on_kgsl() {
    lives(MZ_MEMORY_KGSL);
}

pub fn on_dma_bufs() {
    lives(MZ_MEMORY_DMA_HEAP);
}

#[test]
fn tables_lead_to_the_memory_that_was_chosen() {
    let said = ["Weights false", "Kv false", "Swap true"];
    let (outcome, report) = under(World::kgsl(), "kgsl tables");
    outcome.assert_said(&said);
    assert_eq!((report.count("GPUOBJ_ALLOC"), report.count("GPUOBJ_FREE")), (3, 3));
    let (outcome, report) = under(World::dma_heap(), "dma-buf tables");
    outcome.assert_said(&said);
    assert_eq!((report.count("DMA_HEAP_ALLOC"), report.count("direct transfer")), (3, 2));
}

#[test]
fn memory_whose_caches_need_it_is_handed_over() {
    let (outcome, report) = under(World { is_coherent: false, ..World::kgsl() }, "kgsl tables");
    outcome.assert_said(&["Weights false", "Kv false", "Swap true"]);
    // There and back, of weights and of a chunk.
    assert_eq!(report.count("GPUOBJ_SYNC"), 4);
}
