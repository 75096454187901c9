//! Every rung against the portable rows, and those against the definition of the planes.

use super::super::Kernels;
use super::super::support::guard::Guarded;
use super::super::support::{Random, rungs};
use super::*;
use crate::kernel::CpuFlags;
use crate::kernel::portable::{Q8_ABSMAX_FORM, Q8_STEP_FORM_FROM};
use std::vec::Vec;

/// Lengths of rows: every one up to two chunks, then some.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=260).chain([287, 288, 289, 512])
}

/// Values of a random span and the row that codes them. Some rows are not stable.
fn random_row(random: &mut Random, length: usize) -> (Kv4Row, Vec<u16>) {
    let base = random.below(28) as u16;
    let mut values: Vec<u16> = (0..length.max(2))
        .map(|_| random.u16() & 0x83FF | (base + random.u16() % 4) << 10)
        .collect();
    // The ends differ.
    (values[0], values[1]) = (0x0400 | base << 10, 0x8400 | base << 10);
    let places = values.len() as u64;
    values.rotate_left(random.below(places) as usize);
    let span = spread(&values);
    assert!(span.is_finite);
    let width = 4 + random.below(3) as u8;
    values.truncate(length);
    (Kv4Row { min: span.min, max: span.max, width }, values)
}

#[test]
fn flags_choose_the_rung() {
    let names = |flags| {
        let table = Kernels::select(flags);
        let rows = [table.kv4_spread.isa, table.kv4_encode.isa, table.kv4_v_encode.isa];
        assert!(rows.iter().all(|isa| *isa == rows[0]));
        [rows[0], table.kv4_decode.isa, table.kv4_v_decode.isa, table.transpose.isa]
    };
    assert_eq!(names(CpuFlags::empty()), ["portable"; 4]);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(names(CpuFlags::F16C), ["portable"; 4]);
        let both = CpuFlags::F16C | CpuFlags::AVX2;
        assert_eq!(names(both), ["avx2"; 4]);
        assert_eq!(names(CpuFlags::all()), ["avx2", "avx512", "avx512", "avx2"]);
    } else if cfg!(target_arch = "aarch64") {
        assert_eq!(names(CpuFlags::NEON), ["neon"; 4]);
        assert_eq!(names(CpuFlags::all()), ["neon"; 4]);
    }
}

#[test]
fn planes_are_as_documented() {
    let mut random = Random::new(91);
    for width in 4..=6u8 {
        let row = Kv4Row { min: 0, max: 0x3C00, width };
        let blocks = 3;
        let codes: Vec<u8> = (0..row.code_bytes(blocks)).map(|_| random.byte()).collect();
        let mut values = std::vec![0; 32 * blocks];
        decode(&row, &codes, &mut values);
        for (token, &value) in values.iter().enumerate() {
            let (block, place) = (token / 32, token % 32);
            let byte = codes[16 * block + place % 16];
            let low = if place < 16 { byte & 15 } else { byte >> 4 };
            let upper = &codes[16 * blocks..];
            let high = match width {
                5 => upper[4 * block + place / 8] >> (place % 8) & 1,
                6 => upper[8 * block + place % 8] >> (2 * (place / 8)) & 3,
                _ => 0,
            };
            let code = f32::from(low + 16 * high);
            let top = f32::from(row.top());
            let expected = if code == top { 0x3C00 } else { f16_from_f32(code * (1.0 / top)) };
            assert_eq!(value, expected, "{width} {token}");
        }
    }
}

#[test]
fn rows_of_k_equal_portable_at_every_length_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(92);
    let mut memory: [Guarded; 2] = core::array::from_fn(|_| Guarded::new(1024));
    for (length, _) in lengths().flat_map(|length| [(length, 0), (length, 1), (length, 2)]) {
        let (row, input) = random_row(&mut random, length);
        let bytes = row.code_bytes(length.div_ceil(KV4_BLOCK));
        let mut expected = (std::vec![0; bytes], std::vec![0; length], std::vec![0; length]);
        encode(&input, &row, &mut expected.0);
        decode(&row, &expected.0, &mut expected.1);
        let noise: Vec<u8> = (0..bytes).map(|_| random.byte()).collect();
        decode(&row, &noise, &mut expected.2);
        let span = spread(&input);
        for ((name, kernels), at_end) in rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
        {
            let what = (name, row, length);
            let [values, codes] = &mut memory;
            let (values, codes) = (values.at(at_end, length), codes.at(at_end, bytes));
            values.copy_from_slice(&input);
            assert_eq!(kernels.kv4_spread.call(values), span, "{what:?}");
            codes.fill(0xAA);
            kernels.kv4_encode.call(values, &row, codes);
            assert_eq!(codes, expected.0, "{what:?}");
            kernels.kv4_decode.call(&row, codes, values);
            assert_eq!(values, expected.1, "{what:?}");
            codes.copy_from_slice(&noise);
            kernels.kv4_decode.call(&row, codes, values);
            assert_eq!(values, expected.2, "{what:?}");
        }
    }
}

