//! The kvh format: what it saves, that nothing drifts, its forms and refusals.

mod forged;

use super::*;
use crate::codec::Kvh;
use crate::error::Code;
use crate::kernel::huffman::TABLES;
use crate::kernel::portable::{f16_from_f32, f32_from_f16};

/// The same base step for all channels.
fn even_steps(geometry: &Geometry, step: f32) -> Vec<f32> {
    std::vec![step; usize::from(geometry.shape.kv_heads) * usize::from(geometry.shape.head_dim)]
}

fn with(steps: &[f32]) -> With<'_> {
    With { kernels: &KERNELS, steps: Some(LayerSteps { id: 77, k: steps }) }
}

/// Packs, unpacks and packs again, which must not change anything; returns both.
fn cycle(steps: &[f32], geometry: &Geometry, chunk: &[u16]) -> (Vec<u8>, Vec<u16>) {
    let packed = with(steps).pack(&Kvh, geometry, chunk);
    let unpacked = with(steps).unpack(&Kvh, geometry, &packed);
    let again = with(steps).pack(&Kvh, geometry, &unpacked);
    assert!(packed == again, "{geometry:?}: packing again gives other bytes");
    let mut rest = unpacked.clone();
    valid(geometry).for_each(|place| rest[place] = UNTOUCHED);
    assert!(rest.iter().all(|&value| value == UNTOUCHED), "a value past the tokens was written");
    (packed, unpacked)
}

/// A number with a bell-shaped distribution around 0 and a deviation of about 1.
fn bell(random: &mut Random) -> f32 {
    let sum: u64 = (0..6).map(|_| random.below(1000)).sum();
    (sum as f32 - 2997.0) / 707.0
}

/// A chunk like those of models: each channel with a deviation and a mean of its own, neighbouring
/// tokens alike, here and there a value far outside.
fn model_chunk(random: &mut Random, geometry: &Geometry, deviation: f32) -> Vec<u16> {
    let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
    let dim = usize::from(geometry.shape.head_dim);
    for part in 0..geometry.parts() {
        let mut value = 0.0;
        for channel in 0..dim {
            let own = deviation * 2f32.powi(random.below(5) as i32 - 2);
            let mean = own * bell(random) * random.below(4) as f32;
            for token in 0..usize::from(geometry.tokens) {
                value = 0.6 * value + own * bell(random);
                let outlier = if random.below(3000) == 0 { 40.0 } else { 1.0 };
                let place = match geometry.layout {
                    ChunkLayout::TokenMajor => token * dim + channel,
                    ChunkLayout::ChannelMajor => channel * 256 + token,
                };
                let half = f16_from_f32((value + mean) * outlier);
                chunk[part * geometry.part_values() + place] = half;
            }
        }
    }
    chunk
}

#[test]
fn real_chunks_save_82_percent() {
    let geometry = geometry(3, 64, 256);
    let mut memory = Vec::new();
    let all_steps = real_steps(&mut memory);
    for (values, layer) in real_chunks().into_iter().zip([0, 19]) {
        let steps = all_steps.layer(LayerIndex::new(layer)).unwrap().k;
        let (packed, first) = cycle(steps, &geometry, &values);
        let saving = 1.0 - packed.len() as f64 / (2 * values.len()) as f64;
        assert!(saving >= 0.82, "{saving}");
        assert!(packed.len() <= Kvh.packed_bytes_usual(&geometry), "{saving}");
        for (block, range) in [("K", 0.05..0.25), ("V", 0.15..0.25)] {
            let half = values.len() / 2;
            let start = if block == "K" { 0 } else { half };
            let pairs = || values[start..][..half].iter().zip(&first[start..][..half]);
            let number = |half: u16| f64::from(f32_from_f16(half));
            let error: f64 = pairs().map(|(&a, &b)| (number(a) - number(b)).powi(2)).sum();
            let power: f64 = pairs().map(|(&a, _)| number(a).powi(2)).sum();
            let relative = (error / power).sqrt();
            assert!(range.contains(&relative), "relative error of {block}: {relative}");
        }
    }
}

