//! The library's own ports for Linux and Android, as callback tables that C passes on to `mz_open`.
//!
//! They lie in the caller's memory: files, threads and the tables, whose contexts all point there.
//! Invariant: `mz_ports_close` refuses while a handle uses them, so a callback always finds them
//! open. A caller may replace single tables, such as the memory's, before `mz_open`.

mod buffers;

use super::config;
use super::door::{self, Head, Object};
use super::outside;
use super::own_memory;
use super::ports::{Context, Owner, missing};
use super::raw::{self, Place, Places, Table, Tables};
use super::tables::{
    MzClock, MzLinuxConfig, MzMemory, MzMeter, MzPark, MzPorts, MzStorage, MzThreads,
};
use super::threads::{Run, Slot, Slots};
use super::types::{MZ_ANY_CORE, MzError, MzWorker};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::WORKERS_MAX;
use crate::port::affinity::CoreMap;
use crate::port::linux::{FutexPark, HostPorts, THREADS_MAX, host_topology};
use crate::port::{Body, Park, Ports, SharedMemory, Storage, ThreadId, ThreadSpec};
use crate::runtime::{WorkerCounts, WorkerList};
use crate::sync::Word;
use crate::units::Nanos;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;

/// What a thread runs: a function of C and its argument.
#[derive(Clone, Copy)]
struct Work(Run, *mut c_void);

// SAFETY: who asked for the thread gives the argument to it.
unsafe impl Send for Work {}

impl Body for Slot<Work> {
    fn run(&self) {
        if let Some(Work(run, argument)) = self.work() {
            // SAFETY: who asked for the thread promises that the function takes this argument.
            unsafe { run(argument) };
        }
    }
}

/// Files, threads, and the tables that lead to them.
#[repr(C)]
pub(super) struct LinuxPorts {
    owner: Owner,
    host: ManuallyDrop<HostPorts>,
    /// An accelerator's, in the place of the machine's.
    memory: Option<&'static dyn SharedMemory>,
    threads: Slots<Work, THREADS_MAX>,
    tables: LinuxTables,
}

struct LinuxTables {
    model: MzStorage,
    swap: Option<MzStorage>,
    memory: MzMemory,
    clock: MzClock,
    park: MzPark,
    threads: MzThreads,
    meter: MzMeter,
}

impl LinuxPorts {
    /// Not open yet; `drop` ends whatever begins with it.
    pub(super) fn new(host: HostPorts, drop: unsafe fn(*mut Owner)) -> Self {
        LinuxPorts {
            owner: Owner { head: Head::new(), drop },
            host: ManuallyDrop::new(host),
            memory: None,
            threads: Slots::new(),
            tables: tables(ptr::null_mut(), false, false),
        }
    }

    /// Opens them where they lie, with an accelerator's shared buffers or with the machine's; what
    /// C gets of them.
    ///
    /// # Safety
    ///
    /// They lie in the caller's memory, nobody else has seen them, and from here on they are only
    /// ever shared until they are dropped.
    pub(super) unsafe fn open(
        own: *mut Self,
        has_swap: bool,
        memory: Option<&'static dyn SharedMemory>,
    ) -> MzPorts {
        // SAFETY: the caller's promise.
        let this = unsafe { &mut *own };
        this.memory = memory;
        let takes_turns = memory.is_some() || this.host.takes_turns();
        this.tables = tables(own.cast(), has_swap, takes_turns);
        // SAFETY: as above.
        let this = unsafe { &*own };
        this.owner.open();
        let tables = &this.tables;
        MzPorts {
            struct_bytes: MzPorts::own_bytes(),
            flags: 0,
            model: &raw const tables.model,
            swap: tables.swap.as_ref().map_or(ptr::null(), ptr::from_ref),
            memory: &raw const tables.memory,
            clock: &raw const tables.clock,
            park: &raw const tables.park,
            threads: &raw const tables.threads,
            meter: &raw const tables.meter,
            log: ptr::null(),
            owner: own.cast(),
        }
    }

    /// Closes the files.
    ///
    /// # Safety
    ///
    /// It happens once, and nobody uses the ports any more.
    pub(super) unsafe fn drop(own: *mut Owner) {
        // SAFETY: the caller's promise. Ports begin with their owner.
        unsafe { ManuallyDrop::drop(&mut (*own.cast::<Self>()).host) };
    }
}

