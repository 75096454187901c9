//! What a layer needs besides attention and products.

use super::device::{Chunks, Device, Table, read_floats, read_halves};
use super::values::{Random, error, halves, wide};
use mzcache::kernel::opencl::{
    ARGMAX, ENERGY, HEADS, NOWHERE, RMS_NORM, argmax_launch, energy_launch, heads_launch,
    heads_macro, norm_launch,
};

/// Where the weights start in a unit's bytes.
const OFFSET: usize = 4096 + 32;

fn unit(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xff; OFFSET];
    bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
    bytes
}

pub fn rms_norm(device: &Device, rows: usize, values: usize) {
    let mut random = Random::new(values as u64);
    let (x, weights) = (random.normals(rows * values, 3.0), random.normals(values, 1.0));
    let epsilon = 1e-5;
    let want: Vec<f64> = x
        .chunks_exact(values)
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let factor = 1.0 / (sum / values as f64 + f64::from(epsilon)).sqrt();
            let products = row.iter().zip(&weights);
            products.map(move |(x, w)| f64::from(*x) * factor * f64::from(*w)).collect::<Vec<_>>()
        })
        .collect();
    let x = device.floats(&x);
    let y = device.floats(&vec![f32::NAN; rows * values]);
    let unit = device.block(&unit(&weights));
    // Into other memory, then in place.
    for y in [&y, &x] {
        device
            .call(RMS_NORM, &[])
            .memory(&x)
            .memory(&unit)
            .u64(OFFSET as u64)
            .memory(y)
            .u32(values)
            .f32(epsilon)
            .launch(norm_launch(rows));
        assert!(error(&read_floats(y), &want) < 1e-6);
    }
}

/// A layer's heads before attention: queries, keys and values of some new tokens.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub tokens: usize,
    pub position: u32,
    pub is_adjacent: bool,
    pub has_norms: bool,
    pub is_half: bool,
}

impl Heads {
    pub fn new(head_dim: usize, position: u32) -> Heads {
        let (heads, kv_heads, tokens) = (6, 2, 9);
        let (is_adjacent, has_norms, is_half) = (true, true, false);
        Heads { heads, kv_heads, head_dim, tokens, position, is_adjacent, has_norms, is_half }
    }

