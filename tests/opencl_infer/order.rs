//! When layers are enqueued, and what is left when a pass ends early.

use crate::device::{Platform, platform, platform_of, programs};
use crate::models::{Parts, fixture, oracle, parts};
use crate::planted::{FAULTS, Planted, plant};
use mzcache::arena::{Arena, Sizer};
use mzcache::infer::opencl::{Accelerator, ClConfig, ClOptions, ClPorts, ClTransformer};
use mzcache::infer::{DeviceMemory, Model, SessionConfig, sample};
use mzcache::kernel::math::MathKernels;
use mzcache::port::RowReader;
use mzcache::port::buffers::{DeviceExclusive, DeviceLease};
use mzcache::port::linux::map_arena;
use mzcache::port::opencl::{BuildLog, MemoryMode, ProgramCache};
use mzcache::runtime::{self, Runtime};
use mzcache::units::{ByteCount, ChunkId, CodecId, LayerIndex, TokenCount};
use mzcache::{Code, Error, Result};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// A runtime and a transformer that are not joined by a session.
struct Bench {
    runtime: Runtime,
    transformer: ClTransformer,
    rows: &'static dyn RowReader,
}

fn size(model: &Model, config: &runtime::Config<'_>, cl: &ClConfig) -> usize {
    let mut sizer = Sizer::new();
    Accelerator::size_buffers(model, cl.context_tokens_max, &mut sizer).unwrap();
    runtime::size(&mut sizer, config).unwrap();
    ClTransformer::size(model, cl, &mut sizer).unwrap();
    sizer.required().unwrap()
}

fn bench(accelerator: &Accelerator) -> Bench {
    let Parts { model, config, mut ports } =
        parts("cl-order", &fixture("qwen3.gguf"), CodecId::Raw, 2);
    let SessionConfig { options, compute } = config;
    let cl = ClConfig { compute, context_tokens_max: options.context_tokens_max };
    let config = runtime::Config { shape: model.shape.kv(), weights: model.units, options };
    let mut arena = Arena::new(map_arena(size(&model, &config, &cl)).unwrap()).unwrap();
    let buffers = accelerator.buffers(&model, cl.context_tokens_max, &mut arena).unwrap();
    ports.runtime.memory = buffers;
    let runtime = Runtime::place(&config, &mut arena, ports.runtime).unwrap();
    let directory = programs();
    let built = ClOptions { cache: Some(ProgramCache::new(&directory)), ..ClOptions::default() };
    let mut bytes = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut bytes);
    let kernels = MathKernels::select(options.cpu);
    let transformer =
        ClTransformer::open(model, kernels, cl, accelerator, &built, &mut log, &mut arena).unwrap();
    Bench { runtime, transformer, rows: ports.rows }
}

/// Gives out units, and looks at what the device has done so far.
struct Watch<'a> {
    runtime: &'a Runtime,
    /// Where each layer's first key will be.
    keys: RefCell<Vec<u64>>,
    /// The KV gate that never opens.
    closed: Cell<Option<u16>>,
    is_watching: bool,
}

impl DeviceMemory for Watch<'_> {
    /// The layer before has run, although this one is not there yet.
    fn weights(&self, layer: LayerIndex) -> Result<DeviceLease<'static>> {
        if self.is_watching && layer.get() > 0 {
            let key = self.keys.borrow()[layer.index() - 1];
            let key = std::ptr::with_exposed_provenance::<u64>(usize::try_from(key).unwrap());
            let start = Instant::now();
            // SAFETY: the address of a chunk that is leased by the pass, in fine-grain memory.
            while unsafe { key.read_volatile() } == 0 {
                assert!(start.elapsed() < Duration::from_secs(60), "layer {layer:?} holds it up");
                std::thread::yield_now();
            }
        }
        self.runtime.weights_on_device(layer)
    }

    fn wait_kv(&self, layer: LayerIndex) -> Result<()> {
        match self.closed.get() == Some(layer.get()) {
            true => Err(Error::new(Code::Cancelled, "gate").with(layer.get())),
            false => DeviceMemory::wait_kv(self.runtime, layer),
        }
    }

    fn kv(&self, id: ChunkId) -> Result<DeviceLease<'static>> {
        self.runtime.kv_on_device(id)
    }

    fn kv_mut(&self, id: ChunkId) -> Result<DeviceExclusive<'static>> {
        let tail = self.runtime.kv_on_device_mut(id)?;
        self.keys.borrow_mut().push(tail.region().address);
        Ok(tail)
    }
}

