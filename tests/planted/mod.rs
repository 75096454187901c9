//! Libraries made for the purpose: compiled here, with exactly the functions a test wants.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A compiled library, removed at the end.
pub struct Planted {
    pub path: CString,
    file: PathBuf,
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.file);
    }
}

/// Compiles C into a shared library. With `over_the_loader` every function that the text does not
/// define is the real loader's.
pub fn plant(name: &str, text: &str, over_the_loader: bool) -> Planted {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let place = |end: &str| directory.join(format!("{}-{name}{end}", std::process::id()));
    let (source, file) = (place(".c"), place(".so"));
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(&file).arg(&source);
    if over_the_loader {
        command.args(["-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"]);
    }
    assert!(command.status().unwrap().success(), "gcc cannot compile {name}");
    std::fs::remove_file(&source).unwrap();
    Planted { path: CString::new(file.to_str().unwrap()).unwrap(), file }
}

/// The loader with faults. Of each function `NAME_spared` counts down the calls that still pass,
/// then `NAME_fails` those that fail, and `NAME_calls` counts all. Of all functions together
/// `calls` counts, and the calls from number `fail_from` on, `fail_count` of them, fail. A call
/// that fails answers `fail_status`.
///
/// A call that waits for the device does wait before it fails, as a device that was lost runs
/// nothing any more; what gives an object back gives it back.
pub const FAULTS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
typedef long L;
int calls, fail_from, fail_count, fail_status = -5;
static int fails(int *spared, int *own) {
    int call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (*own > 0) return *spared > 0 ? !(*spared)-- : (*own)--;
    return fail_from > 0 && call >= fail_from && call - fail_from < fail_count;
}
/* All arguments are numbers and addresses. What a caller did not pass is not looked at either. */
#define ARGS a, b, c, d, e, f, g, h, i, j
typedef L (*Next)(L, L, L, L, L, L, L, L, L, L);
#define NEXT(name) ((Next)dlsym(RTLD_NEXT, #name))
#define FUNCTION(name, otherwise) \
    int name##_spared, name##_fails, name##_calls; \
    L name(L a, L b, L c, L d, L e, L f, L g, L h, L i, L j) { \
        __atomic_add_fetch(&name##_calls, 1, __ATOMIC_SEQ_CST); \
        if (fails(&name##_spared, &name##_fails)) { otherwise; } \
        return NEXT(name)(ARGS); \
    }
#define REFUSES(name) FUNCTION(name, return fail_status)
#define WAITS(name) FUNCTION(name, NEXT(clFinish)(ARGS); return fail_status)
#define RELEASES(name) FUNCTION(name, NEXT(name)(ARGS); return fail_status)
#define CREATES(name, status) FUNCTION(name, *(int *)(status) = fail_status; return 0)
REFUSES(clGetPlatformIDs) REFUSES(clGetPlatformInfo)
REFUSES(clGetDeviceIDs) REFUSES(clGetDeviceInfo)
REFUSES(clRetainContext) REFUSES(clRetainCommandQueue) REFUSES(clRetainEvent)
REFUSES(clBuildProgram) REFUSES(clGetProgramInfo) REFUSES(clGetProgramBuildInfo)
REFUSES(clSetKernelArg) REFUSES(clSetKernelArgSVMPointer) REFUSES(clSetKernelExecInfo)
REFUSES(clGetKernelWorkGroupInfo) REFUSES(clGetEventProfilingInfo)
REFUSES(clEnqueueNDRangeKernel) REFUSES(clEnqueueCopyBuffer) REFUSES(clEnqueueSVMMemcpy)
REFUSES(clEnqueueSVMUnmap) REFUSES(clFlush)
WAITS(clFinish) WAITS(clEnqueueReadBuffer) WAITS(clEnqueueWriteBuffer) WAITS(clEnqueueSVMMap)
FUNCTION(clWaitForEvents, NEXT(clWaitForEvents)(ARGS); return fail_status)
RELEASES(clReleaseContext) RELEASES(clReleaseCommandQueue) RELEASES(clReleaseMemObject)
RELEASES(clReleaseProgram) RELEASES(clReleaseKernel) RELEASES(clReleaseEvent)
CREATES(clCreateContext, f) CREATES(clCreateBuffer, e) CREATES(clCreateKernel, c)
CREATES(clCreateProgramWithSource, e) CREATES(clCreateProgramWithBinary, g)
CREATES(clCreateCommandQueueWithProperties, d)
FUNCTION(clSVMAlloc, return 0)
"#;
