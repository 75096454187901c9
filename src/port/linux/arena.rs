//! The caller's one piece of memory, for callers who have no allocator to take it from.

use super::pages::{map, unmap, whole_pages};
use crate::error::Result;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

const WHAT: &str = "arena";

/// Maps memory for an [`Arena`](crate::arena::Arena), of at least `bytes` and aligned to a page.
/// Pages become resident when they are first touched.
pub fn map_arena(bytes: usize) -> Result<&'static mut [MaybeUninit<u8>]> {
    let bytes = whole_pages(WHAT, bytes)?;
    let start = map(WHAT, bytes, 0)?;
    // SAFETY: the mapping is fresh, of that size, and stays until `unmap_arena` is called on it.
    Ok(unsafe { core::slice::from_raw_parts_mut(start.as_ptr().cast(), bytes) })
}

/// Gives the memory back. It takes a pointer because a reference must outlive the call it is
/// passed to, and this memory does not.
///
/// # Safety
///
/// `memory` is the whole slice that [`map_arena`] returned, and neither it nor anything that was
/// placed in it is used again.
pub unsafe fn unmap_arena(memory: NonNull<[MaybeUninit<u8>]>) {
    // SAFETY: the caller's promise.
    let unmapped = unsafe { unmap(memory.cast(), memory.len()) };
    // A whole mapping can always be unmapped; a failure means that this was none.
    assert!(unmapped);
}
