//! `mz_config` as the runtime's configuration.
//!
//! Every number is hostile: those that enumerate are looked up, those that count go through the
//! checks of [`crate::runtime`], which name the field. The list of units is built on the stack, the
//! windows are read where they lie.

use super::raw;
use super::types::{MZ_ANY_CORE, MzConfig, MzOrder, MzPath, MzScheme, MzWorker};
use crate::codec::RotaryPairs;
use crate::error::{Code, Error, Result};
use crate::kernel::CpuFlags;
use crate::limits::{EXTENTS_PER_UNIT_MAX, LAYERS_MAX, WORKERS_MAX};
use crate::policy::{Order, Profile, Scheme};
use crate::runtime::{Config, Options, Worker};
use crate::state::{EvictPolicy, Paths, Roles};
use crate::units::{CodecId, Extent, KvShape, TokenCount, WeightUnit};

const EXTENTS_MAX: usize = LAYERS_MAX as usize * EXTENTS_PER_UNIT_MAX;
/// Longer than the profile of any shape within the limits.
const STEPS_BYTES_MAX: usize = 16 << 20;

/// Reads the table and runs `body` with what it means.
///
/// # Safety
///
/// If `config` is not null and aligned, it is readable as a `mz_config`, and so are its arrays;
/// nobody changes them during the call.
pub(super) unsafe fn with<R>(
    config: *const MzConfig,
    body: impl FnOnce(&Config<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: the caller's promise.
    let table = unsafe { raw::read(config) }?;
    let count = usize::try_from(table.weight_units).unwrap_or(usize::MAX);
    if count > usize::from(LAYERS_MAX) {
        return Err(Error::new(Code::LimitExceeded, "weight units").with(count));
    }
    let extent_count = usize::try_from(table.extent_count).unwrap_or(usize::MAX);
    if extent_count > EXTENTS_MAX {
        return Err(Error::new(Code::LimitExceeded, "mz_config.extent_count").with(extent_count));
    }
    // SAFETY: the caller's promise; the layouts of both types are the same, asserted in `layout`.
    let extents: &[Extent] =
        unsafe { raw::slice(table.extents.cast(), extent_count, "mz_config.extents") }?;
    let per_unit = match table.extents_per_unit.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe {
            raw::slice(table.extents_per_unit, count, "mz_config.extents_per_unit")
        }?),
    };
    let mut units = [WeightUnit { extents: &[] }; LAYERS_MAX as usize];
    let units = &mut units[..count];
    split(extents, per_unit, units)?;
    let weights = &*units;
    // SAFETY: the caller's promise.
    unsafe {
        with_options(&table, |options| body(&Config { shape: shape(&table)?, weights, options }))
    }
}

/// The table's choices, apart from the model's shape and units.
///
/// # Safety
///
/// The table's arrays are readable, and nobody changes them during the call.
pub(super) unsafe fn with_options<R>(
    table: &MzConfig,
    body: impl FnOnce(Options<'_>) -> Result<R>,
) -> Result<R> {
    let steps_bytes = usize::try_from(table.steps_bytes).unwrap_or(usize::MAX);
    if steps_bytes > STEPS_BYTES_MAX {
        return Err(Error::new(Code::LimitExceeded, "mz_config.steps_bytes").with(steps_bytes));
    }
    let steps = match table.steps.is_null() && steps_bytes == 0 {
        true => None,
        // SAFETY: the caller's promise.
        false => Some(unsafe { raw::slice(table.steps, steps_bytes, "mz_config.steps") }?),
    };
    let count = usize::try_from(table.worker_count).unwrap_or(usize::MAX);
    if count > WORKERS_MAX {
        return Err(Error::new(Code::LimitExceeded, "mz_config.worker_count").with(count));
    }
    // SAFETY: the caller's promise.
    let given: &[MzWorker] = unsafe { raw::slice(table.workers, count, "mz_config.workers") }?;
    let mut workers = [Worker::new(Roles::empty()); WORKERS_MAX];
    for (worker, given) in workers.iter_mut().zip(given) {
        let (roles, helps) = (roles(given.roles)?, roles(given.helps)?);
        *worker = Worker { roles, helps, core: core(given.core)? };
    }
    let mut options = options(table)?;
    options.steps = steps;
    options.workers = &workers[..count];
    body(options)
}

fn core(value: u32) -> Result<Option<u16>> {
    let refused = Error::new(Code::InvalidArgument, "mz_worker.core").with(value);
    match value {
        MZ_ANY_CORE => Ok(None),
        core => u16::try_from(core).map(Some).map_err(|_| refused),
    }
}

/// Deals the windows out to the units.
fn split<'a>(
    extents: &'a [Extent],
    per_unit: Option<&[u32]>,
    units: &mut [WeightUnit<'a>],
) -> Result<()> {
    let mut rest = extents;
    for (index, unit) in units.iter_mut().enumerate() {
        let count = per_unit.map_or(1, |counts| counts[index]);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (own, others) = rest
            .split_at_checked(count)
            .ok_or(Error::new(Code::InvalidArgument, "mz_config.extent_count").with(index))?;
        unit.extents = own;
        rest = others;
    }
    match rest.len() {
        0 => Ok(()),
        more => Err(Error::new(Code::InvalidArgument, "mz_config.extent_count").with(more)),
    }
}

fn shape(table: &MzConfig) -> Result<KvShape> {
    let small = |value: u32, what| {
        u16::try_from(value).map_err(|_| Error::new(Code::LimitExceeded, what).with(value))
    };
    Ok(KvShape {
        layers: small(table.kv_layers, "KV layers")?,
        kv_heads: small(table.kv_heads, "KV heads")?,
        head_dim: small(table.head_dim, "head size")?,
    })
}

fn options(table: &MzConfig) -> Result<Options<'static>> {
    let codec = codec(table.codec)?;
    let defaults = Options::default();
    if table.reserved != 0 {
        return Err(unsupported("mz_config.reserved", table.reserved));
    }
    let segment_bytes = match table.segment_bytes {
        0 => defaults.segment_bytes,
        bytes => bytes,
    };
    let stack_bytes = match table.worker_stack_bytes {
        0 => defaults.stack_bytes,
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
    };
    Ok(Options {
        context_tokens_max: TokenCount::new(table.context_tokens_max),
        codec,
        profile: profile(table, codec),
        evict: EvictPolicy {
            scheme: scheme(table.scheme)?,
            order: order(table)?,
            paths: paths(table.paths)?,
        },
        swap_file: switch(table.swap_file, "mz_config.swap_file")?,
        segment_bytes,
        stack_bytes,
        cpu: cpu(table.hwcap),
        ..defaults
    })
}

