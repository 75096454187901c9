//! Calls of drivers that fail: typed errors, nothing left behind, and another try that works.

use crate::driver::{Fault, Ion, World, under};
use crate::objects::{bytes_of, open, release};
use crate::scenario::{say, show};
use mzcache::Result;
use mzcache::port::dma_heap::DmaHeapMemory;
use mzcache::port::kgsl::KgslDevice;
use mzcache::port::{SharedMemory, Use};

const BYTES: usize = 1 << 20;

/// Allocates twice, hands over and back; says what became of each step.
fn attempt(memory: Result<impl SharedMemory>) {
    let files = open_files();
    let memory = match memory {
        Ok(memory) => memory,
        Err(error) => return say(format!("open {}", show::<()>(Err(error)))),
    };
    for _ in 0..2 {
        let region = match memory.allocate(Use::Kv, BYTES) {
            Ok(region) => region,
            Err(error) => {
                say(format!("allocate {}", show::<()>(Err(error))));
                continue;
            }
        };
        bytes_of(&region).fill(7);
        // SAFETY: the region is live; a use that began is ended.
        unsafe {
            match memory.begin_device(&region) {
                Ok(_) => memory.end(&region),
                Err(error) => say(format!("device {}", show::<()>(Err(error)))),
            }
            match memory.begin_host(&region) {
                Ok(_) => {
                    assert!(bytes_of(&region).iter().all(|byte| *byte == 7));
                    memory.end(&region);
                }
                Err(error) => say(format!("host {}", show::<()>(Err(error)))),
            }
        }
        release(&memory, Use::Kv, region);
        say("lived");
    }
    assert_eq!(open_files(), files);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:kgsl") && !maps.contains("memfd:dma-buf"), "{maps}");
}

/// But the nodes'.
fn open_files() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    names.filter(|name| name.to_string_lossy().contains("memfd:dma-buf")).count()
}

pub fn attempts() {
    attempt(open());
}

pub fn attempts_on_dma_bufs() {
    attempt(DmaHeapMemory::open());
}

pub fn attempts_to_import() {
    let memory = DmaHeapMemory::open();
    attempt(memory.and_then(|memory| Ok(memory.with_gpu(KgslDevice::open()?))));
}

#[track_caller]
fn expect(world: World, said: &[&str]) {
    under(world, "faults").0.assert_said(said);
}

#[track_caller]
fn expect_of_dma_bufs(world: World, said: &[&str]) {
    under(world, "dma-buf faults").0.assert_said(said);
}

const LIVED: [&str; 2] = ["lived", "lived"];

#[test]
fn refused_calls_of_kgsl_have_their_number_and_leave_nothing() {
    let refusals = [
        (libc::ENOMEM, "OutOfMemory"),
        (libc::EINVAL, "DeviceFailed"),
        (libc::ENODEV, "DeviceLost"),
        (libc::EPERM, "DeviceFailed"),
        (libc::EMFILE, "LimitExceeded"),
        (libc::ENOTTY, "Unsupported"),
    ];
    for (errno, code) in refusals {
        let at_open = format!("open {code}, KGSL allocation, {errno}");
        expect(World::kgsl().with("GPUOBJ_ALLOC", 0, errno), &[&at_open]);
        let later = format!("allocate {code}, KGSL allocation, {errno}");
        expect(World::kgsl().with("GPUOBJ_ALLOC", 1, errno), &[&*later, &later]);
        let mapping = format!("allocate {code}, KGSL mapping, {errno}");
        expect(World::kgsl().with("mmap", 1, errno), &[&*mapping, &mapping]);
        let object = format!("open {code}, KGSL object, {errno}");
        expect(World::kgsl().with("GPUOBJ_INFO", 1, errno), &[&object]);
    }
}

