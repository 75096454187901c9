//! Waiting: the futex call, private to the process.

use crate::port::Park;
use crate::sync::Word;
use crate::units::Nanos;
use core::ffi::c_int;
use core::ptr;

/// Waits on words through `futex(2)`. Every outcome (woken, timed out, interrupted, another value)
/// is a return; the caller looks at the word again.
#[derive(Clone, Copy, Debug, Default)]
pub struct FutexPark;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl Park for FutexPark {
    fn wait(&self, word: &Word, expected: u32, timeout: Option<Nanos>) {
        let relative = timeout.map(|timeout| libc::timespec {
            tv_sec: (timeout.get() / NANOS_PER_SECOND).try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: (timeout.get() % NANOS_PER_SECOND).try_into().unwrap_or(0),
        });
        let relative: *const libc::timespec = relative.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `word` lives through the call and the kernel only loads it atomically; the
        // timeout is null or a local that outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                relative,
            );
        }
    }

    fn wake_all(&self, word: &Word) {
        // SAFETY: waking uses the word's address only as a key.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                c_int::MAX,
            );
        }
    }
}
