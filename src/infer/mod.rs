//! A dense transformer over weight layers and KV chunks.
//!
//! Reads a GGUF file ([`gguf`]), checks that it holds a model this build knows and lays its tensors
//! out in weight units ([`model`], `layout`), and computes tokens on the CPU ([`cpu`]) or an
//! accelerator (`opencl`, with the feature of that name). Weights and KV chunks come and go through
//! [`Memory`], the seam to whoever manages them: a layer is leased while it is being used and no
//! longer. [`Session`] joins the three for an application. Invariant:
//! nothing is allocated after open, and a token's logits depend on the model, the tokens and the
//! kernels, never on threads or on which units were evicted before.

pub mod cpu;
pub mod gguf;
mod layout;
mod memory;
pub mod model;
mod names;
#[cfg(feature = "opencl")]
pub mod opencl;
pub mod sample;
mod session;
mod shape;
mod watch;

#[cfg(feature = "opencl")]
pub use memory::DeviceMemory;
pub use memory::Memory;
pub use model::Model;
pub use session::{Session, SessionConfig, SessionPorts};
pub use watch::{Part, Watch};
