//! Matrix products over weights as model files hold them.

use super::device::{Device, read_floats};
use super::oracle::product;
use super::values::{Random, error, halves, wide};
use mzcache::kernel::opencl::{
    FEW_TOKENS_MAX, MATMUL_FEW, MATMUL_MANY, Weights, few_launch, few_macro, many_launch,
};

/// A multiple of 32, as tensors start, and not of more.
const OFFSET: usize = 4096 + 32;

/// Rows of blocks, and what they decode to.
fn weights(format: Weights, rows: usize, columns: usize) -> (Vec<u8>, Vec<f32>) {
    let mut random = Random::new(columns as u64);
    let (mut bytes, mut values) = (vec![], vec![]);
    let half = |random: &mut Random, deviation: f32| {
        let bits = halves(&[random.normal() * deviation]);
        (bits[0].to_le_bytes(), wide(&bits)[0])
    };
    for _ in 0..rows * columns / 32 {
        match format {
            Weights::F32 => {
                let new = random.normals(32, 1.0);
                bytes.extend(new.iter().flat_map(|value| value.to_le_bytes()));
                values.extend(new);
            }
            Weights::F16 => {
                let new = halves(&random.normals(32, 1.0));
                bytes.extend(new.iter().flat_map(|value| value.to_le_bytes()));
                values.extend(wide(&new));
            }
            Weights::Q8_0 => {
                let (d, scale) = half(&mut random, 0.01);
                let codes = random.bytes(32);
                bytes.extend(d);
                bytes.extend(&codes);
                values.extend(codes.iter().map(|code| scale * f32::from(*code as i8)));
            }
            Weights::Q4_0 | Weights::Q4_1 => {
                let (d, scale) = half(&mut random, 0.1);
                let (m, min) = half(&mut random, 0.5);
                let codes = random.bytes(16);
                bytes.extend(d);
                let has_min = format == Weights::Q4_1;
                bytes.extend(m.iter().filter(|_| has_min));
                bytes.extend(&codes);
                let nibbles =
                    codes.iter().map(|code| code & 15).chain(codes.iter().map(|code| code >> 4));
                values.extend(nibbles.map(|code| match has_min {
                    true => scale * f32::from(code) + min,
                    false => scale * (f32::from(code) - 8.0),
                }));
            }
        }
    }
    (bytes, values)
}

/// Runs one of the two kernels; what lies around the tensor and the result must stay out of it.
pub fn multiply(device: &Device, format: Weights, rows: usize, columns: usize, tokens: usize) {
    const AFTER: usize = 40;
    let (tensor, w) = weights(format, rows, columns);
    let x = Random::new(tokens as u64).normals(tokens * columns, 1.0);
    let want = product(&w, &x, columns);
    let unit = [vec![0xff; OFFSET], tensor, vec![0xff; 64]].concat();
    let y = device.floats(&vec![f32::INFINITY; tokens * rows + AFTER]);
    let (x, unit) = (device.floats(&x), device.block(&unit));
    let few = u32::try_from(tokens).unwrap();
    let is_few = few <= FEW_TOKENS_MAX;
    let call = match is_few {
        true => device.call(MATMUL_FEW, &[format.format(), few_macro(few)]),
        false => device.call(MATMUL_MANY, &[format.format()]),
    };
    let call = call.memory(&x).memory(&unit).u64(OFFSET as u64).memory(&y).u32(rows).u32(columns);
    match is_few {
        true => call.launch(few_launch(rows)),
        false => call.u32(tokens).launch(many_launch(rows, tokens)),
    }
    let have = read_floats(&y);
    let (have, after) = have.split_at(tokens * rows);
    let error = error(have, &want);
    assert!(error < 1e-5, "{format:?} {rows} x {columns}, {tokens} tokens: {error:e}");
    assert_eq!(after, [f32::INFINITY; AFTER]);
}

#[test]
fn products_for_a_few_tokens_read_every_format() {
    let Some(device) = Device::any() else { return };
    for format in Weights::ALL {
        for tokens in [1, 8, 16] {
            multiply(&device, format, 37, 576, tokens);
        }
    }
    for tokens in 1..=16 {
        multiply(&device, Weights::F16, 16, 96, tokens);
    }
}

#[test]
fn products_for_many_tokens_read_every_format() {
    let Some(device) = Device::any() else { return };
    for format in Weights::ALL {
        for tokens in [17, 70] {
            multiply(&device, format, 101, 288, tokens);
        }
    }
}

#[test]
fn rows_and_columns_need_not_fill_a_work_group() {
    let Some(device) = Device::any() else { return };
    for (rows, columns) in [(1, 32), (15, 64), (17, 160), (64, 1024), (65, 32)] {
        multiply(&device, Weights::Q8_0, rows, columns, 3);
        multiply(&device, Weights::Q8_0, rows, columns, 33);
    }
}
