//! The transformer on an accelerator.
//!
//! [`Accelerator`] is an opened device with its queues, `programs` builds the kernels that a model
//! needs, `launch` enqueues one, `product` groups matrices into commands, `layer` and `attention`
//! have those of a layer, `tables` keeps each layer's table of chunks, `flight` holds what the
//! device is using, and [`ClTransformer`] is the forward pass. Activations lie token by token,
//! `[token][feature]`, in device memory. Launches cost more than many of the kernels do, so a layer
//! is as few commands as the gates allow.
//!
//! A layer is enqueued as soon as its gates open: products with the weights' gate, attention with
//! the KV gate. The host then waits for the next layer's gates while the device computes, so that
//! the queue never waits for a layer that is not there. Invariant: a unit is leased until the
//! commands that use it have run; entries of a table that name no chunk of the pass point nowhere.
//! Reads model files no further than embedding rows.

mod accelerator;
mod attention;
mod flight;
mod launch;
mod layer;
mod product;
mod programs;
mod tables;
mod transformer;

pub use accelerator::Accelerator;
pub use programs::{ClOptions, ClReport};
pub use transformer::{ClConfig, ClPorts, ClTransformer};
