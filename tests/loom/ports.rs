//! Ports made of loom's parts: waiting, threads, memory; and storage and time, which do nothing.

use crate::Bytes;
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};
use mzcache::limits::IO_ALIGN;
use mzcache::port::{
    Body, Clock, Park, Region, SharedMemory, Storage, ThreadId, ThreadSpec, Threads, Use,
};
use mzcache::sync::Word;
use mzcache::units::Nanos;
use mzcache::{Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

/// Something that lives as long as anybody could look at it. Models leak a little in every order
/// they run in.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Waits as the kernel does: the word is looked at and the waiter queued in one step. Timeouts
/// never pass, so that nothing is hidden by one.
#[derive(Default)]
pub struct Parking {
    queues: Mutex<Vec<(usize, Arc<Condvar>)>>,
}

impl Park for Parking {
    fn wait(&self, word: &Word, expected: u32, _timeout: Option<Nanos>) {
        let mut queues = self.queues.lock().unwrap();
        if word.load() != expected {
            return;
        }
        let address = word.as_ptr().addr();
        let place = queues.iter().position(|(of, _)| *of == address);
        let place = place.unwrap_or_else(|| {
            queues.push((address, Arc::default()));
            queues.len() - 1
        });
        let queue = queues[place].1.clone();
        drop(queue.wait(queues).unwrap());
    }

    fn wake_all(&self, word: &Word) {
        let queues = self.queues.lock().unwrap();
        let address = word.as_ptr().addr();
        if let Some((_, queue)) = queues.iter().find(|(of, _)| *of == address) {
            queue.notify_all();
        }
    }
}

/// Threads of the model.
#[derive(Default)]
pub struct ModelThreads {
    running: std::sync::Mutex<Vec<Option<JoinHandle<()>>>>,
}

impl Threads for ModelThreads {
    fn spawn(&self, _: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        let handle = spawn(move || body.run());
        let mut running = self.running.lock().unwrap();
        running.push(Some(handle));
        Ok(ThreadId(running.len() as u64 - 1))
    }

    fn join(&self, thread: ThreadId) {
        let handle = self.running.lock().unwrap()[thread.0 as usize].take();
        handle.unwrap().join().unwrap();
    }

    fn pin(&self, _: u16) -> Result<()> {
        Ok(())
    }
}

/// A thread with a stack for the whole manager, which loom's own threads have not.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new().stack_size(1 << 17).spawn(body).unwrap()
}

/// Memory whose regions loom watches: giving one out and taking it back writes to it.
#[derive(Default)]
pub struct Memory {
    regions: std::sync::Mutex<Vec<Bytes>>,
    /// Written when the manager has gone and gives back what is left.
    pub life: Bytes,
}

impl Memory {
    /// What loom watches of the last region that was given out.
    pub fn last(&self) -> Bytes {
        self.regions.lock().unwrap().last().unwrap().clone()
    }

    fn of(&self, region: &Region) -> Bytes {
        self.regions.lock().unwrap()[region.token as usize].clone()
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, IO_ALIGN).unwrap()
}

// SAFETY: the allocator's memory is exclusive, writable and zeroed until `release` frees it.
unsafe impl SharedMemory for Memory {
    fn allocate(&self, _: Use, bytes: usize) -> Result<Region> {
        // SAFETY: buffers have at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).unwrap();
        let watched = Bytes::default();
        watched.write(0);
        let mut regions = self.regions.lock().unwrap();
        regions.push(watched);
        Ok(Region { start, bytes, token: regions.len() as u64 - 1 })
    }

    unsafe fn release(&self, _: Use, region: Region) {
        self.of(&region).write(u32::MAX);
        // SAFETY: it came from `allocate` and nobody uses it any more.
        unsafe { dealloc(region.start.as_ptr(), layout(region.bytes)) };
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        assert_ne!(self.of(region).read(), u32::MAX, "a region is used that was given back");
        Ok(region.start)
    }

    fn trim(&self) {
        self.life.write(u32::MAX);
    }
}

/// A file of one byte's value.
pub struct Constant(pub u8);

impl Storage for Constant {
    fn read_at(&self, _: u64, into: &mut [u8]) -> Result<usize> {
        into.fill(self.0);
        Ok(into.len())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::new(mzcache::Code::Io, "constant"))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(1 << 30)
    }

    fn is_direct(&self) -> bool {
        true
    }
}

/// Time stands still, and who asks for it is seen.
pub struct Stopped(pub Bytes);

impl Clock for Stopped {
    fn now(&self) -> Nanos {
        assert_ne!(self.0.read(), u32::MAX, "the manager is gone");
        Nanos::new(0)
    }
}
