//! Devices, programs, kernels, queues and blocks.

use crate::support::*;
use mzcache::Code;
use mzcache::port::opencl::{
    Block, Choice, Context, DeviceKind, DriverFamily, Event, LanguageVersion, MemoryMode, Queue,
    Version, WorkSize,
};

const ADD: &str = "kernel void add(global const float *a, global const float *b, \
    global float *c, uint n, float bias) { size_t i = get_global_id(0); \
    if (i < n) c[i] = a[i] + b[i] + bias; }";

#[test]
fn devices_say_what_they_are() {
    for path in [LOADER, DRIVER] {
        let Some(api) = load(path) else { return };
        let devices = devices(api);
        let device = devices.choose(Choice::Named("PORTABLE computing")).unwrap();
        assert_eq!(device.platform_name.to_string(), "Portable Computing Language");
        assert_eq!(device.kind, DeviceKind::Cpu);
        assert_eq!(device.driver.family, DriverFamily::Pocl);
        assert!(device.driver.numbers[0] >= 1, "{}", device.driver);
        assert!(device.version >= Version::new(1, 2));
        if device.version >= Version::new(3, 0) {
            assert_eq!(device.language, LanguageVersion::C3_0);
        }
        assert!(device.work_group_max > 0);
        assert!(device.local_bytes >= 16 << 10);
        assert!(device.alloc_bytes_max > 0);
        assert!(device.memory_bytes >= device.alloc_bytes_max);
        // One memory is shared as closely as can be; a card copies.
        assert!(device.unified && MemoryMode::best(&device) == MemoryMode::Fine);
        let mut card = device;
        card.unified = false;
        assert_eq!(MemoryMode::best(&card), MemoryMode::Buffers);
        let code = devices.choose(Choice::Named("no such device")).unwrap_err().code;
        assert_eq!(code, Code::NoDevice);
        assert!(devices.iter().count() >= 1);
        devices.choose(Choice::Best).unwrap();
        let mut absent = vec![];
        api.each_absent(|name| absent.push(name));
        assert!(!absent.contains(&"clSVMAlloc"), "{absent:?}");
    }
}

#[test]
fn vectors_are_added_in_every_mode_through_both_shapes_of_library() {
    for path in [LOADER, DRIVER] {
        let Some(opened) = open_by(path) else { return };
        let mut kernel = kernel(&opened.context, ADD, c"add");
        for mode in modes(&opened) {
            const N: usize = 1000;
            let block = || Block::new(&opened.context, &opened.queue, mode, N * 4).unwrap();
            let (mut a, mut b, c) = (block(), block(), block());
            let values: Vec<f32> = (0..N).map(|i| i as f32).collect();
            a.write(0, &bytes(&values)).unwrap();
            // The first value stays the zero that a new block holds.
            b.write(4, &bytes(&values[1..])).unwrap();
            kernel.set_memory(0, a.region()).unwrap();
            kernel.set_memory(1, b.region()).unwrap();
            kernel.set_memory(2, c.region()).unwrap();
            kernel.set_value(3, N as u32).unwrap();
            kernel.set_value(4, 0.5f32).unwrap();
            let event = opened.queue.run_after(&kernel, WorkSize::linear(1024, 64), &[]).unwrap();
            let mut sums = vec![0; N * 4];
            c.read(0, &mut sums).unwrap();
            let expected: Vec<f32> = values.iter().map(|value| 2.0 * value + 0.5).collect();
            assert_eq!(floats(&sums), expected, "{mode:?} {path:?}");
            event.wait().unwrap();
            let times = event.times().unwrap();
            assert!(times.queued <= times.submitted);
            assert!(times.started <= times.ended);
        }
    }
}

const TABLE: &str = "kernel void gather(global const ulong *table, global float *sums, uint n) { \
    size_t i = get_global_id(0); global const float *piece = (global const float *)table[i]; \
    float sum = 0; for (uint j = 0; j < n; j++) sum += piece[j]; sums[i] = sum; }";

#[test]
fn kernels_follow_a_table_of_addresses() {
    let Some(opened) = open() else { return };
    let mut kernel = kernel(&opened.context, TABLE, c"gather");
    for mode in modes(&opened).filter(|mode| *mode != MemoryMode::Buffers) {
        let block = |bytes| Block::new(&opened.context, &opened.queue, mode, bytes).unwrap();
        let mut pieces: Vec<Block> = (0..33).map(|_| block(64)).collect();
        for (index, piece) in pieces.iter_mut().enumerate() {
            piece.write(0, &bytes(&[index as f32; 16])).unwrap();
        }
        let addresses: Vec<u64> = pieces.iter().map(|piece| piece.region().entry()).collect();
        let table_bytes: Vec<u8> = addresses.iter().flat_map(|a| a.to_ne_bytes()).collect();
        let (mut table, sums) = (block(33 * 8), block(33 * 4));
        table.write(0, &table_bytes).unwrap();
        kernel.set_memory(0, table.region()).unwrap();
        kernel.set_memory(1, sums.region()).unwrap();
        kernel.set_value(2, 16u32).unwrap();
        kernel.list_memory(&addresses).unwrap();
        kernel.list_memory(&[]).unwrap();
        opened.queue.run(&kernel, WorkSize { global: [33, 1, 1], local: None }).unwrap();
        let mut read = vec![0; 33 * 4];
        sums.read(0, &mut read).unwrap();
        let expected: Vec<f32> = (0..33).map(|index| 16.0 * index as f32).collect();
        assert_eq!(floats(&read), expected, "{mode:?}");
        // Direct reads need the start of pieces to be aligned like this.
        assert!(addresses.iter().all(|address| address % 4096 == 0));
    }
}

