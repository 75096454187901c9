//! All ports of one handle on Linux, for callers who want the usual ones.

use super::{
    AnonymousMemory, File, FutexPark, MonotonicClock, PosixThreads, ProcessMeter, RowFile,
    hardware_caps,
};
use crate::error::Result;
use crate::kernel::CpuFlags;
use crate::port::{Ports, Threads};
use core::ffi::CStr;

/// The model file, a swap file, threads: what [`Ports`] refers to. Place it where it lives as long
/// as the handle, in a `static` or leaked.
pub struct HostPorts {
    model: File,
    rows: RowFile,
    swap: Option<File>,
    threads: PosixThreads,
}

impl HostPorts {
    /// Opens the model file, and makes the swap file empty if there is to be one.
    pub fn open(model: &CStr, swap: Option<&CStr>) -> Result<Self> {
        Ok(HostPorts {
            model: File::open_model(model)?,
            rows: RowFile::open(model)?,
            swap: swap.map(File::create_swap).transpose()?,
            threads: PosixThreads::new(),
        })
    }

    /// References to all of them.
    pub fn ports(&'static self) -> Ports {
        Ports {
            model: &self.model,
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
