//! The Nth port call of each kind fails, for every N that a life has, once and from then on; a
//! restore is cancelled, and interrupted by evictions, after each of its actions. On the system's
//! own files, memory and threads. After each: a typed error, sound books, nothing leaked, and a
//! clean retry that brings the very bytes back.

use crate::injector::{Call, Fault, Files, Injector, Plan};
use crate::world::{Lent, Setup, World, check_closed, model_fill};
use mzcache::kernel::CpuFlags;
use mzcache::policy::{Order, Profile, Scheme};
use mzcache::port::linux::HostPorts;
use mzcache::runtime::Worker;
use mzcache::state::{EvictPolicy, Paths, Roles, Stop};
use mzcache::units::{ByteCount, CodecId, KvShape, Nanos, TokenCount};
use mzcache::{Code, Result};
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// More than any life has calls of one kind.
const CALLS_MAX: u64 = 2000;

fn setup(codec: CodecId, workers: &[Roles]) -> Setup {
    // Where several readers may share it, the head is read in two parts.
    let head_pages = if workers.is_empty() { 3 } else { 257 };
    Setup {
        shape: KvShape { layers: 2, kv_heads: 1, head_dim: 32 },
        unit_pages: vec![2, 1, head_pages],
        tokens_max: 1024,
        codec,
        evict: EvictPolicy::default(),
        workers: workers.iter().copied().map(Worker::new).collect(),
        swap_file: true,
        segment_bytes: 64 << 10,
        profile: Profile::DEFAULT,
        cpu: CpuFlags::detect(),
        is_wild: false,
        tells: false,
    }
}

const THREADS: [Roles; 3] = [Roles::READ, Roles::UNPACK, Roles::ALLOCATE];

/// A folder with a model file and a swap file, open.
struct Place {
    folder: PathBuf,
    host: Option<Lent<HostPorts>>,
}