#[test]
fn refused_calls_of_older_drivers_are_the_same() {
    let old = World { is_old: true, is_coherent: false, ..World::kgsl() };
    let said = "allocate OutOfMemory, KGSL allocation, 12";
    expect(old.clone().with("GPUMEM_ALLOC_ID", 1, libc::ENOMEM), &[said, said]);
    let said = "open DeviceFailed, KGSL object, 22";
    expect(old.clone().with("GPUMEM_GET_INFO", 0, libc::EINVAL), &[said]);
    let said = "device DeviceLost, KGSL cache sync, 19";
    expect(old.with("GPUMEM_SYNC_CACHE", 0, libc::ENODEV), &[said, "lived", said, "lived"]);
}

#[test]
fn a_failed_sync_leaves_the_region_where_it_was() {
    let world = World { is_coherent: false, ..World::kgsl() };
    let said = "device DeviceFailed, KGSL cache sync, 22";
    expect(world.clone().with("GPUOBJ_SYNC", 0, libc::EINVAL), &[said, "lived", said, "lived"]);
    let said = "host DeviceFailed, KGSL cache sync, 22";
    let once = Fault { call: "GPUOBJ_SYNC", spared: 1, times: 1, errno: libc::EINVAL };
    expect(World { faults: vec![once], ..world }, &[said, "lived", "lived"]);
}

#[test]
fn interrupted_calls_are_made_again() {
    for errno in [libc::EINTR, libc::EAGAIN] {
        for is_old in [false, true] {
            let calls = match is_old {
                true => {
                    ["GPUMEM_ALLOC_ID", "GPUMEM_FREE_ID", "GPUMEM_GET_INFO", "GPUMEM_SYNC_CACHE"]
                }
                false => ["GPUOBJ_ALLOC", "GPUOBJ_FREE", "GPUOBJ_INFO", "GPUOBJ_SYNC"],
            };
            let fault = |call| Fault { call, spared: 0, times: 1, errno };
            let faults = calls.into_iter().chain(["open kgsl"]).map(fault).collect();
            let world = World { is_old, is_coherent: false, faults, ..World::kgsl() };
            expect(world, &LIVED);
        }
    }
}

#[test]
fn a_call_that_is_put_off_for_good_fails() {
    let said = "allocate DeviceFailed, KGSL allocation, 11";
    expect(World::kgsl().with("GPUOBJ_ALLOC", 1, libc::EAGAIN), &[said, said]);
}

#[test]
fn a_device_that_cannot_be_had_says_why() {
    for (errno, code) in [
        (libc::ENOENT, "NoDevice"),
        (libc::EACCES, "NoDevice"),
        (libc::EPERM, "NoDevice"),
        (libc::ENODEV, "NoDevice"),
        (libc::EMFILE, "LimitExceeded"),
        (libc::ENOMEM, "OutOfMemory"),
    ] {
        let said = format!("open {code}, /dev/kgsl-3d0, {errno}");
        expect(World::kgsl().with("open kgsl", 0, errno), &[&said]);
    }
}

#[test]
fn a_driver_that_answers_strangely_is_refused() {
    let said = "open Unsupported, KGSL memory at one address, 0";
    expect(World { is_apart: true, ..World::kgsl() }, &[said]);
    for footprint in [0, 100, 4095, 4097, 1 << 32, u64::MAX] {
        let shown = i64::try_from(footprint).unwrap_or(i64::MAX);
        let said = format!("open DeviceFailed, KGSL mapping size, {shown}");
        expect(World { footprint: Some(footprint), ..World::kgsl() }, &[&said]);
    }
}

