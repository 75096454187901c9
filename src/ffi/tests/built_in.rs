//! The library's own ports and models, through C's eyes: wrong calls, and what stays behind them.

use super::super::checkpoint::*;
use super::super::linux::*;
use super::super::model::*;
use super::super::raw::Table;
use super::super::tables::*;
use super::super::types::*;
use super::super::*;
use super::world::{err, what};
use core::ptr;
use std::ffi::CString;
use std::format;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec;
use std::vec::Vec;

const INVALID: c_int = MzErr::InvalidArgument as c_int;
const BAD_STATE: c_int = MzErr::BadState as c_int;

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("mz-ffi-{name}-{}", std::process::id()))
}

fn c_text(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn fixture() -> CString {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracles");
    c_text(&folder.join("llama.gguf"))
}

fn no_ports() -> MzPorts {
    // SAFETY: zeroes are a table.
    let mut ports: MzPorts = unsafe { core::mem::zeroed() };
    ports.struct_bytes = MzPorts::own_bytes();
    ports
}

/// Open descriptors of this process on a file.
fn descriptors(of: &str) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().contains(of)).count()
}

/// Memory that nobody knows, or that this machine has not got.
fn refuse_memory(good: &MzLinuxConfig, open: &mut dyn FnMut(&MzLinuxConfig) -> (c_int, String)) {
    for memory in [3, 1 << 31, u32::MAX] {
        let refused = open(&MzLinuxConfig { memory, ..*good });
        assert_eq!(refused, (-43, format!("mz_linux_config.memory {memory}")));
    }
    for (memory, node) in
        [(MZ_MEMORY_KGSL, "/dev/kgsl-3d0"), (MZ_MEMORY_DMA_HEAP, "/dev/dma_heap/system")]
    {
        if !Path::new(node).exists() && !Path::new("/dev/ion").exists() {
            let refused = open(&MzLinuxConfig { memory, ..*good });
            assert_eq!(refused, (err(MzErr::NoDevice), format!("{node} 2")));
        }
    }
}

#[test]
fn ports_open_close_and_refuse() {
    let swap = scratch("ports-swap");
    let (model_path, swap_path) = (fixture(), c_text(&swap));
    let good = MzLinuxConfig {
        struct_bytes: MzLinuxConfig::own_bytes(),
        flags: 0,
        model_path: model_path.as_ptr(),
        swap_path: swap_path.as_ptr(),
        memory: MZ_MEMORY_ANONYMOUS,
        reserved: 0,
    };
    let (mut bytes, mut error, mut ports) = (0, answer::details(None), no_ports());
    // SAFETY: all pointers are to live values or are refused.
    unsafe {
        assert_eq!(mz_ports_linux_required_bytes(ptr::null_mut(), &mut error), INVALID);
        assert_eq!(mz_ports_linux_required_bytes(&mut bytes, &mut error), MZ_OK);
    }
    let mut memory = vec![0u8; bytes];
    let mut open = |config: &MzLinuxConfig, bytes: usize, ports: *mut MzPorts| {
        let mut error = answer::details(None);
        // SAFETY: all pointers are to live values or are refused.
        let result =
            unsafe { mz_ports_linux(config, memory.as_mut_ptr().cast(), bytes, ports, &mut error) };
        (result, what(&error))
    };
    let refused = open(&good, bytes - 1, &mut ports);
    assert_eq!(refused, (err(MzErr::MemoryTooSmall), format!("memory {bytes}")));
    assert_eq!(open(&good, bytes, ptr::null_mut()).0, INVALID);
    assert_eq!(open(&MzLinuxConfig { flags: 2, ..good }, bytes, &mut ports).0, -43);
    assert_eq!(open(&MzLinuxConfig { reserved: 1, ..good }, bytes, &mut ports).0, -43);
    refuse_memory(&good, &mut |config| open(config, bytes, &mut ports));
    let nowhere = MzLinuxConfig { model_path: ptr::null(), ..good };
    assert_eq!(open(&nowhere, bytes, &mut ports).0, INVALID);
    let nowhere = MzLinuxConfig { model_path: c"/nonexistent/model".as_ptr(), ..good };
    assert_eq!(open(&nowhere, bytes, &mut ports), (-30, "model file 2".into()));
    let long = CString::new(vec![b'x'; 5000]).unwrap();
    let long = MzLinuxConfig { swap_path: long.as_ptr(), ..good };
    assert_eq!(open(&long, bytes, &mut ports).0, err(MzErr::LimitExceeded));
    assert_eq!(ports.owner, ptr::null_mut());

    assert_eq!(open(&good, bytes, &mut ports), (MZ_OK, " 0".into()));
    assert!(!ports.swap.is_null() && !ports.threads.is_null() && !ports.meter.is_null());
    assert_eq!(descriptors(swap.to_str().unwrap()), 1);
    // SAFETY: as above.
    unsafe {
        let own = MzPorts { owner: ptr::null_mut(), ..ports };
        assert_eq!(mz_ports_close(&own, &mut error), INVALID);
        let elsewhere = MzPorts { owner: ports.owner.wrapping_byte_add(8), ..ports };
        assert_eq!(mz_ports_close(&elsewhere, &mut error), BAD_STATE);
        assert_eq!(mz_ports_close(&ports, &mut error), MZ_OK);
        assert_eq!(mz_ports_close(&ports, &mut error), BAD_STATE);
        assert_eq!(mz_ports_close(ptr::null(), &mut error), INVALID);
    }
    assert_eq!(descriptors(swap.to_str().unwrap()), 0);
    std::fs::write(&swap, [1; 4096]).unwrap();
    let kept = MzLinuxConfig { flags: super::super::checkpoint::MZ_KEEP_SWAP, ..good };
    for (config, length) in [(&kept, 4096), (&good, 0)] {
        assert_eq!(open(config, bytes, &mut ports), (MZ_OK, " 0".into()));
        assert_eq!(std::fs::metadata(&swap).unwrap().len(), length);
        // SAFETY: the tables are those of open ports.
        assert_eq!(unsafe { mz_ports_close(&ports, &mut error) }, MZ_OK);
    }
    std::fs::remove_file(swap).unwrap();
}

