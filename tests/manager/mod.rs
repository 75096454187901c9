//! A manager on real files, real memory and real threads, and a stand-in for compute that writes
//! known values: what tests of the runtime share.

use mzcache::Error;
use mzcache::arena::view;
use mzcache::policy::{Order, Scheme};
use mzcache::port::linux::{HostPorts, host_cpu, map_arena};
use mzcache::port::{Meter, Park, Ports, SharedMemory, Threads};
use mzcache::runtime::{Config, Options, Runtime, Trace, Worker, required_bytes};
use mzcache::state::{EvictPolicy, Roles, Stop};
use mzcache::units::{
    ByteCount, ChunkId, ChunkIndex, CodecId, Extent, Kind, KvShape, LayerIndex, TokenCount,
    WeightUnit,
};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

pub const SHAPE: KvShape = KvShape { layers: 6, kv_heads: 2, head_dim: 64 };
pub const UNIT_BYTES: u64 = 9 << 20;
pub const CONTEXT: u32 = 1500;

pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// A folder of the test's own, on a real file system.
pub fn folder(name: &str) -> PathBuf {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

pub struct Fixture {
    pub runtime: Runtime,
    pub weights: Vec<u8>,
    pub folder: PathBuf,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub struct Setup {
    pub codec: CodecId,
    pub order: Order,
    pub scheme: Scheme,
    pub workers: Vec<Worker>,
    pub swap_file: bool,
    /// A saved step profile.
    pub steps: Option<Vec<u8>>,
    /// Shared buffers other than the host's.
    pub memory: Option<&'static dyn SharedMemory>,
    /// A meter that knows of such buffers.
    pub meter: Option<&'static dyn Meter>,
    pub trace: Option<&'static dyn Trace>,
    /// Threads other than the host's.
    pub threads: Option<&'static dyn Threads>,
    /// Waiting other than the host's.
    pub park: Option<&'static dyn Park>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            codec: CodecId::Raw,
            order: Order::BackwardOut,
            scheme: Scheme::Hybrid,
            workers: [Roles::READ, Roles::UNPACK, Roles::ALLOCATE].map(Worker::new).to_vec(),
            swap_file: true,
            steps: None,
            memory: None,
            meter: None,
            trace: None,
            threads: None,
            park: None,
        }
    }
}

pub fn open(name: &str, setup: &Setup) -> Fixture {
    let folder = folder(name);
    let model = folder.join("model");
    let units = u64::from(SHAPE.layers) + 1;
    // The last window passes the file's end.
    let weights: Vec<u8> = (0..units * UNIT_BYTES - 1000)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect();
    std::fs::write(&model, &weights).unwrap();
    let swap = c_path(&folder.join("swap"));
    let mut ports = leak(HostPorts::open(&c_path(&model), Some(&swap)).unwrap()).ports();
    ports.memory = setup.memory.unwrap_or(ports.memory);
    ports.meter = setup.meter.or(ports.meter);
    ports.threads = setup.threads.or(ports.threads);
    ports.park = setup.park.unwrap_or(ports.park);
    let runtime = open_in(setup, ports, |bytes| map_arena(bytes).unwrap()).unwrap();
    Fixture { runtime, weights, folder }
}

/// Opens a runtime over a model file like [`open`]'s, in the memory that `arena` gives.
pub fn open_in(
    setup: &Setup,
    ports: Ports,
    arena: impl FnOnce(usize) -> &'static mut [MaybeUninit<u8>],
) -> Result<Runtime, Error> {
    let units = u64::from(SHAPE.layers) + 1;
    let half = UNIT_BYTES / 2 / 4096 * 4096;
    let extents: Vec<[Extent; 2]> = (0..units)
        .map(|unit| {
            // Two windows each, the second one first in the file.
            let start = unit * UNIT_BYTES;
            [
                Extent { file_offset: start + half, bytes: UNIT_BYTES - half, buffer_offset: 0 },
                Extent { file_offset: start, bytes: half, buffer_offset: UNIT_BYTES - half },
            ]
        })
        .collect();
    let weight_units: Vec<WeightUnit<'_>> =
        extents.iter().map(|extents| WeightUnit { extents }).collect();
    let config = Config {
        shape: SHAPE,
        weights: &weight_units,
        options: Options {
            context_tokens_max: TokenCount::new(4096),
            codec: setup.codec,
            evict: EvictPolicy {
                scheme: setup.scheme,
                order: setup.order,
                ..EvictPolicy::default()
            },
            workers: &setup.workers,
            swap_file: setup.swap_file,
            cpu: host_cpu(),
            steps: setup.steps.as_deref(),
            trace: setup.trace,
            ..Options::default()
        },
    };
    Runtime::open(&config, arena(required_bytes(&config)?), ports)
}

