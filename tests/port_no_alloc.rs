//! The Linux ports never use the Rust heap, not even to open files and start threads.
//!
//! One test alone in its process, so that nobody else allocates meanwhile.
#![cfg(feature = "host")]

mod support;

use mzcache::Code;
use mzcache::port::affinity::CoreMap;
use mzcache::port::linux::{
    AnonymousMemory, ChunkMemory, File, FutexPark, MappedFile, MonotonicClock, PosixThreads,
    ProcessMeter, RowFile, ThreadTeam, host_topology, map_arena, read_topology, unmap_arena,
};
use mzcache::port::{
    Body, Clock, Meter, Park, RowReader, SharedMemory, Storage, Team, ThreadSpec, Threads, Use,
};
use mzcache::runtime::{WorkerCounts, WorkerList};
use mzcache::sync::{Counter, Word};
use mzcache::units::Nanos;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, CString};
use support::{Aligned, ScratchFile, pattern};

/// The test harness's own thread, which may still be busy with having started the test.
fn on_main_thread() -> bool {
    // SAFETY: both calls only answer a question.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Counts allocations while it is asked to.
struct Counting;

static WATCHING: Word = Word::new(0);
static ALLOCATIONS: Counter = Counter::new();

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

struct Once(Counter);

impl Body for Once {
    fn run(&self) {
        self.0.add(1);
    }
}

static PARK: FutexPark = FutexPark;
static THREADS: PosixThreads = PosixThreads::new();
static TEAM: ThreadTeam = ThreadTeam::new(&THREADS, &PARK);
static ONCE: Once = Once(Counter::new());

#[track_caller]
fn without_allocation(what: impl FnOnce()) {
    let before = ALLOCATIONS.get();
    WATCHING.store(1);
    what();
    WATCHING.store(0);
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn nothing_allocates() {
    // The count works.
    WATCHING.store(1);
    drop(std::hint::black_box(Box::new(1)));
    WATCHING.store(0);
    assert_eq!(ALLOCATIONS.get(), 1);

    let model = ScratchFile::with("no-alloc-model", &pattern(100_000, 4));
    let swap = ScratchFile::absent("no-alloc-swap");
    let (model, swap_path) = (c_path(&model), c_path(&swap));
    let mut buffer = Aligned::filled(16 * 4096, 1);
    without_allocation(|| files(&model, &swap_path, &mut buffer));
    without_allocation(|| {
        let spec = ThreadSpec { name: "mz-test", stack_bytes: 64 << 10 };
        let thread = THREADS.spawn(spec, &ONCE).unwrap();
        THREADS.join(thread);
        assert_eq!(ONCE.0.get(), 1);
        TEAM.open(3).unwrap();
        let parts = Counter::new();
        for _ in 0..100 {
            TEAM.run(&|_| parts.add(1));
        }
        assert_eq!(parts.get(), 300);
        TEAM.close();
    });
    without_allocation(|| {
        let map = CoreMap::rank(&host_topology());
        let counts = WorkerCounts { allocate: 1, read: 1, unpack: 1 };
        assert_eq!(WorkerList::new(&map, counts).unwrap().len(), 3);
        assert_eq!(read_topology(c"/nowhere", |core| core == 3).cores().len(), 1);
        assert_eq!(THREADS.pin(1000).unwrap_err().code, Code::Io);
        THREADS.pin(0).unwrap();
    });
    without_allocation(|| {
        let region = AnonymousMemory.allocate(Use::Weights, 5 << 20).unwrap();
        assert!(ProcessMeter.resident_bytes().unwrap() > 5 << 20);
        // SAFETY: allocated above, not used, released once.
        unsafe { AnonymousMemory.release(Use::Weights, region) };
        let chunks = ChunkMemory::new();
        let region = chunks.allocate(Use::Kv, 1 << 20).unwrap();
        // SAFETY: as above.
        unsafe { chunks.release(Use::Kv, region) };
        drop(chunks);
        let arena = map_arena(100_000).unwrap();
        // SAFETY: the whole slice, not used again.
        unsafe { unmap_arena(arena.into()) };
        PARK.wait(&Word::new(1), 1, Some(Nanos::new(1000)));
        assert!(MonotonicClock.now() > Nanos::new(0));
    });
}

fn files(model: &CStr, swap: &CStr, buffer: &mut [u8]) {
    let file = File::open_model(model).unwrap();
    file.read_at(0, buffer).unwrap();
    RowFile::open(model).unwrap().read_exact_at(77, &mut buffer[..99]).unwrap();
    assert_eq!(MappedFile::open(model).unwrap().len(), 100_000);
    let file = File::create_swap(swap).unwrap();
    file.write_at(0, buffer).unwrap();
    file.sync().unwrap();
    file.discard(0, 4096).unwrap();
    assert_eq!(file.length().unwrap(), buffer.len() as u64);
    // Failures do not allocate either.
    assert_eq!(File::open_swap(swap).map(drop).unwrap_err().code, Code::BadState);
    assert_eq!(MappedFile::open(c"/nowhere").map(drop).unwrap_err().code, Code::Io);
    assert_eq!(file.read_at(1, buffer).unwrap_err().code, Code::InvalidArgument);
}

fn c_path(file: &ScratchFile) -> CString {
    CString::new(file.0.as_os_str().as_encoded_bytes()).unwrap()
}
