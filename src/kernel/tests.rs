//! Every rung against the portable twin, and the portable functions against slow oracles that share
//! no code with them.

use super::portable::{
    F16_INFINITY, Q8_SCALING, Q8_STEP_FORM_FROM, Q8_STEP_MAX, f16_from_f32, f32_from_f16, q8_code,
    q8_step,
};
#[cfg(mz_asm)]
use super::support::available;
use super::support::guard::Guarded;
use super::support::{Random, rungs};
use super::{CpuFlags, Kernels, Matrix, Q8_GROUP, portable};
use std::vec::Vec;

#[test]
fn flags_choose_the_rung() {
    let names = |flags| {
        let table = Kernels::select(flags);
        assert_eq!(table.f16_to_f32.isa, table.f32_to_f16.isa);
        [table.crc32c.isa, table.f16_to_f32.isa, table.q8_pack.isa, table.q8_unpack.isa]
    };
    let asm = |isa| if cfg!(mz_asm) { isa } else { "portable" };
    assert_eq!(names(CpuFlags::empty()), ["portable"; 4]);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(names(CpuFlags::SSE42), ["portable"; 4]);
        let avx2 = CpuFlags::all() - CpuFlags::AVX512;
        assert_eq!(names(avx2), [asm("sse42"), "f16c", "avx2", "avx2"]);
        let avx512 = CpuFlags::all() - CpuFlags::VPCLMUL;
        assert_eq!(names(avx512), [asm("sse42"), "f16c", "avx512", "avx512"]);
        assert_eq!(names(CpuFlags::all()), ["vpclmul", "f16c", "avx512", "avx512"]);
        assert_eq!(names(CpuFlags::F16C), ["portable", "f16c", "portable", "portable"]);
    } else if cfg!(target_arch = "aarch64") {
        assert_eq!(names(CpuFlags::NEON), ["portable", "neon", "neon", "neon"]);
        assert_eq!(names(CpuFlags::all()), [asm("crc32"), "neon", "neon", "fp16"]);
    }
    let (name, mask) = CpuFlags::LADDER.last().unwrap();
    assert_eq!(*mask, CpuFlags::all(), "{name} is the highest rung");
}

#[test]
fn hwcap_bits_are_those_of_linux() {
    assert_eq!(CpuFlags::from_hwcap(0), CpuFlags::empty());
    // FP, ASIMD, AES, PMULL, SHA1, SHA2, CRC32: a Cortex-A53.
    let a53 = CpuFlags::NEON | CpuFlags::PMULL | CpuFlags::CRC32;
    assert_eq!(CpuFlags::from_hwcap(0xFB), a53);
    // And FPHP, ASIMDHP, ASIMDDP, of a Cortex-A55.
    let a55 = a53 | CpuFlags::FP16 | CpuFlags::DOTPROD;
    assert_eq!(CpuFlags::from_hwcap(0xFB | 1 << 9 | 1 << 10 | 1 << 20), a55);
}

/// What the standard library found out by itself.
#[test]
#[cfg(target_arch = "x86_64")]
fn detection_agrees_with_the_standard_library() {
    let flags = CpuFlags::detect();
    assert_eq!(flags.contains(CpuFlags::SSE42), std::is_x86_feature_detected!("sse4.2"));
    assert_eq!(flags.contains(CpuFlags::PCLMUL), std::is_x86_feature_detected!("pclmulqdq"));
    assert_eq!(flags.contains(CpuFlags::F16C), std::is_x86_feature_detected!("f16c"));
    assert_eq!(flags.contains(CpuFlags::AVX2), std::is_x86_feature_detected!("avx2"));
    assert_eq!(flags.contains(CpuFlags::FMA), std::is_x86_feature_detected!("fma"));
    assert_eq!(flags.contains(CpuFlags::BMI2), std::is_x86_feature_detected!("bmi2"));
    let avx512 = std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512dq")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512vl");
    assert_eq!(flags.contains(CpuFlags::AVX512), avx512);
    let vbmi = avx512 && std::is_x86_feature_detected!("avx512vbmi");
    assert_eq!(flags.contains(CpuFlags::AVX512_VBMI), vbmi);
    let vpclmul = avx512 && std::is_x86_feature_detected!("vpclmulqdq");
    assert_eq!(flags.contains(CpuFlags::VPCLMUL), vpclmul);
}

/// One bit at a time, from the definition.
fn crc32c_slow(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        for bit in 0..8 {
            let top = (crc ^ u32::from(byte >> bit)) & 1;
            crc = crc >> 1 ^ if top == 1 { 0x82F6_3B78 } else { 0 };
        }
    }
    !crc
}

