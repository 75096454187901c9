//! Weights as model files hold them, made up and decoded value by value.

use super::values::{Random, halves, wide};
use mzcache::kernel::opencl::Weights;

/// Blocks of that many values, and what they decode to.
pub fn encoded(format: Weights, count: usize) -> (Vec<u8>, Vec<f32>) {
    let mut random = Random::new(count as u64);
    let (mut bytes, mut values) = (vec![], vec![]);
    let block_values = format.block_values().max(8);
    assert_eq!(count % block_values, 0);
    for _ in 0..count / block_values {
        let (block, decoded) = match format {
            Weights::F32 => numbers(&random.normals(8, 1.0), |value| value.to_le_bytes()),
            Weights::Bf16 => {
                let upper = |value: f32| f32::from_bits(value.to_bits() & 0xffff_0000);
                let new: Vec<f32> = random.normals(8, 1.0).into_iter().map(upper).collect();
                numbers(&new, |value| [value.to_le_bytes()[2], value.to_le_bytes()[3]])
            }
            Weights::F16 => {
                let new = wide(&halves(&random.normals(8, 1.0)));
                numbers(&new, |value| halves(&[value])[0].to_le_bytes())
            }
            Weights::Q8_0 => q8_0(&mut random),
            Weights::Q4_0 | Weights::Q4_1 => q4(&mut random, format == Weights::Q4_1),
            Weights::Q4K => q4_k(&mut random),
            Weights::Q6K => q6_k(&mut random),
        };
        assert_eq!(decoded.len(), block_values);
        bytes.extend(block);
        values.extend(decoded);
    }
    (bytes, values)
}

type Block = (Vec<u8>, Vec<f32>);

fn numbers<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Block {
    (values.iter().flat_map(|value| bytes(*value)).collect(), values.to_vec())
}

/// A half's bytes and its value.
fn half(random: &mut Random, deviation: f32) -> ([u8; 2], f32) {
    let bits = halves(&[random.normal() * deviation]);
    (bits[0].to_le_bytes(), wide(&bits)[0])
}

fn q8_0(random: &mut Random) -> Block {
    let (d, scale) = half(random, 0.01);
    let codes = random.bytes(32);
    let values = codes.iter().map(|code| scale * f32::from(*code as i8)).collect();
    ([&d[..], &codes].concat(), values)
}

fn q4(random: &mut Random, has_minimum: bool) -> Block {
    let (d, scale) = half(random, 0.1);
    let (m, minimum) = half(random, 0.5);
    let codes = random.bytes(16);
    let m = if has_minimum { &m[..] } else { &[] };
    let nibbles = codes.iter().map(|code| code & 15).chain(codes.iter().map(|code| code >> 4));
    let value = |code| match has_minimum {
        true => scale * f32::from(code) + minimum,
        false => scale * (f32::from(code) - 8.0),
    };
    ([&d[..], m, &codes].concat(), nibbles.map(value).collect())
}

fn q4_k(random: &mut Random) -> Block {
    let (d, scale) = half(random, 0.002);
    let (m, minimum) = half(random, 0.01);
    let (packed, codes) = (random.bytes(12), random.bytes(128));
    // Eight scales and eight minima: four bytes hold the lower six bits of the first four scales,
    // four those of the first four minima, and four the lower nibbles of the rest of both, whose
    // upper two bits are above the first ones.
    let six = |byte: u8| byte & 63;
    let scales = (0..8).map(|run| match run {
        0..4 => six(packed[run]),
        _ => (packed[run + 4] & 15) + 16 * (packed[run - 4] >> 6),
    });
    let minima = (0..8).map(|run| match run {
        0..4 => six(packed[run + 4]),
        _ => (packed[run + 4] >> 4) + 16 * (packed[run] >> 6),
    });
    let mut values = vec![];
    for (run, (s, t)) in scales.zip(minima).enumerate() {
        for code in &codes[run / 2 * 32..][..32] {
            let code = if run % 2 == 0 { code & 15 } else { code >> 4 };
            values.push(scale * f32::from(s) * f32::from(code) - minimum * f32::from(t));
        }
    }
    ([&d[..], &m, &packed, &codes].concat(), values)
}

fn q6_k(random: &mut Random) -> Block {
    let (d, scale) = half(random, 0.0005);
    let (lower, upper, scales) = (random.bytes(128), random.bytes(64), random.bytes(16));
    let mut values = vec![];
    for value in 0..256 {
        let (half, within) = (value / 128, value % 128);
        let (run, place) = (within / 32, within % 32);
        let low = lower[half * 64 + run % 2 * 32 + place];
        let low = if run < 2 { low & 15 } else { low >> 4 };
        let high = upper[half * 32 + place] >> (2 * run) & 3;
        let code = f32::from(low + 16 * high) - 32.0;
        values.push(scale * f32::from(scales[value / 16] as i8) * code);
    }
    ([&lower[..], &upper, &scales, &d].concat(), values)
}
