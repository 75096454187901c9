//! Where the shared buffers of the library's own ports come from.

use super::super::tables::{MZ_MEMORY_ANONYMOUS, MZ_MEMORY_DMA_HEAP, MZ_MEMORY_KGSL};
use crate::error::{Code, Error, Result};
use crate::port::linux::MemoryKind;

/// `mz_linux_config.memory`.
pub(super) fn kind(memory: u32) -> Result<MemoryKind> {
    match memory {
        MZ_MEMORY_ANONYMOUS => Ok(MemoryKind::Anonymous),
        MZ_MEMORY_KGSL => Ok(MemoryKind::Kgsl),
        MZ_MEMORY_DMA_HEAP => Ok(MemoryKind::DmaHeap),
        other => Err(Error::new(Code::Unsupported, "mz_linux_config.memory").with(other)),
    }
}