const LOCAL: &str = "kernel void turn(global uint *values, local uint *scratch) { \
    size_t i = get_local_id(0), n = get_local_size(0); scratch[i] = values[get_global_id(0)]; \
    barrier(CLK_LOCAL_MEM_FENCE); values[get_global_id(0)] = scratch[n - 1 - i]; }";

#[test]
fn local_memory_events_and_empty_sizes_work() {
    let Some(opened) = open() else { return };
    let mut kernel = kernel(&opened.context, LOCAL, c"turn");
    let info = kernel.info().unwrap();
    assert!(info.work_group_max >= 32);
    assert!(info.work_group_multiple >= 1);
    let mode = MemoryMode::best(opened.context.device());
    let mut values = Block::new(&opened.context, &opened.queue, mode, 64 * 4).unwrap();
    let numbers: Vec<u8> = (0..64u32).flat_map(|value| value.to_ne_bytes()).collect();
    values.write(0, &numbers).unwrap();
    kernel.set_memory(0, values.region()).unwrap();
    kernel.set_local(1, 32 * 4).unwrap();
    let groups = WorkSize::groups([2, 1, 1], [32, 1, 1]);
    let first = opened.queue.run_after(&kernel, groups, &[]).unwrap();
    // Another queue waits for it, and turns the groups once more.
    let other = Queue::new(&opened.context, false).unwrap();
    let second = other.run_after(&kernel, groups, &[first]).unwrap();
    opened.queue.flush().unwrap();
    second.wait().unwrap();
    assert_eq!(second.times().unwrap_err().code, Code::BadState);
    opened.queue.run(&kernel, WorkSize::groups([0, 1, 1], [32, 1, 1])).unwrap();
    opened.queue.run(&kernel, groups).unwrap();
    let mut read = vec![0; 64 * 4];
    values.read(0, &mut read).unwrap();
    let turned: Vec<u8> =
        (0..64u32).flat_map(|i| (i / 32 * 32 + 31 - i % 32).to_ne_bytes()).collect();
    assert_eq!(read, turned);
    let many: Vec<Event> =
        (0..17).map(|_| opened.queue.run_after(&kernel, groups, &[]).unwrap()).collect();
    let error = opened.queue.run_after(&kernel, groups, &many).err().unwrap();
    assert_eq!((error.code, error.value), (Code::LimitExceeded, 17));
    opened.queue.run_after(&kernel, groups, &many[..16]).unwrap().wait().unwrap();
}

#[test]
fn blocks_copy_and_know_their_bounds() {
    let Some(opened) = open() else { return };
    for mode in modes(&opened) {
        let block = |bytes| Block::new(&opened.context, &opened.queue, mode, bytes);
        let (mut from, mut to) = (block(5000).unwrap(), block(4999).unwrap());
        let pattern: Vec<u8> = (0..5000).map(|number: u32| (number % 251) as u8).collect();
        from.write(0, &pattern).unwrap();
        from.copy_to(&mut to, 4999).unwrap().wait().unwrap();
        let mut read = vec![0; 4999];
        to.read(0, &mut read).unwrap();
        assert!(read == pattern[..4999]);
        assert_eq!(to.bytes(), 4999);
        let code = |result: mzcache::Result<()>| result.err().map(|error| error.code);
        assert_eq!(code(to.write(4999, &[])), None);
        assert_eq!(code(to.write(4999, &[1])), Some(Code::InvalidArgument));
        assert_eq!(code(to.write(usize::MAX, &[1])), Some(Code::InvalidArgument));
        assert_eq!(code(to.read(4000, &mut read[..1000])), Some(Code::InvalidArgument));
        assert_eq!(from.copy_to(&mut to, 5000).err().unwrap().code, Code::InvalidArgument);
        assert_eq!(block(0).err().unwrap().code, Code::InvalidArgument);
        assert_eq!(block(1 << 50).err().unwrap().code, Code::LimitExceeded, "{mode:?}");
    }
}

/// A checker of kernels that is an OpenCL 1.2 device without shared memory.
const WITHOUT_SHARED_MEMORY: &str = "/usr/lib/oclgrind/liboclgrind-rt.so";

#[test]
fn a_device_without_shared_memory_has_buffers() {
    if !std::path::Path::new(WITHOUT_SHARED_MEMORY).exists() {
        eprintln!("NOT CHECKED: {WITHOUT_SHARED_MEMORY} does not exist");
        return;
    }
    let path = std::ffi::CString::new(WITHOUT_SHARED_MEMORY).unwrap();
    let api = load(&path).unwrap();
    let device = devices(api).choose(Choice::Best).unwrap();
    assert_eq!(device.language, LanguageVersion::C1_2);
    assert_eq!(MemoryMode::best(&device), MemoryMode::Buffers);
    let context = Context::new(api, &device).unwrap();
    let queue = Queue::new(&context, false).unwrap();
    for mode in [MemoryMode::Fine, MemoryMode::Coarse] {
        let error = Block::new(&context, &queue, mode, 64).err().unwrap();
        assert_eq!((error.code, error.what), (Code::Unsupported, mode.name()));
    }
    let mut kernel = kernel(&context, "kernel void a(global int *x) { x[0] += 3; }", c"a");
    let block = Block::new(&context, &queue, MemoryMode::Buffers, 64).unwrap();
    kernel.set_memory(0, block.region()).unwrap();
    queue.run(&kernel, WorkSize::linear(1, 1)).unwrap();
    let mut read = [9; 8];
    block.read(0, &mut read).unwrap();
    assert_eq!(read, [3, 0, 0, 0, 0, 0, 0, 0]);
}
