//! In-order queues, and events for those who wait or measure.
//!
//! Invariant: commands of one queue run in the order in which they were enqueued. Nothing here
//! reads or writes the host's memory after it returned.

use super::api::*;
use super::context::{Context, Object};
use super::info::number;
use super::kernel::Kernel;
use super::status::{check, check_run};
use crate::error::{Code, Error, Result};
use crate::units::Nanos;
use core::ffi::c_void;
use core::ptr::{self, NonNull};

/// Events that one command can wait for.
pub const WAITS_MAX: usize = 16;

/// How many work-items run a kernel, in three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkSize {
    /// All of them; in each dimension a multiple of the group's.
    pub global: [usize; 3],
    /// Those of one group; the driver's choice where there is none.
    pub local: Option<[usize; 3]>,
}

impl WorkSize {
    /// In one dimension.
    pub const fn linear(global: usize, local: usize) -> Self {
        WorkSize { global: [global, 1, 1], local: Some([local, 1, 1]) }
    }

    /// Given as groups instead of items.
    pub const fn groups(groups: [usize; 3], local: [usize; 3]) -> Self {
        let global = [
            groups[0].saturating_mul(local[0]),
            groups[1].saturating_mul(local[1]),
            groups[2].saturating_mul(local[2]),
        ];
        WorkSize { global, local: Some(local) }
    }
}

/// An in-order queue.
pub struct Queue {
    api: &'static Api,
    object: Object,
}

impl Queue {
    /// A queue; with `profiling` its events know when commands ran.
    pub fn new(context: &Context, profiling: bool) -> Result<Queue> {
        const WHAT: &str = "OpenCL queue";
        let api = context.api;
        let device = context.device().device;
        let bits = if profiling { QUEUE_PROFILING_ENABLE } else { 0 };
        let mut status = SUCCESS;
        let handle = if let Some(create) = api.create_queue {
            let properties = [QUEUE_PROPERTIES, bits, 0];
            // SAFETY: context and device are alive, the properties end with zero.
            unsafe { create(context.object.handle(), device, properties.as_ptr(), &raw mut status) }
        } else if let Some(create) = api.create_queue_1 {
            // SAFETY: context and device are alive.
            unsafe { create(context.object.handle(), device, bits, &raw mut status) }
        } else {
            return Err(Error::new(Code::Unsupported, "clCreateCommandQueue"));
        };
        let object = Object::new(WHAT, handle, status, api.release_queue)?;
        Ok(Queue { api, object })
    }

    /// Another reference to the same queue.
    pub fn share(&self) -> Result<Queue> {
        let handle = self.object.handle();
        // SAFETY: the queue is alive.
        let status = unsafe { (self.api.retain_queue)(handle) };
        let object = Object::new("OpenCL queue", handle, status, self.api.release_queue)?;
        Ok(Queue { api: self.api, object })
    }

    /// OpenCL's own name, a `cl_command_queue`, as in [`Context::raw`].
    pub fn raw(&self) -> *mut c_void {
        self.object.handle()
    }

    /// Enqueues a kernel with the arguments that are set now. No work-items means no command.
    pub fn run(&self, kernel: &Kernel, size: WorkSize) -> Result<()> {
        if size.global.contains(&0) {
            return Ok(());
        }
        self.enqueue(kernel, size, &[], ptr::null_mut())
    }

    /// The same, after some events of other queues; the answer is the command's own event. At least
    /// one work-item, and at most [`WAITS_MAX`] events.
    pub fn run_after(&self, kernel: &Kernel, size: WorkSize, after: &[Event]) -> Result<Event> {
        let mut event = ptr::null_mut();
        self.enqueue(kernel, size, after, &raw mut event)?;
        self.event(event)
    }

    fn enqueue(
        &self,
        kernel: &Kernel,
        size: WorkSize,
        after: &[Event],
        event: *mut Handle,
    ) -> Result<()> {
        let mut waits = [ptr::null_mut(); WAITS_MAX];
        let count = u32::try_from(after.len()).unwrap_or(u32::MAX);
        if after.len() > WAITS_MAX {
            return Err(Error::new(Code::LimitExceeded, "events to wait for").with(count));
        }
        for (wait, event) in waits.iter_mut().zip(after) {
            *wait = event.object.handle();
        }
        let waits = if after.is_empty() { ptr::null() } else { waits.as_ptr() };
        let local = size.local.as_ref().map_or(ptr::null(), |local| local.as_ptr());
        let global = size.global.as_ptr();
        // SAFETY: queue, kernel and events are alive; both sizes have three numbers.
        let status = unsafe {
            (self.api.enqueue_kernel)(
                self.object.handle(),
                kernel.handle(),
                3,
                ptr::null(),
                global,
                local,
                count,
                waits,
                event,
            )
        };
        check(kernel.name(), status)
    }

