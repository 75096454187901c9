//! The manager under many real threads at once. A program without the test harness and on threads
//! of the library's own port, since ThreadSanitizer reports what the standard library does inside
//! of its own threads; `tests/run` builds it with that. Threads meet through the library's words
//! alone, so that nothing else puts their accesses in order.

mod manager;

use manager::*;
use mzcache::Code;
use mzcache::port::linux::{FutexPark, PosixThreads, ThreadTeam};
use mzcache::port::parallel::parallel;
use mzcache::port::{Body, ThreadId, ThreadSpec, Threads};
use mzcache::runtime::{Evictor, Runtime, Worker};
use mzcache::state::Roles;
use mzcache::sync::{Counter, Flag, Word};
use mzcache::units::{ByteCount, CodecId, Kind, LayerIndex, Nanos, TokenCount};
use std::time::Duration;

static PARK: FutexPark = FutexPark;
static THREADS: PosixThreads = PosixThreads::new();
static TEAM: ThreadTeam = ThreadTeam::new(&THREADS, &PARK);

/// Passes of the computing thread with each codec, and tokens of the context.
const PASSES: u32 = 8;
const TOKENS: u32 = 300;

/// What a thread does again and again until it is told to stop.
struct Task {
    again: Box<dyn Fn() + Sync>,
    stop: Flag,
}

impl Body for Task {
    fn run(&self) {
        while !self.stop.is_raised() {
            (self.again)();
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

fn start(again: impl Fn() + Sync + 'static) -> (&'static Task, ThreadId) {
    let task: &'static Task = leak(Task { again: Box::new(again), stop: Flag::new() });
    let spec = ThreadSpec { name: "stress", stack_bytes: 1 << 20 };
    (task, THREADS.spawn(spec, task).unwrap())
}

fn stop((task, thread): (&'static Task, ThreadId)) {
    task.stop.raise();
    THREADS.join(thread);
}

/// What the threads did, for the report.
#[derive(Default)]
struct Done {
    /// Evictions that may still be tried in this pass. Without a limit they could win for ever.
    allowed: Word,
    /// Threads that are trying one. Raised before they look whether they may.
    trying: Word,
    evictions: Counter,
    cancelled: Counter,
    reads: Counter,
    runs: Counter,
}

impl Done {
    fn is_allowed(&self) -> bool {
        let allowed = self.allowed.load();
        allowed > 0 && self.allowed.replace(allowed, allowed - 1)
    }
}

/// Evicts that much, if it may.
fn evict(evictor: Evictor, bytes: u64, deadline: Option<Nanos>, done: &Done) {
    done.trying.increment();
    if done.is_allowed() {
        match evictor.evict(ByteCount::new(bytes), deadline) {
            Ok(report) => {
                assert!(report.booked.error.is_none(), "{report:?}");
                done.evictions.add(1);
            }
            // The other one is at it, or the runtime is gone.
            Err(error) => assert_eq!(error.code, Code::BadState, "{error}"),
        }
    }
    done.trying.decrement();
}

/// Until no eviction is running and none can begin: those of one thread refuse those of another.
fn let_evictions_end(done: &Done) {
    // In this order: who is not trying when nothing is allowed any more finds nothing allowed.
    while done.allowed.load() > 0 || done.trying.load() > 0 {
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Takes half of all away, begins to restore it and cancels that.
fn cancel(runtime: &Runtime, half: u64, done: &Done) {
    runtime.evict(ByteCount::new(half), None).unwrap();
    runtime.begin_pass(TokenCount::new(TOKENS)).unwrap();
    match runtime.cancel_restore() {
        Ok(()) => done.cancelled.add(1),
        // It was complete.
        Err(error) => assert_eq!(error.code, Code::BadState, "{error}"),
    }
    runtime.check().unwrap();
}

/// Looks at what is there, as compute would.
fn read(runtime: &Runtime, done: &Done) {
    let layer = LayerIndex::new((done.reads.get() % 6) as u16);
    if runtime.is_open(layer, Kind::Weights)
        && let Ok(lease) = runtime.weights(layer)
    {
        done.reads.add(1 + u64::from(lease.iter().all(|byte| *byte == 0)));
    }
    if let Ok(lease) = runtime.kv(id(layer.get(), 1)) {
        assert!(!lease.is_empty());
        done.reads.add(u64::from(lease[1000] | 1));
    }
    runtime.stats();
}

/// Fork and join from two threads at once; one of them finds the team busy.
fn run_team(done: &Done) {
    let mut parts = [0u64; 3];
    parallel(&TEAM, &mut parts, |index, part| *part = (0..1000).sum::<u64>() + index as u64);
    assert_eq!(parts, [499_500, 499_501, 499_502]);
    done.runs.add(1);
}

/// A pass that is tried until no eviction came in between.
fn pass_at_last(fixture: &Fixture, done: &Done) -> u32 {
    done.allowed.store(8);
    let mut tries = 1;
    while let Err(error) = pass(fixture, 3) {
        assert!(matches!(error.code, Code::Cancelled | Code::BadState), "{error}");
        tries += 1;
    }
    tries
}

/// K and V of the context, as [`pass`] wrote them.
fn expected() -> Vec<u16> {
    let width = places(0).count();
    let all = expected_values();
    let layers = all.chunks(width * CONTEXT as usize);
    layers.flat_map(|layer| &layer[..width * TOKENS as usize]).copied().collect()
}

fn stress(codec: CodecId) {
    let workers = [Roles::READ, Roles::UNPACK, Roles::ALLOCATE].map(Worker::new);
    let helpers = workers.map(|worker| Worker { helps: Roles::READ | Roles::UNPACK, ..worker });
    let workers = [workers, helpers].concat();
    let setup = Setup { codec, workers, threads: Some(&THREADS), ..Setup::default() };
    let fixture: &'static Fixture = leak(open("stress", &setup));
    let done: &'static Done = leak(Done::default());
    let runtime = &fixture.runtime;
    pass(fixture, TOKENS).unwrap();
    let (total, evictor) = (total(runtime), runtime.evictor());
    evict_to(runtime, 50, total);
    let tasks = [
        start(move || evict(evictor, total / 3, None, done)),
        start(move || evict(evictor, total, Some(Nanos::new(2_000_000)), done)),
        start(move || read(runtime, done)),
        start(move || run_team(done)),
    ];
    let mut tries = 0;
    for _ in 0..PASSES {
        tries += pass_at_last(fixture, done);
        run_team(done);
        let_evictions_end(done);
        runtime.truncate(TokenCount::new(TOKENS)).unwrap();
        cancel(runtime, total / 2, done);
    }
    tasks.into_iter().for_each(stop);
    let Done { evictions, cancelled, reads, runs, .. } = done;
    let counts = [evictions, cancelled, reads, runs].map(Counter::get);
    println!("{codec:?}: {tries} tries of {PASSES} passes; evictions, cancels, ...: {counts:?}");
    assert!(evictions.get() > 0);
    runtime.restore().unwrap();
    runtime.check().unwrap();
    if codec == CodecId::Raw {
        assert!(kv_values(runtime) == expected());
    }
    done.allowed.store(1 << 30);
    let guest = start(move || evict(evictor, total / 50, None, done));
    std::thread::sleep(Duration::from_millis(5));
    // SAFETY: it was leaked above, and of its users only the guest runs, which has an evictor.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(fixture).cast_mut()) });
    stop(guest);
}

fn main() {
    TEAM.open(3).unwrap();
    for codec in [CodecId::Raw, CodecId::Q8] {
        stress(codec);
    }
    TEAM.close();
}
