//! Callbacks that are missing, fail, or break their word.

use super::super::leases::*;
use super::super::raw::Table;
use super::super::tables::*;
use super::super::types::*;
use super::super::*;
use super::world::*;
use core::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

const INVALID: c_int = MzErr::InvalidArgument as c_int;
const UNSUPPORTED: c_int = MzErr::Unsupported as c_int;
const IO: c_int = MzErr::Io as c_int;

#[test]
fn missing_callbacks_and_unknown_flags_are_refused() {
    for (expected, change) in [
        (INVALID, (|world| world.model_table.read = None) as fn(&mut World)),
        (INVALID, |world| world.model_table.length = None),
        (INVALID, |world| world.swap_table.read = None),
        (INVALID, |world| world.swap_table.write = None),
        (INVALID, |world| world.swap_table.sync = None),
        (INVALID, |world| world.memory_table.allocate = None),
        (INVALID, |world| world.memory_table.release = None),
        (INVALID, |world| world.clock_table.now = None),
        (UNSUPPORTED, |world| world.model_table.flags = 1),
        (UNSUPPORTED, |world| world.swap_table.flags = 1),
        (UNSUPPORTED, |world| world.memory_table.flags = 1),
        (UNSUPPORTED, |world| world.clock_table.flags = 1),
        (MZ_OK, |world| world.model_table.write = None),
        (MZ_OK, |world| world.model_table.sync = None),
    ] {
        let mut world = World::new();
        change(&mut world);
        let ports = world.ports();
        let (result, error) = world.try_open(&ports);
        assert_eq!(result, expected, "{}", what(&error));
    }
}

#[test]
fn missing_tables_are_refused() {
    for (expected, change) in [
        (INVALID, (|ports| ports.model = ptr::null()) as fn(&mut MzPorts)),
        (INVALID, |ports| ports.swap = ptr::null()),
        (INVALID, |ports| ports.memory = ptr::null()),
        (INVALID, |ports| ports.clock = ptr::null()),
        (INVALID, |ports| ports.park = ports.clock.wrapping_byte_add(4).cast()),
        (UNSUPPORTED, |ports| ports.flags = 1),
    ] {
        let mut world = World::new();
        let mut ports = world.ports();
        change(&mut ports);
        assert_eq!(world.try_open(&ports).0, expected);
    }
    let mut world = World::new();
    world.config.swap_file = 0;
    let mut ports = world.ports();
    ports.swap = ptr::null();
    assert_eq!(world.try_open(&ports).0, MZ_OK);
}

#[test]
fn a_callback_s_own_number_arrives() {
    let world = World::filled();
    for (answer, code, value) in [
        (-1005, MzErr::Io, 5),
        (-1000, MzErr::Io, 0),
        (-3, MzErr::Io, -3),
        (i64::MIN, MzErr::Io, i64::MAX - 999),
        (i64::from(err(MzErr::ShortRead)), MzErr::ShortRead, 0),
        (i64::from(err(MzErr::Cancelled)), MzErr::Cancelled, 0),
        // More than asked for.
        (8193, MzErr::Io, 8193),
        (i64::MAX, MzErr::Io, i64::MAX),
        // Less, though the file does not end there.
        (4096, MzErr::ShortRead, 4096),
    ] {
        world.evict();
        *world.model.read_answer.lock().unwrap() = Some(answer);
        assert_eq!(world.call(mz_restore), err(code), "{answer}");
        let error = world.last();
        assert_eq!((error.code, error.value), (err(code), value), "{answer} {}", what(&error));
        *world.model.read_answer.lock().unwrap() = None;
        world.check_all();
    }
}

#[test]
fn a_model_file_without_a_length_is_refused() {
    // SAFETY: only the library calls it, with any context.
    unsafe extern "C" fn no_length(_: *mut c_void) -> i64 {
        -1009
    }
    let mut world = World::new();
    world.model_table.length = Some(no_length);
    let ports = world.ports();
    let (result, error) = world.try_open(&ports);
    assert_eq!((result, error.value), (IO, 9));
}

#[test]
fn chunks_that_cannot_be_written_stay_somewhere() {
    let world = World::filled();
    for answer in [i64::from(err(MzErr::NoSpace)), -1028, 1] {
        *world.swap.write_answer.lock().unwrap() = Some(answer);
        let report = world.evict();
        let expected = if answer == -32 { err(MzErr::NoSpace) } else { IO };
        assert_eq!((report.error, world.last().code), (expected, expected));
        assert!(world.live_regions() > 0, "the RAM swap has them");
        world.check_all();
    }
    *world.swap.write_answer.lock().unwrap() = None;
    assert_eq!(world.evict().error, MZ_OK);
    assert_eq!(world.live_regions(), 0);
    world.check_all();
}

