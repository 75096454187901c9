//! What is missing or fails gives a typed error, and the process lives.

use crate::planted::{FAULTS, Planted, plant};
use crate::support::*;
use mzcache::arena::{Arena, Sizer};
use mzcache::port::opencl::{
    Api, Block, BuildLog, BuildOptions, DeviceBuffers, Devices, MemoryMode, Program, WorkSize,
    status_name,
};
use mzcache::port::{SharedMemory, Use};
use mzcache::{Code, Error};
use std::ffi::CStr;
use std::mem::MaybeUninit;

fn load_error(path: &CStr) -> Error {
    Api::load(Some(path)).err().unwrap()
}

#[test]
fn a_library_that_is_not_there_or_no_library_is_no_device() {
    let expected = Error::new(Code::NoDevice, "OpenCL library");
    assert_eq!(load_error(c"libNoSuchOpenCL.so"), expected);
    assert_eq!(load_error(c"/etc/hostname"), expected);
    // A library of something else.
    assert_eq!(load_error(c"libc.so.6").code, Code::Unsupported);
}

#[test]
fn a_missing_function_is_named_and_all_of_them_counted() {
    let one = plant("one", "int clGetPlatformIDs(void) { return -1001; }", false);
    let error = load_error(&one.path);
    assert_eq!((error.code, error.what), (Code::Unsupported, "clGetPlatformInfo"));
    assert!(error.value > 20, "{error}");
    let text = all_but("clFinish");
    let error = load_error(&plant("all-but", &text, false).path);
    assert_eq!(error, Error::new(Code::Unsupported, "clFinish").with(1));
}

/// The functions without which nothing works, but one, and none that does anything.
fn all_but(missing: &str) -> String {
    let names = "clGetPlatformInfo clGetDeviceIDs clGetDeviceInfo clCreateContext clRetainContext \
        clReleaseContext clRetainCommandQueue clReleaseCommandQueue clCreateBuffer \
        clReleaseMemObject clCreateProgramWithSource clCreateProgramWithBinary clReleaseProgram \
        clBuildProgram clGetProgramInfo clGetProgramBuildInfo clCreateKernel clReleaseKernel \
        clSetKernelArg clGetKernelWorkGroupInfo clWaitForEvents clRetainEvent \
        clReleaseEvent clGetEventProfilingInfo clFlush clFinish clEnqueueReadBuffer \
        clEnqueueWriteBuffer clEnqueueCopyBuffer clEnqueueNDRangeKernel";
    let define = |name: &str| format!("int {name}(void) {{ return -30; }}\n");
    let others = names.split_whitespace().filter(|name| *name != missing).map(define);
    others.chain(["int clGetPlatformIDs(void) { return -1001; }\n".to_owned()]).collect()
}

#[test]
fn a_loader_without_drivers_is_no_device() {
    let library = plant("no-drivers", &all_but(""), false);
    let api = load(&library.path).unwrap();
    let error = Devices::enumerate(api).err().unwrap();
    assert_eq!(error, Error::new(Code::NoDevice, "OpenCL platform").with(-1001));
    assert_eq!(status_name(error.value), "CL_PLATFORM_NOT_FOUND_KHR");
    let mut absent = vec![];
    api.each_absent(|name| absent.push(name));
    assert!(absent.contains(&"clSVMAlloc"));
}

const DRIVER_HEAD: &str = "#include <string.h>\n\
    static int info(void *p, unsigned n, unsigned long s, char *v, unsigned long *r) {\n\
        if (v) strcpy(v, VERSION); if (r) *r = sizeof(VERSION); return 0; }\n\
    static void *table[200] = { [1] = info };\n\
    static void *other[200];\n\
    static void *first[] = { table }, *second[] = { SECOND };\n\
    static int ids(unsigned n, void **p, unsigned *c) {\n\
        if (COUNT > 0) p[0] = first; if (COUNT > 1) p[1] = second;\n\
        *c = COUNT; return COUNT ? 0 : -1001; }\n\
    void *clGetExtensionFunctionAddress(const char *name) {\n\
        return strcmp(name, \"clIcdGetPlatformIDsKHR\") ? 0 : ids; }\n";

