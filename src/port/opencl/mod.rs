//! Accelerators through OpenCL, by a library that is loaded at run time.
//!
//! Nothing is linked: [`Api::load`] finds a loader or a driver and fills one typed table. Devices
//! are listed and chosen ([`Devices`]), opened ([`Context`]), and given work through in-order
//! [`Queue`]s of [`Kernel`]s out of [`Program`]s. [`Block`] is memory for tables and activations in
//! any of three modes ([`MemoryMode`]), [`DeviceBuffers`] the handle's shared buffers.
//! [`ProgramCache`] keeps compiled programs and has them compiled in a child process.
//!
//! Invariant: every object is released once, in any order, since OpenCL counts references; a
//! failed call is an error that carries OpenCL's own number ([`status_name`]) and leaves the
//! process alive. Kernels are trusted: what they touch is what their arguments say.

mod api;
mod cache;
mod compiler;
mod context;
mod device;
mod driver;
mod info;
mod kernel;
mod library;
mod lists;
mod memory;
mod options;
mod pool;
mod program;
mod queue;
mod regions;
mod spares;
mod staging;
mod status;

pub use api::Api;
pub use cache::{Origin, ProgramCache, ProgramSource, Ready};
pub use compiler::{Compiler, compile_request};
pub use context::Context;
pub use device::{Choice, DEVICES_MAX, DeviceInfo, DeviceKind, Devices, LanguageVersion, SvmCaps};
pub use driver::{Driver, DriverFamily, Workarounds};
pub use info::{Text, Version};
pub use kernel::{Kernel, KernelInfo};
pub use memory::{Block, MemoryMode};
pub use options::{BuildOptions, OPTIONS_BYTES_MAX};
pub use program::{BuildLog, Program, SOURCES_MAX};
pub use queue::{Event, EventTimes, Queue, WAITS_MAX, WorkSize};
pub use regions::DeviceBuffers;
pub use staging::STAGING_BYTES;
pub use status::status_name;
