//! Placement of all parts, start and end of the threads.

use super::checkpoint::Keeping;
use super::config::Config;
use super::gate::Gates;
use super::pass::Overlap;
use super::steps::Profile;
use super::trace::Trace;
use super::weights::WeightMap;
use super::worker::Worker;
use crate::arena::{Arena, Sizer};
use crate::codec::{Codec, PLANE_ALIGN};
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::limits::{IO_ALIGN, WORKERS_MAX};
use crate::port::buffers::Buffers;
use crate::port::lock::Lock;
use crate::port::{Ports, ThreadId, ThreadSpec};
use crate::state::{self, EvictPolicy, Machine, Roles};
use crate::swap::file::SwapFile;
use crate::swap::manifest::Manifest;
use crate::swap::record::Layout;
use crate::swap::stack::Stack;
use crate::sync::Word;
use crate::units::{ChunkId, KvShape, LayerIndex, SegmentIndex, Unit};
use core::mem::{ManuallyDrop, MaybeUninit};

/// What the one lock guards.
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) stack: Stack,
    /// Why the last restore ended early, for those who still wait at its gates.
    pub(super) restore_error: Option<Error>,
}

impl Core {
    /// Whether nothing is under way, and all memory that it freed has been given back.
    pub(super) fn is_at_rest(&self) -> bool {
        self.machine.is_idle() && !self.owes_memory()
    }

    /// Whether segments of the RAM swap are still to be given back.
    pub(super) fn owes_memory(&self) -> bool {
        self.stack.is_releasing() || self.stack.has_vacant()
    }

    /// A segment that a restore emptied, once the restore is over. One at a time: the kernel lets
    /// threads that give memory back wait for each other.
    pub(super) fn take_vacant(&mut self) -> Option<SegmentIndex> {
        match self.machine.is_restoring() || self.stack.is_releasing() {
            true => None,
            false => self.stack.take_vacant(),
        }
    }
}

/// All that workers and callers share.
pub(super) struct Shared {
    pub(super) core: Lock<Core>,
    /// Changes whenever there may be new work or a goal ended; workers and waiters park on it.
    pub(super) work: Word,
    /// Not 0 once worker threads are to return.
    pub(super) closing: Word,
    /// Not 0 while a caller is inside an eviction, until it has its report.
    pub(super) evicting: Word,
    /// Calls of [`super::Evictor`]s under way, and a bit when no more may begin; the runtime
    /// outlives them.
    pub(super) guests: Word,
    /// Not 0 while worker threads work.
    pub(super) threaded: Word,
    /// Bits of [`super::Overlap`].
    pub(super) overlap: Word,
    /// Bits of the [`Roles`] in which work is given out.
    pub(super) roles: Word,
    /// Changes when workers are to ask for their cores again.
    pub(super) repins: Word,
    pub(super) gates: Gates,
    pub(super) buffers: Buffers,
    pub(super) ports: Ports,
    pub(super) codec: &'static dyn Codec,
    pub(super) kernels: Kernels,
    pub(super) swap: Option<SwapFile>,
    pub(super) keeping: Option<Lock<Keeping>>,
    pub(super) weights: WeightMap,
    pub(super) shape: KvShape,
    /// How evictions go about it unless they say otherwise.
    pub(super) evict_policy: EvictPolicy,
    pub(super) weight_units: u16,
    /// The RAM swap's segments among the buffers.
    pub(super) segments: Layout,
    /// One a worker, the last one for callers.
    pub(super) scratch: &'static [Lock<Scratch>],
    pub(super) profile: Profile,
    pub(super) trace: Option<&'static dyn Trace>,
}

/// A worker's own memory.
#[derive(Default)]
pub(super) struct Scratch {
    /// A chunk on its way, raw or packed.
    pub(super) chunk: &'static mut [u8],
    /// What the codec needs besides.
    pub(super) codec: &'static mut [u8],
}

/// An open memory manager: one model, one context.
pub struct Runtime {
    pub(super) shared: &'static Shared,
    pub(super) workers: &'static [Worker],
    threads: &'static [Option<ThreadId>],
}

