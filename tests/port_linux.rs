//! Files, clock, waiting and the mapped header, on the real kernel and a real file system.
#![cfg(feature = "host")]

mod support;

use mzcache::port::linux::{
    File, FutexPark, MappedFile, MonotonicClock, RowFile, hardware_caps, map_arena, unmap_arena,
};
use mzcache::port::{Clock, Park, RowReader, Storage};
use mzcache::sync::Word;
use mzcache::units::Nanos;
use mzcache::{Code, Error};
use std::ffi::CString;
use std::path::Path;
use support::{Aligned, ScratchFile, pattern};

const BLOCK: usize = 4096;

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn assert_reads_match(file: &File, bytes: &[u8]) {
    let blocks = bytes.len().div_ceil(BLOCK);
    let lengths = [0, 1, 2, 3, 7, 64, blocks.saturating_sub(1), blocks, blocks + 1, blocks + 300];
    let starts = [0, 1, 2, blocks / 2, blocks.saturating_sub(1), blocks, blocks + 5];
    for start in starts {
        for length in lengths {
            let (offset, asked) = (start * BLOCK, length * BLOCK);
            let mut into = Aligned::filled(asked, 0xEE);
            let got = file.read_at(offset as u64, &mut into).unwrap();
            let expected = &bytes[offset.min(bytes.len())..(offset + asked).min(bytes.len())];
            assert_eq!(got, expected.len(), "offset {offset} asked {asked}");
            assert!(into[..got] == *expected, "offset {offset} asked {asked}");
        }
    }
}

#[test]
fn direct_reads_equal_the_file_at_all_offsets_and_at_every_tail() {
    for tail in [0, 1, 511, 512, 4095] {
        for blocks in [0, 1, 300] {
            let bytes = pattern(blocks * BLOCK + tail, 7);
            let scratch = ScratchFile::with(&format!("direct-{blocks}-{tail}"), &bytes);
            let file = File::open_model(&c_path(&scratch.0)).unwrap();
            assert!(file.is_direct(), "the scratch directory's file system has no O_DIRECT");
            assert_eq!(file.length().unwrap(), bytes.len() as u64);
            assert_reads_match(&file, &bytes);
            assert!(file.is_direct());
        }
    }
}

#[test]
fn the_swap_file_keeps_what_was_written_and_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = ScratchFile::absent("swap");
    let file = File::create_swap(&c_path(&scratch.0)).unwrap();
    let mode = std::fs::metadata(&scratch.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut block = Aligned::filled(3 * BLOCK, 0);
    block.copy_from_slice(&pattern(3 * BLOCK, 1));
    // Beyond the end: the file grows, and what lies between reads as zeros.
    file.write_at(5 * BLOCK as u64, &block).unwrap();
    file.sync().unwrap();
    assert_eq!(file.length().unwrap(), 8 * BLOCK as u64);
    let mut expected = vec![0; 5 * BLOCK];
    expected.extend_from_slice(&block);
    assert_eq!(std::fs::read(&scratch.0).unwrap(), expected);
    assert_reads_match(&file, &expected);
    drop(file);

    let file = File::open_swap(&c_path(&scratch.0)).unwrap();
    assert_reads_match(&file, &expected);
    drop(file);
    let file = File::create_swap(&c_path(&scratch.0)).unwrap();
    assert_eq!(file.length().unwrap(), 0);
}

#[test]
fn two_handles_never_share_a_swap_file() {
    let scratch = ScratchFile::absent("shared-swap");
    let first = File::create_swap(&c_path(&scratch.0)).unwrap();
    first.write_at(0, &Aligned::filled(BLOCK, 9)).unwrap();
    let in_use = Err(Error::new(Code::BadState, "swap file is in use"));
    assert_eq!(File::create_swap(&c_path(&scratch.0)).map(drop), in_use);
    assert_eq!(File::open_swap(&c_path(&scratch.0)).map(drop), in_use);
    assert_eq!(first.length().unwrap(), BLOCK as u64, "the refused one has truncated nothing");
    drop(first);
    File::open_swap(&c_path(&scratch.0)).unwrap();
}

