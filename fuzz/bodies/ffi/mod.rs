//! Sequences of C calls, some of them with arguments that no careful program gives.
//!
//! ```text
//! 0 codec     1 what is wrong with the first mz_config, 0: nothing
//! 2 shift of the memory, and from 64 on: host and device take turns with buffers
//! then calls: one byte says which, the next ones are its arguments
//! ```
//!
//! Whatever comes: each call answers with a code that the header has; wrong pointers and tables are
//! refused; nothing around the handle's memory is written to; weights are the model's bytes, and KV
//! what was written; a handle that is closed gives back every buffer and is refused from then on.
//! The swap file outlives the handle; `kept` says what the next one must find there.

mod kept;
mod plain;
mod world;

use super::reader::Reader;
use kept::Kept;
use mzcache::ffi::leases::{
    mz_kv_tail, mz_kv_tail_device, mz_release_all, mz_release_kv, mz_release_tail,
    mz_release_weights, mz_wait_kv, mz_wait_kv_device, mz_wait_kv_table, mz_wait_weights,
    mz_wait_weights_device,
};
use mzcache::ffi::types::{MzCodec, MzConfig, MzDeviceSpan, MzErr, MzError, MzHandle, MzSpan};
use mzcache::ffi::{
    mz_close, mz_lost, mz_open, mz_repin, mz_required_bytes, mz_restore, mz_restore_begin,
    mz_restore_cancel, mz_restore_end, mz_restore_poll, mz_restore_poll_roles, mz_strerror,
    mz_truncate,
};
use plain::{energy, evict, last_error, spoil, stats, steps, table};
use std::ffi::{CStr, c_int, c_void};
use std::mem::zeroed;
use std::ptr;
use world::{CHUNKS_MAX, HEAD_DIM, LAYERS, UNIT_BYTES, World, size_of_u32, value, weight_byte};

const INVALID: c_int = MzErr::InvalidArgument as c_int;
const BAD_STATE: c_int = MzErr::BadState as c_int;
const CALLS_MAX: usize = 200;
/// Of no function: it sets what the caller's callbacks answer next.
const FAULTS_CALL: u8 = 25;
/// From here on without a handle.
const TAG_CALL: u8 = 31;
const REOPEN_CALL: u8 = 32;
const DAMAGE_CALL: u8 = 33;

/// Numbers at and around every limit.
const NUMBERS: [u32; 12] = [0, 1, 2, 3, 255, 256, 300, 600, 1023, 1024, 1025, u32::MAX];
const BYTES: [u64; 5] = [0, 1, 9000, 40_000, u64::MAX];
const FAULTS: [i64; 6] = [-20, -32, -33, -1005, -1, i64::MIN];

/// Runs a program of calls; whether it opened a manager and committed something.
pub fn ffi(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let mut program =
        Program { world: World::new(), kept: Kept::default(), is_raw: false, committed: false };
    program.open(&mut reader);
    for _ in 0..CALLS_MAX {
        if reader.0.is_empty() {
            break;
        }
        program.call(&mut reader);
        program.world.look_at_canaries();
    }
    program.close();
    program.committed
}

struct Program {
    world: Box<World>,
    kept: Kept,
    is_raw: bool,
    committed: bool,
}

/// A result that the header has.
fn known(result: c_int) -> c_int {
    // SAFETY: every number has a text, which is constant and ends with a 0 byte.
    let text = unsafe { CStr::from_ptr(mz_strerror(result)) };
    assert!(result >= 0 || text != c"unknown error", "{result}");
    result
}

