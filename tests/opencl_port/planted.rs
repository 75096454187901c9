//! Libraries made for the purpose: compiled here, with exactly the functions a test wants.

use crate::scratch::{ScratchFile, scratch};
use crate::support::c_path;
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::process::Command;

/// A compiled library, removed at the end.
pub struct Planted {
    pub path: CString,
    _file: ScratchFile,
}

/// Compiles C into a shared library. With `over_the_loader` every function that the text does not
/// define is the real loader's.
pub fn plant(name: &str, text: &str, over_the_loader: bool) -> Planted {
    let source = ScratchFile::with(&format!("{name}.c"), text.as_bytes());
    let library: PathBuf = scratch(&format!("lib{name}.so"));
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-O1", "-w", "-o"]).arg(&library).arg(&source.0);
    if over_the_loader {
        command.args(["-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"]);
    }
    assert!(command.status().unwrap().success(), "gcc cannot compile {name}");
    Planted { path: c_path(&library), _file: ScratchFile(library) }
}

/// A number in a planted library that is loaded already.
pub fn number(library: &Planted, name: &CStr) -> *mut i32 {
    // SAFETY: the path is a C string; the library was written here and has no constructors.
    let handle = unsafe { libc::dlopen(library.path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    // SAFETY: the handle is open, the name a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found.cast()
}

/// Sets such a number.
pub fn set(library: &Planted, name: &CStr, value: i32) {
    // SAFETY: the planted library defines it as an int, and one thread of the test uses it.
    unsafe { number(library, name).write_volatile(value) };
}

/// The loader with faults that a test turns on: each counts down the calls that still fail.
pub const FAULTS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int svm_alloc_fails, build_fails, finish_fails, run_fails, binary_fails, map_fails, builds;
static int fails(int *left) { return *left > 0 && (*left)--; }
#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))
void *clSVMAlloc(void *c, unsigned long f, size_t n, unsigned a) {
    return fails(&svm_alloc_fails) ? NULL : NEXT(clSVMAlloc)(c, f, n, a);
}
int clBuildProgram(void *p, unsigned n, void *d, const char *o, void *f, void *u) {
    builds++;
    return fails(&build_fails) ? -6 : NEXT(clBuildProgram)(p, n, d, o, f, u);
}
int clFinish(void *q) { return fails(&finish_fails) ? -5 : NEXT(clFinish)(q); }
int clEnqueueNDRangeKernel(void *q, void *k, unsigned d, void *o, void *g, void *l, unsigned n,
        void *w, void *e) {
    return fails(&run_fails) ? -4 : NEXT(clEnqueueNDRangeKernel)(q, k, d, o, g, l, n, w, e);
}
void *clCreateProgramWithBinary(void *c, unsigned n, void *d, void *l, void *b, int *s, int *e) {
    if (fails(&binary_fails)) { *s = -42; *e = -42; return NULL; }
    return NEXT(clCreateProgramWithBinary)(c, n, d, l, b, s, e);
}
int clEnqueueSVMMap(void *q, unsigned b, unsigned long f, void *p, size_t s, unsigned n, void *w,
        void *e) {
    return fails(&map_fails) ? -12 : NEXT(clEnqueueSVMMap)(q, b, f, p, s, n, w, e);
}
"#;
