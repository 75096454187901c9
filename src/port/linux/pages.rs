//! Anonymous mappings in whole pages: what buffers, stacks and arenas are made of.

use super::errno;
use crate::error::{Code, Error, Result};
use core::ffi::c_int;
use core::ptr::{self, NonNull};

/// The system's page size; 4 KiB nearly everywhere, 16 KiB on some phones.
pub(super) fn page_bytes() -> usize {
    // SAFETY: sysconf only answers a question.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).unwrap_or(4096)
}

/// Rounds a size up to whole pages. Zero, and what no object may have, is refused.
pub(super) fn whole_pages(what: &'static str, bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Err(Error::new(Code::InvalidArgument, what));
    }
    match bytes.checked_next_multiple_of(page_bytes()) {
        Some(rounded) if isize::try_from(rounded).is_ok() => Ok(rounded),
        _ => Err(Error::new(Code::OutOfMemory, what).with(bytes)),
    }
}

/// Maps zero-filled private memory; `bytes` is a number of whole pages. No page is resident yet.
pub(super) fn map(what: &'static str, bytes: usize, flags: c_int) -> Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(map_error(what, errno::last()));
    }
    NonNull::new(start.cast()).ok_or(Error::new(Code::OutOfMemory, what))
}

/// EAGAIN and EPERM stand for limits on locked memory and on mappings: less memory, all of them.
fn map_error(what: &'static str, errno: i32) -> Error {
    match errno {
        libc::EAGAIN | libc::EPERM => Error::new(Code::OutOfMemory, what).with(errno),
        _ => errno::error(what, errno),
    }
}

/// Unmaps whole pages, and says whether the kernel did.
///
/// # Safety
///
/// The range was mapped by [`map`], and nothing refers to it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) == 0 }
}

/// Advises on whole pages; the errno where the kernel declines.
///
/// # Safety
///
/// The range is mapped anonymous memory; if the advice drops pages, nothing refers to them any
/// more.
pub(super) unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: c_int) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    match unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) } {
        0 => Ok(()),
        _ => Err(errno::last()),
    }
}

/// Gives the pages that lie inside a range back to the system and keeps their addresses: they read
/// as zeros from then on, and come back as they are written. A kernel that declines keeps them.
///
/// # Safety
///
/// The range is private anonymous memory, and nobody looks at its bytes before writing them.
#[cfg(feature = "opencl")]
pub(in crate::port) unsafe fn drop_whole_pages(start: NonNull<u8>, bytes: usize) {
    let skip = start.align_offset(page_bytes());
    let Some(inner) = bytes.checked_sub(skip) else { return };
    let inner = inner - inner % page_bytes();
    if inner > 0 {
        // SAFETY: `skip` is within the range.
        let first = unsafe { start.add(skip) };
        // SAFETY: whole pages inside the range; the rest is the caller's promise.
        let _declined = unsafe { advise(first, inner, libc::MADV_DONTNEED) };
    }
}