pub fn id(layer: u16, chunk: u32) -> ChunkId {
    ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(u16::try_from(chunk).unwrap()) }
}

/// The F16 value that the test's "model" writes there: finite, of many sizes.
pub fn value(layer: u16, token: u32, index: usize) -> u16 {
    let mixed = (u64::from(layer) << 40 | u64::from(token) << 20 | index as u64)
        .wrapping_mul(0xD129_0D3F_1B2C_4E05);
    let bits = (mixed >> 48) as u16;
    // Exponents 10 to 17 of 31.
    (bits & 0x83FF) | (10 + (bits >> 10 & 7)) << 10
}

/// One pass: waits at every gate, checks the weights, writes K and V of the new tokens, commits.
pub fn pass(fixture: &Fixture, tokens: u32) -> Result<(), Error> {
    let runtime = &fixture.runtime;
    let before = runtime.tokens().get();
    runtime.begin_pass(TokenCount::new(before + tokens))?;
    for layer in 0..SHAPE.layers {
        let weights = runtime.weights(LayerIndex::new(layer))?;
        check_weights(fixture, layer, &weights);
        runtime.wait(LayerIndex::new(layer), Kind::Kv)?;
        for token in before..before + tokens {
            write_token(runtime, layer, token)?;
        }
    }
    let head = runtime.weights(LayerIndex::new(SHAPE.layers))?;
    check_weights(fixture, SHAPE.layers, &head);
    runtime.commit(TokenCount::new(before + tokens))
}

pub fn write_token(runtime: &Runtime, layer: u16, token: u32) -> Result<(), Error> {
    let mut chunk = runtime.kv_mut(id(layer, token / 256))?;
    let values = view::numbers_mut::<u16>(&mut chunk).unwrap();
    for (index, place) in places(token).enumerate() {
        values[place] = value(layer, token, index);
    }
    Ok(())
}

/// Where a token's values lie in a chunk: K then V, [kv_head][256][head_dim].
pub fn places(token: u32) -> impl Iterator<Item = usize> {
    let row = token as usize % 256;
    let (heads, dim) = (usize::from(SHAPE.kv_heads), usize::from(SHAPE.head_dim));
    (0..2 * heads).flat_map(move |head| (0..dim).map(move |i| (head * 256 + row) * dim + i))
}

pub fn check_weights(fixture: &Fixture, layer: u16, bytes: &[u8]) {
    let start = usize::from(layer) * UNIT_BYTES as usize;
    let half = (UNIT_BYTES / 2 / 4096 * 4096) as usize;
    let end = (start + UNIT_BYTES as usize).min(fixture.weights.len());
    let second = &fixture.weights[start + half..end];
    assert!(bytes[..second.len()] == *second, "weights of layer {layer}");
    let first = &fixture.weights[start..start + half];
    assert!(bytes[UNIT_BYTES as usize - half..] == *first, "weights of layer {layer}");
}

/// All valid KV bytes, in layer and token order.
pub fn kv_values(runtime: &Runtime) -> Vec<u16> {
    let mut all = Vec::new();
    for layer in 0..SHAPE.layers {
        runtime.wait(LayerIndex::new(layer), Kind::Kv).unwrap();
        for token in 0..runtime.tokens().get() {
            let chunk = runtime.kv(id(layer, token / 256)).unwrap();
            let values = view::numbers::<u16>(&chunk).unwrap();
            all.extend(places(token).map(|place| values[place]));
        }
    }
    all
}

pub fn expected_values() -> Vec<u16> {
    let per_token = places(0).count();
    (0..SHAPE.layers)
        .flat_map(|layer| (0..CONTEXT).map(move |token| (layer, token)))
        .flat_map(|(layer, token)| (0..per_token).map(move |i| value(layer, token, i)))
        .collect()
}

pub fn total(runtime: &Runtime) -> u64 {
    runtime.stats().tally.total_bytes()
}

pub fn evict_to(runtime: &Runtime, percent: u64, total: u64) {
    let resident = runtime.stats().tally.total_bytes();
    let allowed = total * percent / 100;
    let report = runtime.evict(ByteCount::new(resident.saturating_sub(allowed)), None).unwrap();
    assert_eq!(report.booked.stop, Stop::Reached, "{report:?}");
    assert!(report.booked.error.is_none(), "{report:?}");
    assert!(runtime.stats().tally.total_bytes() <= allowed);
    runtime.check().unwrap();
}

/// A path as C wants it.
pub fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.to_str().unwrap()).unwrap()
}
