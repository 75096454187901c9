//! All ports of one handle on Linux, for callers who want the usual ones.

use super::mapping::MappingFile;
use super::{
    AnonymousMemory, File, FutexPark, MonotonicClock, PosixThreads, ProcessMeter, RowFile,
    hardware_caps,
};
use crate::error::Result;
use crate::kernel::CpuFlags;
use crate::port::{Ports, Storage, Threads};
use core::ffi::CStr;

/// The model file, a swap file, threads: what [`Ports`] refers to. Place it where it lives as long
/// as the handle, in a `static` or leaked.
pub struct HostPorts {
    model: Model,
    rows: RowFile,
    swap: Option<File>,
    threads: PosixThreads,
}

enum Model {
    Read(File),
    Mapped(MappingFile),
}

impl HostPorts {
    /// Opens the model file, and makes the swap file empty if there is to be one.
    pub fn open(model: &CStr, swap: Option<&CStr>) -> Result<Self> {
        let swap = swap.map(File::create_swap).transpose()?;
        Self::with(Model::Read(File::open_model(model)?), model, swap)
    }

    /// The same with what the swap file holds, for a context to be recovered from it; makes an
    /// empty one where there is none.
    pub fn open_kept(model: &CStr, swap: Option<&CStr>) -> Result<Self> {
        let swap = swap.map(File::open_swap).transpose()?;
        Self::with(Model::Read(File::open_model(model)?), model, swap)
    }

    /// The same for a baseline that leaves its weights to the system's paging: buffers filled from
    /// this model file are mapped pages of it, which [`AnonymousMemory`] alone may be the memory
    /// for. The file must not be truncated as long as the handle lives.
    pub fn open_mapping(model: &CStr, swap: Option<&CStr>) -> Result<Self> {
        let swap = swap.map(File::create_swap).transpose()?;
        Self::with(Model::Mapped(MappingFile::open(model)?), model, swap)
    }

    fn with(file: Model, model: &CStr, swap: Option<File>) -> Result<Self> {
        Ok(HostPorts {
            model: file,
            rows: RowFile::open(model)?,
            swap,
            threads: PosixThreads::new(),
        })
    }

    /// References to all of them.
    pub fn ports(&'static self) -> Ports {
        let model: &dyn Storage = match &self.model {
            Model::Read(file) => file,
            Model::Mapped(file) => file,
        };
        Ports {
            model,
            swap: self.swap.as_ref().map(|file| file as _),
            memory: &AnonymousMemory,
            clock: &MonotonicClock,
            park: &FutexPark,
            threads: Some(&self.threads),
            meter: Some(&ProcessMeter),
        }
    }

    /// The model file for embedding rows.
    pub fn rows(&self) -> &RowFile {
        &self.rows
    }

    /// The table of threads, for a [`super::ThreadTeam`] of the same handle.
    pub fn threads(&'static self) -> &'static dyn Threads {
        &self.threads
    }
}

/// What this machine's processor can do.
pub fn host_cpu() -> CpuFlags {
    let flags = CpuFlags::detect();
    match cfg!(target_arch = "aarch64") {
        true => flags | CpuFlags::from_hwcap(hardware_caps().hwcap),
        false => flags,
    }
}
