//! Every rung against the portable functions, and those against the definition of codes.

#[cfg(mz_asm)]
mod assembly;

use super::super::Kernels;
use super::super::support::guard::Guarded;
use super::super::support::{Random, rungs};
use super::*;
use crate::kernel::CpuFlags;
use crate::kernel::portable::{F16_INFINITY, F16_MAGNITUDE, Q8_ABSMAX_FORM, Q8_STEP_FORM_FROM};
use std::vec::Vec;

/// Channels and tokens: every number of channels, and every number of tokens up to some blocks.
fn shapes() -> impl Iterator<Item = (usize, usize)> {
    let all = (8..=CHANNELS_MAX).step_by(8).flat_map(|channels| [(channels, 3), (channels, 17)]);
    let tokens = (1..=34).flat_map(|tokens| [(32, tokens), (64, tokens), (104, tokens)]);
    all.chain(tokens).chain([(128, 256), (64, 255)])
}

/// Values of random spans, and what codes their channels; those that are not stable have no codes.
struct Input {
    values: Vec<u16>,
    spans: Vec<Kv4Span>,
    ends: Vec<[u16; 2]>,
    widths: Vec<u8>,
}

impl Input {
    /// Widths are chosen at random from these.
    fn random(random: &mut Random, (channels, tokens): (usize, usize), widths: &[u8]) -> Input {
        let mut values = std::vec![0; channels * tokens];
        for channel in 0..channels {
            let base = random.below(28) as u16;
            for value in values[channel..].iter_mut().step_by(channels) {
                *value = random.u16() & 0x83FF | (base + random.u16() % 4) << 10;
            }
        }
        let mut spans = std::vec![Kv4Span::default(); channels];
        spread(&values, &mut spans);
        let ends = spans.iter().map(|span| [span.min, span.max]).collect();
        let width = |span: &Kv4Span| {
            let width = widths[random.below(widths.len() as u64) as usize];
            match (Kv4Row { min: span.min, max: span.max, width }).is_stable() {
                true => width,
                false => 16,
            }
        };
        let widths = spans.iter().map(width).collect();
        Input { values, spans, ends, widths }
    }

    fn channels(&self) -> Kv4Channels<'_> {
        Kv4Channels { ends: &self.ends, widths: &self.widths }
    }

    /// Values that have codes come back within 0.91 of the distance between these.
    fn check_errors(&self, back: &[u16]) {
        for (place, (&value, &back)) in self.values.iter().zip(back).enumerate() {
            let row = self.channels().row(place % self.ends.len());
            let error = f64::from(f32_from_f16(value)) - f64::from(f32_from_f16(back));
            assert!(row.top() == 0 || error.abs() <= 0.91 * f64::from(row.step()), "{row:?}");
        }
    }

    fn upper_bytes(&self) -> usize {
        let tokens = self.values.len() / self.ends.len();
        tokens.div_ceil(KV4_BLOCK) * self.channels().upper_bytes()
    }
}

/// A code's value by the definition, in double precision.
fn value_of(row: &Kv4Row, code: u8) -> u16 {
    let (min, max) = (f64::from(f32_from_f16(row.min)), f64::from(f32_from_f16(row.max)));
    let exact = f64::from(code) * f64::from(row.step()) + min;
    // Between F32 values the nearest odd one keeps the later rounding right.
    let near = exact as f32;
    let odd = match f64::from(near) == exact || near.to_bits() & 1 == 1 {
        true => near,
        false if (f64::from(near) < exact) == (near > 0.0) => f32::from_bits(near.to_bits() + 1),
        false => f32::from_bits(near.to_bits() - 1),
    };
    if exact < max { f16_from_f32(odd) } else { row.max }
}

