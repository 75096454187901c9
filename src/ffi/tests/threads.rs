//! Worker threads, a meter and a log through callbacks, and what is wrong with them.

use super::super::leases::*;
use super::super::raw::Table;
use super::super::tables::*;
use super::super::types::*;
use super::super::*;
use super::world::*;
use core::ptr;
use std::boxed::Box;
use std::ffi::CStr;
use std::string::String;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::vec::Vec;

#[derive(Default)]
struct Company {
    threads: Mutex<Vec<Option<JoinHandle<()>>>>,
    names: Mutex<Vec<String>>,
    pins: Mutex<Vec<u32>>,
    entries: Mutex<Vec<(u32, String, i32, i64)>>,
    /// As many threads as there may be.
    most: Mutex<usize>,
    refuses_pins: bool,
    resident: Mutex<i64>,
}

/// # Safety
///
/// The context is a company that outlives the answer.
unsafe fn company<'a>(context: *mut c_void) -> &'a Company {
    // SAFETY: the tables below have one as their context, and tests keep it.
    unsafe { &*context.cast::<Company>() }
}

// SAFETY: only the library calls it, with what the table and its contract say.
unsafe extern "C" fn spawn(
    context: *mut c_void,
    name: *const c_char,
    stack_bytes: usize,
    run: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    thread: *mut u64,
) -> i64 {
    // SAFETY: see `company`; the name is a text.
    let (company, name) = unsafe { (company(context), CStr::from_ptr(name)) };
    let mut threads = company.threads.lock().unwrap();
    if threads.len() == *company.most.lock().unwrap() {
        return i64::from(err(MzErr::OutOfMemory));
    }
    assert!(stack_bytes > 0);
    company.names.lock().unwrap().push(name.to_str().unwrap().into());
    let (run, argument) = (run.unwrap(), argument.expose_provenance());
    let body = move || {
        // SAFETY: the library asked for it, once.
        unsafe { run(ptr::with_exposed_provenance_mut(argument)) };
    };
    threads.push(Some(std::thread::spawn(body)));
    // SAFETY: the library has a place for the number.
    unsafe { *thread = threads.len() as u64 + 99 };
    0
}

// SAFETY: as for `spawn`.
unsafe extern "C" fn join(context: *mut c_void, thread: u64) {
    // SAFETY: see `company`.
    let company = unsafe { company(context) };
    let index = usize::try_from(thread - 100).unwrap();
    let thread = company.threads.lock().unwrap()[index].take();
    thread.expect("each thread is joined once").join().unwrap();
}

// SAFETY: as for `spawn`.
unsafe extern "C" fn pin(context: *mut c_void, core: u32) -> i64 {
    // SAFETY: see `company`.
    let company = unsafe { company(context) };
    company.pins.lock().unwrap().push(core);
    if company.refuses_pins { MZ_PORT_ERROR_22 } else { 0 }
}

const MZ_PORT_ERROR_22: i64 = -1022;

// SAFETY: as for `spawn`.
unsafe extern "C" fn resident(context: *mut c_void) -> i64 {
    // SAFETY: see `company`.
    let mut value = unsafe { company(context) }.resident.lock().unwrap();
    *value -= 1000;
    *value
}

// SAFETY: as for `spawn`.
unsafe extern "C" fn entry(
    context: *mut c_void,
    level: u32,
    text: *const c_char,
    about: *const MzError,
) {
    // SAFETY: see `company`; text and details live during the call.
    let (company, text, about) = unsafe { (company(context), CStr::from_ptr(text), &*about) };
    let text = text.to_str().unwrap().into();
    company.entries.lock().unwrap().push((level, text, about.code, about.value));
}

struct Staff {
    company: Box<Company>,
    world: World,
    threads: MzThreads,
    meter: MzMeter,
    log: MzLog,
    workers: Vec<MzWorker>,
}

