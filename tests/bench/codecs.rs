//! What one core packs and unpacks, beside what it copies, in one run:
//!
//!     cargo bench --bench codecs [-- [--rung=NAME] CODEC...]
//!
//! Chunks of Qwen3-0.6B's size follow each other through a buffer that no cache holds, or one chunk
//! again and again. Rates are bytes of F16 values a second, of the fastest chunk of hundreds, so
//! that a busy machine disturbs little; the factor is over a copy of the same bytes. CacheGen is
//! measured with both of its numbers of bins, beside a coder that works bit by bit. A rung is one
//! of [`CpuFlags::LADDER`]; without its name, what the machine can do is used.

#[path = "../kernel_support/arithmetic.rs"]
mod arithmetic;

use mzcache::codec::{ChunkLayout, Codec, Geometry, Steps, Work, codec, mean_square};
use mzcache::kernel::{CpuFlags, Kernels};
use mzcache::units::{ChunkId, ChunkIndex, CodecId, KvShape, LayerIndex};
use std::hint::black_box;
use std::time::Instant;

const SHAPE: KvShape = KvShape { layers: 28, kv_heads: 8, head_dim: 128 };
const CHUNK_BYTES: usize = SHAPE.chunk_bytes();
/// Together well past a core's share of the last cache.
const CHUNKS_STREAMED: usize = 128;
const ROUNDS: usize = 7;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // A test run wants no numbers.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    let is_wanted = |id: &CodecId| {
        let mut names = arguments.iter().filter(|argument| !argument.starts_with("--")).peekable();
        names.peek().is_none() || names.any(|name| name == id.name())
    };
    let mask = match arguments.iter().find_map(|argument| argument.strip_prefix("--rung=")) {
        Some(name) => CpuFlags::LADDER.iter().find(|rung| rung.0 == name).expect("no such rung").1,
        None => CpuFlags::all(),
    };
    let kernels = Kernels::select(CpuFlags::detect() & mask);
    for id in CodecId::ALL.into_iter().filter(is_wanted) {
        for layout in [ChunkLayout::TokenMajor, ChunkLayout::ChannelMajor] {
            for chunks in [1, CHUNKS_STREAMED] {
                measure(codec(id), &kernels, layout, chunks, 0);
            }
        }
        if id == CodecId::CacheGen {
            measure(codec(id), &kernels, ChunkLayout::TokenMajor, 1, SHAPE.layers - 1);
            [0, SHAPE.layers - 1].into_iter().for_each(|layer| measure_plain(&kernels, layer));
        }
    }
}

/// Memory that starts at a multiple of 64.
fn aligned(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    memory.resize(bytes + 63, 0);
    let start = memory.as_ptr().align_offset(64);
    &mut memory[start..][..bytes]
}

fn geometry(layout: ChunkLayout, layer: u16) -> Geometry {
    let id = ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(0) };
    Geometry { shape: SHAPE, id, tokens: 256, layout }
}

fn measure(codec: &dyn Codec, kernels: &Kernels, layout: ChunkLayout, chunks: usize, layer: u16) {
    let geometry = geometry(layout, layer);
    let values: Vec<u16> =
        one_chunk(layout).into_iter().cycle().take(chunks * CHUNK_BYTES / 2).collect();
    let mut copy = vec![0u16; values.len()];
    let max = codec.packed_bytes_max(&geometry);
    let (mut packed, mut scratch) = (Vec::new(), Vec::new());
    let packed = aligned(&mut packed, chunks * max);
    let scratch = aligned(&mut scratch, codec.scratch_bytes(&geometry));
    let squares = [mean_square(std::iter::once(&values[..CHUNK_BYTES / 4])); SHAPE.layers as usize];
    let mut memory = vec![0.0; Steps::values(&SHAPE)];
    let steps = Steps::uniform(kernels, SHAPE, &squares, &mut memory).unwrap();
    let mut work = Work { kernels, steps: steps.layer(geometry.id.layer), scratch };
    let mut best = [f64::MAX; 3];
    let mut packed_bytes = 0;
    // As many chunks whether there is one or many.
    for _ in 0..ROUNDS * CHUNKS_STREAMED / chunks {
        for (from, to) in values.chunks(CHUNK_BYTES / 2).zip(copy.chunks_mut(CHUNK_BYTES / 2)) {
            best[0] = best[0].min(seconds(|| to.copy_from_slice(black_box(from))));
        }
        for (chunk, packed) in values.chunks(CHUNK_BYTES / 2).zip(packed.chunks_mut(max)) {
            best[1] = best[1].min(seconds(|| {
                packed_bytes = codec.pack(&mut work, &geometry, chunk, packed).unwrap();
            }));
        }
        for (chunk, packed) in copy.chunks_mut(CHUNK_BYTES / 2).zip(packed.chunks(max)) {
            best[2] = best[2].min(seconds(|| {
                codec.unpack(&mut work, &geometry, packed, chunk).unwrap();
            }));
        }
    }
    let [copied, pack, unpack] = best.map(|seconds| CHUNK_BYTES as f64 / seconds / 1e9);
    println!(
        "  {:8} {layout:12?} layer {layer:2} {chunks:3} chunks: copy {copied:5.1} GB/s, \
         pack {pack:5.2} ({:.2}), \
         unpack {unpack:5.2} ({:.2}), saves {:.1} %",
        codec.id().name(),
        pack / copied,
        unpack / copied,
        100.0 * (1.0 - packed_bytes as f64 / CHUNK_BYTES as f64),
    );
}

