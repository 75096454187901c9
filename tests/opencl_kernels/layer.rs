//! What a layer needs besides attention and products.

use super::device::{Device, Table, read_floats, read_halves};
use super::values::{Random, error, halves};
use mzcache::kernel::opencl::{
    ADD, ADD_BIAS, ARGMAX, KV_STORE, RMS_NORM, ROTARY, RmsNorm, SWIGLU, TO_HALF, argmax_launch,
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
    let build = RmsNorm::new(values);
    let x = device.floats(&x);
    let y = device.floats(&vec![f32::NAN; rows * values]);
    let unit = device.block(&unit(&weights));
    // Into other memory, then in place.
    for y in [&y, &x] {
        device
            .call(RMS_NORM, &build.macros())
            .memory(&x)
            .memory(&unit)
            .u64(OFFSET as u64)
            .memory(y)
            .u32(values)
            .f32(epsilon)
            .launch(build.launch(rows));
        assert!(error(&read_floats(y), &want) < 1e-6);
    }
}

pub fn rotary(device: &Device, is_adjacent: bool, position: u32) {
    let (tokens, heads, pairs, scale) = (3, 2, 16usize, 0.25f32);
    let frequencies: Vec<f32> =
        (0..pairs).map(|pair| 10_000f32.powf(-(pair as f32) / pairs as f32)).collect();
    let x = Random::new(9).normals(tokens * heads * 2 * pairs, 1.0);
    let mut want = vec![0.0; x.len()];
    for (head, from) in x.chunks_exact(2 * pairs).enumerate() {
        for (pair, frequency) in frequencies.iter().enumerate() {
            let angle = (position + (head / heads) as u32) as f32 * frequency;
            let (sin, cos) = f64::from(angle).sin_cos();
            let places = if is_adjacent { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
            let (a, b) = (f64::from(from[places.0]), f64::from(from[places.1]));
            let to = &mut want[head * 2 * pairs..];
            to[places.0] = f64::from(scale) * (a * cos - b * sin);
            to[places.1] = f64::from(scale) * (a * sin + b * cos);
        }
    }
    let block = device.floats(&x);
    device
        .call(ROTARY, &[])
        .memory(&block)
        .memory(&device.floats(&frequencies))
        .u32(heads)
        .u32(pairs)
        .u32(position)
        .u32(u32::from(is_adjacent))
        .f32(scale)
        .items([pairs, heads, tokens]);
    assert!(error(&read_floats(&block), &want) < 1e-5, "{is_adjacent} {position}");
}

pub fn swiglu(device: &Device) {
    let mut random = Random::new(4);
    let (mut gate, up) = (random.normals(100, 4.0), random.normals(100, 2.0));
    gate[..4].copy_from_slice(&[0.0, -0.0, 100.0, -100.0]);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let want: Vec<f64> =
        gate.iter().zip(&up).map(|(x, up)| silu((*x).into()) * f64::from(*up)).collect();
    let gate = device.floats(&gate);
    device
        .call(SWIGLU, &[])
        .memory(&gate)
        .memory(&device.floats(&up))
        .memory(&gate)
        .items([100, 1, 1]);
    assert!(error(&read_floats(&gate), &want) < 1e-6);
}

pub fn add(device: &Device) {
    let mut random = Random::new(5);
    let (x, y) = (random.normals(60, 1.0), random.normals(60, 1.0));
    let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    let block = device.floats(&x);
    device.call(ADD, &[]).memory(&block).memory(&device.floats(&y)).items([60, 1, 1]);
    assert_eq!(read_floats(&block), sum);

    let biased: Vec<f32> = sum.iter().enumerate().map(|(i, x)| x + y[i % 20]).collect();
    device
        .call(ADD_BIAS, &[])
        .memory(&block)
        .memory(&device.block(&unit(&y[..20])))
        .u64(OFFSET as u64)
        .items([20, 3, 1]);
    assert_eq!(read_floats(&block), biased);
}

/// Numbers around every boundary of half precision.
fn to_round(count: usize) -> Vec<f32> {
    let edges = [0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e9, 6e-8, 2.9e-8, 1e-30, 6.1e-5, 2049.0];
    let mut values = Random::new(6).normals(count, 10.0);
    values[..edges.len()].copy_from_slice(&edges);
    values
}

pub fn to_half(device: &Device) {
    let values = to_round(64);
    let block = device.halves(&[0x7e00; 64]);
    device.call(TO_HALF, &[]).memory(&device.floats(&values)).memory(&block).items([8, 1, 1]);
    assert_eq!(read_halves(&block), halves(&values));
}

/// Tokens 250 to 265 of a context: into two chunks, and nowhere else.
pub fn kv_store(device: &Device) {
    const UNTOUCHED: u16 = 0x1234;
    let (heads, head_dim, position, tokens) = (2, 32, 250, 16);
    let k = to_round(tokens * heads * head_dim);
    let v = Random::new(8).normals(k.len(), 1.0);
    let mut want = vec![vec![UNTOUCHED; 2 * heads * 256 * head_dim]; 2];
    let (rounded_k, rounded_v) = (halves(&k), halves(&v));
    for token in 0..tokens {
        for head in 0..heads {
            let (chunk, row) = ((position + token) / 256, (position + token) % 256);
            let from = (token * heads + head) * head_dim;
            let to = (head * 256 + row) * head_dim;
            let block = heads * 256 * head_dim;
            want[chunk][to..to + head_dim].copy_from_slice(&rounded_k[from..from + head_dim]);
            want[chunk][block + to..block + to + head_dim]
                .copy_from_slice(&rounded_v[from..from + head_dim]);
        }
    }
    let untouched = vec![UNTOUCHED; want[0].len()];
    let chunks = device.chunks(&[Some(untouched.clone()), Some(untouched), None]);
    device
        .call(KV_STORE, &[("MZ_HEAD_DIM", 32)])
        .memory(&device.floats(&k))
        .memory(&device.floats(&v))
        .table(&chunks)
        .u32(heads)
        .u32(position)
        .pool(&chunks)
        .items([head_dim / 8, heads, tokens]);
    let have: Vec<u16> = chunks.blocks.iter().flat_map(read_halves).collect();
    // The last chunk lies first.
    want.reverse();
    assert_eq!(have, want.concat());
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
fn rotary_turns_both_kinds_of_pairs() {
    let Some(device) = Device::any() else { return };
    for position in [0, 1, 4095, 262_000] {
        rotary(&device, true, position);
        rotary(&device, false, position);
    }
}

#[test]
fn pointwise_kernels_compute_what_they_say() {
    let Some(device) = Device::any() else { return };
    swiglu(&device);
    add(&device);
    to_half(&device);
}

#[test]
fn new_keys_and_values_go_to_their_rows_alone() {
    let Some(device) = Device::any() else { return };
    kv_store(&device);
    let Some(device) = device.with_table(Table::Offsets) else { return };
    kv_store(&device);
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
    rms_norm(&device, 3, 64);
    rotary(&device, true, 4095);
    swiglu(&device);
    add(&device);
    to_half(&device);
    kv_store(&device);
    argmax(&device);
}
