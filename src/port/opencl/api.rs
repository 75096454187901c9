//! The functions of an OpenCL library as one typed table, and the constants they take.
//!
//! Invariant: every required entry is the function of that name; an optional one is `None` where
//! the library lacks it. Nothing here calls any of them but through the modules beside it.

use crate::error::{Code, Error, Result};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::NonNull;

/// Any OpenCL object; null where there is none.
pub(super) type Handle = *mut c_void;
/// What functions return: zero, or a negative error.
pub(super) type Status = i32;

/// Most functions that return one property of an object.
pub(super) type GetInfo =
    unsafe extern "C" fn(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
/// The same for a pair of objects.
pub(super) type GetPairInfo =
    unsafe extern "C" fn(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> Status;
type Release = unsafe extern "C" fn(Handle) -> Status;
type ContextNotify = unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void);
type ProgramNotify = unsafe extern "C" fn(Handle, *mut c_void);

/// Looks one symbol up by its name, or by its place in a driver's dispatch table.
pub(super) trait Lookup {
    /// The function's address, or nothing.
    fn find(&self, symbol: &'static CStr, slot: usize) -> Option<NonNull<c_void>>;
}

macro_rules! table {
    (
        required { $($need:ident: $need_symbol:literal @ $need_slot:literal = $need_type:ty;)* }
        optional { $($may:ident: $may_symbol:literal @ $may_slot:literal = $may_type:ty;)* }
    ) => {
        /// A library's functions. Made by [`Api::load`]; drivers do not survive being unloaded, so
        /// it stays valid until the process ends.
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub(super) $need: $need_type,)*
            $(pub(super) $may: Option<$may_type>,)*
        }

        impl Api {
            /// Fills the table. The error names the first required function that is missing, and
            /// counts all of them.
            pub(super) fn fill(library: &dyn Lookup) -> Result<Api> {
                let mut first = None;
                let mut missing = 0;
                $(if library.find($need_symbol, $need_slot).is_none() {
                    first = first.or($need_symbol.to_str().ok());
                    missing += 1;
                })*
                if let Some(name) = first {
                    return Err(Error::new(Code::Unsupported, name).with(missing));
                }
                Ok(Api {
                    $($need: match library.find($need_symbol, $need_slot) {
                        // SAFETY: the library gives this name to a function of this type, by the
                        // OpenCL specification; both are pointers of one size.
                        Some(found) => unsafe {
                            core::mem::transmute::<NonNull<c_void>, $need_type>(found)
                        },
                        None => unreachable!("looked for above"),
                    },)*
                    $($may: library.find($may_symbol, $may_slot).map(|found| {
                        // SAFETY: as above.
                        unsafe { core::mem::transmute::<NonNull<c_void>, $may_type>(found) }
                    }),)*
                })
            }

            /// Calls back with the name of every optional function that the library lacks.
            pub fn each_absent(&self, mut absent: impl FnMut(&'static str)) {
                $(if self.$may.is_none() {
                    absent($may_symbol.to_str().unwrap_or_default());
                })*
            }
        }
    };
}

table! {
    required {
        get_platform_ids: c"clGetPlatformIDs" @ 0 =
            unsafe extern "C" fn(u32, *mut Handle, *mut u32) -> Status;
        get_platform_info: c"clGetPlatformInfo" @ 1 = GetInfo;
        get_device_ids: c"clGetDeviceIDs" @ 2 =
            unsafe extern "C" fn(Handle, u64, u32, *mut Handle, *mut u32) -> Status;
        get_device_info: c"clGetDeviceInfo" @ 3 = GetInfo;
        create_context: c"clCreateContext" @ 4 = unsafe extern "C" fn(
            *const isize, u32, *const Handle, Option<ContextNotify>, *mut c_void, *mut Status,
        ) -> Handle;
        retain_context: c"clRetainContext" @ 6 = Release;
        release_context: c"clReleaseContext" @ 7 = Release;
        retain_queue: c"clRetainCommandQueue" @ 10 = Release;
        release_queue: c"clReleaseCommandQueue" @ 11 = Release;
        create_buffer: c"clCreateBuffer" @ 14 =
            unsafe extern "C" fn(Handle, u64, usize, *mut c_void, *mut Status) -> Handle;
        release_buffer: c"clReleaseMemObject" @ 18 = Release;
        create_program: c"clCreateProgramWithSource" @ 26 = unsafe extern "C" fn(
            Handle, u32, *const *const c_char, *const usize, *mut Status,
        ) -> Handle;
        create_program_from_binary: c"clCreateProgramWithBinary" @ 27 = unsafe extern "C" fn(
            Handle, u32, *const Handle, *const usize, *const *const u8, *mut Status, *mut Status,
        ) -> Handle;
        release_program: c"clReleaseProgram" @ 29 = Release;
        build_program: c"clBuildProgram" @ 30 = unsafe extern "C" fn(
            Handle, u32, *const Handle, *const c_char, Option<ProgramNotify>, *mut c_void,
        ) -> Status;
        get_program_info: c"clGetProgramInfo" @ 32 = GetInfo;
        get_build_info: c"clGetProgramBuildInfo" @ 33 = GetPairInfo;
        create_kernel: c"clCreateKernel" @ 34 =
            unsafe extern "C" fn(Handle, *const c_char, *mut Status) -> Handle;
        release_kernel: c"clReleaseKernel" @ 37 = Release;
        set_kernel_arg: c"clSetKernelArg" @ 38 =
            unsafe extern "C" fn(Handle, u32, usize, *const c_void) -> Status;
        get_kernel_info: c"clGetKernelWorkGroupInfo" @ 40 = GetPairInfo;
        wait_for_events: c"clWaitForEvents" @ 41 =
            unsafe extern "C" fn(u32, *const Handle) -> Status;
        retain_event: c"clRetainEvent" @ 43 = Release;
        release_event: c"clReleaseEvent" @ 44 = Release;
        get_event_times: c"clGetEventProfilingInfo" @ 45 = GetInfo;
        flush: c"clFlush" @ 46 = Release;
        finish: c"clFinish" @ 47 = Release;
        enqueue_read: c"clEnqueueReadBuffer" @ 48 = unsafe extern "C" fn(
            Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle,
        ) -> Status;
        enqueue_write: c"clEnqueueWriteBuffer" @ 49 = unsafe extern "C" fn(
            Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle,
        ) -> Status;
        enqueue_copy: c"clEnqueueCopyBuffer" @ 50 = unsafe extern "C" fn(
            Handle, Handle, Handle, usize, usize, usize, u32, *const Handle, *mut Handle,
        ) -> Status;
        enqueue_kernel: c"clEnqueueNDRangeKernel" @ 59 = unsafe extern "C" fn(
            Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle,
            *mut Handle,
        ) -> Status;
    }
    optional {
        create_queue_1: c"clCreateCommandQueue" @ 9 =
            unsafe extern "C" fn(Handle, Handle, u64, *mut Status) -> Handle;
        create_queue: c"clCreateCommandQueueWithProperties" @ 123 =
            unsafe extern "C" fn(Handle, Handle, *const u64, *mut Status) -> Handle;
        enqueue_map: c"clEnqueueMapBuffer" @ 56 = unsafe extern "C" fn(
            Handle, Handle, u32, u64, usize, usize, u32, *const Handle, *mut Handle, *mut Status,
        ) -> *mut c_void;
        enqueue_unmap: c"clEnqueueUnmapMemObject" @ 58 = unsafe extern "C" fn(
            Handle, Handle, *mut c_void, u32, *const Handle, *mut Handle,
        ) -> Status;
        svm_alloc: c"clSVMAlloc" @ 126 =
            unsafe extern "C" fn(Handle, u64, usize, u32) -> *mut c_void;
        svm_free: c"clSVMFree" @ 127 = unsafe extern "C" fn(Handle, *mut c_void);
        enqueue_svm_copy: c"clEnqueueSVMMemcpy" @ 129 = unsafe extern "C" fn(
            Handle, u32, *mut c_void, *const c_void, usize, u32, *const Handle, *mut Handle,
        ) -> Status;
        enqueue_svm_map: c"clEnqueueSVMMap" @ 131 = unsafe extern "C" fn(
            Handle, u32, u64, *mut c_void, usize, u32, *const Handle, *mut Handle,
        ) -> Status;
        enqueue_svm_unmap: c"clEnqueueSVMUnmap" @ 132 =
            unsafe extern "C" fn(Handle, *mut c_void, u32, *const Handle, *mut Handle) -> Status;
        set_kernel_svm_arg: c"clSetKernelArgSVMPointer" @ 134 =
            unsafe extern "C" fn(Handle, u32, *const c_void) -> Status;
        set_kernel_exec_info: c"clSetKernelExecInfo" @ 135 =
            unsafe extern "C" fn(Handle, u32, usize, *const c_void) -> Status;
    }
}

/// First slot of a dispatch table that OpenCL 2.0 added: tables of older drivers end before.
pub(super) const FIRST_SLOT_OF_2_0: usize = 123;
/// The same for 1.2; those of 1.1 are not used.
pub(super) const FIRST_SLOT_OF_1_2: usize = 93;

pub(super) const TRUE: u32 = 1;
pub(super) const FALSE: u32 = 0;
pub(super) const SUCCESS: Status = 0;

pub(super) const PLATFORM_VERSION: u32 = 0x0901;
pub(super) const PLATFORM_NAME: u32 = 0x0902;

pub(super) const DEVICE_TYPE_ALL: u64 = 0xFFFF_FFFF;
pub(super) const DEVICE_TYPE: u32 = 0x1000;
pub(super) const DEVICE_MAX_COMPUTE_UNITS: u32 = 0x1002;
pub(super) const DEVICE_MAX_WORK_GROUP_SIZE: u32 = 0x1004;
pub(super) const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
pub(super) const DEVICE_MEM_BASE_ADDR_ALIGN: u32 = 0x1019;
pub(super) const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101F;
pub(super) const DEVICE_LOCAL_MEM_SIZE: u32 = 0x1023;
pub(super) const DEVICE_NAME: u32 = 0x102B;
pub(super) const DEVICE_VENDOR: u32 = 0x102C;
pub(super) const DRIVER_VERSION: u32 = 0x102D;
pub(super) const DEVICE_VERSION: u32 = 0x102F;
pub(super) const DEVICE_EXTENSIONS: u32 = 0x1030;
pub(super) const DEVICE_HOST_UNIFIED_MEMORY: u32 = 0x1035;
pub(super) const DEVICE_OPENCL_C_VERSION: u32 = 0x103D;
pub(super) const DEVICE_SVM_CAPABILITIES: u32 = 0x1053;
pub(super) const DEVICE_MAX_NUM_SUB_GROUPS: u32 = 0x105C;
pub(super) const DEVICE_OPENCL_C_ALL_VERSIONS: u32 = 0x1066;
pub(super) const DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE: u32 = 0x1067;

pub(super) const CONTEXT_PLATFORM: isize = 0x1084;
pub(super) const QUEUE_PROPERTIES: u64 = 0x1093;
pub(super) const QUEUE_PROFILING_ENABLE: u64 = 2;

pub(super) const MEM_READ_WRITE: u64 = 1;
pub(super) const MEM_ALLOC_HOST_PTR: u64 = 1 << 4;
pub(super) const MEM_SVM_FINE_GRAIN_BUFFER: u64 = 1 << 10;
pub(super) const MAP_READ: u64 = 1;
pub(super) const MAP_WRITE: u64 = 2;
pub(super) const MAP_WRITE_INVALIDATE: u64 = 4;

pub(super) const PROGRAM_BINARY_SIZES: u32 = 0x1165;
pub(super) const PROGRAM_BINARIES: u32 = 0x1166;
pub(super) const PROGRAM_BUILD_LOG: u32 = 0x1183;

pub(super) const KERNEL_WORK_GROUP_SIZE: u32 = 0x11B0;
pub(super) const KERNEL_LOCAL_MEM_SIZE: u32 = 0x11B2;
pub(super) const KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE: u32 = 0x11B3;
pub(super) const KERNEL_PRIVATE_MEM_SIZE: u32 = 0x11B4;
pub(super) const KERNEL_EXEC_INFO_SVM_PTRS: u32 = 0x11B6;

pub(super) const PROFILING_QUEUED: u32 = 0x1280;
pub(super) const PROFILING_SUBMIT: u32 = 0x1281;
pub(super) const PROFILING_START: u32 = 0x1282;
pub(super) const PROFILING_END: u32 = 0x1283;
