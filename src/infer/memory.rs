//! The seam between the transformer and whoever manages memory.

use crate::codec::RotaryPairs;
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

    /// Offers the query energy that a layer's K channels meet in one batch, for a step profile:
    /// `energy` gives the sum for one channel. Whoever needs none does not ask.
    fn offer_query_energy(
        &self,
        _layer: LayerIndex,
        _pairs: RotaryPairs,
        _tokens: usize,
        _energy: &dyn Fn(usize) -> f32,
    ) {
    }
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

    fn offer_query_energy(
        &self,
        layer: LayerIndex,
        pairs: RotaryPairs,
        tokens: usize,
        energy: &dyn Fn(usize) -> f32,
    ) {
        self.add_query_energy(layer, pairs, tokens, energy);
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

    /// Whether [`DeviceMemory::offer_query_energy`] is of use for the next batch: the accelerator
    /// spends nothing on it otherwise.
    fn wants_query_energy(&self) -> bool {
        false
    }

    /// As [`Memory::offer_query_energy`], when the batch has run.
    fn offer_query_energy(
        &self,
        _layer: LayerIndex,
        _pairs: RotaryPairs,
        _tokens: usize,
        _energy: &dyn Fn(usize) -> f32,
    ) {
    }
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

    fn wants_query_energy(&self) -> bool {
        Runtime::wants_query_energy(self)
    }

    fn offer_query_energy(
        &self,
        layer: LayerIndex,
        pairs: RotaryPairs,
        tokens: usize,
        energy: &dyn Fn(usize) -> f32,
    ) {
        self.add_query_energy(layer, pairs, tokens, energy);
    }
}
