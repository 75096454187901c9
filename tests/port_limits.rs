//! What memory, threads and the meter do when the system refuses, and where a stack ends.
#![cfg(feature = "host")]

#[path = "support/scenario.rs"]
mod scenario;
#[path = "support/strace.rs"]
mod strace;

use mzcache::port::linux::{AnonymousMemory, ChunkMemory, PosixThreads, ProcessMeter, map_arena};
use mzcache::port::{Body, Meter, SharedMemory, ThreadSpec, Threads, Use};
use scenario::{SCENARIO, run, say, show};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use strace::under_strace;

#[test]
#[ignore = "started by the other tests, under strace"]
fn scenario() {
    // A scenario that never ends is a failure.
    // SAFETY: an alarm only ends the process.
    unsafe { libc::alarm(60) };
    match std::env::var(SCENARIO).expect("started by the other tests").as_str() {
        "memory" => memory(),
        "chunk" => chunk(),
        "limited" => limited(),
        "spawn" => spawn(),
        "overflow" => overflow(),
        "meter" => say(format!("meter {}", show(ProcessMeter.resident_bytes().map(|_| "ok")))),
        other => panic!("no scenario {other}"),
    }
}

/// Address space in use.
fn mapped_bytes() -> i64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<i64>().unwrap() * 4096
}

/// Says by how much the process grew with a buffer of 3 MiB, and by how much when it was gone.
fn memory() {
    const BYTES: usize = 3 << 20;
    let measure = || ProcessMeter.resident_bytes().unwrap() as i64;
    measure();
    let before = measure();
    let mapped_before = mapped_bytes();
    let region = match AnonymousMemory.allocate(Use::Kv, BYTES) {
        Ok(region) => region,
        Err(error) => {
            say(format!("allocate {}", show::<()>(Err(error))));
            let mapped = (mapped_bytes() - mapped_before) >> 20;
            return say(format!("left {} mapped {mapped}", (measure() - before) >> 16));
        }
    };
    let grown = measure() - before;
    // SAFETY: allocated above, and not used.
    unsafe { AnonymousMemory.release(Use::Kv, region) };
    say(format!("grown {} left {}", grown >> 16, (measure() - before) >> 16));
}

/// The same for a buffer of 1 MiB, which shares a huge page where there are any.
fn chunk() {
    const BYTES: usize = 1 << 20;
    let measure = || ProcessMeter.resident_bytes().unwrap() as i64;
    let memory = ChunkMemory::new();
    measure();
    let before = measure();
    let grown = || (measure() - before) >> 16;
    match memory.allocate(Use::Kv, BYTES) {
        Ok(region) => {
            say(format!("is resident {}", (16..=32).contains(&grown())));
            // SAFETY: allocated above, and not used.
            unsafe { memory.release(Use::Kv, region) };
            say(format!("a huge page at most {}", grown() <= 16));
        }
        Err(error) => say(format!("allocate {}", show::<()>(Err(error)))),
    }
    drop(memory);
    say(format!("left {}", grown()));
}

#[test]
fn small_buffers_do_without_advice_and_unmapping_too() {
    let said = ["is resident true", "a huge page at most true", "left 0"];
    for injections in [
        &[][..],
        &["madvise:error=EINVAL"],
        &["madvise:error=EINTR:when=2..4"],
        &["munmap:error=ENOMEM"],
    ] {
        under_strace(injections, None, "chunk").assert_said(&said);
    }
    for (error, number) in [("ENOMEM", 12), ("EFAULT", 14)] {
        // The second advice makes it resident.
        let injection = format!("madvise:error={error}:when=2");
        let expected = format!("allocate OutOfMemory, shared buffer, {number}");
        under_strace(&[&injection], None, "chunk").assert_said(&[&expected, "left 0"]);
    }
}

#[test]
fn memory_is_resident_without_any_advice_and_gone_without_unmapping() {
    for injections in [
        &[][..],
        // Kernels without huge pages and before 5.14: no advice is known.
        &["madvise:error=EINVAL"],
        &["madvise:error=EINTR:when=3..5"],
        // Too many mappings to cut one more.
        &["munmap:error=ENOMEM"],
    ] {
        under_strace(injections, None, "memory").assert_said(&["grown 48 left 0"]);
    }
}

