//! The tables against their derivation, and rows through every rung.

use super::tables::{COSTS, DECODE, ESCAPE_BITS, LENGTH_MAX, LENGTHS, SYMBOLS};
use super::*;
use crate::kernel::portable::f32_from_f16;
use crate::kernel::support::guard::Guarded;
use crate::kernel::support::{Random, rungs};
use crate::kernel::{CpuFlags, Kernels};
use std::vec::Vec;

mod reading;

const ESCAPE_INDEX: usize = SYMBOLS - 1;

const KERNELS: Kernels = Kernels::portable();

#[test]
fn codes_are_complete_and_bounded() {
    for (table, lengths) in LENGTHS.iter().enumerate() {
        let used = lengths.iter().filter(|&&length| length > 0);
        let places: u32 = used.map(|&length| 1 << (LENGTH_MAX - u32::from(length))).sum();
        assert_eq!(places, 1 << LENGTH_MAX, "Kraft's sum of table {table}");
        assert!(lengths[ESCAPE_INDEX] > 0 && lengths[20] > 0, "table {table}");
        for residual in -30..=30i16 {
            let index = usize::try_from(residual + 20).unwrap_or(SYMBOLS);
            let expected = index < ESCAPE_INDEX && lengths[index] > 0;
            assert_eq!(has_code(table, residual), expected, "table {table}, {residual}");
        }
    }
}

/// Symbols from the definition of canonical codes: bit by bit, all codes compared.
fn first_symbol(lengths: &[u8; SYMBOLS], bits: u32) -> (usize, u32) {
    let mut by_code: Vec<(u8, usize)> =
        (0..SYMBOLS).map(|symbol| (lengths[symbol], symbol)).collect();
    by_code.retain(|&(length, _)| length > 0);
    by_code.sort();
    let mut code = 0u32;
    let mut before = by_code[0].0;
    for (length, symbol) in by_code {
        code <<= length - before;
        before = length;
        if bits >> (LENGTH_MAX - u32::from(length)) == code {
            return (symbol, u32::from(length));
        }
        code += 1;
    }
    unreachable!("the code is complete");
}

#[test]
fn look_ups_give_what_the_bits_mean() {
    for (lengths, entries) in LENGTHS.iter().zip(&DECODE) {
        for (window, entry) in entries.iter().enumerate() {
            let entry = entry.to_le_bytes();
            let (bits, count) = (u32::from(entry[6]), usize::from(entry[7]));
            assert!((1..=LENGTH_MAX).contains(&bits) && (1..=6).contains(&count));
            let mut rest = window as u32;
            let mut taken = 0;
            for &symbol in &entry[..count] {
                let (expected, length) = first_symbol(lengths, rest & 0x3FF);
                assert_eq!(usize::from(symbol.wrapping_add(20)), expected);
                taken += length;
                rest <<= length;
            }
            assert_eq!(taken, bits);
            // Another symbol would not have fitted.
            let (_, length) = first_symbol(lengths, rest & 0x3FF);
            assert!(count == 6 || bits + length > LENGTH_MAX);
        }
    }
}

#[test]
fn costs_are_the_lengths_and_the_escaped_values() {
    for table in 0..TABLES {
        for residual in (-300..=300).chain([i16::MIN, i16::MAX]) {
            let cost = COSTS[usize::from(tables::clamped(residual))][table];
            let escape = u16::from(LENGTHS[table][ESCAPE_INDEX]) + ESCAPE_BITS;
            let expected = match usize::try_from(i32::from(residual) + 20) {
                Ok(index) if has_code(table, residual) => u16::from(LENGTHS[table][index]),
                _ => escape,
            };
            assert_eq!(cost, expected, "table {table}, {residual}");
        }
    }
}