impl Place {
    fn new(name: &str, setup: &Setup) -> Self {
        let name = format!("faults-{name}-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut model = vec![0; usize::try_from(setup.model_bytes()).unwrap()];
        model_fill(0, &mut model);
        std::fs::write(folder.join("model"), &model).unwrap();
        let path = |name| CString::new(folder.join(name).to_str().unwrap()).unwrap();
        let host = HostPorts::open(&path("model"), Some(&path("swap"))).unwrap();
        Place { folder, host: Some(Lent::new(Box::new(host))) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking()
            && let Some(host) = self.host.take()
        {
            // SAFETY: the worlds on it have ended, since none failed.
            unsafe { host.end() };
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Real ports behind an injector, for one life. The swap file holds what earlier lives left.
struct Stage {
    injector: Lent<Injector>,
    files: Lent<Files>,
}

impl Stage {
    fn new(place: &Place) -> Self {
        let host = place.host.as_ref().unwrap().get();
        let injector = Lent::new(Box::new(Injector::new(host.ports())));
        let files = Lent::new(Box::new(Files::new(injector.get())));
        Stage { injector, files }
    }

    fn open(&self, setup: &Setup) -> Result<World> {
        World::open(setup, self.injector.get().ports(self.files.get()))
    }

    /// Closes the world and what it stood on.
    fn end(self, world: Option<World>) {
        let injector = self.injector.get();
        // SAFETY: no evictor was made, and the runtime that used the ports ends first.
        unsafe {
            if let Some(world) = world {
                world.close();
            }
            check_closed(&|usage| injector.live(usage));
            self.files.end();
            self.injector.end();
        }
    }
}

fn policy(scheme: Scheme, order: Order, paths: Paths) -> EvictPolicy {
    EvictPolicy { scheme, order, paths }
}

/// The steps of a life; each can be done again after it failed.
const STEPS: usize = 10;

fn step(world: &mut World, step: usize) -> Result<Option<Code>> {
    let hybrid = policy(Scheme::Hybrid, Order::BackwardOut, Paths::BOTH);
    let flash = Paths { ram: false, flash: true };
    let by_layers = policy(Scheme::PartialOffload, Order::ForwardOut, flash);
    let total = world.runtime.stats().tally.total_bytes();
    let evicted = |policy, bytes| {
        let report = world.evict(policy, bytes, None)?;
        Ok(report.booked.error.map(|error| error.code))
    };
    match step {
        0 => world.pass(600)?,
        1 => return evicted(hybrid, total - total / 100),
        2 | 6 => world.restore()?,
        3 => return evicted(by_layers, total / 2),
        4 => world.pass(100)?,
        5 | 8 => return evicted(hybrid, u64::MAX),
        7 => return evicted(policy(Scheme::Hybrid, Order::Lru, flash), total / 2),
        9 => world.truncate(300)?,
        _ => unreachable!("there are {STEPS} steps"),
    }
    Ok(None)
}

/// The errors that a fault may become.
fn expected(plan: &Plan) -> Code {
    match plan.fault {
        Fault::Error(code) => code,
        Fault::Short if plan.call == Call::SwapRead => Code::Corrupt,
        Fault::Short if plan.call == Call::SwapWrite => Code::Io,
        Fault::Short => Code::ShortRead,
        Fault::Flip => Code::Corrupt,
        Fault::Jump => unreachable!("time is no error"),
    }
}

/// What to do before a failed step is done again.
fn make_good(world: &mut World) {
    let Some(token) = world.runtime.lost() else { return };
    let tokens = world.tokens;
    world.truncate(token.get()).unwrap();
    world.pass(tokens - token.get()).unwrap();
}

/// One life under a plan; whether the fault happened.
fn live(place: &Place, setup: &Setup, plan: Plan) -> bool {
    let stage = Stage::new(place);
    let injector = stage.injector.get();
    let books = |world: &World| world.check_books(&|usage| injector.live(usage));
    injector.arm(plan);
    let mut world = match stage.open(setup) {
        Ok(world) => world,
        Err(error) => {
            assert_eq!(error.code, expected(&plan), "{plan:?}: {error}");
            assert!(injector.heal());
            check_closed(&|usage| injector.live(usage));
            stage.open(setup).unwrap()
        }
    };
    for number in 0..STEPS {
        match step(&mut world, number) {
            Ok(None) => {}
            // An eviction went another way, or did what it could.
            Ok(Some(code)) => {
                assert!(injector.has_fired());
                assert_eq!(code, expected(&plan), "{plan:?} step {number}");
            }
            Err(error) => {
                assert!(injector.heal(), "{plan:?} step {number}: {error}");
                assert_eq!(error.code, expected(&plan), "{plan:?} step {number}: {error}");
                // A pass may have ended before its restore.
                let _ = world.runtime.finish_restore();
                books(&world);
                make_good(&mut world);
                step(&mut world, number).unwrap();
            }
        }
        books(&world);
    }
    let fired = injector.heal();
    make_good(&mut world);
    world.restore().unwrap_or_else(|error| panic!("{plan:?}: {error}"));
    assert_eq!(world.tokens, 300);
    books(&world);
    stage.end(Some(world));
    fired
}

/// Lives until one has no Nth call; how many there were.
fn every_call(place: &Place, setup: &Setup, call: Call, fault: Fault, forever: bool) -> u64 {
    (0..CALLS_MAX)
        .find(|nth| !live(place, setup, Plan { call, fault, nth: *nth, forever }))
        .expect("a life ends")
}

/// Which calls can fail, how, and how many a life has at least.
const FAULTS: [(Call, Fault, u64); 14] = [
    (Call::ModelLength, Fault::Error(Code::Io), 1),
    (Call::ModelRead, Fault::Error(Code::Io), 12),
    (Call::ModelRead, Fault::Short, 12),
    (Call::SwapRead, Fault::Error(Code::Io), 6),
    (Call::SwapRead, Fault::Short, 6),
    (Call::SwapRead, Fault::Flip, 6),
    (Call::SwapWrite, Fault::Error(Code::Io), 6),
    (Call::SwapWrite, Fault::Error(Code::NoSpace), 6),
    (Call::SwapWrite, Fault::Short, 6),
    (Call::Allocate, Fault::Error(Code::OutOfMemory), 20),
    (Call::Begin, Fault::Error(Code::DeviceFailed), 50),
    (Call::Measure, Fault::Error(Code::Io), 2),
    (Call::Now, Fault::Jump, 20),
    (Call::Spawn, Fault::Error(Code::LimitExceeded), 0),
];

fn lives(name: &str, setup: &Setup) {
    let place = Place::new(name, setup);
    let mut lives = 0;
    for (call, fault, least) in FAULTS {
        for forever in [false, true] {
            let calls = every_call(&place, setup, call, fault, forever);
            // A fault that lasts takes later calls of the same kind away.
            assert!(calls >= if forever { least.min(1) } else { least }, "{call:?}: {calls}");
            lives += calls + 1;
        }
    }
    println!("{lives} lives");
}

#[test]
fn every_call_fails_inline_with_raw() {
    lives("raw", &setup(CodecId::Raw, &[]));
}

#[test]
fn every_call_fails_inline_with_q8() {
    lives("q8", &setup(CodecId::Q8, &[]));
}

#[test]
fn every_call_fails_inline_with_kv4() {
    lives("kv4", &setup(CodecId::Kv4, &[]));
}

#[test]
fn every_call_fails_inline_with_kvh() {
    lives("kvh", &setup(CodecId::Kvh, &[]));
}

#[test]
fn every_call_fails_inline_with_cachegen() {
    lives("cachegen", &setup(CodecId::CacheGen, &[]));
}

#[test]
fn every_call_fails_under_threads() {
    let setup = setup(CodecId::Q8, &THREADS);
    lives("threads", &setup);
    let place = Place::new("spawn", &setup);
    let spawn = |forever| {
        let fault = Fault::Error(Code::LimitExceeded);
        every_call(&place, &setup, Call::Spawn, fault, forever)
    };
    assert_eq!([spawn(false), spawn(true)], [THREADS.len() as u64; 2]);
}

/// A world that has tokens, for tests that need no faults.
fn grown(stage: &Stage, setup: &Setup) -> World {
    let mut world = stage.open(setup).unwrap();
    world.pass(600).unwrap();
    world
}

#[test]
fn a_restore_is_cancelled_after_each_of_its_actions() {
    for codec in [CodecId::Raw, CodecId::Q8] {
        let setup = setup(codec, &[]);
        let place = Place::new(&format!("cancel-{}", codec.name()), &setup);
        let stage = Stage::new(&place);
        let injector = stage.injector.get();
        let world = grown(&stage, &setup);
        let total = world.runtime.stats().tally.total_bytes();
        let mut polls = 0;
        loop {
            world.evict(setup.evict, total - total / 100, None).unwrap();
            world.runtime.begin_pass(world.runtime.tokens()).unwrap();
            let done = (0..polls).filter(|_| world.runtime.poll()).count();
            match world.runtime.cancel_restore() {
                Ok(()) => assert_eq!(done, polls),
                // It was complete.
                Err(error) => assert_eq!(error.code, Code::BadState),
            }
            world.check_books(&|usage| injector.live(usage));
            world.restore().unwrap();
            if done < polls {
                break;
            }
            polls += 1;
        }
        assert!(polls > 10, "{polls}");
        stage.end(Some(world));
    }
}

#[test]
fn an_eviction_comes_after_each_action_of_a_restore() {
    for (codec, percent) in [(CodecId::Raw, 30), (CodecId::Q8, 1), (CodecId::Kv4, 100)] {
        let setup = setup(codec, &[]);
        let place = Place::new(&format!("during-{}", codec.name()), &setup);
        let stage = Stage::new(&place);
        let injector = stage.injector.get();
        let mut world = grown(&stage, &setup);
        let total = world.runtime.stats().tally.total_bytes();
        let mut polls = 0;
        loop {
            world.evict(setup.evict, total - total / 50, None).unwrap();
            world.runtime.begin_pass(TokenCount::new(700)).unwrap();
            let done = (0..polls).filter(|_| world.runtime.poll()).count();
            let held = world.runtime.stats().tally.total_bytes();
            let report = world.runtime.evict(ByteCount::new(held * percent / 100), None).unwrap();
            assert_eq!(report.booked.stop, Stop::Reached, "{report:?}");
            world.check_books(&|usage| injector.live(usage));
            match world.compute(700) {
                Ok(()) => panic!("its layers were evicted"),
                Err(error) => assert_eq!(error.code, Code::Cancelled, "{error}"),
            }
            world.truncate(600).unwrap();
            world.restore().unwrap();
            if done < polls {
                break;
            }
            polls += 1;
        }
        assert!(polls > 10, "{polls}");
        stage.end(Some(world));
    }
}

#[test]
fn a_deadline_passes_at_each_look_at_the_clock() {
    let setup = setup(CodecId::Q8, &[]);
    let place = Place::new("deadline", &setup);
    let stage = Stage::new(&place);
    let injector = stage.injector.get();
    let world = grown(&stage, &setup);
    for nth in 0..CALLS_MAX {
        injector.arm(Plan { call: Call::Now, fault: Fault::Jump, nth, forever: false });
        let report = world.evict(setup.evict, u64::MAX, Some(Nanos::new(30_000_000_000))).unwrap();
        let fired = injector.heal();
        world.check_books(&|usage| injector.live(usage));
        let passed = report.booked.stop == Stop::Deadline;
        assert!(fired || !passed, "{report:?}");
        world.restore().unwrap();
        if !fired {
            assert!(nth > 10);
            break;
        }
    }
    stage.end(Some(world));
}