fn staff(company: Company) -> Staff {
    let company = Box::new(company);
    let context = ptr::from_ref(&*company).cast_mut().cast();
    *company.most.lock().unwrap() = 9;
    *company.resident.lock().unwrap() = 1 << 40;
    Staff {
        threads: MzThreads {
            struct_bytes: MzThreads::own_bytes(),
            flags: 0,
            context,
            spawn: Some(spawn),
            join: Some(join),
            pin: Some(pin),
        },
        meter: MzMeter {
            struct_bytes: MzMeter::own_bytes(),
            flags: 0,
            context,
            resident: Some(resident),
        },
        log: MzLog { struct_bytes: MzLog::own_bytes(), level: 3, context, entry: Some(entry) },
        workers: [(4, 3), (2, MZ_ANY_CORE), (1, MZ_ANY_CORE)]
            .map(|(roles, core)| MzWorker { roles, core, helps: 0 })
            .into(),
        company,
        world: World::new(),
    }
}

impl Staff {
    fn open(&mut self) -> (c_int, String) {
        self.world.config.workers = self.workers.as_ptr();
        self.world.config.worker_count = u32::try_from(self.workers.len()).unwrap();
        let ports = MzPorts {
            threads: &raw const self.threads,
            meter: &raw const self.meter,
            log: &raw const self.log,
            ..self.world.ports()
        };
        let (result, error) = self.world.try_open(&ports);
        (result, what(&error))
    }

    fn is_joined(&self) -> bool {
        self.company.threads.lock().unwrap().iter().all(Option::is_none)
    }
}

fn stats(world: &World) -> MzStats {
    // SAFETY: zeroes are a table, the handle is open.
    unsafe {
        let mut stats: MzStats = core::mem::zeroed();
        stats.struct_bytes = MzStats::own_bytes();
        assert_eq!(mz_stats_get(world.handle, &mut stats), MZ_OK);
        stats
    }
}

#[test]
fn workers_evict_and_restore_and_are_joined_at_close() {
    for refuses_pins in [false, true] {
        let mut staff = staff(Company { refuses_pins, ..Company::default() });
        assert_eq!(staff.open(), (MZ_OK, " 0".into()));
        staff.world.fill();
        // SAFETY: zeroes are a table, the handle is open.
        let mut report: MzReport = unsafe { core::mem::zeroed() };
        report.struct_bytes = MzReport::own_bytes();
        // SAFETY: as above.
        let evicted = unsafe { mz_evict(staff.world.handle, u64::MAX, 0, &mut report) };
        assert_eq!((evicted, report.error, report.measured_bytes), (MZ_OK, MZ_OK, 1000));
        assert_eq!(staff.world.call_with(mz_restore_begin, TOKENS), MZ_OK);
        staff.world.check_all();
        let stats = stats(&staff.world);
        let (pinned, unpinned) = (stats.workers_pinned, stats.workers_unpinned);
        assert_eq!((pinned, unpinned), (u32::from(!refuses_pins), u32::from(refuses_pins)));
        assert_eq!(staff.company.names.lock().unwrap().len(), 3);
        assert_eq!(*staff.company.pins.lock().unwrap(), [3]);
        assert_eq!(staff.world.call(mz_close), MZ_OK);
        assert!(staff.is_joined());
        let entries = staff.company.entries.lock().unwrap();
        let texts: Vec<_> = entries.iter().map(|entry| (entry.0, &*entry.1)).collect();
        let warning = (2, "some workers run on any core");
        let all = [warning, (3, "opened"), (3, "evicted"), (3, "closed")];
        assert_eq!(texts, all[usize::from(!refuses_pins)..]);
    }
}

#[test]
fn threads_that_cannot_be_had_leave_none_behind() {
    let mut staff = staff(Company::default());
    *staff.company.most.lock().unwrap() = 2;
    assert_eq!(staff.open().0, err(MzErr::OutOfMemory));
    assert_eq!(staff.company.threads.lock().unwrap().len(), 2);
    assert!(staff.is_joined());
}