    /// What becomes of one head's values.
    fn head(&self, x: &[f32], norm: &[f32], token: usize, scale: f32) -> Vec<f64> {
        let mut x: Vec<f64> = x.iter().copied().map(f64::from).collect();
        if self.has_norms {
            let sum: f64 = x.iter().map(|x| x * x).sum();
            let factor = 1.0 / (sum / x.len() as f64 + f64::from(EPSILON)).sqrt();
            x.iter_mut().zip(norm).for_each(|(x, norm)| *x *= factor * f64::from(*norm));
        }
        let pairs = self.head_dim / 2;
        for (pair, frequency) in self.frequencies().iter().enumerate() {
            let angle = (self.position + token as u32) as f32 * frequency;
            let (sin, cos) = f64::from(angle).sin_cos();
            let places =
                if self.is_adjacent { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
            let (a, b) = (x[places.0], x[places.1]);
            x[places.0] = f64::from(scale) * (a * cos - b * sin);
            x[places.1] = f64::from(scale) * (a * sin + b * cos);
        }
        x
    }

    fn frequencies(&self) -> Vec<f32> {
        let pairs = self.head_dim / 2;
        (0..pairs).map(|pair| 10_000f32.powf(-(pair as f32) / pairs as f32)).collect()
    }
}

const EPSILON: f32 = 1e-5;
const UNTOUCHED: u16 = 0x1234;

/// Numbers around every boundary of half precision.
fn to_round(values: &mut [f32]) {
    let edges = [0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e9, 6e-8, 2.9e-8, 1e-30, 6.1e-5, 2049.0];
    values[..edges.len()].copy_from_slice(&edges);
}

/// Of each chunk that is there.
fn chunk_values(chunks: &Chunks, chunk_values: usize) -> Vec<Vec<u16>> {
    let all: Vec<u16> = chunks.blocks.iter().flat_map(read_halves).collect();
    // The last chunk lies first.
    all.chunks_exact(chunk_values).rev().map(Vec::from).collect()
}

/// Queries against an oracle; keys and values in their rows of the chunks and nowhere else.
pub fn heads(device: &Device, case: Heads) {
    let Heads { heads, kv_heads, head_dim, tokens, position, .. } = case;
    let scale = 0.25;
    let mut random = Random::new(head_dim as u64);
    let rows = heads + 2 * kv_heads;
    let mut x = random.normals(tokens * rows * head_dim, 2.0);
    to_round(&mut x[(heads + kv_heads) * head_dim..]);
    let (q_norm, k_norm) = (random.normals(head_dim, 1.0), random.normals(head_dim, 1.0));
    let place = |token: usize| (position as usize + token) / 256 - position as usize / 256;
    let mut want = vec![vec![UNTOUCHED; 2 * kv_heads * 256 * head_dim]; place(tokens - 1) + 1];
    let (mut want_q, mut want_k, mut key_places) = (vec![], vec![], vec![]);
    for (index, from) in x.chunks_exact(head_dim).enumerate() {
        let (token, head) = (index / rows, index % rows);
        if head < heads {
            want_q.extend(case.head(from, &q_norm, token, scale));
            continue;
        }
        let row = (head - heads) * 256 + (position as usize + token) % 256;
        let to = row * head_dim..(row + 1) * head_dim;
        if head < heads + kv_heads {
            want_k.extend(case.head(from, &k_norm, token, 1.0));
            key_places.push((place(token), to));
        } else {
            want[place(token)][to].copy_from_slice(&halves(from));
        }
    }
    // Chunks before the first new token are not there.
    let first = position as usize / 256;
    let mut chunks = vec![None; first];
    chunks.extend(want.iter().map(|chunk| Some(vec![UNTOUCHED; chunk.len()])));
    chunks.push(None);
    let chunks = device.chunks(&chunks);
    let unit = device.block(&unit(&[q_norm, k_norm].concat()));
    let place_of = |place: usize| if case.has_norms { place as u64 } else { NOWHERE };
    let q = device.floats(&vec![f32::NAN; want_q.len()]);
    device
        .call(HEADS, &[heads_macro(head_dim as u32)])
        .memory(&device.floats(&x))
        .memory(&q)
        .table(&chunks)
        .memory(&device.floats(&case.frequencies()))
        .memory(&unit)
        .u64(place_of(OFFSET))
        .u64(place_of(OFFSET + 4 * head_dim))
        .f32(EPSILON)
        .u32(heads)
        .u32(kv_heads)
        .u32(position)
        .u32(u32::from(case.is_adjacent))
        .f32(scale)
        .u32(u32::from(case.is_half))
        .pool(&chunks)
        .launch(heads_launch(heads, kv_heads, tokens));
    let (have_q, tolerance) = match case.is_half {
        false => (read_floats(&q), 1e-5),
        true => (wide(&read_halves(&q)[..want_q.len()]), 1e-3),
    };
    let worst = error(&have_q, &want_q);
    assert!(worst < tolerance, "{case:?}: queries {worst:e}");
    let mut have = chunk_values(&chunks, want[0].len());
    let mut have_k = vec![];
    for (chunk, range) in key_places {
        have_k.extend(wide(&have[chunk][range.clone()]));
        have[chunk][range].fill(UNTOUCHED);
    }
    let worst = error(&have_k, &want_k);
    assert!(worst < 1e-3, "{case:?}: keys {worst:e}");
    assert_eq!(have, want, "{case:?}");
}

/// Queries of one batch, whose squares are added up by channel of K.
#[derive(Clone, Copy, Debug)]
pub struct Energy {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub tokens: usize,
    pub is_half: bool,
}

/// Sums of the second of three layers against an oracle; the others are left alone.
pub fn energy(device: &Device, case: Energy) {
    let Energy { heads, kv_heads, head_dim, tokens, is_half } = case;
    let factor = 7.0;
    let q = Random::new(tokens as u64).normals(tokens * heads * head_dim, 2.0);
    let (block, q) = match is_half {
        false => (device.floats(&q), q),
        true => (device.halves(&halves(&q)), wide(&halves(&q))),
    };
    let channels = kv_heads * head_dim;
    let mut want = vec![0.0; channels];
    for (index, value) in q.iter().enumerate() {
        let (head, channel) = (index / head_dim % heads, index % head_dim);
        let kv_head = head / (heads / kv_heads);
        want[kv_head * head_dim + channel] += f64::from(factor) * f64::from(*value).powi(2);
    }
    let energy = device.floats(&vec![-1.0; 3 * channels]);
    device
        .call(ENERGY, &[heads_macro(head_dim as u32)])
        .memory(&block)
        .memory(&energy)
        .u32(channels)
        .u32(heads)
        .u32(kv_heads)
        .u32(tokens)
        .f32(factor)
        .u32(u32::from(is_half))
        .launch(energy_launch(channels));
    let have = read_floats(&energy);
    let worst = error(&have[channels..2 * channels], &want);
    assert!(worst < 1e-6, "{case:?}: {worst:e}");
    assert!(have[..channels].iter().chain(&have[2 * channels..]).all(|value| *value == -1.0));
}

pub fn argmax(device: &Device) {
    const NONE: u32 = u32::MAX;
    let values = 700;
    let mut rows = vec![vec![-5.0f32; values]; 6];
    rows[0][613] = -1.0;
    // The first of equals, in other items and in the same one.
    rows[1][300] = 7.0;
    rows[1][556] = 7.0;
    rows[1][257] = 7.0;
    rows[2].fill(f32::NAN);
    rows[3].fill(f32::NAN);
    rows[3][699] = f32::NEG_INFINITY;
    rows[4][0] = f32::NAN;
    rows[4][699] = 0.0;
    let index = device.floats(&[0.0; 6]);
    device
        .call(ARGMAX, &[])
        .memory(&device.floats(&rows.concat()))
        .memory(&index)
        .u32(values)
        .launch(argmax_launch(6));
    let have: Vec<u32> = read_floats(&index).into_iter().map(f32::to_bits).collect();
    assert_eq!(have, [613, 257, NONE, 699, 699, 0]);
}

#[test]
fn rms_norm_divides_by_the_root_of_the_mean_square() {
    let Some(device) = Device::any() else { return };
    for (rows, values) in [(1, 1024), (3, 576), (5, 64), (2, 80), (1, 257)] {
        rms_norm(&device, rows, values);
    }
}

#[test]
fn heads_are_normalised_rotated_and_stored() {
    let Some(device) = Device::any() else { return };
    for position in [0, 251, 4095, 262_000] {
        for is_adjacent in [true, false] {
            let case = Heads { is_adjacent, ..Heads::new(32, position) };
            heads(&device, case);
            heads(&device, Heads { has_norms: false, is_half: true, ..case });
        }
    }
    for head_dim in [40, 128, 256] {
        heads(&device, Heads { is_adjacent: false, ..Heads::new(head_dim, 300) });
    }
    let Some(device) = device.with_table(Table::Offsets) else { return };
    heads(&device, Heads::new(64, 251));
}

#[test]
fn energies_are_the_sums_of_squared_queries() {
    let Some(device) = Device::any() else { return };
    for (heads, kv_heads, head_dim) in [(4, 4, 32), (9, 3, 64), (16, 8, 128), (10, 2, 40)] {
        for (tokens, is_half) in [(1, false), (7, true), (33, false), (256, true)] {
            energy(&device, Energy { heads, kv_heads, head_dim, tokens, is_half });
        }
    }
}

#[test]
fn argmax_is_the_first_of_the_largest() {
    let Some(device) = Device::any() else { return };
    argmax(&device);
}

#[test]
fn half_precision_and_subgroup_builds_compute_the_same_layer() {
    let Some(device) = Device::intel(true, true) else {
        eprintln!("NOT CHECKED: MZ_INTEL_OPENCL is not set");
        return;
    };
    rms_norm(&device, 3, 576);
    heads(&device, Heads::new(64, 4095));
    heads(&device, Heads { is_half: true, ..Heads::new(128, 250) });
    let queries = Energy { heads: 9, kv_heads: 3, head_dim: 64, tokens: 33, is_half: true };
    energy(&device, queries);
    argmax(&device);
}
