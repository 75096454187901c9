//! Shared buffers from Qualcomm's KGSL, the kernel driver of Adreno GPUs, without OpenCL between.
//!
//! [`KgslDevice`] is the open node and its calls, [`KgslMemory`] the shared-memory port and its
//! meter, `raw` what crosses into the kernel. Invariant: an object of the driver is one region,
//! from `allocate` to `release`; after that neither a mapping nor a name of it is left, so its
//! pages are the system's again. Decides nothing, and never looks at the driver's version: what it
//! can do is tried out once, at open.
//!
//! Objects are mapped at one address for both sides (`USE_CPU_MAP`), and are made of ordinary
//! pages, so that files are read straight into them by `O_DIRECT` (paper, section 4). Layouts and
//! numbers are those of `msm_kgsl.h`, whose version has stood still at 3.14.

mod device;
mod memory;
mod raw;

pub use device::{GpuModel, KgslDevice};
pub use memory::{GpuBytes, KgslMemory};
pub use raw::{DeviceInfo, Version};

pub(in crate::port) use device::Name;
