//! Drivers that are not there: a child process whose opens of device nodes, and whose control calls
//! of them, are answered by its parent.
//!
//! The child is the test program again, under a seccomp filter that hands `openat` and those calls
//! to a supervisor, which reads and writes the arguments through `/proc/PID/mem`. Objects of KGSL
//! are ranges of one memfd, whose number is their offset in pages, so that the child's own `mmap`
//! finds them; dma-bufs are memfds each. Freeing punches a hole: what is still there at the end has
//! leaked.

mod heaps;
mod kgsl;
mod launch;
mod process;
mod supervisor;

#[cfg(feature = "cli")]
pub use launch::supervised;
pub use launch::under;
pub use supervisor::{Fault, Ion, World};

use heaps::Heaps;
use kgsl::Kgsl;
use process::{Process, memfd};
