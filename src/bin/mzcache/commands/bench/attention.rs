//! `mzcache bench attention`: the streaming attention kernel of a decode or a short question
//! against the time that reading its K and V takes at the device's own copy bandwidth.
//!
//! One chunk table a layer, as many layers as defeat the device's caches, chunks either one after
//! the other in one block or each in a block of its own in shuffled order.

use super::Report;
use super::device::{Device, seconds};
use crate::cli::BenchAttention as Options;
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::random::Random;
use mzcache::kernel::opencl::{
    ATTENTION_COMBINE, ATTENTION_MATRIX, ATTENTION_STREAM, AttentionMatrix, AttentionShape,
    AttentionStream, Launch, POOL, Source, TableEntry,
};
use mzcache::port::opencl::{Block, DriverFamily, Kernel, MemoryMode};
use serde::Serialize;

/// Models whose attention is measured: name, query heads, KV heads, head size.
const SHAPES: [(&str, u32, u32, u32); 2] =
    [("qwen3-0.6b", 16, 8, 128), ("exaone-4.0-1.2b", 32, 8, 64)];
const CHUNK_TOKENS: u32 = mzcache::limits::CHUNK_TOKENS as u32;
/// More than the caches of any device hold.
const COLD_BYTES: usize = 256 << 20;
const COPY_BYTES: usize = 256 << 20;
const ROUNDS: usize = 7;
/// Chunks that one work-group of a stream takes: the best of these counts.
const SPLIT_CHUNKS: [u32; 5] = [1, 2, 3, 4, 8];

#[derive(Serialize)]
struct Row {
    shape: &'static str,
    context_tokens: u32,
    queries: u32,
    layout: &'static str,
    kernel: String,
    splits: u32,
    ms: f64,
    gb_per_s: f64,
    copy_gb_per_s: f64,
    ratio: f64,
}

pub fn run(options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let device = Device::open(&options.accelerator)?;
    console.note(&format!("measuring on {}", device.describe()));
    let copy = device.copy_bytes_per_s(COPY_BYTES)? / 1e9;
    let mut rows = Vec::new();
    for (shape, heads, kv_heads, head_dim) in SHAPES {
        let attention = AttentionShape { heads, kv_heads, head_dim, queries: options.queries };
        for tokens in &options.contexts {
            for layout in ["contiguous", "chunked"] {
                let mut bench = Bench::new(&device, attention, *tokens, layout == "chunked")?;
                let (ms, splits) = bench.measure_best(&device)?;
                let gb_per_s = bench.kv_bytes_of_layer() / ms / 1e6;
                rows.push(Row {
                    shape,
                    context_tokens: *tokens,
                    queries: options.queries,
                    layout,
                    kernel: bench.body.source().name.to_string_lossy().into_owned(),
                    splits,
                    ms,
                    gb_per_s,
                    copy_gb_per_s: copy,
                    ratio: gb_per_s / copy,
                });
            }
        }
    }
    if options.json {
        let report = Report { bench: "attention", machine: device.describe(), rows };
        return console.print_json(&report);
    }
    console.print(&table(&device.describe(), &rows))
}

fn table(machine: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "{machine}\n{:<16} {:>7} {:>7} {:<11} {:<20} {:>6} {:>8} {:>9} {:>9} {:>6}\n",
        "shape",
        "tokens",
        "queries",
        "layout",
        "kernel",
        "splits",
        "ms",
        "KV GB/s",
        "copy GB/s",
        "ratio"
    );
    for row in rows {
        text.push_str(&format!(
            "{:<16} {:>7} {:>7} {:<11} {:<20} {:>6} {:>8.3} {:>9.1} {:>9.1} {:>6.2}\n",
            row.shape,
            row.context_tokens,
            row.queries,
            row.layout,
            row.kernel,
            row.splits,
            row.ms,
            row.gb_per_s,
            row.copy_gb_per_s,
            row.ratio,
        ));
    }
    text
}

/// The body that is measured.
#[derive(Clone, Copy)]
enum Body {
    Stream(AttentionStream),
    Matrix(AttentionMatrix),
}

impl Body {
    /// The kernel on matrix units, where the device's compiler takes it.
    fn of(device: &Device, shape: AttentionShape, flags: &[&str]) -> Option<Body> {
        let is_nvidia = device.info().driver.family == DriverFamily::Nvidia;
        let matrix = AttentionMatrix::new(shape).filter(|_| is_nvidia);
        let builds = |sizes: &AttentionMatrix| {
            device.kernel(ATTENTION_MATRIX, &sizes.macros(), flags).is_ok()
        };
        if let Some(sizes) = matrix.filter(builds) {
            return Some(Body::Matrix(sizes));
        }
        AttentionStream::new(shape, device.info().local_bytes).map(Body::Stream)
    }