#[test]
fn refused_calls_of_heaps_have_their_number_and_leave_nothing() {
    let heap = World::dma_heap;
    let ion = |kind| World { ion: Some(kind), ..World::default() };
    for (errno, code) in [
        (libc::ENOMEM, "OutOfMemory"),
        (libc::EINVAL, "DeviceFailed"),
        (libc::EMFILE, "LimitExceeded"),
    ] {
        let later = format!("allocate {code}, dma-buf, {errno}");
        let later = [&*later, &later];
        expect_of_dma_bufs(heap().with("DMA_HEAP_ALLOC", 1, errno), &later);
        expect_of_dma_bufs(heap().with("mmap", 1, errno), &later);
        expect_of_dma_bufs(ion(Ion::Files).with("ION_ALLOC", 1, errno), &later);
        expect_of_dma_bufs(ion(Ion::Handles).with("ION_ALLOC", 1, errno), &later);
        expect_of_dma_bufs(ion(Ion::Handles).with("ION_SHARE", 1, errno), &later);
        let sync = format!("allocate {code}, DMA_BUF_IOCTL_SYNC, {errno}");
        expect_of_dma_bufs(heap().with("DMA_BUF_SYNC", 2, errno), &[&*sync, &sync]);
    }
    let said = "open Unsupported, DMA_BUF_IOCTL_SYNC, 25";
    expect_of_dma_bufs(heap().with("DMA_BUF_SYNC", 0, libc::ENOTTY), &[said]);
    let said = "open NoDevice, /dev/dma_heap/system, 2";
    expect_of_dma_bufs(World::default(), &[said]);
    let said = "open NoDevice, /dev/dma_heap/system, 13";
    expect_of_dma_bufs(heap().with("open dma_heap", 0, libc::EACCES), &[said]);
}

#[test]
fn refused_imports_leave_nothing() {
    let both = World { has_dma_heap: true, ..World::kgsl() };
    let expect = |world, said: &[&str]| under(world, "import faults").0.assert_said(said);
    let said = "allocate OutOfMemory, KGSL import, 12";
    expect(both.clone().with("GPUOBJ_IMPORT", 0, libc::ENOMEM), &[said, said]);
    // At open twice; then the object is there already.
    let said = "allocate DeviceFailed, DMA_BUF_IOCTL_SYNC, 22";
    expect(both.clone().with("DMA_BUF_SYNC", 2, libc::EINVAL), &[said, said]);
    // At open once.
    let said = "device DeviceFailed, KGSL object, 22";
    expect(both.with("GPUOBJ_INFO", 1, libc::EINVAL), &[said, "lived", said, "lived"]);
}

#[test]
fn a_heap_that_may_not_be_opened_leaves_ion() {
    let world = World { ion: Some(Ion::Files), ..World::dma_heap() };
    expect_of_dma_bufs(world.with("open dma_heap", 0, libc::EACCES), &LIVED);
}

#[test]
fn interrupted_calls_of_heaps_are_made_again() {
    let once = |call| Fault { call, spared: 0, times: 1, errno: libc::EINTR };
    let calls = ["DMA_HEAP_ALLOC", "DMA_BUF_SYNC", "ION_ALLOC", "ION_SHARE", "open dma_heap"];
    let faults: Vec<Fault> = calls.map(once).into();
    expect_of_dma_bufs(World { faults: faults.clone(), ..World::dma_heap() }, &LIVED);
    for ion in [Ion::Files, Ion::Handles] {
        let ion = Some(ion);
        expect_of_dma_bufs(World { ion, faults: faults.clone(), ..World::default() }, &LIVED);
    }
}

#[test]
fn a_failed_hand_over_of_a_dma_buf_leaves_it_where_it_was() {
    // At open twice, and once in each allocation.
    let once = |spared| Fault { call: "DMA_BUF_SYNC", spared, times: 1, errno: libc::EINVAL };
    let device = World { faults: vec![once(3)], ..World::dma_heap() };
    let said = "device DeviceFailed, DMA_BUF_IOCTL_SYNC, 22";
    expect_of_dma_bufs(device, &[said, "lived", "lived"]);
    let host = World { faults: vec![once(4)], ..World::dma_heap() };
    let said = "host DeviceFailed, DMA_BUF_IOCTL_SYNC, 22";
    expect_of_dma_bufs(host, &[said, "lived", "lived"]);
}
