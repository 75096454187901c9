//! The model file for baselines: a read maps the file's pages instead of copying them.
//!
//! Weights are then what they are in an app that maps its model: file-backed pages, which the
//! system drops when memory is short and reads again when they are touched. Everything else of the
//! runtime stays as it is. Nothing but a baseline wants this: a mapped page that cannot be read is
//! a SIGBUS where a read returns an error, and whoever truncates the file meanwhile causes one.
//!
//! Invariant: after `read_at`, the bytes that it reports are those of the file at that offset,
//! mapped or copied. What cannot be mapped is read.

use super::File;
use super::pages::{map_file_over, page_bytes};
use crate::error::Result;
use crate::port::Storage;
use core::ffi::CStr;
use core::ptr::NonNull;

/// A model file whose reads map. For buffers of [`AnonymousMemory`](super::AnonymousMemory) alone:
/// those are private, nothing but the process's own addresses refers to their pages, and
/// releasing one unmaps all of it, whatever became of its pages. So there is no other way to one
/// than [`HostPorts::open_mapping`](super::HostPorts::open_mapping), which pairs the two.
pub(super) struct MappingFile {
    file: File,
}

impl MappingFile {
    /// Opens the model file, read only.
    pub(super) fn open(path: &CStr) -> Result<Self> {
        Ok(MappingFile { file: File::open_model(path)? })
    }

    /// Maps as much of the file as there is; the bytes, or `None` where that cannot be done.
    fn map_at(&self, offset: u64, into: &mut [u8]) -> Result<Option<usize>> {
        let page = page_bytes();
        let rest = usize::try_from(self.file.length()?.saturating_sub(offset));
        let bytes = rest.unwrap_or(usize::MAX).min(into.len());
        // Pages that lie wholly beyond the end of the file would be SIGBUSes. The last page's
        // tail reads as zeros.
        let pages = bytes.next_multiple_of(page);
        let is_whole = into.as_ptr().addr().is_multiple_of(page)
            && offset.is_multiple_of(page as u64)
            && pages <= into.len();
        if bytes == 0 || !is_whole {
            return Ok(None);
        }
        let Some(start) = NonNull::new(into.as_mut_ptr()) else { return Ok(None) };
        // SAFETY: whole pages inside `into`, checked above, which is borrowed here alone: it is a
        // part of a buffer that the runtime gave to one worker to fill, and nobody looks at it
        // before it is published. The buffer is a private anonymous mapping (see `MappingFile`).
        let mapped = unsafe { map_file_over(self.file.fd(), offset, start, pages) };
        Ok(mapped.then_some(bytes))
    }
}

impl Storage for MappingFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match self.map_at(offset, into)? {
            Some(bytes) => Ok(bytes),
            None => self.file.read_at(offset, into),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.file.write_at(offset, from)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.file.discard(offset, bytes)
    }

    fn length(&self) -> Result<u64> {
        self.file.length()
    }

    fn is_direct(&self) -> bool {
        // Mapped pages are those of the page cache.
        false
    }
}
