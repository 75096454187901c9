//! Threads and the team on real cores.
#![cfg(feature = "host")]

use mzcache::port::linux::{FutexPark, PosixThreads, THREADS_MAX, ThreadTeam};
use mzcache::port::{Body, Park, Team, ThreadSpec, Threads};
use mzcache::sync::Word;
use mzcache::units::Nanos;
use mzcache::{Code, Error};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

static PARK: FutexPark = FutexPark;

fn new_threads() -> &'static PosixThreads {
    Box::leak(Box::new(PosixThreads::new()))
}

fn new_team(threads: &'static dyn Threads) -> &'static ThreadTeam {
    Box::leak(Box::new(ThreadTeam::new(threads, &PARK)))
}

fn spec(name: &str) -> ThreadSpec<'_> {
    ThreadSpec { name, stack_bytes: 64 << 10 }
}

/// Pins itself if it is to, parks until it is let go, and says which kernel thread it is.
struct Waiter {
    go: Word,
    kernel_id: Word,
    core: Option<u16>,
    pinned: OnceLock<Result<(), Error>>,
}

impl Waiter {
    fn leak() -> &'static Self {
        Self::leak_on(None)
    }

    fn leak_on(core: Option<u16>) -> &'static Self {
        let (go, kernel_id, pinned) = (Word::new(0), Word::new(0), OnceLock::new());
        Box::leak(Box::new(Waiter { go, kernel_id, core, pinned }))
    }

    fn wait_until_running(&self) -> u32 {
        while self.kernel_id.load() == 0 {
            PARK.wait(&self.kernel_id, 0, None);
        }
        self.kernel_id.load()
    }

    fn let_go(&self) {
        self.go.store(1);
        PARK.wake_all(&self.go);
    }
}

impl Body for Waiter {
    fn run(&self) {
        if let Some(core) = self.core {
            self.pinned.set(PosixThreads::new().pin(core)).unwrap();
        }
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        let id = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
        self.kernel_id.store(id);
        PARK.wake_all(&self.kernel_id);
        while self.go.load() == 0 {
            PARK.wait(&self.go, 0, Some(Nanos::new(u64::MAX)));
        }
    }
}

fn proc_file(kernel_id: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/task/{kernel_id}/{name}")).unwrap()
}

#[test]
fn a_thread_has_its_name_and_its_core_and_blocks_signals() {
    let threads = new_threads();
    let waiter = Waiter::leak_on(Some(0));
    let id = threads.spawn(spec("mz-fifteen-byte"), waiter).unwrap();
    let kernel_id = waiter.wait_until_running();
    assert_eq!(waiter.pinned.get(), Some(&Ok(())));
    assert_eq!(proc_file(kernel_id, "comm"), "mz-fifteen-byte\n");
    let status = proc_file(kernel_id, "status");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("Cpus_allowed_list:"), "0");
    let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
    let bit = |signal: i32| 1u64 << (signal - 1);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGPROF, libc::SIGUSR1] {
        assert_ne!(blocked & bit(signal), 0, "signal {signal} reaches the thread");
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        assert_eq!(blocked & bit(signal), 0, "fault {signal} is hidden from crash reporters");
    }
    waiter.let_go();
    threads.join(id);
    // The spawning thread's own mask is as before.
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(own.contains("SigBlk:\t0000000000000000"), "{own}");
}

/// Looks at the mapping that holds its own stack, and at the one below.
struct StackLooker {
    guarded: Word,
    stack_bytes: Word,
}

impl Body for StackLooker {
    fn run(&self) {
        let on_stack = 0_u8;
        let here = std::ptr::from_ref(std::hint::black_box(&on_stack)).addr();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut below = None;
        for line in maps.lines() {
            let (range, rest) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let parse = |text| usize::from_str_radix(text, 16).unwrap();
            let (from, to) = (parse(from), parse(to));
            if (from..to).contains(&here) {
                self.stack_bytes.store((to - from) as u32);
                self.guarded.store(u32::from(below == Some((from, true))));
            }
            below = Some((to, rest.starts_with("---p")));
        }
    }
}

#[test]
fn a_stack_has_its_size_and_a_guard_page_below() {
    let threads = new_threads();
    let looker: &StackLooker =
        Box::leak(Box::new(StackLooker { guarded: Word::new(0), stack_bytes: Word::new(0) }));
    let id = threads.spawn(spec("looker"), looker).unwrap();
    threads.join(id);
    assert_eq!(looker.guarded.load(), 1);
    assert!(looker.stack_bytes.load() >= 64 << 10);
}

#[test]
fn a_core_that_cannot_be_had_is_refused_and_means_anywhere() {
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = own.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap();
    let threads = new_threads();
    // Neither exists here; the second is beyond what a set of cores can name.
    for (core, error) in [
        (1000, Error::new(Code::Io, "core").with(libc::EINVAL)),
        (u16::MAX, Error::new(Code::InvalidArgument, "core").with(u16::MAX)),
    ] {
        let waiter = Waiter::leak_on(Some(core));
        let id = threads.spawn(spec("w"), waiter).unwrap();
        let status = proc_file(waiter.wait_until_running(), "status");
        assert!(status.contains(allowed), "{status}");
        assert_eq!(waiter.pinned.get(), Some(&Err(error)));
        waiter.let_go();
        threads.join(id);
    }
}

