//! The model file and the swap file: whole-block transfers that bypass the page cache.
//!
//! Invariant: every byte that `read_at` reports came from the file at that offset, and `sync`
//! reports success only while no sync has ever failed. A file system that refuses `O_DIRECT`, at
//! open or at any later transfer, turns this file to buffered transfers for good; `is_direct` says
//! so. Buffered transfers ask the kernel to drop what they cached, so that weights are not held
//! twice. A buffer that direct transfers cannot reach, such as a dma-buf's mapping, is reached
//! through a [`Bounce`]; the file stays direct.

use super::bounce::Bounce;
use super::errno;
use super::open::{clear_direct, file_length, open_direct, sync_directory_of};
use super::park::FutexPark;
use super::transfer::{Retries, checked_end, pread, pwrite};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::Storage;
use crate::port::lock::Lock;
use crate::sync::Flag;
use core::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

/// One open file. It is closed, and its lock given up, when dropped.
pub struct File {
    fd: OwnedFd,
    what: &'static str,
    writable: bool,
    buffered: Flag,
    poisoned: Flag,
    /// One sync at a time: the kernel reports a lost write to one of two concurrent syncs only.
    syncing: Lock<()>,
}

const MODEL: &str = "model file";
const SWAP: &str = "swap file";

impl File {
    /// Opens the model file, read only.
    pub fn open_model(path: &CStr) -> Result<Self> {
        let (fd, direct) = open_direct(path, libc::O_RDONLY, MODEL)?;
        Ok(Self::new(fd, MODEL, false, direct))
    }

    /// Opens the swap file empty: makes it, readable by its owner only, or truncates it. A file
    /// that another handle has open as its swap file is `BadState`; a symbolic link is refused.
    pub fn create_swap(path: &CStr) -> Result<Self> {
        let file = Self::open_swap(path)?;
        // SAFETY: the call concerns the descriptor only.
        if unsafe { libc::ftruncate(file.fd.as_raw_fd(), 0) } != 0 {
            return Err(errno::error(SWAP, errno::last()));
        }
        Ok(file)
    }

    /// Opens the swap file with what it holds, for a context that survived its process; makes an
    /// empty one where there is none. Otherwise as [`File::create_swap`].
    pub fn open_swap(path: &CStr) -> Result<Self> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW;
        let (fd, direct) = open_direct(path, flags, SWAP)?;
        // SAFETY: the call concerns the descriptor only.
        if unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(match errno::last() {
                libc::EWOULDBLOCK => Error::new(Code::BadState, "swap file is in use"),
                errno => errno::error(SWAP, errno),
            });
        }
        sync_directory_of(path, SWAP)?;
        Ok(Self::new(fd, SWAP, true, direct))
    }

    fn new(fd: OwnedFd, what: &'static str, writable: bool, direct: bool) -> Self {
        let buffered = Flag::new();
        if !direct {
            buffered.raise();
        }
        let syncing = Lock::new((), &FutexPark);
        File { fd, what, writable, buffered, poisoned: Flag::new(), syncing }
    }

    /// For mapping it.
    pub(super) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The failed call's consequence: another try, buffered from now on, or its error.
    fn failed(&self, errno: i32, was_direct: bool, retries: &mut Retries) -> Result<()> {
        if errno == libc::EINVAL && was_direct {
            clear_direct(&self.fd, self.what)?;
            self.buffered.raise();
            return Ok(());
        }
        retries.failed(errno)
    }

    /// After a direct transfer that stopped inside a block, `done` goes back to the block's start:
    /// a direct transfer cannot go on from anywhere else.
    fn resume(&self, done: usize, retries: &mut Retries) -> Result<usize> {
        if self.buffered.is_raised() || done.is_multiple_of(IO_ALIGN) {
            return Ok(done);
        }
        retries.stalled()?;
        Ok(done - done % IO_ALIGN)
    }

    /// Drops a range of clean pages from the page cache, after a buffered transfer.
    fn forget(&self, offset: u64, bytes: u64) {
        if !self.buffered.is_raised() {
            return;
        }
        if let (Ok(offset), Ok(bytes)) = (offset.try_into(), bytes.try_into()) {
            let advice = libc::POSIX_FADV_DONTNEED;
            // SAFETY: the advice concerns the descriptor only; a file system may ignore it.
            unsafe { libc::posix_fadvise(self.fd.as_raw_fd(), offset, bytes, advice) };
        }
    }

    fn check_writable(&self) -> Result<()> {
        if !self.writable {
            return Err(Error::new(Code::BadState, "file is read only"));
        }
        if self.poisoned.is_raised() {
            return Err(Error::new(Code::Poisoned, self.what));
        }
        Ok(())
    }
}

