//! What files do when system calls fail: the test program runs one scenario of itself under strace,
//! which makes chosen calls fail, be interrupted or move less than asked.
#![cfg(feature = "host")]

#[path = "support/scenario.rs"]
mod scenario;
#[path = "support/strace.rs"]
mod strace;
mod support;

use mzcache::port::linux::{File, RowFile};
use mzcache::port::{RowReader, Storage};
use scenario::{SCENARIO, run, say, show};
use std::ffi::CString;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::ptr;
use strace::{FILE, under_strace};
use support::{Aligned, ScratchFile, pattern};

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;

fn path() -> CString {
    CString::new(std::env::var(FILE).unwrap()).unwrap()
}

fn content() -> Vec<u8> {
    pattern(BLOCKS * BLOCK, 21)
}

/// From which byte to which the first is not the second. What it lacks is wrong too.
fn difference(found: &[u8], expected: &[u8]) -> Option<Range<usize>> {
    assert!(found.len() <= expected.len());
    let wrong = |index: &usize| found.get(*index) != expected.get(*index);
    let first = (0..expected.len()).find(wrong)?;
    let last = (0..expected.len()).rfind(wrong)?;
    Some(first..last + 1)
}

fn model_file(name: &str) -> ScratchFile {
    ScratchFile::with(name, &content())
}

#[test]
#[ignore = "started by the other tests, under strace"]
fn scenario() {
    // A scenario that never ends is a failure.
    // SAFETY: an alarm only ends the process.
    unsafe { libc::alarm(60) };
    match std::env::var(SCENARIO).expect("started by the other tests").as_str() {
        "read" => read(),
        "rows" => rows(),
        "write" => write(),
        "sync" => sync(),
        "discard" => discard(),
        other => panic!("no scenario {other}"),
    }
}

/// Says what a read of the whole file gave, and from which byte to which it was not the file's.
fn read() {
    let file = match File::open_model(&path()) {
        Ok(file) => file,
        Err(error) => return say(format!("open {}", show::<()>(Err(error)))),
    };
    let opened = file.is_direct();
    let mut into = Aligned::filled(BLOCKS * BLOCK, 0);
    let result = file.read_at(0, &mut into);
    let wrong = difference(&into, &content());
    say(format!("direct {opened} then {}", file.is_direct()));
    say(format!("read {}", show(result)));
    say(format!("wrong {wrong:?}"));
}

#[test]
fn memory_that_direct_transfers_cannot_reach_is_reached_past_the_cache_all_the_same() {
    let file = model_file("read-efault");
    under_strace(&["pread64:error=EFAULT:when=1"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 65536",
        "wrong None",
    ]);
    // No memory is.
    under_strace(&["pread64:error=EFAULT:when=1+"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read Io, model file, 14",
        "wrong Some(0..65536)",
    ]);
}

#[test]
fn a_refused_direct_open_is_buffered() {
    let file = model_file("open-einval");
    under_strace(&["openat:error=EINVAL:when=1"], Some(&file.0), "read").assert_said(&[
        "direct false then false",
        "read 65536",
        "wrong None",
    ]);
}

/// How many of a file's pages the system holds.
fn cached_pages(path: &Path) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    let mut resident = vec![0_u8; bytes.div_ceil(BLOCK)];
    // SAFETY: a fresh read-only mapping of the whole file, only asked about, then unmapped.
    unsafe {
        let fd = file.as_raw_fd();
        let map = libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, bytes, resident.as_mut_ptr()), 0);
        libc::munmap(map, bytes);
    }
    resident.iter().filter(|page| **page & 1 != 0).count()
}

#[test]
fn buffered_reads_leave_nothing_in_the_page_cache() {
    let file = model_file("page-cache");
    std::fs::File::open(&file.0).unwrap().sync_all().unwrap();
    assert_eq!(cached_pages(&file.0), BLOCKS, "the test's own writing is cached");
    under_strace(&["openat:error=EINVAL:when=1"], Some(&file.0), "read").assert_said(&[
        "direct false then false",
        "read 65536",
        "wrong None",
    ]);
    assert_eq!(cached_pages(&file.0), 0);
}

