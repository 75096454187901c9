//! Every table against slow code written from the definitions, between forbidden pages.

use super::half::{f16_of_f32, f32_of_bf16, f32_of_f16};
use super::{Isa, MASKED, MathKernels, Strided, WeightType};
use crate::kernel::CpuFlags;
use crate::kernel::support::Random;
use crate::kernel::support::guard::Guarded;
use std::vec::Vec;

fn tables() -> Vec<MathKernels> {
    Isa::ALL.iter().filter_map(|isa| MathKernels::new(*isa)).collect()
}

/// A number from -1 to 1.
fn number(random: &mut Random) -> f32 {
    (f64::from(random.u32()) / f64::from(u32::MAX) * 2.0 - 1.0) as f32
}

fn fill(slice: &mut [f32], random: &mut Random) {
    slice.iter_mut().for_each(|value| *value = number(random));
}

fn half_at(block: &[u8], at: usize) -> f64 {
    f32_of_f16(u16::from_le_bytes([block[at], block[at + 1]])).into()
}

/// Bits `low..low + count` of a byte string seen as one long little-endian number.
fn bits(bytes: &[u8], low: usize, count: usize) -> u32 {
    (0..count).map(|i| u32::from(bytes[(low + i) / 8] >> ((low + i) % 8) & 1) << i).sum()
}

/// Value `i` of one block, straight from the format's description and in double precision.
fn slow_value(kind: WeightType, block: &[u8], i: usize) -> f64 {
    // Position of 4-bit code i where the codes of `run` values share `run` bytes' lower nibbles,
    // and those of the next `run` values their upper nibbles.
    let nibble = |codes: &[u8], run: usize, i: usize| {
        f64::from(bits(codes, 8 * (i / (2 * run) * run + i % run) + 4 * (i / run % 2), 4))
    };
    match kind {
        WeightType::F32 => f32::from_le_bytes(block.try_into().unwrap()).into(),
        WeightType::F16 => half_at(block, 0),
        WeightType::Bf16 => f32_of_bf16(u16::from_le_bytes([block[0], block[1]])).into(),
        WeightType::Q4_0 => half_at(block, 0) * (nibble(&block[2..], 16, i) - 8.0),
        WeightType::Q4_1 => half_at(block, 0) * nibble(&block[4..], 16, i) + half_at(block, 2),
        WeightType::Q8_0 => half_at(block, 0) * f64::from(block[2 + i].cast_signed()),
        WeightType::Q4K => {
            // Six-bit scales then six-bit minima; groups 4 to 7 keep their upper two bits on top of
            // those of groups 0 to 3.
            let (group, packed) = (i / 32, &block[4..16]);
            let six = |first: usize, nibble: usize| match group {
                0..4 => bits(packed, 8 * (first + group), 6),
                _ => {
                    bits(packed, 8 * (8 + group - 4) + nibble, 4)
                        + 16 * bits(packed, 8 * (first + group - 4) + 6, 2)
                }
            };
            let (scale, min) = (f64::from(six(0, 0)), f64::from(six(4, 4)));
            half_at(block, 0) * scale * nibble(&block[16..], 32, i) - half_at(block, 2) * min
        }
        WeightType::Q6K => {
            let (part, within) = (i / 128, i % 128);
            let low = bits(block, 8 * (64 * part + within % 64) + 4 * (within / 64), 4);
            let high = bits(&block[128..], 8 * (32 * part + within % 32) + 2 * (within / 32), 2);
            let scale = f64::from(block[192 + i / 16].cast_signed());
            half_at(block, 208) * scale * (f64::from(low + 16 * high) - 32.0)
        }
    }
}

/// Random blocks with small finite scales.
fn random_blocks(kind: WeightType, bytes: &mut [u8], random: &mut Random) {
    bytes.iter_mut().for_each(|byte| *byte = random.byte());
    let halves: &[usize] = match kind {
        WeightType::F32 => {
            for value in bytes.chunks_exact_mut(4) {
                value.copy_from_slice(&number(random).to_le_bytes());
            }
            return;
        }
        WeightType::F16 | WeightType::Q4_0 | WeightType::Q8_0 => &[0],
        WeightType::Bf16 => {
            for value in bytes.chunks_exact_mut(2) {
                value.copy_from_slice(&number(random).to_le_bytes()[2..]);
            }
            return;
        }
        WeightType::Q4_1 | WeightType::Q4K => &[0, 2],
        WeightType::Q6K => &[208],
    };
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        for at in halves {
            block[*at..at + 2].copy_from_slice(&f16_of_f32(number(random)).to_le_bytes());
        }
    }
}

