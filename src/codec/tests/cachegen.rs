//! The cachegen format: what it saves, that nothing drifts, its bins and refusals.

use super::*;
use crate::codec::CacheGen;
use crate::error::{Code, Error};
use crate::kernel::portable::{f16_from_f32, f32_from_f16};

/// Packs, unpacks and packs again, which must not change anything; returns both.
fn cycle(geometry: &Geometry, chunk: &[u16]) -> (Vec<u8>, Vec<u16>) {
    let packed = pack(&CacheGen, geometry, chunk);
    let unpacked = unpack(&CacheGen, geometry, &packed);
    assert!(packed == pack(&CacheGen, geometry, &unpacked), "{geometry:?}: other bytes");
    let mut rest = unpacked.clone();
    valid(geometry).for_each(|place| rest[place] = UNTOUCHED);
    assert!(rest.iter().all(|&value| value == UNTOUCHED), "a value past the tokens was written");
    (packed, unpacked)
}

fn is_raw(packed: &[u8]) -> bool {
    packed[7] & 1 == 1
}

/// The real chunks, each with the geometry of its layer.
fn real() -> [(Geometry, Vec<u16>); 2] {
    let mut layers = [0, 19].into_iter();
    real_chunks().map(|chunk| {
        let mut geometry = geometry(3, 64, 256);
        geometry.id.layer = LayerIndex::new(layers.next().unwrap());
        (geometry, chunk)
    })
}

/// Values with a bell-shaped distribution, whose deviation depends on the place.
fn bells(random: &mut Random, geometry: &Geometry) -> Vec<u16> {
    let mut place = 0u32;
    chunk(geometry, || {
        place += 1;
        let sum: u64 = (0..6).map(|_| random.below(1000)).sum();
        let deviation = 2f32.powi((place % 5) as i32 + random.below(2) as i32 - 8);
        f16_from_f32((sum as f32 - 2997.0) * deviation)
    })
}

#[test]
fn real_chunks_save_71_percent() {
    let mut savings = Vec::new();
    for (geometry, values) in real() {
        let (packed, _) = cycle(&geometry, &values);
        assert!(packed.len() <= CacheGen.packed_bytes_usual(&geometry));
        savings.push(1.0 - packed.len() as f64 / (2 * values.len()) as f64);
    }
    // The release saves 70.9 % on average over the model's 30 layers, the first of which have more
    // bins.
    assert!(
        (0.66..0.71).contains(&savings[0]) && (0.709..0.73).contains(&savings[1]),
        "{savings:?}"
    );
}

/// Symbols of a chunk by the release's formula, value by value.
fn expected(geometry: &Geometry, values: &[u16], code_max: [f32; 2]) -> Vec<u16> {
    let mut expected = std::vec![UNTOUCHED; values.len()];
    let (dim, half) = (usize::from(geometry.shape.head_dim), values.len() / 2);
    for (block, token) in (0..2).flat_map(|block| (0..256).map(move |token| (block, token))) {
        let heads = (0..usize::from(geometry.shape.kv_heads)).map(|head| head * 256 + token);
        let places = heads.flat_map(|row| row * dim..(row + 1) * dim).map(|at| block * half + at);
        let places: Vec<usize> = places.collect();
        let number = |&place: &usize| f32_from_f16(values[place]);
        let max1 = places.iter().map(|place| number(place).abs()).fold(0.0, f32::max);
        let max = code_max[block];
        for place in &places {
            let symbol = (number(place) * (max / max1) + max).round_ties_even();
            expected[*place] = f16_from_f32((symbol - max) * (max1 * (1.0 / max)));
        }
    }
    expected
}

#[test]
fn values_are_those_of_the_release_with_the_bins_of_the_layer() {
    let [(layer0, chunk), (layer19, _)] = real();
    let geometry = |layers, layer| {
        let mut geometry = layer0;
        geometry.shape.layers = layers;
        geometry.id.layer = LayerIndex::new(layer);
        geometry
    };
    let cases = [
        (layer0, [15.0, 15.0]),
        (geometry(30, 1), [15.0, 15.0]),
        (geometry(30, 2), [15.0, 7.0]),
        (geometry(30, 9), [15.0, 7.0]),
        (geometry(10, 9), [15.0, 7.0]),
        (geometry(9, 8), [15.0, 15.0]),
        (geometry(30, 10), [7.0, 7.0]),
        (layer19, [7.0, 7.0]),
    ];
    for (geometry, code_max) in cases {
        let (packed, unpacked) = cycle(&geometry, &chunk);
        assert!(!is_raw(&packed));
        assert!(unpacked == expected(&geometry, &chunk, code_max), "{geometry:?}");
    }
}

