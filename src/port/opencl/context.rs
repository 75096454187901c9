//! A context on one device, and what all objects in it have in common.

use super::api::{Api, CONTEXT_PLATFORM, Handle, SUCCESS, Status};
use super::device::DeviceInfo;
use super::status::error;
use crate::error::{Code, Error, Result};
use core::ffi::c_void;
use core::ptr;

/// One reference to an OpenCL object, given back when dropped. The library counts references, and
/// objects hold what they are made of, so that they may be dropped in any order.
pub(super) struct Object {
    handle: Handle,
    release: unsafe extern "C" fn(Handle) -> Status,
}

// SAFETY: OpenCL's functions may be called from any thread, on any object (OpenCL 3.0, appendix
// A.2). The exception, setting a kernel's arguments, takes `&mut` in `Kernel`.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Takes what a creating function returned.
    pub(super) fn new(
        what: &'static str,
        handle: Handle,
        status: Status,
        release: unsafe extern "C" fn(Handle) -> Status,
    ) -> Result<Object> {
        if status != SUCCESS {
            return Err(error(what, status));
        }
        if handle.is_null() {
            return Err(Error::new(Code::DeviceFailed, what));
        }
        Ok(Object { handle, release })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // A failure leaves the object to the driver; nothing could be done about it here.
        // SAFETY: the handle is this value's own reference, given back once.
        let _failed = unsafe { (self.release)(self.handle) };
    }
}

/// One device made ready.
pub struct Context {
    pub(super) api: &'static Api,
    pub(super) object: Object,
    device: DeviceInfo,
}

impl Context {
    /// Opens the device.
    pub fn new(api: &'static Api, device: &DeviceInfo) -> Result<Context> {
        const WHAT: &str = "OpenCL context";
        let properties = [CONTEXT_PLATFORM, device.platform.addr().cast_signed(), 0];
        let mut status = SUCCESS;
        // SAFETY: the properties end with zero; one device is given; nobody is notified.
        let handle = unsafe {
            (api.create_context)(
                properties.as_ptr(),
                1,
                &raw const device.device,
                None,
                ptr::null_mut(),
                &raw mut status,
            )
        };
        let object = Object::new(WHAT, handle, status, api.release_context)?;
        Ok(Context { api, object, device: *device })
    }

    /// Another reference to the same context.
    pub fn share(&self) -> Result<Context> {
        Ok(Context { api: self.api, object: self.reference()?, device: self.device })
    }

    /// The same without what is known of the device, for those who only keep the context alive.
    pub(super) fn reference(&self) -> Result<Object> {
        let handle = self.object.handle();
        // SAFETY: the context is alive.
        let status = unsafe { (self.api.retain_context)(handle) };
        Object::new("OpenCL context", handle, status, self.api.release_context)
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// OpenCL's own name, a `cl_context`, for those who call OpenCL themselves. Good while this
    /// lives.
    pub fn raw(&self) -> *mut c_void {
        self.object.handle()
    }
}