    fn source(&self) -> Source {
        match self {
            Body::Stream(_) => ATTENTION_STREAM,
            Body::Matrix(_) => ATTENTION_MATRIX,
        }
    }

    fn kernel(&self, device: &Device, flags: &[&str]) -> Outcome<Kernel> {
        match self {
            Body::Stream(sizes) => device.kernel(self.source(), &sizes.macros(), flags),
            Body::Matrix(sizes) => device.kernel(self.source(), &sizes.macros(), flags),
        }
    }

    /// Bytes of partial outputs, of softmax state, and of counters, for any splits.
    fn scratch_bytes(&self, chunks: u32, units: u32) -> (usize, usize, usize) {
        let ((values, pairs), counters) = match self {
            Body::Stream(sizes) => (sizes.scratch(chunks), 1),
            Body::Matrix(sizes) => (sizes.scratch(sizes.splits_max(units)), sizes.counters()),
        };
        (values * 4, pairs * 8, counters * 4)
    }
}

/// The kernels with their arguments set, for as many layers as needed.
struct Bench {
    shape: AttentionShape,
    tokens: u32,
    body: Body,
    layers: Vec<Layer>,
    combine: Kernel,
    /// Held for the kernels, which know only addresses.
    _memory: Vec<Block>,
}

struct Layer {
    kernel: Kernel,
    _chunks: Vec<Block>,
}

impl Bench {
    fn new(device: &Device, shape: AttentionShape, tokens: u32, chunked: bool) -> Outcome<Bench> {
        let unsupported = || Failure::new("the device has too little local memory for attention");
        let is_pool = device.mode == MemoryMode::Buffers;
        let flags: Vec<&str> = is_pool.then_some(POOL).into_iter().collect();
        let body = Body::of(device, shape, &flags).ok_or_else(unsupported)?;
        let chunks = tokens.div_ceil(CHUNK_TOKENS);
        let (partial, state, counters) = body.scratch_bytes(chunks, device.info().compute_units);
        let rows = shape.rows_all() as usize * shape.head_dim as usize;
        let query_bytes = if matches!(body, Body::Matrix(_)) { 2 } else { 4 };
        let mut query = device.block(rows * query_bytes)?;
        fill(&mut query, 1, query_bytes)?;
        let scratch = [
            device.block(partial)?,
            device.block(state)?,
            device.block(counters)?,
            device.block(rows * 4)?,
        ];
        let [partial, state, _, output] = &scratch;
        let head_dim = ("MZ_HEAD_DIM", shape.head_dim);
        let mut combine = device.kernel(ATTENTION_COMBINE, &[head_dim], &[])?;
        combine.set_memory(0, partial.region())?;
        combine.set_memory(1, state.region())?;
        combine.set_memory(2, output.region())?;
        combine.set_value(3, shape.rows_all())?;
        let mut layers = Vec::new();
        for _ in 0..Self::layer_count(shape, chunks) {
            let mut kernel = body.kernel(device, &flags)?;
            let memory = chunk_memory(device, shape, chunks, chunked)?;
            kernel.list_memory(&memory.addresses)?;
            kernel.set_memory(0, query.region())?;
            kernel.set_memory(1, memory.table.region())?;
            // A stream has no use for the last two.
            let first = match body {
                Body::Stream(_) => 2,
                Body::Matrix(_) => 4,
            };
            for (index, block) in (2..).zip(&scratch[..first]) {
                kernel.set_memory(index, block.region())?;
            }
            let number = first as u32 + 2;
            let position = tokens - shape.queries;
            let numbers = [shape.heads, shape.kv_heads, shape.queries, position, 0];
            for (index, number) in (number..).zip(numbers) {
                kernel.set_value(index, number)?;
            }
            kernel.set_value(number + 5, 0.0f32)?;
            let mut held = memory.blocks;
            if is_pool {
                let pool = held.first().ok_or_else(unsupported)?;
                kernel.set_memory(number + 8, pool.region())?;
            }
            held.push(memory.table);
            layers.push(Layer { kernel, _chunks: held });
        }
        let mut held: Vec<Block> = scratch.into();
        held.push(query);
        Ok(Bench { shape, tokens, body, layers, combine, _memory: held })
    }

    fn chunk_bytes(shape: AttentionShape) -> usize {
        (2 * 2 * shape.kv_heads * CHUNK_TOKENS * shape.head_dim) as usize
    }

    fn layer_count(shape: AttentionShape, chunks: u32) -> usize {
        COLD_BYTES.div_ceil(Self::chunk_bytes(shape) * chunks as usize).max(1)
    }

