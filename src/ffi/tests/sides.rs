//! Leases for an accelerator, and shared memory that host and accelerator take turns with.

use super::super::leases::*;
use super::super::raw::Table;
use super::super::tables::*;
use super::super::types::*;
use super::super::*;
use super::world::*;
use core::ptr;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

const BAD_STATE: c_int = MzErr::BadState as c_int;
const INVALID: c_int = MzErr::InvalidArgument as c_int;
const IO: c_int = MzErr::Io as c_int;
const LEASED: c_int = MzErr::Leased as c_int;
/// What a device of its own calls a region at an address.
const BUFFER_OF: u64 = 1 << 40;
const FILLING: u64 = 7;

/// What the next answers are instead of right ones.
#[derive(Clone, Copy, Default, PartialEq)]
enum Wrong {
    #[default]
    Nothing,
    Refused,
    Null,
    Misaligned,
    /// The device's name: none, or two.
    Unnamed,
    Ambiguous,
}

/// A heap whose regions are the host's or the device's.
#[derive(Default)]
#[repr(C)]
struct TurnHeap {
    /// First, so that the world's own callbacks find it.
    heap: MemoryHeap,
    /// Users of a region, by its start: the host's, the device's.
    users: Mutex<BTreeMap<usize, [u32; 2]>>,
    /// Ranges that are being filled, those that were, those that were given up.
    fills: Mutex<[u32; 3]>,
    zeroed: Mutex<u32>,
    wrong: Mutex<Wrong>,
}

impl TurnHeap {
    fn nobody_is_in(&self) -> bool {
        let users = self.users.lock().unwrap();
        users.values().all(|users| *users == [0, 0]) && self.fills.lock().unwrap()[0] == 0
    }

    fn begin(&self, start: *mut c_void, side: usize) -> Option<i64> {
        if *self.wrong.lock().unwrap() == Wrong::Refused {
            return Some(-1007);
        }
        let mut users = self.users.lock().unwrap();
        let users = users.entry(start.addr()).or_default();
        if users[1 - side] > 0 {
            return Some(LEASED.into());
        }
        users[side] += 1;
        None
    }

    fn spoilt(&self, start: *mut c_void) -> *mut c_void {
        match *self.wrong.lock().unwrap() {
            Wrong::Null => ptr::null_mut(),
            Wrong::Misaligned => start.wrapping_byte_add(8),
            _ => start,
        }
    }
}

/// # Safety
///
/// The context is a heap that outlives the answer.
unsafe fn heap<'a>(context: *mut c_void) -> &'a TurnHeap {
    // SAFETY: the table's context is one, and the test's world is gone before it.
    unsafe { &*context.cast::<TurnHeap>() }
}

// SAFETY: only the library calls it, with what the table and its contract say; so are all below.
unsafe extern "C" fn zero(context: *mut c_void, region: *const MzRegion) -> i64 {
    // SAFETY: see `heap`; the region is live.
    let (heap, region) = unsafe { (heap(context), &*region) };
    assert_eq!(region.struct_bytes, MzRegion::own_bytes());
    *heap.zeroed.lock().unwrap() += 1;
    0
}

// SAFETY: as above.
unsafe extern "C" fn begin_host(
    context: *mut c_void,
    region: *const MzRegion,
    start: *mut *mut c_void,
) -> i64 {
    // SAFETY: as in `zero`.
    let (heap, region) = unsafe { (heap(context), &*region) };
    heap.begin(region.start, 0).unwrap_or_else(|| {
        // SAFETY: the library gives a place for it.
        unsafe { start.write(heap.spoilt(region.start)) };
        0
    })
}

// SAFETY: as above.
unsafe extern "C" fn begin_fill(
    context: *mut c_void,
    region: *const MzRegion,
    offset: usize,
    bytes: usize,
    start: *mut *mut c_void,
    token: *mut u64,
) -> i64 {
    // SAFETY: as in `zero`.
    let (heap, region) = unsafe { (heap(context), &*region) };
    assert!(bytes > 0 && offset + bytes <= region.bytes);
    if *heap.wrong.lock().unwrap() == Wrong::Refused {
        return -1007;
    }
    heap.fills.lock().unwrap()[0] += 1;
    // SAFETY: the library gives places for both.
    unsafe {
        start.write(heap.spoilt(region.start.wrapping_byte_add(offset)));
        token.write(FILLING);
    }
    0
}

