//! Control calls of device files: how Linux numbers them, and making one.

use super::errno;
use super::transfer::Retries;
use core::ffi::{c_long, c_ulong};
use core::marker::PhantomData;
use core::ptr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Which way a call's argument goes.
#[derive(Clone, Copy, Debug)]
pub(in crate::port) enum Direction {
    /// To the driver.
    Write = 1,
    /// There and back.
    Both = 3,
}

/// A call of a driver, with the type of its argument.
pub(in crate::port) struct Call<T> {
    number: u32,
    argument: PhantomData<fn(&mut T)>,
}

impl<T> Call<T> {
    /// The driver's letter, and the call's number among its calls.
    pub(in crate::port) const fn new(direction: Direction, letter: u8, number: u8) -> Self {
        let bytes = size_of::<T>();
        assert!(bytes < 1 << 14);
        #[expect(clippy::cast_possible_truncation, reason = "just checked")]
        let bytes = bytes as u32;
        let number = (direction as u32) << 30 | bytes << 16 | (letter as u32) << 8 | number as u32;
        Call { number, argument: PhantomData }
    }

    /// The request as the kernel sees it.
    pub(in crate::port) const fn number(&self) -> u32 {
        self.number
    }

    /// Makes the call, again where it was interrupted or put off; the errno where it fails.
    ///
    /// # Safety
    ///
    /// Every address in the argument is that of what the driver takes it for, through the call.
    pub(in crate::port) unsafe fn make(&self, fd: &OwnedFd, argument: &mut T) -> Result<(), i32> {
        let mut retries = Retries::new("control call");
        let (file, request) = (c_long::from(fd.as_raw_fd()), c_ulong::from(self.number));
        loop {
            // By number: C libraries differ in the type of a request.
            // SAFETY: the argument is a T, as the request's size says; the rest is the caller's
            // promise.
            let answer = unsafe {
                libc::syscall(libc::SYS_ioctl, file, request, ptr::from_mut(&mut *argument))
            };
            if answer >= 0 {
                return Ok(());
            }
            let errno = errno::last();
            if !retries.again(errno) {
                return Err(errno);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_put_together_as_in_the_kernel_s_headers() {
        // FICLONERANGE, TUNSETIFF, FS_IOC_FIEMAP.
        assert_eq!(Call::<[u64; 4]>::new(Direction::Write, 0x94, 13).number(), 0x4020_940D);
        assert_eq!(Call::<i32>::new(Direction::Write, b'T', 202).number(), 0x4004_54CA);
        assert_eq!(Call::<[u8; 32]>::new(Direction::Both, b'f', 11).number(), 0xC020_660B);
    }

    #[test]
    fn a_file_without_controls_refuses() {
        let file: OwnedFd = std::fs::File::open("/proc/self/maps").unwrap().into();
        let call = Call::<u64>::new(Direction::Write, b'b', 0);
        // SAFETY: the argument holds no address.
        let errno = unsafe { call.make(&file, &mut 0) }.unwrap_err();
        assert_eq!(errno::device_error("file", errno).code, crate::Code::Unsupported);
    }
}