#[test]
fn discarded_ranges_free_blocks_and_read_as_zeros() {
    use std::os::unix::fs::MetadataExt;
    let scratch = ScratchFile::absent("discard");
    let file = File::create_swap(&c_path(&scratch.0)).unwrap();
    file.write_at(0, &Aligned::filled(64 * BLOCK, 5)).unwrap();
    file.sync().unwrap();
    let before = std::fs::metadata(&scratch.0).unwrap().blocks();
    file.discard(16 * BLOCK as u64, 32 * BLOCK as u64).unwrap();
    file.discard(0, 0).unwrap();
    file.sync().unwrap();
    let after = std::fs::metadata(&scratch.0).unwrap().blocks();
    assert_eq!(before - after, 32 * BLOCK as u64 / 512);
    assert_eq!(file.length().unwrap(), 64 * BLOCK as u64);
    let bytes = std::fs::read(&scratch.0).unwrap();
    let zeros = |range: &[u8]| range.iter().all(|byte| *byte == 0);
    assert!(zeros(&bytes[16 * BLOCK..48 * BLOCK]));
    assert!(bytes[..16 * BLOCK].iter().chain(&bytes[48 * BLOCK..]).all(|byte| *byte == 5));
}

#[test]
fn arguments_out_of_range_are_refused() {
    let scratch = ScratchFile::with("arguments", &pattern(4 * BLOCK, 3));
    let model = File::open_model(&c_path(&scratch.0)).unwrap();
    let mut block = Aligned::filled(2 * BLOCK, 0);
    let invalid = |error: Error| assert_eq!(error.code, Code::InvalidArgument, "{error}");
    invalid(model.read_at(1, &mut block).unwrap_err());
    invalid(model.read_at(0, &mut block[..100]).unwrap_err());
    invalid(model.read_at(0, &mut block[512..512 + BLOCK]).unwrap_err());
    for offset in [u64::MAX - 4095, 1 << 63, (1 << 63) - 4096] {
        invalid(model.read_at(offset, &mut block).unwrap_err());
    }
    assert!(model.is_direct(), "a wrong argument is not taken for a file system's refusal");
    assert_eq!(model.write_at(0, &block).unwrap_err().code, Code::BadState);
    assert_eq!(model.sync().unwrap_err().code, Code::BadState);
    assert_eq!(model.discard(0, 4096).unwrap_err().code, Code::BadState);

    let scratch = ScratchFile::absent("arguments-swap");
    let swap = File::create_swap(&c_path(&scratch.0)).unwrap();
    invalid(swap.write_at(512, &block).unwrap_err());
    invalid(swap.discard(u64::MAX, 4096).unwrap_err());
    invalid(swap.discard(4096, u64::MAX).unwrap_err());
    invalid(swap.discard(1 << 63, 4096).unwrap_err());
    assert_eq!(swap.length().unwrap(), 0);
}

