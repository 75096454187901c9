//! The outside world behind traits: storage, shared buffers, clock, waiting, threads.
//!
//! The library calls nothing of the operating system except through these. `linux` (feature
//! `host`) holds the real bodies, `kgsl` and `dma_heap` (the same feature) shared buffers from the
//! kernel's own drivers, `opencl` (feature of the same name) what concerns accelerators; the
//! simulator and firmware bring others. [`buffers`] owns the memory that a port handed out, and is
//! the only place that turns it into slices. [`lock`] is the handle's lock. [`parallel`] shares
//! mutable work out to a team, [`affinity`] says which threads belong on which cores.
//!
//! Contracts common to all: methods may be called from any thread; none panics; an error carries
//! the port's own number in [`Error::value`](crate::Error).

pub mod affinity;
pub mod buffers;
#[cfg(feature = "host")]
pub mod dma_heap;
#[cfg(test)]
pub mod heap;
#[cfg(feature = "host")]
pub mod kgsl;
#[cfg(feature = "host")]
pub mod linux;
pub mod lock;
#[cfg(feature = "opencl")]
pub mod opencl;
pub mod parallel;

use crate::error::Result;
use crate::sync::Word;
use crate::units::Nanos;
use core::ops::Range;
use core::ptr::NonNull;

/// One file: the model file or the swap file.
pub trait Storage: Sync {
    /// Reads at `offset` until `into` is full or the file ends; returns the bytes read. Fewer than
    /// asked means end of file, nothing else. Interruptions and short reads are retried inside.
    /// `offset`, `into`'s address and its length are multiples of [`crate::limits::IO_ALIGN`].
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes all of `from` at `offset`, extending the file where needed. Alignment as for reads.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()>;

    /// Makes what was written durable. After one failure every later sync, write and discard is
    /// `Poisoned`; reads still work.
    fn sync(&self) -> Result<()>;

    /// Gives the bytes of a range back to the file system where it can; their content is then lost.
    fn discard(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Length in bytes.
    fn length(&self) -> Result<u64>;

    /// Whether transfers bypass the page cache. False after a fall-back to buffered I/O.
    fn is_direct(&self) -> bool;
}

/// Small reads of any alignment: single rows of the embedding matrix, which are never kept.
pub trait RowReader: Sync {
    /// Fills `into` from `offset`; a file that ends first is `ShortRead`.
    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// What a shared buffer will hold; a port may place the kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A weight layer.
    Weights,
    /// A KV chunk.
    Kv,
    /// A segment of the RAM swap.
    Swap,
}

/// Memory that a [`SharedMemory`] handed out.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First byte, aligned to [`crate::limits::IO_ALIGN`]. Where a port moves regions, this is
    /// nobody's memory: [`SharedMemory::begin_host`] says where the host finds it.
    pub start: NonNull<u8>,
    /// Usable bytes.
    pub bytes: usize,
    /// The port's own name for it (a raw pointer before alignment, a buffer id).
    pub token: u64,
}

/// Host memory that stands for a range of a region while it is being filled.
#[derive(Clone, Copy, Debug)]
pub struct Filling {
    /// First byte; readable, writable, with anything in it.
    pub start: NonNull<u8>,
    /// The port's own name for it.
    pub token: u64,
}

/// A region as the accelerator names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRegion {
    /// Address that host and accelerator share; 0 where they share none.
    pub address: u64,
    /// The accelerator's own buffer, where there is no shared address; else 0.
    pub buffer: u64,
    /// First byte of the region in that buffer.
    pub offset: u64,
}

impl DeviceRegion {
    /// What a table of chunks holds: the address, or the offset where there is none.
    pub const fn entry(&self) -> u64 {
        if self.buffer == 0 { self.address } else { self.offset }
    }
}

/// Allocates and frees shared buffers: memory that the CPU and the accelerator both address.
///
/// Not every accelerator can see a region while the host does. Whoever uses one therefore begins
/// and ends; any number of users of one party may be in at a time, and the port hands the region
/// over when the other party's first user begins. Regions start as the host's. An accelerator's
/// use ends when its commands have *run*, not when they are enqueued. Ports whose memory both see
/// at all times need none of this, and the default bodies do nothing.
///
/// # Safety
///
/// A region returned by `allocate` overlaps no other live region and no Rust object. While the host
/// uses it, it is readable and writable for its whole length at the address that `begin_host`
/// returned, and stays so until `end`; the same holds for a range between `begin_fill` and
/// `end_fill`, by one user a range.
pub unsafe trait SharedMemory: Sync {
    /// A region of at least `bytes`, backed by real pages where the port can do that. It holds
    /// zeros, unless the port has a [`SharedMemory::zero`] of its own.
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region>;

    /// Makes a fresh region hold zeros.
    ///
    /// # Safety
    ///
    /// `region` came from `allocate` of this port, and nobody has used it yet.
    unsafe fn zero(&self, _region: &Region) -> Result<()> {
        Ok(())
    }

    /// Gives the region's pages back to the system, after the accelerator's work on it.
    ///
    /// # Safety
    ///
    /// `region` came from `allocate` of this port, was not released before, and nothing refers to
    /// its bytes any more.
    unsafe fn release(&self, usage: Use, region: Region);