/// The ports behind a callback's context.
///
/// # Safety
///
/// The context is one that [`tables`] was given, and its ports are open.
pub(super) unsafe fn ports(context: Context) -> Ports {
    // SAFETY: the caller's promise; open ports are only ever shared.
    let own: &'static LinuxPorts = unsafe { &*context.cast::<LinuxPorts>() };
    let machine = own.host.ports();
    Ports { memory: own.memory.unwrap_or(machine.memory), ..machine }
}

/// An error as a callback's answer.
fn answer(error: Error) -> i64 {
    match error.code {
        Code::Io if error.value >= 0 => -1000 - error.value,
        code => -i64::from(code as i32),
    }
}

pub(super) fn done(result: Result<()>) -> i64 {
    result.map_or_else(answer, |()| 0)
}

fn number(result: Result<u64>) -> i64 {
    result.map_or_else(answer, |value| i64::try_from(value).unwrap_or(i64::MAX))
}

/// One of the two files.
trait File {
    fn of(ports: &Ports) -> Option<&'static dyn Storage>;
}

struct ModelFile;
struct SwapFile;

impl File for ModelFile {
    fn of(ports: &Ports) -> Option<&'static dyn Storage> {
        Some(ports.model)
    }
}

impl File for SwapFile {
    fn of(ports: &Ports) -> Option<&'static dyn Storage> {
        ports.swap
    }
}

/// # Safety
///
/// As for [`ports`].
unsafe fn file<F: File>(context: Context) -> Result<&'static dyn Storage> {
    // SAFETY: the caller's promise.
    F::of(&unsafe { ports(context) }).ok_or(Error::new(Code::BadState, "swap file"))
}

// SAFETY: see `mz_storage`; the context is of the table that has this callback.
unsafe extern "C" fn read<F: File>(
    context: Context,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: the caller of the callback gives `bytes` writable bytes, which it initialised.
    let into = unsafe { core::slice::from_raw_parts_mut(into.cast::<u8>(), bytes) };
    // SAFETY: the table's own context.
    let file = unsafe { file::<F>(context) };
    number(file.and_then(|file| file.read_at(offset, into)).map(|count| count as u64))
}

// SAFETY: as for `read`.
unsafe extern "C" fn write<F: File>(
    context: Context,
    offset: u64,
    from: *const c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: the caller of the callback gives `bytes` readable bytes.
    let from = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    // SAFETY: the table's own context.
    done(unsafe { file::<F>(context) }.and_then(|file| file.write_at(offset, from)))
}

// SAFETY: as for `read`.
unsafe extern "C" fn sync<F: File>(context: Context) -> i64 {
    // SAFETY: the table's own context.
    done(unsafe { file::<F>(context) }.and_then(|file| file.sync()))
}

// SAFETY: as for `read`.
unsafe extern "C" fn discard<F: File>(context: Context, offset: u64, bytes: u64) -> i64 {
    // SAFETY: the table's own context.
    done(unsafe { file::<F>(context) }.and_then(|file| file.discard(offset, bytes)))
}

// SAFETY: as for `read`.
unsafe extern "C" fn length<F: File>(context: Context) -> i64 {
    // SAFETY: the table's own context.
    number(unsafe { file::<F>(context) }.and_then(|file| file.length()))
}

// SAFETY: as for `read`.
unsafe extern "C" fn direct<F: File>(context: Context) -> i64 {
    // SAFETY: the table's own context.
    number(unsafe { file::<F>(context) }.map(|file| u64::from(file.is_direct())))
}

// SAFETY: see `mz_clock`.
unsafe extern "C" fn now(context: Context) -> u64 {
    // SAFETY: the table's own context.
    unsafe { ports(context) }.clock.now().get()
}

// SAFETY: see `mz_park`.
unsafe extern "C" fn wait(_: Context, word: *const u32, expected: u32, timeout_ns: u64) {
    // SAFETY: the caller of the callback gives a live atomic word, and `Word` is just that.
    let word = unsafe { &*word.cast::<Word>() };
    let timeout = (timeout_ns != u64::MAX).then_some(Nanos::new(timeout_ns));
    FutexPark.wait(word, expected, timeout);
}

