//! Kernels: their arguments, and what the compiler made of them.
//!
//! A kernel touches what its arguments say. That is checked where the kernels are tested, not here:
//! kernels are part of this library, like its assembly.

use super::api::*;
use super::context::Object;
use super::info::{Number, number_by};
use super::status::check;
use crate::error::{Code, Error, Result};
use crate::port::DeviceRegion;
use core::ffi::{CStr, c_void};
use core::ptr;

/// What the compiler says of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Work-items of a group, at most.
    pub work_group_max: usize,
    /// Group sizes should be a multiple of it.
    pub work_group_multiple: usize,
    /// Local memory of a group, without that of arguments.
    pub local_bytes: u64,
    /// Memory of one work-item outside of registers. On GPUs more than zero means that registers
    /// spilled; CPUs count variables.
    pub private_bytes: u64,
}

mod sealed {
    /// Numbers that kernels take by value; no padding.
    pub trait Scalar: Copy {}
    impl Scalar for u16 {}
    impl Scalar for i32 {}
    impl Scalar for u32 {}
    impl Scalar for i64 {}
    impl Scalar for u64 {}
    impl Scalar for f32 {}
}

/// One kernel with its arguments. Two threads that use the same function have a kernel each.
pub struct Kernel {
    api: &'static Api,
    object: Object,
    device: Handle,
    name: &'static str,
}

impl Kernel {
    pub(super) fn new(
        api: &'static Api,
        program: Handle,
        device: Handle,
        name: &'static CStr,
    ) -> Result<Kernel> {
        let text = name.to_str().map_err(|_| Error::new(Code::InvalidArgument, "kernel name"))?;
        let mut status = SUCCESS;
        // SAFETY: the program is alive (its owner calls), the name is a C string.
        let handle = unsafe { (api.create_kernel)(program, name.as_ptr(), &raw mut status) };
        let object = Object::new(text, handle, status, api.release_kernel)?;
        Ok(Kernel { api, object, device, name: text })
    }

    /// The function's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn handle(&self) -> Handle {
        self.object.handle()
    }

    /// A number.
    pub fn set_value<T: sealed::Scalar>(&mut self, index: u32, value: T) -> Result<()> {
        self.set(index, size_of::<T>(), (&raw const value).cast())
    }

    /// Memory of the device, for a `__global` pointer. Of a region in a buffer that is the whole
    /// buffer: pass the region's offset to the kernel by itself.
    pub fn set_memory(&mut self, index: u32, region: DeviceRegion) -> Result<()> {
        let handle = as_handle(region.buffer);
        if !handle.is_null() {
            return self.set(index, size_of::<Handle>(), (&raw const handle).cast());
        }
        let set = self.api.set_kernel_svm_arg;
        let set = set.ok_or(Error::new(Code::Unsupported, "clSetKernelArgSVMPointer"))?;
        let address = as_handle(region.address);
        // SAFETY: the kernel is alive; the address is only kept, not followed, here.
        check(self.name, unsafe { set(self.object.handle(), index, address) })
    }

    /// Local memory of that many bytes: `__local` pointers.
    pub fn set_local(&mut self, index: u32, bytes: usize) -> Result<()> {
        self.set(index, bytes, ptr::null())
    }

    fn set(&mut self, index: u32, bytes: usize, value: *const c_void) -> Result<()> {
        let handle = self.object.handle();
        // SAFETY: the kernel is alive, `&mut` keeps other threads from its arguments, and the value
        // is readable for `bytes` (or null, for local memory); the driver copies it.
        let status = unsafe { (self.api.set_kernel_arg)(handle, index, bytes, value) };
        check(self.name, status)
    }

    /// Names all shared memory that the kernel reaches through tables and not by an argument; each
    /// call replaces the list. It is read when the kernel is enqueued: take an allocation out
    /// before it is freed. An empty list is not passed on, since some drivers refuse it; the list
    /// before then stays, so a kernel that had one must not run without one.
    pub fn list_memory(&mut self, addresses: &[u64]) -> Result<()> {
        const WHAT: &str = "clSetKernelExecInfo";
        const { assert!(size_of::<u64>() == size_of::<*const c_void>()) };
        if addresses.is_empty() {
            return Ok(());
        }
        let set = self.api.set_kernel_exec_info.ok_or(Error::new(Code::Unsupported, WHAT))?;
        let (handle, bytes) = (self.object.handle(), size_of_val(addresses));
        // SAFETY: the kernel is alive; the list is readable, and copied by the driver.
        check(WHAT, unsafe {
            set(handle, KERNEL_EXEC_INFO_SVM_PTRS, bytes, addresses.as_ptr().cast())
        })
    }

    /// What the compiler made of it.
    pub fn info(&self) -> Result<KernelInfo> {
        Ok(KernelInfo {
            work_group_max: self.number(KERNEL_WORK_GROUP_SIZE)?,
            work_group_multiple: self.number(KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE)?,
            local_bytes: self.number(KERNEL_LOCAL_MEM_SIZE)?,
            private_bytes: self.number(KERNEL_PRIVATE_MEM_SIZE)?,
        })
    }

    fn number<T: Number>(&self, name: u32) -> Result<T> {
        let get = self.api.get_kernel_info;
        let (kernel, device) = (self.object.handle(), self.device);
        number_by("clGetKernelWorkGroupInfo", |bytes, into, written| {
            // SAFETY: kernel and device are alive, `into` is writable for `bytes`.
            unsafe { get(kernel, device, name, bytes, into, written) }
        })
    }
}

/// A [`DeviceRegion`]'s number as what it was made of.
fn as_handle(number: u64) -> Handle {
    ptr::with_exposed_provenance_mut(usize::try_from(number).unwrap_or(0))
}