// SAFETY: as above.
unsafe extern "C" fn end_fill(
    context: *mut c_void,
    region: *const MzRegion,
    offset: usize,
    _bytes: usize,
    start: *mut c_void,
    token: u64,
    is_filled: u32,
) -> i64 {
    // SAFETY: as in `zero`.
    let (heap, region) = unsafe { (heap(context), &*region) };
    assert_eq!(start, heap.spoilt(region.start.wrapping_byte_add(offset)));
    assert_eq!(token, FILLING);
    let fills = &mut *heap.fills.lock().unwrap();
    fills[0] -= 1;
    fills[if is_filled == 1 { 1 } else { 2 }] += 1;
    0
}

// SAFETY: as above.
unsafe extern "C" fn begin_device(
    context: *mut c_void,
    region: *const MzRegion,
    device: *mut MzDeviceSpan,
) -> i64 {
    // SAFETY: as in `zero`; the library gives a table to fill in.
    let (heap, region, device) = unsafe { (heap(context), &*region, &mut *device) };
    assert_eq!(device.struct_bytes, MzDeviceSpan::own_bytes());
    heap.begin(region.start, 1).unwrap_or_else(|| {
        let wrong = *heap.wrong.lock().unwrap();
        if wrong != Wrong::Unnamed {
            let name = BUFFER_OF + region.start.addr() as u64;
            device.buffer = ptr::without_provenance_mut(usize::try_from(name).unwrap());
            device.offset = 4096;
        }
        device.address = u64::from(wrong == Wrong::Ambiguous);
        0
    })
}

// SAFETY: as above.
unsafe extern "C" fn end(context: *mut c_void, region: *const MzRegion) {
    // SAFETY: as in `zero`.
    let (heap, region) = unsafe { (heap(context), &*region) };
    let mut users = heap.users.lock().unwrap();
    let users = users.get_mut(&region.start.addr()).expect("a region with users");
    let side = users.iter().position(|count| *count > 0).expect("a user that is in");
    users[side] -= 1;
}

/// A world whose memory takes turns; the heap outlives it.
fn turn_world(heap: &TurnHeap) -> World {
    let mut world = World::new();
    let allocates = world.memory_table;
    world.memory_table = MzMemory {
        context: ptr::from_ref(heap).cast_mut().cast(),
        zero: Some(zero),
        begin_host: Some(begin_host),
        begin_fill: Some(begin_fill),
        end_fill: Some(end_fill),
        begin_device: Some(begin_device),
        end: Some(end),
        ..allocates
    };
    let ports = world.ports();
    assert_eq!(world.try_open(&ports).0, MZ_OK);
    world
}

fn no_span() -> MzDeviceSpan {
    // SAFETY: zeroes are a table.
    let mut span: MzDeviceSpan = unsafe { core::mem::zeroed() };
    span.struct_bytes = MzDeviceSpan::own_bytes();
    span
}

fn weights_on_device(world: &World, layer: u32) -> Result<MzDeviceSpan, c_int> {
    let mut span = no_span();
    // SAFETY: the handle is open, the span lives.
    match unsafe { mz_wait_weights_device(world.handle, layer, &mut span) } {
        MZ_OK => Ok(span),
        error => Err(error),
    }
}

fn tail_on_device(world: &World, layer: u32, token: u32) -> Result<MzDeviceSpan, c_int> {
    let mut span = no_span();
    // SAFETY: the handle is open, the span lives.
    match unsafe { mz_kv_tail_device(world.handle, layer, token, &mut span) } {
        MZ_OK => Ok(span),
        error => Err(error),
    }
}

fn kv_on_device(world: &World, layer: u32, room: u32) -> Result<Vec<MzDeviceSpan>, c_int> {
    let mut spans = vec![no_span(); room as usize];
    let mut count = room;
    // SAFETY: the handle is open, there are as many spans as `count` says.
    match unsafe { mz_wait_kv_device(world.handle, layer, spans.as_mut_ptr(), &mut count) } {
        MZ_OK => {
            spans.truncate(count as usize);
            Ok(spans)
        }
        error => Err(error),
    }
}

