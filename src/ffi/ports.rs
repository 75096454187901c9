//! Callback tables as ports.
//!
//! Invariant: whatever a callback answers, the port keeps the contract of its trait as far as that
//! can be checked: counts are within what was asked for, regions are aligned and large enough, and
//! after a failed sync no write is passed on. A callback's own error number travels in
//! [`Error::value`], not interpreted.

use super::answer;
use super::door::{Head, Object, Visit};
use super::memory::MemoryPort;
use super::raw;
use super::tables::{MzClock, MzLevel, MzLog, MzMeter, MzPark, MzPorts, MzStorage};
use super::threads::ThreadsPort;
use super::types::MzError;
use crate::error::{Code, Error, Result};
use crate::port::{Clock, Meter, Park, Storage};
use crate::sync::{Flag, Word};
use crate::units::Nanos;
use core::ffi::{CStr, c_char, c_void};

/// `MZ_PORT_ERROR(n)` is this less `n`.
const OWN_ERRORS: i64 = -1000;

/// What a callback's answer means: a count, one of `MZ_ERR_*`, or an error number of its own.
pub(super) fn count(value: i64, what: &'static str) -> Result<u64> {
    if let Ok(count) = u64::try_from(value) {
        return Ok(count);
    }
    let code = i32::try_from(value.saturating_neg()).ok().and_then(Code::from_number);
    Err(match code {
        Some(code) => Error::new(code, what),
        None if value <= OWN_ERRORS => Error::new(Code::Io, what).with(OWN_ERRORS - value),
        None => Error::new(Code::Io, what).with(value),
    })
}

/// The answer of a callback that has nothing to count.
pub(super) fn done(value: i64, what: &'static str) -> Result<()> {
    match count(value, what)? {
        0 => Ok(()),
        count => Err(Error::new(Code::Io, what).with(count)),
    }
}

pub(super) fn missing(what: &'static str) -> Error {
    Error::new(Code::InvalidArgument, what)
}

pub(super) fn check_flags(flags: u32, what: &'static str) -> Result<()> {
    if flags == 0 { Ok(()) } else { Err(Error::new(Code::Unsupported, what).with(flags)) }
}

pub(super) type Context = *mut c_void;

/// The tables of one handle, as they came.
pub(super) struct Tables {
    pub(super) model: StoragePort,
    pub(super) swap: Option<StoragePort>,
    pub(super) memory: MemoryPort,
    pub(super) clock: ClockPort,
    pub(super) park: ParkPort,
    pub(super) threads: Option<ThreadsPort>,
    pub(super) meter: Option<MeterPort>,
}

/// What belongs to the handle itself.
pub(super) struct Company {
    /// Keeps the library's own ports open, where they are.
    pub(super) owner: Option<Visit<Owner>>,
    pub(super) log: LogPort,
    /// Whether somebody else ends the runtime.
    pub(super) is_lent: bool,
}

/// What the library's own ports begin with.
#[repr(C)]
pub(super) struct Owner {
    pub(super) head: Head,
    /// Drops the ports that begin with it, once, with nobody inside.
    pub(super) drop: unsafe fn(*mut Owner),
}

// SAFETY: it is a head.
unsafe impl Object for Owner {
    const MAGIC: u32 = 0x6D7A_6F77;
    const NAME: &'static str = "mz_ports.owner";
    const NOT_OPEN: &'static str = "mz_ports: closed";
    const BUSY: &'static str = "mz_ports: a handle uses them";
}

impl Tables {
    /// Reads all tables.
    ///
    /// # Safety
    ///
    /// If `ports` is not null and aligned, it is readable as a `mz_ports`, and so are the tables it
    /// refers to. The callbacks do what `linker/mzcache.h` says, until the handle is closed.
    pub(super) unsafe fn read(ports: *const MzPorts) -> Result<(Self, Company)> {
        // SAFETY: the caller's promise.
        let ports = unsafe { raw::read(ports) }?;
        check_flags(ports.flags, "mz_ports.flags")?;
        // SAFETY: the caller's promise.
        let model = StoragePort::new(unsafe { raw::read(ports.model) }?, false, "model file")?;
        // SAFETY: the caller's promise.
        let swap = match unsafe { raw::read_optional(ports.swap) }? {
            Some(table) => Some(StoragePort::new(table, true, "swap file")?),
            None => None,
        };
        // SAFETY: the caller's promise.
        let memory = MemoryPort::new(unsafe { raw::read(ports.memory) }?)?;
        // SAFETY: the caller's promise.
        let clock = ClockPort::new(&unsafe { raw::read(ports.clock) }?)?;
        // SAFETY: the caller's promise.
        let park = match unsafe { raw::read_optional(ports.park) }? {
            Some(table) => ParkPort::new(&table)?,
            None => ParkPort::Spin,
        };
        // SAFETY: the caller's promise.
        let threads = match unsafe { raw::read_optional(ports.threads) }? {
            Some(table) => Some(ThreadsPort::new(&table)?),
            None => None,
        };
        // SAFETY: the caller's promise.
        let meter = match unsafe { raw::read_optional(ports.meter) }? {
            Some(table) => Some(MeterPort::new(&table)?),
            None => None,
        };
        // SAFETY: the caller's promise.
        let log = unsafe { LogPort::read(ports.log) }?;
        let owner = match ports.owner.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Visit::enter(ports.owner.cast::<Owner>()) }?),
        };
        let tables = Tables { model, swap, memory, clock, park, threads, meter };
        Ok((tables, Company { owner, log, is_lent: false }))
    }
}