/// The symbols of a packed chunk's streams with a coder that works bit by bit.
fn measure_plain(kernels: &Kernels, layer: u16) {
    const ROWS: usize = CHUNK_BYTES / 512;
    const LENGTHS_AT: usize = 64 + 1024 + 128;
    const CDFS_AT: usize = LENGTHS_AT + 4 * ROWS;
    const STREAMS_AT: usize = CDFS_AT + 66 * ROWS;
    let (geometry, codec) = (geometry(ChunkLayout::TokenMajor, layer), codec(CodecId::CacheGen));
    let (mut packed, mut scratch) = (Vec::new(), Vec::new());
    let packed = aligned(&mut packed, codec.packed_bytes_max(&geometry));
    let scratch = aligned(&mut scratch, codec.scratch_bytes(&geometry));
    let mut work = Work { scratch, ..Work::new(kernels) };
    codec.pack(&mut work, &geometry, &one_chunk(geometry.layout), packed).unwrap();
    let mut streams = Vec::new();
    let mut rest = &packed[STREAMS_AT..];
    for row in 0..ROWS {
        let length = packed[LENGTHS_AT + 4 * row..][..4].try_into().unwrap();
        let (stream, behind) = rest.split_at(u32::from_le_bytes(length) as usize);
        let (cdf, _) = packed[CDFS_AT + 66 * row..][..66].as_chunks::<2>();
        let cdf: Vec<u16> = cdf.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect();
        streams.push((stream, cdf, [0; 256]));
        rest = behind;
    }
    let mut best = [f64::MAX; 2];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(seconds(|| {
            for (stream, cdf, symbols) in &mut streams {
                arithmetic::decode(stream, cdf, symbols);
            }
        }));
        best[1] = best[1].min(seconds(|| {
            for (stream, cdf, symbols) in &streams {
                assert!(arithmetic::encode(symbols, cdf) == *stream);
            }
        }));
    }
    let [unpack, pack] = best.map(|seconds| CHUNK_BYTES as f64 / seconds / 1e9);
    println!(
        "  bit by bit, symbols only, layer {layer:2}: pack {pack:5.3}, unpack {unpack:5.3} GB/s"
    );
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Values about zero whose spread differs from channel to channel, in that layout.
fn one_chunk(layout: ChunkLayout) -> Vec<u16> {
    let (dim, mut state) = (usize::from(SHAPE.head_dim), 1u64);
    let mut bell = || {
        let mut sum = -2.0f32;
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sum += (state >> 40) as f32 / (1 << 24) as f32;
        }
        sum
    };
    let values: Vec<f32> = (0..CHUNK_BYTES / 2)
        .map(|place| {
            let channel = match layout {
                ChunkLayout::TokenMajor => place % dim,
                ChunkLayout::ChannelMajor => place / 256 % dim,
            };
            bell() * (1.0 + (channel % 7) as f32)
        })
        .collect();
    let mut halves = vec![0; values.len()];
    Kernels::portable().f32_to_f16.call(&values, &mut halves);
    halves
}