#[test]
fn block_sizes_are_those_of_the_formats() {
    let sizes = WeightType::ALL.map(|kind| (kind.name(), kind.block_values(), kind.block_bytes()));
    let expected = [
        ("F32", 1, 4),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q8_0", 32, 34),
        ("Q4_K", 256, 144),
        ("Q6_K", 256, 210),
    ];
    assert_eq!(sizes, expected);
    assert_eq!(WeightType::Q4_1.bytes(96), Some(60));
    assert_eq!(WeightType::Q4_1.bytes(97), None);
    assert_eq!(WeightType::F32.bytes(usize::MAX), None);
}

#[test]
fn a_block_made_by_hand_decodes_to_its_values() {
    // d = 0.5, m = -1; lower nibbles count up, upper nibbles count down.
    let mut block = std::vec![0x00, 0x38, 0x00, 0xbc];
    block.extend((0..16u8).map(|i| i | (15 - i) << 4));
    for table in tables() {
        let mut values = [0.0; 32];
        table.dequantise(WeightType::Q4_1, &block, &mut values);
        for i in 0..16 {
            assert_eq!(values[i], 0.5 * i as f32 - 1.0);
            assert_eq!(values[16 + i], 0.5 * (15 - i) as f32 - 1.0);
        }
    }
}

#[test]
fn blocks_decode_as_the_slow_definition_says_for_all_lengths() {
    let mut random = Random::new(1);
    let (mut from, mut to) = (Guarded::new(1 << 16), Guarded::new(1 << 16));
    for kind in WeightType::ALL {
        let (values, bytes) = (kind.block_values(), kind.block_bytes());
        let blocks_max = if values == 1 { 70 } else { 9 };
        for (blocks, is_last) in (0..=blocks_max).flat_map(|n| [(n, false), (n, true)]) {
            let encoded = from.at::<u8>(is_last, blocks * bytes);
            random_blocks(kind, encoded, &mut random);
            for table in tables() {
                let decoded = to.at::<f32>(is_last, blocks * values);
                table.dequantise(kind, encoded, decoded);
                for (i, value) in decoded.iter().enumerate() {
                    let block = &encoded[i / values * bytes..][..bytes];
                    let expected = slow_value(kind, block, i % values);
                    let error = (f64::from(*value) - expected).abs();
                    // Sums of two products cancel, so the bound follows from their size.
                    assert!(error <= 2e-6 * (1.0 + expected.abs() + 64.0), "{kind:?} {i} {error}");
                    assert!(values > 1 || error == 0.0, "{kind:?} {value} {expected}");
                }
            }
        }
    }
}

#[test]
fn blocks_decode_as_another_implementation_decodes_them() {
    let files: [(WeightType, &[u8]); 7] = [
        (WeightType::F16, include_bytes!("../../../tests/fixtures/quants/f16.bin")),
        (WeightType::Bf16, include_bytes!("../../../tests/fixtures/quants/bf16.bin")),
        (WeightType::Q4_0, include_bytes!("../../../tests/fixtures/quants/q4_0.bin")),
        (WeightType::Q4_1, include_bytes!("../../../tests/fixtures/quants/q4_1.bin")),
        (WeightType::Q8_0, include_bytes!("../../../tests/fixtures/quants/q8_0.bin")),
        (WeightType::Q4K, include_bytes!("../../../tests/fixtures/quants/q4_k.bin")),
        (WeightType::Q6K, include_bytes!("../../../tests/fixtures/quants/q6_k.bin")),
    ];
    for (kind, file) in files {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let (bytes, values) = (word(0) as usize, word(4) as usize);
        let (encoded, expected) = file[8..].split_at(bytes);
        for table in tables() {
            let mut decoded = std::vec![0.0; values];
            table.dequantise(kind, encoded, &mut decoded);
            for (value, expected) in decoded.iter().zip(expected.chunks_exact(4)) {
                let expected = f32::from_le_bytes(expected.try_into().unwrap());
                assert!((value - expected).abs() <= 2e-6 * expected.abs().max(8.0), "{kind:?}");
            }
        }
    }
}

#[test]
fn rows_multiply_while_they_are_decoded() {
    let mut random = Random::new(2);
    let (mut from, mut xs, mut ys) =
        (Guarded::new(1 << 17), Guarded::new(1 << 16), Guarded::new(4096));
    for kind in WeightType::ALL {
        let (values, bytes) = (kind.block_values(), kind.block_bytes());
        let blocks_max = if values == 1 { 130 } else { 5 };
        for (blocks, rows) in (1..=blocks_max).flat_map(|n| [(n, 1), (n, 3)]) {
            let is_last = blocks % 2 == 0;
            let encoded = from.at::<u8>(is_last, rows * blocks * bytes);
            random_blocks(kind, encoded, &mut random);
            let x = xs.at::<f32>(is_last, blocks * values);
            fill(x, &mut random);
            for table in tables() {
                let y = ys.at::<f32>(is_last, rows);
                table.decode_dots(kind, encoded, x, y);
                for (row, y) in y.iter().enumerate() {
                    let encoded = &encoded[row * blocks * bytes..];
                    let terms = x.iter().enumerate().map(|(i, x)| {
                        let block = &encoded[i / values * bytes..][..bytes];
                        slow_value(kind, block, i % values) * f64::from(*x)
                    });
                    let (sum, size) =
                        terms.fold((0.0, 64.0), |(sum, size), t| (sum + t, size + t.abs()));
                    assert!((f64::from(*y) - sum).abs() <= 1e-5 * size, "{kind:?} {blocks}");
                }
            }
        }
    }
}

