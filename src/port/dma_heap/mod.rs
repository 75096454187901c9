//! Shared buffers that are dma-bufs: from the system's dma-heap, or from ION before Linux 5.6.
//!
//! A dma-buf is memory that any driver can import, for devices that share no addresses with the
//! host. [`DmaHeapMemory`] is the shared-memory port; a region is one dma-buf, mapped, and its
//! token holds the file descriptor. Invariant: between a hand-over to the device and the next one
//! to the host, no `DMA_BUF_IOCTL_SYNC` window of the host is open; outside of that, exactly one
//! is.
//!
//! The host's mapping is made of bare addresses, which direct transfers refuse (`EFAULT`);
//! [`File`](crate::port::linux::File) reads and writes such buffers through memory of its own, and
//! so must other bodies of [`Storage`](crate::port::Storage). Restoring therefore costs a copy that
//! memory of KGSL or OpenCL does not need. Each region keeps a descriptor open: a long context
//! needs thousands, and `LimitExceeded` says that the process's limit of open files is too low.

mod heap;
mod memory;
mod raw;

pub use memory::DmaHeapMemory;
