//! A caller in "C": files in memory, buffers from the heap, and a small model.

use super::super::leases::*;
use super::super::raw::Table;
use super::super::tables::*;
use super::super::types::*;
use super::super::*;
use core::ptr;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::vec::Vec;
use std::{format, vec};

pub const LAYERS: u32 = 2;
pub const UNITS: u32 = 3;
pub const UNIT_BYTES: u64 = 8192;
pub const CHUNK_BYTES: usize = 2 * 256 * 32 * 2;
pub const CONTEXT_MAX: u32 = 1024;
/// Three chunks, the last one not full.
pub const TOKENS: u32 = 600;
pub const CHUNKS: u32 = 3;

/// `INVALID_ARGUMENT` and so on, as C sees them.
pub fn err(code: MzErr) -> c_int {
    code as c_int
}

/// A file, and what its callbacks answer instead of working.
#[derive(Default)]
pub struct MemoryFile {
    pub bytes: Mutex<Vec<u8>>,
    pub read_answer: Mutex<Option<i64>>,
    pub write_answer: Mutex<Option<i64>>,
    pub sync_answer: Mutex<Option<i64>>,
    /// Held by a test to stop readers inside their callback.
    pub door: Mutex<()>,
    pub readers: Mutex<u32>,
}

/// # Safety
///
/// The context is a file that outlives the answer.
unsafe fn file<'a>(context: *mut c_void) -> &'a MemoryFile {
    // SAFETY: the world's tables have its files as contexts, and it outlives them.
    unsafe { &*context.cast::<MemoryFile>() }
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn read(
    context: *mut c_void,
    offset: u64,
    into: *mut c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: see `file`.
    let file = unsafe { file(context) };
    *file.readers.lock().unwrap() += 1;
    drop(file.door.lock().unwrap());
    if let Some(answer) = *file.read_answer.lock().unwrap() {
        return answer;
    }
    let content = file.bytes.lock().unwrap();
    let from = &content[content.len().min(offset as usize)..];
    let count = from.len().min(bytes);
    // SAFETY: the library gives room for `bytes`, at least `count`.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.cast(), count) };
    count as i64
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn write(
    context: *mut c_void,
    offset: u64,
    from: *const c_void,
    bytes: usize,
) -> i64 {
    // SAFETY: see `file`.
    let file = unsafe { file(context) };
    if let Some(answer) = *file.write_answer.lock().unwrap() {
        return answer;
    }
    // SAFETY: the library gives `bytes` bytes.
    let from = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    let mut content = file.bytes.lock().unwrap();
    let end = offset as usize + bytes;
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset as usize..end].copy_from_slice(from);
    0
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn sync(context: *mut c_void) -> i64 {
    // SAFETY: see `file`.
    unsafe { file(context) }.sync_answer.lock().unwrap().unwrap_or(0)
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn length(context: *mut c_void) -> i64 {
    // SAFETY: see `file`.
    unsafe { file(context) }.bytes.lock().unwrap().len() as i64
}

/// What is wrong with the next regions.
#[derive(Clone, Copy, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    Refused,
    Null,
    Misaligned,
    TooSmall,
}

#[derive(Default)]
pub struct MemoryHeap {
    /// Live regions: start to size, as allocated.
    pub live: Mutex<BTreeMap<usize, usize>>,
    pub fault: Mutex<Fault>,
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn allocate(context: *mut c_void, region: *mut MzRegion) -> i64 {
    // SAFETY: the world's table has its heap as context; the region is the library's.
    let (heap, region) = unsafe { (&*context.cast::<MemoryHeap>(), &mut *region) };
    assert_eq!(region.struct_bytes as usize, size_of::<MzRegion>());
    let fault = *heap.fault.lock().unwrap();
    match fault {
        Fault::Refused => return i64::from(err(MzErr::OutOfMemory)),
        Fault::Null => return 0,
        _ => {}
    }
    let layout = Layout::from_size_align(region.bytes + 4096, 4096).unwrap();
    // SAFETY: the layout has a size.
    let start = unsafe { alloc_zeroed(layout) };
    assert!(!start.is_null());
    heap.live.lock().unwrap().insert(start.expose_provenance(), layout.size());
    region.start = start.cast();
    region.token = start.addr() as u64;
    match fault {
        Fault::Misaligned => region.start = start.wrapping_add(8).cast(),
        Fault::TooSmall => region.bytes -= 1,
        _ => {}
    }
    0
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn release(context: *mut c_void, region: *const MzRegion) {
    // SAFETY: as in `allocate`.
    let (heap, region) = unsafe { (&*context.cast::<MemoryHeap>(), &*region) };
    let start = region.token as usize;
    let bytes = heap.live.lock().unwrap().remove(&start).expect("a live region");
    let layout = Layout::from_size_align(bytes, 4096).unwrap();
    // SAFETY: it was allocated with this layout, and is not live any more.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(start), layout) };
}

// SAFETY: only the library calls it, with what the table and its contract say.
pub unsafe extern "C" fn now(_context: *mut c_void) -> u64 {
    0
}

/// Everything that a C program would have around a handle.
pub struct World {
    pub model: Box<MemoryFile>,
    pub swap: Box<MemoryFile>,
    pub heap: Box<MemoryHeap>,
    pub extents: Vec<MzExtent>,
    pub config: MzConfig,
    pub model_table: MzStorage,
    pub swap_table: MzStorage,
    pub memory_table: MzMemory,
    pub clock_table: MzClock,
    pub memory: Vec<u8>,
    pub handle: *mut MzHandle,
}

pub fn weight_byte(index: u64) -> u8 {
    (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn storage(file: &MemoryFile) -> MzStorage {
    MzStorage {
        struct_bytes: MzStorage::own_bytes(),
        flags: 0,
        context: ptr::from_ref(file).cast_mut().cast(),
        read: Some(read),
        write: Some(write),
        sync: Some(sync),
        discard: None,
        length: Some(length),
        direct: None,
    }
}

impl World {
    /// Not opened yet.
    pub fn new() -> World {
        let model = Box::new(MemoryFile::default());
        let bytes = u64::from(UNITS) * UNIT_BYTES;
        *model.bytes.lock().unwrap() = (0..bytes).map(weight_byte).collect();
        let swap = Box::new(MemoryFile::default());
        let heap = Box::new(MemoryHeap::default());
        let extents: Vec<MzExtent> = (0..u64::from(UNITS))
            .map(|unit| MzExtent {
                file_offset: unit * UNIT_BYTES,
                bytes: UNIT_BYTES,
                buffer_offset: 0,
            })
            .collect();
        World {
            config: config(&extents),
            model_table: storage(&model),
            swap_table: storage(&swap),
            memory_table: MzMemory {
                struct_bytes: MzMemory::own_bytes(),
                flags: 0,
                context: ptr::from_ref(&*heap).cast_mut().cast(),
                allocate: Some(allocate),
                release: Some(release),
                zero: None,
                begin_host: None,
                begin_fill: None,
                end_fill: None,
                begin_device: None,
                end: None,
                trim: None,
            },
            clock_table: MzClock {
                struct_bytes: MzClock::own_bytes(),
                flags: 0,
                context: ptr::null_mut(),
                now: Some(now),
            },
            model,
            swap,
            heap,
            extents,
            memory: Vec::new(),
            handle: ptr::null_mut(),
        }
    }

    pub fn ports(&self) -> MzPorts {
        MzPorts {
            struct_bytes: MzPorts::own_bytes(),
            flags: 0,
            model: &raw const self.model_table,
            swap: &raw const self.swap_table,
            memory: &raw const self.memory_table,
            clock: &raw const self.clock_table,
            park: ptr::null(),
            threads: ptr::null(),
            meter: ptr::null(),
            log: ptr::null(),
            owner: ptr::null_mut(),
        }
    }

    /// Opened, empty.
    pub fn open() -> World {
        let mut world = World::new();
        let ports = world.ports();
        let (result, error) = world.try_open(&ports);
        assert_eq!(result, MZ_OK, "{}", what(&error));
        world
    }

    /// Opened, with a context of known values.
    pub fn filled() -> World {
        let world = World::open();
        world.fill();
        world
    }

    pub fn try_open(&mut self, ports: *const MzPorts) -> (c_int, MzError) {
        let mut error = answer::details(None);
        let mut bytes = 0;
        // SAFETY: all pointers are to live values.
        let sized = unsafe { mz_required_bytes(&self.config, &mut bytes, &mut error) };
        if sized != MZ_OK {
            return (sized, error);
        }
        self.memory = vec![0xA5; bytes];
        let memory = self.memory.as_mut_ptr().cast();
        // SAFETY: as above; the memory lives as long as the world.
        let opened =
            unsafe { mz_open(&self.config, ports, memory, bytes, &mut self.handle, &mut error) };
        (opened, error)
    }

    pub fn fill(&self) {
        assert_eq!(self.call_with(mz_restore_begin, TOKENS), MZ_OK);
        for (layer, token) in all_tokens() {
            let span = self.tail(layer, token).unwrap();
            let values = span.data.cast::<u16>();
            for (index, place) in places(token).enumerate() {
                // SAFETY: the chunk is taken for writing, and the place is inside.
                unsafe { values.add(place).write(value(layer, token, index)) };
            }
            assert_eq!(self.release_tail(layer, token), MZ_OK);
        }
        assert_eq!(self.call_with(mz_restore_end, TOKENS), MZ_OK);
    }

    /// Calls a function with the handle.
    pub fn call(&self, function: unsafe extern "C" fn(*mut MzHandle) -> c_int) -> c_int {
        // SAFETY: the handle's memory lives as long as the world.
        unsafe { function(self.handle) }
    }

    /// Calls a function with the handle and a number.
    pub fn call_with(
        &self,
        function: unsafe extern "C" fn(*mut MzHandle, u32) -> c_int,
        number: u32,
    ) -> c_int {
        // SAFETY: the handle's memory lives as long as the world.
        unsafe { function(self.handle, number) }
    }

    pub fn release_kv(&self, layer: u32, count: u32) -> c_int {
        // SAFETY: the handle's memory lives as long as the world.
        unsafe { mz_release_kv(self.handle, layer, count) }
    }

    pub fn release_tail(&self, layer: u32, token: u32) -> c_int {
        // SAFETY: the handle's memory lives as long as the world.
        unsafe { mz_release_tail(self.handle, layer, token) }
    }

    pub fn tail(&self, layer: u32, token: u32) -> Result<MzSpan, c_int> {
        let mut span = no_span();
        // SAFETY: the handle is open, the span lives.
        match unsafe { mz_kv_tail(self.handle, layer, token, &mut span) } {
            MZ_OK => Ok(span),
            error => Err(error),
        }
    }

    pub fn weights(&self, layer: u32) -> Result<MzSpan, c_int> {
        let mut span = no_span();
        // SAFETY: the handle is open, the span lives.
        match unsafe { mz_wait_weights(self.handle, layer, &mut span) } {
            MZ_OK => Ok(span),
            error => Err(error),
        }
    }

    pub fn kv(&self, layer: u32, room: u32) -> Result<Vec<MzSpan>, (c_int, u32)> {
        let mut spans = vec![no_span(); room as usize];
        let mut count = room;
        // SAFETY: the handle is open, there are as many spans as `count` says.
        match unsafe { mz_wait_kv(self.handle, layer, spans.as_mut_ptr(), &mut count) } {
            MZ_OK => {
                spans.truncate(count as usize);
                Ok(spans)
            }
            error => Err((error, count)),
        }
    }

    pub fn evict(&self) -> MzReport {
        // SAFETY: zeroes are a report.
        let mut report: MzReport = unsafe { core::mem::zeroed() };
        report.struct_bytes = MzReport::own_bytes();
        // SAFETY: the handle is open, the report lives.
        assert_eq!(unsafe { mz_evict(self.handle, u64::MAX, 0, &mut report) }, MZ_OK);
        report
    }

    pub fn last(&self) -> MzError {
        let mut error = answer::details(None);
        // SAFETY: the handle is open, the table lives.
        assert_eq!(unsafe { mz_last_error(self.handle, &mut error) }, MZ_OK);
        error
    }

    pub fn close(&self) -> c_int {
        self.call(mz_close)
    }

    pub fn live_regions(&self) -> usize {
        self.heap.live.lock().unwrap().len()
    }

    /// Restores everything, checks every byte, ends the leases.
    pub fn check_all(&self) {
        assert_eq!(self.call(mz_restore), MZ_OK);
        for unit in 0..UNITS {
            let span = self.weights(unit).unwrap();
            // SAFETY: the unit is leased.
            let bytes = unsafe { core::slice::from_raw_parts(span.data.cast::<u8>(), span.bytes) };
            let first = u64::from(unit) * UNIT_BYTES;
            assert!(bytes.iter().zip(first..).all(|(byte, at)| *byte == weight_byte(at)));
        }
        for layer in 0..LAYERS {
            let spans = self.kv(layer, CONTEXT_MAX / 256).unwrap();
            for token in 0..TOKENS {
                let values = spans[token as usize / 256].data.cast::<u16>();
                for (index, place) in places(token).enumerate() {
                    // SAFETY: the chunk is leased, and the place is inside.
                    let found = unsafe { values.add(place).read() };
                    assert_eq!(found, value(layer, token, index));
                }
            }
        }
        assert_eq!(self.call(mz_release_all), MZ_OK);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !self.handle.is_null() && !std::thread::panicking() {
            self.call(mz_release_all);
            self.close();
            assert_eq!(self.live_regions(), 0);
        }
    }
}

fn config(extents: &[MzExtent]) -> MzConfig {
    MzConfig {
        struct_bytes: MzConfig::own_bytes(),
        kv_layers: LAYERS,
        kv_heads: 1,
        head_dim: 32,
        context_tokens_max: CONTEXT_MAX,
        weight_units: UNITS,
        extents: extents.as_ptr(),
        extents_per_unit: ptr::null(),
        extent_count: UNITS,
        swap_file: 1,
        codec: MzCodec::Raw as u32,
        order: 0,
        scheme: 0,
        segment_bytes: 0,
        order_seed: 0,
        hwcap: 0,
        read_bytes_per_s: 0,
        write_bytes_per_s: 0,
        pack_bytes_per_s: 0,
        unpack_bytes_per_s: 0,
        steps: ptr::null(),
        steps_bytes: 0,
        workers: ptr::null(),
        worker_count: 0,
        worker_stack_bytes: 0,
        paths: 0,
        reserved: 0,
    }
}

pub fn no_span() -> MzSpan {
    let struct_bytes = MzSpan::own_bytes();
    MzSpan { struct_bytes, index: 0, data: ptr::null_mut(), bytes: 0, token: 0 }
}

pub fn what(error: &MzError) -> std::string::String {
    let bytes = error.what.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    format!("{} {}", std::string::String::from_utf8(bytes).unwrap(), error.value)
}

fn all_tokens() -> impl Iterator<Item = (u32, u32)> {
    (0..LAYERS).flat_map(|layer| (0..TOKENS).map(move |token| (layer, token)))
}

/// Places of a token's values in its chunk: K, then V.
fn places(token: u32) -> impl Iterator<Item = usize> {
    let row = token as usize % 256;
    (0..2).flat_map(move |plane| (0..32).map(move |index| (plane * 256 + row) * 32 + index))
}

fn value(layer: u32, token: u32, index: usize) -> u16 {
    let mixed = (u64::from(layer) << 40 | u64::from(token) << 20 | index as u64)
        .wrapping_mul(0xD129_0D3F_1B2C_4E05);
    (mixed >> 48) as u16
}
