//! A device to run on, programs, and numbers.

use mzcache::port::opencl::{
    Api, BuildLog, BuildOptions, Choice, Context, DeviceInfo, Devices, Kernel, MemoryMode, Program,
    Queue,
};
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

/// Both shapes of library: the loader, and the driver alone.
pub const LOADER: &CStr = c"libOpenCL.so.1";
pub const DRIVER: &CStr = c"libpocl.so.2";

/// A library that never goes away.
pub fn load(path: &CStr) -> Option<&'static Api> {
    match Api::load(Some(path)) {
        Ok(api) => Some(Box::leak(Box::new(api))),
        Err(error) => {
            assert!(std::env::var_os("MZ_CI").is_none(), "{path:?}: {error}");
            eprintln!("NOT CHECKED: {path:?} cannot be loaded: {error}");
            None
        }
    }
}

/// One thread at a time: PoCL shows no devices to whoever asks while another thread is the first.
pub fn devices(api: &'static Api) -> Devices {
    static FIRST: Mutex<()> = Mutex::new(());
    let _alone = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    Devices::enumerate(api).unwrap()
}

/// An opened device.
pub struct Opened {
    pub context: Context,
    pub queue: Queue,
}

/// PoCL's device, through the loader; or the library and device that the environment names.
pub fn open() -> Option<Opened> {
    match std::env::var("MZ_TEST_OPENCL_LIBRARY") {
        Ok(path) => open_by(&CString::new(path).unwrap()),
        Err(_) => open_by(LOADER),
    }
}

pub fn open_by(path: &CStr) -> Option<Opened> {
    let api = load(path)?;
    let name = std::env::var("MZ_TEST_OPENCL_DEVICE").unwrap_or("portable computing".to_owned());
    let device = devices(api).choose(Choice::Named(&name)).unwrap();
    let context = Context::new(api, &device).unwrap();
    let queue = Queue::new(&context, true).unwrap();
    Some(Opened { context, queue })
}

pub fn options(device: &DeviceInfo) -> BuildOptions {
    BuildOptions::for_device(device).unwrap()
}

/// The memory modes of the device.
pub fn modes(opened: &Opened) -> impl Iterator<Item = MemoryMode> {
    let device = *opened.context.device();
    MemoryMode::ALL.into_iter().filter(move |mode| mode.is_offered(&device))
}

/// A kernel of a program that must build.
pub fn kernel(context: &Context, source: &str, name: &'static CStr) -> Kernel {
    let mut memory = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut memory);
    match Program::build(context, &[source], &options(context.device()), &mut log) {
        Ok(program) => program.kernel(name).unwrap(),
        Err(error) => panic!("{error}\n{}", log.text()),
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

pub fn c_path(path: &std::path::Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}
