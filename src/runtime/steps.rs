//! The step profile that chunks are packed with: given at open, or made at the first eviction from
//! the K that is in memory and the query energy that compute reported until then; frozen from then
//! on, since what was packed with it unpacks only with the same.

use super::Runtime;
use super::config::Config;
use super::open::Shared;
use crate::arena::{Arena, Sizer, view};
use crate::codec::{LayerSteps, RotaryPairs, Steps, StepsUse, mean_square};
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::limits::{CHUNK_TOKENS, LAYERS_MAX};
use crate::port::Ports;
use crate::port::lock::Lock;
use crate::units::{ChunkId, ChunkIndex, KvShape, LayerIndex, TokenCount, Unit};

/// What there is of a profile.
enum State {
    /// The codec ignores it.
    Ignored,
    /// Nothing was packed so far.
    Open(Gathered),
    Frozen(Steps<'static>),
}

/// Query energy, where the steps will be.
struct Gathered {
    energies: &'static mut [f32],
    /// Tokens whose queries are in it, in all layers.
    tokens: usize,
    pairs: RotaryPairs,
}

/// Tokens after which no more query energy is gathered: it hardly changes from text to text.
const ENERGY_TOKENS: usize = 1024;

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
            (_, None) => {
                let pairs = RotaryPairs::Adjacent;
                State::Open(Gathered { energies: memory, tokens: 0, pairs })
            }
            (_, Some(bytes)) => State::Frozen(Steps::parse(kernels, config.shape, bytes, memory)?),
        };
        Ok(Profile { state: Lock::new(state, ports.park) })
    }

    pub(super) fn get(&self) -> Option<Steps<'static>> {
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

    /// Whether [`Runtime::add_query_energy`] is of use: before the first eviction, for the first
    /// thousand tokens or so, and for codecs that use steps.
    pub fn wants_query_energy(&self) -> bool {
        match &*self.shared.profile.state.lock() {
            State::Open(gathered) => gathered.tokens < ENERGY_TOKENS,
            State::Ignored | State::Frozen(_) => false,
        }
    }

    /// Compute reports a layer's queries, batch by batch: how many tokens, and for each K channel
    /// the sum of squared query values over the query heads that read it. Asks for energies only
    /// while they are of use.
    pub fn add_query_energy(
        &self,
        layer: LayerIndex,
        pairs: RotaryPairs,
        tokens: usize,
        energy: &dyn Fn(usize) -> f32,
    ) {
        let layers = usize::from(self.shared.shape.layers);
        let mut state = self.shared.profile.state.lock();
        let State::Open(gathered) = &mut *state else { return };
        if gathered.tokens >= ENERGY_TOKENS || layer.index() >= layers {
            return;
        }
        gathered.pairs = pairs;
        let channels = gathered.energies.len() / layers;
        let own = &mut gathered.energies[layer.index() * channels..][..channels];
        for (channel, sum) in own.iter_mut().enumerate() {
            *sum += energy(channel);
        }
        if layer.index() + 1 == layers {
            gathered.tokens += tokens;
        }
    }
}

impl Profile {
    /// Takes over the profile that a context was packed with, from its serialised form. `Mismatch`
    /// where there is another one already.
    pub(super) fn adopt(
        &self,
        kernels: &Kernels,
        shape: KvShape,
        id: u32,
        bytes: &[u8],
    ) -> Result<()> {
        let mut state = self.state.lock();
        let other = Error::new(Code::Mismatch, "checkpoint steps").with(id);
        match &mut *state {
            State::Frozen(steps) if steps.id() == id => Ok(()),
            State::Ignored | State::Frozen(_) => Err(other),
            State::Open(gathered) => {
                gathered.tokens = 0;
                let parsed = Steps::parse(kernels, shape, bytes, gathered.energies);
                let is_it = parsed.map(|steps| steps.id() == id);
                if is_it != Ok(true) {
                    gathered.energies.fill(0.0);
                    return Err(is_it.err().unwrap_or(other));
                }
                let memory = core::mem::take(&mut gathered.energies);
                *state = State::Frozen(Steps::parse(kernels, shape, bytes, memory)?);
                Ok(())
            }
        }
    }
}

impl Shared {
    /// Makes the profile unless there is one, from the first chunk of each layer that is in memory;
    /// a layer without one keeps full quality. Without query energy all channels of a layer get the
    /// same step.
    pub(super) fn freeze_steps(&self) -> Result<()> {
        let mut state = self.profile.state.lock();
        let State::Open(gathered) = &mut *state else { return Ok(()) };
        let tokens = self.core.lock().machine.tokens();
        let mut squares = [0.0; LAYERS_MAX as usize];
        let squares = &mut squares[..usize::from(self.shape.layers)];
        for (layer, square) in (0..self.shape.layers).zip(&mut *squares) {
            *square = self.k_mean_square(LayerIndex::new(layer), tokens);
        }
        let (kernels, shape, pairs) = (&self.kernels, self.shape, gathered.pairs);
        let is_known = gathered.tokens > 0 && gathered.energies.iter().all(|sum| sum.is_finite());
        let memory = core::mem::take(&mut gathered.energies);
        *state = State::Frozen(match is_known {
            true => Steps::from_energy(kernels, shape, squares, pairs, memory)?,
            false => Steps::uniform(kernels, shape, squares, memory)?,
        });
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