#[test]
fn flags_choose_the_rung() {
    let names = |flags| {
        let table = Kernels::select(flags);
        let packing = [table.kv4_spread.isa, table.kv4_encode.isa, table.kv4_v_encode.isa];
        assert!(packing.iter().all(|isa| *isa == packing[0]));
        [packing[0], table.kv4_decode.isa, table.kv4_v_decode.isa, table.transpose.isa]
    };
    assert_eq!(names(CpuFlags::empty()), ["portable"; 4]);
    if cfg!(target_arch = "x86_64") {
        assert_eq!(names(CpuFlags::F16C), ["portable"; 4]);
        let both = CpuFlags::F16C | CpuFlags::AVX2;
        assert_eq!(names(both), ["avx2", "portable", "avx2", "avx2"]);
        assert_eq!(names(both | CpuFlags::FMA), ["avx2"; 4]);
        assert_eq!(names(CpuFlags::all()), ["avx2", "avx512", "avx512", "avx2"]);
    } else if cfg!(target_arch = "aarch64") {
        assert_eq!(names(CpuFlags::NEON), ["neon"; 4]);
        assert_eq!(names(CpuFlags::all()), ["neon", "fp16", "neon", "neon"]);
    }
}

#[test]
fn codes_of_k_are_as_documented() {
    let mut random = Random::new(91);
    for (channels, tokens) in [(40, 13), (64, 8), (128, 9), (72, 1)] {
        let input = Input::random(&mut random, (channels, tokens), &[0, 4, 5, 6, 16]);
        let nibbles: Vec<u8> = (0..channels * tokens / 2).map(|_| random.byte()).collect();
        let upper: Vec<u8> = (0..input.upper_bytes()).map(|_| random.byte()).collect();
        let mut values = std::vec![0; channels * tokens];
        decode(&input.channels(), &nibbles, &upper, &mut values);
        // Groups of 32, in them the channels of low halves, then those of high ones.
        let mut order: Vec<usize> = (0..channels).collect();
        order.sort_by_key(|channel| (channel / 32, channel / 4 % 2, *channel));
        let planes = [5, 6].map(|width| {
            let has = |channel: &usize| (width..=6).contains(&input.widths[*channel]);
            order.iter().copied().filter(has).collect::<Vec<usize>>()
        });
        let block_bytes = planes[0].len() + planes[1].len();
        for (place, &value) in values.iter().enumerate() {
            let (token, channel) = (place / channels, place % channels);
            let byte = nibbles[token * channels / 2 + channel / 8 * 4 + channel % 4];
            let mut code = if channel % 8 < 4 { byte & 15 } else { byte >> 4 };
            for (plane, start) in [(0, 0), (1, planes[0].len())] {
                if let Some(at) = planes[plane].iter().position(|&other| other == channel) {
                    let byte = upper[token / 8 * block_bytes + start + at];
                    code |= (byte << (token % 8) >> 7) << (4 + plane);
                }
            }
            let row = input.channels().row(channel);
            let expected = if row.top() == 0 { row.min } else { value_of(&row, code) };
            assert_eq!(value, expected, "{channels} {token} {channel} {row:?}");
        }
    }
}

#[test]
fn steps_reach_the_greatest_value_and_no_further_than_needed() {
    let mut random = Random::new(95);
    for _ in 0..100_000 {
        let mut span = [Kv4Span::default(); 8];
        let base = random.below(28) as u16;
        let values: Vec<u16> =
            (0..16).map(|_| random.u16() & 0x83FF | (base + random.u16() % 4) << 10).collect();
        spread(&values, &mut span);
        let Kv4Span { min, max, is_finite } = span[0];
        let row = Kv4Row { min, max, width: 4 + random.below(3) as u8 };
        if !is_finite || min == max || !row.is_stable() {
            continue;
        }
        let (step, top) = (row.step(), f64::from(row.top()));
        let span = f64::from(f32_from_f16(max)) - f64::from(f32_from_f16(min));
        assert!(f64::from(step) * top >= span * (1.0 - 1e-7), "{row:?}");
        let places = 2f64.powi(i32::from(row.width) - 10);
        assert!(f64::from(step) * top <= span * (1.0 + 1.001 * places), "{row:?}");
        assert_eq!(value_of(&row, row.top()), max, "{row:?}");
        // Products with codes are F16 values.
        for code in 0..=row.top() {
            let product = f32::from(code) * step;
            let is_half = f32_from_f16(f16_from_f32(product)) == product || product > 65504.0;
            assert!(is_half, "{row:?} {code}");
        }
    }
}

