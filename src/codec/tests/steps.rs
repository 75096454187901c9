//! The step profile: its arithmetic against a plain computation, its form against hostile bytes.

use super::*;
use crate::codec::STEPS_HEADER_BYTES;
use crate::error::{Code, Error};

const SHAPE: KvShape = KvShape { layers: 3, kv_heads: 2, head_dim: 32 };
const VALUES: usize = Steps::values(&SHAPE);
const SQUARES: [f64; 3] = [0.25, 9.0, 1234.5];

fn energies(random: &mut Random) -> Vec<f32> {
    (0..VALUES).map(|_| 0.01 + random.u16() as f32 * 1e-3).collect()
}

fn written(steps: &Steps<'_>) -> Vec<u8> {
    let mut bytes = std::vec![0xA5; Steps::serialised_bytes(&SHAPE)];
    steps.write(&mut bytes).unwrap();
    bytes
}

fn parsed(bytes: &[u8]) -> Result<(u32, Vec<f32>)> {
    let mut memory = std::vec![0.0; VALUES];
    let steps = Steps::parse(&KERNELS, SHAPE, bytes, &mut memory)?;
    Ok((steps.id(), steps.k.to_vec()))
}

#[test]
fn uniform_steps_are_a_part_of_each_layers_mean() {
    let mut memory = std::vec![0.0; VALUES + 5];
    let steps = Steps::uniform(&KERNELS, SHAPE, &SQUARES, &mut memory).unwrap();
    for (layer, square) in SQUARES.iter().enumerate() {
        let layer = steps.layer(LayerIndex::new(layer as u16)).unwrap();
        assert_eq!((layer.id, layer.k.len()), (steps.id(), 64));
        assert!(layer.k.iter().all(|&step| step == (0.55 * square.sqrt()) as f32));
    }
    assert_eq!(steps.layer(LayerIndex::new(3)), None);
    assert_ne!(steps.id(), 0);
}

#[test]
fn steps_follow_the_energy_of_pairs() {
    let mut random = Random::new(41);
    let energies = energies(&mut random);
    for pairs in [RotaryPairs::Adjacent, RotaryPairs::Halves] {
        let mut memory = energies.clone();
        let steps = Steps::from_energy(&KERNELS, SHAPE, &SQUARES, pairs, &mut memory).unwrap();
        for (layer, square) in SQUARES.iter().enumerate() {
            let own = &energies[64 * layer..][..64];
            let mean = own.iter().map(|&e| f64::from(e)).sum::<f64>() / 64.0;
            for channel in 0..64 {
                let twin = match pairs {
                    RotaryPairs::Adjacent => channel ^ 1,
                    RotaryPairs::Halves => channel ^ 16,
                };
                let energy = f64::from((own[channel] + own[twin]) / 2.0);
                let expected = 0.55 * square.sqrt() * (mean / energy).sqrt();
                let step = f64::from(steps.k[64 * layer + channel]);
                assert!((step / expected - 1.0).abs() < 1e-6, "{step} {expected}");
            }
        }
    }
}

#[test]
fn extreme_energies_give_steps_in_range() {
    let step = |energies: [f32; 4], square: f64| {
        let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 32 };
        let mut memory: Vec<f32> = energies.into_iter().cycle().take(32).collect();
        let pairs = RotaryPairs::Adjacent;
        let steps = Steps::from_energy(&KERNELS, shape, &[square], pairs, &mut memory).unwrap();
        let [a, b] = [steps.k[0], steps.k[2]];
        (a, b)
    };
    assert_eq!(step([0.0; 4], 4.0), (1.1, 1.1), "no energy at all");
    assert_eq!(step([0.0, 0.0, 8.0, 8.0], 4.0).0, 64.0 * 1.1);
    let (_, b) = step([f32::MAX; 4], 4.0);
    assert_eq!(b, 1.1);
    assert_eq!(step([1.0; 4], 0.0), (2f32.powi(-24), 2f32.powi(-24)));
    assert_eq!(step([1.0; 4], f64::MAX), (65504.0, 65504.0));
}

#[test]
fn roots_are_rounded_to_nearest() {
    let mut random = Random::new(42);
    for round in 0..200_000 {
        let square = match round % 3 {
            0 => f64::from_bits((1023 - 47 + random.below(78)) << 52 | random.next() >> 12),
            1 => f64::from(random.u16()) * f64::from(random.u16()) + 1.0,
            // Half-way between two numbers, to the bit.
            _ => f64::from(1 << 24 | random.below(1 << 24) as u32 | 1).powi(2) / 2f64.powi(24),
        };
        let root = crate::codec::steps::root(square);
        assert_eq!(root, square.sqrt() as f32, "{square}");
    }
}

#[test]
fn mean_squares_leave_out_what_is_not_finite() {
    let runs: [&[u16]; 3] = [&[0x3C00, 0x4000], &[], &[0x7C00, 0x7E00, 0xC200]];
    assert_eq!(mean_square(runs.into_iter()), (1.0 + 4.0 + 9.0) / 3.0);
    assert_eq!(mean_square([].into_iter()), 0.0);
}

