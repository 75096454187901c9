//! The events, and what the machine keeps between them.

use super::evict::{EvictReport, Eviction, Stop};
use super::restore::Restoration;
use super::save::{Save, SaveReport};
use super::table::{Table, Tally};
use super::unit::{Chunk, Weights};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::{CHUNKS_PER_LAYER_MAX, LAYERS_MAX};
use crate::policy::{Order, Plan, Scheme, Times};
use crate::units::{
    ByteCount, ChunkId, FlashRecord, Kind, KvShape, LayerIndex, RamRecord, TokenCount, Unit,
};
use bitflags::bitflags;

bitflags! {
    /// What a worker may be given.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Roles: u8 {
        /// Takes shared buffers from the port and gives them back.
        const ALLOCATE = 1;
        /// Reads weights and chunks from storage, writes chunks.
        const READ = 2;
        /// Unpacks chunks, packs them.
        const UNPACK = 4;
    }
}

/// One piece of work for a worker, with all that it needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pack a resident chunk's first `tokens` tokens into the RAM swap: [`Outcome::Packed`].
    Pack {
        /// Which chunk.
        id: ChunkId,
        /// Valid tokens.
        tokens: u16,
    },
    /// Write a resident chunk as it is to its slot in the swap file: [`Outcome::Written`].
    Write {
        /// Which chunk.
        id: ChunkId,
    },
    /// Copy a packed chunk from the RAM swap to its slot in the swap file: [`Outcome::Written`].
    Spill {
        /// Which chunk.
        id: ChunkId,
        /// Where it lies.
        record: RamRecord,
    },
    /// Give a unit's shared buffer back.
    Release {
        /// Which unit.
        unit: Unit,
    },
    /// Take a shared buffer for a unit.
    Allocate {
        /// Which unit.
        unit: Unit,
        /// A chunk that holds no tokens yet: of zeros, with nothing to fill it.
        is_new: bool,
    },
    /// Read one part of a weight unit from the model file.
    ReadWeights {
        /// Which unit.
        layer: LayerIndex,
        /// Which part of it.
        part: u32,
    },
    /// Read a chunk from the swap file; a packed one is unpacked too.
    ReadChunk {
        /// Which chunk.
        id: ChunkId,
        /// What its slot holds.
        record: FlashRecord,
        /// Tokens that a packed record holds.
        tokens: u16,
    },
    /// Unpack a chunk from the RAM swap.
    Unpack {
        /// Which chunk.
        id: ChunkId,
        /// Where it lies.
        record: RamRecord,
        /// Tokens that the record holds.
        tokens: u16,
    },
}

impl Action {
    /// The unit it works on.
    pub const fn unit(&self) -> Unit {
        match *self {
            Action::Pack { id, .. }
            | Action::Write { id }
            | Action::Spill { id, .. }
            | Action::ReadChunk { id, .. }
            | Action::Unpack { id, .. } => Unit::Kv(id),
            Action::Release { unit } | Action::Allocate { unit, .. } => unit,
            Action::ReadWeights { layer, .. } => Unit::Weights(layer),
        }
    }
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Done,
    /// `Pack` put the chunk there.
    Packed(RamRecord),
    /// `Write` or `Spill` put the chunk into its slot.
    Written(FlashRecord),
    /// Not at all; the unit is as it was before the action.
    Failed(Error),
}