/// Lengths up to 600, and some around the blocks of the hand-written kernels.
fn crc_lengths() -> impl Iterator<Item = usize> {
    (0..=600).chain([3071, 3072, 3073, 3079, 3080, 4000, 6143, 6144, 6145, 9215, 9216, 10_000])
}

#[test]
fn crc32c_of_known_strings() {
    let rungs = rungs();
    // RFC 3720, appendix B.4, and the check value of the Castagnoli polynomial.
    let ascending: Vec<u8> = (0..32).collect();
    for (name, kernels) in &rungs {
        let crc = |bytes: &[u8]| kernels.crc32c.call(0, bytes);
        assert_eq!(crc(b""), 0, "{name}");
        assert_eq!(crc(b"123456789"), 0xE306_9283, "{name}");
        assert_eq!(crc(&[0; 32]), 0x8A91_36AA, "{name}");
        assert_eq!(crc(&[0xFF; 32]), 0x62A8_AB43, "{name}");
        assert_eq!(crc(&ascending), 0x46DD_794E, "{name}");
    }
}

#[test]
fn crc32c_of_every_rung_at_every_length_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(1);
    let mut memory = Guarded::new(10_000);
    memory.first::<u8>(3 * 4096).fill_with(|| random.byte());
    for length in crc_lengths() {
        let state = random.u32();
        let first = memory.first::<u8>(length).to_vec();
        let last = memory.last::<u8>(length).to_vec();
        assert_eq!(portable::crc32c(0, &first), crc32c_slow(&first), "{length} bytes");
        let expected = [portable::crc32c(state, &first), portable::crc32c(state, &last)];
        for (name, kernels) in &rungs {
            let at_start = kernels.crc32c.call(state, memory.first::<u8>(length));
            let at_end = kernels.crc32c.call(state, memory.last::<u8>(length));
            assert_eq!([at_start, at_end], expected, "{name}, {length} bytes");
        }
    }
}

#[test]
fn crc32c_of_every_rung_at_every_alignment_and_in_pieces() {
    let rungs = rungs();
    let mut random = Random::new(2);
    let bytes: Vec<u8> = (0..8192).map(|_| random.byte()).collect();
    for (name, kernels) in &rungs {
        for offset in 0..64 {
            for length in [0, 1, 7, 8, 9, 63, 600, 3072, 6200] {
                let piece = &bytes[offset..offset + length];
                let expected = portable::crc32c(0, piece);
                assert_eq!(kernels.crc32c.call(0, piece), expected, "{name} {offset} {length}");
                let (head, tail) = piece.split_at(length / 3);
                let joined = kernels.crc32c.call(kernels.crc32c.call(0, head), tail);
                assert_eq!(joined, expected, "{name} {offset} {length}, in two pieces");
            }
        }
    }
}

#[test]
#[cfg(mz_asm)]
fn crc32c_keeps_the_calling_convention() {
    use super::support::checked_call::{Outcome, checked_call};
    #[cfg(target_arch = "x86_64")]
    let (function, needed) =
        (super::arch::mz_crc32c_sse42 as *const (), CpuFlags::SSE42 | CpuFlags::PCLMUL);
    #[cfg(target_arch = "aarch64")]
    let (function, needed) =
        (super::arch::mz_crc32c_crc as *const (), CpuFlags::CRC32 | CpuFlags::PMULL);
    if !available().contains(needed) {
        return;
    }
    let mut random = Random::new(3);
    let mut memory = Guarded::new(10_000);
    for length in crc_lengths() {
        let state = random.u32();
        let bytes = memory.last::<u8>(length);
        bytes.fill_with(|| random.byte());
        let dirty = 0xDEAD_BEEF << 32 | u64::from(state);
        let arguments = [dirty, bytes.as_ptr() as u64, length as u64, 0, 0, 0];
        // SAFETY: the arguments are a state, and pointer and length of one slice; the CPU has what
        // the function needs.
        let Outcome { result, trashed } = unsafe { checked_call(function, arguments) };
        assert_eq!(trashed, 0, "{length} bytes");
        assert_eq!(result as u32, portable::crc32c(state, bytes), "{length} bytes");
    }
}

/// The value of a finite F16, from the format's definition.
fn f16_value(half: u16) -> f64 {
    let exponent = i32::from(half >> 10 & 31);
    let fraction = f64::from(half & 0x3FF);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if half >> 15 == 1 { -magnitude } else { magnitude }
}

