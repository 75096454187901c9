//! The bodies of attention that any device runs, over shapes, contexts and hostile numbers.

use super::device::{Device, Table, read_floats};
use super::oracle::Attention;
use super::values::{Random, error, halves, wide};
use mzcache::kernel::opencl::{
    ATTENTION_COMBINE, ATTENTION_STREAM, ATTENTION_TILE, AttentionShape, AttentionStream,
    AttentionTile,
};
use mzcache::port::opencl::{Block, MemoryMode};

/// Builds that multiply in single precision are this close; those in half have the whole tolerance.
const ERROR_SINGLE_MAX: f64 = 1e-4;
pub(super) const ERROR_HALF_MAX: f64 = 2e-3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Numbers {
    Random,
    /// One key that outshines all others.
    OneHugeScore,
    AllEqual,
    /// Keys and values of minus zero.
    MinusZero,
    Subnormal,
    /// Values of plus and minus the largest half.
    MaxHalfValues,
    /// Keys of the largest half, and tiny queries.
    MaxHalfKeys,
    /// Rows of a real context, and scores up to about 17.
    Real,
    /// The same with scores up to about 70.
    RealSharp,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub queries: usize,
    pub context: usize,
    pub window: usize,
    pub softcap: f32,
    /// Work-groups that the splits should make.
    pub groups: u32,
    pub numbers: Numbers,
}

impl Case {
    pub const fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Case {
            heads,
            kv_heads,
            head_dim,
            queries: 1,
            context: 600,
            window: 0,
            softcap: 0.0,
            groups: 8,
            numbers: Numbers::Random,
        }
    }

    pub fn at(self, queries: usize, context: usize) -> Self {
        Case { queries, context, ..self }
    }

    pub(super) fn shape(&self) -> AttentionShape {
        let small = |value: usize| u32::try_from(value).unwrap();
        AttentionShape {
            heads: small(self.heads),
            kv_heads: small(self.kv_heads),
            head_dim: small(self.head_dim),
            queries: small(self.queries),
        }
    }

    /// First chunk that any query sees.
    fn first_chunk(&self) -> usize {
        match self.window {
            0 => 0,
            window => (self.context - self.queries + 1).saturating_sub(window) / 256,
        }
    }
}

/// The largest half of the same sign.
fn max_half(half: &mut u16) {
    *half = *half & 0x8000 | 0x7bff;
}

/// Queries, keys and values: `[token][head][head_dim]`.
pub(super) struct Data {
    pub(super) q: Vec<f32>,
    k: Vec<u16>,
    v: Vec<u16>,
}

impl Data {
    pub(super) fn of(case: &Case) -> Data {
        let mut random = Random::new(case.context as u64 * 31 + case.queries as u64);
        let count = case.context * case.kv_heads * case.head_dim;
        let row = case.kv_heads * case.head_dim;
        let deviation = 2.0 / (case.head_dim as f32).sqrt();
        let mut q = random.normals(case.queries * case.heads * case.head_dim, deviation);
        let mut k = halves(&random.normals(count, 1.0));
        let mut v = halves(&random.normals(count, 1.0));
        match case.numbers {
            Numbers::Random => {}
            Numbers::OneHugeScore => {
                let first = q[..case.head_dim].to_vec();
                for q in q.chunks_exact_mut(case.head_dim) {
                    q.iter_mut().zip(&first).for_each(|(q, first)| *q = *q * 0.1 + first);
                }
                let huge: Vec<f32> = first.iter().map(|value| value * 1000.0).collect();
                for head in k[case.context / 3 * row..][..row].chunks_exact_mut(case.head_dim) {
                    head.copy_from_slice(&halves(&huge));
                }
            }
            Numbers::AllEqual => {
                let (first, rest) = k.split_at_mut(row);
                rest.chunks_exact_mut(row).for_each(|other| other.copy_from_slice(first));
            }
            Numbers::MinusZero => {
                k.fill(0x8000);
                v.fill(0x8000);
            }
            Numbers::Subnormal => {
                k.iter_mut().for_each(|half| *half &= 0x83ff);
                v.iter_mut().for_each(|half| *half &= 0x83ff);
            }
            Numbers::MaxHalfValues => v.iter_mut().for_each(max_half),
            Numbers::MaxHalfKeys => {
                k.iter_mut().for_each(max_half);
                q.iter_mut().for_each(|value| *value *= 1e-5);
            }
            Numbers::Real | Numbers::RealSharp => (k, v) = real(case),
        }
        if matches!(case.numbers, Numbers::Real | Numbers::RealSharp) {
            // A query that resembles a key, as real ones do.
            let keys = wide(&k);
            let sharpness = if case.numbers == Numbers::Real { 0.25 } else { 1.0 };
            let scale = sharpness / (case.head_dim as f32).sqrt();
            for (index, value) in q.iter_mut().enumerate() {
                let head = index / case.head_dim % case.heads / (case.heads / case.kv_heads);
                let token = index / case.head_dim / case.heads * 37;
                let key = token * row + head * case.head_dim + index % case.head_dim;
                *value = *value * 0.2 + keys[key] * scale;
            }
        }
        Data { q, k, v }
    }
}