#[test]
fn every_token_count_head_size_and_layout_cycles() {
    let mut random = Random::new(91);
    let mut kinds = [0; 2];
    let mut check = |geometry: &Geometry, values: &[u16]| {
        let (packed, unpacked) = cycle(geometry, values);
        kinds[usize::from(is_raw(&packed))] += 1;
        assert!(packed.len() <= CacheGen.packed_bytes_max(geometry));
        let (other, other_values) = layouts::transposed(geometry, values);
        let (other_packed, other_unpacked) = cycle(&other, &other_values);
        assert_eq!(layouts::transposed(&other, &other_unpacked).1, unpacked);
        let (payload, other_payload) = (&packed[HEADER_BYTES..], &other_packed[HEADER_BYTES..]);
        assert!(is_raw(&packed) || payload == other_payload, "the layout shows");
    };
    for tokens in 1..=256 {
        let geometry = geometry(2, 64, tokens);
        check(&geometry, &bells(&mut random, &geometry));
        check(&geometry, &chunk(&geometry, finite(&mut random)));
    }
    for head_dim in HEAD_DIMS.into_iter().chain([40, 72, 120, 136, 200, 248]) {
        for tokens in [1, 2, 3, 31, 100, 255, 256] {
            let geometry = geometry(3, head_dim, tokens);
            check(&geometry, &bells(&mut random, &geometry));
            check(&geometry, &chunk(&geometry, finite(&mut random)));
        }
    }
    assert!(kinds.iter().all(|&count| count > 100), "{kinds:?}");
}

#[test]
fn every_rung_packs_and_unpacks_alike() {
    let mut random = Random::new(93);
    for (head_dim, layout) in HEAD_DIMS.into_iter().flat_map(|dim| LAYOUTS.map(|l| (dim, l))) {
        let geometry = Geometry { layout, ..geometry(2, head_dim, 201) };
        let values = bells(&mut random, &geometry);
        let (packed, unpacked) = cycle(&geometry, &values);
        assert!(!is_raw(&packed));
        for (name, kernels) in &rungs() {
            let with = With { kernels, ..PLAIN };
            assert!(with.pack(&CacheGen, &geometry, &values) == packed, "{name}");
            assert!(with.unpack(&CacheGen, &geometry, &packed) == unpacked, "{name}");
        }
    }
}

#[test]
fn a_chunk_with_one_value_that_is_not_finite_is_stored_raw() {
    let mut random = Random::new(94);
    for special in [0x7C00, 0xFC00, 0x7C01, 0xFFFF] {
        let geometry = geometry(1, 64, 255);
        let mut values = bells(&mut random, &geometry);
        let last = valid(&geometry).last().unwrap();
        values[last] = special;
        let (packed, unpacked) = cycle(&geometry, &values);
        assert!(is_raw(&packed) && unpacked == values, "to the bit");
        // What stands in rows that are not valid does not count.
        values[last] = 0;
        values[last + 1] = special;
        assert!(!is_raw(&cycle(&geometry, &values).0));
    }
}

#[test]
fn a_packed_buffer_that_is_too_small_says_how_much_is_needed() {
    let mut random = Random::new(95);
    let geometry = geometry(1, 32, 256);
    let values = bells(&mut random, &geometry);
    let needed = pack(&CacheGen, &geometry, &values).len();
    assert!(needed < CacheGen.packed_bytes_max(&geometry));
    for length in (0..needed).step_by(61).chain([needed - 1]) {
        let mut packed = std::vec![0; length];
        let error = PLAIN.try_pack(&CacheGen, &geometry, &values, &mut packed).unwrap_err();
        assert_eq!((error.code, error.what), (Code::MemoryTooSmall, "packed buffer"));
        assert!(error.value >= needed as i64);
        assert!(error.value <= CacheGen.packed_bytes_max(&geometry) as i64);
    }
    let mut packed = std::vec![0; needed];
    assert_eq!(PLAIN.try_pack(&CacheGen, &geometry, &values, &mut packed), Ok(needed));
}

/// A sound chunk of one head of 40 channels and 250 tokens.
fn sample() -> (Geometry, Vec<u8>) {
    let geometry = geometry(1, 40, 250);
    let packed = pack(&CacheGen, &geometry, &bells(&mut Random::new(96), &geometry));
    assert!(!is_raw(&packed));
    (geometry, packed)
}

/// Where the sample's planes begin in the packed chunk.
const SCALES: usize = HEADER_BYTES;
const PLACES: usize = SCALES + 1024;
const LENGTHS: usize = PLACES + 64;
const CDFS: usize = LENGTHS + 320;
const STREAMS: usize = CDFS + 5312;

/// What unpacking the changed sample says, on every rung.
fn verdict(change: impl FnOnce(&mut [u8])) -> Result<Vec<u16>> {
    let (geometry, mut packed) = sample();
    change(&mut packed);
    seal(&mut packed);
    let unpack = |kernels: &Kernels| {
        let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
        let with = With { kernels, ..PLAIN };
        with.try_unpack(&CacheGen, &geometry, &packed, &mut chunk).map(|()| chunk)
    };
    let result = unpack(&KERNELS);
    for (name, kernels) in &rungs() {
        assert!(unpack(kernels) == result, "{name}");
    }
    result
}