#[test]
fn wrong_tables_and_workers_are_refused() {
    type Spoil = fn(&mut Staff);
    let wrong: [(&str, Spoil); 12] = [
        ("mz_threads.spawn 0", |staff| staff.threads.spawn = None),
        ("mz_threads.join 0", |staff| staff.threads.join = None),
        ("mz_threads.flags 1", |staff| staff.threads.flags = 1),
        ("mz_threads 8", |staff| staff.threads.struct_bytes = 8),
        ("mz_meter.resident 0", |staff| staff.meter.resident = None),
        ("mz_meter.flags 1", |staff| staff.meter.flags = 1),
        ("mz_log.entry 0", |staff| staff.log.entry = None),
        ("mz_log.level 4", |staff| staff.log.level = 4),
        ("workers: a role is missing 0", |staff| staff.workers.truncate(2)),
        ("roles 8", |staff| staff.workers[0].roles = 8),
        ("mz_worker.core 65536", |staff| staff.workers[0].core = 65536),
        ("mz_config.worker_count 33", |staff| staff.workers.resize(33, staff.workers[0])),
    ];
    for (expected, spoil) in wrong {
        let mut staff = staff(Company::default());
        spoil(&mut staff);
        let (result, error) = staff.open();
        assert!(result < 0 && error == expected, "{expected}: {result} {error}");
        assert!(staff.company.threads.lock().unwrap().is_empty());
    }
}

#[test]
fn workers_need_threads_and_an_array() {
    let mut staff = staff(Company::default());
    staff.world.config.workers = staff.workers.as_ptr();
    staff.world.config.worker_count = 3;
    let (result, error) = staff.world.try_open(&staff.world.ports());
    assert_eq!((result, what(&error)), (err(MzErr::InvalidArgument), "mz_ports.threads 0".into()));
    staff.world.config.workers = ptr::null();
    let (result, error) = staff.world.try_open(&staff.world.ports());
    let expected = (err(MzErr::InvalidArgument), "mz_config.workers 0".into());
    assert_eq!((result, what(&error)), expected);
}

#[test]
fn a_log_hears_as_much_as_it_asked_for() {
    let mut staff = staff(Company::default());
    staff.log.level = 0;
    assert_eq!(staff.open().0, MZ_OK);
    assert_eq!(staff.world.call(mz_restore_cancel), err(MzErr::BadState));
    assert_eq!(staff.world.release_kv(9, 0), err(MzErr::InvalidArgument));
    let entries = staff.company.entries.lock().unwrap().clone();
    let expected = [(1, "a call failed".into(), -11, 0), (1, "a call failed".into(), -10, 9)];
    assert_eq!(entries[..], expected);
    assert_eq!(staff.world.call(mz_close), MZ_OK);
}

#[test]
fn the_table_of_chunks_has_what_the_spans_have() {
    let world = World::filled();
    let mut table = [ptr::null_mut(); 4];
    let mut count = 2;
    let wait = |table: &mut [*mut c_void; 4], count: &mut u32| {
        // SAFETY: the handle is open, the table has four places.
        unsafe { mz_wait_kv_table(world.handle, 0, table.as_mut_ptr(), count) }
    };
    assert_eq!((wait(&mut table, &mut count), count), (err(MzErr::MemoryTooSmall), CHUNKS));
    assert_eq!(table, [ptr::null_mut(); 4]);
    count = 4;
    assert_eq!((wait(&mut table, &mut count), count), (MZ_OK, CHUNKS));
    let spans = world.kv(0, CHUNKS).unwrap();
    assert!(spans.iter().zip(&table).all(|(span, chunk)| span.data == *chunk));
    assert_eq!(table[3], ptr::null_mut());
    assert_eq!(world.release_kv(0, CHUNKS), MZ_OK);
    assert_eq!(world.release_kv(0, CHUNKS), MZ_OK);
    assert_eq!(world.release_kv(0, CHUNKS), err(MzErr::BadState));
    // SAFETY: null is refused.
    let refused = unsafe { mz_wait_kv_table(world.handle, 0, ptr::null_mut(), &mut count) };
    assert_eq!(refused, err(MzErr::InvalidArgument));
}