#[test]
fn tiles_multiply_for_all_shapes_and_strides() {
    let mut random = Random::new(3);
    let (mut ws, mut xs, mut ys) =
        (Guarded::new(1 << 16), Guarded::new(1 << 16), Guarded::new(1 << 16));
    for (rows, depth) in (0..=29).flat_map(|rows| [(rows, 1), (rows, 2), (rows, 17)]) {
        for width in [16, 32, 48] {
            let is_last = rows % 2 == 0;
            let w = ws.at::<f32>(is_last, rows * depth);
            let x = xs.at::<f32>(is_last, depth * width);
            fill(w, &mut random);
            fill(x, &mut random);
            for (table, accumulate) in tables().into_iter().flat_map(|t| [(t, false), (t, true)]) {
                for by_rows in [true, false] {
                    let weights = match by_rows {
                        true => Strided { rows, ..Strided::rows(w, depth) },
                        false => Strided { depth, ..Strided::columns(w, rows) },
                    };
                    let y = ys.at::<f32>(is_last, rows * width);
                    y.fill(0.5);
                    table.tile(weights, x, y, width, accumulate);
                    for (at, y) in y.iter().enumerate() {
                        let (row, lane) = (at / width, at % width);
                        let weight = |d| w[if by_rows { row * depth + d } else { d * rows + row }];
                        let terms = (0..depth).map(|d| f64::from(weight(d) * x[d * width + lane]));
                        let expected = terms.sum::<f64>() + if accumulate { 0.5 } else { 0.0 };
                        assert!((f64::from(*y) - expected).abs() < 1e-5, "{rows} {depth} {width}");
                    }
                }
            }
        }
    }
}

#[test]
fn row_products_are_right_for_all_lengths() {
    let mut random = Random::new(4);
    let (mut ws, mut hs) = (Guarded::new(1 << 13), Guarded::new(1 << 12));
    let (mut xs, mut ys) = (Guarded::new(4096), Guarded::new(4096));
    for (depth, is_last) in (1..=150).flat_map(|depth| [(depth, false), (depth, true)]) {
        let rows = 3;
        let (w, h) = (ws.at::<f32>(is_last, rows * depth), hs.at::<u16>(is_last, rows * depth));
        let x = xs.at::<f32>(is_last, depth);
        fill(w, &mut random);
        fill(x, &mut random);
        h.iter_mut().zip(w.iter_mut()).for_each(|(h, w)| {
            *h = f16_of_f32(*w);
            *w = f32_of_f16(*h);
        });
        let dot = |row: usize| -> f64 {
            let row = &w[row * depth..(row + 1) * depth];
            row.iter().zip(x.iter()).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        for table in tables() {
            let y = ys.at::<f32>(is_last, rows);
            table.dots(w, x, y);
            y.iter()
                .enumerate()
                .for_each(|(row, y)| assert!((f64::from(*y) - dot(row)).abs() < 1e-4));
            table.dots_f16(h, x, y);
            y.iter()
                .enumerate()
                .for_each(|(row, y)| assert!((f64::from(*y) - dot(row)).abs() < 1e-4));
            let y = ys.at::<f32>(is_last, depth);
            y.fill(1.0);
            table.add_rows_f16(h, &[0.5, -1.0, 2.0], y);
            for (d, y) in y.iter().enumerate() {
                let expected = 1.0 + 0.5 * w[d] - w[depth + d] + 2.0 * w[2 * depth + d];
                assert!((y - expected).abs() < 1e-5);
            }
        }
    }
}

/// Softmax over all scores at once, in double precision.
fn slow_softmax(scores: &[f32]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f32::MIN, f32::max);
    let factors: Vec<f64> =
        scores.iter().map(|s| (f64::from(*s) - f64::from(largest)).exp()).collect();
    let total: f64 = factors.iter().sum();
    factors.iter().map(|factor| factor / total).collect()
}