#[test]
fn wrong_names_and_sizes_are_errors() {
    let threads = new_threads();
    let waiter = Waiter::leak();
    for name in ["sixteen-bytes-ab", "nul\0inside"] {
        let error = threads.spawn(spec(name), waiter).unwrap_err();
        assert_eq!((error.code, error.what), (Code::InvalidArgument, "thread name"));
    }
    for stack_bytes in [usize::MAX, isize::MAX as usize, 1 << 62] {
        let error = threads.spawn(ThreadSpec { stack_bytes, ..spec("w") }, waiter).unwrap_err();
        assert_eq!((error.code, error.what), (Code::OutOfMemory, "thread stack"));
    }
}

#[test]
fn a_full_table_is_an_error_and_a_joined_thread_makes_room() {
    let threads = new_threads();
    let waiter = Waiter::leak();
    let mut ids: Vec<_> =
        (0..THREADS_MAX).map(|_| threads.spawn(spec("w"), waiter).unwrap()).collect();
    let error = threads.spawn(spec("w"), waiter).unwrap_err();
    assert_eq!((error.code, error.what), (Code::LimitExceeded, "threads"));
    waiter.let_go();
    let first = ids.swap_remove(0);
    threads.join(first);
    let again = threads.spawn(spec("w"), waiter).unwrap();
    assert_ne!(first, again, "an id is not used twice");
    ids.push(again);
    ids.into_iter().for_each(|id| threads.join(id));
}

#[test]
#[should_panic]
fn joining_twice_is_refused() {
    let threads = new_threads();
    let waiter = Waiter::leak();
    waiter.let_go();
    let id = threads.spawn(spec("w"), waiter).unwrap();
    threads.join(id);
    threads.join(id);
}

#[test]
fn every_part_of_every_run_is_done_once_and_before_run_returns() {
    for width in [1, 2, 3, 5] {
        let threads = new_threads();
        let team = new_team(threads);
        team.open(width).unwrap();
        assert_eq!(team.width(), width);
        for round in 0..4000_u64 {
            // Plain memory, one part each: a part that ran twice or late would be seen.
            let mut parts = vec![0_u64; width];
            let base = parts.as_mut_ptr() as usize;
            team.run(&|part| {
                assert!(part < width);
                // SAFETY: each part has its own element, and `run` returns after all parts.
                unsafe { *(base as *mut u64).add(part) += round + part as u64 + 1 };
            });
            for (part, value) in parts.iter().enumerate() {
                assert_eq!(*value, round + part as u64 + 1, "width {width} round {round}");
            }
            if round % 500 == 0 {
                // Let the helpers park, so that waking them is covered too.
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        }
        team.close();
        team.close();
        let after = AtomicUsize::new(0);
        team.run(&|_| {
            after.fetch_add(1, SeqCst);
        });
        assert_eq!(after.into_inner(), width, "a closed team works on its caller alone");
    }
}

#[test]
fn nested_runs_and_runs_of_several_threads_finish() {
    let team = new_team(new_threads());
    team.open(3).unwrap();
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    team.run(&|outer| {
                        team.run(&|inner| {
                            sum.fetch_add((outer * 3 + inner) as u64 + 1, SeqCst);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 4 * 500 * 45);
    team.close();
}

#[test]
fn a_team_opens_again_after_closing_but_not_twice() {
    let team = new_team(new_threads());
    for width in [2, 4] {
        team.open(width).unwrap();
        assert_eq!(team.open(2).unwrap_err().code, Code::BadState);
        let done = AtomicUsize::new(0);
        team.run(&|part| {
            done.fetch_add(1 << (8 * part), SeqCst);
        });
        assert_eq!(done.into_inner(), 0x0101_0101 & ((1 << (8 * width)) - 1));
        team.close();
    }
    for width in [0, 33] {
        assert_eq!(team.open(width).unwrap_err().code, Code::InvalidArgument);
    }
}

#[test]
fn closing_waits_for_the_run_in_progress() {
    let team = new_team(new_threads());
    team.open(2).unwrap();
    let (entered, finished) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            team.run(&|_| {
                entered.store(true, SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(30));
                finished.fetch_add(1, SeqCst);
            });
        });
        while !entered.load(SeqCst) {
            std::thread::yield_now();
        }
        team.close();
        assert_eq!(finished.load(SeqCst), 2);
    });
}

#[test]
fn helpers_that_cannot_all_start_leave_none_behind() {
    let threads = new_threads();
    let waiter = Waiter::leak();
    let ids: Vec<_> =
        (0..THREADS_MAX - 2).map(|_| threads.spawn(spec("w"), waiter).unwrap()).collect();
    let team = new_team(threads);
    assert_eq!(team.open(4).unwrap_err().code, Code::LimitExceeded);
    assert_eq!(team.width(), 1);
    // Both slots that the failed team had taken are free again.
    team.open(3).unwrap();
    team.close();
    waiter.let_go();
    ids.into_iter().for_each(|id| threads.join(id));
}

#[test]
fn a_part_that_panics_on_the_caller_does_not_let_the_job_dangle() {
    let team = new_team(new_threads());
    team.open(2).unwrap();
    let caller = std::thread::current().id();
    let done = AtomicUsize::new(0);
    // Repeated until the caller has drawn at least one ticket.
    let panicked = (0..10_000).any(|_| {
        let run = std::panic::AssertUnwindSafe(|| {
            team.run(&|_| {
                done.fetch_add(1, SeqCst);
                if std::thread::current().id() == caller {
                    std::panic::resume_unwind(Box::new("part"));
                }
            });
        });
        std::panic::catch_unwind(run).is_err()
    });
    assert!(panicked);
    assert_eq!(done.load(SeqCst) % 2, 0, "every run did both parts");
    let after = AtomicUsize::new(0);
    team.run(&|_| {
        after.fetch_add(1, SeqCst);
    });
    assert_eq!(after.into_inner(), 2);
    team.close();
}
