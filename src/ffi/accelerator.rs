//! Sessions of C that compute through OpenCL.

use super::opencl;
use super::ports::LogPort;
use super::raw;
use super::session::Opening;
use super::tables::{MzBackend, MzModelConfig};
use crate::arena::{Arena, Sizer};
use crate::error::Result;
use crate::infer::Session;
use crate::infer::opencl::{Accelerator, ClOptions};
use crate::port::opencl::{Api, BuildLog, Choice, ProgramCache};
use core::ffi::CStr;

/// Longest log of a compiler that is looked at.
const LOG_BYTES: usize = 4096;

/// Which device, and how.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    library: Option<&'a CStr>,
    device: Choice<'a>,
    cache: Option<&'a CStr>,
    falls_back: bool,
}

/// # Safety
///
/// Texts of the table are texts, and nobody changes them during the call.
pub(super) unsafe fn wanted(table: &MzModelConfig) -> Result<Wanted<'_>> {
    // SAFETY: the caller's promise.
    let (library, device, cache) = unsafe {
        (
            raw::optional_text(table.opencl_library, "mz_model_config.opencl_library")?,
            opencl::choice(table.opencl_device, "mz_model_config.opencl_device")?,
            raw::optional_text(table.opencl_cache, "mz_model_config.opencl_cache")?,
        )
    };
    let falls_back = table.backend == MzBackend::Auto as u32;
    Ok(Wanted { library, device, cache, falls_back })
}

/// A session on the device, or on the processor if that will do; and which of the two.
pub(super) fn open(
    wanted: &Wanted<'_>,
    log: LogPort,
    arena: &mut Arena,
    opening: Opening<'_>,
) -> Result<(Session, bool)> {
    let (start, bytes) = (opening.memory.as_mut_ptr(), opening.memory.len());
    // SAFETY: it is the same memory, which nobody uses when the attempt has failed.
    let again = || unsafe { raw::memory(start, bytes) };
    match on_device(wanted, arena, Opening { memory: again()?, ..opening }) {
        Ok(session) => Ok((session, true)),
        Err(error) if wanted.falls_back => {
            log.warn(c"computing on the processor", error);
            Ok((Opening { memory: again()?, ..opening }.on_cpu()?, false))
        }
        Err(error) => Err(error),
    }
}

/// Adds what [`open`] places besides the session.
pub(super) fn size(sizer: &mut Sizer) -> Result<()> {
    sizer.value::<Api>()
}

fn on_device(wanted: &Wanted<'_>, arena: &mut Arena, opening: Opening<'_>) -> Result<Session> {
    let api: &'static Api = arena.value(Api::load(wanted.library)?)?;
    let accelerator = Accelerator::open(api, wanted.device, None)?;
    let cache = wanted.cache.map(ProgramCache::new);
    let options = ClOptions { cache, ..ClOptions::default() };
    let mut bytes = [0; LOG_BYTES];
    let mut build = BuildLog::new(&mut bytes);
    let Opening { model, config, memory, ports } = opening;
    Session::open_on(&accelerator, model, &config, &options, &mut build, memory, ports)
}