#[test]
fn every_token_count_and_head_size_cycles() {
    let mut random = Random::new(61);
    for (tokens, layout) in (1..=256).flat_map(|tokens| LAYOUTS.map(|layout| (tokens, layout))) {
        let geometry = Geometry { layout, ..geometry(2, 64, tokens) };
        let steps = even_steps(&geometry, 1.0);
        cycle(&steps, &geometry, &chunk(&geometry, finite(&mut random)));
        cycle(&steps, &geometry, &model_chunk(&mut random, &geometry, 1.0));
    }
    for head_dim in HEAD_DIMS.into_iter().chain([40, 72, 120, 136, 200, 248]) {
        for tokens in [1, 2, 3, 31, 255, 256] {
            let geometry = geometry(3, head_dim, tokens);
            let steps = even_steps(&geometry, 0.25);
            cycle(&steps, &geometry, &chunk(&geometry, finite(&mut random)));
            cycle(&steps, &geometry, &model_chunk(&mut random, &geometry, 1.0));
        }
    }
    let geometry = geometry(64, 256, 256);
    let steps = even_steps(&geometry, 0.5);
    cycle(&steps, &geometry, &model_chunk(&mut random, &geometry, 1.0));
}

#[test]
fn values_and_steps_of_any_magnitude_cycle() {
    let mut random = Random::new(62);
    let mut kinds = [0; 2];
    for log in -26..=17 {
        for log_of_step in [-24, -20, log - 3, log, log + 2, 15] {
            let geometry = geometry(1, 32, 64);
            let steps = even_steps(&geometry, 2f32.powi(log_of_step.clamp(-24, 15)) * 0.9999);
            let chunk = model_chunk(&mut random, &geometry, 2f32.powi(log));
            let (packed, unpacked) = cycle(&steps, &geometry, &chunk);
            let is_raw = packed[7] & 1 == 1;
            kinds[usize::from(is_raw)] += 1;
            assert!(!is_raw || unpacked == chunk, "raw is lossless");
        }
    }
    assert!(kinds.iter().all(|&count| count > 10), "{kinds:?}");
}

#[test]
fn no_step_of_k_is_below_the_least_f16() {
    let mut random = Random::new(69);
    let geometry = geometry(1, 32, 64);
    // All of K is subnormal: multiples of the least magnitude, which is a step then.
    let values = chunk(&geometry, || 800 + random.below(200) as u16);
    let pack = |log| with(&even_steps(&geometry, 2f32.powi(log))).pack(&Kvh, &geometry, &values);
    let (packed, unpacked) = cycle(&even_steps(&geometry, 2f32.powi(-23)), &geometry, &values);
    assert!(packed[7] == 0 && packed == pack(-24) && packed == pack(-30) && packed != pack(-22));
    let k = geometry.part_values();
    assert!(unpacked[..k] == values[..k]);
}

#[test]
fn a_token_of_v_has_a_step_of_seven_tenths_of_its_root_mean_square() {
    let geometry = geometry(1, 32, 8);
    let steps = even_steps(&geometry, 1.0);
    let stored = |value: f32| {
        let half = f16_from_f32(value);
        let (packed, unpacked) = cycle(&steps, &geometry, &chunk(&geometry, || half));
        assert_eq!(packed[7], 0);
        (
            header_words(&packed, &geometry, 1)[0].cast_signed() >> 21,
            unpacked[geometry.part_values()],
        )
    };
    // The nearest of a grid of half octaves; points count from a mean square of 2^-46.
    for point in 22..=77 {
        let root = 2f32.powf((point - 46) as f32 / 2.0);
        let (base, value) = stored(root);
        assert_eq!((base, value), (point, f16_from_f32(0.7 * root)));
    }
    // What does not change under two of the steps gets the coarser, but there is none past 78.
    assert_eq!(stored(0.7 * 2f32.sqrt()).0, 47);
    assert_eq!(stored(0.7 * 2f32.powf(16.5)).0, 77);
    // Three times the step that is two points below the token's own, and no multiple of others.
    assert_eq!(stored(3.0 * 0.35), (44, f16_from_f32(3.0 * 0.35)));
}

/// Tokens of V whose values follow one of several patterns, chosen anew for each.
fn odd_tokens(random: &mut Random, geometry: &Geometry) -> Vec<u16> {
    let mut chunk = chunk(geometry, || 0);
    let dim = usize::from(geometry.shape.head_dim);
    for row in chunk.chunks_exact_mut(dim) {
        let scale = 2f32.powi(random.below(42) as i32 - 26);
        let pattern = random.below(8);
        let alone = random.below(dim as u64) as usize;
        for (channel, half) in row.iter_mut().enumerate() {
            let number = match pattern {
                0 => bell(random),
                1 => f32::from(u8::from(channel == alone)),
                2 => 1.0,
                // Just below and just above where codes are rounded up.
                3 => 0.5 + 1e-3 * bell(random),
                4 => 1.05 + 1e-3 * bell(random),
                5 => {
                    if channel == alone {
                        16.0
                    } else {
                        0.3 * bell(random)
                    }
                }
                6 => (random.below(5) as f32 - 2.0) * 0.7,
                _ => {
                    if random.below(9) == 0 {
                        bell(random)
                    } else {
                        -0.0
                    }
                }
            };
            *half = f16_from_f32(number * scale);
        }
    }
    chunk
}

