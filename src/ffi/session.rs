//! What a `mz_model` points to: the library's own ports, a session, and a handle on its memory.
//!
//! Invariant: one thread at a time computes, the one that moved `busy`; calls with the handle come
//! from any thread, since they use the session's runtime alone. A model is closed with nobody in it
//! or in its handle, and drops session, threads and files, in this order.

use super::checkpoint::{self, MZ_KEEP_SWAP};
use super::config;
use super::door::{self, Head, Object, Visit};
use super::handle::{self, Handle};
use super::ports::{LogPort, check_flags};
use super::raw;
use super::tables::{MzBackend, MzModel, MzModelConfig, MzModelInfo};
use super::types::{MzConfig, MzHandle};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::infer::cpu::ComputeConfig;
use crate::infer::gguf::Gguf;
use crate::infer::{Model, Session, SessionConfig, SessionPorts};
use crate::limits::{CHUNK_TOKENS, CHUNKS_PER_LAYER_MAX};
use crate::port::linux::{FutexPark, HostPorts, MappedFile, ThreadTeam, map_arena, unmap_arena};
use crate::runtime::{self, Options};
use crate::sync::Word;
use crate::units::TokenCount;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};

const BATCH_TOKENS: u32 = 256;
const CONTEXT_TOKENS_MAX: u32 = CHUNKS_PER_LAYER_MAX as u32 * CHUNK_TOKENS as u32;

const IDLE: u32 = 0;
const BUSY: u32 = 1;

/// An open model.
#[repr(C)]
pub(super) struct Opened {
    head: Head,
    busy: Word,
    session: UnsafeCell<ManuallyDrop<Session>>,
    pub(super) handle: *mut MzHandle,
    host: *mut ManuallyDrop<HostPorts>,
    team: &'static ThreadTeam,
    pub(super) info: MzModelInfo,
    log: LogPort,
}

// SAFETY: the session is touched by who moved `busy`, and by `close`, which is alone; the pointers
// are used by `close` alone, and all else may be shared.
unsafe impl Sync for Opened {}

// SAFETY: it begins with a head.
unsafe impl Object for Opened {
    const MAGIC: u32 = 0x6D7A_6D6F;
    const NAME: &'static str = "model";
    const NOT_OPEN: &'static str = "model is not open";
    const BUSY: &'static str = "model: other calls are running";
}

/// What a model is opened for.
pub(super) struct Wanted<'a> {
    model_path: &'a CStr,
    swap_path: Option<&'a CStr>,
    flags: u32,
    options: Options<'a>,
    compute: ComputeConfig,
    backend: Backend<'a>,
    log: LogPort,
}