/// Rounds by search among all magnitudes; the next power of two stands in for infinity.
fn f16_slow(single: f32) -> u16 {
    let sign = if single.is_sign_negative() { 0x8000 } else { 0 };
    if single.is_nan() {
        return sign | 0x7E00 | (single.to_bits() >> 13 & 0x3FF) as u16;
    }
    let magnitude = f64::from(single.abs());
    let (mut low, mut high) = (0, F16_INFINITY);
    if magnitude >= f16_value(high) {
        return sign | high;
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if f16_value(middle) <= magnitude { low = middle } else { high = middle }
    }
    let half_way = (f16_value(low) + f16_value(high)) / 2.0;
    let up = magnitude > half_way || (magnitude == half_way && low % 2 == 1);
    sign | if up { high } else { low }
}

#[test]
fn f16_to_f32_of_all_inputs() {
    let rungs = rungs();
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for (name, kernels) in &rungs {
        let mut singles = std::vec![0f32; all.len()];
        kernels.f16_to_f32.call(&all, &mut singles);
        for (&half, single) in all.iter().zip(singles) {
            let sign = u32::from(half >> 15) << 31;
            let expected = match half & 0x7FFF {
                F16_INFINITY => sign | 0x7F80_0000,
                0x7C01.. => sign | 0x7FC0_0000 | u32::from(half & 0x3FF) << 13,
                _ => (f16_value(half) as f32).to_bits(),
            };
            assert_eq!(single.to_bits(), expected, "{name} {half:#06x}");
        }
    }
}

#[test]
fn f32_to_f16_at_all_ties_and_limits_and_of_random_bits() {
    let rungs = rungs();
    let mut singles = Vec::new();
    for half in 0..F16_INFINITY {
        let value = f32_from_f16(half);
        // All bits between two neighbours' midpoint and its neighbours, the midpoint included.
        let middle = ((f16_value(half) + f16_value(half + 1)) / 2.0) as f32;
        singles.extend([value, value.next_down(), value.next_up()]);
        singles.extend([middle, middle.next_down(), middle.next_up()]);
    }
    for exponent in 0..256u32 {
        for fraction in [0, 1, 0x0FFF, 0x1000, 0x1001, 0x40_0000, 0x7F_EFFF, 0x7F_F000, 0x7F_FFFF] {
            singles.push(f32::from_bits(exponent << 23 | fraction));
        }
    }
    let mut random = Random::new(4);
    singles.extend((0..1_000_000).map(|_| f32::from_bits(random.u32())));
    singles.extend(singles.clone().iter().map(|single| -single));
    for (name, kernels) in &rungs {
        let mut halves = std::vec![0; singles.len()];
        kernels.f32_to_f16.call(&singles, &mut halves);
        for (single, half) in singles.iter().zip(halves) {
            assert_eq!(half, f16_slow(*single), "{name} {:#010x}", single.to_bits());
        }
    }
}

#[test]
fn f16_conversions_at_every_length_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(5);
    let (mut halves, mut singles) = (Guarded::new(2 * 600), Guarded::new(4 * 600));
    for length in 0..=600 {
        let input: Vec<u16> = (0..length).map(|_| random.u16()).collect();
        let mut expected = std::vec![0f32; length];
        portable::f16_to_f32(&input, &mut expected);
        for (name, kernels) in &rungs {
            halves.last(length).copy_from_slice(&input);
            kernels.f16_to_f32.call(halves.last(length), singles.last(length));
            assert_eq!(bits(singles.last(length)), bits(&expected), "{name} {length}");
            halves.first(length).copy_from_slice(&input);
            kernels.f16_to_f32.call(halves.first(length), singles.first(length));
            assert_eq!(bits(singles.first(length)), bits(&expected), "{name} {length}");
        }

        let input: Vec<f32> = (0..length).map(|_| f32::from_bits(random.u32() >> 2)).collect();
        let mut expected = std::vec![0u16; length];
        portable::f32_to_f16(&input, &mut expected);
        for (name, kernels) in &rungs {
            singles.last(length).copy_from_slice(&input);
            kernels.f32_to_f16.call(singles.last(length), halves.last(length));
            assert_eq!(halves.last::<u16>(length), &expected, "{name} {length}");
            singles.first(length).copy_from_slice(&input);
            kernels.f32_to_f16.call(singles.first(length), halves.first(length));
            assert_eq!(halves.first::<u16>(length), &expected, "{name} {length}");
        }
    }
}

fn bits(singles: &[f32]) -> Vec<u32> {
    singles.iter().map(|single| single.to_bits()).collect()
}