impl Storage for File {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        check_aligned("read", offset, into)?;
        let mut retries = Retries::new(self.what);
        let mut bounce: Option<Bounce> = None;
        let mut done = 0;
        while done < into.len() {
            let was_direct = self.is_direct();
            let position = checked_end("read", offset, done)?;
            let rest = &mut into[done..];
            let left = rest.len();
            let moved = match &mut bounce {
                Some(bounce) => bounce.read(&self.fd, position, rest),
                None => pread(&self.fd, position, rest),
            };
            match moved {
                Ok(0) => break,
                Ok(moved) => done += moved,
                Err(libc::EFAULT) if was_direct && bounce.is_none() => {
                    bounce = Some(Bounce::new(self.what, left)?);
                }
                Err(errno) => self.failed(errno, was_direct, &mut retries)?,
            }
            // The last block of a file is usually a part of one: that is its end.
            if !done.is_multiple_of(IO_ALIGN) {
                if checked_end("read", offset, done)? >= self.length()? {
                    break;
                }
                done = self.resume(done, &mut retries)?;
            }
        }
        self.forget(offset, u64::try_from(into.len()).unwrap_or(0));
        Ok(done)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        check_aligned("write", offset, from)?;
        self.check_writable()?;
        let mut retries = Retries::new(self.what);
        let mut bounce: Option<Bounce> = None;
        let mut done = 0;
        while done < from.len() {
            let was_direct = self.is_direct();
            let position = checked_end("write", offset, done)?;
            let rest = &from[done..];
            let moved = match &mut bounce {
                Some(bounce) => bounce.write(&self.fd, position, rest),
                None => pwrite(&self.fd, position, rest),
            };
            match moved {
                Ok(0) => retries.stalled()?,
                Ok(moved) => done = self.resume(done + moved, &mut retries)?,
                Err(libc::EFAULT) if was_direct && bounce.is_none() => {
                    bounce = Some(Bounce::new(self.what, rest.len())?);
                }
                Err(errno) => self.failed(errno, was_direct, &mut retries)?,
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _one_at_a_time = self.syncing.lock();
        self.check_writable()?;
        let mut retries = Retries::new(self.what);
        loop {
            // SAFETY: the call concerns the descriptor only.
            if unsafe { libc::fdatasync(self.fd.as_raw_fd()) } == 0 {
                break;
            }
            // An interrupted sync has reported nothing yet and may be repeated; any other failure
            // may have dropped the pages that it could not write, and a repetition would succeed
            // without them.
            let errno = errno::last();
            if errno != libc::EINTR || retries.stalled().is_err() {
                self.poisoned.raise();
                return Err(Error::new(Code::SyncFailed, self.what).with(errno));
            }
        }
        self.forget(0, 0);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable()?;
        if bytes == 0 {
            return Ok(());
        }
        let argument = Error::new(Code::InvalidArgument, "discard").with(offset);
        let end = offset.checked_add(bytes).and_then(|end| i64::try_from(end).ok());
        let (Some(_), Ok(start), Ok(bytes)) = (end, offset.try_into(), bytes.try_into()) else {
            return Err(argument);
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let mut retries = Retries::new("discard");
        // SAFETY: the call concerns the descriptor only.
        while unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, start, bytes) } != 0 {
            match errno::last() {
                // A file system without holes keeps the space; nobody depends on it.
                libc::EOPNOTSUPP | libc::ENOSYS => return Ok(()),
                errno => retries.failed(errno)?,
            }
        }
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        file_length(&self.fd, self.what)
    }

    fn is_direct(&self) -> bool {
        !self.buffered.is_raised()
    }
}

fn check_aligned(what: &'static str, offset: u64, bytes: &[u8]) -> Result<()> {
    let end = checked_end(what, offset, bytes.len())?;
    let aligned = bytes.as_ptr().addr().is_multiple_of(IO_ALIGN)
        && bytes.len().is_multiple_of(IO_ALIGN)
        && end.is_multiple_of(IO_ALIGN as u64);
    if aligned { Ok(()) } else { Err(Error::new(Code::InvalidArgument, what).with(offset)) }
}
