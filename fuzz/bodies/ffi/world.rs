//! Files, buffers and tables of a caller in C, and the canaries around what it gave away.

use mzcache::ffi::tables::{MzClock, MzMemory, MzPorts, MzRegion, MzStorage};
use mzcache::ffi::types::{MzConfig, MzDeviceSpan, MzErr, MzExtent, MzHandle};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr;

pub const LAYERS: u32 = 2;
pub const UNITS: u32 = 3;
pub const UNIT_BYTES: usize = 8192;
pub const CONTEXT_MAX: u32 = 1024;
pub const CHUNKS_MAX: usize = 4;
pub const HEAD_DIM: usize = 32;
/// Where a region begins in what the device calls its buffer.
const DEVICE_OFFSET: u64 = 8192;
const SYNC_FAILED: i64 = MzErr::SyncFailed as i64;
const ALIGN: usize = 4096;
const CANARY: u8 = 0xC7;
const CANARIES: usize = 64;

pub fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap()
}

pub fn weight_byte(index: usize) -> u8 {
    (index.wrapping_mul(0x9E37_79B9) >> 13).to_le_bytes()[0]
}

/// What the caller's engine writes for a token; never 0.
pub fn value(layer: u32, token: u32) -> u16 {
    (layer * 1024 + token + 1).to_le_bytes()[..2].try_into().map(u16::from_le_bytes).unwrap()
}

pub struct World {
    /// What it holds outlives the handle.
    pub swap: RefCell<Vec<u8>>,
    /// Something was written there.
    pub has_written: Cell<bool>,
    /// A sync failed, or a callback spoke of one: the handle may refuse the file for good.
    pub is_poisoned: Cell<bool>,
    /// Live regions: start to size.
    pub live: RefCell<BTreeMap<usize, usize>>,
    /// Users of a region, by its start: the host's, the device's. Never of both at a time.
    users: RefCell<BTreeMap<usize, [u32; 2]>>,
    /// Calls of callbacks until one fails, and how.
    pub until_fault: Cell<u32>,
    pub fault: Cell<i64>,
    pub extents: Vec<MzExtent>,
    pub config: MzConfig,
    model_table: MzStorage,
    swap_table: MzStorage,
    memory_table: MzMemory,
    clock_table: MzClock,
    time: Cell<u64>,
    /// Between canaries.
    memory: Vec<u8>,
    pub handle: *mut MzHandle,
}

/// # Safety
///
/// The context is a world that outlives the answer.
unsafe fn world<'a>(context: *mut c_void) -> &'a World {
    // SAFETY: `World::tables` makes it the context, and it is boxed and outlives its handle.
    unsafe { &*context.cast::<World>() }
}

impl World {
    /// The answer of a callback that is to fail now.
    fn fault(&self) -> Option<i64> {
        let left = self.until_fault.get();
        self.until_fault.set(left.saturating_sub(1));
        let fault = (left == 1).then(|| self.fault.get());
        self.is_poisoned.set(self.is_poisoned.get() || fault == Some(SYNC_FAILED));
        fault
    }
}

/// What a read callback answers: a fault, or how much `fill` put into the library's memory.
///
/// # Safety
///
/// As for [`world`]; there is room for `bytes`.
unsafe fn read(
    context: *mut c_void,
    into: *mut c_void,
    bytes: usize,
    fill: impl FnOnce(&World, &mut [u8]) -> usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (world, into) =
        unsafe { (world(context), std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes)) };
    world.fault().unwrap_or_else(|| i64::try_from(fill(world, into)).unwrap())
}

