//! Calls a function of the C calling convention with patterns in every register that it must
//! preserve, and says which ones it changed. A test that compares results does not see that.

use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
global_asm!(include_str!("checked_call_x86_64.S"), options(raw));
#[cfg(target_arch = "aarch64")]
global_asm!(include_str!("checked_call_aarch64.S"), options(raw));

unsafe extern "C" {
    fn mz_test_checked_call(function: *const (), arguments: *const u64, trashed: *mut u64) -> u64;
    fn mz_test_trash_first();
    fn mz_test_trash_last();
    fn mz_test_trash_none(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u64;
}

/// What a call returned, and one bit for each register that was not preserved.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) result: u64,
    pub(crate) trashed: u64,
}

/// Calls `function` with up to six integer or pointer arguments. The upper halves of arguments that
/// are narrower than 64 bits may hold anything; a test should set them to something.
///
/// # Safety
///
/// `function` is a C function for which these arguments are valid.
pub(crate) unsafe fn checked_call(function: *const (), arguments: [u64; 6]) -> Outcome {
    let mut trashed = u64::MAX;
    // SAFETY: the caller vouches for the function and its arguments; the checker itself restores
    // every register that it fills.
    let result = unsafe { mz_test_checked_call(function, arguments.as_ptr(), &raw mut trashed) };
    Outcome { result, trashed }
}

#[test]
fn trashed_registers_are_reported() {
    // Bit numbers are those of the checker's list of registers.
    let last = if cfg!(target_arch = "x86_64") { 6 } else { 18 };
    // SAFETY: these functions take no arguments and touch no memory; what they break the checker
    // restores.
    unsafe {
        let first = checked_call(mz_test_trash_first as *const (), [0; 6]);
        assert_eq!(first.trashed, 1);
        let second = checked_call(mz_test_trash_last as *const (), [0; 6]);
        assert_eq!(second.trashed, 1 << last);
        let arguments = [1 << 0, 1 << 8, 1 << 16, 1 << 24, 1 << 32, 1 << 40];
        let none = checked_call(mz_test_trash_none as *const (), arguments);
        assert_eq!(none, Outcome { result: 0x0101_0101_0101, trashed: 0 });
    }
}