/// What happens to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Compute wrote the K and V of all tokens below `tokens` in every layer.
    Commit(TokenCount),
    /// The context ends at `tokens` from now on.
    Truncate(TokenCount),
    /// Compute used a layer; only the LRU order cares.
    Used(LayerIndex),
    /// Free at least `bytes`.
    Evict {
        /// Bytes of shared buffers and RAM swap to free.
        bytes: ByteCount,
        /// How to go about it.
        policy: EvictPolicy,
    },
    /// Take no new step of the running eviction.
    StopEvict(Stop),
    /// A pass begins: add chunks for its tokens, and bring everything back.
    Restore {
        /// At what length the pass may leave the context.
        tokens: TokenCount,
        /// Fill nothing before everything has a buffer; for measurements of what overlap gains.
        allocate_first: bool,
    },
    /// Take no new step of the running restore.
    Cancel,
    /// Give every chunk that holds tokens a good copy in the swap file, and evict none.
    Save,
    /// Take no new step of the running save.
    StopSave(Stop),
    /// What a save found good on flash was written down, or was not. Between the report that asks
    /// for it and this event no slot of the swap file is written to.
    Sealed(Result<()>),
    /// A worker with these roles is free.
    Next(Roles),
    /// A worker finished an action.
    Done(Action, Outcome),
}

/// Ways out of memory for chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Packing into the RAM swap.
    pub ram: bool,
    /// Writing to the swap file.
    pub flash: bool,
}

impl Paths {
    /// Both ways.
    pub const BOTH: Paths = Paths { ram: true, flash: true };
}

/// How an eviction goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictPolicy {
    /// Algorithm 1, or the baseline.
    pub scheme: Scheme,
    /// Which units leave first.
    pub order: Order,
    /// Which ways out of memory are open for chunks.
    pub paths: Paths,
}

impl Default for EvictPolicy {
    /// The paper's.
    fn default() -> Self {
        EvictPolicy { scheme: Scheme::Hybrid, order: Order::BackwardOut, paths: Paths::BOTH }
    }
}

/// Which gates may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touched {
    /// None.
    #[default]
    Nothing,
    /// One layer's gate of one kind.
    Gate(LayerIndex, Kind),
    /// Any.
    All,
}

/// The machine's answer to an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Work for the worker that brought the event.
    pub action: Option<Action>,
    /// A record of the RAM swap that nobody needs any more.
    pub forget: Option<RamRecord>,
    /// A unit whose buffer is complete: publish it.
    pub publish: Option<Unit>,
    /// Gates to look at again.
    pub touched: Touched,
    /// The event asked for work and something was done on the spot: ask again.
    pub again: bool,
}

/// What a machine is made for.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// Shape of the KV cache.
    pub shape: KvShape,
    /// Chunk columns that the context may reach.
    pub columns_max: u16,
    /// Size of each weight unit's shared buffer, the output head last.
    pub weight_bytes: &'a [u64],
    /// Worst-case packed size of a full chunk.
    pub packed_bytes_max: u64,
    /// Whether unpacking gives back the very bits that were packed.
    pub lossless: bool,
    /// Per-unit times and threshold.
    pub plan: Plan,
}

/// What the machine is doing.
pub(super) enum Goal {
    Idle,
    Evict(Eviction),
    Restore(Restoration),
    Save(Save),
    /// Chunks beyond the context's end are given up, from this column's first layer on.
    Trim,
}

/// The eviction state machine of one handle.
pub struct Machine {
    pub(super) table: Table,
    pub(super) plan: Plan,
    pub(super) order: Order,
    pub(super) lossless: bool,
    pub(super) goal: Goal,
    /// The swap file failed to sync; nothing in it counts.
    pub(super) flash_is_gone: bool,
    pub(super) tokens: TokenCount,
    /// Tail chunks stayed in memory since the pass began.
    pub(super) pass_undisturbed: bool,
    pub(super) by_age: &'static mut [LayerIndex],
    pub(super) clock: u32,
    pub(super) evicted: Option<EvictReport>,
    pub(super) restored: Option<Result<()>>,
    pub(super) saved: Option<SaveReport>,
    /// What is being written down: how much of the context it makes durable.
    pub(super) sealing: Option<TokenCount>,
    /// Tokens of the context that outlive the process.
    pub(super) durable: TokenCount,
}