#[test]
fn memory_that_both_see_has_one_address() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    let host = world.weights(1).unwrap();
    assert_eq!(world.call_with(mz_release_weights, 1), MZ_OK);
    let span = weights_on_device(&world, 1).unwrap();
    assert_eq!((span.address, span.bytes), (host.data.addr() as u64, host.bytes));
    assert_eq!((span.index, span.offset, span.buffer), (1, 0, ptr::null_mut()));
    let tail = tail_on_device(&world, 0, TOKENS).unwrap();
    let chunks = kv_on_device(&world, 0, CHUNKS).unwrap();
    assert_eq!(chunks[2].address, tail.address);
    assert_eq!((chunks.len() as u32, chunks[1].bytes), (CHUNKS, CHUNK_BYTES));
    assert_eq!(world.evict().leased, 1 + CHUNKS);
    assert_eq!(world.close(), LEASED);
    assert_eq!(world.call(mz_release_all), MZ_OK);
    world.check_all();
}

#[test]
fn a_unit_is_leased_on_one_side_at_a_time() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    weights_on_device(&world, 0).unwrap();
    assert_eq!(world.weights(0).unwrap_err(), LEASED);
    assert_eq!(world.call_with(mz_release_weights, 0), MZ_OK);
    assert_eq!(world.call_with(mz_release_weights, 0), BAD_STATE);
    world.weights(0).unwrap();
    assert_eq!(weights_on_device(&world, 0).unwrap_err(), LEASED);
    assert_eq!(world.call_with(mz_release_weights, 0), MZ_OK);
    // One chunk of three is the host's: none is leased.
    world.tail(1, TOKENS).unwrap();
    assert_eq!(kv_on_device(&world, 1, CHUNKS).unwrap_err(), LEASED);
    assert_eq!(tail_on_device(&world, 1, TOKENS).unwrap_err(), LEASED);
    assert_eq!(world.release_kv(1, 1), BAD_STATE);
    assert_eq!(world.release_tail(1, TOKENS), MZ_OK);
    kv_on_device(&world, 1, CHUNKS).unwrap();
    assert_eq!(tail_on_device(&world, 1, TOKENS).unwrap_err(), LEASED, "others may read it");
    assert_eq!(world.kv(1, CHUNKS).unwrap_err(), (LEASED, CHUNKS));
    assert_eq!(world.release_kv(1, CHUNKS), MZ_OK);
    tail_on_device(&world, 1, TOKENS).unwrap();
    assert_eq!(world.release_tail(1, TOKENS), MZ_OK);
    assert_eq!(world.evict().leased, 0);
}

#[test]
fn wrong_arguments_of_device_leases_are_refused() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    assert_eq!(weights_on_device(&world, UNITS).unwrap_err(), INVALID);
    assert_eq!(kv_on_device(&world, LAYERS, 8).unwrap_err(), INVALID);
    assert_eq!(kv_on_device(&world, 0, CHUNKS - 1).unwrap_err(), err(MzErr::MemoryTooSmall));
    assert_eq!(tail_on_device(&world, 0, 0).unwrap_err(), INVALID);
    let mut short = MzDeviceSpan { struct_bytes: MzDeviceSpan::own_bytes() - 1, ..no_span() };
    let mut count = 8;
    let (handle, none) = (world.handle, ptr::null_mut());
    // SAFETY: the handle is open; spans are refused before anything else is touched.
    unsafe {
        assert_eq!(mz_wait_weights_device(handle, 0, none), INVALID);
        assert_eq!(mz_wait_weights_device(handle, 0, &mut short), INVALID);
        assert_eq!(mz_wait_kv_device(handle, 0, none, &mut count), INVALID);
        assert_eq!(mz_wait_kv_device(handle, 0, &mut short, ptr::null_mut()), INVALID);
        assert_eq!(mz_kv_tail_device(handle, 0, TOKENS, none), INVALID);
    }
    assert_eq!(world.evict().leased, 0);
    assert_eq!(weights_on_device(&world, 0).unwrap_err(), err(MzErr::Cancelled));
}

