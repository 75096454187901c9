//! Workers that ask for cores, get them or not, and ask again.

use crate::manager::*;
use mzcache::port::linux::PosixThreads;
use mzcache::port::{Body, ThreadId, ThreadSpec, Threads};
use mzcache::runtime::Worker;
use mzcache::{Code, Error, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A core that no machine of the tests has, and a set of cores can name.
pub const ABSENT: u16 = 1000;

/// Workers on those cores, in the order of the default ones: read, unpack, allocate.
pub fn workers_on(cores: [Option<u16>; 3]) -> Vec<Worker> {
    let workers = Setup::default().workers.into_iter().zip(cores);
    workers.map(|(worker, core)| Worker { core, ..worker }).collect()
}

/// How many workers are on their cores, and how many are not.
pub fn pins(fixture: &Fixture) -> (usize, usize) {
    let stats = fixture.runtime.stats();
    (stats.workers_pinned, stats.workers_unpinned)
}

/// Waits for workers to ask.
pub fn wait_for_pins(fixture: &Fixture, expected: (usize, usize)) {
    let start = Instant::now();
    while pins(fixture) != expected {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", pins(fixture));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel's list of the cores that this worker thread of this process may use.
fn cores_of(name: &str) -> String {
    let named = format!("Name:\t{name}\n");
    let statuses = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let paths = tasks.map(|task| task.unwrap().path().join("status"));
        let texts = paths.filter_map(|path| std::fs::read_to_string(path).ok());
        texts.filter(|text| text.starts_with(&named)).collect::<Vec<_>>()
    };
    // Open does not wait for workers that want no core, so one may not have its name yet.
    let start = Instant::now();
    let mut found = statuses();
    while found.is_empty() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
        found = statuses();
    }
    assert_eq!(found.len(), 1, "threads named {name}");
    let line = found[0].lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    line.unwrap().to_owned()
}

/// Refuses every core while it is told to, and counts who asks.
#[derive(Default)]
struct Confined {
    threads: PosixThreads,
    refuses: AtomicBool,
    asked: AtomicUsize,
}

impl Threads for Confined {
    fn spawn(&self, spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        self.threads.spawn(spec, body)
    }

    fn join(&self, thread: ThreadId) {
        self.threads.join(thread);
    }

    fn pin(&self, core: u16) -> Result<()> {
        self.asked.fetch_add(1, SeqCst);
        match self.refuses.load(SeqCst) {
            true => Err(Error::new(Code::Io, "core").with(libc::EINVAL)),
            false => self.threads.pin(core),
        }
    }
}

/// One test, since it looks for its workers among all threads of the process.
#[test]
fn workers_are_on_their_cores_or_counted_and_ask_again_when_told() {
    let threads: &'static Confined = leak(Confined::default());
    let workers = workers_on([Some(0), Some(ABSENT), None]);
    let setup = Setup { workers, threads: Some(threads), ..Setup::default() };
    threads.refuses.store(true, SeqCst);
    let fixture = open("pins", &setup);
    // Open waits for their answers.
    assert_eq!((pins(&fixture), threads.asked.load(SeqCst)), ((0, 2), 2));
    let anywhere = cores_of("mz-alloc-2");
    assert_eq!(cores_of("mz-read-0"), anywhere);

    // They have nothing to do, and are parked.
    threads.refuses.store(false, SeqCst);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((pins(&fixture), threads.asked.load(SeqCst)), ((0, 2), 2), "nobody told them");
    fixture.runtime.repin();
    wait_for_pins(&fixture, (1, 1));
    assert_eq!(cores_of("mz-read-0"), "0");
    assert_eq!(cores_of("mz-unpack-1"), anywhere, "there is no core {ABSENT}");
    assert_eq!(cores_of("mz-alloc-2"), anywhere);

    // Resting workers do too, and so do busy ones, which lose nothing by it.
    fixture.runtime.rest_workers(true);
    threads.refuses.store(true, SeqCst);
    fixture.runtime.repin();
    wait_for_pins(&fixture, (0, 2));
    fixture.runtime.rest_workers(false);
    threads.refuses.store(false, SeqCst);
    pass(&fixture, CONTEXT).unwrap();
    let all = total(&fixture.runtime);
    for percent in [50, 0, 25] {
        evict_to(&fixture.runtime, percent, all);
        fixture.runtime.begin_pass(fixture.runtime.tokens()).unwrap();
        for _ in 0..50 {
            fixture.runtime.repin();
        }
        fixture.runtime.finish_restore().unwrap();
    }
    wait_for_pins(&fixture, (1, 1));
    fixture.runtime.check().unwrap();
    assert!(kv_values(&fixture.runtime) == expected_values());
}

#[test]
fn without_threads_nobody_is_pinned() {
    let fixture = open("pins-inline", &Setup { workers: vec![], ..Setup::default() });
    fixture.runtime.repin();
    pass(&fixture, 1).unwrap();
    assert_eq!(pins(&fixture), (0, 0));
}