/// Adds what [`Runtime::open`] places, in the same order.
pub(super) fn place_sizes(sizer: &mut Sizer, config: &Config<'_>) -> Result<()> {
    let segments = config.layout()?;
    sizer.slice::<u64>(config.weights.len())?;
    Machine::size(sizer, config.weights.len(), config.shape.layers, config.columns_max()?)?;
    Stack::size(sizer, &segments, config.options.workers.len() + 1)?;
    Buffers::size(sizer, segments.first_slot + usize::from(segments.segments))?;
    Gates::size(sizer, config.weights.len())?;
    WeightMap::size(sizer, config.weights)?;
    if config.options.swap_file {
        SwapFile::size(sizer, &config.slots()?)?;
        Manifest::size(sizer, &config.slots()?, config.steps_bytes())?;
    }
    for _ in 0..=config.options.workers.len() {
        sizer.bytes(config.slot_bytes(), IO_ALIGN)?;
        sizer.bytes(config.codec_scratch_bytes(), PLANE_ALIGN)?;
    }
    sizer.slice::<Lock<Scratch>>(config.options.workers.len() + 1)?;
    Profile::size(sizer, config)?;
    sizer.value::<Shared>()?;
    sizer.slice::<Worker>(config.options.workers.len())?;
    sizer.slice::<Option<ThreadId>>(config.options.workers.len())
}

impl Runtime {
    /// Places everything in `memory` (see [`super::required_bytes`]) and starts the workers. All
    /// weights are on storage and the context is empty. The memory stays taken for good: nothing of
    /// it is given back when the runtime is dropped.
    pub fn open(
        config: &Config<'_>,
        memory: &'static mut [MaybeUninit<u8>],
        ports: Ports,
    ) -> Result<Runtime> {
        let mut arena = Arena::new(memory)?;
        let runtime = Self::place(config, &mut arena, ports)?;
        let used = arena.seal();
        let mut sizer = Sizer::new();
        place_sizes(&mut sizer, config)?;
        assert_eq!(used, sizer.used(), "the size query and the placement agree");
        Ok(runtime)
    }

    /// As [`Runtime::open`], inside an arena that holds other things too.
    pub fn place(config: &Config<'_>, arena: &mut Arena, ports: Ports) -> Result<Runtime> {
        config.validate()?;
        let shared = place_shared(config, arena, ports)?;
        let workers: &'static [Worker] = arena.slice(config.options.workers.len(), |index| {
            Worker::new(shared, index, &config.options.workers[index])
        })?;
        let threads = arena.slice(config.options.workers.len(), |_| None)?;
        let Some(port) = ports.threads.filter(|_| !config.options.workers.is_empty()) else {
            return Ok(Runtime { shared, workers, threads });
        };
        shared.threaded.store(1);
        let mut failure = None;
        for (index, worker) in workers.iter().enumerate() {
            let name = worker.name();
            let spec = ThreadSpec { name: name.as_str(), stack_bytes: config.options.stack_bytes };
            match port.spawn(spec, worker) {
                Ok(thread) => threads[index] = Some(thread),
                Err(error) => failure = Some(error),
            }
        }
        let runtime = Runtime { shared, workers, threads };
        if let Some(error) = failure {
            // Dropping the runtime ends the threads that did start.
            return Err(error);
        }
        for worker in workers {
            worker.pin.wait(ports.park);
        }
        Ok(runtime)
    }

    /// The same runtime for a second holder, who must not end it and is to be done with it before
    /// its owner ends it.
    pub fn lend(&self) -> ManuallyDrop<Runtime> {
        let Runtime { shared, workers, threads } = *self;
        ManuallyDrop::new(Runtime { shared, workers, threads })
    }

    /// Whether callers execute actions themselves.
    pub fn is_inline(&self) -> bool {
        self.shared.is_inline()
    }

    /// Gives out work in these roles only, for measurements of one path alone; what needs another
    /// role waits until it is allowed again.
    pub fn allow_roles(&self, roles: Roles) {
        self.shared.roles.store(roles.bits().into());
        self.shared.announce();
    }

    /// Lets the worker threads rest, so that callers execute every action themselves, one after the
    /// other; or wakes them again. The partial-offload baseline restores that way. Not while a
    /// caller waits at a gate: it counts on workers that would rest.
    pub fn rest_workers(&self, rest: bool) {
        let threads = self.threads.iter().any(Option::is_some);
        self.shared.threaded.store(u32::from(threads && !rest));
        self.shared.announce();
    }
}

