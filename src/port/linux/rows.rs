//! Small reads of any alignment, through the page cache: rows of the embedding matrix.

use super::open::{file_length, open_file};
use super::transfer::{Retries, checked_end, pread};
use crate::error::{Code, Error, Result};
use crate::port::RowReader;
use core::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

const WHAT: &str = "model file row";

/// A file opened for rows. The kernel is told not to read ahead, so that a few rows do not draw
/// their megabytes of neighbours into the page cache.
#[derive(Debug)]
pub struct RowFile {
    fd: OwnedFd,
}

impl RowFile {
    /// Opens the file read only.
    pub fn open(path: &CStr) -> Result<Self> {
        let fd = open_file(path, libc::O_RDONLY, WHAT)?;
        // SAFETY: the advice concerns the descriptor only; a file system may ignore it.
        unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Ok(RowFile { fd })
    }

    /// Length in bytes.
    pub fn length(&self) -> Result<u64> {
        file_length(&self.fd, WHAT)
    }
}

impl RowReader for RowFile {
    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        checked_end(WHAT, offset, into.len())?;
        let mut retries = Retries::new(WHAT);
        let mut done = 0;
        let mut position = offset;
        while done < into.len() {
            match pread(&self.fd, position, &mut into[done..]) {
                Ok(0) => return Err(Error::new(Code::ShortRead, WHAT).with(position)),
                Ok(moved) => {
                    done += moved;
                    position = checked_end(WHAT, position, moved)?;
                }
                Err(errno) => retries.failed(errno)?,
            }
        }
        Ok(())
    }
}