/// A sum of `MZ_PATH_*`; 0 means all.
fn paths(value: u32) -> Result<Paths> {
    const RAM: u32 = MzPath::Ram as u32;
    const FLASH: u32 = MzPath::Flash as u32;
    match value {
        0 => Ok(Paths::BOTH),
        value if value & !(RAM | FLASH) == 0 => {
            Ok(Paths { ram: value & RAM != 0, flash: value & FLASH != 0 })
        }
        other => Err(unsupported("mz_config.paths", other)),
    }
}

fn unsupported(what: &'static str, value: u32) -> Error {
    Error::new(Code::Unsupported, what).with(value)
}

/// Which channels rotation turns together.
pub(super) fn rotary_pairs(halves: u32) -> Result<RotaryPairs> {
    match halves {
        0 => Ok(RotaryPairs::Adjacent),
        1 => Ok(RotaryPairs::Halves),
        other => Err(unsupported("rotary_halves", other)),
    }
}

/// 0 or 1.
pub(super) fn switch(value: u32, what: &'static str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unsupported(what, other)),
    }
}

/// C counts from one, so that 0 can mean the default.
fn codec(value: u32) -> Result<CodecId> {
    let Some(number) = value.checked_sub(1) else { return Ok(CodecId::default()) };
    let known = u8::try_from(number).ok().and_then(CodecId::from_number);
    known.ok_or(unsupported("mz_config.codec", value))
}

fn order(table: &MzConfig) -> Result<Order> {
    const BACKWARD_OUT: u32 = MzOrder::BackwardOut as u32;
    const FORWARD_OUT: u32 = MzOrder::ForwardOut as u32;
    const RANDOM: u32 = MzOrder::Random as u32;
    const LRU: u32 = MzOrder::Lru as u32;
    match table.order {
        BACKWARD_OUT => Ok(Order::BackwardOut),
        FORWARD_OUT => Ok(Order::ForwardOut),
        RANDOM => Ok(Order::Random(table.order_seed)),
        LRU => Ok(Order::Lru),
        other => Err(unsupported("mz_config.order", other)),
    }
}

fn scheme(value: u32) -> Result<Scheme> {
    const HYBRID: u32 = MzScheme::Hybrid as u32;
    const PARTIAL_OFFLOAD: u32 = MzScheme::PartialOffload as u32;
    match value {
        HYBRID => Ok(Scheme::Hybrid),
        PARTIAL_OFFLOAD => Ok(Scheme::PartialOffload),
        other => Err(unsupported("mz_config.scheme", other)),
    }
}

/// Some roles, as a sum of `MZ_ROLE_*`.
pub(super) fn roles(value: u32) -> Result<Roles> {
    let known = u8::try_from(value).ok().and_then(Roles::from_bits);
    known.ok_or(unsupported("roles", value))
}

/// The default rates, with those that were measured.
fn profile(table: &MzConfig, codec: CodecId) -> Profile {
    let mut profile = Profile::DEFAULT;
    let set = |place: &mut u64, measured: u64| {
        if measured != 0 {
            *place = measured;
        }
    };
    set(&mut profile.read_bytes_per_s, table.read_bytes_per_s);
    set(&mut profile.write_bytes_per_s, table.write_bytes_per_s);
    let rates = profile.rates_mut(codec);
    set(&mut rates.pack_bytes_per_s, table.pack_bytes_per_s);
    set(&mut rates.unpack_bytes_per_s, table.unpack_bytes_per_s);
    profile
}

/// What kernels may use: what this build can ask for, and what the caller knows. The word means
/// something on AArch64 only.
fn cpu(hwcap: u64) -> CpuFlags {
    let given = match cfg!(target_arch = "aarch64") {
        true => CpuFlags::from_hwcap(hwcap),
        false => CpuFlags::empty(),
    };
    #[cfg(feature = "host")]
    let known = crate::port::linux::host_cpu();
    #[cfg(not(feature = "host"))]
    let known = CpuFlags::detect();
    known | given
}
