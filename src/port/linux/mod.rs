//! The ports' real bodies on Linux and Android, over libc, memmap2 and core_affinity.
//!
//! Owns every system call of the library. Nothing here allocates on the Rust heap after open:
//! memory comes from mmap, tables are fixed arrays, scratch is on the stack. Nothing here decides
//! anything either; each body does what its trait in [`super`] promises and reports the errno.
//!
//! [`File`] and [`RowFile`] read and write files, [`MappedFile`] shows a file's header at open,
//! [`AnonymousMemory`] hands out shared buffers and [`ChunkMemory`] many small ones, [`map_arena`]
//! the caller's one piece of memory, [`ProcessMeter`] measures, [`MonotonicClock`] tells the time,
//! [`FutexPark`] waits, [`PosixThreads`] runs threads on stacks of its own and [`ThreadTeam`] forks
//! and joins on them, [`host_topology`] describes the cores that they may run on.
//! [`HostPorts`] is the usual set, or for baselines one whose weights are mapped pages of the file.

mod affinity;
mod arena;
mod bounce;
#[cfg(feature = "opencl")]
pub(in crate::port) mod child;
mod chunks;
mod clock;
pub(in crate::port) mod control;
pub(in crate::port) mod errno;
mod file;
mod host;
mod hwcap;
mod mapped;
mod mapping;
pub(in crate::port) mod maps;
mod memory;
mod meter;
pub(in crate::port) mod number;
pub(in crate::port) mod open;
pub(in crate::port) mod pages;
mod park;
mod rows;
mod team;
mod threads;
mod transfer;
pub(in crate::port) mod turns;
#[cfg(feature = "opencl")]
pub(in crate::port) mod whole;

pub use affinity::{host_topology, read_topology};
pub use arena::{map_arena, unmap_arena};
pub use chunks::ChunkMemory;
pub use clock::MonotonicClock;
pub use file::File;
pub use host::{HostPorts, MemoryKind, host_cpu};
pub use hwcap::{HardwareCaps, hardware_caps};
pub use mapped::MappedFile;
pub use memory::AnonymousMemory;
pub use meter::{ProcessMeter, ResidentBytes};
#[cfg(feature = "opencl")]
pub(in crate::port) use pages::drop_whole_pages;
pub use park::FutexPark;
pub use rows::RowFile;
pub use team::{TEAM_STACK_BYTES, ThreadTeam};
pub use threads::{PosixThreads, THREADS_MAX};