/// The words before the rows of a part.
fn header_words(packed: &[u8], geometry: &Geometry, part: usize) -> Vec<u32> {
    let payload = &packed[HEADER_BYTES..];
    let word = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
    let is_v = part >= usize::from(geometry.shape.kv_heads);
    let rows = usize::from(geometry.shape.head_dim) + usize::from(is_v);
    (0..rows).map(|row| word(word(4 * part) as usize + 4 * row)).collect()
}

fn form_of(word: u32) -> u32 {
    word >> 19 & 3
}

/// A chunk with rows of every form, with escapes and without: 2 heads of 32, 100 tokens.
fn sample() -> (Geometry, Vec<f32>, Vec<u16>) {
    let geometry = Geometry { layout: ChunkLayout::ChannelMajor, ..geometry(2, 32, 100) };
    let steps = even_steps(&geometry, 1.0);
    let mut random = Random::new(64);
    let mut chunk = model_chunk(&mut random, &geometry, 1.0);
    let row = |channel: usize| 256 * channel..256 * channel + 100;
    // Slow waves; wide noise; noise beyond codes; a few values far outside.
    for (token, half) in chunk[row(1)].iter_mut().enumerate() {
        *half = f16_from_f32(20.0 * (token as f32 / 9.0).sin());
    }
    chunk[row(2)].fill_with(|| f16_from_f32(14.0 * bell(&mut random)));
    chunk[row(3)].fill_with(|| f16_from_f32(500.0 * bell(&mut random)));
    chunk[row(4)].fill_with(|| f16_from_f32(bell(&mut random)));
    chunk[256 * 4 + 50] = f16_from_f32(300.0);
    chunk[256 * 4 + 51] = f16_from_f32(-300.0);
    (geometry, steps, chunk)
}

#[test]
fn all_forms_and_most_tables_are_used() {
    let (geometry, steps, chunk) = sample();
    let (packed, unpacked) = cycle(&steps, &geometry, &chunk);
    assert_eq!(packed[7] & 1, 0);
    let words = header_words(&packed, &geometry, 0);
    assert_eq!([1, 2, 3].map(|row| form_of(words[row])), [1, 2, 3]);
    assert_eq!(words[4] >> 9 & 63, 2, "escapes");
    assert_eq!(unpacked[768..868], chunk[768..868], "values as they were");
    let mut tables = [0; TABLES];
    for part in 0..geometry.parts() {
        let coded = header_words(&packed, &geometry, part).into_iter().filter(|w| form_of(*w) < 2);
        coded.for_each(|word| tables[(word >> 15 & 15) as usize] += 1);
    }
    assert!(tables.iter().filter(|&&count| count > 0).count() > 5, "{tables:?}");
}

#[test]
fn the_lower_form_is_taken_of_equal_ones_and_the_longer_one_of_no_others() {
    let (geometry, steps, mut chunk) = sample();
    // The same code in all tokens has neither differences from the mean nor from the one before.
    chunk[..100].fill(f16_from_f32(7.0));
    // As many values far outside as may be, which take less than 16 bits a token still.
    for (token, half) in chunk[512..612].iter_mut().enumerate() {
        let far = if token % 2 == 0 { 300.0 } else { -300.0 };
        *half = f16_from_f32(if token < 63 { far } else { 0.0 });
    }
    let (packed, _) = cycle(&steps, &geometry, &chunk);
    let words = header_words(&packed, &geometry, 0);
    assert_eq!([0, 2].map(|row| form_of(words[row])), [0, 1]);
    assert_eq!(words[2] >> 9 & 63, 63, "escapes");
}

#[test]
fn what_is_not_finite_costs_its_channel_in_k_and_the_chunk_in_v() {
    let mut random = Random::new(65);
    let geometry = geometry(2, 64, 200);
    let steps = even_steps(&geometry, 1.0);
    let values = model_chunk(&mut random, &geometry, 1.0);
    let (usual, _) = cycle(&steps, &geometry, &values);
    for special in [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF] {
        let mut with_k = values.clone();
        with_k[64 * 10 + 7] = special;
        let (packed, unpacked) = cycle(&steps, &geometry, &with_k);
        assert!(packed[7] & 1 == 0 && packed.len() < usual.len() + 512);
        assert_eq!(form_of(header_words(&packed, &geometry, 0)[7]), 3);
        assert!((0..200).all(|token| unpacked[64 * token + 7] == with_k[64 * token + 7]));
        let mut with_v = values.clone();
        let last = valid(&geometry).last().unwrap();
        with_v[last] = special;
        let (packed, unpacked) = cycle(&steps, &geometry, &with_v);
        assert_eq!((packed[7] & 1, packed.len()), (1, Kvh.packed_bytes_max(&geometry)));
        assert_eq!(unpacked, with_v, "to the bit");
        // What stands in rows that are not valid does not count.
        with_v[last] = values[last];
        with_v[last + 1] = special;
        assert_eq!(with(&steps).pack(&Kvh, &geometry, &with_v), usual);
    }
    // A multiple of the step next to the greatest value is none.
    let mut greatest = values.clone();
    greatest[last_of(&geometry)] = 0x7BFF;
    cycle(&steps, &geometry, &greatest);
}