/// Share of the mixture's values that round to `residual`, by Simpson's rule on 400 intervals.
fn share(residual: i32, deviation: f64) -> f64 {
    let density = |x: f64| {
        let normal = (-x * x / (2.0 * deviation * deviation)).exp()
            / (deviation * (2.0 * core::f64::consts::PI).sqrt());
        let scale = deviation / 2f64.sqrt();
        let laplace = (-x.abs() / scale).exp() / (2.0 * scale);
        0.5 * normal + 0.5 * laplace
    };
    let integral = |from: f64, to: f64| -> f64 {
        let width = (to - from) / 400.0;
        let piece = |n: i32| {
            let x = from + f64::from(n) * width;
            density(x) + 4.0 * density(x + width / 2.0) + density(x + width)
        };
        (0..400).map(|n| width / 6.0 * piece(n)).sum()
    };
    let magnitude = f64::from(residual.abs());
    match residual {
        0 => integral(-0.5, 0.0) + integral(0.0, 0.5),
        _ => integral(magnitude - 0.5, magnitude + 0.5),
    }
}

/// Lengths of the best code whose codes have at most [`LENGTH_MAX`] bits: the package-merge
/// algorithm of Larmore and Hirschberg, "A fast algorithm for optimal length-limited Huffman codes"
/// (1990).
fn package_merge(shares: &[f64]) -> Vec<u8> {
    let by_share = |a: &(f64, Vec<usize>), b: &(f64, Vec<usize>)| a.0.total_cmp(&b.0);
    let mut leaves: Vec<(f64, Vec<usize>)> =
        shares.iter().enumerate().map(|(symbol, &share)| (share, std::vec![symbol])).collect();
    leaves.sort_by(by_share);
    let mut merged: Vec<(f64, Vec<usize>)> = Vec::new();
    for _ in 0..LENGTH_MAX {
        let pairs = merged.chunks_exact(2);
        let packages: Vec<_> = pairs
            .map(|pair| (pair[0].0 + pair[1].0, [&*pair[0].1, &*pair[1].1].concat()))
            .collect();
        merged = [&*leaves, &*packages].concat();
        merged.sort_by(by_share);
    }
    let mut lengths = std::vec![0; shares.len()];
    for (_, symbols) in &merged[..2 * shares.len() - 2] {
        symbols.iter().for_each(|&symbol| lengths[symbol] += 1);
    }
    lengths
}

#[test]
fn lengths_are_those_of_the_mixtures() {
    for (table, committed) in LENGTHS.iter().enumerate() {
        let deviation = 0.25 * 2f64.powf(table as f64 / 2.0);
        let shares: Vec<f64> = (-20..=20).map(|residual| share(residual, deviation)).collect();
        let mut best = (f64::INFINITY, [0; SYMBOLS]);
        for bound in 1..=20 {
            let inside = 20 - bound..=20 + bound;
            let mut shares: Vec<f64> =
                shares[inside.clone()].iter().map(|s| s.max(1e-12)).collect();
            // A table that does not meet escapes in theory still needs a code for them.
            let escapes = (1.0 - shares.iter().sum::<f64>()).max(2f64.powi(-20));
            shares.push(escapes);
            let lengths = package_merge(&shares);
            let cost = |(share, &length): (&f64, &u8)| share * f64::from(length);
            let cost: f64 = shares.iter().zip(&lengths).map(cost).sum();
            let cost = cost + escapes * f64::from(ESCAPE_BITS);
            if cost < best.0 - 1e-9 {
                best = (cost, [0; SYMBOLS]);
                best.1[inside].copy_from_slice(&lengths[..2 * bound + 1]);
                best.1[ESCAPE_INDEX] = lengths[2 * bound + 1];
            }
        }
        assert_eq!(*committed, best.1, "table {table}");
    }
}