/// 512 tokens of SmolLM2, from two layers: `[token][3][64]`.
fn real(case: &Case) -> (Vec<u16>, Vec<u16>) {
    assert_eq!((case.kv_heads, case.head_dim, case.context), (3, 64, 512));
    let read = |name: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv");
        let bytes = std::fs::read(folder.join(name)).unwrap();
        bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect::<Vec<_>>()
    };
    let both = |kind: &str| {
        let first = read(&format!("layer00_chunk2_{kind}.f16"));
        [first, read(&format!("layer19_chunk7_{kind}.f16"))].concat()
    };
    (both("k"), both("v"))
}

/// Tokens into chunks; chunks that nobody sees are freed, and rows behind the context hold NaN.
pub(super) fn chunks(case: &Case, data: &Data) -> Vec<Option<Vec<u16>>> {
    let row = case.kv_heads * case.head_dim;
    let chunk = |index: usize| {
        let mut halves = vec![0x7e00; 2 * 256 * row];
        let (keys, values) = halves.split_at_mut(256 * row);
        for token in index * 256..case.context.min((index + 1) * 256) {
            for head in 0..case.kv_heads {
                let from = token * row + head * case.head_dim;
                let to = (head * 256 + token % 256) * case.head_dim;
                let range = to..to + case.head_dim;
                keys[range.clone()].copy_from_slice(&data.k[from..from + case.head_dim]);
                values[range].copy_from_slice(&data.v[from..from + case.head_dim]);
            }
        }
        halves
    };
    let count = case.context.div_ceil(256);
    (0..count).map(|index| (index >= case.first_chunk()).then(|| chunk(index))).collect()
}

pub(super) fn wanted(case: &Case, data: &Data) -> Vec<f64> {
    let oracle = Attention {
        heads: case.heads,
        kv_heads: case.kv_heads,
        head_dim: case.head_dim,
        queries: case.queries,
        context: case.context,
        window: case.window,
        softcap: case.softcap.into(),
        q: &data.q,
        k: &data.k,
        v: &data.v,
    };
    oracle.compute()
}

/// Each row on its own, so that small rows count as much as large ones.
pub(super) fn check(case: &Case, have: &[f32], want: &[f64], bound: f64) {
    let rows = have.chunks_exact(case.head_dim).zip(want.chunks_exact(case.head_dim));
    for (row, (have, want)) in rows.enumerate() {
        let error = error(have, want);
        assert!(error <= bound, "{case:?}, row {row}: error {error:e}");
    }
}

pub(super) fn query_block(device: &Device, data: &mut Data, is_half: bool) -> Block {
    if is_half {
        let rounded = halves(&data.q);
        data.q = wide(&rounded);
        device.halves(&rounded)
    } else {
        device.floats(&data.q)
    }
}

