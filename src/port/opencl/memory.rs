//! Memory that kernels take: which kind a device offers, and one block of it.
//!
//! Three modes stand behind one interface. *Fine*: host and device share the memory at any time.
//! *Coarse*: they take turns, and mapping hands it over. *Buffers*: the device has its own memory,
//! and bytes are copied. Invariant: a block's memory stays until the block is dropped and every
//! command of the queue that was used with it has run.
//!
//! Shared memory is best where it is one memory. A card with memory of its own keeps each shared
//! allocation twice, once on either side, and allocates and frees it slowly (NVIDIA H200, driver
//! 580.159: 1.2 to 15 ms a call, and more than twice the bytes held after a restore); there buffers
//! are best, whose copies are explicit.

use super::api::*;
use super::context::{Context, Object};
use super::device::{DeviceInfo, DeviceKind, SvmCaps};
use super::queue::{Event, Queue};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::linux::drop_whole_pages;
use crate::port::{DeviceRegion, shared_address};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// How host and device come to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMode {
    /// Fine-grain shared memory: both touch it at any time.
    Fine,
    /// Coarse-grain shared memory: the host maps it first.
    Coarse,
    /// Buffers of the device; kernels find chunks by offset.
    Buffers,
}

impl MemoryMode {
    /// All, the closest sharing first.
    pub const ALL: [MemoryMode; 3] = [MemoryMode::Fine, MemoryMode::Coarse, MemoryMode::Buffers];

    /// The best mode of a device: the closest sharing where host and device have one memory.
    pub fn best(device: &DeviceInfo) -> MemoryMode {
        match device.svm {
            _ if !device.unified => MemoryMode::Buffers,
            svm if svm.contains(SvmCaps::FINE) => MemoryMode::Fine,
            svm if svm.contains(SvmCaps::COARSE) => MemoryMode::Coarse,
            _ => MemoryMode::Buffers,
        }
    }

    /// Whether a device has it.
    pub fn is_offered(self, device: &DeviceInfo) -> bool {
        match self {
            MemoryMode::Fine => device.svm.contains(SvmCaps::FINE),
            MemoryMode::Coarse => device.svm.intersects(SvmCaps::FINE | SvmCaps::COARSE),
            MemoryMode::Buffers => true,
        }
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryMode::Fine => "fine-grain shared memory",
            MemoryMode::Coarse => "coarse-grain shared memory",
            MemoryMode::Buffers => "device buffers",
        }
    }
}

/// Shared memory, aligned for direct reads, freed when dropped.
pub(super) struct Shared {
    api: &'static Api,
    context: Object,
    is_host_memory: bool,
    /// What the driver gave; it need not be aligned.
    raw: NonNull<u8>,
    pub(super) start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: shared memory may be freed and used from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above; the methods only read the addresses.
unsafe impl Sync for Shared {}

const ALLOC: &str = "clSVMAlloc";

impl Shared {
    /// Not zeroed. Drivers refuse large alignments, or round up to a power of two, so a little more
    /// is asked for and the start rounded up.
    pub(super) fn new(context: &Context, fine: bool, bytes: usize) -> Result<Shared> {
        let api = context.api;
        let alloc = api.svm_alloc.ok_or(Error::new(Code::Unsupported, ALLOC))?;
        let none = Error::new(Code::OutOfMemory, ALLOC).with(bytes);
        let padded = bytes.checked_add(IO_ALIGN).ok_or(none)?;
        if u64::try_from(padded).is_ok_and(|size| size > context.device().alloc_bytes_max) {
            return Err(Error::new(Code::LimitExceeded, ALLOC).with(bytes));
        }
        let device = context.device();
        // Taken before the memory, which would be lost if this failed.
        let context = context.reference()?;
        let flags = MEM_READ_WRITE | if fine { MEM_SVM_FINE_GRAIN_BUFFER } else { 0 };
        // SAFETY: the context is alive; the driver checks the rest.
        let raw = unsafe { alloc(context.handle(), flags, padded, 0) };
        let raw = NonNull::new(raw.cast::<u8>()).ok_or(none)?;
        let skip = raw.align_offset(IO_ALIGN);
        assert!(skip < IO_ALIGN);
        // SAFETY: `skip` is below the padding.
        let start = unsafe { raw.add(skip) };
        let shared = Shared {
            api,
            context,
            is_host_memory: device.kind == DeviceKind::Cpu,
            raw,
            start,
            bytes,
        };
        Ok(shared)
    }

    /// Size in bytes, as it was asked for.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Drivers for CPUs take their memory from the C library, which may keep what is freed.
        if self.is_host_memory {
            // SAFETY: nobody looks at the bytes any more, as below.
            unsafe { drop_whole_pages(self.start, self.bytes) };
        }
        if let Some(free) = self.api.svm_free {
            // SAFETY: the driver gave `raw` for this context; whoever drops this has made sure that
            // no command uses it any more.
            unsafe { free(self.context.handle(), self.raw.as_ptr().cast()) };
        }
    }
}

enum Kind {
    Shared(Shared, MemoryMode),
    Buffer(Object),
}

/// One piece of device memory: tables, activations, results.
pub struct Block {
    kind: Kind,
    bytes: usize,
    queue: Queue,
    /// Two threads must not map it at a time.
    not_shared: PhantomData<Cell<()>>,
}