#[test]
fn q8_second_cycle_changes_nothing_for_any_absmax_and_code() {
    let mut step_forms = 0;
    for absmax in 0..F16_INFINITY {
        let word = Q8_SCALING.word(absmax);
        step_forms += usize::from(word & 0x8000 == 0);
        assert_eq!(word & 0x8000 == 0, absmax >= Q8_STEP_FORM_FROM);
        assert!(word & 0x8000 != 0 || word <= Q8_STEP_MAX, "{absmax:#06x}");
        let step = q8_step(word);
        let steps_per_one = 1.0 / step;
        // The greatest code is 127 unless the step is at its least, where codes are the bits.
        let top = q8_code(absmax, steps_per_one);
        let is_clamped = f16_value(absmax) < 127.0 * 2f64.powi(-24);
        assert_eq!(top, if is_clamped { absmax as i8 } else { 127 }, "{absmax:#06x}");
        assert_eq!(Q8_SCALING.word(f16_from_f32(f32::from(top) * step)), word, "{absmax:#06x}");
        for code in -top..=top {
            let value = f16_from_f32(f32::from(code) * step);
            assert_eq!(q8_code(value, steps_per_one), code, "{absmax:#06x}");
            assert!(f16_value(value).is_finite() && value != 0x8000);
        }
    }
    assert_eq!(step_forms, usize::from(F16_INFINITY - Q8_STEP_FORM_FROM));
}

#[test]
fn q8_error_is_below_0_57_steps_and_half_a_subnormal() {
    for absmax in (0..F16_INFINITY).step_by(97).chain([F16_INFINITY - 1]) {
        let step = q8_step(Q8_SCALING.word(absmax));
        for half in 0..=absmax {
            let code = q8_code(half, 1.0 / step);
            let back = f16_value(f16_from_f32(f32::from(code) * step));
            let error = (back - f16_value(half)).abs();
            let error_max = 0.57 * f64::from(step) + 2f64.powi(-25);
            assert!(error <= error_max, "{absmax:#06x} {half:#06x}");
        }
    }
}

#[test]
fn q8_rows_of_every_rung_equal_portable_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(6);
    let mut memory: [Guarded; 3] = core::array::from_fn(|_| Guarded::new(2 * 5 * 600));
    for row_values in (1..=260usize).chain([600]) {
        for rows in [0, 1, 2, 5] {
            let (length, groups) = (rows * row_values, rows * row_values.div_ceil(Q8_GROUP));
            let input: Vec<u16> = (0..length).map(|_| random.u16() & 0xBBFF).collect();
            let mut expected = (std::vec![0; groups], std::vec![0; length], std::vec![0; length]);
            let (scales, codes, back) = (&mut expected.0, &mut expected.1, &mut expected.2);
            assert!(portable::q8_pack(&input, row_values, scales, codes));
            portable::q8_unpack(scales, codes, row_values, back);
            for ((name, kernels), at_end) in
                rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
            {
                let what = (name, row_values, rows);
                let [values, scales, codes] = &mut memory;
                let values = values.at(at_end, length);
                let (scales, codes) = (scales.at(at_end, groups), codes.at(at_end, length));
                values.copy_from_slice(&input);
                assert!(kernels.q8_pack.call(values, row_values, scales, codes), "{what:?}");
                assert_eq!((&*scales, &*codes), (&*expected.0, &*expected.1), "{what:?}");
                values.fill(0xAAAA);
                kernels.q8_unpack.call(scales, codes, row_values, values);
                assert_eq!(values, expected.2, "{what:?}");
            }
        }
    }
}

#[test]
#[cfg(mz_asm)]
fn q8_unpack_keeps_the_calling_convention() {
    use super::support::checked_call::{Outcome, checked_call};
    #[cfg(target_arch = "x86_64")]
    let (function, needed) =
        (super::arch::mz_q8_unpack_avx2 as *const (), CpuFlags::AVX2 | CpuFlags::F16C);
    #[cfg(target_arch = "aarch64")]
    let (function, needed) =
        (super::arch::mz_q8_unpack_neon_fp16 as *const (), CpuFlags::NEON | CpuFlags::FP16);
    if !available().contains(needed) {
        return;
    }
    let mut random = Random::new(9);
    let mut memory: [Guarded; 3] = core::array::from_fn(|_| Guarded::new(2 * Q8_GROUP * 20));
    for (groups, at_end) in (0..20).flat_map(|groups| [(groups, false), (groups, true)]) {
        let [scales, codes, values] = &mut memory;
        let scales = scales.at::<u16>(at_end, groups);
        let codes = codes.at::<i8>(at_end, Q8_GROUP * groups);
        let values = values.at::<u16>(at_end, Q8_GROUP * groups);
        scales.fill_with(|| if random.below(8) == 0 { 0x9000 } else { random.u16() & 0x3FFF });
        codes.fill_with(|| random.byte().cast_signed());
        values.fill(0xAAAA);
        let pointers = [scales.as_ptr() as u64, codes.as_ptr() as u64, values.as_mut_ptr() as u64];
        let arguments = [pointers[0], pointers[1], pointers[2], groups as u64, 0, 0];
        // SAFETY: that many scale words, and codes and room for their groups; the CPU has what the
        // function needs.
        let Outcome { result, trashed } = unsafe { checked_call(function, arguments) };
        assert_eq!(trashed, 0, "{groups} groups");
        let mut done = groups;
        if cfg!(target_arch = "aarch64") {
            done = scales.iter().position(|&word| word >= 0x8000).unwrap_or(groups);
            assert_eq!(result as usize, done, "{groups} groups");
        }
        let mut expected = std::vec![0xAAAA; Q8_GROUP * groups];
        let (done_values, done_codes) = (&mut expected[..Q8_GROUP * done], Q8_GROUP * done);
        portable::q8_unpack(&scales[..done], &codes[..done_codes], Q8_GROUP, done_values);
        assert_eq!(values, expected, "{groups} groups, of which {done} are done");
    }
}

