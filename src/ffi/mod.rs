//! The C ABI, and nothing but the C ABI.
//!
//! Each function here parses its pointers once, calls safe code, and converts the result once.
//! Invariant: an argument that can be recognised as wrong gives a code and has no effect; nothing
//! but an address that lies (memory that is not there, or a callback that breaks its word) leads
//! to undefined behaviour. It holds no logic of the manager and creates no threads but those that
//! `mz_config.workers` asks for, through their port.
//!
//! `types` and `tables` are what C sees, `layout` fixes their bytes, `raw` turns pointers into
//! values, `config`, `ports`, `memory` and `threads` translate what comes in, `door` tells what is
//! open and who is inside, `handle` is the state behind a `mz_handle`, `holds` its leases,
//! `session` that behind a `mz_model`, `own_memory` the library's own shared buffers, `answer` what
//! goes out. Functions are here, in `leases` and `checkpoint`, and in `linux`, `opencl` and `model`
//! with the features `host`, `opencl` and `infer`. The header `linker/mzcache.h` is generated from
//! this module, doc comments included: they are written for users of C.

#![expect(clippy::missing_safety_doc, reason = "callers are C; their promises are in the header")]

#[cfg(all(feature = "infer", feature = "opencl"))]
mod accelerator;
mod answer;
pub mod checkpoint;
mod config;
mod door;
mod handle;
mod holds;
mod layout;
pub mod leases;
#[cfg(feature = "host")]
pub mod linux;
mod memory;
#[cfg(feature = "infer")]
pub mod model;
#[cfg(feature = "opencl")]
pub mod opencl;
#[cfg(feature = "host")]
mod own_memory;
#[cfg(all(feature = "panic-handler", not(feature = "host"), not(test)))]
mod panic;
mod ports;
mod raw;
#[cfg(feature = "infer")]
mod session;
pub mod tables;
mod threads;
pub mod types;

#[cfg(test)]
mod tests;

use crate::error::Result;
use crate::units::{ByteCount, Nanos, TokenCount};
use answer::result;
use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use handle::{Call, Handle};
use raw::{Place, Tables};
use tables::MzPorts;
use types::{MZ_OK, MzConfig, MzError, MzHandle, MzReport, MzStats};

/// Runs a call inside a handle, remembers its failure.
///
/// # Safety
///
/// As for [`Call::enter`].
unsafe fn inside(
    handle: *const MzHandle,
    body: impl FnOnce(&'static Handle) -> Result<c_int>,
) -> c_int {
    // SAFETY: the caller's promise.
    let call = match unsafe { Call::enter(handle.cast()) } {
        Ok(call) => call,
        Err(error) => return result(error),
    };
    body(call.object()).unwrap_or_else(|error| {
        call.note(error);
        result(error)
    })
}

/// Runs a call that has no handle; its failure goes to the caller's `mz_error`, if there is one.
///
/// # Safety
///
/// As for [`Tables::one`], where `details` is not null.
unsafe fn outside(details: *mut MzError, body: impl FnOnce() -> Result<()>) -> c_int {
    let place = match details.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => match unsafe { Tables::one(details) } {
            Ok(place) => Some(place),
            Err(error) => return result(error),
        },
    };
    let done = body();
    if let Some(place) = place {
        place.write(0, &answer::details(done.err()));
    }
    done.map_or_else(result, |()| MZ_OK)
}

/// How much memory mz_open needs for this configuration, at any alignment.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_required_bytes(
    config: *const MzConfig,
    bytes: *mut usize,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(bytes, "bytes") }?;
        // SAFETY: the caller's promise.
        place.set(unsafe { config::with(config, handle::required_bytes) }?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Opens a manager in the caller's memory, which belongs to it until mz_close has succeeded. All
/// weights are on storage and the context is empty. Nothing else is allocated but shared buffers,
/// through the memory port. A failure leaves nothing behind in the memory.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_open(
    config: *const MzConfig,
    ports: *const MzPorts,
    memory: *mut c_void,
    bytes: usize,
    handle: *mut *mut MzHandle,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(handle, "handle") }?;
        let memory = memory.cast::<MaybeUninit<u8>>();
        let places = [
            raw::extent(handle, 1),
            raw::extent(error, 1),
            raw::extent(config, 1),
            raw::extent(ports, 1),
        ];
        // SAFETY: the caller's promise.
        place.set(unsafe { handle::open(config, ports, memory, bytes, &places) }?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Closes a manager, gives all shared buffers back, and the memory to the caller. The context is
/// gone. MZ_ERR_LEASED while leases are out, MZ_ERR_BAD_STATE while other calls are running or when
/// it is not open; then nothing happens. The handle is not valid any more: calls with it are
/// refused as long as its memory is not used for something else.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_close(handle: *mut MzHandle) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { handle::close(handle) };
    done.map_or_else(
        |error| {
            // SAFETY: the caller's promise. Where the handle is not open, nobody remembers.
            unsafe { inside(handle, |_| Err(error)) };
            result(error)
        },
        |()| MZ_OK,
    )
}

/// Begins a pass after which the context may have up to that many tokens: adds chunks for them and
/// begins to restore whatever is not in memory. An eviction that is running is stopped first.
/// Restoration proceeds in worker threads, or whenever some thread is in mz_restore_poll or waits
/// for a unit. mz_restore_end ends the pass.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_begin(handle: *mut MzHandle, tokens: u32) -> c_int {
    let tokens = TokenCount::new(tokens);
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.runtime().begin_pass(tokens).map(|()| MZ_OK)) }
}

/// Executes one action of a restore or an eviction on the caller, and what follows from it at
/// once. Returns 1 when something was done, 0 when there is nothing to do now.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_poll(handle: *mut MzHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| Ok(c_int::from(handle.runtime().poll()))) }
}