/// Where to compute.
#[derive(Clone, Copy)]
enum Backend<'a> {
    Cpu(PhantomData<&'a ()>),
    #[cfg(feature = "opencl")]
    OpenCl(super::accelerator::Wanted<'a>),
}

/// Reads the table and runs `body` with what it means.
///
/// # Safety
///
/// If `config` is not null and aligned, it is readable as a `mz_model_config`, and so is all that
/// it refers to; nobody changes it during the call.
pub(super) unsafe fn with<R>(
    config: *const MzModelConfig,
    body: impl FnOnce(&Wanted<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: the caller's promise.
    let table = unsafe { raw::read(config) }?;
    check_flags(table.flags & !MZ_KEEP_SWAP, "mz_model_config.flags")?;
    check_flags(table.reserved, "mz_model_config.reserved")?;
    // SAFETY: the caller's promise.
    let model_path = unsafe { raw::text(table.model_path, "mz_model_config.model_path") }?;
    // SAFETY: the caller's promise.
    let swap_path = unsafe { raw::optional_text(table.swap_path, "mz_model_config.swap_path") }?;
    // SAFETY: the caller's promise.
    let options = match unsafe { raw::read_optional(table.options) }? {
        Some(options) => options,
        None => raw::zeroed(),
    };
    check_options(&options, swap_path.is_some())?;
    let or = |value, default| if value == 0 { default } else { value };
    let batch = or(table.batch_tokens_max, BATCH_TOKENS);
    let compute = ComputeConfig {
        batch_tokens_max: usize::try_from(batch).unwrap_or(usize::MAX),
        logit_rows_max: 1,
        workers_max: usize::try_from(or(table.compute_threads, 1)).unwrap_or(usize::MAX),
    };
    // SAFETY: the caller's promise.
    let (log, backend) = unsafe { (LogPort::read(table.log)?, backend(&table)?) };
    let run = |options: Options<'_>| {
        let options = Options { swap_file: swap_path.is_some(), ..options };
        let flags = table.flags;
        body(&Wanted { model_path, swap_path, flags, options, compute, backend, log })
    };
    // SAFETY: the caller's promise.
    unsafe { config::with_options(&options, run) }
}

/// Fields that the model file answers must be left alone.
fn check_options(options: &MzConfig, has_swap: bool) -> Result<()> {
    let of_model = [
        options.kv_layers,
        options.kv_heads,
        options.head_dim,
        options.weight_units,
        options.extent_count,
    ];
    let has_arrays = !options.extents.is_null() || !options.extents_per_unit.is_null();
    if has_arrays || of_model.iter().any(|value| *value != 0) {
        return Err(Error::new(Code::InvalidArgument, "mz_model_config.options: model's fields"));
    }
    if options.swap_file != 0 && !has_swap {
        return Err(Error::new(Code::InvalidArgument, "mz_model_config.swap_path"));
    }
    Ok(())
}

/// # Safety
///
/// As for [`with`].
unsafe fn backend(table: &MzModelConfig) -> Result<Backend<'_>> {
    const CPU: u32 = MzBackend::Cpu as u32;
    const OPENCL: u32 = MzBackend::OpenCl as u32;
    const AUTO: u32 = MzBackend::Auto as u32;
    match table.backend {
        CPU => Ok(Backend::Cpu(PhantomData)),
        #[cfg(feature = "opencl")]
        // SAFETY: the caller's promise.
        OPENCL | AUTO => Ok(Backend::OpenCl(unsafe { super::accelerator::wanted(table) }?)),
        #[cfg(not(feature = "opencl"))]
        AUTO => Ok(Backend::Cpu(PhantomData)),
        #[cfg(not(feature = "opencl"))]
        OPENCL => Err(Error::new(Code::Unsupported, "this archive has no feature opencl")),
        other => Err(Error::new(Code::Unsupported, "mz_model_config.backend").with(other)),
    }
}

/// A mapping that goes with its scope.
struct Scratch(NonNull<[MaybeUninit<u8>]>);

