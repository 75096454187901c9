//! All ports of one handle on Linux, for callers who want the usual ones.

use super::mapping::MappingFile;
use super::{
    AnonymousMemory, ChunkMemory, File, FutexPark, MonotonicClock, PosixThreads, ProcessMeter,
    RowFile, hardware_caps,
};
use crate::error::{Code, Error, Result};
use crate::kernel::CpuFlags;
use crate::port::dma_heap::DmaHeapMemory;
use crate::port::kgsl::{KgslDevice, KgslMemory};
use crate::port::{Meter, Ports, SharedMemory, Storage, Threads};
use core::ffi::CStr;

/// The model file, a swap file, threads: what [`Ports`] refers to. Place it where it lives as long
/// as the handle, in a `static` or leaked.
pub struct HostPorts {
    model: Model,
    rows: RowFile,
    swap: Option<File>,
    memory: Memory,
    threads: PosixThreads,
}

/// Where shared buffers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// Private memory of the process.
    #[default]
    Anonymous,
    /// KGSL, the driver of Adreno GPUs.
    Kgsl,
    /// The system's dma-heap, or ION.
    DmaHeap,
}

enum Memory {
    Chunks(ChunkMemory),
    /// Of mapped weights: as an app has it that leaves all to the system.
    Anonymous,
    Kgsl(KgslMemory),
    DmaHeap(DmaHeapMemory),
}

impl Memory {
    /// Private memory for weights that come from there.
    fn of_process(model: &Model) -> Memory {
        match model {
            Model::Read(_) => Memory::Chunks(ChunkMemory::new()),
            Model::Mapped(_) => Memory::Anonymous,
        }
    }
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
            memory: Memory::of_process(&file),
            model: file,
            rows: RowFile::open(model)?,
            swap,
            threads: PosixThreads::new(),
        })
    }

    /// The same with shared buffers from there, on a machine that has it (else `NoDevice`). Mapped
    /// weights take anonymous memory alone.
    pub fn with_memory(self, kind: MemoryKind) -> Result<Self> {
        let memory = match (kind, &self.model) {
            (MemoryKind::Anonymous, file) => Memory::of_process(file),
            (_, Model::Mapped(_)) => {
                return Err(Error::new(Code::InvalidArgument, "memory of mapped weights"));
            }
            (MemoryKind::Kgsl, _) => Memory::Kgsl(KgslMemory::open(KgslDevice::open()?)?),
            (MemoryKind::DmaHeap, _) => Memory::DmaHeap(DmaHeapMemory::open()?),
        };
        Ok(HostPorts { memory, ..self })
    }

    /// Whether shared buffers are KGSL's, and then those.
    pub fn kgsl(&self) -> Option<&KgslMemory> {
        match &self.memory {
            Memory::Kgsl(memory) => Some(memory),
            _ => None,
        }
    }

    /// Whether host and device take turns with shared buffers.
    pub fn takes_turns(&self) -> bool {
        !matches!(self.memory, Memory::Chunks(_) | Memory::Anonymous)
    }

    /// References to all of them.
    pub fn ports(&'static self) -> Ports {
        let model: &dyn Storage = match &self.model {
            Model::Read(file) => file,
            Model::Mapped(file) => file,
        };
        let (memory, meter): (&dyn SharedMemory, &dyn Meter) = match &self.memory {
            Memory::Chunks(memory) => (memory, &ProcessMeter),
            Memory::Anonymous => (&AnonymousMemory, &ProcessMeter),
            Memory::Kgsl(memory) => (memory, memory),
            Memory::DmaHeap(memory) => (memory, memory),
        };
        Ports {
            model,
            swap: self.swap.as_ref().map(|file| file as _),
            memory,
            clock: &MonotonicClock,
            park: &FutexPark,
            threads: Some(&self.threads),
            meter: Some(meter),
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