#[test]
fn memory_that_cannot_be_had_is_out_of_memory_and_leaves_nothing() {
    // The third advice of the buffer is the one that makes it resident.
    for (error, number) in [("ENOMEM", 12), ("EFAULT", 14)] {
        let injection = format!("madvise:error={error}:when=3");
        let expected = format!("allocate OutOfMemory, shared buffer, {number}");
        under_strace(&[&injection], None, "memory").assert_said(&[&expected, "left 0 mapped 0"]);
    }
}

/// Asks for more than the address space may grow to.
fn limited() {
    const BYTES: usize = 1 << 30;
    let limit = libc::rlimit { rlim_cur: BYTES as u64, rlim_max: BYTES as u64 };
    // SAFETY: a limit that outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    say(format!("buffer {}", show(AnonymousMemory.allocate(Use::Kv, BYTES))));
    say(format!("small {}", show(AnonymousMemory.allocate(Use::Kv, 1 << 20).map(|_| "ok"))));
    say(format!("arena {}", show(map_arena(BYTES))));
    let spec = ThreadSpec { stack_bytes: BYTES, ..thread_spec() };
    say(format!("thread {}", show(PosixThreads::new().spawn(spec, &Nothing))));
}

#[test]
fn a_limited_address_space_is_out_of_memory() {
    run(Command::new(std::env::current_exe().unwrap()), "limited").assert_said(&[
        "buffer OutOfMemory, shared buffer, 12",
        "small \"ok\"",
        "arena OutOfMemory, arena, 12",
        "thread OutOfMemory, thread stack, 12",
    ]);
}

struct Nothing;

impl Body for Nothing {
    fn run(&self) {}
}

struct Deep;

impl Body for Deep {
    fn run(&self) {
        fn dig(depth: u64) -> u64 {
            let frame = std::hint::black_box([depth; 128]);
            if depth == 0 { 0 } else { dig(depth - 1) + frame[(depth % 128) as usize] }
        }
        say(format!("deep {}", dig(48) > 0));
        say(format!("deeper {}", dig(1 << 40) > 0));
    }
}

fn thread_spec() -> ThreadSpec<'static> {
    ThreadSpec { name: "mz-test", stack_bytes: 128 << 10 }
}

/// More attempts than the table has room, so that a failure that kept its slot would show. Calls
/// before the first spawn are counted too, so strace lets the first ones pass.
fn spawn() {
    let threads = PosixThreads::new();
    let mut started = 0;
    let mut last = Ok(());
    for _ in 0..300 {
        last = threads.spawn(thread_spec(), &Nothing).map(|thread| threads.join(thread));
        started += u32::from(last.is_ok());
    }
    say(format!("some {} last {}", started > 0 && started < 100, show(last)));
}

#[test]
fn a_thread_that_cannot_start_is_an_error_and_keeps_no_slot() {
    for (injection, expected) in [
        ("clone3,clone:error=EAGAIN:when=2+", "some true last OutOfMemory, thread, 11"),
        ("clone3,clone:error=EPERM:when=2+", "some true last Io, thread, 1"),
        ("mprotect:error=ENOMEM:when=40+", "some true last OutOfMemory, thread stack, 12"),
    ] {
        under_strace(&[injection], None, "spawn").assert_said(&[expected]);
    }
}

fn overflow() {
    let threads = PosixThreads::new();
    let thread = threads.spawn(thread_spec(), &Deep).unwrap();
    threads.join(thread);
    say("came back");
}

#[test]
fn a_stack_ends_at_its_guard_page() {
    let outcome = run(Command::new(std::env::current_exe().unwrap()), "overflow");
    assert_eq!(outcome.said, ["deep true"]);
    assert_eq!(outcome.status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_meter_without_its_file_is_an_error() {
    let rollup = Path::new("/proc/self/smaps_rollup");
    let outcome = under_strace(&["openat:error=ENOENT"], Some(rollup), "meter");
    outcome.assert_said(&["meter Io, /proc/self/smaps_rollup, 2"]);
}
