//! The filter, the child that runs under it, and the supervisor's end of it.

use super::supervisor::{Report, World, supervise};
use crate::scenario::{Outcome, run};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// Letters of the drivers' calls: KGSL, dma-heap, ION, dma-buf.
const LETTERS: [u8; 4] = [0x09, b'H', b'I', b'b'];

/// Runs a scenario of this program in such a world.
pub fn under(world: World, scenario: &str) -> (Outcome, Report) {
    let command = Command::new(std::env::current_exe().unwrap());
    let (outcome, report) = supervised(world, command, |command| run(command, scenario));
    assert_eq!(report.complaints, [""; 0], "{:?}", outcome.said);
    (outcome, report)
}

/// Runs a command in such a world.
pub fn supervised<T>(
    world: World,
    mut command: Command,
    run: impl FnOnce(Command) -> T,
) -> (T, Report) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let filter = filter(&world.trapped());
    let supervisor = std::thread::spawn(move || {
        let listener = receive(&ours);
        supervise(world, &listener)
    });
    let install = move || install(&filter, theirs.as_raw_fd());
    // SAFETY: the closure only makes system calls, on memory that was there before.
    unsafe { command.pre_exec(install) };
    let result = run(command);
    (result, supervisor.join().unwrap())
}

/// Hands `openat`, control calls of those letters, and other calls asked for to the supervisor.
fn filter(calls: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump = |k, jf| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf,
        k,
    };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |k| statement(libc::BPF_RET | libc::BPF_K, k);
    let mut program = vec![load(0)];
    for call in calls.iter().chain([&libc::SYS_openat]) {
        program.extend([jump(*call as u32, 1), answer(libc::SECCOMP_RET_USER_NOTIF)]);
    }
    program.extend([jump(libc::SYS_ioctl as u32, 2 + 2 * LETTERS.len() as u8)]);
    // The second argument's lower half.
    program.push(load(24));
    program.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xFF00));
    for letter in LETTERS {
        program.push(jump(u32::from(letter) << 8, 1));
        program.push(answer(libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    program
}

/// In the child, before it becomes the program.
fn install(filter: &[libc::sock_filter], to: RawFd) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the call takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the program lies at that address for the length of the call.
    let listener = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    send(to, listener as RawFd)
}

const CONTROL_BYTES: usize = 64;

/// A message of one byte with room for a descriptor.
fn message(byte: &mut libc::iovec, control: &mut [u64; CONTROL_BYTES / 8]) -> libc::msghdr {
    // SAFETY: an all-zero message is one of nothing.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = byte;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the macro only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    message
}

fn send(socket: RawFd, fd: RawFd) -> io::Result<()> {
    let (mut byte, mut control) = (1u8, [0; CONTROL_BYTES / 8]);
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let message = message(&mut part, &mut control);
    // SAFETY: the header and the descriptor lie in `control`, which has room for them.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
    }
    // SAFETY: the message and its parts live through the call.
    match unsafe { libc::sendmsg(socket, &message, 0) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn receive(socket: &UnixStream) -> OwnedFd {
    let (mut byte, mut control) = (0u8, [0; CONTROL_BYTES / 8]);
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut message = message(&mut part, &mut control);
    // SAFETY: the message and its parts live through the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    assert_eq!(got, 1, "no filter: {}", io::Error::last_os_error());
    // SAFETY: the kernel filled the message in.
    let header = unsafe { libc::CMSG_FIRSTHDR(&message) };
    assert_ne!(header, ptr::null_mut());
    // SAFETY: the message holds one descriptor, as its sender made it, which is now ours.
    unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()) }
}
