//! That nothing changes after the first cycle: 50 cycles of real chunks, and groups made to break
//! it. A group is what one step or scale is for: a channel of K, a token of V.

use super::*;
use crate::codec::Idempotence;
use crate::kernel::portable::{F16_INFINITY, f16_from_f32, f32_from_f16};
use crate::kernel::support::available;

/// Packs and unpacks a chunk, and what came back so many times more, which must not change
/// anything; whether the chunk was stored raw.
fn cycle(
    with: &With<'_>,
    codec: &dyn Codec,
    geometry: &Geometry,
    chunk: &[u16],
    cycles: usize,
) -> bool {
    let packed = with.pack(codec, geometry, chunk);
    let first = with.unpack(codec, geometry, &packed);
    let mut unpacked = first.clone();
    for cycle in 0..cycles {
        let again = with.pack(codec, geometry, &unpacked);
        let what = || std::format!("{} {geometry:?}, cycle {cycle}", codec.id().name());
        let may_differ = codec.properties().idempotence == Idempotence::Value;
        assert!(may_differ || again == packed, "{}", what());
        unpacked = with.unpack(codec, geometry, &again);
        assert!(unpacked == first, "{}", what());
    }
    packed[7] & 1 == 1
}

fn is_long() -> bool {
    std::env::var_os("MZ_LONG_TESTS").is_some()
}

/// One chunk in each layout goes through 50 cycles, or all when `MZ_LONG_TESTS` is set, and the
/// others through 2. These say as much, as long as codecs keep nothing between chunks.
#[test]
fn real_chunks_do_not_change_in_50_cycles_of_any_codec_and_layout() {
    let kernels = Kernels::select(available());
    let mut memory = Vec::new();
    let profile = real_steps(&mut memory);
    for (index, id) in (0..REAL.len()).flat_map(|index| CodecId::ALL.map(|id| (index, id))) {
        let (codec, mut geometry) = (codec(id), geometry(3, 64, 256));
        geometry.id.layer = LayerIndex::new(REAL[index].0);
        let with = With { kernels: &kernels, steps: profile.layer(geometry.id.layer) };
        let cycles = |often| if is_long() || index == often { 50 } else { 2 };
        let values = real(index);
        let (other, other_values) = layouts::transposed(&geometry, &values);
        assert!(!cycle(&with, codec, &geometry, &values, cycles(0)));
        assert!(!cycle(&with, codec, &other, &other_values, cycles(5)));
        if codec.properties().steps == StepsUse::Welcome {
            let blind = With { steps: None, ..with };
            assert!(!cycle(&blind, codec, &geometry, &values, cycles(5)));
        }
    }
}

/// What a group's values are multiples of, as codecs see it: `step` is the codec's own where it
/// is given one; else any of their grids, and the border between two of them.
fn unit(random: &mut Random, step: Option<f32>) -> f32 {
    let octave = 2f32.powi(random.below(32) as i32 - 22);
    match (random.below(4), step) {
        (0..3, Some(step)) => step * [0.3, 0.5, 0.5, 1.0][random.below(4) as usize],
        // Half octaves, the quarters between them, and their next neighbours.
        (0, None) => {
            let power = octave * 2f32.powf(random.below(4) as f32 / 4.0);
            let power = power * [0.7, 1.0][random.below(2) as usize];
            f32::from_bits(power.to_bits() + random.below(5) as u32 - 2)
        }
        // A part of a greatest magnitude.
        (1, None) => {
            let greatest = f32_from_f16(random.u16() % 0x6800);
            greatest / [7.0, 15.0, 127.0][random.below(3) as usize]
        }
        _ => octave * (1.0 + random.below(1 << 11) as f32 / 2048.0),
    }
}