impl Scratch {
    fn map(bytes: usize) -> Result<Self> {
        Ok(Scratch(NonNull::from(map_arena(bytes)?)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: it is a whole mapping, and `required` lets nothing out that lies in it.
        unsafe { unmap_arena(self.0) };
    }
}

/// Bytes of what is placed here, and of the session.
struct Sizes {
    own: usize,
    session: usize,
}

impl Sizes {
    fn all(&self) -> Result<usize> {
        let all = self.own.checked_add(self.session);
        all.ok_or(Error::new(Code::LimitExceeded, "memory"))
    }
}

impl<'a> Wanted<'a> {
    fn session(&self, model: &Model) -> SessionConfig<'a> {
        let mut options = self.options;
        if options.context_tokens_max.get() == 0 {
            let own = model.shape.context_tokens.min(CONTEXT_TOKENS_MAX);
            options.context_tokens_max = TokenCount::new(own);
        }
        SessionConfig { options, compute: self.compute }
    }

    fn sizes(&self) -> Result<Sizes> {
        let file = MappedFile::open(self.model_path)?;
        let gguf = Gguf::parse(&file)?;
        let mut own = Sizer::new();
        own.value::<ManuallyDrop<HostPorts>>()?;
        own.value::<ThreadTeam>()?;
        Model::size(&gguf, &mut own)?;
        let mut scratch = Scratch::map(own.required()?)?;
        // SAFETY: the mapping is fresh, and nothing outlives `scratch` but numbers.
        let memory: &'static mut [_] = unsafe { scratch.0.as_mut() };
        let model = Model::open(&gguf, &mut Arena::new(memory)?)?;
        let config = self.session(&model);
        handle::size(&mut own, &runtime_config(&model, &config))?;
        own.value::<Opened>()?;
        #[cfg(feature = "opencl")]
        super::accelerator::size(&mut own)?;
        let on_cpu = Session::required_bytes(&model, &config)?;
        let session = match self.backend {
            Backend::Cpu(_) => on_cpu,
            #[cfg(feature = "opencl")]
            Backend::OpenCl(_) => on_cpu.max(Session::required_bytes_on(&model, &config)?),
        };
        Ok(Sizes { own: own.required()?, session })
    }
}

fn runtime_config<'a>(model: &'a Model, config: &SessionConfig<'a>) -> runtime::Config<'a> {
    runtime::Config { shape: model.shape.kv(), weights: model.units, options: config.options }
}

/// Bytes that [`open`] needs, at any alignment.
pub(super) fn required_bytes(wanted: &Wanted<'_>) -> Result<usize> {
    wanted.sizes()?.all()
}

/// Opens a model in the caller's memory.
///
/// # Safety
///
/// As for `mz_model_open`.
pub(super) unsafe fn open(
    wanted: &Wanted<'_>,
    memory: *mut MaybeUninit<u8>,
    bytes: usize,
) -> Result<*mut MzModel> {
    let sizes = wanted.sizes()?;
    if bytes < sizes.all()? {
        return Err(Error::new(Code::MemoryTooSmall, "memory").with(sizes.all()?));
    }
    let steps = wanted.options.steps.unwrap_or_default();
    raw::check_apart(memory, bytes, &[raw::extent(steps.as_ptr(), steps.len())])?;
    // SAFETY: the caller's promise; an error gives the memory back, and so does `close`.
    let memory = unsafe { raw::memory(memory, bytes) }?;
    let (own, session) = memory.split_at_mut(sizes.own);
    let mut arena = Arena::new(own)?;
    let what = "mz_model_config.flags";
    let host = checkpoint::host(wanted.model_path, wanted.swap_path, wanted.flags, what)?;
    let host: *mut ManuallyDrop<HostPorts> = arena.value(ManuallyDrop::new(host))?;
    // SAFETY: it lives in the caller's memory, and is only shared until it is dropped below or in
    // `close`.
    let shared: &'static HostPorts = unsafe { &*host };
    let team: &'static ThreadTeam = arena.value(ThreadTeam::new(shared.threads(), &FutexPark))?;
    let opened = place(wanted, &mut arena, session, shared, team, host);
    if opened.is_err() {
        team.close();
        // SAFETY: threads and session are gone, so nothing refers to it.
        unsafe { ManuallyDrop::drop(&mut *host) };
    }
    opened
}

fn place(
    wanted: &Wanted<'_>,
    arena: &mut Arena,
    memory: &'static mut [MaybeUninit<u8>],
    shared: &'static HostPorts,
    team: &'static ThreadTeam,
    host: *mut ManuallyDrop<HostPorts>,
) -> Result<*mut MzModel> {
    let model = {
        let file = MappedFile::open(wanted.model_path)?;
        Model::open(&Gguf::parse(&file)?, arena)?
    };
    let config = wanted.session(&model);
    team.open(wanted.compute.workers_max)?;
    let ports = SessionPorts { runtime: shared.ports(), rows: shared.rows(), team };
    let opening = Opening { model, config, memory, ports };
    let (session, is_accelerated) = open_session(wanted, arena, opening)?;
    let log = wanted.log;
    let config = runtime_config(&model, &config);
    let lent = handle::lend(arena, &config, session.runtime(), &FutexPark, log)?;
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let opened = arena.value(Opened {
        head: Head::new(),
        busy: Word::new(IDLE),
        session: UnsafeCell::new(ManuallyDrop::new(session)),
        handle: lent,
        host,
        team,
        info: MzModelInfo {
            struct_bytes: 0,
            layers: model.shape.layers.into(),
            vocabulary: number(model.shape.vocabulary),
            context_tokens_max: config.options.context_tokens_max.get(),
            batch_tokens_max: number(wanted.compute.batch_tokens_max),
            is_accelerated: u32::from(is_accelerated),
        },
        log,
    })?;
    opened.open();
    Ok(ptr::from_mut(opened).cast())
}

/// All that a session is opened with.
pub(super) struct Opening<'a> {
    pub(super) model: Model,
    pub(super) config: SessionConfig<'a>,
    pub(super) memory: &'static mut [MaybeUninit<u8>],
    pub(super) ports: SessionPorts,
}