/// As mz_restore_poll, but only actions of certain roles: a sum of MZ_ROLE_*. For spare threads
/// that their owner keeps on certain cores, such as the big ones for MZ_ROLE_READ + MZ_ROLE_UNPACK
/// and the middle ones for MZ_ROLE_ALLOCATE; the library pins nobody. Android confines the threads
/// of an app in the background to few cores: pin them again when it comes back.
/// MZ_ERR_UNSUPPORTED for other bits.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_poll_roles(handle: *mut MzHandle, roles: u32) -> c_int {
    let body = |handle: &'static Handle| {
        Ok(c_int::from(handle.runtime().poll_roles(config::roles(roles)?)))
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Lets every worker thread ask for its core again, after the app came back to the foreground:
/// Android had confined its threads to fewer cores. mz_stats then says who got it.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_repin(handle: *mut MzHandle) -> c_int {
    let body = |handle: &'static Handle| {
        handle.runtime().repin();
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Ends a pass: the K and V of all tokens below that number are written in every layer, and the
/// context is that long now. It does not wait for units that nobody asked for. MZ_ERR_CANCELLED:
/// chunks written to were evicted meanwhile, the context is as before the pass; begin it again.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_end(handle: *mut MzHandle, tokens: u32) -> c_int {
    let tokens = TokenCount::new(tokens);
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.runtime().commit(tokens).map(|()| MZ_OK)) }
}

/// Brings everything back into memory and returns when it is there.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore(handle: *mut MzHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.runtime().restore().map(|()| MZ_OK)) }
}

/// Stops a running restore: each unit is then as it was before, or fully restored.
/// MZ_ERR_BAD_STATE when none is running.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_restore_cancel(handle: *mut MzHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.runtime().cancel_restore().map(|()| MZ_OK)) }
}

/// Frees at least that many bytes of shared buffers and RAM swap, or says how much could be freed
/// and why no more. Ends soon after deadline_ns nanoseconds (0: none): an action that is running is
/// finished, no other is begun. A running restore is cancelled; leased units stay.
/// MZ_ERR_BAD_STATE while another thread's eviction is running. The report may be NULL.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_evict(
    handle: *mut MzHandle,
    bytes: u64,
    deadline_ns: u64,
    report: *mut MzReport,
) -> c_int {
    let body = |handle: &'static Handle| {
        let place = match report.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Tables::one(report) }?),
        };
        let deadline = (deadline_ns != 0).then_some(Nanos::new(deadline_ns));
        let done = handle.evict(ByteCount::new(bytes), deadline)?;
        if let Some(place) = place {
            place.write(0, &answer::report(&done));
        }
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Cuts the context. Chunks beyond its new end are given up; MZ_ERR_LEASED while one is leased.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_truncate(handle: *mut MzHandle, tokens: u32) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { inside(handle, |handle| handle.truncate(tokens).map(|()| MZ_OK)) }
}

/// Returns 1, and the first token of a chunk that the storage lost, if that happened: mz_truncate
/// to it and compute the rest again. Returns 0 if nothing is lost.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_lost(handle: *mut MzHandle, token: *mut u32) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(token, "token") }?;
        let lost = handle.runtime().lost();
        if let Some(first) = lost {
            place.set(first.get());
        }
        Ok(c_int::from(lost.is_some()))
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// The caller's engine reports a layer's queries of a batch, after rotation, so that the codec puts
/// its error where attention does not look: for each of kv_heads * head_dim K channels the sum of
/// squared query values over the batch's tokens and the query heads that read it. Layers in order.
/// Of use until the first eviction, for the first 1024 tokens or so; ignored later, and by codecs
/// without a step profile. rotary_halves: 1 where rotation turns channel i with i + head_dim / 2, 0
/// where it turns 2 i with 2 i + 1.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_add_query_energy(
    handle: *mut MzHandle,
    layer: u32,
    rotary_halves: u32,
    tokens: u32,
    energies: *const f32,
    count: usize,
) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let energies = unsafe { raw::slice(energies, count, "energies") }?;
        handle.add_query_energy(layer, config::rotary_pairs(rotary_halves)?, tokens, energies)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Writes the step profile that this context's chunks are packed with, to be saved with the model
/// and given as mz_config.steps the next time. MZ_ERR_BAD_STATE: there is none, because nothing was
/// evicted yet or the codec uses none. MZ_ERR_MEMORY_TOO_SMALL: mz_last_error says how many bytes
/// it takes. *written is set when it was written.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_steps(
    handle: *mut MzHandle,
    into: *mut c_void,
    bytes: usize,
    written: *mut usize,
) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(written, "written") }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { raw::memory(into.cast::<MaybeUninit<u8>>(), bytes) }?;
        memory.fill(MaybeUninit::new(0));
        // SAFETY: every byte was just set.
        let memory = unsafe { memory.assume_init_mut() };
        place.set(handle.write_steps(memory)?);
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Numbers for people and logs.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_stats_get(handle: *mut MzHandle, stats: *mut MzStats) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let place = unsafe { Tables::one(stats) }?;
        place.write(0, &answer::stats(handle.runtime()));
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Why the last call with this handle that failed did. Other threads' calls count too.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_last_error(handle: *mut MzHandle, error: *mut MzError) -> c_int {
    let body = |handle: &'static Handle| {
        // SAFETY: the caller's promise.
        let place = unsafe { Tables::one(error) }?;
        place.write(0, &answer::details(handle.last()));
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// What a result means, and what to do about it, in a few words. Any number will do; the text is
/// constant.
#[unsafe(no_mangle)]
pub extern "C" fn mz_strerror(result: c_int) -> *const c_char {
    answer::message(result)
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn mz_version() -> *const c_char {
    answer::version()
}