/// Values of one group, near every border that there is: where codes are rounded, where steps
/// change, where F16 values end.
fn adversarial(random: &mut Random, step: Option<f32>, is_wild: bool, group: &mut [u16]) {
    let unit = unit(random, step);
    let reach = 1 << (1 + random.below(11));
    let base = random.u16() & 0x67FF;
    let alone = random.below(group.len() as u64) as usize;
    let (far, side) = (random.below(1 << 12) as f32, random.u16() & 0x8000);
    let pattern = random.below(if is_wild { 11 } else { 9 });
    for (place, half) in group.iter_mut().enumerate() {
        let sign = if pattern == 2 { side } else { random.u16() & 0x8000 };
        let code = random.below(reach) as f32;
        let nudge = random.u16() % 3;
        // Magnitudes of F16 in their order are whole numbers.
        *half = sign
            | match pattern {
                0 => f16_from_f32(code * unit),
                1 => f16_from_f32((code + 0.5) * unit).saturating_add(nudge).saturating_sub(1),
                // Far from zero, but near to each other.
                2 => f16_from_f32((far + random.below(64) as f32 / 8.0) * unit),
                3 => f16_from_f32(unit * random.below(1 << 12) as f32 / 512.0),
                4 => f16_from_f32(unit * if place == alone { code + 1.0 } else { 0.0 }),
                5 => f16_from_f32(unit * if place == alone { reach as f32 } else { 0.4 }),
                6 => base + random.below(reach) as u16,
                7 => f16_from_f32(unit),
                8 => random.u16() % 0x20,
                9 => 0x7BFF - nudge,
                _ => random.u16() & 0x7FFF,
            };
        // Multiples of steps that are next to the greatest values are out of range.
        match (*half & 0x7FFF, is_wild) {
            (F16_INFINITY.., true) => *half = sign | 0x7BFF,
            (0x7000.., false) => *half = sign | base,
            _ => {}
        }
    }
}

/// One head of adversarial groups, its steps, how many groups it has.
fn adversarial_chunk(random: &mut Random, is_wild: bool) -> (Geometry, Vec<f32>, Vec<u16>, usize) {
    let (dim, tokens) = ([32, 40, 64][random.below(3) as usize], 256 - random.below(57) as usize);
    let mut geometry = geometry(1, dim as u16, tokens as u16);
    geometry.id.layer = LayerIndex::new(random.below(30) as u16);
    let octave = random.below(30) as i32 - 20;
    let mut step = || 2f32.powi(octave) * (0.5 + random.below(1 << 10) as f32 / 300.0);
    let steps: Vec<f32> = (0..dim).map(|_| step()).collect();
    let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
    let (k, v) = chunk.split_at_mut(geometry.shape.block_values());
    let mut group = [0; 256];
    for (channel, &step) in steps.iter().enumerate() {
        adversarial(random, Some(step), is_wild, &mut group[..tokens]);
        let column = k.iter_mut().skip(channel).step_by(dim);
        column.zip(&group[..tokens]).for_each(|(half, &value)| *half = value);
    }
    for token in v.chunks_exact_mut(dim).take(tokens) {
        adversarial(random, None, is_wild, token);
    }
    (geometry, steps, chunk, dim + tokens)
}

/// Cycles fifty thousand adversarial groups, or ten million when `MZ_LONG_TESTS` is set, not
/// counting those in chunks that were stored raw.
fn adversarial_groups_cycle(id: CodecId, seed: u64) {
    let groups_min = if is_long() { 10_000_000 } else { 50_000 };
    let kernels = Kernels::select(available());
    let mut random = Random::new(seed);
    let [mut coded, mut raw] = [0; 2];
    while coded < groups_min {
        // Values of every magnitude, of which multiples of steps may be out of range.
        let is_wild = random.below(16) == 0;
        let (geometry, steps, chunk, groups) = adversarial_chunk(&mut random, is_wild);
        let codec = codec(id);
        let is_blind = codec.properties().steps == StepsUse::Welcome && random.below(4) == 0;
        let steps = (!is_blind).then_some(LayerSteps { id: 1, k: &steps });
        let with = With { kernels: &kernels, steps };
        match cycle(&with, codec, &geometry, &chunk, 1) {
            true if is_wild => raw += groups,
            true => panic!("{geometry:?}: stored raw"),
            false => coded += groups,
        }
        assert!(raw <= groups_min / 5, "{coded} groups coded, {raw} raw");
    }
    std::println!("{}: {coded} groups coded, {raw} stored raw", id.name());
}

#[test]
fn adversarial_groups_of_q8_cycle() {
    adversarial_groups_cycle(CodecId::Q8, 101);
}

#[test]
fn adversarial_groups_of_kv4_cycle() {
    adversarial_groups_cycle(CodecId::Kv4, 102);
}

#[test]
fn adversarial_groups_of_kvh_cycle() {
    adversarial_groups_cycle(CodecId::Kvh, 103);
}

#[test]
fn adversarial_groups_of_cachegen_cycle() {
    adversarial_groups_cycle(CodecId::CacheGen, 104);
}