impl Block {
    /// A zero-filled block that is written, read and freed in the order of `queue`. Mode
    /// `Unsupported` where the device has not got it.
    pub fn new(context: &Context, queue: &Queue, mode: MemoryMode, bytes: usize) -> Result<Block> {
        if bytes == 0 {
            return Err(Error::new(Code::InvalidArgument, "block size"));
        }
        if !mode.is_offered(context.device()) {
            return Err(Error::new(Code::Unsupported, mode.name()));
        }
        let kind = match mode {
            MemoryMode::Buffers => Kind::Buffer(create_buffer(context, bytes)?),
            shared => Kind::Shared(Shared::new(context, mode == MemoryMode::Fine, bytes)?, shared),
        };
        let block = Block { kind, bytes, queue: queue.share()?, not_shared: PhantomData };
        block.clear()?;
        Ok(block)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As the device names it, for a kernel's argument or a table of addresses.
    pub fn region(&self) -> DeviceRegion {
        match &self.kind {
            Kind::Shared(shared, _) => shared_region(shared.start),
            Kind::Buffer(object) => buffer_region(object.handle(), 0),
        }
    }

    /// Writes, after everything enqueued before, and waits for it.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        match &self.kind {
            Kind::Buffer(object) => self.queue.write_buffer(object.handle(), offset, from),
            Kind::Shared(shared, mode) => {
                self.touch(shared, *mode, offset, from.len(), MAP_WRITE, |start| {
                    // SAFETY: the range is inside the block (checked above), and the host's while
                    // this runs; `from` is other memory, as a safe slice.
                    unsafe { start.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
                })
            }
        }
    }

    /// Reads, after everything enqueued before, and waits for it.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        match &self.kind {
            Kind::Buffer(object) => self.queue.read_buffer(object.handle(), offset, into),
            Kind::Shared(shared, mode) => {
                let length = into.len();
                self.touch(shared, *mode, offset, length, MAP_READ, |start| {
                    // SAFETY: as for writing, in the other direction.
                    unsafe { into.as_mut_ptr().copy_from_nonoverlapping(start, length) };
                })
            }
        }
    }

    /// Enqueues a copy of this block's first bytes to another's; for measuring the memory.
    pub fn copy_to(&self, to: &mut Block, bytes: usize) -> Result<Event> {
        self.copy_part_to(0, to, bytes)
    }

    /// Enqueues a copy of the bytes from `offset` on to the start of another block.
    pub fn copy_part_to(&self, offset: usize, to: &mut Block, bytes: usize) -> Result<Event> {
        self.check(offset, bytes)?;
        to.check(0, bytes)?;
        let mut event = ptr::null_mut();
        match (&self.kind, &to.kind) {
            (Kind::Buffer(from), Kind::Buffer(to)) => {
                let (from, to) = ((from.handle(), offset), (to.handle(), 0));
                self.queue.copy_buffer(from, to, bytes, &raw mut event)?;
            }
            (Kind::Shared(from, _), Kind::Shared(to, _)) => {
                // SAFETY: inside the block (checked above).
                let start = unsafe { from.start.add(offset) };
                // SAFETY: both ranges were checked; blocks outlive the commands of their queue.
                unsafe { self.queue.copy_svm(start, to.start, bytes, &raw mut event)? };
            }
            _ => return Err(Error::new(Code::InvalidArgument, "copy between memory modes")),
        }
        self.queue.event(event)
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::new(Code::InvalidArgument, "range of a block").with(offset)),
        }
    }

    fn clear(&self) -> Result<()> {
        match &self.kind {
            Kind::Shared(shared, mode) => {
                self.touch(shared, *mode, 0, self.bytes, MAP_WRITE, |start| {
                    // SAFETY: the whole block, and the host's while this runs.
                    unsafe { start.write_bytes(0, self.bytes) };
                })
            }
            Kind::Buffer(object) => {
                let zeros = [0u8; 4096];
                for offset in (0..self.bytes).step_by(zeros.len()) {
                    let bytes = zeros.len().min(self.bytes - offset);
                    self.queue.write_buffer(object.handle(), offset, &zeros[..bytes])?;
                }
                Ok(())
            }
        }
    }

    /// Gives the host a range of shared memory for as long as `with` runs.
    fn touch(
        &self,
        shared: &Shared,
        mode: MemoryMode,
        offset: usize,
        bytes: usize,
        flags: u64,
        with: impl FnOnce(*mut u8),
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range was checked against the block's size.
        let start = unsafe { shared.start.add(offset) };
        if mode == MemoryMode::Fine {
            self.queue.finish()?;
            with(start.as_ptr());
            return Ok(());
        }
        // SAFETY: live coarse-grain memory; blocks are not shared, and this call unmaps.
        unsafe { self.queue.map(start, bytes, flags)? };
        with(start.as_ptr());
        // SAFETY: mapped above, and `with` is done.
        unsafe { self.queue.unmap(start) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // Shared memory is freed at once, whatever is enqueued; buffers are counted by the driver.
        if matches!(self.kind, Kind::Shared(..)) {
            let _lost = self.queue.finish();
        }
    }
}

pub(super) fn shared_region(start: NonNull<u8>) -> DeviceRegion {
    DeviceRegion { address: shared_address(start), ..DeviceRegion::default() }
}

pub(super) fn buffer_region(buffer: Handle, offset: usize) -> DeviceRegion {
    let expand = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    let buffer = expand(buffer.expose_provenance());
    DeviceRegion { address: 0, buffer, offset: expand(offset) }
}

/// A buffer of the device, its content undefined.
pub(super) fn create_buffer(context: &Context, bytes: usize) -> Result<Object> {
    create_buffer_with(context, MEM_READ_WRITE, bytes)
}

/// The same, with flags that need no memory of the host.
pub(super) fn create_buffer_with(context: &Context, flags: u64, bytes: usize) -> Result<Object> {
    let api = context.api;
    let mut status = SUCCESS;
    // SAFETY: the context is alive; no memory of the host is given.
    let handle = unsafe {
        (api.create_buffer)(context.object.handle(), flags, bytes, ptr::null_mut(), &raw mut status)
    };
    Object::new("clCreateBuffer", handle, status, api.release_buffer)
}