#[test]
fn q8_unpack_takes_any_scale_word_and_code() {
    let rungs = rungs();
    let mut random = Random::new(7);
    let codes: Vec<i8> = (0..=255u8).map(u8::cast_signed).collect();
    for (name, kernels) in &rungs {
        for word in 0..=u16::MAX {
            let scales = [word, random.u16(), word, 0];
            let (mut values, mut expected) = ([0; 256], [0; 256]);
            portable::q8_unpack(&scales, &codes, 256, &mut expected);
            kernels.q8_unpack.call(&scales, &codes, 256, &mut values);
            assert_eq!(values, expected, "{name} {word:#06x}");
        }
    }
}

#[test]
fn q8_pack_refuses_what_is_not_finite_wherever_it_stands() {
    let rungs = rungs();
    for (name, kernels) in &rungs {
        for special in [F16_INFINITY, 0xFC00, 0x7C01, 0x7E00, 0xFFFF] {
            for at in 0..160 {
                let mut values = [0x3C00; 160];
                values[at] = special;
                let (mut scales, mut codes) = ([0; 4], [0; 160]);
                let packed = kernels.q8_pack.call(&values, 80, &mut scales, &mut codes);
                assert!(!packed, "{name} {special:#06x} at {at}");
            }
        }
    }
}

#[test]
fn transposed_matrices_of_every_rung_and_size_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(8);
    let mut memory: [Guarded; 2] = core::array::from_fn(|_| Guarded::new(2 * 40 * 300));
    let sizes = (0..=20usize).flat_map(|rows| (0..=20usize).map(move |columns| (rows, columns)));
    for (rows, columns) in sizes.chain([(256, 32), (37, 256), (256, 33), (8, 300), (300, 8)]) {
        for gap in [0, 1, 5] {
            let (from_stride, to_stride) = (columns + gap, rows + 2 * gap);
            // No memory behind the last row but what it needs.
            let from_length = (rows * from_stride).saturating_sub(gap);
            let to_length = (columns * to_stride).saturating_sub(2 * gap);
            let input: Vec<u16> = (0..from_length).map(|_| random.u16()).collect();
            let mut expected = std::vec![0xAAAA; to_length];
            for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                expected[column * to_stride + row] = input[row * from_stride + column];
            }
            for ((name, kernels), at_end) in
                rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
            {
                let [from, to] = &mut memory;
                let (from, to) = (from.at(at_end, from_length), to.at(at_end, to_length));
                from.copy_from_slice(&input);
                to.fill(0xAAAA);
                let matrix = Matrix { rows, columns, from_stride, to_stride };
                kernels.transpose.call(&matrix, from, to);
                assert_eq!(to, expected, "{name} {rows} {columns} {gap}");
            }
        }
    }
}

#[test]
#[should_panic]
fn a_row_that_ends_outside_is_a_programmer_error() {
    let matrix = Matrix { rows: 2, columns: 3, from_stride: 3, to_stride: 2 };
    Kernels::portable().transpose.call(&matrix, &[0; 6], &mut [0; 5]);
}

#[test]
#[should_panic]
fn unequal_lengths_are_a_programmer_error() {
    Kernels::portable().f16_to_f32.call(&[0; 4], &mut [0.0; 3]);
}

#[test]
#[should_panic]
fn a_missing_scale_word_is_a_programmer_error() {
    Kernels::portable().q8_pack.call(&[0; 160], 80, &mut [0; 3], &mut [0; 160]);
}
