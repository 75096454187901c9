//! KGSL's objects as shared buffers: what they are, whose turn it is, what they count for.

use crate::driver::{World, under};
use crate::refusing;
use crate::scenario::{say, show};
use crate::support::{ScratchFile, pattern};
use mzcache::port::kgsl::{GpuBytes, KgslDevice, KgslMemory};
use mzcache::port::linux::{File, ProcessMeter};
use mzcache::port::{Meter, Region, SharedMemory, Storage, Use};
use mzcache::{Code, Error};
use std::ffi::CString;
use std::os::unix::fs::FileExt;

const MIB: usize = 1 << 20;

pub fn open() -> Result<KgslMemory, Error> {
    KgslMemory::open(KgslDevice::open()?)
}

/// The bytes of a region that the host uses.
pub fn bytes_of(region: &Region) -> &'static mut [u8] {
    // SAFETY: these tests use a region on one thread, between `begin_host` and `end` or before the
    // device was there.
    unsafe { std::slice::from_raw_parts_mut(region.start.as_ptr(), region.bytes) }
}

/// Gives back, once, what is used no more.
pub fn release(memory: &dyn SharedMemory, usage: Use, region: Region) {
    // SAFETY: as the name says.
    unsafe { memory.release(usage, region) };
}

/// Regions of many sizes, read into by direct transfers, given back in another order.
pub fn lives() {
    let device = KgslDevice::open().unwrap();
    let info = device.info().unwrap();
    say(format!("{} {:#x} {}", info.gpu_id, info.chip_id, info.gmem_bytes));
    let version = device.version().unwrap();
    say(format!(
        "{} {}.{}",
        device.model().unwrap().text(),
        version.driver_major,
        version.driver_minor
    ));
    let memory = KgslMemory::open(device).unwrap();
    say(format!("coherent {}", memory.is_coherent()));
    let content = pattern(31 * MIB, 5);
    let scratch = ScratchFile::with("objects", &content);
    let file = File::open_model(&CString::new(scratch.0.to_str().unwrap()).unwrap()).unwrap();
    let direct = file.is_direct();
    let mut regions = vec![];
    for bytes in [1, 4096, 4097, 192 << 10, MIB, 2 * MIB, 31 * MIB] {
        let region = memory.allocate(Use::Kv, bytes).unwrap();
        let values = bytes_of(&region);
        assert!(values.len() >= bytes && region.start.addr().get().is_multiple_of(4096));
        assert!(values.iter().all(|byte| *byte == 0));
        assert_eq!(file.read_at(0, values).unwrap(), values.len());
        assert!(*values == content[..values.len()]);
        // SAFETY: the region is live.
        let seen = unsafe { memory.begin_device(&region) }.unwrap();
        assert_eq!((seen.address, seen.buffer), (region.start.addr().get() as u64, 0));
        // SAFETY: begun above.
        unsafe { memory.end(&region) };
        regions.push(region);
    }
    assert_eq!(direct, file.is_direct());
    let held: usize = regions.iter().map(|region| region.bytes).sum();
    assert_eq!(memory.gpu_bytes(), GpuBytes::Own(held as u64));
    regions.rotate_left(3);
    for region in regions {
        // The driver's side of the object: its number is its first page.
        let page = (region.token & 0xFFFF_FFFF) * 4096;
        assert_eq!(page_of_driver(page), content[..4096]);
        release(&memory, Use::Kv, region);
        assert_eq!(page_of_driver(page), [0; 4096]);
    }
    // What comes next finds none of it.
    let region = memory.allocate(Use::Weights, 31 * MIB).unwrap();
    assert!(bytes_of(&region).iter().all(|byte| *byte == 0));
    release(&memory, Use::Weights, region);
    let segment = memory.allocate(Use::Swap, MIB).unwrap();
    assert_eq!(segment.token, 0);
    // SAFETY: the region is live.
    say(show(unsafe { memory.begin_device(&segment) }.map(|_| ())));
    release(&memory, Use::Swap, segment);
    for bytes in [0, 1 << 32, (1 << 32) - 1, usize::MAX] {
        say(show(memory.allocate(Use::Kv, bytes).map(|_| ())));
    }
    assert_eq!(memory.gpu_bytes(), GpuBytes::Own(0));
}

fn page_of_driver(offset: u64) -> [u8; 4096] {
    let node = std::fs::File::options().read(true).write(true).open("/dev/kgsl-3d0").unwrap();
    let mut page = [1; 4096];
    node.read_exact_at(&mut page, offset).unwrap();
    page
}

const SAID: [&str; 8] = [
    "830 0x6050001 12582912",
    "Adreno830v2 3.14",
    "coherent true",
    "InvalidArgument, memory that is not the device's, 0",
    "InvalidArgument, KGSL buffer, 0",
    "LimitExceeded, KGSL buffer, 4294967296",
    "LimitExceeded, KGSL buffer, 4294967295",
    "OutOfMemory, KGSL buffer, 9223372036854775807",
];

#[test]
fn objects_are_shared_at_one_address_and_go_back_whole() {
    let (outcome, report) = under(World::kgsl(), "objects");
    outcome.assert_said(&SAID);
    // The one that was tried out at open, and the regions.
    assert_eq!((report.count("GPUOBJ_ALLOC"), report.count("GPUOBJ_FREE")), (9, 9));
    assert_eq!(report.count("GPUOBJ_SYNC"), 0);
}