    /// Hands everything enqueued to the device.
    pub fn flush(&self) -> Result<()> {
        // SAFETY: the queue is alive.
        check_run("clFlush", unsafe { (self.api.flush)(self.object.handle()) })
    }

    /// Waits until everything enqueued has run.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: the queue is alive.
        check_run("clFinish", unsafe { (self.api.finish)(self.object.handle()) })
    }

    /// Reads out of a buffer, after everything enqueued before, and waits for it.
    pub(super) fn read_buffer(&self, buffer: Handle, offset: usize, into: &mut [u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        // SAFETY: queue and buffer are alive; the call blocks until `into` is filled, and the
        // driver checks the range of the buffer.
        let status = unsafe {
            (self.api.enqueue_read)(
                self.object.handle(),
                buffer,
                TRUE,
                offset,
                into.len(),
                into.as_mut_ptr().cast(),
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check_run("clEnqueueReadBuffer", status)
    }

    /// Writes to a buffer, after everything enqueued before, and waits for it. By an event: inside
    /// a blocking call a driver may hold a lock that everybody else then waits for (NVIDIA 580.159:
    /// 30 GB/s of all threads together instead of 47, and slow launches beside it).
    pub(super) fn write_buffer(&self, buffer: Handle, offset: usize, from: &[u8]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let mut event = ptr::null_mut();
        // SAFETY: queue and buffer are alive, and the driver checks the range of the buffer. `from`
        // is read until the command has run, which is waited for below.
        let status = unsafe {
            (self.api.enqueue_write)(
                self.object.handle(),
                buffer,
                FALSE,
                offset,
                from.len(),
                from.as_ptr().cast(),
                0,
                ptr::null(),
                &raw mut event,
            )
        };
        check_run("clEnqueueWriteBuffer", status)?;
        let written = self.event(event).and_then(|event| {
            self.flush()?;
            event.wait()
        });
        if written.is_err() {
            // Not before the driver has done with `from`, whatever it thinks of the event.
            let _lost = self.finish();
        }
        written
    }

    /// Enqueues a copy from one buffer's offset to another's.
    pub(super) fn copy_buffer(
        &self,
        from: (Handle, usize),
        to: (Handle, usize),
        bytes: usize,
        event: *mut Handle,
    ) -> Result<()> {
        // SAFETY: queue and buffers are alive; the driver checks the ranges.
        let status = unsafe {
            (self.api.enqueue_copy)(
                self.object.handle(),
                from.0,
                to.0,
                from.1,
                to.1,
                bytes,
                0,
                ptr::null(),
                event,
            )
        };
        check("clEnqueueCopyBuffer", status)
    }

    /// Enqueues a copy within shared memory.
    ///
    /// # Safety
    ///
    /// Both ranges lie in live shared memory of this context and stay so until the command ran.
    pub(super) unsafe fn copy_svm(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
        event: *mut Handle,
    ) -> Result<()> {
        const WHAT: &str = "clEnqueueSVMMemcpy";
        let copy = self.api.enqueue_svm_copy.ok_or(Error::new(Code::Unsupported, WHAT))?;
        // SAFETY: the queue is alive; the ranges are the caller's promise.
        let status = unsafe {
            copy(
                self.object.handle(),
                FALSE,
                to.as_ptr().cast(),
                from.as_ptr().cast(),
                bytes,
                0,
                ptr::null(),
                event,
            )
        };
        check(WHAT, status)
    }

    /// Maps a whole buffer for the host, after everything enqueued before, and waits for it.
    pub(super) fn map_buffer(
        &self,
        buffer: Handle,
        flags: u64,
        bytes: usize,
    ) -> Result<NonNull<u8>> {
        const WHAT: &str = "clEnqueueMapBuffer";
        let map = self.api.enqueue_map.ok_or(Error::new(Code::Unsupported, WHAT))?;
        let mut status = SUCCESS;
        // SAFETY: queue and buffer are alive; the driver checks the range.
        let start = unsafe {
            map(
                self.object.handle(),
                buffer,
                TRUE,
                flags,
                0,
                bytes,
                0,
                ptr::null(),
                ptr::null_mut(),
                &raw mut status,
            )
        };
        check_run(WHAT, status)?;
        NonNull::new(start.cast()).ok_or(Error::new(Code::Io, WHAT))
    }

    /// Ends a mapping and waits for that, as far as the driver can.
    ///
    /// # Safety
    ///
    /// `start` came from [`Queue::map_buffer`] of the same buffer, and nobody uses it any more.
    pub(super) unsafe fn unmap_buffer(&self, buffer: Handle, start: NonNull<u8>) {
        if let Some(unmap) = self.api.enqueue_unmap {
            // SAFETY: queue and buffer are alive; the rest is the caller's promise.
            let _lost = unsafe {
                let start = start.as_ptr().cast();
                unmap(self.object.handle(), buffer, start, 0, ptr::null(), ptr::null_mut())
            };
            let _lost = self.finish();
        }
    }

    /// Makes shared memory the host's: waits for everything enqueued before.
    ///
    /// # Safety
    ///
    /// The range lies in live coarse-grain memory of this context that is not mapped.
    pub(super) unsafe fn map(&self, start: NonNull<u8>, bytes: usize, flags: u64) -> Result<()> {
        const WHAT: &str = "clEnqueueSVMMap";
        let map = self.api.enqueue_svm_map.ok_or(Error::new(Code::Unsupported, WHAT))?;
        // SAFETY: the queue is alive; the range is the caller's promise.
        let status = unsafe {
            map(
                self.object.handle(),
                TRUE,
                flags,
                start.as_ptr().cast(),
                bytes,
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check_run(WHAT, status)
    }

    /// Gives mapped memory back to the device, before whatever is enqueued next.
    ///
    /// # Safety
    ///
    /// `start` was mapped by [`Queue::map`], and the host touches the range no more.
    pub(super) unsafe fn unmap(&self, start: NonNull<u8>) -> Result<()> {
        const WHAT: &str = "clEnqueueSVMUnmap";
        let unmap = self.api.enqueue_svm_unmap.ok_or(Error::new(Code::Unsupported, WHAT))?;
        // SAFETY: the queue is alive; the rest is the caller's promise.
        let status = unsafe {
            unmap(self.object.handle(), start.as_ptr().cast(), 0, ptr::null(), ptr::null_mut())
        };
        check(WHAT, status)
    }

    /// The event that a call of this queue left in `handle`.
    pub(super) fn event(&self, handle: Handle) -> Result<Event> {
        let object = Object::new("OpenCL event", handle, SUCCESS, self.api.release_event)?;
        Ok(Event { api: self.api, object })
    }
}

/// When one command was where, on the device's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTimes {
    /// The host enqueued it.
    pub queued: Nanos,
    /// It went to the device.
    pub submitted: Nanos,
    /// It began.
    pub started: Nanos,
    /// It ended.
    pub ended: Nanos,
}

impl EventTimes {
    /// How long it ran.
    pub const fn run(&self) -> Nanos {
        self.ended.since(self.started)
    }
}

/// One command's completion.
pub struct Event {
    api: &'static Api,
    object: Object,
}

impl Event {
    /// Another reference to the same event.
    pub fn share(&self) -> Result<Event> {
        let handle = self.object.handle();
        // SAFETY: the event is alive.
        let status = unsafe { (self.api.retain_event)(handle) };
        let object = Object::new("OpenCL event", handle, status, self.api.release_event)?;
        Ok(Event { api: self.api, object })
    }

    /// Waits for the command; an error if it failed.
    pub fn wait(&self) -> Result<()> {
        let handle = self.object.handle();
        // SAFETY: the event is alive.
        check_run("clWaitForEvents", unsafe { (self.api.wait_for_events)(1, &raw const handle) })
    }

    /// When the command ran; `BadState` on a queue without profiling, or too early.
    pub fn times(&self) -> Result<EventTimes> {
        const WHAT: &str = "clGetEventProfilingInfo";
        let time = |name| {
            number(self.api.get_event_times, self.object.handle(), name, WHAT).map(Nanos::new)
        };
        Ok(EventTimes {
            queued: time(PROFILING_QUEUED)?,
            submitted: time(PROFILING_SUBMIT)?,
            started: time(PROFILING_START)?,
            ended: time(PROFILING_END)?,
        })
    }
}
