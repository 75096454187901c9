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
    /// The call does not fit the present state: something is not open, still running or over.
    /// Let it end, or open it, and call again.
    BadState = 11,
    /// The memory given is smaller than the size query's answer: give more.
    MemoryTooSmall = 12,
    /// A maximum of [`crate::limits`] is exceeded: use a smaller model, context or configuration.
    LimitExceeded = 13,

    /// The port could not allocate a shared buffer: evict more, then try again.
    OutOfMemory = 20,
    /// The RAM swap has no segment left: give chunks a swap file, or use larger segments.
    SwapFull = 21,
    /// The unit is leased by compute and cannot be taken now: let go of it first.
    Leased = 22,

    /// The port's read, write or open failed; `value` is the port's own error (an errno on Linux).
    /// Nothing is lost by it: look after the storage, and try again.
    Io = 30,
    /// A file ended before the bytes that were promised: it was truncated or replaced. Put it back,
    /// and open it again.
    ShortRead = 31,
    /// The storage is full: free space, or evict to RAM only.
    NoSpace = 32,
    /// A sync failed: what was written since the last good one counts as lost, and nothing more is
    /// written. Restore what can be read, and open anew on sound storage.
    SyncFailed = 33,
    /// An earlier sync failed, so the storage takes no more writes; reads still work, and what is
    /// in memory is not touched. Go on in memory, and open anew on sound storage when time allows.
    Poisoned = 34,

    /// A checksum or an internal relation does not hold: the bytes are damaged. Get the file anew;
    /// of a context, compute again from the token that is lost.
    Corrupt = 40,
    /// The data ends before the field that `what` names: get all of it.
    Truncated = 41,
    /// This is not a file of the expected kind: name the right one.
    BadMagic = 42,
    /// A version, type, architecture or codec that this build does not know: do without, or use a
    /// build that knows it.
    Unsupported = 43,
    /// The data is sound but belongs to another model, layout or codec: give what belongs here.
    Mismatch = 44,

    /// The operation was cancelled (by the caller, or by an eviction during a restore): try again.
    Cancelled = 50,
    /// The deadline passed first: what was done until then holds; give more time for the rest.
    DeadlinePassed = 51,

    /// There is no accelerator library, or no device that fits: use the CPU, or name another.
    NoDevice = 60,
    /// The accelerator's driver refused or failed; `value` is its own error. If it lacked memory,
    /// evict and try again; otherwise use the CPU.
    DeviceFailed = 61,
    /// The driver's compiler failed; the build log says why. Use the CPU, or another driver.
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

    /// What the caller can do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Code::InvalidArgument => "correct the call",
            Code::BadState => "open it, or let what runs end",
            Code::MemoryTooSmall => "give what the size query says",
            Code::LimitExceeded => "use a smaller model, context or configuration",
            Code::OutOfMemory => "evict more, then try again",
            Code::SwapFull => "give chunks a swap file, or larger segments",
            Code::Leased => "let go of it first",
            Code::Io => "look after the storage, and try again",
            Code::ShortRead => "put the file back, and open it again",
            Code::NoSpace => "free space, or evict to RAM only",
            Code::SyncFailed => "restore what can be read, and open anew",
            Code::Poisoned => "go on in memory, open anew on sound storage",
            Code::Corrupt => "get the file anew, or compute again what is lost",
            Code::Truncated => "get all of it",
            Code::BadMagic => "name the right one",
            Code::Unsupported => "do without, or use a build that knows it",
            Code::Mismatch => "give what belongs here",
            Code::Cancelled => "try again",
            Code::DeadlinePassed => "give more time for the rest",
            Code::NoDevice => "use the processor, or name another",
            Code::DeviceFailed => "evict and try again, or use the processor",
            Code::BuildFailed => "use the processor, or another driver",
            Code::DeviceLost => "close everything on it, and open it again",
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