#[test]
fn codes_of_v_are_as_documented() {
    let scales = [0x3C00, 0x4000];
    let mut values = [0; 2 * 6];
    v_decode(&scales, &[0x10, 0x72, 0xFE, 0x98, 0, 0x0F], 6, &mut values);
    let expected = [0.0, 1.0, 2.0, 7.0, -2.0, -1.0, -16.0, -14.0, 0.0, 0.0, -2.0, 0.0];
    assert_eq!(values.map(f32_from_f16), expected);
}

/// Rows of V with even lengths, the words of most of them among those that packing writes.
fn random_v_rows(random: &mut Random, rows: usize, row_values: usize) -> Vec<u16> {
    let mut values = Vec::new();
    for _ in 0..rows {
        // Some rows have a step, others the second form.
        let mask = if random.below(2) == 0 { 0xBBFF } else { 0x9FFF };
        values.extend((0..row_values).map(|_| random.u16() & mask));
    }
    values
}

#[test]
fn rows_of_v_equal_portable_at_every_length_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(93);
    let mut memory: [Guarded; 3] = core::array::from_fn(|_| Guarded::new(4 * 2 * 520));
    let shapes = (2..=260).step_by(2).map(|length| (1 + length / 2 % 3, length));
    for (rows, row_values) in shapes.chain([(1, 512), (2, 520)]) {
        let length = rows * row_values;
        let input = random_v_rows(&mut random, rows, row_values);
        let noise: Vec<u8> = (0..length / 2).map(|_| random.byte()).collect();
        let mut expected = (std::vec![0; rows], std::vec![0; length / 2], std::vec![0; length]);
        assert!(v_encode(&input, row_values, &mut expected.0, &mut expected.1));
        // Words that packing never writes, too.
        let mut words = expected.0.clone();
        words[0] = if row_values % 4 == 0 { random.u16() & 0xBFFF } else { words[0] };
        v_decode(&words, &noise, row_values, &mut expected.2);
        for ((name, kernels), at_end) in rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
        {
            let [values, codes, scales] = &mut memory;
            let (values, codes) = (values.at(at_end, length), codes.at(at_end, length / 2));
            let scales = scales.at(at_end, rows);
            values.copy_from_slice(&input);
            codes.fill(0xAA);
            scales.fill(0xAAAA);
            assert!(kernels.kv4_v_encode.call(values, row_values, scales, codes));
            assert_eq!(scales, expected.0, "{name} {rows} {row_values}");
            assert_eq!(codes, expected.1, "{name} {rows} {row_values}");
            codes.copy_from_slice(&noise);
            scales.copy_from_slice(&words);
            kernels.kv4_v_decode.call(scales, codes, row_values, values);
            assert_eq!(values, expected.2, "{name} {rows} {row_values}");
        }
    }
}

#[test]
fn every_step_and_nibble_of_v_equals_portable() {
    let codes: [u8; 16] = core::array::from_fn(|at| (0x10 + 0x22 * at % 256) as u8);
    for (name, kernels) in &rungs() {
        for word in 0..=u16::MAX {
            let (mut expected, mut values) = ([0; 32], [0; 32]);
            v_decode(&[word], &codes, 32, &mut expected);
            kernels.kv4_v_decode.call(&[word], &codes, 32, &mut values);
            let agrees = |(&a, &b): (&u16, &u16)| a == b || (a & b & 0x7C00) == 0x7C00;
            assert!(values.iter().zip(&expected).all(agrees), "{name} {word:#06x}");
        }
    }
}

#[test]
fn a_value_of_v_that_is_not_finite_is_seen_at_every_place() {
    for (name, kernels) in &rungs() {
        for (at, special) in
            (0..3 * 70).flat_map(|at| [0x7C00, 0xFC00, 0x7E01, 0xFFFF].map(|s| (at, s)))
        {
            let mut values = [0x3C00; 3 * 70];
            values[at] = special;
            let is_coded = kernels.kv4_v_encode.call(&values, 70, &mut [0; 3], &mut [0; 105]);
            assert!(!is_coded, "{name} {special:#06x} {at}");
        }
    }
}

