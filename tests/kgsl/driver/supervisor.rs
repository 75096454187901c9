//! Answers the child's calls, one after the other, and keeps books.

use super::{Heaps, Kgsl, Process};
use std::collections::BTreeMap;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A call that fails: the first `spared` of its kind work, then `times` fail.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub call: &'static str,
    pub spared: u64,
    pub times: u64,
    pub errno: i32,
}

/// Which ION there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ion {
    Files,
    Handles,
}

/// Which drivers there are, and what they are like.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub has_kgsl: bool,
    /// Without the `GPUOBJ` calls.
    pub is_old: bool,
    pub is_coherent: bool,
    /// Grants no memory at one address.
    pub is_apart: bool,
    /// Each object has a page of the driver's own behind it.
    pub has_guards: bool,
    /// Said of each mapping in place of its size.
    pub footprint: Option<u64>,
    pub has_dma_heap: bool,
    pub ion: Option<Ion>,
    pub faults: Vec<Fault>,
}

/// A phone of the last years.
impl World {
    pub fn kgsl() -> World {
        World { has_kgsl: true, is_coherent: true, ..World::default() }
    }

    pub fn dma_heap() -> World {
        World { has_dma_heap: true, ..World::default() }
    }

    pub fn with(mut self, call: &'static str, spared: u64, errno: i32) -> World {
        self.faults.push(Fault { call, spared, times: u64::MAX, errno });
        self
    }

    fn has_heaps(&self) -> bool {
        self.has_dma_heap || self.ion.is_some()
    }

    /// Calls to watch besides those of drivers: transfers where memory refuses direct ones, and
    /// mappings that are to fail.
    pub fn trapped(&self) -> Vec<libc::c_long> {
        let mut calls = vec![];
        if self.has_heaps() {
            calls.extend([libc::SYS_pread64, libc::SYS_pwrite64]);
        }
        if self.faults.iter().any(|fault| fault.call == "mmap") {
            calls.push(libc::SYS_mmap);
        }
        calls
    }
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// What a driver or a kernel would not have liked, or would have leaked.
    pub complaints: Vec<String>,
    /// Calls by name, those that failed included.
    pub calls: BTreeMap<&'static str, u64>,
}

impl Report {
    pub fn count(&self, call: &str) -> u64 {
        self.calls.get(call).copied().unwrap_or(0)
    }
}

/// An answer to a call: its result, or the errno.
pub type Answer = Result<i64, i32>;

pub struct Supervisor<'a> {
    pub world: World,
    pub report: Report,
    listener: &'a OwnedFd,
    kgsl: Option<Kgsl>,
    heaps: Heaps,
}

/// One call, and how to answer it.
#[derive(Clone, Copy)]
pub struct Notice {
    id: u64,
    pub arguments: [u64; 6],
}

pub fn supervise(world: World, listener: &OwnedFd) -> Report {
    let kgsl = world.has_kgsl.then(Kgsl::new);
    let report = Report::default();
    let mut supervisor = Supervisor { world, report, listener, kgsl, heaps: Heaps::new() };
    while let Some(notice) = supervisor.next() {
        supervisor.answer(&notice);
    }
    if let Some(kgsl) = supervisor.kgsl.take() {
        kgsl.finish(&mut supervisor.report);
    }
    mem::replace(&mut supervisor.heaps, Heaps::new()).finish(&mut supervisor.report);
    supervisor.report
}