fn watch(runtime: &Runtime, closed: Option<u16>, is_watching: bool) -> Watch<'_> {
    Watch { runtime, keys: RefCell::default(), closed: Cell::new(closed), is_watching }
}

impl Bench {
    fn forward(&mut self, tokens: &[u32], closed: Option<u16>, watch_it: bool) -> Result<Vec<f32>> {
        let position = self.runtime.tokens().get();
        let end = TokenCount::new(position + u32::try_from(tokens.len()).unwrap());
        self.runtime.begin_pass(end).unwrap();
        let memory = watch(&self.runtime, closed, watch_it);
        let ports = ClPorts { memory: &memory, rows: self.rows };
        let logits = self.transformer.forward(ports, tokens, position, 1)?.to_vec();
        self.runtime.commit(end)?;
        Ok(logits)
    }
}

fn on(platform: &Platform, mode: MemoryMode) -> Option<Bench> {
    platform.accelerator(Some(mode)).map(|accelerator| bench(&accelerator))
}

/// Looks at what the device has got when the first layer is asked for, which never comes.
struct First<'a> {
    library: &'a Planted,
    commands: Cell<(i32, i32)>,
}

impl DeviceMemory for First<'_> {
    fn weights(&self, _layer: LayerIndex) -> Result<DeviceLease<'static>> {
        let calls = |name| self.library.get(name);
        self.commands.set((calls(c"clEnqueueNDRangeKernel_calls"), calls(c"clFlush_calls")));
        Err(Error::new(Code::Cancelled, "gate"))
    }

    fn wait_kv(&self, _layer: LayerIndex) -> Result<()> {
        unreachable!("weights come first")
    }

    fn kv(&self, _id: ChunkId) -> Result<DeviceLease<'static>> {
        unreachable!("weights come first")
    }

    fn kv_mut(&self, _id: ChunkId) -> Result<DeviceExclusive<'static>> {
        unreachable!("weights come first")
    }
}

#[test]
fn the_device_is_woken_before_the_first_layer_is_there() {
    let library = plant("order-first", FAULTS, true);
    let Some(platform) = platform_of(&library.path) else { return };
    let Some(mut bench) = on(&platform, MemoryMode::Coarse) else { return };
    bench.runtime.begin_pass(TokenCount::new(3)).unwrap();
    library.set(c"clEnqueueNDRangeKernel_calls", 0);
    library.set(c"clFlush_calls", 0);
    let memory = First { library: &library, commands: Cell::default() };
    let ports = ClPorts { memory: &memory, rows: bench.rows };
    let error = bench.transformer.forward(ports, &[1, 2, 3], 0, 1).unwrap_err();
    assert_eq!(error, Error::new(Code::Cancelled, "gate"));
    // One command, and it is on its way.
    assert_eq!(memory.commands.get(), (1, 1));
}

#[test]
fn a_layer_runs_before_the_next_one_is_there() {
    let Some(platform) = platform() else { return };
    let Some(mut bench) = on(&platform, MemoryMode::Fine) else { return };
    bench.forward(&[1, 2, 3], None, true).unwrap();
}

#[test]
fn a_pass_that_ends_early_leaves_nothing_leased_and_can_be_repeated() {
    let Some(platform) = platform() else { return };
    for mode in crate::device::MODES {
        let Some(mut bench) = on(&platform, mode) else { continue };
        let oracle = oracle("qwen3.json");
        for closed in [0, 3, 5] {
            let error = bench.forward(&oracle.prompt[..20], Some(closed), false).unwrap_err();
            assert_eq!((error.code, error.value), (Code::Cancelled, closed.into()));
            bench.runtime.evict(ByteCount::new(u64::MAX), None).unwrap();
            assert_eq!(bench.runtime.stats().tally.total_bytes(), 0);
        }
        let logits = bench.forward(&oracle.prompt, None, false).unwrap();
        assert_eq!(sample::arg_max(&logits), Some(oracle.greedy[0] as usize));
    }
}

#[test]
fn a_pass_beyond_the_context_is_refused() {
    let Some(platform) = platform() else { return };
    let Some(mut bench) = on(&platform, MemoryMode::Buffers) else { return };
    let memory = watch(&bench.runtime, None, false);
    let ports = ClPorts { memory: &memory, rows: bench.rows };
    let error = bench.transformer.forward(ports, &[1, 2], 1023, 1).unwrap_err();
    assert_eq!((error.code, error.what), (Code::LimitExceeded, "context_tokens_max"));
}
