//! A read-only view of a whole file, for parsing the model file's header at open.
//!
//! Used before the first buffer exists and dropped after parsing: weights are read by
//! [`File`](super::File) and mapped for baselines alone, because a mapped read fails by SIGBUS
//! where a read call returns an error.

use super::errno;
use super::open::{file_length, open_file};
use crate::error::{Code, Error, Result};
use core::ffi::CStr;
use core::ops::Deref;
use std::os::fd::AsRawFd;

/// The bytes of a file, paged in as they are looked at.
///
/// Whoever truncates the file while this lives makes the next look beyond its new end a SIGBUS, and
/// whoever writes to it changes the bytes. Parsers therefore read each field once, and the caller
/// drops the view when the header is parsed.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the file. An empty one is `Truncated`.
    pub fn open(path: &CStr) -> Result<Self> {
        let fd = open_file(path, libc::O_RDONLY, "model file")?;
        let length = file_length(&fd, "model file")?;
        if length == 0 {
            return Err(Error::new(Code::Truncated, "model file"));
        }
        let length = usize::try_from(length)
            .map_err(|_| Error::new(Code::LimitExceeded, "model file").with(length))?;
        let mut options = memmap2::MmapOptions::new();
        // SAFETY: the mapping is private to this value and read only; that nobody truncates the
        // file meanwhile is the documented condition of use, as no call can check it.
        let map = unsafe { options.len(length).map(fd.as_raw_fd()) };
        let map =
            map.map_err(|error| errno::error("model file", error.raw_os_error().unwrap_or(0)))?;
        Ok(MappedFile { map })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
