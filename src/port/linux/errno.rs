//! From errno to [`Error`]: the one mapping that all bodies share.

use crate::error::{Code, Error};

/// The calling thread's errno.
pub(super) fn last() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
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