/// A file behind callbacks.
pub(super) struct StoragePort {
    table: MzStorage,
    read: unsafe extern "C" fn(Context, u64, *mut c_void, usize) -> i64,
    length: unsafe extern "C" fn(Context) -> i64,
    poisoned: Flag,
    what: &'static str,
}

// SAFETY: the table's author promises that the callbacks may be called from any thread; the context
// is only handed to them.
unsafe impl Sync for StoragePort {}
// SAFETY: as above.
unsafe impl Send for StoragePort {}

impl StoragePort {
    fn new(table: MzStorage, is_swap: bool, what: &'static str) -> Result<Self> {
        check_flags(table.flags, "mz_storage.flags")?;
        let read = table.read.ok_or(missing("mz_storage.read"))?;
        let length = table.length.ok_or(missing("mz_storage.length"))?;
        if is_swap && table.write.is_none() {
            return Err(missing("mz_storage.write"));
        }
        if is_swap && table.sync.is_none() {
            return Err(missing("mz_storage.sync"));
        }
        Ok(StoragePort { table, read, length, poisoned: Flag::new(), what })
    }

    fn check_sound(&self) -> Result<()> {
        match self.poisoned.is_raised() {
            true => Err(Error::new(Code::Poisoned, self.what)),
            false => Ok(()),
        }
    }
}

impl Storage for StoragePort {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let to = into.as_mut_ptr().cast();
        // SAFETY: the callback writes at most `into.len()` bytes there (its author's promise).
        let value = unsafe { (self.read)(self.table.context, offset, to, into.len()) };
        let count = count(value, self.what)?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= into.len())
            .ok_or(Error::new(Code::Io, "mz_storage.read: more than asked for").with(count))
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.check_sound()?;
        let write = self.table.write.ok_or(missing("mz_storage.write"))?;
        let bytes = from.as_ptr().cast();
        // SAFETY: the callback reads at most `from.len()` bytes there (its author's promise).
        done(unsafe { write(self.table.context, offset, bytes, from.len()) }, self.what)
    }

    fn sync(&self) -> Result<()> {
        self.check_sound()?;
        let sync = self.table.sync.ok_or(missing("mz_storage.sync"))?;
        // SAFETY: the callback takes its own context.
        done(unsafe { sync(self.table.context) }, self.what).map_err(|error| {
            self.poisoned.raise();
            Error { code: Code::SyncFailed, ..error }
        })
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_sound()?;
        let Some(discard) = self.table.discard else { return Ok(()) };
        // SAFETY: the callback takes its own context.
        done(unsafe { discard(self.table.context, offset, bytes) }, self.what)
    }

    fn length(&self) -> Result<u64> {
        // SAFETY: the callback takes its own context.
        count(unsafe { (self.length)(self.table.context) }, self.what)
    }

    fn is_direct(&self) -> bool {
        // SAFETY: the callback takes its own context.
        self.table.direct.is_some_and(|direct| unsafe { direct(self.table.context) } == 1)
    }
}

/// Time behind a callback.
pub(super) struct ClockPort {
    context: Context,
    now: unsafe extern "C" fn(Context) -> u64,
}

// SAFETY: as for StoragePort.
unsafe impl Sync for ClockPort {}
// SAFETY: as for StoragePort.
unsafe impl Send for ClockPort {}

impl ClockPort {
    fn new(table: &MzClock) -> Result<Self> {
        check_flags(table.flags, "mz_clock.flags")?;
        Ok(ClockPort { context: table.context, now: table.now.ok_or(missing("mz_clock.now"))? })
    }
}

impl Clock for ClockPort {
    fn now(&self) -> Nanos {
        // SAFETY: the callback takes its own context.
        Nanos::new(unsafe { (self.now)(self.context) })
    }
}