#[test]
fn what_is_written_is_read_back() {
    let mut memory = energies(&mut Random::new(43));
    let pairs = RotaryPairs::Halves;
    let steps = Steps::from_energy(&KERNELS, SHAPE, &SQUARES, pairs, &mut memory).unwrap();
    let mut bytes = written(&steps);
    assert_eq!(parsed(&bytes), Ok((steps.id(), steps.k.to_vec())));
    bytes.extend([1, 2, 3]);
    assert_eq!(parsed(&bytes), Ok((steps.id(), steps.k.to_vec())), "bytes behind are ignored");
    let short = steps.write(&mut bytes[..Steps::serialised_bytes(&SHAPE) - 1]).unwrap_err();
    assert_eq!((short.code, short.what), (Code::MemoryTooSmall, "steps"));
}

#[test]
fn ids_tell_profiles_apart() {
    let mut ids = std::collections::HashSet::new();
    for (layer, factor) in (0..3).flat_map(|layer| [0.5, 2.0].map(|factor| (layer, factor))) {
        let mut squares = SQUARES;
        squares[layer] *= factor;
        let mut memory = std::vec![0.0; VALUES];
        ids.insert(Steps::uniform(&KERNELS, SHAPE, &squares, &mut memory).unwrap().id());
    }
    assert_eq!(ids.len(), 6);
}

#[test]
fn every_flipped_bit_and_every_short_length_is_an_error() {
    let mut memory = std::vec![0.0; VALUES];
    let bytes = written(&Steps::uniform(&KERNELS, SHAPE, &SQUARES, &mut memory).unwrap());
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0..4 => (Code::BadMagic, "steps"),
            4..8 => (Code::Unsupported, "steps version"),
            8 | 9 => (Code::Mismatch, "steps layers"),
            10 | 11 => (Code::Mismatch, "steps kv_heads"),
            12 | 13 => (Code::Mismatch, "steps head_dim"),
            14..28 => (Code::Corrupt, "steps reserved bytes"),
            _ => (Code::Corrupt, "steps checksum"),
        };
        let error = parsed(&damaged).unwrap_err();
        assert_eq!((error.code, error.what), expected, "bit {bit}");
        if error.code == Code::Mismatch {
            let at = bit / 16 * 2;
            let value = u16::from_le_bytes([damaged[at], damaged[at + 1]]);
            assert_eq!(error.value, i64::from(value), "bit {bit}");
        }
    }
    for length in 0..bytes.len() {
        let what = if length < STEPS_HEADER_BYTES { "steps header" } else { "steps" };
        let error = parsed(&bytes[..length]).unwrap_err();
        assert_eq!((error.code, error.what), (Code::Truncated, what), "{length} bytes");
    }
}

#[test]
fn steps_out_of_range_are_corrupt_under_a_right_checksum() {
    let mut memory = std::vec![0.0; VALUES];
    let bytes = written(&Steps::uniform(&KERNELS, SHAPE, &SQUARES, &mut memory).unwrap());
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-9, 65536.0, f32::MIN_POSITIVE / 2.0] {
        let mut forged = bytes.clone();
        forged[STEPS_HEADER_BYTES + 4 * 17..][..4].copy_from_slice(&bad.to_le_bytes());
        let (header, steps) = forged.split_at_mut(STEPS_HEADER_BYTES);
        let crc = KERNELS.crc32c.call(KERNELS.crc32c.call(0, steps), &header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(parsed(&forged), Err(Error::new(Code::Corrupt, "step").with(17usize)));
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let refused = |shape: KvShape, squares: &[f64], values: usize, first: f32| {
        let mut memory = std::vec![1.0; values];
        memory[0] = first;
        let pairs = RotaryPairs::Adjacent;
        let error = Steps::from_energy(&KERNELS, shape, squares, pairs, &mut memory).unwrap_err();
        (error.code, error.what)
    };
    let bad = Code::InvalidArgument;
    let with = |layers, kv_heads, head_dim| KvShape { layers, kv_heads, head_dim };
    assert_eq!(refused(with(0, 2, 32), &[], 999, 1.0), (bad, "layers"));
    assert_eq!(refused(with(257, 2, 32), &[1.0; 257], 99_999, 1.0), (bad, "layers"));
    assert_eq!(refused(with(3, 0, 32), &SQUARES, 999, 1.0), (bad, "kv_heads"));
    assert_eq!(refused(with(3, 2, 33), &SQUARES, 999, 1.0), (bad, "head_dim"));
    assert_eq!(refused(SHAPE, &SQUARES[..2], 999, 1.0), (bad, "mean squares"));
    for square in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(refused(SHAPE, &[1.0, square, 1.0], 999, 1.0), (bad, "mean square of K"));
    }
    for energy in [f32::NAN, f32::INFINITY, -1.0] {
        assert_eq!(refused(SHAPE, &SQUARES, 999, energy), (bad, "query energy"));
    }
    let short = (Code::MemoryTooSmall, "steps memory");
    assert_eq!(refused(SHAPE, &SQUARES, VALUES - 1, 1.0), short);
}

#[test]
fn a_profile_has_a_number_for_each_channel_of_each_layer() {
    let shape = KvShape { layers: 5, kv_heads: 3, head_dim: 16 };
    assert_eq!(Steps::values(&shape), 240);
    assert_eq!(Steps::serialised_bytes(&shape), STEPS_HEADER_BYTES + 960);
}