fn last_of(geometry: &Geometry) -> usize {
    valid(geometry).last().unwrap()
}

#[test]
fn every_rung_and_layout_packs_and_unpacks_alike() {
    let mut random = Random::new(66);
    for (head_dim, tokens) in [(32, 256), (40, 1), (64, 77), (72, 100), (128, 256), (256, 31)] {
        let geometry = geometry(2, head_dim, tokens);
        let steps = even_steps(&geometry, 0.5);
        for values in [
            model_chunk(&mut random, &geometry, 1.0),
            odd_tokens(&mut random, &geometry),
            chunk(&geometry, finite(&mut random)),
        ] {
            let expected = with(&steps).pack(&Kvh, &geometry, &values);
            let unpacked = with(&steps).unpack(&Kvh, &geometry, &expected);
            for (name, kernels) in &rungs() {
                let own = With { kernels, ..with(&steps) };
                assert!(own.pack(&Kvh, &geometry, &values) == expected, "{name} {head_dim}");
                assert!(own.unpack(&Kvh, &geometry, &expected) == unpacked, "{name} {head_dim}");
            }
            let (other, other_values) = layouts::transposed(&geometry, &values);
            let mut other_packed = with(&steps).pack(&Kvh, &other, &other_values);
            let other_unpacked = with(&steps).unpack(&Kvh, &other, &other_packed);
            assert!(layouts::transposed(&other, &other_unpacked).1 == unpacked);
            if expected[7] & 1 == 0 {
                other_packed[..HEADER_BYTES].copy_from_slice(&expected[..HEADER_BYTES]);
                assert!(other_packed == expected, "the payload depends on the layout");
            }
        }
    }
}

#[test]
fn a_short_buffer_is_told_what_is_needed() {
    let (geometry, steps, chunk) = sample();
    let packed = with(&steps).pack(&Kvh, &geometry, &chunk);
    let mut raw_chunk = chunk.clone();
    raw_chunk[last_of(&geometry)] = 0x7E00;
    for (chunk, needed) in [(chunk, packed.len()), (raw_chunk, Kvh.packed_bytes_max(&geometry))] {
        let mut buffer = std::vec![0; needed];
        for bytes in [0, 63, 64, 100, needed / 2, needed - 1] {
            let result = with(&steps).try_pack(&Kvh, &geometry, &chunk, &mut buffer[..bytes]);
            let error = result.unwrap_err();
            assert_eq!((error.code, error.what), (Code::MemoryTooSmall, "packed buffer"));
            assert_eq!(error.value, needed as i64);
        }
        let bytes = with(&steps).try_pack(&Kvh, &geometry, &chunk, &mut buffer).unwrap();
        assert_eq!(bytes, needed);
    }
}

#[test]
fn steps_must_be_there_and_the_same() {
    let (geometry, steps, chunk) = sample();
    let mut packed = with(&steps).pack(&Kvh, &geometry, &chunk);
    let refused = |with: With<'_>, packed: &[u8]| {
        let mut chunk = std::vec![UNTOUCHED; chunk.len()];
        let error = with.try_unpack(&Kvh, &geometry, packed, &mut chunk).unwrap_err();
        assert!(chunk.iter().all(|&value| value == UNTOUCHED));
        (error.code, error.what)
    };
    let missing = (Code::InvalidArgument, "codec steps");
    assert_eq!(refused(PLAIN, &packed), missing);
    assert_eq!(refused(with(&steps[1..]), &packed), missing);
    let other = With { steps: Some(LayerSteps { id: 78, k: &steps }), ..PLAIN };
    assert_eq!(refused(other, &packed), (Code::Mismatch, "packed steps"));
    for with in [PLAIN, with(&steps[1..])] {
        let error = with.try_pack(&Kvh, &geometry, &chunk, &mut packed).unwrap_err();
        assert_eq!((error.code, error.what), missing);
    }
}
