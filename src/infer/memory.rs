//! The seam between the transformer and whoever manages memory.

use crate::error::Result;
#[cfg(feature = "opencl")]
use crate::port::buffers::{DeviceExclusive, DeviceLease};
use crate::port::buffers::{Exclusive, Lease};
use crate::runtime::Runtime;
use crate::units::{ChunkId, Kind, LayerIndex};

/// Weights and KV chunks that may have to be waited for.
///
/// The transformer asks for layers in order, holds one layer's weights at a time, and touches no
/// unit that it has not leased. Methods are called from several threads of a team.
pub trait Memory: Sync {
    /// Waits until the unit is resident and leases it. The unit after the last layer is the head.
    fn weights(&self, layer: LayerIndex) -> Result<Lease<'_>>;

    /// Waits until all chunks of a layer are resident.
    fn wait_kv(&self, layer: LayerIndex) -> Result<()>;

    /// Leases a resident chunk.
    fn kv(&self, id: ChunkId) -> Result<Lease<'_>>;

    /// Takes a resident chunk to append tokens to it.
    fn kv_mut(&self, id: ChunkId) -> Result<Exclusive<'_>>;
}

impl Memory for Runtime {
    fn weights(&self, layer: LayerIndex) -> Result<Lease<'_>> {
        Runtime::weights(self, layer)
    }

    fn wait_kv(&self, layer: LayerIndex) -> Result<()> {
        self.wait(layer, Kind::Kv)
    }

    fn kv(&self, id: ChunkId) -> Result<Lease<'_>> {
        Runtime::kv(self, id)
    }

    fn kv_mut(&self, id: ChunkId) -> Result<Exclusive<'_>> {
        Runtime::kv_mut(self, id)
    }
}

/// The same for an accelerator, which holds what it got until its commands have run.
#[cfg(feature = "opencl")]
pub trait DeviceMemory {
    /// Waits until the unit is resident and leases it. The unit after the last layer is the head.
    fn weights(&self, layer: LayerIndex) -> Result<DeviceLease<'static>>;

    /// Waits until all chunks of a layer are resident.
    fn wait_kv(&self, layer: LayerIndex) -> Result<()>;

    /// Leases a resident chunk.
    fn kv(&self, id: ChunkId) -> Result<DeviceLease<'static>>;

    /// Takes a resident chunk to append tokens to it.
    fn kv_mut(&self, id: ChunkId) -> Result<DeviceExclusive<'static>>;
}

#[cfg(feature = "opencl")]
impl DeviceMemory for Runtime {
    fn weights(&self, layer: LayerIndex) -> Result<DeviceLease<'static>> {
        self.weights_on_device(layer)
    }

    fn wait_kv(&self, layer: LayerIndex) -> Result<()> {
        self.wait(layer, Kind::Kv)
    }

    fn kv(&self, id: ChunkId) -> Result<DeviceLease<'static>> {
        self.kv_on_device(id)
    }

    fn kv_mut(&self, id: ChunkId) -> Result<DeviceExclusive<'static>> {
        self.kv_on_device_mut(id)
    }
}
