//! Compiled programs in files, and compilers that are children.

use crate::planted::{FAULTS, plant};
use crate::support::*;
use mzcache::Code;
use mzcache::port::opencl::{
    BuildLog, BuildOptions, Compiler, Origin, ProgramCache, ProgramSource, Ready, compile_request,
};
use mzcache::units::Nanos;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A directory, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("{}-{name}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _absent = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

const SOURCE: &str = "kernel void a(global float *x) { x[get_global_id(0)] = VALUE; }";
const WRONG: &str = "kernel void a(global float *x) { x[0] = no_such_name; }";

struct Fixture {
    opened: Opened,
    directory: Directory,
    path: CString,
    log: Vec<u8>,
}

fn fixture(name: &str, library: &CStr) -> Option<Fixture> {
    let opened = open_by(library)?;
    let directory = Directory::new(name);
    let path = c_path(&directory.0);
    Some(Fixture { opened, directory, path, log: vec![0; 1 << 16] })
}

impl Fixture {
    fn options(&self) -> BuildOptions {
        options(self.opened.context.device()).define("VALUE", 1).unwrap()
    }

    fn get(
        &mut self,
        source: &str,
        options: &BuildOptions,
        compiler: Option<&Compiler<'_>>,
    ) -> mzcache::Result<Ready> {
        let source = ProgramSource { sources: &[source], options };
        let Opened { context, queue } = &self.opened;
        let mut log = BuildLog::new(&mut self.log);
        let ready =
            ProgramCache::new(&self.path).program(context, queue, &source, compiler, &mut log);
        let length = log.text().len();
        self.log[length..].fill(0);
        if let Ok(ready) = &ready {
            ready.program.kernel(c"a").unwrap();
        }
        ready
    }

    fn origin(&mut self, source: &str, options: &BuildOptions) -> Origin {
        let ready = self.get(source, options, None).unwrap();
        ready.kept.unwrap();
        ready.origin
    }

    fn log(&self) -> &str {
        CStr::from_bytes_until_nul(&self.log).unwrap().to_str().unwrap()
    }
}

#[test]
fn a_program_is_compiled_once_for_each_source_and_option() {
    let Some(mut f) = fixture("cache-hits", LOADER) else { return };
    let options = f.options();
    assert_eq!(f.origin(SOURCE, &options), Origin::Here);
    assert_eq!(f.origin(SOURCE, &options), Origin::Cache);
    let other = options.define("OTHER", 2).unwrap();
    assert_eq!(f.origin(SOURCE, &other), Origin::Here);
    let longer = format!("{SOURCE}\n");
    assert_eq!(f.origin(&longer, &options), Origin::Here);
    assert_eq!(f.origin(SOURCE, &options), Origin::Cache);
    assert_eq!(f.origin(SOURCE, &other), Origin::Cache);
    assert_eq!(f.directory.files().len(), 3);
}

#[test]
fn damaged_files_are_replaced() {
    let Some(mut f) = fixture("cache-damage", LOADER) else { return };
    let options = f.options();
    assert_eq!(f.origin(SOURCE, &options), Origin::Here);
    let path = f.directory.files().remove(0);
    let good = std::fs::read(&path).unwrap();
    let mut damaged: Vec<Vec<u8>> = vec![vec![], good[..63].into(), good[..64].into()];
    damaged.push(good[..good.len() - 1].into());
    damaged.push([&good[..], b"x"].concat());
    for at in [0, 8, 12, 16, 32, 40, 60, 64, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        damaged.push(bytes);
    }
    for (index, bytes) in damaged.iter().enumerate() {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(f.origin(SOURCE, &options), Origin::Here, "{index}");
        assert_eq!(f.origin(SOURCE, &options), Origin::Cache, "{index}");
    }
    assert_eq!(f.directory.files(), [path]);
}

#[test]
fn without_a_directory_programs_are_compiled_and_the_loss_is_said() {
    let Some(mut f) = fixture("cache-nowhere", LOADER) else { return };
    let options = f.options();
    std::fs::remove_dir(&f.directory.0).unwrap();
    let ready = f.get(SOURCE, &options, None).unwrap();
    assert_eq!(ready.origin, Origin::Here);
    assert_eq!(ready.kept.unwrap_err().code, Code::Io);
    assert_eq!(f.get(WRONG, &options, None).err().unwrap().code, Code::BuildFailed);
    assert!(f.log().contains("no_such_name"));
}

#[test]
fn a_binary_that_the_driver_refuses_is_compiled_again() {
    if load(LOADER).is_none() {
        return;
    }
    let library = plant("faults-cache", FAULTS, true);
    let Some(mut f) = fixture("cache-refused", &library.path) else { return };
    let options = f.options();
    assert_eq!(f.origin(SOURCE, &options), Origin::Here);
    library.set(c"fail_status", -42);
    library.set(c"clCreateProgramWithBinary_fails", 1);
    assert_eq!(f.origin(SOURCE, &options), Origin::Here);
    assert_eq!(f.origin(SOURCE, &options), Origin::Cache);
}

/// The request that a parent passed as the last argument, in a child that runs one of the tests
/// below; the harness takes it for a filter that fits no test.
fn request() -> Option<CString> {
    let last = std::env::args_os().next_back()?.into_vec();
    let is_request = last.windows(8).any(|part| part == b".request");
    is_request.then(|| CString::new(last).unwrap())
}

#[test]
fn child_compiles() {
    if let Some(request) = request() {
        // A child of a test below. Its exit status is all that it says.
        let code = compile_request(&request).err().map_or(0, |error| error.code as i32);
        std::process::exit(code);
    }
}

#[test]
fn child_crashes() {
    if request().is_some() {
        std::process::abort();
    }
}

#[test]
fn child_never_ends() {
    if request().is_some() {
        std::thread::sleep(std::time::Duration::from_secs(1000));
    }
}

#[test]
fn child_says_that_it_compiled() {
    if request().is_some() {
        std::process::exit(0);
    }
}

struct Child {
    program: CString,
    test: CString,
}

impl Child {
    fn new(test: &str) -> Child {
        let program = std::env::current_exe().unwrap();
        Child { program: c_path(&program), test: CString::new(format!("cache::{test}")).unwrap() }
    }

    fn with<T>(&self, millis: u64, run: impl FnOnce(&Compiler<'_>) -> T) -> T {
        let arguments = [c"--exact", &*self.test];
        run(&Compiler {
            program: &self.program,
            arguments: &arguments,
            library: Some(LOADER),
            time_max: Nanos::new(millis * 1_000_000),
        })
    }
}

const LONG: u64 = 300_000;

#[test]
fn a_child_compiles_and_the_parent_loads() {
    let Some(mut f) = fixture("child-compiles", LOADER) else { return };
    let options = f.options();
    let child = Child::new("child_compiles");
    let ready = child.with(LONG, |compiler| f.get(SOURCE, &options, Some(compiler))).unwrap();
    assert_eq!(ready.origin, Origin::Child);
    assert_eq!(f.origin(SOURCE, &options), Origin::Cache);
    let error = child.with(LONG, |compiler| f.get(WRONG, &options, Some(compiler))).err().unwrap();
    assert_eq!((error.code, error.value), (Code::BuildFailed, Code::BuildFailed as i64));
    assert!(f.log().contains("no_such_name"), "{}", f.log());
    assert_eq!(f.directory.files().len(), 1, "{:?}", f.directory.files());
}

#[test]
fn a_child_that_crashes_hangs_or_lies_leaves_the_parent_alive() {
    let Some(mut f) = fixture("child-crashes", LOADER) else { return };
    let options = f.options();
    let error = Child::new("child_crashes")
        .with(LONG, |compiler| f.get(SOURCE, &options, Some(compiler)))
        .err()
        .unwrap();
    assert_eq!((error.code, error.what), (Code::BuildFailed, "compiler crashed"));
    assert_eq!(error.value, i64::from(libc::SIGABRT));
    let error = Child::new("child_never_ends")
        .with(100, |compiler| f.get(SOURCE, &options, Some(compiler)))
        .err()
        .unwrap();
    assert_eq!(error.code, Code::DeadlinePassed);
    assert_eq!(f.directory.files().len(), 0, "{:?}", f.directory.files());
    let nowhere =
        Compiler { program: c"/nowhere", arguments: &[], library: None, time_max: Nanos::new(1) };
    assert_eq!(f.get(SOURCE, &options, Some(&nowhere)).err().unwrap().code, Code::Io);
    let many = Compiler { arguments: &[c"x"; 14], ..nowhere };
    assert_eq!(f.get(SOURCE, &options, Some(&many)).err().unwrap().code, Code::LimitExceeded);
    // A child that only says so: the parent compiles after all.
    let ready = Child::new("child_says_that_it_compiled")
        .with(LONG, |compiler| f.get(SOURCE, &options, Some(compiler)))
        .unwrap();
    assert_eq!(ready.origin, Origin::Here);
}

#[test]
fn damaged_requests_are_refused() {
    let directory = Directory::new("requests");
    let refused = |bytes: &[u8]| {
        let path = directory.0.join("x.request");
        std::fs::write(&path, bytes).unwrap();
        compile_request(&c_path(&path)).unwrap_err().code
    };
    assert_eq!(refused(b""), Code::Truncated);
    assert_eq!(refused(b"MZCLREQ1abc"), Code::Truncated);
    assert_eq!(refused(b"MZCLREQ2abcdef"), Code::BadMagic);
    assert_eq!(refused(b"MZCLREQ1abcdef"), Code::Corrupt);
    let sealed = |body: &[u8]| {
        let crc = mzcache::kernel::Kernels::portable().crc32c.call(0, body).to_le_bytes();
        refused(&[b"MZCLREQ1", &crc[..], body].concat())
    };
    assert_eq!(sealed(b""), Code::Truncated);
    assert_eq!(sealed(b"\x01\0\0"), Code::Truncated);
    assert_eq!(sealed(b"\xff\xff\xff\xff"), Code::Truncated);
    assert_eq!(sealed(&[0; 4 * 6]), Code::Truncated);
    assert_eq!(sealed(&[0; 4 * 23]), Code::LimitExceeded);
    assert_eq!(sealed(b"\x01\0\0\0\xff"), Code::Corrupt);
    let missing = directory.0.join("missing");
    assert_eq!(compile_request(&c_path(&missing)).unwrap_err().code, Code::Io);
}
