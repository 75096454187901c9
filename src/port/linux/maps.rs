//! What a mapping of this process is one of, from `/proc/self/maps`.

use super::errno;
use super::open::open_file;
use super::transfer::pread;
use crate::error::{Code, Error, Result};
use core::ptr::NonNull;

const WHAT: &str = "/proc/self/maps";
/// More than a line has, whose path may be long.
const TEXT_BYTES: usize = 8192;

/// Whether the mapping at an address is a device's, whose pages the kernel's figures of shared
/// memory leave out. Drivers that take their pages from shared memory map those instead.
pub(in crate::port) fn is_of_device(address: NonNull<u8>) -> Result<bool> {
    let fd = open_file(c"/proc/self/maps", libc::O_RDONLY, WHAT)?;
    let mut text = [0; TEXT_BYTES];
    let (mut held, mut offset) = (0, 0);
    loop {
        let moved = match pread(&fd, offset, &mut text[held..]) {
            Ok(0) => return Err(Error::new(Code::Unsupported, WHAT)),
            Ok(moved) => moved,
            Err(libc::EINTR) => continue,
            Err(errno) => return Err(errno::error(WHAT, errno)),
        };
        offset += u64::try_from(moved).unwrap_or(0);
        held += moved;
        let whole = text[..held].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let names = text[..whole].split(|byte| *byte == b'\n');
        if let Some(name) = names.filter_map(|line| name_at(line, address.addr().get())).next() {
            return Ok(is_device(name));
        }
        text.copy_within(whole..held, 0);
        held -= whole;
        if held == text.len() {
            return Err(Error::new(Code::Corrupt, WHAT));
        }
    }
}

/// The name in a line, if the address lies in its range.
fn name_at(line: &[u8], address: usize) -> Option<&[u8]> {
    let line = core::str::from_utf8(line.split(|byte| *byte == b'/').next()?)
        .ok()
        .map(|head| (head, &line[head.len()..]))?;
    let (head, path) = line;
    let (range, rest) = head.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let bound = |text| usize::from_str_radix(text, 16).ok();
    if !(bound(start)?..bound(end)?).contains(&address) {
        return None;
    }
    // Names of other kinds stand in the last column: permissions, offset, device and inode before.
    Some(if path.is_empty() { rest.split_ascii_whitespace().nth(4)?.as_bytes() } else { path })
}

fn is_device(name: &[u8]) -> bool {
    const SHARED: [&[u8]; 2] = [b"/dev/zero", b"/dev/ashmem"];
    const DEVICES: [&[u8]; 3] = [b"/dev/", b"/dmabuf", b"anon_inode:"];
    DEVICES.iter().any(|start| name.starts_with(start))
        && !SHARED.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_ranges() {
        let line = b"7f00000000-7f00100000 rw-s 00001000 00:05 1031      /dev/kgsl-3d0";
        assert_eq!(name_at(line, 0x7f_0000_0000), Some(&b"/dev/kgsl-3d0"[..]));
        assert_eq!(name_at(line, 0x7f_000f_ffff), Some(&b"/dev/kgsl-3d0"[..]));
        assert_eq!(name_at(line, 0x7f_0010_0000), None);
        let line = b"1000-2000 rw-s 00000000 00:0e 77   anon_inode:dmabuf";
        assert_eq!(name_at(line, 0x1000), Some(&b"anon_inode:dmabuf"[..]));
        for line in [&b""[..], b"x", b"1000-2000", b"1000 rw-p", b"zz-yy rw-p 0 0 0", b"\xFF-1 a"] {
            assert_eq!(name_at(line, 0x1000), None);
        }
    }

    #[test]
    fn devices_are_told_from_shared_memory() {
        for name in ["/dev/kgsl-3d0", "/dmabuf:", "anon_inode:dmabuf", "/dev/ion"] {
            assert!(is_device(name.as_bytes()), "{name}");
        }
        for name in ["/memfd:x (deleted)", "/dev/zero (deleted)", "/dev/ashmem/a", "/kgsl-3d0", ""]
        {
            assert!(!is_device(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_real_file_is_searched_to_the_mapping() {
        let program = NonNull::new((is_device as *mut ()).cast::<u8>()).unwrap();
        assert_eq!(is_of_device(program), Ok(false));
        let error = is_of_device(NonNull::<u8>::dangling()).unwrap_err();
        assert_eq!(error, Error::new(Code::Unsupported, WHAT));
    }
}
