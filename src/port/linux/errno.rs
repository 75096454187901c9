//! From errno to [`Error`]: the one mapping that all bodies share.

use crate::error::{Code, Error};

/// The calling thread's errno.
pub(super) fn last() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The error for a failed call of a device's driver: what the memory or the files of the process do
/// not suffice for, what the driver does not have, a device that is gone, or a refusal.
pub(in crate::port) fn device_error(what: &'static str, errno: i32) -> Error {
    let code = match errno {
        libc::ENOMEM => Code::OutOfMemory,
        libc::EMFILE | libc::ENFILE => Code::LimitExceeded,
        libc::ENODEV | libc::ENXIO => Code::DeviceLost,
        libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP => Code::Unsupported,
        _ => Code::DeviceFailed,
    };
    Error::new(code, what).with(errno)
}

/// The error for a failed call. Codes follow what the caller can do: a full storage or an exceeded
/// quota or file size limit all mean "evict to RAM only".
pub(super) fn error(what: &'static str, errno: i32) -> Error {
    let code = match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Code::NoSpace,
        libc::ENOMEM => Code::OutOfMemory,
        _ => Code::Io,
    };
    Error::new(code, what).with(errno)
}