fn place_shared(config: &Config<'_>, arena: &mut Arena, ports: Ports) -> Result<&'static Shared> {
    let weights = config.weights;
    let weight_bytes = arena.slice(weights.len(), |unit| weights[unit].bytes())?;
    let segments = config.layout()?;
    let codec = config.codec();
    let machine = Machine::new(
        arena,
        &state::Config {
            shape: config.shape,
            columns_max: config.columns_max()?,
            weight_bytes,
            packed_bytes_max: config.packed_bytes_max() as u64,
            lossless: codec.properties().is_lossless,
            plan: config.plan()?,
        },
    )?;
    let workers = config.options.workers.len() + 1;
    let stack = Stack::new(arena, &segments, workers)?;
    let buffer_slots = segments.first_slot + usize::from(segments.segments);
    let buffers = Buffers::new(arena, buffer_slots, ports.memory)?;
    let gates = Gates::new(arena, weights.len())?;
    let map = WeightMap::new(arena, weights, ports.model.length()?)?;
    let kernels = Kernels::select(config.options.cpu);
    let swap = match ports.swap.filter(|_| config.options.swap_file) {
        Some(storage) => Some(SwapFile::new(arena, storage, &config.slots()?, kernels.crc32c)?),
        None if config.options.swap_file => {
            return Err(Error::new(Code::InvalidArgument, "swap port"));
        }
        None => None,
    };
    let keeping = match swap {
        Some(_) => Some(Lock::new(Keeping::new(arena, config)?, ports.park)),
        None => None,
    };
    let scratch = place_scratch(config, arena, ports)?;
    let profile = Profile::new(arena, config, &kernels, ports)?;
    let shared = Shared {
        core: Lock::new(Core { machine, stack, restore_error: None }, ports.park),
        work: Word::new(0),
        closing: Word::new(0),
        evicting: Word::new(0),
        guests: Word::new(0),
        threaded: Word::new(0),
        overlap: Word::new(Overlap::all().bits()),
        roles: Word::new(Roles::all().bits().into()),
        repins: Word::new(0),
        gates,
        buffers,
        ports,
        codec,
        kernels,
        swap,
        keeping,
        weights: map,
        shape: config.shape,
        evict_policy: config.options.evict,
        weight_units: u16::try_from(weights.len())
            .map_err(|_| Error::new(Code::LimitExceeded, "weight units").with(weights.len()))?,
        segments,
        scratch,
        profile,
        trace: config.options.trace,
    };
    Ok(arena.value(shared)?)
}

/// One a worker, and one for callers.
fn place_scratch(
    config: &Config<'_>,
    arena: &mut Arena,
    ports: Ports,
) -> Result<&'static [Lock<Scratch>]> {
    let workers = config.options.workers.len() + 1;
    let mut all: [Scratch; WORKERS_MAX + 1] = core::array::from_fn(|_| Scratch::default());
    for scratch in all.iter_mut().take(workers) {
        scratch.chunk = arena.bytes(config.slot_bytes(), IO_ALIGN)?;
        scratch.codec = arena.bytes(config.codec_scratch_bytes(), PLANE_ALIGN)?;
    }
    Ok(arena.slice(workers, |index| Lock::new(core::mem::take(&mut all[index]), ports.park))?)
}

impl Shared {
    /// The buffer slot of a unit.
    pub(super) fn slot(&self, unit: Unit) -> usize {
        match unit {
            Unit::Weights(layer) => layer.index(),
            Unit::Kv(ChunkId { layer, chunk }) => {
                let row = chunk.index() * usize::from(self.shape.layers);
                usize::from(self.weight_units) + row + layer.index()
            }
        }
    }

    pub(super) fn is_inline(&self) -> bool {
        self.threaded.load() == 0
    }

    /// Index of the callers' scratch and open segment.
    pub(super) fn caller(&self) -> usize {
        self.scratch.len() - 1
    }

    pub(super) fn layers(&self) -> impl Iterator<Item = LayerIndex> + use<> {
        (0..self.weight_units).map(LayerIndex::new)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Their evictions may need workers to end.
        self.shared.see_guests_off();
        self.shared.closing.store(1);
        self.shared.announce();
        if let Some(port) = self.shared.ports.threads {
            for thread in self.threads.iter().copied().flatten() {
                port.join(thread);
            }
        }
        self.shared.release_all();
        self.shared.ports.memory.trim();
    }
}
