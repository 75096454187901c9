//! Helpers of the codec tests: chunks to pack, and a full cycle of packing and unpacking.

mod cachegen;
mod cycles;
mod hostile;
mod idempotence;
mod kv4;
mod kvh;
mod layouts;
mod steps;

use super::{ChunkLayout, Codec, Geometry, HEADER_BYTES, LayerSteps, RotaryPairs};
use super::{Steps, StepsUse, Work, codec, mean_square};
use crate::error::Result;
use crate::kernel::Kernels;
use crate::kernel::support::{Random, rungs};
use crate::units::{ChunkId, ChunkIndex, CodecId, KvShape, LayerIndex};
use std::vec::Vec;

/// The oracle; `every_rung_packs_and_unpacks_alike` compares what this machine can do.
const KERNELS: Kernels = Kernels::portable();

/// Every head size that the tests walk through; 256 is the greatest.
const HEAD_DIMS: [u16; 7] = [32, 64, 80, 96, 128, 192, 256];

const LAYOUTS: [ChunkLayout; 2] = [ChunkLayout::TokenMajor, ChunkLayout::ChannelMajor];

/// Stands in values that a codec must not touch.
const UNTOUCHED: u16 = 0xDEAD;

fn geometry(kv_heads: u16, head_dim: u16, tokens: u16) -> Geometry {
    let id = ChunkId { layer: LayerIndex::new(5), chunk: ChunkIndex::new(9) };
    let shape = KvShape { layers: 30, kv_heads, head_dim };
    Geometry { shape, id, tokens, layout: ChunkLayout::TokenMajor }
}

/// The places of a chunk's valid values, in memory order.
fn valid(geometry: &Geometry) -> impl Iterator<Item = usize> + use<> {
    let (geometry, stride) = (*geometry, geometry.part_values());
    (0..geometry.parts())
        .flat_map(move |part| geometry.runs().flatten().map(move |value| part * stride + value))
}

/// A chunk whose valid values come from `value` and whose other values are marked.
fn chunk(geometry: &Geometry, mut value: impl FnMut() -> u16) -> Vec<u16> {
    let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
    valid(geometry).for_each(|place| chunk[place] = value());
    chunk
}

/// Random finite values whose exponents lie in a range that differs from chunk to chunk.
fn finite(random: &mut Random) -> impl FnMut() -> u16 {
    let exponent_max = 1 + random.below(31) as u16;
    move || random.u16() & 0x83FF | (random.u16() % exponent_max) << 10
}

/// Scratch that starts where a codec wants it, filled with noise.
struct Scratch {
    memory: Vec<u8>,
    start: usize,
}

impl Scratch {
    fn new(codec: &dyn Codec, geometry: &Geometry) -> Self {
        let memory = std::vec![0x5A; codec.scratch_bytes(geometry) + 63];
        let start = memory.as_ptr().align_offset(64);
        Scratch { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.memory.len() - 63;
        &mut self.memory[self.start..][..bytes]
    }
}

/// What the tests pack and unpack with.
#[derive(Clone, Copy)]
struct With<'a> {
    kernels: &'a Kernels,
    steps: Option<LayerSteps<'a>>,
}

/// The oracle without steps.
const PLAIN: With<'static> = With { kernels: &KERNELS, steps: None };

/// A step for each channel of the greatest geometry.
static EVEN_STEPS: [f32; 64 * 256] = [1.0; 64 * 256];

/// The oracle, with steps for codecs that do not work without.
fn usual(codec: &dyn Codec, geometry: &Geometry) -> With<'static> {
    let channels = usize::from(geometry.shape.kv_heads) * usize::from(geometry.shape.head_dim);
    match codec.properties().steps {
        StepsUse::Needed => {
            With { steps: Some(LayerSteps { id: 1, k: &EVEN_STEPS[..channels] }), ..PLAIN }
        }
        _ => PLAIN,
    }
}