#[test]
fn memory_that_takes_turns_is_begun_and_ended() {
    let heap = Box::new(TurnHeap::default());
    let world = turn_world(&heap);
    world.fill();
    assert!(heap.nobody_is_in());
    assert_eq!(*heap.zeroed.lock().unwrap(), LAYERS * CHUNKS, "chunks that a pass added");
    for _ in 0..2 {
        world.evict();
        let before = heap.fills.lock().unwrap()[1];
        assert_eq!(world.call(mz_restore), MZ_OK);
        // As many parts as units: each is small.
        let filled = heap.fills.lock().unwrap()[1] - before;
        assert_eq!(filled, UNITS + LAYERS * CHUNKS);
        let span = weights_on_device(&world, 2).unwrap();
        assert_eq!((span.address, span.offset), (0, 4096));
        assert!(span.buffer.addr() as u64 > BUFFER_OF);
        let chunks = kv_on_device(&world, 1, 8).unwrap();
        assert_eq!(chunks.len() as u32, CHUNKS);
        assert!(!heap.nobody_is_in());
        assert_eq!(world.evict().leased, 1 + CHUNKS);
        assert_eq!(world.call(mz_release_all), MZ_OK);
        assert!(heap.nobody_is_in());
        world.check_all();
        assert!(heap.nobody_is_in());
    }
    drop(world);
    assert!(heap.nobody_is_in() && heap.heap.live.lock().unwrap().is_empty());
}

#[test]
fn a_use_that_is_begun_wrongly_is_ended_and_told() {
    let heap = Box::new(TurnHeap::default());
    let world = turn_world(&heap);
    world.fill();
    assert_eq!(world.call(mz_restore), MZ_OK);
    for wrong in [Wrong::Null, Wrong::Misaligned, Wrong::Refused] {
        *heap.wrong.lock().unwrap() = wrong;
        assert_eq!(world.weights(0).unwrap_err(), IO);
        let last = world.last();
        assert!(what(&last).starts_with("mz_memory.begin_host"), "{}", what(&last));
        assert_eq!(last.value == 7, wrong == Wrong::Refused);
        assert!(heap.nobody_is_in());
    }
    for wrong in [Wrong::Unnamed, Wrong::Ambiguous, Wrong::Refused] {
        *heap.wrong.lock().unwrap() = wrong;
        assert_eq!(weights_on_device(&world, 0).unwrap_err(), IO);
        assert!(what(&world.last()).starts_with("mz_memory.begin_device"));
        assert!(heap.nobody_is_in());
    }
    *heap.wrong.lock().unwrap() = Wrong::Nothing;
    world.evict();
    for wrong in [Wrong::Null, Wrong::Misaligned, Wrong::Refused] {
        *heap.wrong.lock().unwrap() = wrong;
        assert_eq!(world.call(mz_restore), IO);
        assert!(what(&world.last()).starts_with("mz_memory.begin_fill"));
        assert!(heap.nobody_is_in());
    }
    *heap.wrong.lock().unwrap() = Wrong::Nothing;
    world.check_all();
}

#[test]
fn half_a_pair_of_callbacks_is_refused_and_an_older_table_taken() {
    for (begins, ends) in [(true, false), (false, true)] {
        let mut world = World::new();
        world.memory_table.begin_fill = begins.then_some(begin_fill as _);
        world.memory_table.end_fill = ends.then_some(end_fill as _);
        let ports = world.ports();
        let (result, error) = world.try_open(&ports);
        assert_eq!(result, INVALID);
        let missing = if begins { "mz_memory.end_fill 0" } else { "mz_memory.begin_fill 0" };
        assert_eq!(what(&error), missing);
    }
    let mut world = World::new();
    world.memory_table.struct_bytes = u32::try_from(MzMemory::FIRST_BYTES).unwrap();
    // Not the table's any more.
    world.memory_table.begin_device = Some(begin_device);
    let ports = world.ports();
    assert_eq!(world.try_open(&ports).0, MZ_OK);
    world.fill();
    world.evict();
    world.check_all();
}
