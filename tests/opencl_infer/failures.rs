//! What cannot be opened says why.

use crate::device::{Platform, greedy, open, open_parts, platform};
use crate::models::{Parts, fixture, oracle, parts};
use mzcache::infer::Session;
use mzcache::infer::opencl::{Accelerator, ClOptions};
use mzcache::port::linux::map_arena;
use mzcache::port::opencl::{
    Api, BuildLog, Choice, Compiler, DeviceInfo, Devices, MemoryMode, ProgramCache, SvmCaps,
};
use mzcache::units::{ByteCount, CodecId, Nanos, TokenCount};
use mzcache::{Code, Error};
use std::ffi::{CStr, CString};

fn named(platform: &Platform, name: &str) -> Result<Accelerator, Error> {
    Accelerator::open(platform.api, Choice::Named(name), None)
}

/// The device with some of what it says of itself changed.
fn pretending(platform: &Platform, change: impl FnOnce(&mut DeviceInfo)) -> Accelerator {
    let devices = Devices::enumerate(platform.api).unwrap();
    let mut device = devices.choose(Choice::Named(&platform.name)).unwrap();
    change(&mut device);
    Accelerator::new(platform.api, &device, None).unwrap()
}

#[test]
fn a_missing_library_and_an_unknown_device_are_named() {
    let missing = Api::load(Some(c"/nonexistent/libOpenCL.so")).map(|_| ()).unwrap_err();
    assert_eq!((missing.code, missing.what), (Code::NoDevice, "OpenCL library"));
    let Some(platform) = platform() else { return };
    let unknown = named(&platform, "no such device").map(|_| ()).unwrap_err();
    assert_eq!((unknown.code, unknown.what), (Code::NoDevice, "OpenCL device of that name"));
}

#[test]
fn a_context_longer_than_the_models_is_refused() {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(Some(MemoryMode::Buffers)) else { return };
    let mut parts = parts("cl-long", &fixture("llama.gguf"), CodecId::Raw, 1);
    parts.config.options.context_tokens_max = TokenCount::new(1 << 17);
    let error = open_parts(&accelerator, parts).map(|_| ()).unwrap_err();
    assert_eq!((error.code, error.what), (Code::LimitExceeded, "context_tokens_max"));
}

fn refusal(accelerator: &Accelerator) -> Error {
    let parts = parts("cl-refused", &fixture("llama.gguf"), CodecId::Raw, 1);
    open_parts(accelerator, parts).map(|_| ()).unwrap_err()
}

#[test]
fn a_device_that_is_too_small_is_refused_before_anything_is_allocated() {
    let Some(platform) = platform() else { return };
    let small = pretending(&platform, |device| device.memory_bytes = 100_000);
    let error = refusal(&small);
    assert_eq!((error.code, error.what), (Code::OutOfMemory, "weights in the device's memory"));
    let narrow = pretending(&platform, |device| device.alloc_bytes_max = 10_000);
    let error = refusal(&narrow);
    assert_eq!((error.code, error.what), (Code::LimitExceeded, "weight unit on the device"));
    let local = pretending(&platform, |device| device.local_bytes = 500);
    let error = refusal(&local);
    assert_eq!((error.code, error.what), (Code::Unsupported, "shape of attention on OpenCL"));
}

#[test]
fn a_pool_that_is_too_small_ends_the_pass_and_a_shorter_one_runs() {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(Some(MemoryMode::Buffers)) else { return };
    drop(accelerator);
    // The pool holds as much as the device allocates at once: here one chunk of each layer.
    let parts = parts("cl-pool", &fixture("llama.gguf"), CodecId::Raw, 1);
    let shape = parts.model.shape;
    let column = shape.kv().chunk_bytes() as u64 * u64::from(shape.layers);
    let small = pretending(&platform, |device| {
        device.alloc_bytes_max = column;
        device.svm = SvmCaps::empty();
    });
    let mut session = open_parts(&small, parts).unwrap();
    let oracle = oracle("llama.json");
    let error = session.append(&oracle.prompt[..257], 1).map(|_| ()).unwrap_err();
    assert_eq!((error.code, error.what), (Code::OutOfMemory, "pool of KV chunks"));
    session.truncate(TokenCount::new(0)).unwrap();
    session.append(&oracle.prompt[..256], 1).unwrap();
}

#[test]
fn a_pass_that_an_eviction_interrupts_leaves_nothing_leased() {
    let Some(platform) = platform() else { return };
    for mode in crate::device::MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let mut session = open(&accelerator, "qwen3", CodecId::Raw, 2);
        let oracle = oracle("qwen3.json");
        let evictor = session.runtime().evictor();
        let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
        session.append(context, 0).unwrap();
        let kept = session.tokens();
        for _ in 0..8 {
            let evicting = std::thread::spawn(move || {
                // Another one may be running; that is as good.
                let _ = evictor.evict(ByteCount::new(u64::MAX), None);
            });
            match greedy(&mut session, question, 3) {
                Ok(tokens) => assert_eq!(tokens, oracle.greedy[..3]),
                Err(error) => assert_eq!(error.code, Code::Cancelled, "{error}"),
            }
            evicting.join().unwrap();
            session.truncate(kept).unwrap();
            // Everything can be evicted: no lease was left behind.
            session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
            assert_eq!(session.runtime().stats().tally.total_bytes(), 0);
        }
        assert_eq!(greedy(&mut session, question, 12).unwrap(), oracle.greedy);
    }
}

#[test]
fn a_child_that_does_not_see_the_device_is_done_without() {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(None) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = CString::new(directory.path().to_str().unwrap()).unwrap();
    let mut compiler = Compiler {
        program: c"/bin/false",
        arguments: &[],
        library: None,
        time_max: Nanos::new(10_000_000_000),
    };
    let open = |compiler: &Compiler<'_>, path: &CStr| {
        let Parts { model, config, ports } =
            parts("cl-child", &fixture("llama.gguf"), CodecId::Raw, 1);
        let memory = map_arena(Session::required_bytes_on(&model, &config).unwrap()).unwrap();
        let mut bytes = vec![0; 1 << 16];
        let mut log = BuildLog::new(&mut bytes);
        let cache = Some(ProgramCache::new(path));
        let options = ClOptions { cache, compiler: Some(compiler), ..ClOptions::default() };
        Session::open_on(&accelerator, model, &config, &options, &mut log, memory, ports)
    };
    let mut session = open(&compiler, &path).unwrap();
    assert_eq!(session.opencl().unwrap().report().cached, 0);
    drop(session);
    // All programs were kept all the same.
    let mut session = open(&compiler, &path).unwrap();
    let report = *session.opencl().unwrap().report();
    assert_eq!((report.cached, report.not_kept), (report.programs, 0));
    // A child that cannot be started is the caller's mistake.
    compiler.program = c"/nonexistent/compiler";
    let empty = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = CString::new(empty.path().to_str().unwrap()).unwrap();
    assert!(open(&compiler, &path).is_err());
}