impl With<'_> {
    /// Packs into a buffer of the greatest size that is filled with noise before.
    fn pack(&self, codec: &dyn Codec, geometry: &Geometry, chunk: &[u16]) -> Vec<u8> {
        let mut packed = std::vec![0xA5; codec.packed_bytes_max(geometry)];
        let bytes = self.try_pack(codec, geometry, chunk, &mut packed).unwrap();
        assert_eq!(bytes % 64, 0);
        packed.truncate(bytes);
        packed
    }

    fn try_pack(
        &self,
        codec: &dyn Codec,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        let mut scratch = Scratch::new(codec, geometry);
        let With { kernels, steps } = *self;
        codec.pack(&mut Work { kernels, steps, scratch: scratch.bytes() }, geometry, chunk, packed)
    }

    /// Unpacks into a marked chunk.
    fn unpack(&self, codec: &dyn Codec, geometry: &Geometry, packed: &[u8]) -> Vec<u16> {
        let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
        self.try_unpack(codec, geometry, packed, &mut chunk).unwrap();
        chunk
    }

    fn try_unpack(
        &self,
        codec: &dyn Codec,
        geometry: &Geometry,
        packed: &[u8],
        chunk: &mut [u16],
    ) -> Result<()> {
        let mut scratch = Scratch::new(codec, geometry);
        let With { kernels, steps } = *self;
        let mut work = Work { kernels, steps, scratch: scratch.bytes() };
        codec.unpack(&mut work, geometry, packed, chunk)
    }
}

fn pack(codec: &dyn Codec, geometry: &Geometry, chunk: &[u16]) -> Vec<u8> {
    usual(codec, geometry).pack(codec, geometry, chunk)
}

fn unpack(codec: &dyn Codec, geometry: &Geometry, packed: &[u8]) -> Vec<u16> {
    usual(codec, geometry).unpack(codec, geometry, packed)
}

/// Writes both checksums anew, so that a change of other bytes is not found by them.
fn seal(packed: &mut [u8]) {
    let crc = |bytes: &[u8]| KERNELS.crc32c.call(0, bytes).to_le_bytes();
    let payload_crc = crc(&packed[HEADER_BYTES..]);
    packed[24..28].copy_from_slice(&payload_crc);
    let header_crc = crc(&packed[..60]);
    packed[60..64].copy_from_slice(&header_crc);
}

/// The step profile of the model behind the real chunks.
fn real_steps(memory: &mut Vec<f32>) -> Steps<'_> {
    let shape = geometry(3, 64, 256).shape;
    let (energies, _) = include_bytes!("../../../tests/fixtures/kv/qstat.f32").as_chunks::<4>();
    *memory = energies.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let mut squares = [1.0; 30];
    for (layer, chunk) in [(0, real(0)), (9, real(2)), (19, real(5)), (29, real(6))] {
        squares[layer] = mean_square(std::iter::once(&chunk[..shape.block_values()]));
    }
    Steps::from_energy(&KERNELS, shape, &squares, RotaryPairs::Adjacent, memory).unwrap()
}

macro_rules! fixtures {
    ($($layer:literal $name:literal),*) => {
        [$(($layer, [
            include_bytes!(concat!("../../../tests/fixtures/kv/", $name, "_k.f16")),
            include_bytes!(concat!("../../../tests/fixtures/kv/", $name, "_v.f16")),
        ])),*]
    };
}

/// Layer, K and V of each real chunk.
static REAL: [(u16, [&[u8; 2 * 256 * 192]; 2]); 8] = fixtures![
    0 "layer00_chunk2", 0 "layer00_chunk7", 9 "layer09_chunk2", 9 "layer09_chunk7",
    19 "layer19_chunk2", 19 "layer19_chunk7", 29 "layer29_chunk2", 29 "layer29_chunk7"
];

/// One of them, in the library's order.
fn real(index: usize) -> Vec<u16> {
    let mut chunk = Vec::new();
    for block in REAL[index].1 {
        let (halves, _) = block.as_chunks::<2>();
        let rows: Vec<&[[u8; 2]]> = halves.chunks_exact(64).collect();
        for (head, token) in (0..3).flat_map(|head| (0..256).map(move |token| (head, token))) {
            chunk.extend(rows[3 * token + head].iter().map(|&half| u16::from_le_bytes(half)));
        }
    }
    chunk
}

/// Two of them, of layers 0 and 19: one with the heaviest tails, and a usual one.
fn real_chunks() -> [Vec<u16>; 2] {
    [real(0), real(5)]
}