/// A driver without a loader.
fn driver(name: &str, version: &str, second: &str, count: u32) -> Planted {
    let text = format!(
        "#define VERSION \"{version}\"\n#define SECOND {second}\n#define COUNT {count}\n\
         {DRIVER_HEAD}"
    );
    plant(name, &text, false)
}

#[test]
fn drivers_without_a_loader_are_looked_at_before_they_are_called() {
    let none = "void *clGetExtensionFunctionAddress(const char *name) { return 0; }";
    let error = load_error(&plant("no-icd", none, false).path);
    assert_eq!((error.code, error.what), (Code::Unsupported, "clIcdGetPlatformIDsKHR"));
    let error = load_error(&driver("no-platform", "OpenCL 3.0", "table", 0).path);
    assert_eq!(error, Error::new(Code::NoDevice, "OpenCL platform").with(-1001));
    let error = load_error(&driver("two-tables", "OpenCL 3.0", "other", 2).path);
    assert_eq!((error.code, error.what), (Code::Unsupported, "OpenCL dispatch table"));
    let error = load_error(&driver("no-table", "OpenCL 3.0", "0", 2).path);
    assert_eq!((error.code, error.what), (Code::Unsupported, "OpenCL dispatch table"));
    // With one table, which lacks nearly everything, the first hole is named.
    for version in ["OpenCL 3.0 x", "OpenCL 1.2 x", "OpenCL 1.1 x", "nonsense"] {
        let error = load_error(&driver("holes", version, "table", 2).path);
        assert_eq!((error.code, error.what), (Code::Unsupported, "clGetDeviceIDs"), "{version}");
    }
}

#[test]
fn a_failed_build_leaves_its_log() {
    let Some(opened) = open() else { return };
    let options = options(opened.context.device());
    let mut memory = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut memory);
    let wrong = ["kernel void a(global float *x) {", " x[0] = no_such_name; }"];
    let error = Program::build(&opened.context, &wrong, &options, &mut log).err().unwrap();
    assert_eq!(error, Error::new(Code::BuildFailed, "clBuildProgram").with(-11));
    assert!(log.text().contains("no_such_name"), "{}", log.text());
    let mut memory = [0; 8];
    let mut log = BuildLog::new(&mut memory);
    Program::build(&opened.context, &wrong, &options, &mut log).err().unwrap();
    assert_eq!(log.text(), "the comp");
    let strange = BuildOptions::new().with("-no-such-option").unwrap();
    let right = ["kernel void a(global float *x) { x[0] = 1; }"];
    let error = Program::build(&opened.context, &right, &strange, &mut log).err().unwrap();
    assert_eq!(error.code, Code::BuildFailed);
    let error = Program::build(&opened.context, &[], &options, &mut log).err().unwrap();
    assert_eq!(error.code, Code::InvalidArgument);
    let error = Program::build(&opened.context, &[""; 17], &options, &mut log).err().unwrap();
    assert_eq!((error.code, error.value), (Code::InvalidArgument, 17));
    let program = Program::build(&opened.context, &right, &options, &mut log).unwrap();
    let error = program.kernel(c"b").err().unwrap();
    assert_eq!(error, Error::new(Code::InvalidArgument, "b").with(-46));
    let mut kernel = program.kernel(c"a").unwrap();
    assert_eq!(kernel.set_value(1, 1u32).unwrap_err().code, Code::InvalidArgument);
    // An argument that was not set.
    let unset = opened.queue.run(&kernel, WorkSize::linear(1, 1)).unwrap_err();
    assert_eq!((unset.code, unset.what), (Code::InvalidArgument, "a"));
}

/// PoCL behind a library whose functions fail on demand.
fn faulty(name: &str) -> Option<(Planted, Opened)> {
    load(LOADER)?;
    let library = plant(name, FAULTS, true);
    let opened = open_by(&library.path)?;
    Some((library, opened))
}

fn fail(library: &Planted, function: &CStr, times: i32, status: i32) {
    library.set(c"fail_status", status);
    library.set(function, times);
}

