//! The one error type. A code says what the caller can do, `what` names the field, file or
//! operation, `value` carries the number that goes with it (an errno, an offset, a count).
//!
//! Codes are grouped by tens and never reused; C sees them negated, 0 is success.

use core::fmt;

/// What went wrong, in terms of what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Code {
    /// An argument is outside its documented range: correct the call.
    InvalidArgument = 10,
    /// The call does not fit the present state (for example a restore inside a restore).
    BadState = 11,
    /// The memory given is smaller than the size query's answer: give more.
    MemoryTooSmall = 12,
    /// A maximum of [`crate::limits`] is exceeded: use a smaller model, context or configuration.
    LimitExceeded = 13,

    /// The port could not allocate a shared buffer: evict more, then try again.
    OutOfMemory = 20,
    /// The RAM swap has no segment left.
    SwapFull = 21,
    /// The unit is leased by compute and cannot be taken now.
    Leased = 22,

    /// The port's read, write or open failed; `value` is the port's own error (an errno on Linux).
    Io = 30,
    /// A file ended before the bytes that were promised: it was truncated or replaced.
    ShortRead = 31,
    /// The storage is full: free space, or evict to RAM only.
    NoSpace = 32,
    /// A sync failed; what was written since the last good one counts as lost.
    SyncFailed = 33,
    /// The storage was poisoned by an earlier failed sync: reopen it from scratch.
    Poisoned = 34,

    /// A checksum or an internal relation does not hold: the bytes are damaged.
    Corrupt = 40,
    /// The data ends before the field that `what` names.
    Truncated = 41,
    /// This is not a file of the expected kind.
    BadMagic = 42,
    /// A version, type, architecture or codec that this build does not know.
    Unsupported = 43,
    /// The data is sound but belongs to another model, layout or codec.
    Mismatch = 44,

    /// The operation was cancelled (by the caller, or by an eviction during a restore): try again.
    Cancelled = 50,
    /// The deadline passed first.
    DeadlinePassed = 51,

    /// There is no accelerator library, or no device that fits: use the CPU, or name another.
    NoDevice = 60,
    /// The accelerator's driver refused or failed; `value` is its own error.
    DeviceFailed = 61,
    /// The driver's compiler failed; the build log says why.
    BuildFailed = 62,
    /// The accelerator was lost while it computed: close everything on it and open it again.
    DeviceLost = 63,
}

impl Code {
    /// All of them.
    pub const ALL: [Code; 23] = [
        Code::InvalidArgument,
        Code::BadState,
        Code::MemoryTooSmall,
        Code::LimitExceeded,
        Code::OutOfMemory,
        Code::SwapFull,
        Code::Leased,
        Code::Io,
        Code::ShortRead,
        Code::NoSpace,
        Code::SyncFailed,
        Code::Poisoned,
        Code::Corrupt,
        Code::Truncated,
        Code::BadMagic,
        Code::Unsupported,
        Code::Mismatch,
        Code::Cancelled,
        Code::DeadlinePassed,
        Code::NoDevice,
        Code::DeviceFailed,
        Code::BuildFailed,
        Code::DeviceLost,
    ];

    /// The code of that number.
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as i32 == number)
    }

    /// A short sentence for people.
    pub const fn message(self) -> &'static str {
        match self {
            Code::InvalidArgument => "invalid argument",
            Code::BadState => "not possible in this state",
            Code::MemoryTooSmall => "memory given is too small",
            Code::LimitExceeded => "limit exceeded",
            Code::OutOfMemory => "out of memory",
            Code::SwapFull => "RAM swap is full",
            Code::Leased => "unit is in use",
            Code::Io => "I/O error",
            Code::ShortRead => "file ends early",
            Code::NoSpace => "no space left on storage",
            Code::SyncFailed => "sync failed, recent writes are lost",
            Code::Poisoned => "storage was poisoned by a failed sync",
            Code::Corrupt => "data is corrupt",
            Code::Truncated => "data is truncated",
            Code::BadMagic => "not a file of the expected kind",
            Code::Unsupported => "not supported",
            Code::Mismatch => "belongs to another model or configuration",
            Code::Cancelled => "cancelled",
            Code::DeadlinePassed => "deadline passed",
            Code::NoDevice => "no such accelerator",
            Code::DeviceFailed => "accelerator's driver failed",
            Code::BuildFailed => "accelerator's compiler failed",
            Code::DeviceLost => "accelerator was lost",
        }
    }
}

/// The library's result.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A code, the name of the field or operation, and the number that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind of failure.
    pub code: Code,
    /// The field, file or operation it concerns.
    pub what: &'static str,
    /// An errno, an offset, an index or a count; 0 where there is none.
    pub value: i64,
}

impl Error {
    /// An error without a number.
    pub const fn new(code: Code, what: &'static str) -> Self {
        Error { code, what, value: 0 }
    }

    /// The same error with a number. Values beyond `i64` are capped.
    pub fn with(self, value: impl TryInto<i64>) -> Self {
        Error { value: value.try_into().unwrap_or(i64::MAX), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.code.message())?;
        if self.value != 0 {
            write!(f, " ({})", self.value)?;
        }
        Ok(())
    }
}

impl core::error::Error for Error {}