impl Machine {
    /// Adds what [`Machine::new`] places.
    pub fn size(sizer: &mut Sizer, weight_units: usize, layers: u16, columns: u16) -> Result<()> {
        Table::size(sizer, weight_units, usize::from(layers) * usize::from(columns))?;
        sizer.slice::<LayerIndex>(weight_units)
    }

    /// Everything on storage, no context.
    pub fn new(arena: &mut Arena, config: &Config<'_>) -> Result<Self> {
        validate(config)?;
        let times: Times = config.plan.times;
        let weights = config.weight_bytes.iter();
        let table = Table::new(
            arena,
            weights.map(|bytes| Weights::new(*bytes, times.read_weights(ByteCount::new(*bytes)))),
            config.shape.layers,
            config.columns_max,
            config.shape.chunk_bytes() as u64,
            config.packed_bytes_max,
        )?;
        let by_age = arena.slice(config.weight_bytes.len(), layer_at)?;
        Ok(Machine {
            table,
            plan: config.plan,
            order: Order::default(),
            lossless: config.lossless,
            goal: Goal::Idle,
            flash_is_gone: false,
            tokens: TokenCount::default(),
            pass_undisturbed: false,
            by_age,
            clock: 0,
            evicted: None,
            restored: None,
            saved: None,
            sealing: None,
            durable: TokenCount::default(),
        })
    }

    /// One event in, one step out. On an error nothing changed.
    pub fn step(&mut self, event: Event) -> Result<Step> {
        let mut step = match event {
            Event::Commit(tokens) => self.commit(tokens)?,
            Event::Truncate(tokens) => self.truncate(tokens)?,
            Event::Used(layer) => self.used(layer)?,
            Event::Evict { bytes, policy } => self.begin_evict(bytes, policy)?,
            Event::StopEvict(stop) => self.stop_evict(stop)?,
            Event::Restore { tokens, allocate_first } => {
                self.begin_restore(tokens, allocate_first)?
            }
            Event::Cancel => self.cancel_restore()?,
            Event::Save => self.begin_save()?,
            Event::StopSave(stop) => self.stop_save(stop)?,
            Event::Sealed(result) => self.sealed(result)?,
            Event::Next(roles) => self.next(roles),
            Event::Done(action, outcome) => self.done(action, outcome)?,
        };
        if self.settle() {
            step.touched = Touched::All;
        }
        Ok(step)
    }

    fn next(&mut self, roles: Roles) -> Step {
        match self.goal {
            Goal::Idle => Step::default(),
            Goal::Evict(_) => self.next_evict(roles),
            Goal::Restore(_) => self.next_restore(roles),
            Goal::Save(_) => self.next_save(roles),
            Goal::Trim => self.next_trim(),
        }
    }

    /// Ends a goal that is reached; true when one ended.
    fn settle(&mut self) -> bool {
        let over = match self.goal {
            Goal::Idle => false,
            Goal::Evict(_) => self.settle_evict(),
            Goal::Restore(_) => self.settle_restore(),
            Goal::Save(_) => self.settle_save(),
            Goal::Trim => self.settle_trim(),
        };
        if over {
            self.goal = Goal::Idle;
        }
        over
    }

    /// Whether no eviction, restore, save or trim is running.
    pub fn is_idle(&self) -> bool {
        matches!(self.goal, Goal::Idle)
    }

    /// Whether an eviction is running.
    pub fn is_evicting(&self) -> bool {
        matches!(self.goal, Goal::Evict(_))
    }

    /// Whether a restore is running that was neither cancelled nor failed.
    pub fn is_restoring(&self) -> bool {
        matches!(&self.goal, Goal::Restore(restoration) if !restoration.is_stopping())
    }

    /// Whether a save is running.
    pub fn is_saving(&self) -> bool {
        matches!(self.goal, Goal::Save(_))
    }

