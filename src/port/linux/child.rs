//! Running another program and waiting for it, with a limit on its time.
//!
//! By `posix_spawn`, not `fork`: a forked child of a process with threads may only make system
//! calls until it executes something, and nothing that an accelerator's driver does is among them.

use super::errno;
use crate::error::{Code, Error, Result};
use crate::port::Clock;
use crate::port::linux::MonotonicClock;
use crate::units::Nanos;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::ptr;

/// Arguments of a program, its name not counted.
pub(in crate::port) const ARGUMENTS_MAX: usize = 14;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::port) enum Ending {
    /// By itself, with that status.
    Exited(c_int),
    /// By that signal: it crashed, or somebody killed it.
    Signalled(c_int),
    /// Killed here, since its time was up.
    TimedOut,
    /// Somebody else in this process collected how it ended.
    Unknown,
}

const PAUSE_MICROS: libc::useconds_t = 2000;

/// The C library's own. `libc` does not declare the functions for Android, which has them since
/// API level 28.
mod foreign {
    use core::ffi::{c_char, c_int};
    use libc::{pid_t, posix_spawn_file_actions_t as Actions, posix_spawnattr_t as Attributes};

    unsafe extern "C" {
        pub(super) static mut environ: *const *mut c_char;

        pub(super) fn posix_spawn(
            child: *mut pid_t,
            path: *const c_char,
            actions: *const Actions,
            attributes: *const Attributes,
            arguments: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int;
        pub(super) fn posix_spawn_file_actions_init(actions: *mut Actions) -> c_int;
        pub(super) fn posix_spawn_file_actions_destroy(actions: *mut Actions) -> c_int;
        pub(super) fn posix_spawn_file_actions_addopen(
            actions: *mut Actions,
            file: c_int,
            path: *const c_char,
            flags: c_int,
            mode: libc::mode_t,
        ) -> c_int;
    }
}

/// Runs the program with this process's environment, its input empty and its output dropped;
/// errors go where this process's go.
pub(in crate::port) fn run(
    what: &'static str,
    path: &CStr,
    arguments: &[&CStr],
    time_max: Nanos,
) -> Result<Ending> {
    let mut pointers: [*mut c_char; ARGUMENTS_MAX + 2] = [ptr::null_mut(); ARGUMENTS_MAX + 2];
    if arguments.len() > ARGUMENTS_MAX {
        return Err(Error::new(Code::LimitExceeded, what).with(arguments.len()));
    }
    let all = core::iter::once(&path).chain(arguments);
    for (pointer, argument) in pointers.iter_mut().zip(all) {
        *pointer = argument.as_ptr().cast_mut();
    }
    let files = FileActions::new(what)?;
    // SAFETY: the C library's own variable. Whoever changes the environment of a process with
    // threads breaks that library's rule, as for every reader of it.
    let environment = unsafe { (&raw const foreign::environ).read() };
    let mut child = 0;
    // SAFETY: path and arguments are C strings, the lists end with null, the file actions are
    // initialised.
    let status = unsafe {
        foreign::posix_spawn(
            &raw mut child,
            path.as_ptr(),
            &raw const files.0,
            ptr::null(),
            pointers.as_ptr(),
            environment,
        )
    };
    match status {
        0 => wait(what, child, time_max),
        errno => Err(errno::error(what, errno)),
    }
}

fn wait(what: &'static str, child: libc::pid_t, time_max: Nanos) -> Result<Ending> {
    let started = MonotonicClock.now();
    let mut ending = None;
    loop {
        let late = ending.is_some();
        let mut status = 0;
        // SAFETY: `status` is writable; the child is ours.
        let ended = unsafe { libc::waitpid(child, &raw mut status, if late { 0 } else { NOW }) };
        match ended {
            0 if MonotonicClock.now().since(started) >= time_max => {
                // SAFETY: the child was not collected yet, so its number is still its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
                ending = Some(Ending::TimedOut);
            }
            // SAFETY: sleeping touches no memory.
            0 => _ = unsafe { libc::usleep(PAUSE_MICROS) },
            -1 => match errno::last() {
                libc::EINTR => {}
                libc::ECHILD => return Ok(ending.unwrap_or(Ending::Unknown)),
                errno => return Err(errno::error(what, errno)),
            },
            _ if libc::WIFSIGNALED(status) => {
                return Ok(ending.unwrap_or(Ending::Signalled(libc::WTERMSIG(status))));
            }
            _ => return Ok(ending.unwrap_or(Ending::Exited(libc::WEXITSTATUS(status)))),
        }
    }
}

const NOW: c_int = libc::WNOHANG;

/// What happens to the child's standard files.
struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new(what: &'static str) -> Result<FileActions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the place is writable for the structure.
        match unsafe { foreign::posix_spawn_file_actions_init(actions.as_mut_ptr()) } {
            0 => {}
            errno => return Err(errno::error(what, errno)),
        }
        // SAFETY: the call above initialised it.
        let mut actions = FileActions(unsafe { actions.assume_init() });
        for (file, flags) in
            [(libc::STDIN_FILENO, libc::O_RDONLY), (libc::STDOUT_FILENO, libc::O_WRONLY)]
        {
            let null = c"/dev/null".as_ptr();
            // SAFETY: the actions are initialised, the path is a C string.
            let status = unsafe {
                foreign::posix_spawn_file_actions_addopen(&raw mut actions.0, file, null, flags, 0)
            };
            if status != 0 {
                return Err(errno::error(what, status));
            }
        }
        Ok(actions)
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: initialised, and used no more.
        unsafe { foreign::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(command: &CStr, millis: u64) -> Result<Ending> {
        run("shell", c"/bin/sh", &[c"-c", command], Nanos::new(millis * 1_000_000))
    }

    #[test]
    fn endings_are_told_apart() {
        assert_eq!(shell(c"exit 0", 60_000), Ok(Ending::Exited(0)));
        assert_eq!(shell(c"exit 7", 60_000), Ok(Ending::Exited(7)));
        assert_eq!(shell(c"kill -ABRT $$", 60_000), Ok(Ending::Signalled(libc::SIGABRT)));
        assert_eq!(shell(c"exec sleep 100", 50), Ok(Ending::TimedOut));
        // Its input is empty and its output goes nowhere.
        assert_eq!(shell(c"read line || { echo lost; exit 3; }", 60_000), Ok(Ending::Exited(3)));
    }

    #[test]
    fn a_program_that_cannot_run_is_an_error() {
        let error = run("compiler", c"/nowhere", &[], Nanos::new(1)).unwrap_err();
        assert_eq!(error, Error::new(Code::Io, "compiler").with(libc::ENOENT));
        let many = [c"x"; ARGUMENTS_MAX + 1];
        let error = run("compiler", c"/bin/true", &many, Nanos::new(1)).unwrap_err();
        assert_eq!(error.code, Code::LimitExceeded);
    }
}