impl Supervisor<'_> {
    /// The next call, or none when the child is gone.
    fn next(&mut self) -> Option<libc::seccomp_notif> {
        loop {
            let mut poll =
                libc::pollfd { fd: self.listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, writable through the call.
            assert_eq!(unsafe { libc::poll(&mut poll, 1, -1) }, 1);
            if poll.revents & libc::POLLIN == 0 {
                return None;
            }
            // SAFETY: an all-zero notice is valid, and asked for.
            let mut notice: libc::seccomp_notif = unsafe { mem::zeroed() };
            let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
            // SAFETY: the notice is writable through the call.
            let got = unsafe { libc::ioctl(self.listener.as_raw_fd(), request, &mut notice) };
            // A thread that died meanwhile takes its call back.
            if got == 0 {
                return Some(notice);
            }
        }
    }

    fn answer(&mut self, call: &libc::seccomp_notif) {
        let notice = Notice { id: call.id, arguments: call.data.args };
        let process = Process::new(call.pid);
        let answer = match libc::c_long::from(call.data.nr) {
            libc::SYS_openat => self.open(&process, &notice),
            libc::SYS_ioctl => self.control(&process, &notice).map(Some),
            libc::SYS_mmap => self.map(&process, &notice),
            _ => self.transfer(&process, &notice),
        };
        let (value, errno, flags) = match answer {
            Ok(Some(value)) => (value, 0, 0),
            Ok(None) => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Err(errno) => (0, -errno, 0),
        };
        let response = libc::seccomp_notif_resp { id: call.id, val: value, error: errno, flags };
        let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
        // SAFETY: the response is readable through the call. It fails if the child is gone.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), request, &response) };
    }

    /// Puts a file into the child's table.
    pub fn give(&self, notice: &Notice, file: RawFd) -> i64 {
        let flags = libc::O_CLOEXEC as u32;
        let fd = libc::seccomp_notif_addfd {
            id: notice.id,
            flags: 0,
            srcfd: file as u32,
            newfd: 0,
            newfd_flags: flags,
        };
        let request = libc::SECCOMP_IOCTL_NOTIF_ADDFD;
        // SAFETY: the structure is readable through the call.
        let given = unsafe { libc::ioctl(self.listener.as_raw_fd(), request, &fd) };
        assert!(given >= 0);
        i64::from(given)
    }

    /// Counts a call and lets it fail where that was planned.
    pub fn count(&mut self, call: &'static str) -> Result<(), i32> {
        let before = self.report.calls.entry(call).or_default();
        let number = *before;
        *before += 1;
        let fails = |fault: &&Fault| {
            fault.call == call && number >= fault.spared && number - fault.spared < fault.times
        };
        self.world.faults.iter().find(fails).map_or(Ok(()), |fault| Err(fault.errno))
    }

    pub fn complain(&mut self, what: impl Into<String>) {
        self.report.complaints.push(what.into());
    }

    #[track_caller]
    pub fn expect(&mut self, holds: bool, what: impl std::fmt::Debug) {
        if !holds {
            let place = std::panic::Location::caller();
            self.complain(format!("{what:?} at {}:{}", place.file(), place.line()));
        }
    }

    fn open(&mut self, process: &Process, notice: &Notice) -> Result<Option<i64>, i32> {
        let flags = notice.arguments[2] as i32;
        let (call, access) = match &*process.text(notice.arguments[1]) {
            "/dev/kgsl-3d0" => ("open kgsl", libc::O_RDWR),
            "/dev/dma_heap/system" => ("open dma_heap", libc::O_RDONLY),
            "/dev/ion" => ("open ion", libc::O_RDONLY),
            _ => return Ok(None),
        };
        self.count(call)?;
        self.expect(flags == access | libc::O_CLOEXEC, (call, flags));
        let file = match call {
            "open kgsl" => self.kgsl.as_ref().map(|kgsl| kgsl.file.as_raw_fd()),
            "open dma_heap" => self.world.has_dma_heap.then(|| self.heaps.dma_heap.as_raw_fd()),
            _ => self.world.ion.map(|_| self.heaps.ion.as_raw_fd()),
        };
        file.map(|file| Some(self.give(notice, file))).ok_or(libc::ENOENT)
    }

    fn control(&mut self, process: &Process, notice: &Notice) -> Answer {
        match notice.arguments[1] >> 8 & 0xFF {
            0x09 => match self.kgsl.take() {
                Some(mut kgsl) => {
                    let answer = kgsl.control(self, process, notice);
                    self.kgsl = Some(kgsl);
                    answer
                }
                None => Err(libc::ENOTTY),
            },
            _ => {
                let mut heaps = mem::replace(&mut self.heaps, Heaps::new());
                let answer = heaps.control(self, process, notice);
                self.heaps = heaps;
                answer
            }
        }
    }

    /// Mappings of devices count, and may fail; others go on.
    fn map(&mut self, process: &Process, notice: &Notice) -> Result<Option<i64>, i32> {
        let fd = notice.arguments[4] as i32;
        if fd >= 0 && is_device(&process.file_name(fd)) {
            self.count("mmap")?;
        }
        Ok(None)
    }

    /// Direct transfers fail that the kernel would refuse for their memory.
    fn transfer(&mut self, process: &Process, notice: &Notice) -> Result<Option<i64>, i32> {
        let is_bare = process.name_at(notice.arguments[1]).starts_with("/memfd:dma-buf");
        match is_bare && process.is_direct(notice.arguments[0] as i32) {
            true => self.count("direct transfer").and(Err(libc::EFAULT)),
            false => Ok(None),
        }
    }

    /// The number of the dma-buf that a descriptor of the child is.
    pub fn dma_buf(&mut self, process: &Process, fd: i32) -> Result<u32, i32> {
        let name = process.file_name(fd);
        let number = name.strip_prefix("/memfd:dma-buf-").and_then(|rest| rest.split(' ').next());
        number.and_then(|number| number.parse().ok()).ok_or(libc::ENOTTY)
    }
}

fn is_device(name: &str) -> bool {
    name.starts_with("/memfd:kgsl") || name.starts_with("/memfd:dma-buf")
}