/// Waiting behind callbacks, or none.
pub(super) enum ParkPort {
    /// The caller tries again at once.
    Spin,
    /// Callbacks.
    Table {
        /// Given to both.
        context: Context,
        /// See `mz_park.wait`.
        wait: unsafe extern "C" fn(Context, *const u32, u32, u64),
        /// See `mz_park.wake`.
        wake: unsafe extern "C" fn(Context, *const u32),
    },
}

// SAFETY: as for StoragePort.
unsafe impl Sync for ParkPort {}
// SAFETY: as for StoragePort.
unsafe impl Send for ParkPort {}

impl ParkPort {
    fn new(table: &MzPark) -> Result<Self> {
        check_flags(table.flags, "mz_park.flags")?;
        let wait = table.wait.ok_or(missing("mz_park.wait"))?;
        let wake = table.wake.ok_or(missing("mz_park.wake"))?;
        Ok(ParkPort::Table { context: table.context, wait, wake })
    }
}

impl Park for ParkPort {
    fn wait(&self, word: &Word, expected: u32, timeout: Option<Nanos>) {
        match *self {
            ParkPort::Spin => core::hint::spin_loop(),
            ParkPort::Table { context, wait, .. } => {
                let timeout_ns = timeout.map_or(u64::MAX, Nanos::get);
                // SAFETY: the word lives during the call, and the callback reads it atomically.
                unsafe { wait(context, word.as_ptr(), expected, timeout_ns) };
            }
        }
    }

    fn wake_all(&self, word: &Word) {
        if let ParkPort::Table { context, wake, .. } = *self {
            // SAFETY: the word lives during the call; only its address matters.
            unsafe { wake(context, word.as_ptr()) };
        }
    }
}

/// Measuring behind a callback.
pub(super) struct MeterPort {
    context: Context,
    resident: unsafe extern "C" fn(Context) -> i64,
}

// SAFETY: as for StoragePort.
unsafe impl Sync for MeterPort {}
// SAFETY: as for StoragePort.
unsafe impl Send for MeterPort {}

impl MeterPort {
    fn new(table: &MzMeter) -> Result<Self> {
        check_flags(table.flags, "mz_meter.flags")?;
        let resident = table.resident.ok_or(missing("mz_meter.resident"))?;
        Ok(MeterPort { context: table.context, resident })
    }
}

impl Meter for MeterPort {
    fn resident_bytes(&self) -> Result<u64> {
        // SAFETY: the callback takes its own context.
        count(unsafe { (self.resident)(self.context) }, "mz_meter.resident")
    }
}

/// Who hears what happens, or nobody.
#[derive(Clone, Copy)]
pub(super) struct LogPort {
    context: Context,
    level: u32,
    entry: Option<unsafe extern "C" fn(Context, u32, *const c_char, *const MzError)>,
}

// SAFETY: as for StoragePort.
unsafe impl Sync for LogPort {}
// SAFETY: as for StoragePort.
unsafe impl Send for LogPort {}

impl LogPort {
    /// Reads the table, if there is one.
    ///
    /// # Safety
    ///
    /// As for [`raw::read`]; the callback does what the header says, until the handle is closed.
    pub(super) unsafe fn read(table: *const MzLog) -> Result<Self> {
        // SAFETY: the caller's promise.
        let Some(table) = unsafe { raw::read_optional(table) }? else {
            return Ok(LogPort { context: core::ptr::null_mut(), level: 0, entry: None });
        };
        let level = match table.level {
            0 => MzLevel::Error as u32,
            level if level <= MzLevel::Info as u32 => level,
            other => return Err(Error::new(Code::Unsupported, "mz_log.level").with(other)),
        };
        let entry = table.entry.ok_or(missing("mz_log.entry"))?;
        Ok(LogPort { context: table.context, level, entry: Some(entry) })
    }

    /// Tells of one thing.
    pub(super) fn tell(&self, level: MzLevel, text: &'static CStr, about: Error, failed: bool) {
        let level = level as u32;
        let Some(entry) = self.entry.filter(|_| level <= self.level) else { return };
        let mut details = answer::details(Some(about));
        if !failed {
            details.code = 0;
        }
        // SAFETY: text and details live during the call; the context is the table's own.
        unsafe { entry(self.context, level, text.as_ptr(), &raw const details) };
    }

    /// Tells of a failure.
    pub(super) fn failed(&self, error: Error) {
        self.tell(MzLevel::Error, c"a call failed", error, true);
    }

    /// Tells what was done.
    pub(super) fn info(&self, text: &'static CStr, what: &'static str, value: u64) {
        // The code is not shown.
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.tell(MzLevel::Info, text, Error::new(Code::BadState, what).with(value), false);
    }

    /// Tells of what is not as it was asked for.
    pub(super) fn warn(&self, text: &'static CStr, error: Error) {
        self.tell(MzLevel::Warning, text, error, true);
    }
}
