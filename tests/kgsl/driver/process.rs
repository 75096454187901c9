//! What the supervisor sees of the child: its memory, its files, its mappings.

use std::fs;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

pub const PAGE: u64 = 4096;

/// The thread that made a call.
pub struct Process {
    pub id: u32,
    memory: File,
}

impl Process {
    pub fn new(id: u32) -> Process {
        let path = format!("/proc/{id}/mem");
        let memory = File::options().read(true).write(true).open(path).unwrap();
        Process { id, memory }
    }

    pub fn bytes<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).unwrap();
    }

    /// A text that ends with a 0 byte.
    pub fn text(&self, address: u64) -> String {
        let bytes = (address..).map(|at| self.bytes::<1>(at)[0]).take_while(|byte| *byte != 0);
        String::from_utf8(bytes.take(4096).collect()).unwrap()
    }

    /// What a descriptor is open on.
    pub fn file_name(&self, fd: i32) -> String {
        let link = fs::read_link(format!("/proc/{}/fd/{fd}", self.id));
        link.map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned())
    }

    pub fn is_direct(&self, fd: i32) -> bool {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.id)).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        i32::from_str_radix(flags.trim(), 8).unwrap() & libc::O_DIRECT != 0
    }

    /// Start address, bytes, offset and name of each mapping.
    fn mappings(&self) -> Vec<(u64, u64, u64, String)> {
        let text = fs::read_to_string(format!("/proc/{}/maps", self.id)).unwrap();
        let line = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next().unwrap().split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let offset = number(words.nth(1).unwrap());
            let name = words.nth(2).unwrap_or_default().to_owned();
            (number(start), number(end) - number(start), offset, name)
        };
        text.lines().map(line).collect()
    }

    /// Where any of a range of a memfd is mapped.
    pub fn address_of(&self, name: &str, offset: u64, bytes: u64) -> Option<u64> {
        let file = format!("/memfd:{name}");
        self.mappings().into_iter().filter(|(.., mapped)| *mapped == file).find_map(
            |(start, length, from, _)| {
                let overlaps = from < offset + bytes && offset < from + length;
                overlaps.then(|| start + offset.saturating_sub(from))
            },
        )
    }

    /// The name of what is mapped at an address.
    pub fn name_at(&self, address: u64) -> String {
        let mappings = self.mappings().into_iter();
        let mut at =
            mappings.filter(|(start, bytes, ..)| (*start..start + bytes).contains(&address));
        at.next().map_or_else(String::new, |(.., name)| name)
    }
}

pub fn memfd(name: &str, bytes: u64) -> File {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: just made, and nobody else knows it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes).unwrap();
    file
}

/// Makes pages of a memfd be there, or not.
pub fn commit(file: &File, offset: u64, bytes: u64, is_there: bool) {
    let mode = match is_there {
        true => 0,
        false => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
    };
    let (offset, bytes) = (offset.try_into().unwrap(), bytes.try_into().unwrap());
    // SAFETY: the call concerns the descriptor only.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) }, 0);
}

/// Bytes of a memfd that are there.
pub fn held(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

/// The `N`-byte words of an argument, by their offsets.
pub fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

pub fn long(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}
