//! Memory whose neighbours cannot be touched: a read or write past either end is a SIGSEGV, also
//! when hand-written code makes it, which a sanitizer does not see.

use std::ptr;

const PAGE: usize = 4096;

/// Whole pages between two forbidden ones.
pub(crate) struct Guarded {
    mapping: *mut u8,
    bytes: usize,
}

impl Guarded {
    /// At least `bytes` of zeros.
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let mapping =
            unsafe { libc::mmap(ptr::null_mut(), bytes + 2 * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(mapping, libc::MAP_FAILED);
        let guarded = Guarded { mapping: mapping.cast(), bytes };
        // SAFETY: the range lies inside the mapping that was just made.
        let result = unsafe {
            libc::mprotect(guarded.start().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(result, 0);
        guarded
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the mapping is two pages longer than `bytes`.
        unsafe { self.mapping.add(PAGE) }
    }

    /// The first `count` numbers, right behind the forbidden page.
    pub(crate) fn first<T: Copy>(&mut self, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes);
        // SAFETY: in bounds, page-aligned, initialised to zeros, borrowed from `self`; tests use
        // number types only.
        unsafe { std::slice::from_raw_parts_mut(self.start().cast(), count) }
    }

    /// The last `count` numbers, right before the forbidden page.
    pub(crate) fn last<T: Copy>(&mut self, count: usize) -> &mut [T] {
        let offset = self.bytes.checked_sub(count * size_of::<T>()).unwrap();
        // SAFETY: as in `first`; a page is a multiple of every number type's alignment.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(offset).cast(), count) }
    }

    /// The last or the first `count` numbers.
    pub(crate) fn at<T: Copy>(&mut self, is_last: bool, count: usize) -> &mut [T] {
        if is_last { self.last(count) } else { self.first(count) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        unsafe { libc::munmap(self.mapping.cast(), self.bytes + 2 * PAGE) };
    }
}

/// Runs `touch` in a child process and says whether a signal ended it.
fn dies(touch: impl FnOnce()) -> bool {
    // SAFETY: the child only runs `touch` and exits, without locks or memory of other threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        touch();
        // SAFETY: ends the child at once, without the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
}

#[test]
fn a_touch_past_either_end_is_caught() {
    let mut guarded = Guarded::new(100);
    let first = guarded.first::<u8>(100).as_mut_ptr();
    let last = guarded.last::<u8>(100).as_mut_ptr();
    // SAFETY: none is needed: these accesses are meant to fault, in a child process. The first and
    // the last byte inside are valid.
    unsafe {
        assert!(!dies(|| first.write_volatile(1)));
        assert!(!dies(|| last.add(99).write_volatile(1)));
        assert!(dies(|| first.wrapping_sub(1).write_volatile(1)));
        assert!(dies(|| last.wrapping_add(100).write_volatile(1)));
        assert!(dies(|| _ = last.wrapping_add(100).read_volatile()));
    }
}