#[test]
fn softmax_in_steps_equals_softmax_at_once_along_rows() {
    let mut random = Random::new(5);
    let mut memory = Guarded::new(4096);
    for (first, second) in (1..=40).flat_map(|n| [(n, 1), (n, 7), (1, n), (n, n)]) {
        let scores: Vec<f32> = (0..first + second).map(|_| 20.0 * number(&mut random)).collect();
        let expected = slow_softmax(&scores);
        for table in tables() {
            let step = memory.last::<f32>(first);
            step.copy_from_slice(&scores[..first]);
            let (largest, total) = table.softmax_row(step, MASKED);
            let mut factors = step.to_vec();
            let step = memory.last::<f32>(second);
            step.copy_from_slice(&scores[first..]);
            let (peak, sum) = table.softmax_row(step, largest);
            let rescale = (largest - peak).exp();
            factors.iter_mut().for_each(|factor| *factor *= rescale);
            factors.extend_from_slice(step);
            let total = f64::from(total * rescale + sum);
            for (factor, expected) in factors.iter().zip(&expected) {
                assert!((f64::from(*factor) / total - expected).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn softmax_in_steps_equals_softmax_at_once_down_lanes() {
    let mut random = Random::new(6);
    let mut memory = Guarded::new(1 << 13);
    for (keys, width) in (1..=33).flat_map(|keys| [(keys, 16), (keys, 32)]) {
        let mut scores: Vec<f32> =
            (0..2 * keys * width).map(|_| 20.0 * number(&mut random)).collect();
        // A lane that sees nothing of the first step, and one that sees one key of it.
        for key in 0..keys {
            scores[key * width] = MASKED;
            scores[key * width + 1] = if key == 0 { 3.0 } else { MASKED };
        }
        for table in tables() {
            let (mut largest, mut total) = (std::vec![MASKED; width], std::vec![0.0; width]);
            let mut rescale = std::vec![9.0; width];
            let mut factors = Vec::new();
            for step in scores.chunks_exact(keys * width) {
                let lanes = memory.last::<f32>(keys * width);
                lanes.copy_from_slice(step);
                table.softmax_columns(lanes, &mut largest, &mut total, &mut rescale);
                let rows = factors.chunks_exact_mut(width);
                rows.flat_map(|row: &mut [f32]| row.iter_mut().zip(&rescale))
                    .for_each(|(factor, rescale)| *factor *= rescale);
                factors.extend_from_slice(lanes);
            }
            for (lane, total) in total.iter().enumerate() {
                let column: Vec<f32> = scores.iter().skip(lane).step_by(width).copied().collect();
                let factors = factors.iter().skip(lane).step_by(width);
                for (factor, expected) in factors.zip(slow_softmax(&column)) {
                    let share = f64::from(*factor) / f64::from(*total);
                    assert!((share - expected).abs() < 1e-6, "{share} {expected}");
                }
            }
        }
    }
}

#[test]
fn swiglu_is_right_for_all_lengths_and_at_the_ends_of_the_range() {
    let mut random = Random::new(7);
    let (mut gates, mut ups) = (Guarded::new(4096), Guarded::new(4096));
    let extremes = [0.0, -0.0, 1e-20, -1e-20, 87.5, -87.5, 88.5, -88.5, 1e4, -1e4];
    for (count, is_last) in (0..=80).flat_map(|count| [(count, false), (count, true)]) {
        let up = ups.at::<f32>(is_last, count);
        fill(up, &mut random);
        for table in tables() {
            let gate = gates.at::<f32>(is_last, count);
            fill(gate, &mut random);
            gate.iter_mut().for_each(|gate| *gate *= 30.0);
            gate.iter_mut().zip(extremes).for_each(|(gate, extreme)| *gate = extreme);
            let before = gate.to_vec();
            table.swiglu(gate, up);
            for ((gate, before), up) in gate.iter().zip(before).zip(up.iter()) {
                let before = f64::from(before);
                let expected = before / (1.0 + (-before).exp()) * f64::from(*up);
                let error = (f64::from(*gate) - expected).abs();
                assert!(error <= 4e-7 * expected.abs() + 1e-34, "{before} {gate} {expected}");
            }
        }
    }
}

#[test]
fn the_flags_choose_the_table() {
    let portable = MathKernels::select(CpuFlags::empty());
    assert_eq!(portable.isa(), Isa::Portable);
    let best = MathKernels::select(CpuFlags::all());
    assert_eq!(Some(best.isa()), tables().last().map(MathKernels::isa));
}

#[test]
#[should_panic(expected = "assertion")]
fn a_row_that_ends_inside_a_block_is_refused() {
    tables()[0].dequantise(WeightType::Q4_0, &[0; 18], &mut [0.0; 31]);
}

#[test]
#[should_panic(expected = "assertion")]
fn strides_that_leave_the_values_are_refused() {
    let weights = Strided { rows: 3, ..Strided::rows(&[0.0; 8], 4) };
    tables()[0].tile(weights, &[0.0; 64], &mut [0.0; 48], 16, false);
}
