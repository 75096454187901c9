//! What one core packs and unpacks, beside what it copies, in one run:
//!
//!     cargo bench --bench codecs [-- CODEC...]
//!
//! Chunks of Qwen3-0.6B's size follow each other through a buffer that no cache holds, or one chunk
//! again and again. Rates are bytes of F16 values a second, of the fastest chunk of hundreds, so
//! that a busy machine disturbs little; the factor is over a copy of the same bytes.

use mzcache::codec::{ChunkLayout, Codec, Geometry, Steps, Work, codec, mean_square};
use mzcache::kernel::{CpuFlags, Kernels};
use mzcache::units::{ChunkId, CodecId, KvShape};
use std::hint::black_box;
use std::time::Instant;

const SHAPE: KvShape = KvShape { layers: 1, kv_heads: 8, head_dim: 128 };
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
    let kernels = Kernels::select(CpuFlags::detect());
    for id in CodecId::ALL.into_iter().filter(is_wanted) {
        for layout in [ChunkLayout::TokenMajor, ChunkLayout::ChannelMajor] {
            for chunks in [1, CHUNKS_STREAMED] {
                measure(codec(id), &kernels, layout, chunks);
            }
        }
    }
}

/// Memory that starts at a multiple of 64.
fn aligned(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    memory.resize(bytes + 63, 0);
    let start = memory.as_ptr().align_offset(64);
    &mut memory[start..][..bytes]
}

fn measure(codec: &dyn Codec, kernels: &Kernels, layout: ChunkLayout, chunks: usize) {
    let geometry = Geometry { shape: SHAPE, id: ChunkId::default(), tokens: 256, layout };
    let values: Vec<u16> =
        one_chunk(layout).into_iter().cycle().take(chunks * CHUNK_BYTES / 2).collect();
    let mut copy = vec![0u16; values.len()];
    let max = codec.packed_bytes_max(&geometry);
    let (mut packed, mut scratch) = (Vec::new(), Vec::new());
    let packed = aligned(&mut packed, chunks * max);
    let scratch = aligned(&mut scratch, codec.scratch_bytes(&geometry));
    let squares = [mean_square(std::iter::once(&values[..CHUNK_BYTES / 4]))];
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
        "  {:4} {layout:12?} {chunks:3} chunks: copy {copied:5.1} GB/s, pack {pack:5.2} ({:.2}), \
         unpack {unpack:5.2} ({:.2}), saves {:.1} %",
        codec.id().name(),
        pack / copied,
        unpack / copied,
        100.0 * (1.0 - packed_bytes as f64 / CHUNK_BYTES as f64),
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