/// A program that was compiled before there was a choice of memory.
#[test]
fn a_configuration_without_memory_takes_the_process_s_own() {
    let (model_path, mut ports) = (fixture(), no_ports());
    let old = MzLinuxConfig {
        struct_bytes: u32::try_from(core::mem::offset_of!(MzLinuxConfig, memory)).unwrap(),
        flags: 0,
        model_path: model_path.as_ptr(),
        swap_path: ptr::null(),
        // Behind what it says it has.
        memory: u32::MAX,
        reserved: u32::MAX,
    };
    let (mut bytes, error) = (0, ptr::null_mut());
    // SAFETY: all pointers are to live values.
    unsafe {
        assert_eq!(mz_ports_linux_required_bytes(&mut bytes, error), MZ_OK);
        let mut memory = vec![0u8; bytes];
        let start = memory.as_mut_ptr().cast();
        assert_eq!(mz_ports_linux(&old, start, bytes, &mut ports, error), MZ_OK);
        assert_eq!(mz_ports_close(&ports, error), MZ_OK);
    }
}

/// The machine's cores may be of one kind or of two, so only what always holds is looked at.
#[test]
fn workers_are_listed_with_all_roles() {
    let nobody = MzWorker { roles: 0, core: 0, helps: 0 };
    let mut workers = [nobody; 32];
    let mut count = 32;
    let list = |counts: [u32; 3], pinned, workers: *mut MzWorker, count: *mut u32| {
        let mut error = answer::details(None);
        // SAFETY: all pointers are to live values or are refused.
        unsafe {
            mz_linux_workers(counts[0], counts[1], counts[2], pinned, workers, count, &mut error)
        }
    };
    assert_eq!(list([2, 1, 3], 0, workers.as_mut_ptr(), &mut count), MZ_OK);
    assert_eq!(count, 6);
    assert!(workers[..6].iter().all(|worker| worker.core == MZ_ANY_CORE));
    let of = |role| workers.iter().filter(|worker| worker.roles == role).count();
    assert_eq!([1, 2, 4].map(of), [2, 1, 3]);
    count = 5;
    assert_eq!(list([2, 1, 3], 0, workers.as_mut_ptr(), &mut count), err(MzErr::MemoryTooSmall));
    assert_eq!(count, 6);
    assert_eq!(list([2, 1, 3], 2, workers.as_mut_ptr(), &mut count), err(MzErr::Unsupported));
    assert_eq!(list([2, 1, 3], 1, ptr::null_mut(), &mut count), INVALID);
    assert_eq!(list([2, 1, 3], 1, workers.as_mut_ptr(), ptr::null_mut()), INVALID);
    let limit = err(MzErr::LimitExceeded);
    assert_eq!(list([u32::MAX, 1, 3], 0, workers.as_mut_ptr(), &mut count), limit);
}