// SAFETY: see `mz_park`.
unsafe extern "C" fn wake(_: Context, word: *const u32) {
    // SAFETY: as in `wait`.
    FutexPark.wake_all(unsafe { &*word.cast::<Word>() });
}

// SAFETY: see `mz_threads`; the context is of the table that has this callback.
unsafe extern "C" fn spawn(
    context: Context,
    name: *const c_char,
    stack_bytes: usize,
    run: Option<Run>,
    argument: *mut c_void,
    thread: *mut u64,
) -> i64 {
    // SAFETY: the table's own context; open ports are only ever shared, and do not move.
    let own: &'static LinuxPorts = unsafe { &*context.cast::<LinuxPorts>() };
    // SAFETY: the caller of the callback gives a text that ends with a 0 byte.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("mz");
    let Some(run) = run else { return answer(missing("run")) };
    let started = own.threads.start(Work(run, argument), |slot| {
        // SAFETY: the slot is one of `own.threads`, which lives as long as the thread.
        let slot: &'static Slot<Work> = unsafe { &*ptr::from_ref(slot) };
        Ok(own.host.threads().spawn(ThreadSpec { name, stack_bytes }, slot)?.0)
    });
    done(started.map(|place| {
        // SAFETY: the caller of the callback gives a place for it.
        unsafe { thread.write(place) };
    }))
}

// SAFETY: as for `spawn`.
unsafe extern "C" fn join(context: Context, thread: u64) {
    // SAFETY: as in `spawn`.
    let own: &'static LinuxPorts = unsafe { &*context.cast::<LinuxPorts>() };
    own.threads.finish(thread, |number| own.host.threads().join(ThreadId(number)));
}

// SAFETY: as for `spawn`.
unsafe extern "C" fn pin(context: Context, core: u32) -> i64 {
    // SAFETY: as in `spawn`.
    let own: &'static LinuxPorts = unsafe { &*context.cast::<LinuxPorts>() };
    let absent = Error::new(Code::InvalidArgument, "core").with(core);
    let core = u16::try_from(core).map_err(|_| absent);
    done(core.and_then(|core| own.host.threads().pin(core)))
}

// SAFETY: see `mz_meter`; the context is of the table that has this callback.
unsafe extern "C" fn resident(context: Context) -> i64 {
    // SAFETY: the table's own context.
    let meter = unsafe { ports(context) }.meter;
    number(meter.ok_or(missing("meter")).and_then(|meter| meter.resident_bytes()))
}

fn storage<F: File>(context: Context) -> MzStorage {
    MzStorage {
        struct_bytes: MzStorage::own_bytes(),
        flags: 0,
        context,
        read: Some(read::<F>),
        write: Some(write::<F>),
        sync: Some(sync::<F>),
        discard: Some(discard::<F>),
        length: Some(length::<F>),
        direct: Some(direct::<F>),
    }
}

fn tables(context: Context, has_swap: bool, takes_turns: bool) -> LinuxTables {
    let flags = 0;
    LinuxTables {
        model: storage::<ModelFile>(context),
        swap: has_swap.then(|| storage::<SwapFile>(context)),
        memory: own_memory::table(context, takes_turns),
        clock: MzClock { struct_bytes: MzClock::own_bytes(), flags, context, now: Some(now) },
        park: MzPark {
            struct_bytes: MzPark::own_bytes(),
            flags,
            context,
            wait: Some(wait),
            wake: Some(wake),
        },
        threads: MzThreads {
            struct_bytes: MzThreads::own_bytes(),
            flags,
            context,
            spawn: Some(spawn),
            join: Some(join),
            pin: Some(pin),
        },
        meter: MzMeter {
            struct_bytes: MzMeter::own_bytes(),
            flags,
            context,
            resident: Some(resident),
        },
    }
}

fn required_bytes() -> Result<usize> {
    let mut sizer = Sizer::new();
    sizer.value::<LinuxPorts>()?;
    sizer.required()
}

