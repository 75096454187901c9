//! What goes out to C: results, filled tables, texts that end with a 0 byte.

use super::holds::OnDevice;
use super::raw::Table;
use super::types::{MZ_OK, MzDeviceSpan, MzErr, MzError, MzReport, MzSpan, MzStats, MzStop};
use crate::error::{Code, Error};
use crate::port::{DeviceRegion, Region};
use crate::runtime::{Report, Runtime};
use core::ffi::{c_char, c_int, c_void};

/// A failed call's result.
pub(super) fn result(error: Error) -> c_int {
    MzErr::of(error.code) as c_int
}

/// A leased unit.
pub(super) fn span(index: u32, region: &Region) -> MzSpan {
    MzSpan {
        struct_bytes: MzSpan::own_bytes(),
        index,
        data: region.start.as_ptr().cast(),
        bytes: region.bytes,
        token: region.token,
    }
}

/// The accelerator's own buffer of a region, as its library names it.
pub(super) fn buffer(region: &DeviceRegion) -> *mut c_void {
    let address = usize::try_from(region.buffer).unwrap_or(0);
    core::ptr::with_exposed_provenance_mut(address)
}

/// A unit leased for an accelerator.
pub(super) fn device_span(index: u32, unit: &OnDevice) -> MzDeviceSpan {
    MzDeviceSpan {
        struct_bytes: MzDeviceSpan::own_bytes(),
        index,
        address: unit.region.address,
        offset: unit.region.offset,
        buffer: buffer(&unit.region),
        bytes: unit.bytes,
    }
}

/// What an eviction did.
pub(super) fn report(done: &Report) -> MzReport {
    let booked = &done.booked;
    MzReport {
        struct_bytes: MzReport::own_bytes(),
        stop: MzStop::of(booked.stop) as u32,
        asked_bytes: booked.asked.get(),
        freed_bytes: booked.freed.get(),
        elapsed_ns: done.elapsed.get(),
        leased: booked.leased,
        error: booked.error.map_or(MZ_OK, result),
        measured_bytes: done.measured.unwrap_or(i64::MIN),
    }
}

/// Numbers for people and logs.
pub(super) fn stats(runtime: &Runtime) -> MzStats {
    let stats = runtime.stats();
    let flash = stats.flash.unwrap_or_default();
    MzStats {
        struct_bytes: MzStats::own_bytes(),
        tokens: stats.tokens.get(),
        weight_bytes: stats.tally.weight_bytes,
        kv_bytes: stats.tally.kv_bytes,
        ram_bytes: stats.tally.ram_bytes,
        allocated_bytes: stats.allocated_bytes,
        swap_written_bytes: flash.written_bytes,
        swap_read_bytes: flash.read_bytes,
        units_missing: stats.tally.missing,
        units_busy: stats.tally.busy,
        chunks_lost: stats.tally.lost,
        chunks_on_flash: stats.tally.flash_chunks,
        chunks_per_layer: u32::from(runtime.chunks()),
        segments: u32::from(stats.ram.segments),
        workers_pinned: u32::try_from(stats.workers_pinned).unwrap_or(u32::MAX),
        workers_unpinned: u32::try_from(stats.workers_unpinned).unwrap_or(u32::MAX),
        model_is_direct: u32::from(stats.model_is_direct),
        swap_is_direct: u32::from(stats.swap_is_direct.unwrap_or(false)),
    }
}

const TEXT_BYTES: usize = 96;
type Text = [u8; TEXT_BYTES];

/// Some words, one behind the other; there is always room for a 0 byte.
const fn text(parts: &[&str]) -> Text {
    let mut text = [0; TEXT_BYTES];
    let (mut part, mut place) = (0, 0);
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        assert!(place + bytes.len() < TEXT_BYTES);
        let mut index = 0;
        while index < bytes.len() {
            text[place] = bytes[index];
            place += 1;
            index += 1;
        }
        part += 1;
    }
    text
}

/// One text a code, in the order of [`Code::ALL`].
static MESSAGES: [Text; Code::ALL.len()] = {
    let mut messages = [[0; TEXT_BYTES]; Code::ALL.len()];
    let mut index = 0;
    while index < messages.len() {
        let code = Code::ALL[index];
        messages[index] = text(&[code.message(), ": ", code.advice()]);
        index += 1;
    }
    messages
};
static SUCCESS: Text = text(&["ok"]);
static UNKNOWN: Text = text(&["unknown error"]);
static VERSION: Text = text(&[env!("CARGO_PKG_VERSION")]);

/// What a result means; every number has an answer.
pub(super) fn message(result: c_int) -> *const c_char {
    let index = Code::ALL.iter().position(|code| *code as i32 == result.saturating_neg());
    let text = match index {
        _ if result >= 0 => &SUCCESS,
        Some(index) => &MESSAGES[index],
        None => &UNKNOWN,
    };
    text.as_ptr().cast()
}

/// The library's version.
pub(super) fn version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// A failure as C sees it; without one, all is 0. A `what` that is too long is cut.
pub(super) fn details(error: Option<Error>) -> MzError {
    let mut details =
        MzError { struct_bytes: MzError::own_bytes(), code: 0, value: 0, what: [0; 64] };
    if let Some(error) = error {
        details.code = -(error.code as i32);
        details.value = error.value;
        let (room, _end) = details.what.split_at_mut(63);
        for (place, byte) in room.iter_mut().zip(error.what.bytes()) {
            *place = c_char::from_ne_bytes([byte]);
        }
    }
    details
}
