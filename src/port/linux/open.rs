//! Opening files: regular ones only, close-on-exec, direct where the file system has it.

use super::errno;
use super::transfer::{Retries, pread};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens a regular file, close-on-exec. Anything else (a directory, a pipe that would block, a
/// device whose length is unknown) is `InvalidArgument`.
pub(super) fn open_file(path: &CStr, flags: c_int, what: &'static str) -> Result<OwnedFd> {
    let fd = open(path, flags).map_err(|errno| errno::error(what, errno))?;
    check_regular(&fd, what)?;
    Ok(fd)
}

/// Makes a file, or empties the one there is, readable by its owner only; a symbolic link is
/// refused.
#[cfg(feature = "opencl")]
pub(super) fn create_file(path: &CStr, what: &'static str) -> Result<OwnedFd> {
    open_file(path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW, what)
}

/// The length of an open file.
pub(super) fn file_length(fd: &OwnedFd, what: &'static str) -> Result<u64> {
    let length = status(fd, what)?.st_size;
    u64::try_from(length).map_err(|_| Error::new(Code::Io, what).with(length))
}

/// Opens for direct transfers where the file system has them, and says whether it has.
pub(super) fn open_direct(
    path: &CStr,
    flags: c_int,
    what: &'static str,
) -> Result<(OwnedFd, bool)> {
    match open(path, flags | libc::O_DIRECT) {
        Ok(fd) => {
            check_regular(&fd, what)?;
            let direct = serves_direct(&fd);
            if !direct {
                clear_direct(&fd, what)?;
            }
            Ok((fd, direct))
        }
        Err(libc::EINVAL) => Ok((open_file(path, flags, what)?, false)),
        Err(errno) => Err(errno::error(what, errno)),
    }
}

/// Makes the name of a new file durable; syncing the file alone may leave it without one.
pub(super) fn sync_directory_of(path: &CStr, what: &'static str) -> Result<()> {
    const PATH_BYTES_MAX: usize = 4096;
    let bytes = path.to_bytes();
    let mut directory = [0; PATH_BYTES_MAX];
    let length = match bytes.iter().rposition(|byte| *byte == b'/') {
        // Of "/name" the slash itself is the directory.
        Some(slash) => slash.max(1),
        None => 0,
    };
    match length {
        0 => directory[0] = b'.',
        // The last byte stays zero: the end of the string.
        1..PATH_BYTES_MAX => directory[..length].copy_from_slice(&bytes[..length]),
        _ => return Err(Error::new(Code::InvalidArgument, what).with(length)),
    }
    let directory = CStr::from_bytes_until_nul(&directory)
        .map_err(|_| Error::new(Code::InvalidArgument, what))?;
    let fd = match open(directory, libc::O_RDONLY | libc::O_DIRECTORY) {
        Ok(fd) => fd,
        // A directory that may be written but not listed cannot be synced; the name then becomes
        // durable when the system next writes its directories.
        Err(libc::EACCES) => return Ok(()),
        Err(errno) => return Err(errno::error(what, errno)),
    };
    // SAFETY: the call concerns the descriptor only.
    match unsafe { libc::fsync(fd.as_raw_fd()) } {
        0 => Ok(()),
        _ => match errno::last() {
            // The file system does not sync directories.
            libc::EINVAL => Ok(()),
            errno => Err(errno::error(what, errno)),
        },
    }
}

/// Opens a device's node, close-on-exec. One that is not there, or not this process's to use, is
/// `NoDevice`.
pub(in crate::port) fn open_device(
    path: &CStr,
    flags: c_int,
    what: &'static str,
) -> Result<OwnedFd> {
    let mut retries = Retries::new(what);
    loop {
        match open_once(path, flags) {
            Ok(fd) => return Ok(fd),
            Err(errno) if retries.again(errno) => {}
            Err(errno) => {
                let error = errno::device_error(what, errno);
                return Err(match error.code {
                    Code::OutOfMemory | Code::LimitExceeded => error,
                    _ => Error { code: Code::NoDevice, ..error },
                });
            }
        }
    }
}

fn open(path: &CStr, flags: c_int) -> Result<OwnedFd, i32> {
    loop {
        // A pipe must not block the open, and a terminal must not become the process's own.
        match open_once(path, flags | libc::O_NONBLOCK | libc::O_NOCTTY) {
            Err(libc::EINTR) => {}
            done => return done,
        }
    }
}

fn open_once(path: &CStr, flags: c_int) -> Result<OwnedFd, i32> {
    let mode: libc::c_uint = 0o600;
    // SAFETY: `path` is a C string that outlives the call.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) };
    match fd {
        ..0 => Err(errno::last()),
        // SAFETY: the call just made this descriptor, and nobody else knows it.
        _ => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn check_regular(fd: &OwnedFd, what: &'static str) -> Result<()> {
    match status(fd, what)?.st_mode & libc::S_IFMT {
        libc::S_IFREG => Ok(()),
        _ => Err(Error::new(Code::InvalidArgument, what)),
    }
}

fn status(fd: &OwnedFd, what: &'static str) -> Result<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `status` is writable for the size of a stat.
    if unsafe { libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return Err(errno::error(what, errno::last()));
    }
    // SAFETY: the call succeeded, so it filled the structure.
    Ok(unsafe { status.assume_init() })
}

/// Turns an open file to buffered transfers, for every thread that uses it.
pub(super) fn clear_direct(fd: &OwnedFd, what: &'static str) -> Result<()> {
    // SAFETY: the call concerns the descriptor only.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    let set = flags >= 0
        && unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) } == 0;
    if set { Ok(()) } else { Err(errno::error(what, errno::last())) }
}

/// Whether direct transfers in blocks of [`IO_ALIGN`] work: what the file system says, or, before
/// Linux 6.1, whether it reads one block.
fn serves_direct(fd: &OwnedFd) -> bool {
    #[repr(C, align(4096))]
    struct Block([u8; IO_ALIGN]);
    stated(&extended_status(fd)).unwrap_or_else(|| {
        let mut block = Block([0; IO_ALIGN]);
        pread(fd, 0, &mut block.0) != Err(libc::EINVAL)
    })
}

/// What the file system says on direct transfers in blocks of [`IO_ALIGN`], if it says anything.
fn stated(status: &libc::statx) -> Option<bool> {
    if status.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    let align = status.stx_dio_offset_align.max(status.stx_dio_mem_align);
    let enough = usize::try_from(align).is_ok_and(|align| align <= IO_ALIGN);
    // An alignment of zero stands for "not at all".
    Some(enough && status.stx_dio_offset_align > 0)
}

/// The file's alignments, or nothing at all where the call is not known.
fn extended_status(fd: &OwnedFd) -> libc::statx {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, and `status` is writable for the size of a statx.
    let _unknown = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            status.as_mut_ptr(),
        )
    };
    // SAFETY: an all-zero statx is valid, whether the call filled it or not.
    unsafe { status.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_transfers_need_an_alignment_that_is_stated_and_not_above_a_block() {
        // SAFETY: an all-zero statx is valid.
        let mut status: libc::statx = unsafe { core::mem::zeroed() };
        status.stx_dio_offset_align = 512;
        assert_eq!(stated(&status), None, "the mask says that nothing was stated");
        status.stx_mask = libc::STATX_DIOALIGN;
        for (memory, offset, expected) in [
            (512, 512, true),
            (4, 4096, true),
            (4096, 4096, true),
            (0, 0, false),
            (512, 0, false),
            (512, 8192, false),
            (8192, 512, false),
            (u32::MAX, u32::MAX, false),
        ] {
            status.stx_dio_mem_align = memory;
            status.stx_dio_offset_align = offset;
            assert_eq!(stated(&status), Some(expected), "{memory} {offset}");
        }
    }
}