#[test]
#[cfg(mz_asm)]
fn decoding_keeps_the_calling_convention() {
    use crate::kernel::support::available;
    use crate::kernel::support::checked_call::{Outcome, checked_call};
    #[cfg(target_arch = "x86_64")]
    let (function, needed) =
        (crate::kernel::arch::kv4::mz_kv4_decode4_avx2 as *const (), CpuFlags::AVX2);
    #[cfg(target_arch = "aarch64")]
    let (function, needed) =
        (crate::kernel::arch::kv4::mz_kv4_decode4_neon as *const (), CpuFlags::NEON);
    if !available().contains(needed) {
        return;
    }
    let mut random = Random::new(94);
    let mut memory: [Guarded; 3] = core::array::from_fn(|_| Guarded::new(64 * 20));
    for (blocks, at_end) in (0..20).flat_map(|blocks| [(blocks, false), (blocks, true)]) {
        let [table, codes, values] = &mut memory;
        let table = table.at::<u16>(at_end, 16);
        let codes = codes.at::<u8>(at_end, KV4_NIBBLE_BYTES * blocks);
        let values = values.at::<u16>(at_end, KV4_BLOCK * blocks);
        table.fill_with(|| random.u16());
        codes.fill_with(|| random.byte());
        let pointers = [table.as_ptr() as u64, codes.as_ptr() as u64, values.as_mut_ptr() as u64];
        let arguments = [pointers[0], pointers[1], pointers[2], blocks as u64, 0, 0];
        // SAFETY: a table of 16 entries, and codes and room for that many blocks; the CPU has what
        // the function needs.
        let Outcome { trashed, .. } = unsafe { checked_call(function, arguments) };
        assert_eq!(trashed, 0, "{blocks} blocks");
        for (token, &value) in values.iter().enumerate() {
            let byte = codes[16 * (token / 32) + token % 16];
            let code = if token % 32 < 16 { byte & 15 } else { byte >> 4 };
            assert_eq!(value, table[usize::from(code)], "{blocks} blocks, token {token}");
        }
    }
}

#[test]
fn spreads_see_every_end_at_every_place() {
    let rungs = rungs();
    for (name, kernels) in &rungs {
        for (at, special) in
            (0..67).flat_map(|at| [0x7C00, 0xFC00, 0x7E01, 0xFFFF].map(|s| (at, s)))
        {
            let mut values = [0x3C00; 67];
            values[at] = special;
            assert!(!kernels.kv4_spread.call(&values).is_finite, "{name} {special:#06x} {at}");
            values[at] = 0x7BFF;
            values[(at + 20) % 67] = 0xFBFF;
            let expected = Kv4Span { min: 0xFBFF, max: 0x7BFF, is_finite: true };
            assert_eq!(kernels.kv4_spread.call(&values), expected, "{name} {at}");
            values.fill(0x8000);
            values[at] = 0x8001;
            let expected = Kv4Span { min: 0x8001, max: 0, is_finite: true };
            assert_eq!(kernels.kv4_spread.call(&values), expected, "{name} {at}");
        }
    }
}

#[test]
fn second_cycle_changes_nothing_for_any_absmax_and_code_of_v() {
    for absmax in 0..F16_INFINITY {
        let word = kv4_scale_word(absmax);
        assert_eq!(word & Q8_ABSMAX_FORM == 0, absmax >= Q8_STEP_FORM_FROM);
        assert!(word & Q8_ABSMAX_FORM != 0 || word <= KV4_V_STEP_MAX, "{absmax:#06x}");
        let step = kv4_step(word);
        let code = |half: u16| nearest(f32_from_f16(half) * (1.0 / step)).cast_signed();
        let top = code(absmax);
        assert!(top == 7 || u16::from(top.cast_unsigned()) == absmax, "{absmax:#06x}");
        let value = |code: i8| f16_from_f32(f32::from(code) * step);
        assert_eq!(kv4_scale_word(value(top)), word, "{absmax:#06x}");
        for number in -top..=top {
            assert!(value(number) & F16_MAGNITUDE < F16_INFINITY);
            assert_eq!(code(value(number)), number, "{absmax:#06x}");
        }
    }
}

#[test]
#[should_panic]
fn a_width_that_there_is_not_is_a_programmer_error() {
    let row = Kv4Row { min: 0, max: 0x3C00, width: 7 };
    Kernels::portable().kv4_decode.call(&row, &[0; 16], &mut [0; 32]);
}

#[test]
#[should_panic]
fn a_missing_scale_word_of_v_is_a_programmer_error() {
    Kernels::portable().kv4_v_decode.call(&[0x3C00], &[0; 16], 16, &mut [0; 32]);
}

#[test]
#[should_panic]
fn an_odd_row_of_v_is_a_programmer_error() {
    Kernels::portable().kv4_v_encode.call(&[0; 33 * 2], 33, &mut [0; 2], &mut [0; 33]);
}

#[test]
#[should_panic]
fn a_missing_block_is_a_programmer_error() {
    let row = Kv4Row { min: 0, max: 0x3C00, width: 4 };
    Kernels::portable().kv4_encode.call(&[0; 33], &row, &mut [0; 16]);
}
