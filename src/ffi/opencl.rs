//! The library's own ports for an engine of the caller's own on an accelerator.
//!
//! Files, time, waiting and threads are those of `linux`; shared buffers are OpenCL's, and the
//! caller gets the device's raw names, so that its kernels run on them. In archives with the
//! feature `opencl`.

use super::checkpoint::MZ_KEEP_SWAP;
use super::config;
use super::linux::LinuxPorts;
use super::outside;
use super::ports::{Owner, check_flags};
use super::raw::{self, Place, Table, Tables};
use super::tables::{MzOpenClConfig, MzOpenClInfo, MzPorts, MzSharing};
use super::types::MzError;
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::port::SharedMemory;
use crate::port::opencl::{
    Api, Choice, Context, DeviceBuffers, Devices, MemoryMode, Queue, STAGING_BYTES,
};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};

/// A device and its shared buffers, dropped in this order.
struct Device {
    buffers: DeviceBuffers,
    queue: Queue,
    context: Context,
}

/// The ports. They begin with those of `linux`, whose callbacks find them by the same address.
#[repr(C)]
struct OpenClPorts {
    own: LinuxPorts,
    device: ManuallyDrop<Device>,
}

/// How many units there are, and how many bytes all chunks take.
struct Room {
    regions: usize,
    chunk_bytes: usize,
}

/// Which device a name means.
///
/// # Safety
///
/// As for [`raw::optional_text`].
pub(super) unsafe fn choice<'a>(name: *const c_char, what: &'static str) -> Result<Choice<'a>> {
    // SAFETY: the caller's promise.
    match unsafe { raw::optional_text(name, what) }?.map(CStr::to_str) {
        None => Ok(Choice::Best),
        Some(Ok(name)) => Ok(Choice::Named(name)),
        Some(Err(_)) => Err(Error::new(Code::InvalidArgument, what)),
    }
}

fn mode(sharing: u32) -> Result<Option<MemoryMode>> {
    const BEST: u32 = MzSharing::Best as u32;
    const FINE: u32 = MzSharing::Fine as u32;
    const COARSE: u32 = MzSharing::Coarse as u32;
    const BUFFERS: u32 = MzSharing::Buffers as u32;
    match sharing {
        BEST => Ok(None),
        FINE => Ok(Some(MemoryMode::Fine)),
        COARSE => Ok(Some(MemoryMode::Coarse)),
        BUFFERS => Ok(Some(MemoryMode::Buffers)),
        other => Err(Error::new(Code::Unsupported, "mz_opencl_config.sharing").with(other)),
    }
}

fn sharing(mode: MemoryMode) -> MzSharing {
    match mode {
        MemoryMode::Fine => MzSharing::Fine,
        MemoryMode::Coarse => MzSharing::Coarse,
        MemoryMode::Buffers => MzSharing::Buffers,
    }
}

/// # Safety
///
/// As for [`config::with`], of the table's `manager`.
unsafe fn room(table: &MzOpenClConfig) -> Result<Room> {
    let count = |manager: &crate::runtime::Config<'_>| {
        let columns = manager.options.context_tokens_max.chunks();
        let chunks = usize::try_from(columns).unwrap_or(usize::MAX);
        let chunks = chunks.saturating_mul(manager.shape.layers.into());
        Ok(Room {
            regions: manager.weights.len().saturating_add(chunks),
            chunk_bytes: chunks.saturating_mul(manager.shape.chunk_bytes()),
        })
    };
    // The same checks as in `mz_open`, so that counts are within the library's limits.
    let checked = |manager: &crate::runtime::Config<'_>| {
        super::handle::required_bytes(manager)?;
        count(manager)
    };
    // SAFETY: the caller's promise.
    unsafe { config::with(table.manager, checked) }
}

fn required_bytes(room: &Room) -> Result<usize> {
    let mut sizer = Sizer::new();
    sizer.value::<Api>()?;
    DeviceBuffers::size(&mut sizer, room.regions)?;
    sizer.value::<OpenClPorts>()?;
    sizer.required()
}

fn open_device(
    table: &MzOpenClConfig,
    room: &Room,
    library: Option<&CStr>,
    choice: Choice<'_>,
    arena: &mut Arena,
) -> Result<Device> {
    let mode = mode(table.sharing)?;
    let api: &'static Api = arena.value(Api::load(library)?)?;
    let info = Devices::enumerate(api)?.choose(choice)?;
    let mode = mode.unwrap_or(MemoryMode::best(&info));
    let context = Context::new(api, &info)?;
    let queue = Queue::new(&context, false)?;
    let most = usize::try_from(info.alloc_bytes_max).unwrap_or(usize::MAX);
    let pool_bytes = room.chunk_bytes.min(most);
    let buffers = DeviceBuffers::new(arena, room.regions, &context, &queue, mode, pool_bytes)?;
    let bytes = |given: u64| usize::try_from(given).unwrap_or(usize::MAX);
    let staging_bytes = match table.staging_bytes {
        0 => STAGING_BYTES,
        given => bytes(given),
    };
    let buffers = buffers.with_spares(bytes(table.spare_bytes)).with_staging(staging_bytes);
    Ok(Device { buffers, queue, context })
}