    fn chunks(&self) -> u32 {
        self.tokens.div_ceil(CHUNK_TOKENS)
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    fn kv_bytes_of_layer(&self) -> f64 {
        (Self::chunk_bytes(self.shape) * self.chunks() as usize) as f64
    }

    /// The best time over the ways to split the chunks, and its splits.
    fn measure_best(&mut self, device: &Device) -> Outcome<(f64, u32)> {
        let stream = match self.body {
            Body::Stream(stream) => stream,
            Body::Matrix(matrix) => {
                let split = matrix.split(0, self.tokens, device.info().compute_units);
                self.set_split(12, [split.splits, split.warp_steps])?;
                let ms = self.measure(device, matrix.launch(split.splits), None)?;
                return Ok((ms, split.splits));
            }
        };
        let mut best = (f64::INFINITY, 1);
        let chunks = self.chunks();
        for split_chunks in SPLIT_CHUNKS.into_iter().filter(|count| *count <= chunks) {
            let splits = chunks.div_ceil(split_chunks);
            self.set_split(10, [0, split_chunks])?;
            self.combine.set_value(4, splits)?;
            let ms = self.measure(device, stream.launch(splits), Some(stream.combine_launch()))?;
            if ms < best.0 {
                best = (ms, splits);
            }
        }
        Ok(best)
    }

    /// The two arguments that say how the keys are split, of every layer.
    fn set_split(&mut self, first: u32, numbers: [u32; 2]) -> Outcome<()> {
        for layer in &mut self.layers {
            for (index, number) in (first..).zip(numbers) {
                layer.kernel.set_value(index, number)?;
            }
        }
        Ok(())
    }

    /// Median time of one layer's attention in ms, with the second kernel where there is one.
    fn measure(&self, device: &Device, launch: Launch, combine: Option<Launch>) -> Outcome<f64> {
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            for layer in &self.layers {
                let first = device.run(&layer.kernel, launch)?;
                let second = combine.map(|launch| device.run(&self.combine, launch)).transpose()?;
                let last = second.as_ref().unwrap_or(&first);
                last.wait()?;
                let whole = last.times()?.ended.since(first.times()?.started);
                // The first round warms up.
                if round > 0 {
                    times.push(seconds(whole) * 1e3);
                }
            }
        }
        device.finish()?;
        times.sort_unstable_by(f64::total_cmp);
        times.get(times.len() / 2).copied().ok_or_else(|| Failure::new("nothing was measured"))
    }
}

/// One layer's chunks.
struct ChunkMemory {
    blocks: Vec<Block>,
    table: Block,
    addresses: Vec<u64>,
}

fn chunk_memory(
    device: &Device,
    shape: AttentionShape,
    chunks: u32,
    chunked: bool,
) -> Outcome<ChunkMemory> {
    let bytes = Bench::chunk_bytes(shape);
    let mut blocks = Vec::new();
    let mut places: Vec<u64> = Vec::new();
    let is_pool = device.mode == MemoryMode::Buffers;
    if chunked && !is_pool {
        for chunk in 0..chunks {
            let mut block = device.block(bytes)?;
            fill(&mut block, u64::from(chunk), 2)?;
            places.push(block.region().address);
            blocks.push(block);
        }
    } else {
        let mut block = device.block(bytes * chunks as usize)?;
        fill(&mut block, 7, 2)?;
        let start = block.region().entry();
        places.extend((0..u64::from(chunks)).map(|chunk| start + chunk * bytes as u64));
        blocks.push(block);
    }
    let addresses = match is_pool {
        true => Vec::new(),
        false => blocks.iter().map(|block| block.region().address).collect(),
    };
    if chunked {
        shuffle(&mut places);
    }
    let entries = places.iter().map(|place| TableEntry::f16(*place, CHUNK_TOKENS).to_bytes());
    let entries: Vec<u8> = entries.flatten().collect();
    let mut table = device.block(entries.len())?;
    table.write(0, &entries)?;
    Ok(ChunkMemory { blocks, table, addresses })
}

/// Fisher and Yates.
fn shuffle(places: &mut [u64]) {
    let mut random = Random::new(11);
    for end in (1..places.len()).rev() {
        let with = random.next() % (end as u64 + 1);
        places.swap(end, usize::try_from(with).unwrap_or(0));
    }
}

/// Fills with small numbers, in halves (2 bytes) or singles (4).
fn fill(block: &mut Block, seed: u64, number_bytes: usize) -> Outcome<()> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0u8; block.bytes()];
    for number in bytes.chunks_exact_mut(number_bytes) {
        let [low, high, ..] = random.next().to_le_bytes();
        match number {
            // Magnitudes from 1/16 to 1.
            [first, second] => (*first, *second) = (low, (high & 0x83) | 0x2C | (high & 0x0C)),
            [_, _, third, last] => (*third, *last) = (low & 0x7F, (high & 0x80) | 0x3D),
            _ => {}
        }
    }
    Ok(block.write(0, &bytes)?)
}