    /// What stops an eviction or a save that is running, unless that was said already.
    pub(crate) fn to_stop(&self) -> Option<Event> {
        match &self.goal {
            Goal::Evict(eviction) if !eviction.is_stopping() => {
                Some(Event::StopEvict(Stop::Cancelled))
            }
            Goal::Save(save) if !save.is_stopping() => Some(Event::StopSave(Stop::Cancelled)),
            _ => None,
        }
    }

    /// The report of the last eviction, once.
    pub fn take_evicted(&mut self) -> Option<EvictReport> {
        self.evicted.take()
    }

    /// The end of the last restore, once.
    pub fn take_restored(&mut self) -> Option<Result<()>> {
        self.restored.take()
    }

    /// How many tokens of the context outlive the process: what was last sealed, or recovered, less
    /// what was cut off since.
    pub fn durable(&self) -> TokenCount {
        self.durable
    }

    /// Whether all units of that kind of a layer are in memory and at rest.
    pub fn is_ready(&self, layer: LayerIndex, kind: Kind) -> bool {
        if layer.get() >= self.table.weight_units() {
            return false;
        }
        match kind {
            Kind::Weights => self.table.weights(layer).is_ready(),
            Kind::Kv => self.table.layers[layer.index()].kv_missing == 0,
        }
    }

    /// Sums over all units.
    pub fn tally(&self) -> &Tally {
        &self.table.tally
    }

    /// Tokens in the context.
    pub fn tokens(&self) -> TokenCount {
        self.tokens
    }

    /// Chunk columns in use.
    pub fn columns(&self) -> u16 {
        self.table.columns
    }

    /// A chunk's state, if there is such a chunk.
    pub fn chunk(&self, id: ChunkId) -> Option<&Chunk> {
        self.table.contains(Unit::Kv(id)).then(|| self.table.chunk(id))
    }

    /// A weight unit's state, if there is such a unit.
    pub fn weights(&self, layer: LayerIndex) -> Option<&Weights> {
        self.table.contains(Unit::Weights(layer)).then(|| self.table.weights(layer))
    }

    /// Layers that hold KV.
    pub fn kv_layers(&self) -> u16 {
        self.table.kv_layers
    }
}

fn validate(config: &Config<'_>) -> Result<()> {
    let limit = |what, value: usize| Err(Error::new(Code::LimitExceeded, what).with(value));
    let units = config.weight_bytes.len();
    if units == 0 || units > usize::from(LAYERS_MAX) {
        return limit("weight units", units);
    }
    if config.shape.layers == 0 || usize::from(config.shape.layers) > units {
        return limit("KV layers", usize::from(config.shape.layers));
    }
    if config.columns_max == 0 || config.columns_max > CHUNKS_PER_LAYER_MAX {
        return limit("context chunks", usize::from(config.columns_max));
    }
    if config.weight_bytes.contains(&0) || config.shape.chunk_bytes() == 0 {
        return Err(Error::new(Code::InvalidArgument, "unit of zero bytes"));
    }
    Ok(())
}

pub(super) fn layer_at(index: usize) -> LayerIndex {
    // At most LAYERS_MAX units, checked in `validate`.
    LayerIndex::new(u16::try_from(index).unwrap_or(u16::MAX))
}

impl Step {
    /// Only an action.
    pub(super) fn act(action: Action) -> Step {
        let touched = Touched::of(action.unit());
        Step { action: Some(action), touched, ..Step::default() }
    }

    /// Only a touched gate.
    pub(super) fn touch(unit: Unit) -> Step {
        Step { touched: Touched::of(unit), ..Step::default() }
    }

    /// All gates.
    pub(super) fn touch_all() -> Step {
        Step { touched: Touched::All, ..Step::default() }
    }
}

impl Touched {
    const fn of(unit: Unit) -> Touched {
        match unit {
            Unit::Weights(layer) => Touched::Gate(layer, Kind::Weights),
            Unit::Kv(id) => Touched::Gate(id.layer, Kind::Kv),
        }
    }
}
