//! Dma-bufs as shared buffers, of each kind of heap, alone and imported by KGSL.

use crate::driver::{Ion, World, under};
use crate::objects::{bytes_of, release};
use crate::scenario::{say, show};
use crate::support::{Aligned, ScratchFile, pattern};
use mzcache::port::dma_heap::DmaHeapMemory;
use mzcache::port::kgsl::KgslDevice;
use mzcache::port::linux::{File, ProcessMeter};
use mzcache::port::{DeviceRegion, Meter, SharedMemory, Storage, Use};
use mzcache::{Code, Error};
use std::ffi::CString;

const MIB: usize = 1 << 20;

/// Regions that files are read into and written from, past the page cache all the same.
pub fn lives() {
    let memory = DmaHeapMemory::open().unwrap();
    let content = pattern(5 * MIB + 100, 6);
    let scratch = ScratchFile::with("dma-bufs", &content);
    let path = CString::new(scratch.0.to_str().unwrap()).unwrap();
    let file = File::open_model(&path).unwrap();
    let swap = ScratchFile::absent("dma-bufs-swap");
    let swap = File::create_swap(&CString::new(swap.0.to_str().unwrap()).unwrap()).unwrap();
    let direct = (file.is_direct(), swap.is_direct());
    for bytes in [1, 4096, 100_000, MIB, 5 * MIB + 4096] {
        let region = memory.allocate(Use::Kv, bytes).unwrap();
        let values = bytes_of(&region);
        assert!(values.len() >= bytes && values.iter().all(|byte| *byte == 0));
        let read = file.read_at(0, values).unwrap();
        assert_eq!(read, values.len().min(content.len()));
        assert!(values[..read] == content[..read]);
        swap.write_at(4096, values).unwrap();
        let mut back = Aligned::filled(values.len(), 0);
        swap.read_at(4096, &mut back).unwrap();
        assert!(*back == *values);
        release(&memory, Use::Kv, region);
    }
    assert_eq!((file.is_direct(), swap.is_direct()), direct);
    say(format!("direct {}", direct == (true, true)));
    let before = memory.resident_bytes().unwrap();
    let region = memory.allocate(Use::Weights, 4 * MIB).unwrap();
    // Touched or not, they are there.
    let grown = memory.resident_bytes().unwrap() - before;
    assert!(grown.abs_diff(4 * MIB as u64) < MIB as u64 / 2, "{grown}");
    assert!(ProcessMeter.resident_bytes().unwrap() < before + 3 * MIB as u64);
    release(&memory, Use::Weights, region);
    for (usage, bytes) in [(Use::Kv, 0), (Use::Kv, usize::MAX), (Use::Swap, 0)] {
        say(show(memory.allocate(usage, bytes).map(|_| ())));
    }
    let segment = memory.allocate(Use::Swap, MIB).unwrap();
    // SAFETY: the region is live.
    say(show(unsafe { memory.begin_device(&segment) }));
    release(&memory, Use::Swap, segment);
}

#[test]
fn dma_bufs_of_every_heap_are_filled_and_written() {
    for world in [
        World::dma_heap(),
        World { ion: Some(Ion::Files), ..World::default() },
        World { ion: Some(Ion::Handles), ..World::default() },
    ] {
        let (outcome, report) = under(world.clone(), "dma-bufs");
        outcome.assert_said(&[
            "direct true",
            "InvalidArgument, dma-buf, 0",
            "OutOfMemory, dma-buf, 9223372036854775807",
            "InvalidArgument, shared buffer, 0",
            "InvalidArgument, memory that is not the device's, 0",
        ]);
        // Each read and each write met memory that direct transfers refuse.
        assert_eq!(report.count("direct transfer"), 10);
        assert_eq!(report.count("to host"), report.count("to device"));
        // Asked once what kind it is, and for each handle.
        let frees = if world.ion == Some(Ion::Handles) { 8 } else { 0 };
        assert_eq!(report.count("ION_FREE"), frees);
    }
}

pub fn quiet() {
    crate::objects::without_allocation(&DmaHeapMemory::open().unwrap());
}

pub fn turns() {
    let memory = DmaHeapMemory::open().unwrap();
    // The kernel gives the lowest number that is free, and a buffer's name is not 0.
    // SAFETY: nobody reads the standard input.
    unsafe { libc::close(0) };
    let region = memory.allocate(Use::Kv, MIB).unwrap();
    // SAFETY: the region is live; uses are begun before they end.
    unsafe {
        for _ in 0..2 {
            memory.begin_host(&region).unwrap();
            memory.begin_host(&region).unwrap();
            memory.end(&region);
            say(show(memory.begin_device(&region)));
            memory.end(&region);
            let seen = memory.begin_device(&region).unwrap();
            assert_eq!((seen.address, seen.offset), (0, 0));
            assert_eq!(seen.buffer, region.token);
            assert_ne!(seen.buffer, 0);
            say(show(memory.begin_host(&region).map(|_| ())));
            memory.end(&region);
        }
    }
    release(&memory, Use::Kv, region);
}

#[test]
fn windows_of_the_host_open_and_close_with_its_turns() {
    let (outcome, report) = under(World::dma_heap(), "dma-buf turns");
    outcome.assert_said(&["Leased, dma-buf, 0"; 4]);
    // Tried out at open; allocated; back from the device once. The device has it at the end.
    assert_eq!((report.count("to host"), report.count("to device")), (3, 3));
}

/// With a GPU, whose address is not the host's.
pub fn imported() {
    let memory = DmaHeapMemory::open().unwrap().with_gpu(KgslDevice::open().unwrap());
    let region = match memory.allocate(Use::Kv, MIB) {
        Ok(region) => region,
        Err(error) => return say(show::<()>(Err(error))),
    };
    // SAFETY: the region is live; the use is ended.
    let seen = unsafe {
        let seen = memory.begin_device(&region).unwrap();
        memory.end(&region);
        seen
    };
    assert_eq!(seen, DeviceRegion { address: 0, buffer: 0x40_0000_1000, offset: 0 });
    assert_ne!(seen.buffer, region.start.addr().get() as u64);
    release(&memory, Use::Kv, region);
    say("imported");
}

#[test]
fn a_gpu_imports_dma_bufs_at_addresses_of_its_own() {
    let world = World { has_dma_heap: true, ..World::kgsl() };
    for is_old in [false, true] {
        let world = World { is_old, ..world.clone() };
        let (outcome, report) = under(world, "imported");
        outcome.assert_said(&[if is_old { "Unsupported, KGSL import, 25" } else { "imported" }]);
        let once = u64::from(!is_old);
        assert_eq!((report.count("GPUOBJ_IMPORT"), report.count("GPUOBJ_FREE")), (once, once));
    }
}

#[test]
fn a_machine_without_a_heap_has_no_device() {
    if ["/dev/dma_heap/system", "/dev/ion"].iter().any(|node| std::path::Path::new(node).exists()) {
        return;
    }
    let error = DmaHeapMemory::open().err().unwrap();
    assert_eq!(error, Error::new(Code::NoDevice, "/dev/dma_heap/system").with(libc::ENOENT));
}
