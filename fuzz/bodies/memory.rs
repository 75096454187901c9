//! Arena memory that is given back, so that millions of runs do not fill the machine.

use std::mem::MaybeUninit;

/// Calls `run` with `bytes` bytes and frees them afterwards, unless `run` panics.
///
/// # Safety
///
/// Nothing made from the memory may be left when `run` returns: the lifetime it is given as is a
/// lie.
pub unsafe fn with_memory<T>(
    bytes: usize,
    run: impl FnOnce(&'static mut [MaybeUninit<u8>]) -> T,
) -> T {
    let memory = Box::into_raw(vec![MaybeUninit::<u8>::uninit(); bytes].into_boxed_slice());
    // SAFETY: it was just allocated, and until it is freed below `run` alone refers to it.
    let result = run(unsafe { &mut *memory });
    // SAFETY: it came from a box, and the caller promises that nothing refers to it any more.
    drop(unsafe { Box::from_raw(memory) });
    result
}