#[test]
fn older_drivers_and_guard_pages_make_no_difference() {
    let world = World { has_guards: true, is_old: true, ..World::kgsl() };
    let (outcome, report) = under(world, "objects");
    outcome.assert_said(&SAID);
    assert_eq!((report.count("GPUMEM_ALLOC_ID"), report.count("GPUMEM_FREE_ID")), (9, 9));
    let (outcome, _) = under(World { has_guards: true, ..World::kgsl() }, "objects");
    outcome.assert_said(&SAID);
}

/// Two hosts, the device, and who has to wait.
pub fn turns() {
    let memory = open().unwrap();
    say(format!("coherent {}", memory.is_coherent()));
    let region = memory.allocate(Use::Kv, MIB).unwrap();
    // SAFETY: the region is live; uses are begun before they end.
    unsafe {
        for _ in 0..3 {
            memory.begin_host(&region).unwrap();
            memory.begin_host(&region).unwrap();
            memory.end(&region);
            say(show(memory.begin_device(&region).map(|_| ())));
            if memory.is_coherent() {
                memory.end(&region);
            }
            memory.end(&region);
            memory.begin_device(&region).unwrap();
            memory.begin_device(&region).unwrap();
            memory.end(&region);
            say(show(memory.begin_host(&region).map(|_| ())));
            if memory.is_coherent() {
                memory.end(&region);
            }
            memory.end(&region);
        }
        let filling = memory.begin_fill(&region, 4096..8192).unwrap();
        assert_eq!(filling.start.addr().get(), region.start.addr().get() + 4096);
        memory.end_fill(&region, 4096..8192, filling, true).unwrap();
    }
    release(&memory, Use::Kv, region);
}

#[test]
fn hosts_and_device_take_turns_where_caches_are_not_coherent() {
    for is_old in [false, true] {
        let (outcome, report) =
            under(World { is_coherent: false, is_old, ..World::kgsl() }, "turns");
        let mut said = vec!["coherent false"];
        said.extend(["Leased, KGSL buffer, 0"; 6]);
        outcome.assert_said(&said);
        // Each time that the other side comes, and at no other.
        assert_eq!((report.count("to GPU"), report.count("from GPU")), (3, 3));
    }
    let (outcome, report) = under(World::kgsl(), "turns");
    let mut said = vec!["coherent true"];
    said.extend(["()"; 6]);
    outcome.assert_said(&said);
    assert_eq!(report.count("GPUOBJ_SYNC"), 0);
}

/// What the meter says, with the driver's figure and without.
pub fn meter() {
    let folder = crate::manager::folder("meter");
    let own = folder.join(std::process::id().to_string());
    std::fs::create_dir_all(&own).unwrap();
    let root: &'static std::ffi::CStr = Box::leak(crate::manager::c_path(&folder).into());
    let memory = open().unwrap().with_proc_root(root);
    let region = memory.allocate(Use::Kv, 4 * MIB).unwrap();
    bytes_of(&region).fill(1);
    let said = |memory: &KgslMemory| match memory.gpu_bytes() {
        GpuBytes::Driver(bytes) => format!("driver {bytes}"),
        GpuBytes::Own(bytes) => format!("own {bytes}"),
    };
    say(said(&memory));
    let shared = ProcessMeter.fields().unwrap().shared;
    assert!(shared >= 4 * MIB as u64);
    for text in ["67108864\n", "", "-1\n", "much\n", "99999999999999999999999999\n", "4096\n"] {
        std::fs::write(own.join("gpumem_mapped"), text).unwrap();
        say(said(&memory));
    }
    // This driver's pages are shared memory, and the system has counted those that were touched.
    std::fs::write(own.join("gpumem_mapped"), "67108864\n").unwrap();
    let fields = ProcessMeter.fields().unwrap();
    let missing = memory.resident_bytes().unwrap() - (fields.anonymous + fields.swap);
    assert!(missing.abs_diff(64 * MIB as u64) < MIB as u64 / 2, "{missing}");
    release(&memory, Use::Kv, region);
    std::fs::remove_dir_all(&folder).unwrap();
    say(said(&memory));
}

#[test]
fn the_meter_believes_the_driver_and_else_its_own_books() {
    let (outcome, _) = under(World::kgsl(), "meter");
    outcome.assert_said(&[
        "own 4194304",
        "driver 67108864",
        "own 4194304",
        "own 4194304",
        "own 4194304",
        "own 4194304",
        "own 4194304",
        "own 0",
    ]);
}

/// Everything that happens to a region, with an allocator that refuses.
pub fn without_allocation(memory: &(impl SharedMemory + Meter)) {
    refusing::sees_one_call();
    let calls = refusing::armed(|| {
        for usage in [Use::Kv, Use::Weights, Use::Swap] {
            let region = memory.allocate(usage, MIB).unwrap();
            // SAFETY: the region is live; uses are ended, and it is given back once.
            unsafe {
                memory.begin_host(&region).unwrap();
                memory.end(&region);
                if memory.begin_device(&region).is_ok() {
                    memory.end(&region);
                }
                memory.resident_bytes().unwrap();
                memory.release(usage, region);
            }
        }
    });
    say(format!("{calls} allocations"));
}

pub fn quiet() {
    without_allocation(&open().unwrap());
}

#[test]
fn nothing_is_allocated_on_the_heap() {
    let world = World { is_coherent: false, ..World::kgsl() };
    under(world, "quiet").0.assert_said(&["0 allocations"]);
    under(World::dma_heap(), "quiet dma-bufs").0.assert_said(&["0 allocations"]);
}

#[test]
fn a_machine_without_the_node_has_no_device() {
    if std::path::Path::new("/dev/kgsl-3d0").exists() {
        return;
    }
    let error = open().err().unwrap();
    assert_eq!(error, Error::new(Code::NoDevice, "/dev/kgsl-3d0").with(libc::ENOENT));
}