struct Opened {
    model: *mut MzModel,
    memory: Vec<u8>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the memory is still there; a model that was closed is refused.
        unsafe { mz_model_close(self.model) };
        self.memory.clear();
    }
}

fn no_config(path: &CString) -> MzModelConfig {
    // SAFETY: zeroes are a table.
    let mut config: MzModelConfig = unsafe { core::mem::zeroed() };
    config.struct_bytes = MzModelConfig::own_bytes();
    config.model_path = path.as_ptr();
    config
}

fn open(config: &MzModelConfig) -> Result<Opened, (c_int, String)> {
    let (mut error, mut bytes, mut model) = (answer::details(None), 0, ptr::null_mut());
    // SAFETY: all pointers are to live values or are refused.
    let result = unsafe { mz_model_required_bytes(config, &mut bytes, &mut error) };
    if result != MZ_OK {
        return Err((result, what(&error)));
    }
    let mut memory = vec![0xA5u8; bytes];
    let start: *mut c_void = memory.as_mut_ptr().cast();
    // SAFETY: as above.
    unsafe {
        let small = mz_model_open(config, start, bytes - 1, &mut model, &mut error);
        assert_eq!((small, what(&error)), (-12, format!("memory {bytes}")));
        assert_eq!(mz_model_open(config, ptr::null_mut(), bytes, &mut model, &mut error), INVALID);
        assert_eq!(mz_model_open(config, start, bytes, ptr::null_mut(), &mut error), INVALID);
        match mz_model_open(config, start, bytes, &mut model, &mut error) {
            MZ_OK => Ok(Opened { model, memory }),
            result => Err((result, what(&error))),
        }
    }
}