impl Opening<'_> {
    /// On the processor.
    pub(super) fn on_cpu(self) -> Result<Session> {
        Session::open(self.model, &self.config, self.memory, self.ports)
    }
}

/// The session, and whether an accelerator computes.
fn open_session(
    wanted: &Wanted<'_>,
    arena: &mut Arena,
    opening: Opening<'_>,
) -> Result<(Session, bool)> {
    #[cfg(feature = "opencl")]
    if let Backend::OpenCl(device) = wanted.backend {
        return super::accelerator::open(&device, wanted.log, arena, opening);
    }
    let _ = (wanted, arena);
    Ok((opening.on_cpu()?, false))
}

/// The session of an open model, for one thread at a time.
pub(super) struct Turn<'v>(&'v Visit<Opened>);

impl<'v> Turn<'v> {
    /// `BadState` while another thread computes, or the same one, in a callback.
    pub(super) fn take(visit: &'v Visit<Opened>) -> Result<Self> {
        match visit.busy.replace(IDLE, BUSY) {
            true => Ok(Turn(visit)),
            false => Err(Error::new(Code::BadState, "model: another call computes")),
        }
    }

    /// The open model.
    pub(super) fn opened(&self) -> &'static Opened {
        self.0.object()
    }
}

impl Deref for Turn<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        // SAFETY: this is the thread that moved `busy`, and the model is open while it is inside.
        unsafe { &*self.0.session.get() }
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        // SAFETY: as above; the turn is borrowed, so there is no other reference.
        unsafe { &mut *self.0.session.get() }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.store(IDLE);
    }
}

impl Opened {
    /// Remembers why a call failed, where `mz_last_error` finds it.
    pub(super) fn note(&self, error: Error) {
        // SAFETY: the handle lies in the model's memory and is open as long as the model.
        if let Ok(handle) = unsafe { door::find(self.handle.cast::<Handle>()) } {
            handle.note(error);
        }
    }
}

/// Ends a model and gives its memory back to the caller.
///
/// # Safety
///
/// As for [`door::find`].
pub(super) unsafe fn close(model: *mut MzModel) -> Result<()> {
    let pointer = model.cast::<Opened>();
    let (host, team) = {
        // SAFETY: the caller's promise.
        let opened = unsafe { door::find(pointer) }?;
        opened.shut()?;
        // SAFETY: the handle lies in the model's memory.
        let retired = unsafe { door::find(opened.handle.cast::<Handle>()) };
        if let Err(error) = retired.and_then(Handle::retire) {
            opened.reopen();
            return Err(error);
        }
        opened.end();
        opened.log.info(c"closed", "", 0);
        (opened.host, opened.team)
    };
    // SAFETY: nobody is inside the model or its handle, and none can come in since both were shut;
    // neither is found any more, so this happens once.
    unsafe { ManuallyDrop::drop((*pointer).session.get_mut()) };
    team.close();
    // SAFETY: the session and the team were all that used it.
    unsafe { ManuallyDrop::drop(&mut *host) };
    Ok(())
}
