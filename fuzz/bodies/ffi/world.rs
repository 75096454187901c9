//! Files, buffers and tables of a caller in C, and the canaries around what it gave away.

use mzcache::ffi::tables::{MzClock, MzMemory, MzPorts, MzRegion, MzStorage};
use mzcache::ffi::types::{MzConfig, MzExtent, MzHandle};
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
    swap: RefCell<Vec<u8>>,
    /// Live regions: start to size.
    pub live: RefCell<BTreeMap<usize, usize>>,
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
        (left == 1).then(|| self.fault.get())
    }
}

// SAFETY: only the library calls it, with what the table and its contract say.
unsafe extern "C" fn read_model(
    context: *mut c_void,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: see `world`; the library gives room for `bytes`.
    let (world, into) =
        unsafe { (world(context), std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes)) };
    if let Some(answer) = world.fault() {
        return answer;
    }
    let offset = usize::try_from(offset).unwrap();
    let count = (UNITS as usize * UNIT_BYTES).saturating_sub(offset).min(bytes);
    for (index, byte) in into[..count].iter_mut().enumerate() {
        *byte = weight_byte(offset + index);
    }
    i64::try_from(count).unwrap()
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn read_swap(
    context: *mut c_void,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: as in `read_model`.
    let (world, into) =
        unsafe { (world(context), std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes)) };
    if let Some(answer) = world.fault() {
        return answer;
    }
    let swap = world.swap.borrow();
    let from = &swap[swap.len().min(usize::try_from(offset).unwrap())..];
    let count = from.len().min(bytes);
    into[..count].copy_from_slice(&from[..count]);
    i64::try_from(count).unwrap()
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
    let mut swap = world.swap.borrow_mut();
    let length = swap.len().max(offset + bytes);
    swap.resize(length, 0);
    swap[offset..offset + bytes].copy_from_slice(from);
    0
}

// SAFETY: as for `read_model`.
unsafe extern "C" fn sync_swap(context: *mut c_void) -> i64 {
    // SAFETY: see `world`.
    unsafe { world(context) }.fault().map_or(0, |answer| answer.min(-1))
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
    let layout = Layout::from_size_align(bytes, ALIGN).unwrap();
    // SAFETY: it was allocated with this layout, and is not live any more.
    unsafe { dealloc(region.start.cast(), layout) };
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
                live: RefCell::default(),
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