/// Rows of 256 residuals of the real chunks: K with steps for each channel by query energy, V with
/// steps for each token by mean square, as the kvh codec has them.
fn real_rows(values: &[u8], energies: Option<&[u8]>) -> Vec<Vec<i16>> {
    let (halves, _) = values.as_chunks::<2>();
    let number = |&bytes: &[u8; 2]| f64::from(f32_from_f16(u16::from_le_bytes(bytes)));
    let values: Vec<f64> = halves.iter().map(number).collect();
    let mean_square = |values: &[f64]| {
        values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64
    };
    let energies: Vec<f64> = energies.map_or(Vec::new(), |bytes| {
        let single = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
        bytes.as_chunks::<4>().0.iter().map(single).collect()
    });
    let (square, energy_sum) = (mean_square(&values), energies.iter().sum::<f64>());
    let steps: Vec<f64> = (0..values.len())
        .map(|place| match energies.get((place % 192) ^ 1) {
            None => {
                let token_and_head = &values[place / 64 * 64..][..64];
                0.7 * 2f64.powf(mean_square(token_and_head).log2().round() / 2.0)
            }
            Some(other) => {
                let energy = (energies[place % 192] + other) / 2.0;
                0.5 * 0.55 * (square * energy_sum / 192.0 / energy).sqrt()
            }
        })
        .collect();
    let row = |channel: usize| {
        let places = (channel..values.len()).step_by(192);
        let codes: Vec<f64> = places.map(|place| (values[place] / steps[place]).round()).collect();
        let mean = (codes.iter().sum::<f64>() / codes.len() as f64).round();
        codes.iter().map(|code| (code - mean) as i16).collect()
    };
    (0..192).map(row).collect()
}

/// Bits a value of real rows, each under its best table: with these codes, and with ideal ones for
/// the same mixtures.
fn real_bits(rows: &[Vec<i16>]) -> [f64; 2] {
    let ideal_costs: Vec<Vec<f64>> = (0..TABLES)
        .map(|table| {
            let deviation = 0.25 * 2f64.powf(table as f64 / 2.0);
            let shares: Vec<f64> = (0..=20).map(|residual| share(residual, deviation)).collect();
            shares.iter().map(|share| -share.max(1e-9).log2()).collect()
        })
        .collect();
    let mut bits = [0.0; 2];
    for row in rows {
        bits[0] += cheapest(&KERNELS.huffman_encode.costs(&Indices::new(row))).1 as f64;
        let ideal = |costs: &Vec<f64>| -> f64 {
            let cost = |residual: &i16| costs.get(usize::from(residual.unsigned_abs()));
            row.iter().map(|residual| cost(residual).copied().unwrap_or(26.0)).sum()
        };
        bits[1] += ideal_costs.iter().map(ideal).fold(f64::INFINITY, f64::min);
    }
    bits.map(|bits| bits / (256 * rows.len()) as f64)
}

#[test]
fn real_rows_take_little_more_than_ideal_codes() {
    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../../tests/fixtures/kv/", $name))
        };
    }
    let [mut k, mut v] = [Vec::new(), Vec::new()];
    let energies: &[u8] = fixture!("qstat.f32");
    let of_layer = |layer: usize| Some(&energies[4 * 192 * layer..][..4 * 192]);
    k.extend(real_rows(fixture!("layer00_chunk2_k.f16"), of_layer(0)));
    k.extend(real_rows(fixture!("layer19_chunk7_k.f16"), of_layer(19)));
    v.extend(real_rows(fixture!("layer00_chunk2_v.f16"), None));
    v.extend(real_rows(fixture!("layer19_chunk7_v.f16"), None));
    // A code has whole bits: where most residuals are 0, one bit is more than they are worth.
    for (rows, more_max) in [(k, 0.09), (v, 0.05)] {
        let [bits, ideal] = real_bits(&rows);
        assert!((2.0..3.0).contains(&bits) && bits < ideal + more_max, "{bits} {ideal}");
    }
}

/// A row of residuals with about the spread of a table, some of them escaped.
fn residuals(random: &mut Random, table: usize, count: usize) -> Vec<i16> {
    let spread = 1 + (1 << (table / 2)) as u64;
    let value = |random: &mut Random| {
        let value =
            (0..3).map(|_| random.below(spread) as i16).sum::<i16>() - 3 * (spread as i16) / 2;
        if random.below(50) == 0 { value * 40 } else { value }
    };
    (0..count).map(|_| value(random)).collect()
}

/// What decoding gives for residuals under a table.
fn symbols_of(table: usize, residuals: &[i16]) -> Vec<u8> {
    let symbol = |&residual: &i16| {
        let symbol = if has_code(table, residual) { residual as i8 } else { ESCAPE };
        symbol.cast_unsigned()
    };
    residuals.iter().map(symbol).collect()
}