fn refused(change: impl FnOnce(&mut [u8])) -> &'static str {
    let Error { code, what, .. } = verdict(change).unwrap_err();
    assert_eq!(code, Code::Corrupt);
    what
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn forged_planes_are_refused() {
    for scale in [0x7C00u16, 0x8000, 0xFFFF] {
        let put =
            |packed: &mut [u8]| packed[SCALES + 998..][..2].copy_from_slice(&scale.to_le_bytes());
        assert_eq!(refused(put), "packed scale");
    }
    for (part, change) in (0..3).flat_map(|part| [1, 64, u32::MAX].map(|change| (part, change))) {
        let what = refused(|packed| {
            let place = number(packed, PLACES + 4 * part).wrapping_add(change);
            packed[PLACES + 4 * part..][..4].copy_from_slice(&place.to_le_bytes());
        });
        assert_eq!(what, "packed part's place");
    }
    for (row, length) in [(0, u32::MAX), (39, 1 << 20), (79, 1 << 31)] {
        let what = refused(|packed| {
            packed[LENGTHS + 4 * row..][..4].copy_from_slice(&length.to_le_bytes());
        });
        assert_eq!(what, "packed stream's length");
    }
    // 64 streams are a byte shorter, and the places agree: only the payload does not.
    let what = refused(|packed| {
        let mut less = |at: usize, bytes: u32| {
            let number = number(packed, at) - bytes;
            packed[at..at + 4].copy_from_slice(&number.to_le_bytes());
        };
        (16..80).for_each(|row| less(LENGTHS + 4 * row, 1));
        less(PLACES + 4, 24);
        less(PLACES + 8, 64);
    });
    assert_eq!(what, "packed streams");
    let (_, packed) = sample();
    for at in [SCALES + 1000, PLACES - 1, PLACES + 12, CDFS + 5280, STREAMS - 1, packed.len() - 1] {
        assert_eq!(refused(|packed| packed[at] = 1), "packed padding", "byte {at}");
    }
}

#[test]
fn forged_streams_and_frequencies_are_refused() {
    // A byte more for one channel and one less for the next.
    let what = refused(|packed| {
        let [one, next] = [number(packed, LENGTHS), number(packed, LENGTHS + 4)];
        packed[LENGTHS..][..4].copy_from_slice(&(one + 1).to_le_bytes());
        packed[LENGTHS + 4..][..4].copy_from_slice(&(next - 1).to_le_bytes());
    });
    assert_eq!(what, "packed stream");
    // A stream of no bytes.
    let what = refused(|packed| {
        let [one, next] = [number(packed, LENGTHS), number(packed, LENGTHS + 4)];
        packed[LENGTHS..][..4].copy_from_slice(&[0; 4]);
        packed[LENGTHS + 4..][..4].copy_from_slice(&(one + next).to_le_bytes());
    });
    assert_eq!(what, "packed stream");
    // Symbols that there are not: frequencies of none but the last.
    let what = refused(|packed| {
        for entry in 1..32u16 {
            packed[CDFS + 2 * usize::from(entry)..][..2].copy_from_slice(&entry.to_le_bytes());
        }
    });
    assert_eq!(what, "packed stream");
    for row in [0, 31, 39, 40, 79] {
        for (entry, value) in [(0, 1u16), (1, 0), (17, 0), (17, u16::MAX), (31, 65535), (32, 65534)]
        {
            let at = CDFS + 66 * row + 2 * entry;
            let what = refused(|packed| packed[at..at + 2].copy_from_slice(&value.to_le_bytes()));
            assert_eq!(what, "packed frequencies", "entry {entry} of {row}");
        }
    }
    // The same fault in two channels that are checked at once.
    let what = refused(|packed| {
        [3, 4].into_iter().for_each(|row| packed[CDFS + 66 * row + 34..][..2].fill(0));
    });
    assert_eq!(what, "packed frequencies");
}

#[test]
fn random_payloads_under_right_checksums_never_panic() {
    let mut random = Random::new(97);
    let (geometry, sample) = sample();
    let mut verdicts = [0; 2];
    for round in 0..1500 {
        let result = verdict(|packed| {
            let planes = [SCALES, PLACES, LENGTHS, CDFS, STREAMS, packed.len()];
            let plane = if round % 2 == 0 { 0 } else { random.below(5) as usize };
            for _ in 0..=random.below(4) {
                let at = random.below((planes[plane + 1] - planes[plane]) as u64) as usize;
                packed[planes[plane] + at] = random.byte();
            }
        });
        verdicts[usize::from(result.is_ok())] += 1;
        if let Ok(values) = result {
            cycle(&geometry, &values);
        }
    }
    assert!(verdicts.iter().all(|&count| count > 100), "{verdicts:?}");
    assert!(sample.len() > STREAMS);
}