#[test]
fn before_statx_tells_alignments_one_block_is_tried() {
    let file = model_file("no-statx");
    let no_statx = "statx:error=ENOSYS";
    under_strace(&[no_statx], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 65536",
        "wrong None",
    ]);
    let refused = &[no_statx, "pread64:error=EINVAL:when=1"];
    under_strace(refused, Some(&file.0), "read").assert_said(&[
        "direct false then false",
        "read 65536",
        "wrong None",
    ]);
}

#[test]
fn a_refused_direct_read_turns_the_file_buffered() {
    let file = model_file("read-einval");
    under_strace(&["pread64:error=EINVAL:when=1"], Some(&file.0), "read").assert_said(&[
        "direct true then false",
        "read 65536",
        "wrong None",
    ]);
    // A refusal that stays is an error, not a loop.
    under_strace(&["pread64:error=EINVAL"], Some(&file.0), "read").assert_said(&[
        "direct true then false",
        "read Io, model file, 22",
        "wrong Some(0..65536)",
    ]);
    let stuck = &["pread64:error=EINVAL", "fcntl:error=EPERM"];
    under_strace(stuck, Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read Io, model file, 1",
        "wrong Some(0..65536)",
    ]);
}

#[test]
fn interrupted_and_put_off_reads_are_repeated() {
    let file = model_file("read-eintr");
    for error in ["EINTR", "EAGAIN"] {
        let injection = format!("pread64:error={error}:when=1..20");
        under_strace(&[&injection], Some(&file.0), "read").assert_said(&[
            "direct true then true",
            "read 65536",
            "wrong None",
        ]);
    }
    under_strace(&["pread64:error=EAGAIN"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read Io, model file, 11",
        "wrong Some(0..65536)",
    ]);
}

#[test]
fn failed_reads_carry_their_errno() {
    let file = model_file("read-eio");
    under_strace(&["pread64:error=EIO"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read Io, model file, 5",
        "wrong Some(0..65536)",
    ]);
    under_strace(&["openat:error=EACCES"], Some(&file.0), "read")
        .assert_said(&["open Io, model file, 13"]);
    under_strace(&["openat:error=EINTR:when=1..3"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 65536",
        "wrong None",
    ]);
    under_strace(&["newfstatat,fstat:error=EOVERFLOW"], Some(&file.0), "read")
        .assert_said(&["open Io, model file, 75"]);
}

/// strace makes a short transfer by leaving the call out: it says that so many bytes were moved,
/// and moves none. So those bytes stay zero where they are not transferred again.
#[test]
fn short_reads_go_on_where_they_stopped() {
    let file = model_file("read-short");
    let whole_blocks = &["pread64:retval=8192:when=1"];
    under_strace(whole_blocks, Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 65536",
        "wrong Some(0..8192)",
    ]);
    // A direct read cannot go on inside a block: it takes the block again.
    let inside_a_block = &["pread64:retval=8209:when=1"];
    under_strace(inside_a_block, Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 65536",
        "wrong Some(0..8192)",
    ]);
    under_strace(&["pread64:retval=17:when=1..5"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 65536",
        "wrong None",
    ]);
    under_strace(&["pread64:retval=17"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read Io, model file, 0",
        "wrong Some(0..65536)",
    ]);
    let buffered = &["openat:error=EINVAL:when=1", "pread64:retval=17:when=1..5"];
    under_strace(buffered, Some(&file.0), "read").assert_said(&[
        "direct false then false",
        "read 65536",
        "wrong Some(0..85)",
    ]);
    // Nothing more, where the length promises more: the file ends there.
    under_strace(&["pread64:retval=0:when=1"], Some(&file.0), "read").assert_said(&[
        "direct true then true",
        "read 0",
        "wrong Some(0..65536)",
    ]);
}