#[test]
fn the_cheapest_table_is_the_cheapest_and_what_is_written_has_its_bits() {
    let mut random = Random::new(31);
    let rungs = rungs();
    for spread in 0..TABLES {
        for count in [1, 2, 3, 4, 5, 7, 31, 255, 256] {
            let residuals = residuals(&mut random, spread, count);
            let indices = Indices::new(&residuals);
            let costs = KERNELS.huffman_encode.costs(&indices);
            let (cheapest, bits) = cheapest(&costs);
            let mut bytes = [0; ROW_BYTES_MAX];
            for (table, lengths) in LENGTHS.iter().enumerate() {
                let escapes = symbols_of(table, &residuals).iter().filter(|&&s| s == 21).count();
                let written = KERNELS.huffman_encode.write(&indices, table, &mut bytes);
                let length = |residual: &i16| match has_code(table, *residual) {
                    true => usize::from(lengths[(*residual + 20) as usize]),
                    false => usize::from(lengths[ESCAPE_INDEX]),
                };
                let codes: usize = residuals.iter().map(length).sum();
                assert_eq!(written, codes.div_ceil(8));
                let cost = codes + usize::from(ESCAPE_BITS) * escapes;
                assert!(if table < cheapest { cost > bits } else { cost >= bits });
                assert!(table != cheapest || cost == bits);
                for (name, kernels) in &rungs {
                    assert_eq!(kernels.huffman_encode.costs(&indices), costs, "{name}");
                    let mut own = [0; ROW_BYTES_MAX];
                    let length = kernels.huffman_encode.write(&indices, table, &mut own);
                    assert_eq!(own[..length], bytes[..written], "{name}");
                }
            }
        }
    }
}

#[test]
fn every_rung_costs_and_writes_alike_at_every_length_between_guard_pages() {
    let mut random = Random::new(36);
    let rungs = rungs();
    let (mut rows, mut room) = (Guarded::new(size_of::<Indices>()), Guarded::new(ROW_BYTES_MAX));
    let mut long = 0;
    for (count, spread) in (0..=256).flat_map(|count| [0, 5, 8, 12].map(|spread| (count, spread))) {
        let indices = Indices::new(&residuals(&mut random, spread, count));
        let costs = KERNELS.huffman_encode.costs(&indices);
        let mut expected = [0; ROW_BYTES_MAX];
        let table = [spread, random.below(13) as usize][random.below(2) as usize];
        let length = KERNELS.huffman_encode.write(&indices, table, &mut expected);
        long += usize::from(8 * length > 7 * count);
        for ((name, kernels), at_end) in rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
        {
            let row = &mut rows.at::<Indices>(at_end, 1)[0];
            *row = indices;
            assert_eq!(kernels.huffman_encode.costs(row), costs, "{name} {count}");
            let bytes: &mut [u8; ROW_BYTES_MAX] =
                room.at::<u8>(at_end, ROW_BYTES_MAX).try_into().unwrap();
            let written = kernels.huffman_encode.write(row, table, bytes);
            assert_eq!(bytes[..written], expected[..length], "{name} {count} {table}");
        }
    }
    assert!(long > 50, "codes that are too long to be joined by eights");
}

#[test]
fn flags_choose_the_rung() {
    let names = |flags| {
        let table = Kernels::select(flags);
        (table.huffman_decode.isa, table.huffman_encode.isa)
    };
    let asm = |isa| if cfg!(mz_asm) { isa } else { "portable" };
    assert_eq!(names(CpuFlags::empty()), ("portable", "portable"));
    if cfg!(target_arch = "x86_64") {
        let avx2 = CpuFlags::AVX2 | CpuFlags::BMI2;
        assert_eq!(names(CpuFlags::BMI2), (asm("bmi2"), "portable"));
        assert_eq!(names(avx2), (asm("bmi2"), "avx2"));
        assert_eq!(names(avx2 | CpuFlags::AVX512), (asm("bmi2"), "avx512"));
        assert_eq!(names(CpuFlags::all()), (asm("bmi2"), "vbmi"));
    } else if cfg!(target_arch = "aarch64") {
        assert_eq!(names(CpuFlags::NEON), (asm("asm"), "neon"));
        assert_eq!(names(CpuFlags::all()), (asm("asm"), "neon"));
    }
}