fn open(config: &MzLinuxConfig, memory: &'static mut [MaybeUninit<u8>]) -> Result<MzPorts> {
    super::ports::check_flags(config.reserved, "mz_linux_config.reserved")?;
    let kind = buffers::kind(config.memory)?;
    // SAFETY: who calls from C promises that paths are texts.
    let model = unsafe { raw::text(config.model_path, "mz_linux_config.model_path") }?;
    // SAFETY: as above.
    let swap = unsafe { raw::optional_text(config.swap_path, "mz_linux_config.swap_path") }?;
    let host = super::checkpoint::host(model, swap, config.flags, "mz_linux_config.flags")?;
    let host = host.with_memory(kind)?;
    let own = Arena::new(memory)?.value(LinuxPorts::new(host, LinuxPorts::drop))?;
    // SAFETY: they were just placed.
    Ok(unsafe { LinuxPorts::open(own, swap.is_some(), None) })
}

/// How much memory mz_ports_linux needs, at any alignment. In archives with the feature host.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_ports_linux_required_bytes(
    bytes: *mut usize,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        unsafe { Place::new(bytes, "bytes") }?.set(required_bytes()?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Opens the library's own ports for Linux and Android in the caller's memory, which belongs to
/// them until mz_ports_close has succeeded, and fills in *ports with their tables: files by direct
/// I/O, memory as mz_linux_config says, monotonic time, futexes, threads, and a meter. Any number
/// of handles may use them; single tables may be replaced before mz_open. In archives with the
/// feature host.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_ports_linux(
    config: *const MzLinuxConfig,
    memory: *mut c_void,
    bytes: usize,
    ports: *mut MzPorts,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let (place, config) = unsafe { (Tables::one(ports)?, raw::read(config)?) };
        let required = required_bytes()?;
        if bytes < required {
            return Err(Error::new(Code::MemoryTooSmall, "memory").with(required));
        }
        raw::check_apart(memory.cast(), bytes, &[raw::extent(ports, 1), raw::extent(error, 1)])?;
        // SAFETY: the caller's promise; an error gives the memory back, and so does the end.
        place.write(0, &open(&config, unsafe { raw::memory(memory.cast(), bytes) }?)?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Closes the library's own ports and their files, and gives their memory back to the caller.
/// MZ_ERR_BAD_STATE while a handle uses them, or when they are closed; MZ_ERR_INVALID_ARGUMENT for
/// ports of the caller's own. In archives with the feature host.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_ports_close(ports: *const MzPorts, error: *mut MzError) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let owner = unsafe { raw::read(ports) }?.owner.cast::<Owner>();
        let drop = {
            // SAFETY: the caller's promise.
            let own = unsafe { door::find(owner) }?;
            own.shut()?;
            own.end();
            own.drop
        };
        // SAFETY: nobody uses them, and nobody finds them any more, so this happens once.
        unsafe { drop(owner) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Worker threads of one role each for mz_config.workers, as many of each as asked for; pinned 1:
/// kept on this machine's cores by their rank (the big ones read and unpack, the middle ones
/// allocate, the little ones do nothing), where it has cores of different kinds. Role and core
/// counts bound each other, so there may be fewer. *count is the room in workers, and becomes their
/// number. In archives with the feature host.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_linux_workers(
    allocate: u32,
    read: u32,
    unpack: u32,
    pinned: u32,
    workers: *mut MzWorker,
    count: *mut u32,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let count = unsafe { Place::new(count, "count") }?;
        let room = usize::try_from(count.get()).unwrap_or(usize::MAX);
        // SAFETY: the caller's promise.
        let places = unsafe { Places::new(workers, room, "workers") }?;
        let map = match config::switch(pinned, "pinned")? {
            true => CoreMap::rank(&host_topology()),
            false => CoreMap::ANYWHERE,
        };
        let most = |count: u32| usize::try_from(count).unwrap_or(WORKERS_MAX).min(WORKERS_MAX + 1);
        let counts =
            WorkerCounts { allocate: most(allocate), read: most(read), unpack: most(unpack) };
        let list = WorkerList::new(&map, counts)?;
        count.set(u32::try_from(list.len()).unwrap_or(u32::MAX));
        if list.len() > room {
            return Err(Error::new(Code::MemoryTooSmall, "workers").with(list.len()));
        }
        for (index, worker) in list.iter().enumerate() {
            let core = worker.core.map_or(MZ_ANY_CORE, u32::from);
            let (roles, helps) = (worker.roles.bits().into(), worker.helps.bits().into());
            places.set(index, MzWorker { roles, core, helps });
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}
