//! Where the shared buffers of the library's own ports come from.

use super::super::tables::{MZ_MEMORY_ANONYMOUS, MZ_MEMORY_DMA_HEAP, MZ_MEMORY_KGSL};
use crate::error::{Code, Error, Result};
use crate::port::linux::{HostPorts, MemoryKind};
use core::ffi::CStr;

/// `mz_linux_config.memory`.
pub(super) fn kind(memory: u32) -> Result<MemoryKind> {
    match memory {
        MZ_MEMORY_ANONYMOUS => Ok(MemoryKind::Anonymous),
        MZ_MEMORY_KGSL => Ok(MemoryKind::Kgsl),
        MZ_MEMORY_DMA_HEAP => Ok(MemoryKind::DmaHeap),
        other => Err(Error::new(Code::Unsupported, "mz_linux_config.memory").with(other)),
    }
}

/// Files, and buffers that tables can offer: those have no callback that hands memory over.
pub(super) fn open(model: &CStr, swap: Option<&CStr>, kind: MemoryKind) -> Result<HostPorts> {
    let host = HostPorts::open(model, swap)?.with_memory(kind)?;
    if host.kgsl().is_some_and(|memory| !memory.is_coherent()) {
        return Err(Error::new(Code::Unsupported, "KGSL memory without coherent caches"));
    }
    Ok(host)
}