#[test]
fn what_is_not_a_regular_file_is_refused_at_once() {
    let pipe = ScratchFile::absent("pipe");
    // SAFETY: a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(c_path(&pipe.0).as_ptr(), 0o600) }, 0);
    let directory = CString::new(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for path in [c_path(&pipe.0), directory, c"/dev/zero".to_owned()] {
        let model = File::open_model(&path).map(drop).unwrap_err();
        assert_eq!(model.code, Code::InvalidArgument, "{path:?} {model}");
        assert_eq!(RowFile::open(&path).map(drop).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(MappedFile::open(&path).map(drop).unwrap_err().code, Code::InvalidArgument);
    }
    let absent = ScratchFile::absent("nowhere");
    let error = File::open_model(&c_path(&absent.0)).map(drop).unwrap_err();
    assert_eq!(error, Error::new(Code::Io, "model file").with(libc::ENOENT));

    let target = ScratchFile::with("link-target", b"precious");
    let link = ScratchFile::absent("link");
    std::os::unix::fs::symlink(&target.0, &link.0).unwrap();
    let error = File::create_swap(&c_path(&link.0)).map(drop).unwrap_err();
    assert_eq!(error, Error::new(Code::Io, "swap file").with(libc::ELOOP));
    assert_eq!(std::fs::read(&target.0).unwrap(), b"precious");
}

#[test]
fn a_file_system_without_direct_transfers_is_read_buffered_and_says_so() {
    // procfs refuses O_DIRECT at open.
    let path = c"/proc/version";
    let bytes = std::fs::read("/proc/version").unwrap();
    let file = File::open_model(path).unwrap();
    assert!(!file.is_direct());
    let mut into = Aligned::filled(BLOCK, 0xEE);
    assert_eq!(file.read_at(0, &mut into).unwrap(), bytes.len());
    assert_eq!(into[..bytes.len()], bytes);
}

#[test]
fn a_file_that_shrinks_while_open_reads_short() {
    let bytes = pattern(64 * BLOCK, 11);
    let scratch = ScratchFile::with("shrink", &bytes);
    let file = File::open_model(&c_path(&scratch.0)).unwrap();
    let rows = RowFile::open(&c_path(&scratch.0)).unwrap();
    let mut into = Aligned::filled(64 * BLOCK, 0);
    assert_eq!(file.read_at(0, &mut into).unwrap(), bytes.len());
    let writer = std::fs::OpenOptions::new().write(true).open(&scratch.0).unwrap();
    for length in [40 * BLOCK + 17, 40 * BLOCK, 100, 0] {
        writer.set_len(length as u64).unwrap();
        let mut into = Aligned::filled(64 * BLOCK, 0xEE);
        assert_eq!(file.read_at(0, &mut into).unwrap(), length);
        assert!(into[..length] == bytes[..length]);
        let error = rows.read_exact_at(length as u64, &mut into[..1]).unwrap_err();
        assert_eq!(error, Error::new(Code::ShortRead, "model file row").with(length));
    }
    assert!(file.is_direct());
}

#[test]
fn rows_are_read_at_any_alignment() {
    let bytes = pattern(3 * BLOCK + 123, 5);
    let scratch = ScratchFile::with("rows", &bytes);
    let rows = RowFile::open(&c_path(&scratch.0)).unwrap();
    assert_eq!(rows.length().unwrap(), bytes.len() as u64);
    for offset in [0, 1, 511, 4095, 4097, 12_000, bytes.len()] {
        for length in [0, 1, 3, 130, 4097] {
            let mut into = vec![0xEE; length];
            let result = rows.read_exact_at(offset as u64, &mut into);
            match bytes.get(offset..offset + length) {
                Some(expected) => assert_eq!((result, &*into), (Ok(()), expected)),
                None => assert_eq!(result.unwrap_err().code, Code::ShortRead),
            }
        }
    }
    for offset in [u64::MAX, 1 << 63] {
        let error = rows.read_exact_at(offset, &mut [0; 8]).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
    }
}

#[test]
fn a_full_file_system_is_no_space_and_loses_nothing() {
    let tiny = TinyFileSystem::mount("tiny");
    let path = c_path(&tiny.0.join("swap"));
    let file = File::create_swap(&path).unwrap();
    let half = Aligned::filled(512 << 10, 3);
    file.write_at(0, &half).unwrap();
    let error = file.write_at(512 << 10, &Aligned::filled(2 << 20, 4)).unwrap_err();
    assert_eq!(error, Error::new(Code::NoSpace, "swap file").with(libc::ENOSPC));
    // What was there is still there, and room made by a discard can be used.
    let mut into = Aligned::filled(512 << 10, 0);
    assert_eq!(file.read_at(0, &mut into).unwrap(), 512 << 10);
    assert!(into[..] == half[..]);
    file.discard(512 << 10, 512 << 10).unwrap();
    file.write_at(512 << 10, &Aligned::filled(256 << 10, 6)).unwrap();
    file.sync().unwrap();
}

/// A tmpfs of 1 MiB, unmounted at the end. Needs root, and fails loudly without.
struct TinyFileSystem(std::path::PathBuf);

impl TinyFileSystem {
    fn mount(name: &str) -> Self {
        let path = support::scratch(name);
        std::fs::create_dir_all(&path).unwrap();
        let target = c_path(&path);
        // SAFETY: all arguments are C strings that outlive the call.
        let mounted = unsafe {
            let options = c"size=1m".as_ptr().cast();
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, options)
        };
        let error = std::io::Error::last_os_error();
        assert_eq!(mounted, 0, "cannot mount a tmpfs ({error}): this test must run as root");
        TinyFileSystem(path)
    }
}

impl Drop for TinyFileSystem {
    fn drop(&mut self) {
        let target = c_path(&self.0);
        // SAFETY: a C string that outlives the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        let _gone = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_mapped_file_shows_the_whole_file_and_an_empty_one_is_truncated() {
    let bytes = pattern(2 * BLOCK + 77, 2);
    let scratch = ScratchFile::with("mapped", &bytes);
    assert!(MappedFile::open(&c_path(&scratch.0)).unwrap()[..] == bytes[..]);
    let empty = ScratchFile::with("mapped-empty", &[]);
    let error = MappedFile::open(&c_path(&empty.0)).map(drop).unwrap_err();
    assert_eq!(error, Error::new(Code::Truncated, "model file"));
}

#[test]
fn arenas_are_mapped_whole_and_zero_and_refuse_bad_sizes() {
    let memory = map_arena(100_001).unwrap();
    assert!(memory.len() >= 100_001);
    assert_eq!(memory.as_ptr().addr() % 4096, 0);
    // SAFETY: mapped memory is zero-filled, so it is initialised.
    assert!(memory.iter().all(|byte| unsafe { byte.assume_init() } == 0));
    memory.iter_mut().for_each(|byte| *byte = std::mem::MaybeUninit::new(7));
    // SAFETY: the whole slice, which is not used again.
    unsafe { unmap_arena(memory.into()) };
    assert_eq!(map_arena(0).unwrap_err(), Error::new(Code::InvalidArgument, "arena"));
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
        assert_eq!(map_arena(bytes).unwrap_err().code, Code::OutOfMemory);
    }
}

#[test]
fn the_clock_never_goes_back_and_moves_on() {
    let start = MonotonicClock.now();
    let mut last = start;
    for _ in 0..10_000 {
        let now = MonotonicClock.now();
        assert!(now >= last);
        last = now;
    }
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert!(MonotonicClock.now().since(start) >= Nanos::new(2_000_000));
}

#[test]
fn waiting_returns_for_each_of_its_reasons() {
    let word = Word::new(1);
    // Another value: at once. Without the check this would wait for ever.
    FutexPark.wait(&word, 0, None);
    // The timeout, zero and not zero.
    FutexPark.wait(&word, 1, Some(Nanos::new(0)));
    let start = MonotonicClock.now();
    while MonotonicClock.now().since(start) < Nanos::new(5_000_000) {
        FutexPark.wait(&word, 1, Some(Nanos::new(1_000_000)));
    }
    // A wake: all waiters go on.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while word.load() == 1 {
                    FutexPark.wait(&word, 1, None);
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        word.store(2);
        FutexPark.wake_all(&word);
    });
}

#[test]
fn hardware_caps_are_those_of_the_auxiliary_vector() {
    let vector = std::fs::read("/proc/self/auxv").unwrap();
    let words: Vec<u64> =
        vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let value =
        |key: u64| words.chunks_exact(2).find(|pair| pair[0] == key).map_or(0, |pair| pair[1]);
    let caps = hardware_caps();
    assert_eq!(caps.hwcap2, value(libc::AT_HWCAP2));
    // On x86-64 the C library replaces the first word.
    if cfg!(target_arch = "aarch64") {
        assert_eq!(caps.hwcap, value(libc::AT_HWCAP));
    }
}
