//! Mappings in whole pages: what buffers, stacks and arenas are made of.

use super::errno;
use crate::error::{Code, Error, Result};
use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::os::fd::{AsRawFd, OwnedFd};

/// The system's page size; 4 KiB nearly everywhere, 16 KiB on some phones.
pub(in crate::port) fn page_bytes() -> usize {
    // SAFETY: sysconf only answers a question.
    let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(answer).unwrap_or(4096)
}

/// Rounds a size up to whole pages. Zero, and what no object may have, is refused.
pub(in crate::port) fn whole_pages(what: &'static str, bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Err(Error::new(Code::InvalidArgument, what));
    }
    match bytes.checked_next_multiple_of(page_bytes()) {
        Some(rounded) if isize::try_from(rounded).is_ok() => Ok(rounded),
        _ => Err(Error::new(Code::OutOfMemory, what).with(bytes)),
    }
}

/// Maps zero-filled private memory; `bytes` is a number of whole pages. No page is resident yet.
pub(in crate::port) fn map(what: &'static str, bytes: usize, flags: c_int) -> Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(map_error(what, errno::last()));
    }
    NonNull::new(start.cast()).ok_or(Error::new(Code::OutOfMemory, what))
}

/// Maps what a device's driver offers at `offset` for the process to share with it; the errno where
/// the driver refuses. `bytes` is a number of whole pages.
pub(in crate::port) fn map_device(
    fd: &OwnedFd,
    offset: u64,
    bytes: usize,
) -> Result<NonNull<u8>, i32> {
    let offset = i64::try_from(offset).map_err(|_| libc::EOVERFLOW)?;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start =
        unsafe { libc::mmap64(ptr::null_mut(), bytes, access, flags, fd.as_raw_fd(), offset) };
    if start == libc::MAP_FAILED {
        return Err(errno::last());
    }
    NonNull::new(start.cast()).ok_or(libc::ENOMEM)
}

/// EAGAIN and EPERM stand for limits on locked memory and on mappings: less memory, all of them.
fn map_error(what: &'static str, errno: i32) -> Error {
    match errno {
        libc::EAGAIN | libc::EPERM => Error::new(Code::OutOfMemory, what).with(errno),
        _ => errno::error(what, errno),
    }
}

/// Puts private pages of a file in the place of whole pages that are mapped, and says whether the
/// kernel did; where it did not, the old ones are still there.
///
/// The file is first mapped elsewhere and then moved: all that can be refused (a file system that
/// maps nothing, memory that may not be promised, too many mappings) is refused before the old
/// pages go.
///
/// # Safety
///
/// The range is private memory, borrowed by the caller alone until this returns; `offset` is that
/// of a whole page, and no page lies wholly beyond the end of the file, which nobody truncates as
/// long as somebody looks at the range.
pub(super) unsafe fn map_file_over(
    fd: &OwnedFd,
    offset: u64,
    start: NonNull<u8>,
    bytes: usize,
) -> bool {
    let Ok(offset) = i64::try_from(offset) else { return false };
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let fresh =
        unsafe { libc::mmap64(ptr::null_mut(), bytes, access, flags, fd.as_raw_fd(), offset) };
    if fresh == libc::MAP_FAILED {
        return false;
    }
    // By number: the binding of Android's C library has neither the function nor its flags.
    const MAYMOVE_FIXED: c_int = 3;
    let (call, target) = (libc::SYS_mremap, start.as_ptr());
    // SAFETY: the source is the fresh mapping, which nobody has seen; the target is the caller's
    // promise.
    let moved = unsafe { libc::syscall(call, fresh, bytes, bytes, MAYMOVE_FIXED, target) };
    if moved == -1 {
        // SAFETY: the fresh mapping is still where it was, unseen.
        unsafe { libc::munmap(fresh, bytes) };
        return false;
    }
    true
}

/// Unmaps whole pages, and says whether the kernel did.
///
/// # Safety
///
/// The range was mapped by [`map`], [`map_device`] or [`map_file_over`], and nothing refers to it
/// any more.
pub(in crate::port) unsafe fn unmap(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) == 0 }
}

/// Advises on whole pages; the errno where the kernel declines.
///
/// # Safety
///
/// The range is mapped private memory; if the advice drops pages, nothing refers to them any
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
