//! What the program tells its user when something does not work.
//!
//! Every failure has a message that names the thing (a file, an option) and, where the user can do
//! something about it, a hint. Nothing here prints or exits; `main` does.

use mzcache::Code;
use mzcache::port::opencl::status_name;
use std::fmt;
use std::io;
use std::path::Path;

/// The result of everything in this program.
pub type Outcome<T> = Result<T, Failure>;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Something did not work: exit code 1.
    Error,
    /// The command line asks for something impossible: exit code 2.
    Usage,
    /// Whoever read our output went away: end quietly, as other tools do.
    OutputClosed,
}

/// A message, a hint, and how the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    pub hint: Option<String>,
    pub exit: Exit,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: None, exit: Exit::Error }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, ..Failure::new(message) }
    }

    /// The same with advice; advice given first, nearer to the cause, is kept.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// The same with "`what`: " in front of the message.
    pub fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// A file operation that failed.
    pub fn file(action: &str, path: &Path, error: &io::Error) -> Self {
        let failure = Failure::new(format!("cannot {action} {}: {error}", path.display()));
        match file_hint(error.kind()) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn file_hint(kind: io::ErrorKind) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    Some(match kind {
        Kind::NotFound => "check the path",
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
            "choose a place you may write to with --cache-dir DIR or MZCACHE_DIR, \
             or mend the permissions"
        }
        Kind::NotADirectory | Kind::AlreadyExists => {
            "part of the path is a file; choose another directory with --cache-dir DIR"
        }
        Kind::StorageFull | Kind::QuotaExceeded => {
            "free some space, or choose another file system with --cache-dir DIR"
        }
        Kind::IsADirectory => "give a file, not a directory",
        _ => return None,
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<mzcache::Error> for Failure {
    fn from(error: mzcache::Error) -> Self {
        if let (Code::Io, Ok(number @ 1..)) = (error.code, i32::try_from(error.value)) {
            let cause = io::Error::from_raw_os_error(number);
            let failure = Failure::new(format!("{}: {cause}", error.what));
            return match file_hint(cause.kind()) {
                Some(hint) => failure.hint(hint),
                None => failure,
            };
        }
        // Of all that the library calls, only OpenCL counts its errors below zero.
        let failure = Failure::new(match error.value {
            status @ ..=-1 => {
                let (what, name) = (error.what, status_name(status));
                format!("{what}: {} ({name}, {status})", error.code.message())
            }
            _ => error.to_string(),
        });
        match library_hint(error.code) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn library_hint(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::LimitExceeded => "use a smaller model or a shorter context",
        Code::OutOfMemory | Code::MemoryTooSmall => {
            "close other programs, or use a smaller model or a shorter context"
        }
        Code::SwapFull => "evict less, or choose another --codec",
        Code::ShortRead => {
            "the file became shorter while it was open; keep it in place while mzcache runs"
        }
        Code::NoSpace => "free some space, or choose another file system with --cache-dir DIR",
        Code::Corrupt | Code::Truncated => "the file is damaged; download or write it again",
        Code::BadMagic => "give a GGUF model file",
        Code::Unsupported => "this build does not know that kind; use another model or option",
        Code::Mismatch => "use the model and options that the data was written with",
        Code::NoDevice => {
            "install an OpenCL driver or name its file with --library, choose another device with \
             --device, or use --backend cpu"
        }
        Code::BuildFailed => {
            "update the device's driver, choose another device with --device, or use --backend cpu"
        }
        Code::DeviceFailed | Code::DeviceLost => {
            "try again; if that does not help, choose another device with --device, or use \
             --backend cpu"
        }
        _ => return None,
    })
}

/// Output errors: a closed pipe is no failure.
pub fn output(error: io::Error) -> Failure {
    let failure = Failure::new(format!("cannot write the output: {error}"));
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure { exit: Exit::OutputClosed, ..failure },
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_nearest_to_the_cause_stays() {
        let failure = Failure::new("a").hint("first").hint("second").about("model");
        assert_eq!(failure.message, "model: a");
        assert_eq!(failure.hint.as_deref(), Some("first"));
    }

    #[test]
    fn full_and_read_only_storage_get_advice() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
            let failure = Failure::file("write", Path::new("/x"), &kind.into());
            assert!(failure.hint.is_some_and(|hint| hint.contains("--cache-dir")));
        }
    }

    #[test]
    fn library_errors_keep_their_field_and_get_advice() {
        let failure: Failure = mzcache::Error::new(Code::Truncated, "tensor table").into();
        assert_eq!(failure.message, "tensor table: data is truncated");
        assert!(failure.hint.is_some_and(|hint| hint.contains("damaged")));
        assert_eq!(failure.exit, Exit::Error);
    }

    #[test]
    fn the_system_s_own_numbers_become_words() {
        let read_only = mzcache::Error::new(Code::Io, "swap file").with(30);
        let failure: Failure = read_only.into();
        assert_eq!(failure.message, "swap file: Read-only file system (os error 30)");
        assert!(failure.hint.is_some_and(|hint| hint.contains("--cache-dir")));
        let failure: Failure = mzcache::Error::new(Code::Io, "smaps").into();
        assert_eq!(failure.message, "smaps: I/O error");
    }

    #[test]
    fn a_closed_pipe_ends_quietly() {
        assert_eq!(output(io::ErrorKind::BrokenPipe.into()).exit, Exit::OutputClosed);
        assert_eq!(output(io::ErrorKind::StorageFull.into()).exit, Exit::Error);
    }
}
