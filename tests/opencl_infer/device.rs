//! A device to compute on, and sessions on it.

use crate::models::{Parts, fixture, parts};
use mzcache::infer::Session;
use mzcache::infer::opencl::{Accelerator, ClOptions};
use mzcache::port::linux::map_arena;
use mzcache::port::opencl::{Api, BuildLog, Choice, MemoryMode, ProgramCache};
use mzcache::units::CodecId;
use mzcache::{Error, Result};
use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PoCL 3.1 crashes when two threads compile at once, so one test has the device at a time.
static TURN: Mutex<()> = Mutex::new(());

pub const MODES: [MemoryMode; 3] = MemoryMode::ALL;

/// The library and the name of the device.
pub struct Platform {
    pub api: &'static Api,
    pub name: String,
    _turn: MutexGuard<'static, ()>,
}

pub fn platform() -> Option<Platform> {
    platform_of(c"libOpenCL.so.1")
}

/// The same through a library that passes everything on to the loader.
pub fn platform_of(library: &CStr) -> Option<Platform> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Api::load(Some(library)) {
        Ok(api) => {
            let name = std::env::var("MZ_TEST_OPENCL_DEVICE");
            let name = name.unwrap_or("portable computing".to_owned());
            Some(Platform { api: Box::leak(Box::new(api)), name, _turn: turn })
        }
        Err(error) => {
            assert!(std::env::var_os("MZ_CI").is_none(), "{error}");
            eprintln!("NOT CHECKED: no OpenCL library: {error}");
            None
        }
    }
}

/// Intel's CPU runtime, which has half arithmetic and subgroups: a tool of tests. `None` unless
/// MZ_INTEL_OPENCL names its library.
pub fn intel() -> Option<Platform> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = CString::new(std::env::var("MZ_INTEL_OPENCL").ok()?).unwrap();
    let api = Box::leak(Box::new(Api::load(Some(&path)).unwrap()));
    Some(Platform { api, name: "intel".to_owned(), _turn: turn })
}

impl Platform {
    /// `None` where the device has not got the mode.
    pub fn accelerator(&self, mode: Option<MemoryMode>) -> Option<Accelerator> {
        match Accelerator::open(self.api, Choice::Named(&self.name), mode) {
            Ok(accelerator) => Some(accelerator),
            Err(error) if mode.is_some_and(|mode| error.what == mode.name()) => {
                eprintln!("NOT CHECKED: the device has no {}", error.what);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A session of a small model in that mode.
pub fn open(accelerator: &Accelerator, model: &str, codec: CodecId, threads: usize) -> Session {
    let name = format!("cl-{model}-{}-{threads}", accelerator.mode().name().replace(' ', "-"));
    let parts = parts(&name, &fixture(&format!("{model}.gguf")), codec, threads);
    open_parts(accelerator, parts).unwrap()
}

/// Where compiled programs are kept from test to test.
pub fn programs() -> CString {
    let directory = format!("{}/opencl-programs", env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&directory).unwrap();
    CString::new(directory).unwrap()
}

pub fn open_parts(accelerator: &Accelerator, parts: Parts) -> Result<Session> {
    let directory = programs();
    let cache = Some(ProgramCache::new(&directory));
    let options = ClOptions { cache, ..ClOptions::default() };
    let Parts { model, config, ports } = parts;
    let memory = map_arena(Session::required_bytes_on(&model, &config).unwrap()).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut bytes);
    let opened = Session::open_on(accelerator, model, &config, &options, &mut log, memory, ports);
    opened.inspect_err(|_| eprintln!("{}", log.text()))
}

pub fn greedy(session: &mut Session, input: &[u32], count: usize) -> Result<Vec<u32>, Error> {
    let mut tokens = Vec::new();
    session.generate_greedy(input, count, |best| {
        tokens.extend(best);
        best
    })?;
    Ok(tokens)
}