// SAFETY: only the library calls it, with what the table and its contract say.
unsafe extern "C" fn read_model(
    context: *mut c_void,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> i64 {
    let fill = |_: &World, into: &mut [u8]| {
        let offset = usize::try_from(offset).unwrap();
        let count = (UNITS as usize * UNIT_BYTES).saturating_sub(offset).min(into.len());
        for (index, byte) in into[..count].iter_mut().enumerate() {
            *byte = weight_byte(offset + index);
        }
        count
    };
    // SAFETY: see `world`; the library gives room for `bytes`.
    unsafe { read(context, into, bytes, fill) }
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn read_swap(
    context: *mut c_void,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> i64 {
    let fill = |world: &World, into: &mut [u8]| {
        let swap = world.swap.borrow();
        let from = &swap[swap.len().min(usize::try_from(offset).unwrap())..];
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        count
    };
    // SAFETY: as in `read_model`.
    unsafe { read(context, into, bytes, fill) }
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn write_swap(
    context: *mut c_void,
    offset: u64,
    from: *const c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: see `world`; the library gives `bytes` bytes.
    let (world, from) =
        unsafe { (world(context), std::slice::from_raw_parts(from.cast::<u8>(), bytes)) };
    if let Some(answer) = world.fault() {
        return answer.min(-1);
    }
    let offset = usize::try_from(offset).unwrap();
    world.has_written.set(true);
    let mut swap = world.swap.borrow_mut();
    let length = swap.len().max(offset + bytes);
    swap.resize(length, 0);
    swap[offset..offset + bytes].copy_from_slice(from);
    0
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn sync_swap(context: *mut c_void) -> i64 {
    // SAFETY: see `world`.
    let world = unsafe { world(context) };
    let fault = world.fault();
    world.is_poisoned.set(world.is_poisoned.get() || fault.is_some());
    fault.map_or(0, |answer| answer.min(-1))
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn model_length(_: *mut c_void) -> i64 {
    i64::from(UNITS) * i64::try_from(UNIT_BYTES).unwrap()
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn swap_length(context: *mut c_void) -> i64 {
    // SAFETY: see `world`.
    i64::try_from(unsafe { world(context) }.swap.borrow().len()).unwrap()
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn allocate(context: *mut c_void, region: *mut MzRegion) -> i64 {
    // SAFETY: see `world`; the region is the library's.
    let (world, region) = unsafe { (world(context), &mut *region) };
    if let Some(answer) = world.fault() {
        return answer.min(-1);
    }
    let layout = Layout::from_size_align(region.bytes, ALIGN).unwrap();
    // SAFETY: regions have a size.
    let start = unsafe { alloc_zeroed(layout) };
    world.live.borrow_mut().insert(start.expose_provenance(), layout.size());
    region.start = start.cast();
    0
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn release(context: *mut c_void, region: *const MzRegion) {
    // SAFETY: as in `allocate`.
    let (world, region) = unsafe { (world(context), &*region) };
    let start = region.start.expose_provenance();
    let bytes = world.live.borrow_mut().remove(&start).expect("a live region");
    let users = world.users.borrow_mut().remove(&start).unwrap_or_default();
    assert_eq!(users, [0, 0], "a region that is released has users");
    let layout = Layout::from_size_align(bytes, ALIGN).unwrap();
    // SAFETY: it was allocated with this layout, and is not live any more.
    unsafe { dealloc(region.start.cast(), layout) };
}

impl World {
    /// A side goes into a region, if the other one is not there.
    fn begin(&self, region: &MzRegion, side: usize) -> i64 {
        if let Some(answer) = self.fault() {
            return answer.min(-1);
        }
        let mut users = self.users.borrow_mut();
        let users = users.entry(region.start.addr()).or_default();
        if users[1 - side] > 0 {
            return MzErr::Leased as i64;
        }
        users[side] += 1;
        0
    }
}

// SAFETY: as for `read_model`; the region is live, as in those below.
unsafe extern "C" fn begin_host(
    context: *mut c_void,
    region: *const MzRegion,
    start: *mut *mut c_void,
) -> i64 {
    // SAFETY: as in `allocate`.
    let (world, region) = unsafe { (world(context), &*region) };
    // SAFETY: the library gives a place for it.
    unsafe { start.write(region.start) };
    world.begin(region, 0)
}

// SAFETY: as for `begin_host`.
unsafe extern "C" fn begin_device(
    context: *mut c_void,
    region: *const MzRegion,
    device: *mut MzDeviceSpan,
) -> i64 {
    // SAFETY: as in `allocate`; the table is the library's.
    let (world, region, device) = unsafe { (world(context), &*region, &mut *device) };
    device.buffer = region.start;
    device.offset = DEVICE_OFFSET;
    world.begin(region, 1)
}

// SAFETY: as for `begin_host`.
unsafe extern "C" fn end(context: *mut c_void, region: *const MzRegion) {
    // SAFETY: as in `allocate`.
    let (world, region) = unsafe { (world(context), &*region) };
    let mut users = world.users.borrow_mut();
    let users = users.get_mut(&region.start.addr()).expect("a region with users");
    let side = users.iter().position(|count| *count > 0).expect("a user that is in");
    users[side] -= 1;
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn now(context: *mut c_void) -> u64 {
    // SAFETY: see `world`.
    let time = &unsafe { world(context) }.time;
    time.set(time.get() + 1000);
    time.get()
}

impl World {
    pub fn new() -> Box<World> {
        let extent = |unit: u32| MzExtent {
            file_offset: u64::from(unit) * UNIT_BYTES as u64,
            bytes: UNIT_BYTES as u64,
            buffer_offset: 0,
        };
        let extents: Vec<_> = (0..UNITS).map(extent).collect();
        // SAFETY: tables admit every bit pattern.
        let mut world = Box::new(unsafe {
            World {
                swap: RefCell::default(),
                has_written: Cell::new(false),
                is_poisoned: Cell::new(false),
                live: RefCell::default(),
                users: RefCell::default(),
                until_fault: Cell::new(0),
                fault: Cell::new(0),
                extents,
                config: zeroed(),
                model_table: zeroed(),
                swap_table: zeroed(),
                memory_table: zeroed(),
                clock_table: zeroed(),
                time: Cell::new(0),
                memory: vec![],
                handle: ptr::null_mut(),
            }
        });
        world.tables();
        world
    }

    fn tables(&mut self) {
        let context = ptr::from_mut(self).cast();
        self.config.struct_bytes = size_of_u32::<MzConfig>();
        self.config.kv_layers = LAYERS;
        self.config.kv_heads = 1;
        self.config.head_dim = 32;
        self.config.context_tokens_max = CONTEXT_MAX;
        self.config.weight_units = UNITS;
        self.config.extents = self.extents.as_ptr();
        self.config.extent_count = UNITS;
        self.config.swap_file = 1;
        self.model_table.struct_bytes = size_of_u32::<MzStorage>();
        self.model_table.context = context;
        self.swap_table = self.model_table;
        self.model_table.read = Some(read_model);
        self.model_table.length = Some(model_length);
        self.swap_table.read = Some(read_swap);
        self.swap_table.write = Some(write_swap);
        self.swap_table.sync = Some(sync_swap);
        self.swap_table.length = Some(swap_length);
        self.memory_table.struct_bytes = size_of_u32::<MzMemory>();
        self.memory_table.context = context;
        self.memory_table.allocate = Some(allocate);
        self.memory_table.release = Some(release);
        self.clock_table.struct_bytes = size_of_u32::<MzClock>();
        self.clock_table.context = context;
        self.clock_table.now = Some(now);
    }

    /// From now on host and device take turns.
    pub fn take_turns(&mut self) {
        self.memory_table.begin_host = Some(begin_host);
        self.memory_table.begin_device = Some(begin_device);
        self.memory_table.end = Some(end);
    }

    /// Whether a device's span is what `begin_device` said, or an address where there is none.
    pub fn is_on_device(&self, span: &MzDeviceSpan) -> bool {
        let start = match self.memory_table.begin_device {
            Some(_) => span.buffer,
            None => ptr::without_provenance_mut(usize::try_from(span.address).unwrap()),
        };
        let is_named = (span.address == 0) != span.buffer.is_null();
        let offset = if span.buffer.is_null() { 0 } else { DEVICE_OFFSET };
        is_named && span.offset == offset && self.is_live(start, span.bytes)
    }

    pub fn ports(&self) -> MzPorts {
        // SAFETY: zeroes are a table.
        let mut ports: MzPorts = unsafe { zeroed() };
        ports.struct_bytes = size_of_u32::<MzPorts>();
        ports.model = &raw const self.model_table;
        ports.swap = &raw const self.swap_table;
        ports.memory = &raw const self.memory_table;
        ports.clock = &raw const self.clock_table;
        ports
    }

    /// New memory for a handle, between canaries, at an address of any alignment.
    pub fn take_memory(&mut self, bytes: usize, shift: usize) -> *mut c_void {
        self.memory = vec![CANARY; bytes + shift + 2 * CANARIES];
        // Beyond the canaries and the shift.
        self.memory[CANARIES + shift..][..bytes].fill(0x5A);
        self.memory[CANARIES + shift..].as_mut_ptr().cast()
    }

    pub fn look_at_canaries(&self) {
        let (start, end) = (&self.memory[..], self.memory.len());
        if end > 0 {
            assert!(start[..CANARIES].iter().all(|byte| *byte == CANARY));
            assert!(start[end - CANARIES..].iter().all(|byte| *byte == CANARY));
        }
    }

    /// Whether all of this lies in one live region.
    pub fn is_live(&self, start: *const c_void, bytes: usize) -> bool {
        let live = self.live.borrow();
        let region = live.range(..=start.addr()).next_back();
        region.is_some_and(|(first, size)| start.addr() + bytes <= first + size)
    }
}