#[test]
fn models_refuse_what_they_cannot_be_opened_for() {
    let path = fixture();
    // SAFETY: zeroes are a table.
    let options: MzConfig = unsafe { core::mem::zeroed() };
    let options = MzConfig { struct_bytes: MzConfig::own_bytes(), ..options };
    let of_model = MzConfig { kv_heads: 1, ..options };
    let swapless = MzConfig { swap_file: 1, ..options };
    let long = MzConfig { context_tokens_max: 1 << 18, ..options };
    type Spoil<'a> = &'a dyn Fn(&mut MzModelConfig);
    let wrong: [(&str, Spoil<'_>); 9] = [
        ("mz_model_config.flags 2", &|config| config.flags = 2),
        ("mz_model_config.reserved 1", &|config| config.reserved = 1),
        ("mz_model_config.backend 3", &|config| config.backend = 3),
        ("mz_model_config.model_path 0", &|config| config.model_path = ptr::null()),
        ("model file 2", &|config| config.model_path = c"/nonexistent".as_ptr()),
        ("mz_model_config.options: model's fields 0", &|config| config.options = &of_model),
        ("mz_model_config.swap_path 0", &|config| config.options = &swapless),
        ("context_tokens_max 262144", &|config| config.options = &long),
        ("batch_tokens_max 0", &|config| config.batch_tokens_max = 1 << 30),
    ];
    for (expected, spoil) in wrong {
        let mut config = no_config(&path);
        spoil(&mut config);
        let refused = open(&config).map(|_| ()).unwrap_err();
        assert!(refused.0 < 0 && refused.1 == expected, "{expected}: {refused:?}");
    }
}

#[test]
fn a_model_is_told_from_other_memory_and_from_a_closed_one() {
    let path = fixture();
    let opened = open(&no_config(&path)).unwrap();
    let mut handle = ptr::null_mut();
    let mut tokens = 0;
    // SAFETY: zeroes are a table.
    let mut info: MzModelInfo = unsafe { core::mem::zeroed() };
    info.struct_bytes = MzModelInfo::own_bytes();
    let mut all = |model: *mut MzModel| {
        // SAFETY: every pointer is to a live value, or refused.
        unsafe {
            [
                mz_model_handle(model, &mut handle),
                mz_model_info_get(model, &mut info),
                mz_model_tokens(model, &mut tokens),
                mz_restore_generate(model, &5, 1, 0, None, ptr::null_mut(), ptr::null_mut()),
            ]
        }
    };
    assert_eq!(all(opened.model), [MZ_OK; 4]);
    let mut manager = ptr::null_mut();
    // SAFETY: both are live.
    assert_eq!(unsafe { mz_model_handle(opened.model, &mut manager) }, MZ_OK);
    assert_eq!(all(ptr::null_mut()), [INVALID; 4]);
    assert_eq!(all(opened.model.wrapping_byte_add(1)), [INVALID; 4]);
    assert_eq!(all(opened.memory.as_ptr().cast_mut().wrapping_add(256).cast()), [BAD_STATE; 4]);
    // SAFETY: as above.
    unsafe {
        assert_eq!(mz_close(manager), BAD_STATE);
        assert_eq!(mz_restore(manager), MZ_OK);
        let mut span = super::world::no_span();
        assert_eq!(super::super::leases::mz_wait_weights(manager, 0, &mut span), MZ_OK);
        assert_eq!(mz_model_close(opened.model), err(MzErr::Leased));
        assert_eq!(super::super::leases::mz_release_all(manager), MZ_OK);
        assert_eq!(mz_model_close(opened.model), MZ_OK);
        assert_eq!(mz_model_close(opened.model), BAD_STATE);
        assert_eq!(mz_restore(manager), BAD_STATE);
    }
    assert_eq!(all(opened.model), [BAD_STATE; 4]);
}

// SAFETY: only the library calls it.
unsafe extern "C" fn beyond(context: *mut c_void, _: *const f32, vocabulary: u32) -> i64 {
    // SAFETY: the context is a number of the test.
    i64::from(vocabulary) + unsafe { *context.cast::<i64>() }
}

#[test]
fn tokens_that_are_none_are_refused() {
    let path = fixture();
    let opened = open(&no_config(&path)).unwrap();
    let (model, mut generated, mut tokens) = (opened.model, 77, 0);
    let none = ptr::null_mut();
    // SAFETY: every pointer is to a live value, or refused.
    unsafe {
        let vast = [5, u32::MAX];
        let refused = mz_restore_generate(model, vast.as_ptr(), 2, 0, None, none, &mut generated);
        assert_eq!((refused, generated), (INVALID, 77));
        assert_eq!(mz_restore_generate(model, &5, 1, 3, None, none, none.cast()), INVALID);
        assert_eq!(mz_restore_generate(model, ptr::null(), 1, 0, None, none, none.cast()), INVALID);
        assert_eq!(mz_restore_sample(model, &5, 1, 1, None, none, &mut generated), INVALID);
        let mut more = 0i64;
        let context: *mut c_void = (&raw mut more).cast();
        let refused = mz_restore_sample(model, &5, 1, 1, Some(beyond), context, &mut generated);
        assert_eq!((refused, generated), (INVALID, 0));
        assert_eq!((mz_model_tokens(model, &mut tokens), tokens), (MZ_OK, 1));
        *context.cast::<i64>() = -100;
        let taken = mz_restore_sample(model, &5, 1, 2, Some(beyond), context, &mut generated);
        assert!(taken == MZ_OK && generated <= 2);
    }
}

// SAFETY: only the library calls it.
unsafe extern "C" fn hear(context: *mut c_void, token: u32) -> c_int {
    // SAFETY: the context is the test's list.
    unsafe { &mut *context.cast::<Vec<u32>>() }.push(token);
    0
}

fn generate(model: *mut MzModel) -> Vec<u32> {
    let mut heard: Vec<u32> = vec![];
    let (context, mut generated) = ((&raw mut heard).cast(), 0);
    let prompt = [5, 6, 7];
    // SAFETY: every pointer is to a live value.
    let result = unsafe {
        mz_restore_generate(model, prompt.as_ptr(), 3, 4, Some(hear), context, &mut generated)
    };
    assert_eq!((result, generated, heard.len()), (MZ_OK, 4, 4));
    heard
}

fn is_accelerated(model: *mut MzModel) -> bool {
    // SAFETY: zeroes are a table, the model is open.
    unsafe {
        let mut info: MzModelInfo = core::mem::zeroed();
        info.struct_bytes = MzModelInfo::own_bytes();
        assert_eq!(mz_model_info_get(model, &mut info), MZ_OK);
        info.is_accelerated == 1
    }
}

/// Where there is an OpenCL library, its answer is the processor's.
#[test]
fn models_fall_back_to_the_processor_if_they_may() {
    let path = fixture();
    let expected = generate(open(&no_config(&path)).unwrap().model);
    let mut config = no_config(&path);
    config.opencl_library = c"/nonexistent/library".as_ptr();
    config.backend = MzBackend::Auto as u32;
    let opened = open(&config).unwrap();
    assert!(!is_accelerated(opened.model));
    assert_eq!(generate(opened.model), expected);
    config.backend = MzBackend::OpenCl as u32;
    let refused = open(&config).map(|_| ()).unwrap_err().0;
    let expected_code = match cfg!(feature = "opencl") {
        true => MzErr::NoDevice,
        false => MzErr::Unsupported,
    };
    assert_eq!(refused, err(expected_code));
    config.opencl_library = ptr::null();
    config.backend = MzBackend::Auto as u32;
    assert_eq!(generate(open(&config).unwrap().model), expected);
}

/// A checkpoint that the second token asks for.
struct AtSecond {
    model: *mut MzModel,
    heard: u32,
    found: (c_int, u32),
}

const TAG: MzTag = MzTag { low: 5, high: 6 };

// SAFETY: only the library calls it.
unsafe extern "C" fn checkpoint_at_second(context: *mut c_void, _: u32) -> c_int {
    // SAFETY: the context is the test's, the report lives, the model is open.
    unsafe {
        let at = &mut *context.cast::<AtSecond>();
        at.heard += 1;
        if at.heard == 2 {
            let mut report: MzCheckpointReport = core::mem::zeroed();
            report.struct_bytes = MzCheckpointReport::own_bytes();
            let mut handle = ptr::null_mut();
            assert_eq!(mz_model_handle(at.model, &mut handle), MZ_OK);
            at.found = (mz_checkpoint(handle, TAG, 0, &mut report), report.durable_tokens);
        }
    }
    0
}

#[test]
fn a_checkpoint_while_a_token_is_heard_has_those_before_it() {
    let (path, swap) = (fixture(), scratch("heard"));
    let swap_path = c_text(&swap);
    // SAFETY: zeroes are a table.
    let mut options: MzConfig = unsafe { core::mem::zeroed() };
    options.struct_bytes = MzConfig::own_bytes();
    options.swap_file = 1;
    let mut config = no_config(&path);
    config.flags = MZ_KEEP_SWAP;
    config.options = &options;
    config.swap_path = swap_path.as_ptr();
    let opened = open(&config).unwrap();
    let mut at = AtSecond { model: opened.model, heard: 0, found: (1, 0) };
    let (context, mut generated) = ((&raw mut at).cast(), 0);
    let heard: MzHeard = Some(checkpoint_at_second);
    // SAFETY: every pointer is to a live value.
    unsafe {
        let prompt = [5, 6, 7];
        let done =
            mz_restore_generate(at.model, prompt.as_ptr(), 3, 4, heard, context, &mut generated);
        assert_eq!((done, generated, at.heard), (MZ_OK, 4, 4));
        // The prompt and the first token.
        assert_eq!(at.found, (MZ_OK, 4));
        drop(opened);
        let opened = open(&config).unwrap();
        let (mut handle, mut recovered) = (ptr::null_mut(), core::mem::zeroed::<MzRecovered>());
        recovered.struct_bytes = MzRecovered::own_bytes();
        assert_eq!(mz_model_handle(opened.model, &mut handle), MZ_OK);
        assert_eq!(mz_recover(handle, TAG, &mut recovered), MZ_OK);
        assert_eq!((recovered.tokens, recovered.lost), (4, u32::MAX));
    }
    std::fs::remove_file(swap).unwrap();
}