#[test]
fn failing_calls_are_typed_errors_and_the_next_call_works() {
    let Some((library, opened)) = faulty("faults-calls") else { return };
    let (context, queue) = (&opened.context, &opened.queue);
    fail(&library, c"clSVMAlloc_fails", 1, -5);
    let error = Block::new(context, queue, MemoryMode::Fine, 4096).err().unwrap();
    assert_eq!(error, Error::new(Code::OutOfMemory, "clSVMAlloc").with(4096));
    let block = Block::new(context, queue, MemoryMode::Fine, 4096).unwrap();
    let mut kernel = kernel(context, "kernel void a(global float *x) { x[0] = 1; }", c"a");
    kernel.set_memory(0, block.region()).unwrap();
    fail(&library, c"clEnqueueNDRangeKernel_fails", 1, -4);
    let error = queue.run(&kernel, WorkSize::linear(1, 1)).unwrap_err();
    assert_eq!(error, Error::new(Code::OutOfMemory, "a").with(-4));
    queue.run(&kernel, WorkSize::linear(1, 1)).unwrap();
    fail(&library, c"clFinish_fails", 1, -5);
    let error = queue.finish().unwrap_err();
    assert_eq!(error, Error::new(Code::DeviceLost, "clFinish").with(-5));
    queue.finish().unwrap();
    fail(&library, c"clEnqueueSVMMap_fails", 1, -12);
    let error = Block::new(context, queue, MemoryMode::Coarse, 4096).err().unwrap();
    assert_eq!(error, Error::new(Code::OutOfMemory, "clEnqueueSVMMap").with(-12));
}

#[test]
fn builds_are_repeated_three_times_unless_the_source_is_wrong() {
    let Some((library, opened)) = faulty("faults-builds") else { return };
    let options = options(opened.context.device());
    let mut memory = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut memory);
    let mut build = |source: &str| {
        library.set(c"clBuildProgram_calls", 0);
        let built =
            Program::build_patiently(&opened.context, &opened.queue, &[source], &options, &mut log);
        (built.err().map(|error| error.code), library.get(c"clBuildProgram_calls"))
    };
    const RIGHT: &str = "kernel void a(global float *x) { x[0] = 1; }";
    fail(&library, c"clBuildProgram_fails", 2, -6);
    assert_eq!(build(RIGHT), (None, 3));
    fail(&library, c"clBuildProgram_fails", 3, -6);
    assert_eq!(build(RIGHT), (Some(Code::OutOfMemory), 3));
    assert_eq!(build("nonsense"), (Some(Code::BuildFailed), 1));
}

#[test]
fn shared_buffers_survive_a_failing_driver() {
    let Some((library, opened)) = faulty("faults-regions") else { return };
    let mut sizer = Sizer::new();
    DeviceBuffers::size(&mut sizer, 1).unwrap();
    let bytes = vec![MaybeUninit::new(0); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(bytes.into_boxed_slice())).unwrap();
    let (context, queue) = (&opened.context, &opened.queue);
    let mode = MemoryMode::Coarse;
    let port = DeviceBuffers::new(&mut arena, 1, context, queue, mode, 0).unwrap();
    // With one row, a row that was not given back would show at once.
    let faults =
        [(c"clSVMAlloc_fails", "clSVMAlloc"), (c"clEnqueueSVMMap_fails", "clEnqueueSVMMap")];
    library.set(c"fail_status", -12);
    for (fault, what) in faults {
        library.set(fault, 1);
        let error = port.allocate(Use::Kv, 4096).unwrap_err();
        assert_eq!((error.code, error.what), (Code::OutOfMemory, what));
    }
    let region = port.allocate(Use::Kv, 4096).unwrap();
    // SAFETY: the region is live until it is released below; each begin that succeeds is ended.
    unsafe {
        port.begin_device(&region).unwrap();
        port.end(&region);
        fail(&library, c"clEnqueueSVMMap_fails", 1, -12);
        let error = port.begin_host(&region).unwrap_err();
        assert_eq!(error, Error::new(Code::OutOfMemory, "clEnqueueSVMMap").with(-12));
        // It is still the device's, and free for both.
        port.begin_device(&region).unwrap();
        port.end(&region);
        port.begin_host(&region).unwrap();
        port.end(&region);
        // A device that is lost gives its memory back all the same.
        fail(&library, c"clFinish_fails", 1, -5);
        port.release(Use::Kv, region);
    }
    let region = port.allocate(Use::Kv, 4096).unwrap();
    // SAFETY: live, and used by nobody.
    unsafe { port.release(Use::Kv, region) };
}
