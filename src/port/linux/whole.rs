//! Small files as a whole: read into memory of their own, replaced in one step.
//!
//! Invariant: a file that [`replace`] writes is seen by others as it was or as it will be, never
//! in between.

use super::errno;
use super::open::{create_file, file_length, open_file};
use super::pages::{map, unmap, whole_pages};
use super::transfer::{Retries, checked_end, pread, pwrite};
use crate::error::{Code, Error, Result};
use core::ffi::CStr;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// Bytes in pages of their own, since there is no allocator; given back when dropped.
pub(in crate::port) struct PageBytes {
    start: NonNull<u8>,
    mapped_bytes: usize,
    bytes: usize,
}

impl PageBytes {
    /// That many zeros.
    pub(in crate::port) fn zeroed(what: &'static str, bytes: usize) -> Result<PageBytes> {
        let mapped_bytes = whole_pages(what, bytes.max(1))?;
        Ok(PageBytes { start: map(what, mapped_bytes, 0)?, mapped_bytes, bytes })
    }

    /// A file of at most `bytes_max`.
    pub(in crate::port) fn read(
        what: &'static str,
        path: &CStr,
        bytes_max: usize,
    ) -> Result<PageBytes> {
        let fd = open_file(path, libc::O_RDONLY, what)?;
        let length = file_length(&fd, what)?;
        let too_large = Error::new(Code::LimitExceeded, what).with(length);
        let length = usize::try_from(length).map_err(|_| too_large)?;
        if length > bytes_max {
            return Err(too_large);
        }
        let mut bytes = Self::zeroed(what, length)?;
        let mut retries = Retries::new(what);
        let mut done = 0;
        while done < length {
            match pread(&fd, checked_end(what, 0, done)?, &mut bytes[done..]) {
                Ok(0) => return Err(Error::new(Code::ShortRead, what).with(done)),
                Ok(moved) => done += moved,
                Err(errno) => retries.failed(errno)?,
            }
        }
        Ok(bytes)
    }
}

impl Deref for PageBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this value's, zero-filled at first, and at least that long.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PageBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only borrow.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PageBytes {
    fn drop(&mut self) {
        // SAFETY: mapped by `zeroed`, and borrows of it have ended.
        unsafe { unmap(self.start, self.mapped_bytes) };
    }
}

/// Writes the parts, one after another, to `temporary` and renames that to `path`. Not synced:
/// after a crash of the system the file may be damaged, which its reader must notice.
pub(in crate::port) fn replace(
    what: &'static str,
    path: &CStr,
    temporary: &CStr,
    parts: &[&[u8]],
) -> Result<()> {
    let written = write_parts(what, temporary, parts).and_then(|()| {
        // SAFETY: both are C strings.
        match unsafe { libc::rename(temporary.as_ptr(), path.as_ptr()) } {
            0 => Ok(()),
            _ => Err(errno::error(what, errno::last())),
        }
    });
    if written.is_err() {
        remove(temporary);
    }
    written
}

fn write_parts(what: &'static str, path: &CStr, parts: &[&[u8]]) -> Result<()> {
    let fd = create_file(path, what)?;
    let mut retries = Retries::new(what);
    let mut offset = 0;
    for part in parts {
        let mut done = 0;
        while done < part.len() {
            match pwrite(&fd, checked_end(what, offset, done)?, &part[done..]) {
                Ok(0) => retries.stalled()?,
                Ok(moved) => done += moved,
                Err(errno) => retries.failed(errno)?,
            }
        }
        offset = checked_end(what, offset, done)?;
    }
    Ok(())
}

/// Removes a file, if there is one.
pub(in crate::port) fn remove(path: &CStr) {
    // SAFETY: a C string.
    let _absent = unsafe { libc::unlink(path.as_ptr()) };
}