impl Program {
    fn open(&mut self, reader: &mut Reader<'_>) {
        let world = &mut *self.world;
        let codecs = [MzCodec::Raw, MzCodec::Q8, MzCodec::Kv4, MzCodec::Kvh, MzCodec::CacheGen];
        world.config.codec = reader.pick(&codecs) as u32;
        self.is_raw = world.config.codec == MzCodec::Raw as u32;
        let (wrong, shift) = (reader.byte(), usize::from(reader.byte()));
        if shift & 64 != 0 {
            world.take_turns();
        }
        let setup = Some(world.config.codec).filter(|_| wrong <= 15);
        self.kept.open(setup, world.has_written.take());
        world.is_poisoned.set(false);
        // As long as any size that is believed, so that a table may say so.
        // SAFETY: zeroes are a table.
        let mut tables = [unsafe { zeroed::<MzConfig>() }; 8];
        tables[0] = world.config;
        spoil(&mut tables[0], wrong, reader);
        let config = tables.as_ptr();
        let (mut bytes, mut handle) = (0, ptr::null_mut());
        let ports = world.ports();
        // SAFETY: zeroes are a table.
        let mut error: MzError = unsafe { zeroed() };
        error.struct_bytes = size_of_u32::<MzError>();
        // SAFETY: all pointers but those in the configuration are to live values, and those are
        // null or as long as they say.
        let sized = unsafe { mz_required_bytes(config, &mut bytes, &mut error) };
        // Nobody has memory for the longest contexts here.
        if known(sized) != 0 || bytes > 1 << 24 {
            return;
        }
        let memory = world.take_memory(bytes, shift % 64);
        // SAFETY: as above; the memory is the world's, and stays while the handle is open.
        unsafe {
            let small = mz_open(config, &ports, memory, bytes - 1, &mut handle, &mut error);
            assert!(small == MzErr::MemoryTooSmall as c_int && handle.is_null());
            let inside = memory.cast::<*mut MzHandle>().wrapping_byte_add(memory.align_offset(8));
            let over = mz_open(config, &ports, memory, bytes, inside, &mut error);
            assert_eq!(over, INVALID);
            let opened = mz_open(config, &ports, memory, bytes, &mut handle, &mut error);
            assert_eq!(known(opened) == 0, !handle.is_null());
        }
        world.handle = handle;
    }

    fn close(&mut self) {
        let world = &*self.world;
        if world.handle.is_null() {
            return;
        }
        // SAFETY: the handle's memory is there until the end.
        unsafe {
            assert_eq!(mz_release_all(world.handle), 0);
            self.look_for_losses();
            assert_eq!(mz_close(world.handle), 0);
            assert_eq!(mz_close(world.handle), BAD_STATE);
            assert_eq!(mz_restore(world.handle), BAD_STATE);
            Self::outlive(world.handle);
        }
        assert!(world.live.borrow().is_empty());
        world.look_at_canaries();
    }

    fn call(&mut self, reader: &mut Reader<'_>) {
        let (handle, call) = (self.handle(reader), reader.byte() % 34);
        let is_own = handle == self.world.handle && !handle.is_null();
        // SAFETY: the handle is the world's, or null, misaligned, or no handle; every other pointer
        // is to a live value or made to be refused.
        let result = unsafe {
            match call {
                0 => self.kept.begin(mz_restore_begin(handle, reader.pick(&NUMBERS))),
                1 => mz_restore_poll(handle),
                2 => mz_restore_poll_roles(handle, reader.byte().into()),
                3 => self.wait_weights(handle, reader),
                4 => mz_release_weights(handle, reader.pick(&NUMBERS)),
                5 => self.wait_kv(handle, reader),
                6 => mz_release_kv(handle, reader.pick(&NUMBERS), reader.pick(&NUMBERS)),
                7 | 8 => self.tail(handle, reader),
                9 => mz_release_tail(handle, reader.pick(&NUMBERS), reader.pick(&NUMBERS)),
                10 => mz_release_all(handle),
                11 => self.commit(handle, reader.pick(&NUMBERS)),
                12 => mz_restore(handle),
                13 => mz_restore_cancel(handle),
                14 | 15 => evict(handle, reader),
                16 => self.truncate(handle, reader.pick(&NUMBERS)),
                17 => mz_lost(handle, &mut 0),
                18 => mz_repin(handle),
                19 => stats(handle, reader),
                20 => last_error(handle, reader),
                21 => steps(handle, reader),
                22 => energy(handle, reader),
                23 => self.table(handle, reader),
                24 => mz_lost(handle, ptr::null_mut()),
                26 => self.weights_on_device(handle, reader),
                27 => self.kv_on_device(handle, reader),
                28 => self.tail_on_device(handle, reader),
                29 => self.checkpoint(handle, reader),
                30 => self.recover(handle, reader),
                TAG_CALL => kept::tag_tokens(reader),
                REOPEN_CALL => {
                    self.reopen(reader);
                    0
                }
                DAMAGE_CALL => {
                    self.damage(reader);
                    0
                }
                _ => {
                    assert_eq!(call, FAULTS_CALL);
                    self.world.fault.set(reader.pick(&FAULTS));
                    self.world.until_fault.set(reader.byte().into());
                    0
                }
            }
        };
        known(result);
        if !is_own && call != FAULTS_CALL && call < TAG_CALL {
            assert!(result == INVALID || result == BAD_STATE, "call {call}: {result}");
        }
    }