    /// The host will read and write the region, at the address that this returns. `Leased` while
    /// the accelerator uses it.
    ///
    /// # Safety
    ///
    /// `region` came from `allocate` of this port and is not released before `end`.
    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        Ok(region.start)
    }

    /// The host will write all of a range of a fresh region, and reads nothing that it did not
    /// write. Ports without shared addresses give memory that many regions take turns with, so that
    /// filling a region takes no memory of its own.
    ///
    /// # Safety
    ///
    /// As for `begin_host`; the range lies within the region and no other user has any of it.
    unsafe fn begin_fill(&self, region: &Region, range: Range<usize>) -> Result<Filling> {
        // SAFETY: the caller's promise.
        unsafe { self.begin_fill_in_place(region, range) }
    }

    /// As `begin_fill`, where the host finds the region; for ports that have another way for some
    /// regions alone.
    ///
    /// # Safety
    ///
    /// As for `begin_fill`.
    unsafe fn begin_fill_in_place(&self, region: &Region, range: Range<usize>) -> Result<Filling> {
        // SAFETY: the caller's promise.
        let start = unsafe { self.begin_host(region)? };
        // SAFETY: the range lies within the region (the caller's promise).
        Ok(Filling { start: unsafe { start.add(range.start) }, token: 0 })
    }

    /// A range is filled, or given up with anything in it. Whatever this answers, the use is over.
    ///
    /// # Safety
    ///
    /// Once for each `begin_fill` that succeeded, with the same region and range.
    unsafe fn end_fill(
        &self,
        region: &Region,
        _range: Range<usize>,
        _filling: Filling,
        _is_filled: bool,
    ) -> Result<()> {
        // SAFETY: begun by `begin_fill`.
        unsafe { self.end(region) };
        Ok(())
    }

    /// The accelerator's commands, enqueued from now on, will use the region. `Leased` while the
    /// host uses it.
    ///
    /// # Safety
    ///
    /// As for `begin_host`.
    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        Ok(DeviceRegion { address: shared_address(region.start), ..DeviceRegion::default() })
    }

    /// One user, of either party, is done.
    ///
    /// # Safety
    ///
    /// Once for each `begin_host` and `begin_device` that succeeded.
    unsafe fn end(&self, _region: &Region) {}

    /// Gives back to the system what the port keeps of released regions for the next ones, if it
    /// does that.
    fn trim(&self) {}
}

/// The address of memory that host and accelerator both have there.
pub(crate) fn shared_address(start: NonNull<u8>) -> u64 {
    u64::try_from(start.expose_provenance().get()).unwrap_or(0)
}

/// Time since some fixed point.
pub trait Clock: Sync {
    /// Never goes back.
    fn now(&self) -> Nanos;
}

/// Waiting for a word to change, like a futex.
pub trait Park: Sync {
    /// Returns when woken, when the timeout passed, at once if the word does not hold `expected`,
    /// or for no reason at all.
    fn wait(&self, word: &Word, expected: u32, timeout: Option<Nanos>);

    /// Wakes everybody who waits on the word.
    fn wake_all(&self, word: &Word);
}

/// A thread's body. It returns when its owner told it to.
pub trait Body: Sync {
    /// Runs on the new thread.
    fn run(&self);
}

/// What a thread is made of.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSpec<'a> {
    /// At most 15 bytes; visible in /proc.
    pub name: &'a str,
    /// Stack size in bytes.
    pub stack_bytes: usize,
}

/// A running thread; give it to [`Threads::join`] once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(pub u64);

/// Makes threads, all of them at open.
pub trait Threads: Sync {
    /// Starts a thread, which runs anywhere.
    fn spawn(&self, spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId>;

    /// Waits until the thread has returned and frees its stack.
    fn join(&self, thread: ThreadId);

    /// Keeps the calling thread on that core from now on. An error means that the core cannot be
    /// had (it is absent, offline, or not this process's to use) and that the thread runs anywhere.
    fn pin(&self, core: u16) -> Result<()>;
}

/// Measures the process's resident memory, to compare with what was planned.
pub trait Meter: Sync {
    /// Bytes of anonymous and shared memory resident or swapped out now.
    fn resident_bytes(&self) -> Result<u64>;
}

/// Runs one job on several threads at once: the fork-join that CPU compute uses.
pub trait Team: Sync {
    /// Threads that take part, the caller included.
    fn width(&self) -> usize;

    /// Calls `work(0)` to `work(width - 1)`, each once, and returns when all are done.
    fn run(&self, work: &(dyn Fn(usize) + Sync));
}

/// A team of the caller alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Team for Solo {
    fn width(&self) -> usize {
        1
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        work(0);
    }
}

/// The ports of one handle.
#[derive(Clone, Copy)]
pub struct Ports {
    /// The model file.
    pub model: &'static dyn Storage,
    /// The swap file; without one, KV chunks can only go to the RAM swap.
    pub swap: Option<&'static dyn Storage>,
    /// Shared buffers.
    pub memory: &'static dyn SharedMemory,
    /// Time.
    pub clock: &'static dyn Clock,
    /// Waiting.
    pub park: &'static dyn Park,
    /// Threads; without, the runtime works inline on its callers.
    pub threads: Option<&'static dyn Threads>,
    /// Measured memory for reports.
    pub meter: Option<&'static dyn Meter>,
}