/// Streams the chunks and adds the splits up.
pub fn stream(device: &Device, case: Case) {
    let build = AttentionStream::new(case.shape(), device.local_bytes()).unwrap();
    let mut data = Data::of(&case);
    let q = query_block(device, &mut data, device.has_half);
    let chunks = device.chunks(&chunks(&case, &data));
    let shape = case.shape();
    let count = u32::try_from(case.context.div_ceil(256) - case.first_chunk()).unwrap();
    let split_chunks = build.split_chunks(count, case.groups);
    let splits = count.div_ceil(split_chunks);
    let (values, pairs) = build.scratch(splits);
    let partial = device.floats(&vec![f32::NAN; values]);
    let state = device.floats(&vec![f32::NAN; 2 * pairs]);
    let y = device.floats(&vec![f32::NAN; data.q.len()]);
    device
        .call(ATTENTION_STREAM, &build.macros())
        .memory(&q)
        .table(&chunks)
        .memory(&partial)
        .memory(&state)
        .u32(shape.heads)
        .u32(shape.kv_heads)
        .u32(shape.queries)
        .u32(case.context - case.queries)
        .u32(case.window)
        .f32(case.softcap)
        .u32(case.first_chunk())
        .u32(split_chunks)
        .pool(&chunks)
        .launch(build.launch(splits));
    device
        .call(ATTENTION_COMBINE, &build.macros()[..1])
        .memory(&partial)
        .memory(&state)
        .memory(&y)
        .u32(shape.rows_all())
        .u32(splits)
        .launch(build.combine_launch());
    let bound = if device.has_half { ERROR_HALF_MAX } else { ERROR_SINGLE_MAX };
    check(&case, &read_floats(&y), &wanted(&case, &data), bound);
}

/// Stages tiles in local memory.
pub fn tile(device: &Device, case: Case) {
    let mut data = Data::of(&case);
    let q = query_block(device, &mut data, device.has_half);
    let chunks = device.chunks(&chunks(&case, &data));
    let shape = case.shape();
    let build = AttentionTile::new(shape, device.local_bytes()).unwrap();
    let y = device.floats(&vec![f32::NAN; data.q.len()]);
    device
        .call(ATTENTION_TILE, &build.macros())
        .memory(&q)
        .table(&chunks)
        .memory(&y)
        .u32(shape.heads)
        .u32(shape.kv_heads)
        .u32(shape.queries)
        .u32(case.context - case.queries)
        .u32(case.window)
        .f32(case.softcap)
        .pool(&chunks)
        .launch(build.launch());
    let bound = if device.has_half { ERROR_HALF_MAX } else { ERROR_SINGLE_MAX };
    check(&case, &read_floats(&y), &wanted(&case, &data), bound);
}

pub(super) const NUMBERS: [Numbers; 6] = [
    Numbers::OneHugeScore,
    Numbers::AllEqual,
    Numbers::MinusZero,
    Numbers::Subnormal,
    Numbers::MaxHalfValues,
    Numbers::MaxHalfKeys,
];

const HEAD_DIMS: [usize; 6] = [32, 64, 80, 96, 128, 256];

fn stream_head_dims(device: &Device) {
    for head_dim in HEAD_DIMS {
        stream(device, Case::new(4, 2, head_dim).at(8, 301));
    }
}

fn stream_numbers(device: &Device) {
    for numbers in NUMBERS {
        stream(device, Case { numbers, ..Case::new(4, 2, 64).at(8, 700) });
    }
    for numbers in real_numbers(device) {
        stream(device, Case { numbers: *numbers, ..Case::new(9, 3, 64).at(4, 512) });
    }
}

/// Half precision rounds each product of a query and a key, which sharp scores magnify.
fn real_numbers(device: &Device) -> &'static [Numbers] {
    if device.has_half { &[Numbers::Real] } else { &[Numbers::Real, Numbers::RealSharp] }
}

fn tile_cases(device: &Device) {
    for head_dim in HEAD_DIMS {
        tile(device, Case::new(4, 2, head_dim).at(19, 277));
    }
    let case = Case::new(6, 2, 64);
    tile(device, case.at(17, 17));
    tile(device, case.at(64, 64));
    tile(device, case.at(100, 612));
    tile(device, case.at(256, 1000));
    tile(device, Case { window: 40, ..case.at(33, 700) });
    tile(device, Case { window: 1, ..case.at(33, 290) });
    tile(device, Case { softcap: 3.0, ..case.at(33, 290) });
    let all = [Numbers::OneHugeScore, Numbers::MinusZero, Numbers::MaxHalfValues];
    for numbers in all {
        tile(device, Case { numbers, ..case.at(20, 300) });
    }
    for numbers in real_numbers(device) {
        tile(device, Case { numbers: *numbers, ..Case::new(9, 3, 64).at(13, 512) });
    }
}