    /// The handle, mostly.
    fn handle(&self, reader: &mut Reader<'_>) -> *mut MzHandle {
        static NO_HANDLE: [u64; 8] = [7; 8];
        match reader.byte() {
            255 => ptr::null_mut(),
            254 => self.world.handle.wrapping_byte_add(1),
            253 => NO_HANDLE.as_ptr().cast_mut().cast(),
            _ => self.world.handle,
        }
    }

    /// # Safety
    ///
    /// As for the library's functions: the handle is one or is refused.
    unsafe fn wait_weights(&self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let layer = reader.pick(&NUMBERS);
        // SAFETY: zeroes are a table.
        let (tables, span, is_wrong) = table::<MzSpan>(reader, unsafe { zeroed() });
        // SAFETY: the caller's promise; the span is live or made to be refused.
        let result = unsafe { mz_wait_weights(handle, layer, span) };
        assert!(!is_wrong || result < 0);
        if result == 0 {
            let span = tables[0];
            assert!(span.bytes == UNIT_BYTES && self.world.is_live(span.data, span.bytes));
            let first = layer as usize * UNIT_BYTES;
            // SAFETY: the unit is leased, so its bytes are there.
            let bytes = unsafe { std::slice::from_raw_parts(span.data.cast::<u8>(), span.bytes) };
            assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == weight_byte(first + at)));
        }
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn wait_kv(&self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let layer = reader.pick(&NUMBERS);
        // SAFETY: zeroes are a table.
        let mut spans = [unsafe { zeroed::<MzSpan>() }; CHUNKS_MAX];
        spans[0].struct_bytes = size_of_u32::<MzSpan>();
        let room = u32::from(reader.byte()) % 5;
        let mut count = room;
        // SAFETY: the caller's promise; there are as many spans as `count` says.
        let result = unsafe { mz_wait_kv(handle, layer, spans.as_mut_ptr(), &mut count) };
        if result == 0 {
            assert!(count <= room);
            for span in &spans[..count as usize] {
                assert!(self.world.is_live(span.data, span.bytes));
                self.look_at(layer, span);
            }
        }
        result
    }

    /// A chunk holds what was written, or nothing.
    fn look_at(&self, layer: u32, span: &MzSpan) {
        if !self.is_raw {
            return;
        }
        for token in 0..256 {
            let expected = value(layer, span.index * 256 + token);
            let may_miss = !self.kept.knows(layer, span.index * 256 + token);
            let place = span.data.cast::<u16>().wrapping_add(token as usize * HEAD_DIM);
            // SAFETY: the chunk is leased, so its bytes are there; the token lies in it.
            let found = unsafe { place.read() };
            let is_right = found == expected || found == 0 && may_miss;
            assert!(is_right, "layer {layer}, token {token}: {found}");
        }
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn tail(&mut self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let (layer, token) = (u32::from(reader.byte()) % (LAYERS + 1), reader.pick(&NUMBERS));
        // SAFETY: zeroes are a table.
        let (tables, span, is_wrong) = table::<MzSpan>(reader, unsafe { zeroed() });
        // SAFETY: the caller's promise; the span is live or made to be refused.
        let result = unsafe { mz_kv_tail(handle, layer, token, span) };
        assert!(!is_wrong || result < 0);
        if result == 0 {
            let span = tables[0];
            assert!(span.index == token / 256 && self.world.is_live(span.data, span.bytes));
            let place = span.data.cast::<u16>().wrapping_add(token as usize % 256 * HEAD_DIM);
            // SAFETY: the chunk is taken for writing, and the token lies in it.
            unsafe { place.write(value(layer, token)) };
            self.kept.write(layer, token);
        }
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn weights_on_device(&self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let layer = reader.pick(&NUMBERS);
        // SAFETY: zeroes are a table.
        let (tables, span, is_wrong) = table::<MzDeviceSpan>(reader, unsafe { zeroed() });
        // SAFETY: the caller's promise; the span is live or made to be refused.
        let result = unsafe { mz_wait_weights_device(handle, layer, span) };
        assert!(!is_wrong || result < 0);
        assert!(result != 0 || (tables[0].index == layer && self.world.is_on_device(&tables[0])));
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn kv_on_device(&self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let layer = reader.pick(&NUMBERS);
        // SAFETY: zeroes are a table.
        let mut spans = [unsafe { zeroed::<MzDeviceSpan>() }; CHUNKS_MAX];
        spans[0].struct_bytes = size_of_u32::<MzDeviceSpan>();
        let room = u32::from(reader.byte()) % 5;
        let mut count = room;
        // SAFETY: the caller's promise; there are as many spans as `count` says.
        let result = unsafe { mz_wait_kv_device(handle, layer, spans.as_mut_ptr(), &mut count) };
        if result == 0 {
            assert!(count <= room);
            assert!(spans[..count as usize].iter().all(|span| self.world.is_on_device(span)));
        }
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn tail_on_device(&self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let (layer, token) = (u32::from(reader.byte()) % (LAYERS + 1), reader.pick(&NUMBERS));
        // SAFETY: zeroes are a table.
        let (tables, span, is_wrong) = table::<MzDeviceSpan>(reader, unsafe { zeroed() });
        // SAFETY: the caller's promise; the span is live or made to be refused.
        let result = unsafe { mz_kv_tail_device(handle, layer, token, span) };
        assert!(!is_wrong || result < 0);
        assert!(result != 0 || self.world.is_on_device(&tables[0]));
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn table(&self, handle: *mut MzHandle, reader: &mut Reader<'_>) -> c_int {
        let mut table = [ptr::null_mut::<c_void>(); CHUNKS_MAX];
        let mut count = u32::from(reader.byte()) % 5;
        let (layer, place) = (reader.pick(&NUMBERS), table.as_mut_ptr());
        // SAFETY: the caller's promise; the table has as many places as `count` says.
        let result = unsafe { mz_wait_kv_table(handle, layer, place, &mut count) };
        if result == 0 {
            assert!(table[..count as usize].iter().all(|chunk| self.world.is_live(*chunk, 4096)));
        }
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn commit(&mut self, handle: *mut MzHandle, tokens: u32) -> c_int {
        // SAFETY: the caller's promise.
        let result = unsafe { mz_restore_end(handle, tokens) };
        self.committed |= result == 0 && tokens > 0;
        self.kept.commit(result, tokens);
        result
    }

    /// # Safety
    ///
    /// As for `wait_weights`.
    unsafe fn truncate(&mut self, handle: *mut MzHandle, tokens: u32) -> c_int {
        // SAFETY: the caller's promise.
        self.kept.truncate(unsafe { mz_truncate(handle, tokens) }, tokens)
    }
}
