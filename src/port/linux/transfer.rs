//! Positioned reads and writes of a descriptor, and which failures are worth another try.
//!
//! A call either moves bytes or reports an errno. An interrupted call is repeated without end,
//! since each repetition took a signal; a call that was put off, or that moved nothing useful, is
//! repeated a bounded number of times.

use super::errno;
use crate::error::{Code, Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};

/// How often one transfer may be put off (EAGAIN) or make no progress before it fails.
const RETRIES_MAX: u32 = 64;
const RETRY_PAUSE_MICROS: libc::useconds_t = 1000;

/// One transfer's patience.
pub(super) struct Retries {
    what: &'static str,
    left: u32,
}

impl Retries {
    pub(super) const fn new(what: &'static str) -> Self {
        Retries { what, left: RETRIES_MAX }
    }

    /// Whether a call that failed with `errno` is to be repeated; its error if not.
    pub(super) fn failed(&mut self, errno: i32) -> Result<()> {
        if self.again(errno) { Ok(()) } else { Err(errno::error(self.what, errno)) }
    }

    /// Whether a call that failed with `errno` is to be repeated.
    pub(super) fn again(&mut self, errno: i32) -> bool {
        match errno {
            libc::EINTR => true,
            libc::EAGAIN if self.left > 0 => {
                self.left -= 1;
                // SAFETY: sleeping touches no memory; being interrupted only shortens it.
                unsafe { libc::usleep(RETRY_PAUSE_MICROS) };
                true
            }
            _ => false,
        }
    }

    /// Counts a call that succeeded but must be repeated from the same place.
    pub(super) fn stalled(&mut self) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or(Error::new(Code::Io, self.what))?;
        Ok(())
    }
}

/// The end of a transfer's range, which the kernel's signed offsets must be able to express.
pub(super) fn checked_end(what: &'static str, offset: u64, bytes: usize) -> Result<u64> {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    match offset.checked_add(bytes) {
        Some(end) if i64::try_from(end).is_ok() => Ok(end),
        _ => Err(Error::new(Code::InvalidArgument, what).with(offset)),
    }
}

/// One `pread`; at most as many bytes as `into` holds. The errno on failure.
pub(super) fn pread(fd: &OwnedFd, offset: u64, into: &mut [u8]) -> Result<usize, i32> {
    let position = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
    // SAFETY: `into` is writable for its whole length through the call.
    let moved =
        unsafe { libc::pread64(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), position) };
    count(moved, into.len())
}

/// One `pwrite`; at most as many bytes as `from` holds. The errno on failure.
pub(super) fn pwrite(fd: &OwnedFd, offset: u64, from: &[u8]) -> Result<usize, i32> {
    let position = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
    // SAFETY: `from` is readable for its whole length through the call.
    let moved =
        unsafe { libc::pwrite64(fd.as_raw_fd(), from.as_ptr().cast(), from.len(), position) };
    count(moved, from.len())
}

fn count(moved: isize, asked: usize) -> Result<usize, i32> {
    match usize::try_from(moved) {
        Ok(moved) => Ok(moved.min(asked)),
        Err(_) => Err(errno::last()),
    }
}

/// Reads from the start until `into` is full or nothing more comes. The errno on failure.
pub(super) fn read_available(fd: &OwnedFd, into: &mut [u8]) -> Result<usize, i32> {
    let mut done = 0;
    while done < into.len() {
        let offset = u64::try_from(done).unwrap_or(u64::MAX);
        match pread(fd, offset, &mut into[done..]) {
            Ok(0) => break,
            Ok(moved) => done += moved,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
