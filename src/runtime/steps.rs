//! The step profile that chunks are packed with: given at open, or made when the first eviction
//! finds K in memory; frozen from then on, since what was packed with it unpacks only with the
//! same.

use super::Runtime;
use super::config::Config;
use super::open::Shared;
use crate::arena::{Arena, Sizer, view};
use crate::codec::{LayerSteps, Steps, StepsUse, mean_square};
use crate::error::Result;
use crate::kernel::Kernels;
use crate::limits::{CHUNK_TOKENS, LAYERS_MAX};
use crate::port::Ports;
use crate::port::lock::Lock;
use crate::units::{ChunkId, ChunkIndex, LayerIndex, TokenCount, Unit};

/// What there is of a profile.
enum State {
    /// The codec ignores it.
    Ignored,
    /// Nothing was packed so far; the memory is for the steps.
    Open(&'static mut [f32]),
    Frozen(Steps<'static>),
}

/// The runtime's profile.
pub(super) struct Profile {
    state: Lock<State>,
}

impl Profile {
    pub(super) fn size(sizer: &mut Sizer, config: &Config<'_>) -> Result<()> {
        sizer.slice::<f32>(values(config))
    }

    pub(super) fn new(
        arena: &mut Arena,
        config: &Config<'_>,
        kernels: &Kernels,
        ports: Ports,
    ) -> Result<Self> {
        let memory = arena.slice(values(config), |_| 0f32)?;
        let state = match (config.codec().properties().steps, config.options.steps) {
            (StepsUse::Ignored, _) => State::Ignored,
            (_, None) => State::Open(memory),
            (_, Some(bytes)) => State::Frozen(Steps::parse(kernels, config.shape, bytes, memory)?),
        };
        Ok(Profile { state: Lock::new(state, ports.park) })
    }

    fn get(&self) -> Option<Steps<'static>> {
        match &*self.state.lock() {
            State::Frozen(steps) => Some(*steps),
            State::Ignored | State::Open(_) => None,
        }
    }

    /// The steps of one layer, once they are frozen.
    pub(super) fn layer(&self, layer: LayerIndex) -> Option<LayerSteps<'static>> {
        self.get()?.layer(layer)
    }
}

/// Numbers of memory for the profile; 0 when the codec ignores it.
fn values(config: &Config<'_>) -> usize {
    match config.codec().properties().steps {
        StepsUse::Ignored => 0,
        StepsUse::Welcome | StepsUse::Needed => Steps::values(&config.shape),
    }
}

impl Runtime {
    /// The step profile that this context's chunks are packed with, to be saved by
    /// [`Steps::write`] and given as [`super::Options::steps`] to whoever unpacks them later.
    /// `None` before the first eviction, and for codecs that use none.
    pub fn steps(&self) -> Option<Steps<'static>> {
        self.shared.profile.get()
    }
}

impl Shared {
    /// Makes the profile unless there is one: the same step for all channels of a layer, from the
    /// first chunk of each layer that is in memory. A layer without one keeps full quality.
    pub(super) fn freeze_steps(&self) -> Result<()> {
        let mut state = self.profile.state.lock();
        let State::Open(memory) = &mut *state else { return Ok(()) };
        let tokens = self.core.lock().machine.tokens();
        let mut squares = [0.0; LAYERS_MAX as usize];
        let squares = &mut squares[..usize::from(self.shape.layers)];
        for (layer, square) in (0..self.shape.layers).zip(&mut *squares) {
            *square = self.k_mean_square(LayerIndex::new(layer), tokens);
        }
        let steps = Steps::uniform(&self.kernels, self.shape, squares, core::mem::take(memory))?;
        *state = State::Frozen(steps);
        Ok(())
    }

    /// The mean square of K in a layer's first chunk that is in memory; 0 if none is.
    fn k_mean_square(&self, layer: LayerIndex, tokens: TokenCount) -> f64 {
        let head_dim = usize::from(self.shape.head_dim);
        let chunk_tokens = u32::from(CHUNK_TOKENS);
        for (chunk, first) in (0..).zip((0..tokens.get()).step_by(usize::from(CHUNK_TOKENS))) {
            let id = ChunkId { layer, chunk: ChunkIndex::new(chunk) };
            let Ok(lease) = self.buffers.lease(self.slot(Unit::Kv(id))) else { continue };
            let Some(values) = view::numbers::<u16>(&lease) else { continue };
            let valid = (tokens.get() - first).min(chunk_tokens) as usize * head_dim;
            let heads = values.chunks_exact(usize::from(CHUNK_TOKENS) * head_dim);
            let k = heads.take(usize::from(self.shape.kv_heads)).map(|head| &head[..valid]);
            return mean_square(k);
        }
        0.0
    }
}
