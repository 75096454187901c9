//! What the process holds follows what the device's shared buffers hold.
//!
//! And nothing of it is the Rust heap's. One test alone in its process, so that nothing else
//! changes the numbers meanwhile.

use mzcache::Code;
use mzcache::arena::{Arena, Sizer};
use mzcache::port::linux::ProcessMeter;
use mzcache::port::opencl::{
    Api, Block, BuildLog, BuildOptions, Choice, Compiler, Context, DeviceBuffers, Devices,
    MemoryMode, Origin, ProgramCache, ProgramSource, Queue, WorkSize,
};
use mzcache::port::{Meter, Region, SharedMemory, Use};
use mzcache::sync::{Counter, Word};
use mzcache::units::Nanos;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;

const CHOICE: Choice<'_> = Choice::Named("portable computing");
const CHUNK: usize = 1 << 20;
const CHUNKS: usize = 64;
/// Drivers keep some memory for their own books.
const TOLERANCE: u64 = 4 << 20;

/// Counts allocations while it is asked to.
struct Counting;

static WATCHING: Word = Word::new(0);
static ALLOCATIONS: Counter = Counter::new();

/// The test harness's own thread, which may still be busy with having started the test.
fn on_main_thread() -> bool {
    // SAFETY: both calls only answer a question.
    unsafe { libc::gettid() == libc::getpid() }
}

// SAFETY: the system allocator's own contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHING.load() == 1 && !on_main_thread() {
            ALLOCATIONS.add(1);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[track_caller]
fn without_allocation(what: impl FnOnce()) {
    let before = ALLOCATIONS.get();
    WATCHING.store(1);
    what();
    WATCHING.store(0);
    assert_eq!(ALLOCATIONS.get(), before);
}

const SOURCE: &str = "kernel void a(global float *x, float y) { x[get_global_id(0)] = y; }";

/// One of everything.
fn use_all(api: &'static Api, directory: &CStr, memory: &mut [u8]) {
    let device = Devices::enumerate(api).unwrap().choose(CHOICE).unwrap();
    let context = Context::new(api, &device).unwrap();
    let queue = Queue::new(&context, true).unwrap();
    let options = BuildOptions::for_device(&device).unwrap();
    let mut log = BuildLog::new(memory);
    let source = ProgramSource { sources: &[SOURCE], options: &options };
    for origin in [Origin::Here, Origin::Cache] {
        let cache = ProgramCache::new(directory);
        let ready = cache.program(&context, &queue, &source, None, &mut log).unwrap();
        assert_eq!(ready.origin, origin);
        let mut kernel = ready.program.kernel(c"a").unwrap();
        for mode in MemoryMode::ALL {
            let mut block = Block::new(&context, &queue, mode, 256).unwrap();
            block.write(0, &[1; 256]).unwrap();
            kernel.set_memory(0, block.region()).unwrap();
            kernel.set_value(1, 1f32).unwrap();
            let event = queue.run_after(&kernel, WorkSize::linear(64, 64), &[]).unwrap();
            event.wait().unwrap();
            event.times().unwrap();
            block.read(0, &mut [0; 256]).unwrap();
        }
        kernel.info().unwrap();
    }
    let refused = Compiler {
        program: c"/bin/false",
        arguments: &[],
        library: None,
        time_max: Nanos::new(10_000_000_000),
    };
    let options = options.with("-w").unwrap();
    let source = ProgramSource { sources: &[SOURCE], options: &options };
    let cache = ProgramCache::new(directory);
    let error = cache.program(&context, &queue, &source, Some(&refused), &mut log).err().unwrap();
    assert_eq!((error.code, error.value), (Code::BuildFailed, 1));
}

fn measure() -> u64 {
    ProcessMeter.resident_bytes().unwrap()
}

fn buffers(context: &Context, queue: &Queue, mode: MemoryMode) -> DeviceBuffers {
    let mut sizer = Sizer::new();
    DeviceBuffers::size(&mut sizer, CHUNKS).unwrap();
    let memory = vec![MaybeUninit::new(0); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    DeviceBuffers::new(&mut arena, CHUNKS, context, queue, mode, CHUNKS * CHUNK)
        .unwrap()
        .with_staging(1 << 20)
}

/// Allocates all chunks, writes to them, shows them to the device and the host, and releases them.
/// Returns what was held meanwhile.
fn cycle(port: &DeviceBuffers) -> u64 {
    let mut regions: Vec<Region> = Vec::with_capacity(CHUNKS);
    regions.extend((0..CHUNKS).map(|_| port.allocate(Use::Kv, CHUNK).unwrap()));
    // SAFETY: the regions are live, filled by one user, and released once; uses are ended.
    unsafe {
        for region in &regions {
            let filling = port.begin_fill(region, 0..CHUNK).unwrap();
            filling.start.write_bytes(1, CHUNK);
            port.end_fill(region, 0..CHUNK, filling, true).unwrap();
            port.begin_device(region).unwrap();
            port.end(region);
        }
        let held = measure();
        let start = port.begin_host(&regions[7]).unwrap();
        assert_eq!(start.add(CHUNK - 1).read(), 1);
        port.end(&regions[7]);
        for region in regions {
            port.release(Use::Kv, region);
        }
        held
    }
}

#[test]
fn memory_comes_back_when_chunks_are_released() {
    let loaded = Api::load(Some(c"libOpenCL.so.1"));
    if let Err(error) = &loaded {
        assert!(std::env::var_os("MZ_CI").is_none(), "{error}");
        println!("NOT CHECKED: {error}");
        return;
    }
    let api: &'static Api = Box::leak(Box::new(loaded.unwrap()));
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = CString::new(directory.path().to_str().unwrap()).unwrap();
    let mut memory = vec![0; 1 << 16];
    without_allocation(|| use_all(api, &path, &mut memory));
    let device = Devices::enumerate(api).unwrap().choose(CHOICE).unwrap();
    let context = Context::new(api, &device).unwrap();
    let queue = Queue::new(&context, false).unwrap();
    for mode in MemoryMode::ALL {
        let port = buffers(&context, &queue, mode);
        // The first time touches memory of the driver's own.
        cycle(&port);
        let before = measure();
        let held = cycle(&port).saturating_sub(before);
        let bytes = (CHUNKS * CHUNK) as u64;
        assert!(held.abs_diff(bytes) <= TOLERANCE, "{mode:?} held {held} of {bytes}");
        for _ in 0..50 {
            cycle(&port);
        }
        let after = measure();
        assert!(after.abs_diff(before) <= TOLERANCE, "{mode:?} went from {before} to {after}");
    }
    for mode in [MemoryMode::Fine, MemoryMode::Coarse] {
        let port = buffers(&context, &queue, mode).with_spares(CHUNKS / 4 * CHUNK);
        let before = measure();
        cycle(&port);
        let kept = measure().saturating_sub(before);
        let bound = (CHUNKS / 4 * CHUNK) as u64;
        assert!(kept.abs_diff(bound) <= TOLERANCE, "{mode:?} kept {kept} of {bound}");
        port.trim();
        let after = measure();
        assert!(after.abs_diff(before) <= TOLERANCE, "{mode:?} went from {before} to {after}");
    }
}