#[test]
fn a_failed_sync_is_never_believed_again() {
    use crate::error::Code;
    use crate::port::Storage;
    let world = World::new();
    let ports = world.ports();
    // SAFETY: the world outlives the tables.
    let tables = unsafe { super::super::ports::Tables::read(&ports) }.unwrap();
    let swap = tables.0.swap.unwrap();
    assert_eq!((swap.write_at(0, &[7; 4096]), swap.sync()), (Ok(()), Ok(())));
    *world.swap.sync_answer.lock().unwrap() = Some(-1005);
    let error = swap.sync().unwrap_err();
    assert_eq!((error.code, error.value), (Code::SyncFailed, 5));
    *world.swap.sync_answer.lock().unwrap() = None;
    let poisoned = Some(Code::Poisoned);
    assert_eq!(swap.sync().err().map(|error| error.code), poisoned);
    assert_eq!(swap.write_at(0, &[8; 4096]).err().map(|error| error.code), poisoned);
    assert_eq!(swap.discard(0, 4096).err().map(|error| error.code), poisoned);
    let mut bytes = [0; 4096];
    assert_eq!(swap.read_at(0, &mut bytes), Ok(4096));
    assert_eq!((bytes, swap.length(), swap.is_direct()), ([7; 4096], Ok(4096), false));
    // Opened from scratch it is sound; without `discard` it keeps its space.
    // SAFETY: the world outlives the tables.
    let again = unsafe { super::super::ports::Tables::read(&ports) }.unwrap().0.swap.unwrap();
    assert_eq!((again.discard(0, 4096), again.sync()), (Ok(()), Ok(())));
}

#[test]
fn a_region_that_is_not_what_was_asked_for_is_given_back() {
    let world = World::filled();
    world.evict();
    for (fault, code) in [
        (Fault::Refused, MzErr::OutOfMemory),
        (Fault::Null, MzErr::Io),
        (Fault::Misaligned, MzErr::Io),
        (Fault::TooSmall, MzErr::Io),
    ] {
        *world.heap.fault.lock().unwrap() = fault;
        assert_eq!(world.call(mz_restore), err(code));
        assert_eq!(world.live_regions(), 0);
        *world.heap.fault.lock().unwrap() = Fault::None;
    }
    world.check_all();
}

static WAITS: AtomicU32 = AtomicU32::new(0);
static WAKES: AtomicU32 = AtomicU32::new(0);

// SAFETY: only the library calls it, with a word that lives.
unsafe extern "C" fn wait(_: *mut c_void, word: *const u32, expected: u32, _timeout_ns: u64) {
    // SAFETY: the word is atomic, aligned and alive.
    let word = unsafe { AtomicU32::from_ptr(word.cast_mut()) };
    if word.load(Ordering::Acquire) == expected {
        WAITS.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
    }
}

// SAFETY: only the library calls it.
unsafe extern "C" fn wake(_: *mut c_void, word: *const u32) {
    assert!(word.is_aligned());
    WAKES.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_waiting_call_parks_until_the_one_that_works_is_done() {
    let mut world = World::new();
    let (struct_bytes, context) = (MzPark::own_bytes(), ptr::null_mut());
    let park = MzPark { struct_bytes, flags: 0, context, wait: Some(wait), wake: Some(wake) };
    for broken in [MzPark { wait: None, ..park }, MzPark { wake: None, ..park }] {
        let ports = MzPorts { park: &broken, ..world.ports() };
        assert_eq!(world.try_open(&ports).0, INVALID);
    }
    let ports = MzPorts { park: &park, ..world.ports() };
    assert_eq!(world.try_open(&ports).0, MZ_OK);
    world.fill();
    assert_eq!(world.call(mz_restore), MZ_OK);
    // All units but the head stay, so that there is nothing but the head to bring back.
    world.kv(0, CHUNKS).unwrap();
    world.kv(1, CHUNKS).unwrap();
    world.weights(0).unwrap();
    world.weights(1).unwrap();
    world.evict();
    assert_eq!(world.call_with(mz_restore_begin, TOKENS), MZ_OK);
    let handle = world.handle.expose_provenance();
    let waits = || WAITS.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        // One thread holds a unit's read inside its callback; the other finds nothing to do.
        let door = world.model.door.lock().unwrap();
        let before = *world.model.readers.lock().unwrap();
        for _ in 0..2 {
            scope.spawn(move || {
                let (handle, mut span) = (ptr::with_exposed_provenance_mut(handle), no_span());
                // SAFETY: the world outlives its threads.
                assert_eq!(unsafe { mz_wait_weights(handle, UNITS - 1, &mut span) }, MZ_OK);
            });
        }
        while *world.model.readers.lock().unwrap() == before || waits() == 0 {
            std::thread::yield_now();
        }
        drop(door);
    });
    assert!(WAKES.load(Ordering::Relaxed) > 0);
    assert_eq!(world.call(mz_release_all), MZ_OK);
    world.check_all();
}