fn rows() {
    let mut row = [0; 100];
    let result = RowFile::open(&path()).and_then(|file| file.read_exact_at(5000, &mut row));
    let wrong = row.iter().zip(&content()[5000..5100]).filter(|(a, b)| a != b).count();
    say(format!("row {} wrong {wrong}", show(result)));
}

#[test]
fn rows_survive_interruptions_and_short_reads_and_report_failures() {
    let file = model_file("rows");
    for (injection, expected) in [
        ("pread64:error=EINTR:when=1..5", "row () wrong 0"),
        ("pread64:error=EAGAIN:when=1..5", "row () wrong 0"),
        ("pread64:retval=10:when=1..3", "row () wrong 30"),
        ("pread64:retval=0", "row ShortRead, model file row, 5000 wrong 100"),
        ("pread64:error=EIO", "row Io, model file row, 5 wrong 100"),
    ] {
        under_strace(&[injection], Some(&file.0), "rows").assert_said(&[expected]);
    }
}

fn write() {
    let file = match File::create_swap(&path()) {
        Ok(file) => file,
        Err(error) => return say(format!("open {}", show::<()>(Err(error)))),
    };
    let mut from = Aligned::filled(BLOCKS * BLOCK, 0);
    from.copy_from_slice(&content());
    let opened = file.is_direct();
    let result = file.write_at(0, &from);
    say(format!("direct {opened} then {}", file.is_direct()));
    say(format!("write {}", show(result)));
}

/// Writes under an injection; the range of the file that is not as written.
fn write_with(name: &str, injections: &[&str], expected: &[&str]) -> Option<Range<usize>> {
    let file = ScratchFile::absent(name);
    under_strace(injections, Some(&file.0), "write").assert_said(expected);
    difference(&std::fs::read(&file.0).unwrap(), &content())
}

#[test]
fn interrupted_short_and_refused_writes_are_completed() {
    let direct = &["direct true then true", "write ()"];
    let wrong = write_with("write-eintr", &["pwrite64:error=EINTR:when=1..9"], direct);
    assert_eq!(wrong, None);
    let wrong = write_with("write-eagain", &["pwrite64:error=EAGAIN:when=1..9"], direct);
    assert_eq!(wrong, None);
    let wrong = write_with("write-blocks", &["pwrite64:retval=8192:when=1"], direct);
    assert_eq!(wrong, Some(0..8192), "went on behind what was said to be written");
    let wrong = write_with("write-inside", &["pwrite64:retval=8209:when=1"], direct);
    assert_eq!(wrong, Some(0..8192), "took the block again that was not whole");
    let wrong = write_with("write-nothing", &["pwrite64:retval=0:when=1..9"], direct);
    assert_eq!(wrong, None);
    let falls_back = &["direct true then false", "write ()"];
    let wrong = write_with("write-einval", &["pwrite64:error=EINVAL:when=1"], falls_back);
    assert_eq!(wrong, None);
    let buffered = &["direct false then false", "write ()"];
    let injections = &["openat:error=EINVAL:when=1", "pwrite64:retval=17:when=1"];
    let wrong = write_with("write-buffered", injections, buffered);
    assert_eq!(wrong, Some(0..17));
}

#[test]
fn failed_writes_say_whether_the_storage_is_full() {
    for (error, expected) in [
        ("ENOSPC", "write NoSpace, swap file, 28"),
        ("EDQUOT", "write NoSpace, swap file, 122"),
        ("EFBIG", "write NoSpace, swap file, 27"),
        ("EIO", "write Io, swap file, 5"),
    ] {
        let injection = format!("pwrite64:error={error}");
        write_with("write-fails", &[&injection], &["direct true then true", expected]);
    }
    let stuck = &["direct true then true", "write Io, swap file, 0"];
    write_with("write-stuck", &["pwrite64:retval=0"], stuck);
}

