//! The functions by which a context outlives its process.
//!
//! As in the module above, nothing here but pointers made into values and results into codes.

use super::handle::Handle;
use super::inside;
#[cfg(feature = "host")]
use super::ports::check_flags;
use super::raw::{self, Place, Table, Tables};
use super::types::{MZ_OK, MzHandle, MzStop};
#[cfg(feature = "host")]
use crate::error::Result;
#[cfg(feature = "host")]
use crate::port::linux::HostPorts;
use crate::units::{Nanos, Tag};
#[cfg(feature = "host")]
use core::ffi::CStr;
use core::ffi::c_int;

/// mz_linux_config.flags, mz_opencl_config.flags, mz_model_config.flags: the swap file keeps what
/// it holds, for mz_recover.
pub const MZ_KEEP_SWAP: u32 = 1;

/// The caller's name for the tokens of a context, by which a later process recognises it: any 128
/// bits. mz_tag_tokens makes such names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MzTag {
    /// The lower half.
    pub low: u64,
    /// The upper half.
    pub high: u64,
}

/// What a checkpoint did.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzCheckpointReport {
    /// sizeof(struct mz_checkpoint_report).
    pub struct_bytes: u32,
    /// One of mz_stop: MZ_STOP_REACHED when all was written that there was, MZ_STOP_CANCELLED when
    /// an eviction or a pass came first.
    pub stop: u32,
    /// Bytes written to the swap file meanwhile.
    pub written_bytes: u64,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
    /// Tokens of the context, from the first on, that outlive the process from now on.
    pub durable_tokens: u32,
    /// 0.
    pub reserved: u32,
}

/// What was found of an earlier process's context.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzRecovered {
    /// sizeof(struct mz_recovered).
    pub struct_bytes: u32,
    /// Tokens of the context.
    pub tokens: u32,
    /// The first of those that are gone, to be computed again after mz_truncate; UINT32_MAX when
    /// none is known to be.
    pub lost: u32,
    /// 0.
    pub reserved: u32,
}

impl MzTag {
    fn get(self) -> Tag {
        Tag::new(u128::from(self.low) | u128::from(self.high) << 64)
    }
}

/// Goes on with a running hash of tokens: the tag of a context that was named by *tag and then got
/// these tokens. A tag of zeros is that of no tokens. It tells contexts apart, not one who forges
/// them.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_tag_tokens(tag: *mut MzTag, tokens: *const u32, count: usize) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(tag, "tag") }?;
        // SAFETY: the caller's promise.
        let tokens = unsafe { raw::slice(tokens, count, "tokens") }?;
        let before = place.get();
        let start = if before == MzTag::default() { Tag::EMPTY } else { before.get() };
        let [low, high] = halves(start.with(tokens).get());
        place.set(MzTag { low, high });
        Ok(())
    };
    // SAFETY: there is no place for details.
    unsafe { super::outside(core::ptr::null_mut(), body) }
}

fn halves(value: u128) -> [u64; 2] {
    let bytes = value.to_le_bytes();
    let (words, _) = bytes.as_chunks::<8>();
    [words[0], words[1]].map(u64::from_le_bytes)
}

/// Makes the context outlive the process: writes every chunk that has no good copy in the swap
/// file, evicting nothing, and makes all of it durable under that tag. What did not change since
/// the last checkpoint costs nothing. Ends soon after deadline_ns nanoseconds (0: none) and then
/// leaves the last checkpoint in place, unless more is on flash by now. Call it between passes: one
/// that begins meanwhile cancels it, as a cut of the context does; one that is running may be
/// cancelled. MZ_ERR_CORRUPT while a chunk is lost, MZ_ERR_BAD_STATE without a swap file. The
/// report may be NULL.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_checkpoint(
    handle: *mut MzHandle,
    tag: MzTag,
    deadline_ns: u64,
    report: *mut MzCheckpointReport,
) -> c_int {
    let body = |handle: &'static Handle| {
        let place = match report.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Tables::one(report) }?),
        };
        let deadline = (deadline_ns != 0).then_some(Nanos::new(deadline_ns));
        let done = handle.runtime().checkpoint(tag.get(), deadline)?;
        let report = MzCheckpointReport {
            struct_bytes: MzCheckpointReport::own_bytes(),
            stop: MzStop::of(done.stop) as u32,
            written_bytes: done.written.get(),
            elapsed_ns: done.elapsed.get(),
            durable_tokens: done.durable.get(),
            reserved: 0,
        };
        if let Some(place) = place {
            place.write(0, &report);
        }
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// Takes over the context that an earlier process left in the swap file under that tag, before
/// anything else is in the context. The next pass brings it back, with every byte checked.
/// MZ_ERR_BAD_MAGIC where there is no checkpoint, MZ_ERR_MISMATCH for one of another model,
/// configuration or tag, MZ_ERR_CORRUPT for none that is sound, MZ_ERR_BAD_STATE when there is a
/// context already: then compute it anew. The answer may be NULL.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_recover(
    handle: *mut MzHandle,
    tag: MzTag,
    recovered: *mut MzRecovered,
) -> c_int {
    let body = |handle: &'static Handle| {
        let place = match recovered.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Tables::one(recovered) }?),
        };
        let found = handle.runtime().recover(tag.get())?;
        let recovered = MzRecovered {
            struct_bytes: MzRecovered::own_bytes(),
            tokens: found.tokens.get(),
            lost: found.lost.map_or(u32::MAX, |lost| lost.get()),
            reserved: 0,
        };
        if let Some(place) = place {
            place.write(0, &recovered);
        }
        Ok(MZ_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { inside(handle, body) }
}

/// The library's own ports, by the flags of a table.
#[cfg(feature = "host")]
pub(super) fn host(
    model: &CStr,
    swap: Option<&CStr>,
    flags: u32,
    what: &'static str,
) -> Result<HostPorts> {
    check_flags(flags & !MZ_KEEP_SWAP, what)?;
    match flags & MZ_KEEP_SWAP {
        0 => HostPorts::open(model, swap),
        _ => HostPorts::open_kept(model, swap),
    }
}