#[test]
fn k_equals_portable_at_every_shape_between_guard_pages() {
    let rungs = rungs();
    let mut random = Random::new(92);
    let mut memory: [Guarded; 3] = core::array::from_fn(|_| Guarded::new(2 * 128 * 256));
    for (shape, widths) in shapes()
        .flat_map(|shape| [&[0, 4, 5, 6, 16][..], &[4], &[5], &[6]].map(|widths| (shape, widths)))
    {
        let mut input = Input::random(&mut random, shape, widths);
        // Not finite, where there are no codes.
        let without = input.widths.iter().position(|&width| width == 16);
        if let Some(channel) = without {
            (input.values[channel], input.ends[channel]) = (0x7E00, [0; 2]);
            input.spans[channel].is_finite = false;
        }
        let (length, bytes) = (input.values.len(), input.upper_bytes());
        let channels = input.channels();
        let mut expected = (std::vec![0; length / 2], std::vec![0; bytes], std::vec![0; length]);
        encode(&input.values, &channels, &mut expected.0, &mut expected.1);
        decode(&channels, &expected.0, &expected.1, &mut expected.2);
        input.check_errors(&expected.2);
        let noise: [Vec<u8>; 2] =
            [length / 2, bytes].map(|bytes| (0..bytes).map(|_| random.byte()).collect());
        let mut from_noise = std::vec![0; length];
        decode(&channels, &noise[0], &noise[1], &mut from_noise);
        for ((name, kernels), at_end) in rungs.iter().flat_map(|rung| [(rung, false), (rung, true)])
        {
            let what = (name, shape, widths);
            let [values, nibbles, upper] = &mut memory;
            let values = values.at::<u16>(at_end, length);
            let (nibbles, upper) = (nibbles.at(at_end, length / 2), upper.at(at_end, bytes));
            values.copy_from_slice(&input.values);
            let mut spans = std::vec![Kv4Span::default(); shape.0];
            kernels.kv4_spread.call(values, &mut spans);
            for (channel, (span, expected)) in spans.iter().zip(&input.spans).enumerate() {
                assert_eq!(span.is_finite, expected.is_finite, "{what:?} {channel}");
                assert!(span == expected || !span.is_finite, "{what:?} {channel}");
            }
            nibbles.fill(0xAA);
            upper.fill(0xAA);
            kernels.kv4_encode.call(values, &channels, nibbles, upper);
            assert!(nibbles == expected.0 && upper == expected.1, "{what:?}");
            kernels.kv4_decode.call(&channels, nibbles, upper, values);
            assert_eq!(values, expected.2, "{what:?}");
            nibbles.copy_from_slice(&noise[0]);
            upper.copy_from_slice(&noise[1]);
            kernels.kv4_decode.call(&channels, nibbles, upper, values);
            assert_eq!(values, from_noise, "{what:?}");
        }
    }
}

