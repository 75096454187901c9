//! The dma-heap, both kinds of ION, and the dma-bufs that come from them.

use super::process::{PAGE, commit, long, word};
use super::supervisor::{Answer, Ion, Notice, Report, Supervisor};
use super::{Process, memfd};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;

pub struct Heaps {
    pub dma_heap: File,
    pub ion: File,
    /// Whether the host's window is open, by number.
    windows: BTreeMap<u32, bool>,
    handles: BTreeMap<i32, File>,
    made: u32,
}

impl Heaps {
    pub fn new() -> Heaps {
        Heaps {
            dma_heap: memfd("heap", 0),
            ion: memfd("ion", 0),
            windows: BTreeMap::new(),
            handles: BTreeMap::new(),
            made: 0,
        }
    }

    pub fn finish(self, report: &mut Report) {
        let open: Vec<_> = self.windows.iter().filter(|(_, is_open)| **is_open).collect();
        if !open.is_empty() || !self.handles.is_empty() {
            let handles = self.handles.keys();
            report.complaints.push(format!("windows {open:?} and handles {handles:?}"));
        }
    }

    pub fn control(&mut self, to: &mut Supervisor<'_>, from: &Process, notice: &Notice) -> Answer {
        let [fd, request, at, ..] = notice.arguments;
        let name = from.file_name(fd as i32);
        let done = match (request, to.world.ion) {
            (0xC018_4800, _) if name.starts_with("/memfd:heap") => {
                self.dma_heap(to, from, notice, at)
            }
            (0xC018_4900, Some(Ion::Files)) => self.ion_files(to, from, notice, at),
            (0xC020_4900, Some(Ion::Handles)) => self.ion_handle(to, from, at),
            (0xC008_4904, Some(Ion::Handles)) => self.ion_share(to, from, notice, at),
            (0xC004_4901, Some(Ion::Handles)) => self.ion_free(to, from, at),
            (0xC004_4901, Some(Ion::Files)) => Err(libc::ENOTTY),
            (0x4008_6200, _) => self.sync(to, from, fd as i32, at),
            _ => {
                to.complain(format!("request {request:#x} of {name}"));
                Err(libc::ENOTTY)
            }
        };
        done.map(|()| 0)
    }

    fn make(&mut self, to: &mut Supervisor<'_>, bytes: u64) -> File {
        to.expect(bytes > 0 && bytes.is_multiple_of(PAGE), ("size", bytes));
        self.made += 1;
        self.windows.insert(self.made, false);
        let file = memfd(&format!("dma-buf-{}", self.made), bytes);
        commit(&file, 0, bytes, true);
        file
    }

    fn dma_heap(
        &mut self,
        to: &mut Supervisor<'_>,
        from: &Process,
        notice: &Notice,
        at: u64,
    ) -> Result<(), i32> {
        to.count("DMA_HEAP_ALLOC")?;
        let argument: [u8; 24] = from.bytes(at);
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
        to.expect(word(&argument, 8) == 0, "descriptor of an allocation");
        to.expect((word(&argument, 12), long(&argument, 16)) == (flags, 0), "flags");
        let file = self.make(to, long(&argument, 0));
        let fd = to.give(notice, file.as_raw_fd());
        from.put(at + 8, &u32::try_from(fd).unwrap().to_le_bytes());
        Ok(())
    }

    fn ion_files(
        &mut self,
        to: &mut Supervisor<'_>,
        from: &Process,
        notice: &Notice,
        at: u64,
    ) -> Result<(), i32> {
        to.count("ION_ALLOC")?;
        let argument: [u8; 24] = from.bytes(at);
        to.expect((word(&argument, 8), word(&argument, 12)) == (1 << 25, 1), "heap and flags");
        to.expect(long(&argument, 16) == 0, "answers of an allocation");
        let file = self.make(to, long(&argument, 0));
        let fd = to.give(notice, file.as_raw_fd());
        from.put(at + 16, &u32::try_from(fd).unwrap().to_le_bytes());
        Ok(())
    }

    fn ion_handle(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("ION_ALLOC")?;
        let argument: [u8; 32] = from.bytes(at);
        to.expect((long(&argument, 8), long(&argument, 24)) == (0, 0), "rest of an allocation");
        to.expect((word(&argument, 16), word(&argument, 20)) == (1 << 25, 1), "heap and flags");
        let file = self.make(to, long(&argument, 0));
        let handle = 100 + i32::try_from(self.made).unwrap();
        self.handles.insert(handle, file);
        from.put(at + 24, &handle.to_le_bytes());
        Ok(())
    }

    fn ion_share(
        &mut self,
        to: &mut Supervisor<'_>,
        from: &Process,
        notice: &Notice,
        at: u64,
    ) -> Result<(), i32> {
        to.count("ION_SHARE")?;
        let handle = i32::from_le_bytes(from.bytes(at));
        let file = self.handles.get(&handle).ok_or(libc::EINVAL)?;
        let fd = to.give(notice, file.as_raw_fd());
        from.put(at + 4, &i32::try_from(fd).unwrap().to_le_bytes());
        Ok(())
    }

    fn ion_free(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("ION_FREE")?;
        let handle = i32::from_le_bytes(from.bytes(at));
        // Handle 0 is how the interface is told from the other one.
        self.handles.remove(&handle).map(|_| ()).ok_or(libc::EINVAL)
    }

    fn sync(
        &mut self,
        to: &mut Supervisor<'_>,
        from: &Process,
        fd: i32,
        at: u64,
    ) -> Result<(), i32> {
        to.count("DMA_BUF_SYNC")?;
        let number = to.dma_buf(from, fd)?;
        let flags = u64::from_le_bytes(from.bytes(at));
        to.expect([3, 7].contains(&flags), ("flags of a sync", flags));
        let opens = flags & 4 == 0;
        let before = self.windows.insert(number, opens);
        to.expect(before == Some(!opens), ("windows of", number, opens));
        *to.report.calls.entry(if opens { "to host" } else { "to device" }).or_default() += 1;
        Ok(())
    }
}