/// # Safety
///
/// As for [`raw::text`], of the table's texts.
unsafe fn open(
    table: &MzOpenClConfig,
    room: &Room,
    memory: &'static mut [MaybeUninit<u8>],
) -> Result<(MzPorts, MzOpenClInfo)> {
    // Before anything is opened.
    check_flags(table.flags & !MZ_KEEP_SWAP, "mz_opencl_config.flags")?;
    check_flags(table.reserved, "mz_opencl_config.reserved")?;
    // SAFETY: the caller's promise.
    let (model, swap, library, choice) = unsafe {
        (
            raw::text(table.model_path, "mz_opencl_config.model_path")?,
            raw::optional_text(table.swap_path, "mz_opencl_config.swap_path")?,
            raw::optional_text(table.library, "mz_opencl_config.library")?,
            choice(table.device, "mz_opencl_config.device")?,
        )
    };
    let mut arena = Arena::new(memory)?;
    let device = open_device(table, room, library, choice, &mut arena)?;
    let host = super::checkpoint::host(model, swap, table.flags, "mz_opencl_config.flags")?;
    let info = info(&device);
    let own = LinuxPorts::new(host, drop);
    let ports: *mut OpenClPorts =
        arena.value(OpenClPorts { own, device: ManuallyDrop::new(device) })?;
    // SAFETY: they were just placed, and are only ever shared until they are dropped.
    let device: &'static Device = unsafe { &(*ports).device };
    // SAFETY: as above.
    Ok((unsafe { LinuxPorts::open(ports.cast(), swap.is_some(), Some(&device.buffers)) }, info))
}

fn info(device: &Device) -> MzOpenClInfo {
    let (platform, id) = device.context.device().raw();
    MzOpenClInfo {
        struct_bytes: MzOpenClInfo::own_bytes(),
        sharing: sharing(device.buffers.mode()) as u32,
        platform,
        device: id,
        context: device.context.raw(),
        queue: device.queue.raw(),
    }
}

/// # Safety
///
/// As for [`LinuxPorts::drop`].
unsafe fn drop(own: *mut Owner) {
    // SAFETY: the caller's promise; the pointer is to all of the ports, which begin with it.
    let device = unsafe { &mut (*own.cast::<OpenClPorts>()).device };
    device.buffers.trim();
    // SAFETY: it happens once, and nobody uses them any more; all regions were released.
    unsafe { ManuallyDrop::drop(device) };
    // SAFETY: the caller's promise.
    unsafe { LinuxPorts::drop(own) };
}

/// How much memory mz_ports_opencl needs for this configuration, at any alignment. In archives with
/// the feature opencl.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_ports_opencl_required_bytes(
    config: *const MzOpenClConfig,
    bytes: *mut usize,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let (place, table) = unsafe { (Place::new(bytes, "bytes")?, raw::read(config)?) };
        // SAFETY: the caller's promise.
        place.set(required_bytes(&unsafe { room(&table) }?)?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}

/// Opens the library's own ports for an engine of the caller's own on an accelerator, as
/// mz_ports_linux does, but with shared buffers of OpenCL; and says what OpenCL calls the opened
/// device, so that the caller's kernels run on these buffers: mz_wait_weights_device,
/// mz_wait_kv_device and mz_kv_tail_device lease them. MZ_ERR_NO_DEVICE where there is no OpenCL
/// library, or no such device. mz_ports_close closes the device with the files. In archives with
/// the feature opencl.
// SAFETY: the caller keeps the promises that the head of mzcache.h asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mz_ports_opencl(
    config: *const MzOpenClConfig,
    memory: *mut c_void,
    bytes: usize,
    ports: *mut MzPorts,
    opencl: *mut MzOpenClInfo,
    error: *mut MzError,
) -> c_int {
    let body = || {
        // SAFETY: the caller's promise.
        let (place, named, table) =
            unsafe { (Tables::one(ports)?, Tables::one(opencl)?, raw::read(config)?) };
        // SAFETY: the caller's promise.
        let room = unsafe { room(&table) }?;
        let required = required_bytes(&room)?;
        if bytes < required {
            return Err(Error::new(Code::MemoryTooSmall, "memory").with(required));
        }
        let places = [raw::extent(ports, 1), raw::extent(opencl, 1), raw::extent(error, 1)];
        raw::check_apart(memory.cast(), bytes, &places)?;
        // SAFETY: the caller's promise; an error gives the memory back, and so does the end.
        let (own, info) = unsafe { open(&table, &room, raw::memory(memory.cast(), bytes)?) }?;
        place.write(0, &own);
        named.write(0, &info);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { outside(error, body) }
}