#[test]
fn stream_takes_every_head_size() {
    let Some(device) = Device::any() else { return };
    stream_head_dims(&device);
}

#[test]
fn stream_takes_every_number_of_queries_and_every_group() {
    let Some(device) = Device::any() else { return };
    for queries in 1..=16 {
        stream(&device, Case::new(2, 2, 64).at(queries, 257 + 2 * queries));
    }
    for group in [1, 2, 3, 4, 8] {
        for queries in [1, 2, 16] {
            stream(&device, Case::new(2 * group, 2, 64).at(queries, 400));
        }
    }
}

#[test]
fn stream_takes_contexts_of_any_length() {
    let Some(device) = Device::any() else { return };
    let case = Case::new(2, 1, 64);
    for chunks in [1, 2, 3, 17, 64, 130] {
        for tail in [1, 100, 256] {
            let context = (chunks - 1) * 256 + tail;
            stream(&device, case.at(1, context));
            if context >= 8 {
                stream(&device, Case { groups: 40, ..case.at(8, context) });
            }
        }
    }
    for context in 1..=16 {
        stream(&device, case.at(context, context));
    }
}

#[test]
fn stream_takes_any_number_of_splits() {
    let Some(device) = Device::any() else { return };
    for groups in [1, 2, 3, 5, 10, 100] {
        stream(&device, Case { groups, ..Case::new(2, 1, 64).at(2, 10 * 256 - 3) });
    }
}

#[test]
fn stream_stands_hostile_and_real_numbers() {
    let Some(device) = Device::any() else { return };
    stream_numbers(&device);
}

#[test]
fn stream_never_touches_chunks_outside_the_window() {
    let Some(device) = Device::any() else { return };
    // Entries before the window are freed, and point nowhere.
    for (window, context) in [(1, 1000), (2, 513), (255, 900), (256, 1024), (300, 4000)] {
        for queries in [1, 8] {
            stream(&device, Case { window, ..Case::new(2, 1, 64).at(queries, context) });
        }
    }
    stream(&device, Case { window: 5000, ..Case::new(2, 1, 64).at(8, 600) });
}

#[test]
fn stream_caps_scores() {
    let Some(device) = Device::any() else { return };
    for softcap in [0.5, 5.0, 50.0] {
        let numbers = Numbers::OneHugeScore;
        stream(&device, Case { softcap, ..Case::new(2, 1, 64).at(8, 600) });
        stream(&device, Case { softcap, numbers, ..Case::new(2, 1, 64).at(8, 600) });
    }
}

#[test]
fn tiles_take_shapes_windows_and_hostile_numbers() {
    let Some(device) = Device::any() else { return };
    tile_cases(&device);
}

#[test]
fn both_bodies_read_tables_of_every_kind() {
    let tables =
        [Table::Addresses(MemoryMode::Fine), Table::Addresses(MemoryMode::Coarse), Table::Offsets];
    for table in tables {
        let Some(device) = Device::any().and_then(|device| device.with_table(table)) else {
            continue;
        };
        let case = Case { window: 400, ..Case::new(4, 2, 64).at(8, 1500) };
        stream(&device, case);
        tile(&device, Case { queries: 20, ..case });
    }
}

#[test]
fn half_precision_and_subgroup_builds_are_as_good() {
    for (has_half, has_subgroups) in [(true, false), (false, true), (true, true)] {
        let Some(device) = Device::intel(has_half, has_subgroups) else {
            eprintln!("NOT CHECKED: MZ_INTEL_OPENCL is not set");
            return;
        };
        stream_numbers(&device);
        tile(&device, Case::new(6, 2, 64).at(20, 300));
        // Sizes and shapes once: that compiler takes its time.
        if has_half && has_subgroups {
            stream_head_dims(&device);
            tile_cases(&device);
        }
    }
}