/// Every code of rows of every width, at all magnitudes: rungs that round in F16 and in F32 agree.
#[test]
fn every_code_of_stable_rows_equals_the_definition() {
    let rungs = rungs();
    let mut random = Random::new(96);
    for round in 0..3000 {
        let width = 4 + (round % 3) as u8;
        let mut ends = [[0; 2]; 32];
        for ends in &mut ends {
            loop {
                let far = random.u16() % F16_INFINITY;
                let reach = 1 << random.below(15);
                let near = far.saturating_sub(random.below(reach) as u16);
                let (far, near) = match random.below(3) {
                    0 => (far, near),
                    1 => (near | 0x8000, far | 0x8000),
                    _ => (far, near | 0x8000),
                };
                let row = Kv4Row { min: near, max: far, width };
                if near != 0x8000 && far != 0x8000 && row.is_stable() {
                    *ends = [near, far];
                    break;
                }
            }
        }
        let channels = Kv4Channels { ends: &ends, widths: &[width; 32] };
        // Token `t` has code `t` in all channels.
        let tokens = 1usize << width;
        let nibbles: Vec<u8> = (0..tokens * 16).map(|at| (at / 16 % 16 * 17) as u8).collect();
        let mut upper = Vec::new();
        for block in 0..tokens / 8 {
            for bit in 4..width {
                upper.extend([if (block * 8) >> bit & 1 == 1 { 0xFF } else { 0 }; 32]);
            }
        }
        let mut values = std::vec![0; tokens * 32];
        for (name, kernels) in &rungs {
            kernels.kv4_decode.call(&channels, &nibbles, &upper, &mut values);
            for (place, &value) in values.iter().enumerate() {
                let row = channels.row(place % 32);
                assert_eq!(value, value_of(&row, (place / 32) as u8), "{name} {row:?} {place}");
            }
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
fn spreads_see_every_end_at_every_place() {
    const CHANNELS: usize = 104;
    for (name, kernels) in &rungs() {
        let mut spans = [Kv4Span::default(); CHANNELS];
        let mut spread = |values: &[u16], channel: usize| {
            kernels.kv4_spread.call(values, &mut spans);
            assert!(spans.iter().enumerate().all(|(at, span)| at == channel || span.is_finite));
            spans[channel]
        };
        for (at, special) in (0..3 * CHANNELS)
            .flat_map(|at| [0x7C00, 0xFC00, 0x7E01, 0xFFFF].map(|special| (at, special)))
        {
            let (mut values, channel) = ([0x3C00; 3 * CHANNELS], at % CHANNELS);
            values[at] = special;
            assert!(!spread(&values, channel).is_finite, "{name} {special:#06x} {at}");
            values[at] = 0x7BFF;
            values[(at + CHANNELS) % (3 * CHANNELS)] = 0xFBFF;
            let expected = Kv4Span { min: 0xFBFF, max: 0x7BFF, is_finite: true };
            assert_eq!(spread(&values, channel), expected, "{name} {at}");
            values.fill(0x8000);
            values[at] = 0x8001;
            let expected = Kv4Span { min: 0x8001, max: 0, is_finite: true };
            assert_eq!(spread(&values, channel), expected, "{name} {at}");
        }
    }
}

#[test]
fn second_cycle_changes_nothing_for_any_absmax_and_code_of_v() {
    for absmax in 0..F16_INFINITY {
        let word = KV4_V_SCALING.word(absmax);
        assert_eq!(word & Q8_ABSMAX_FORM == 0, absmax >= Q8_STEP_FORM_FROM);
        assert!(word & Q8_ABSMAX_FORM != 0 || word <= KV4_V_STEP_MAX, "{absmax:#06x}");
        let step = kv4_step(word);
        let code = |half: u16| nearest(f32_from_f16(half) * (1.0 / step)).cast_signed();
        let top = code(absmax);
        assert!(top == 7 || u16::from(top.cast_unsigned()) == absmax, "{absmax:#06x}");
        let value = |code: i8| f16_from_f32(f32::from(code) * step);
        assert_eq!(KV4_V_SCALING.word(value(top)), word, "{absmax:#06x}");
        for number in -top..=top {
            assert!(value(number) & F16_MAGNITUDE < F16_INFINITY);
            assert_eq!(code(value(number)), number, "{absmax:#06x}");
        }
    }
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

/// Eight channels with codes of 5 bits.
const FIVE: Kv4Channels<'_> = Kv4Channels { ends: &[[0, 0x3C00]; 8], widths: &[5; 8] };

#[test]
#[should_panic]
fn a_missing_block_is_a_programmer_error() {
    Kernels::portable().kv4_encode.call(&[0; 72], &FIVE, &mut [0; 36], &mut [0; 8]);
}

#[test]
#[should_panic]
fn a_missing_byte_of_a_block_is_a_programmer_error() {
    Kernels::portable().kv4_decode.call(&FIVE, &[0; 4], &[0; 7], &mut [0; 8]);
}

#[test]
#[should_panic]
fn half_a_token_is_a_programmer_error() {
    Kernels::portable().kv4_decode.call(&FIVE, &[0; 6], &[0; 16], &mut [0; 12]);
}
