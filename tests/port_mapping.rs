//! Weights that are mapped pages of the model file, as baselines have them.
//!
//! One test alone in its process, so that nothing else changes its mappings meanwhile.
#![cfg(feature = "host")]

mod support;

use mzcache::Code;
use mzcache::port::linux::{AnonymousMemory, File, HostPorts, ProcessMeter};
use mzcache::port::{Ports, Region, SharedMemory, Storage, Use};
use std::ffi::CString;
use std::path::Path;
use support::{Aligned, ScratchFile, pattern};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn open(path: &Path) -> Ports {
    Box::leak(Box::new(HostPorts::open_mapping(&c_path(path), None).unwrap())).ports()
}

/// A buffer, given back at the end.
struct Buffer(Region);

impl Buffer {
    fn new(bytes: usize) -> Self {
        Buffer(AnonymousMemory.allocate(Use::Weights, bytes).unwrap())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the region is live, initialised, and borrowed through this value alone.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.bytes) }
    }

    /// The kilobytes of this buffer that are mappings of that file, and those that are others.
    fn mapped_kb(&self, file: &Path) -> (usize, usize) {
        let start = self.0.start.addr().get();
        let range = start..start + self.0.bytes;
        let (mut of_file, mut others) = (0, 0);
        for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
            let [from, to] = [from, to].map(|at| at.clamp(range.start, range.end));
            match line.ends_with(file.to_str().unwrap()) {
                true => of_file += (to - from) / 1024,
                false => others += (to - from) / 1024,
            }
        }
        (of_file, others)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the region came from this port, and no slice of it outlives this value.
        unsafe { AnonymousMemory.release(Use::Weights, self.0) };
    }
}

#[test]
fn reads_map_the_file_and_release_gives_all_back() {
    let tail = 100;
    let bytes = pattern(5 * MIB + 3 * PAGE + tail, 9);
    let scratch = ScratchFile::with("mapping", &bytes);
    let ports = open(&scratch.0);
    parts_are_the_file_s_pages(ports, &scratch.0, &bytes);
    the_last_page_ends_in_zeros_and_what_lies_behind_is_kept(ports, &scratch.0, &bytes, tail);
    what_cannot_be_mapped_is_read(ports, &scratch.0, &bytes);
    writing_to_a_buffer_leaves_the_file(ports, &scratch.0, &bytes);
    a_file_that_is_only_read_is_not_written(ports);
}

fn parts_are_the_file_s_pages(ports: Ports, path: &Path, bytes: &[u8]) {
    let before = ProcessMeter.fields().unwrap().charged();
    // Huge pages below, and a part that ends inside one.
    let mut buffer = Buffer::new(4 * MIB);
    for (at, part) in [(0, MIB), (MIB, 2 * MIB), (3 * MIB, MIB)] {
        let into = &mut buffer.bytes()[at..at + part];
        assert_eq!(ports.model.read_at((PAGE + at) as u64, into), Ok(part));
    }
    // The pages are the file's: none is charged as the process's own, though all are read.
    assert!(*buffer.bytes() == bytes[PAGE..PAGE + 4 * MIB]);
    let own = ProcessMeter.fields().unwrap().charged().saturating_sub(before);
    assert!(own < MIB as u64, "{own} bytes are anonymous");
    let mut read = Aligned::filled(4 * MIB, 0);
    let file = File::open_model(&c_path(path)).unwrap();
    assert_eq!(file.read_at(PAGE as u64, &mut read), Ok(4 * MIB));
    assert!(*buffer.bytes() == *read);
    assert_eq!(buffer.mapped_kb(path), (4 << 10, 0));
    drop(buffer);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(path.to_str().unwrap()), "{maps}");
}

fn the_last_page_ends_in_zeros_and_what_lies_behind_is_kept(
    ports: Ports,
    path: &Path,
    bytes: &[u8],
    tail: usize,
) {
    let mut buffer = Buffer::new(8 * PAGE);
    buffer.bytes().fill(7);
    let offset = bytes.len() - tail - PAGE;
    let read = ports.model.read_at(offset as u64, buffer.bytes());
    assert_eq!(read, Ok(PAGE + tail));
    assert!(buffer.bytes()[..PAGE + tail] == bytes[offset..]);
    assert!(buffer.bytes()[PAGE + tail..2 * PAGE].iter().all(|byte| *byte == 0));
    assert!(buffer.bytes()[2 * PAGE..].iter().all(|byte| *byte == 7));
    assert_eq!(buffer.mapped_kb(path), (8, 24));
    // At the end and behind it there is nothing.
    let end = bytes.len().next_multiple_of(PAGE) as u64;
    assert_eq!(ports.model.read_at(end, buffer.bytes()), Ok(0));
    assert_eq!(ports.model.read_at(end + PAGE as u64, buffer.bytes()), Ok(0));
}

fn what_cannot_be_mapped_is_read(ports: Ports, path: &Path, bytes: &[u8]) {
    let mut buffer = Buffer::new(4 * PAGE);
    // Ranges that are not whole pages are refused as every other file refuses them.
    let error = ports.model.read_at(1, buffer.bytes()).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    let error = ports.model.read_at(0, &mut buffer.bytes()[1..=PAGE]).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(buffer.mapped_kb(path), (0, 16));
    // Where the process may have no more addresses the bytes come all the same, copied.
    let limit = limit_addresses(0);
    let read = ports.model.read_at(0, buffer.bytes());
    limit_addresses(limit);
    assert_eq!(read, Ok(4 * PAGE));
    assert_eq!(buffer.mapped_kb(path), (0, 16));
    assert!(*buffer.bytes() == bytes[..4 * PAGE]);
}

/// Sets the soft limit on the process's addresses; the one before.
fn limit_addresses(limit: u64) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is writable for its type.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limits) }, 0);
    let before = limits.rlim_cur;
    limits.rlim_cur = limit;
    // SAFETY: `limits` is readable for its type.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limits) }, 0);
    before
}

fn writing_to_a_buffer_leaves_the_file(ports: Ports, path: &Path, bytes: &[u8]) {
    let mut buffer = Buffer::new(PAGE);
    assert_eq!(ports.model.read_at(0, buffer.bytes()), Ok(PAGE));
    buffer.bytes().fill(0);
    assert!(std::fs::read(path).unwrap() == bytes);
}

fn a_file_that_is_only_read_is_not_written(ports: Ports) {
    let mut buffer = Buffer::new(PAGE);
    let code = |result: mzcache::Result<()>| result.unwrap_err().code;
    assert_eq!(code(ports.model.write_at(0, buffer.bytes())), Code::BadState);
    assert_eq!(code(ports.model.discard(0, 1)), Code::BadState);
    assert_eq!(code(ports.model.sync()), Code::BadState);
    assert!(!ports.model.is_direct());
}