#[test]
fn a_swap_file_that_cannot_be_locked_or_emptied_is_an_error() {
    for (injection, expected) in [
        ("flock:error=ENOLCK", "open Io, swap file, 37"),
        ("flock:error=EAGAIN", "open BadState, swap file is in use, 0"),
        ("ftruncate:error=EIO", "open Io, swap file, 5"),
        ("openat:error=ENOSPC", "open NoSpace, swap file, 28"),
    ] {
        let file = ScratchFile::with("swap-open", b"kept");
        under_strace(&[injection], Some(&file.0), "write").assert_said(&[expected]);
        assert_eq!(std::fs::read(&file.0).unwrap(), b"kept");
    }
    // The directory's own sync, which is the only fsync of the scenario.
    for (error, expected) in [("EIO", "open Io, swap file, 5"), ("EINVAL", "write ()")] {
        let file = ScratchFile::absent("swap-directory");
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-qq", "-o", "/dev/null", "-e"])
            .arg(format!("inject=fsync:error={error}"));
        strace.env(FILE, &file.0).arg(std::env::current_exe().unwrap());
        assert_eq!(run(strace, "write").said.last().unwrap(), expected);
    }
}

fn sync() {
    let file = File::create_swap(&path()).unwrap();
    let block = Aligned::filled(BLOCK, 1);
    file.write_at(0, &block).unwrap();
    say(format!("sync {}", show(file.sync())));
    say(format!("sync {}", show(file.sync())));
    say(format!("write {}", show(file.write_at(0, &block))));
    say(format!("discard {}", show(file.discard(0, 4096))));
    let mut into = Aligned::filled(BLOCK, 0);
    say(format!("read {}", show(file.read_at(0, &mut into))));
}

#[test]
fn a_failed_sync_poisons_the_file_for_good() {
    for (error, number) in [("EIO", 5), ("ENOSPC", 28), ("EINVAL", 22)] {
        let file = ScratchFile::absent("sync-fails");
        // Only the first sync fails: a second one, if it were made, would report success.
        let injection = format!("fdatasync:error={error}:when=1");
        under_strace(&[&injection], Some(&file.0), "sync").assert_said(&[
            &format!("sync SyncFailed, swap file, {number}"),
            "sync Poisoned, swap file, 0",
            "write Poisoned, swap file, 0",
            "discard Poisoned, swap file, 0",
            "read 4096",
        ]);
    }
}

#[test]
fn an_interrupted_sync_is_repeated_and_one_that_always_is_has_failed() {
    let file = ScratchFile::absent("sync-eintr");
    let good = &["sync ()", "sync ()", "write ()", "discard ()", "read 4096"];
    under_strace(&["fdatasync:error=EINTR:when=1..3"], Some(&file.0), "sync").assert_said(good);
    let outcome = under_strace(&["fdatasync:error=EINTR"], Some(&file.0), "sync");
    assert_eq!(outcome.said[..2], ["sync SyncFailed, swap file, 4", "sync Poisoned, swap file, 0"]);
}

fn discard() {
    let file = File::create_swap(&path()).unwrap();
    file.write_at(0, &Aligned::filled(4 * BLOCK, 1)).unwrap();
    say(format!("discard {}", show(file.discard(4096, 4096))));
}

#[test]
fn a_discard_that_the_file_system_lacks_is_no_error_and_others_are() {
    for (injection, expected) in [
        ("fallocate:error=EOPNOTSUPP", "discard ()"),
        ("fallocate:error=ENOSYS", "discard ()"),
        ("fallocate:error=EINTR:when=1..3", "discard ()"),
        ("fallocate:error=EIO", "discard Io, discard, 5"),
    ] {
        let file = ScratchFile::absent("discard");
        under_strace(&[injection], Some(&file.0), "discard").assert_said(&[expected]);
        let bytes = std::fs::read(&file.0).unwrap();
        let punched = bytes[4096..8192].iter().all(|byte| *byte == 0);
        assert_eq!(punched, injection.contains("EINTR"), "{injection}");
    }
}
