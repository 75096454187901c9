//! What packing and unpacking make of values: sizes, errors, idempotence, untouched rows.

use super::*;
use crate::codec::{HEADER_BYTES, PLANE_ALIGN, find};
use crate::error::Code;
use crate::kernel::portable::f32_from_f16;

/// Packs, unpacks, packs again; both packed chunks and both unpacked ones must agree.
fn cycle_twice(codec: &dyn Codec, geometry: &Geometry, chunk: &[u16]) -> Vec<u16> {
    let packed = pack(codec, geometry, chunk);
    let unpacked = unpack(codec, geometry, &packed);
    let packed_again = pack(codec, geometry, &unpacked);
    assert_eq!(packed, packed_again, "{} {geometry:?}", codec.id().name());
    assert_eq!(unpacked, unpack(codec, geometry, &packed_again));
    let mut rest = unpacked.clone();
    valid(geometry).for_each(|place| rest[place] = UNTOUCHED);
    assert!(rest.iter().all(|&value| value == UNTOUCHED), "a value past the tokens was written");
    if codec.properties().is_lossless {
        assert_eq!(unpacked, chunk);
    }
    unpacked
}

#[test]
fn the_registry_knows_every_codec_by_its_number() {
    // Files name them.
    for (id, version) in CodecId::ALL.into_iter().zip([1, 1, 2, 1, 1]) {
        assert_eq!((codec(id).id(), codec(id).version()), (id, version));
        assert_eq!(find(id as u8, version).unwrap().id(), id);
        let error = find(id as u8, version + 1).err().unwrap();
        assert_eq!((error.code, error.what), (Code::Unsupported, "packed codec version"));
    }
    let error = find(CodecId::ALL.len() as u8, 1).err().unwrap();
    assert_eq!((error.code, error.what), (Code::Unsupported, "packed codec"));
}

#[test]
fn real_chunks_save_46_9_percent() {
    let geometry = geometry(3, 64, 256);
    for values in real_chunks() {
        let q8 = codec(CodecId::Q8);
        let packed = pack(q8, &geometry, &values);
        let saving = 1.0 - packed.len() as f64 / (2 * values.len()) as f64;
        assert!(saving >= 0.469, "{saving}");
        assert_eq!(packed.len(), q8.packed_bytes_usual(&geometry));
        let first = unpack(q8, &geometry, &packed);
        let error: f64 = values.iter().zip(&first).map(|(a, b)| distance(*a, *b)).sum();
        let power: f64 = values.iter().map(|&a| distance(a, 0)).sum();
        let relative = (error / power).sqrt();
        assert!((0.001..0.012).contains(&relative), "relative error {relative}");
    }
}

/// The squared distance of two F16 values.
fn distance(a: u16, b: u16) -> f64 {
    (f64::from(f32_from_f16(a)) - f64::from(f32_from_f16(b))).powi(2)
}

#[test]
fn every_token_count_and_head_size_cycles() {
    let mut random = Random::new(11);
    for (tokens, layout) in (1..=256).flat_map(|tokens| LAYOUTS.map(|layout| (tokens, layout))) {
        for id in CodecId::ALL {
            let geometry = Geometry { layout, ..geometry(2, 64, tokens) };
            cycle_twice(codec(id), &geometry, &chunk(&geometry, finite(&mut random)));
        }
    }
    for head_dim in HEAD_DIMS.into_iter().chain([40, 72, 120, 136, 200, 248]) {
        for tokens in [1, 2, 3, 31, 255, 256] {
            for id in CodecId::ALL {
                let geometry = geometry(3, head_dim, tokens);
                cycle_twice(codec(id), &geometry, &chunk(&geometry, finite(&mut random)));
            }
        }
    }
    let geometry = geometry(64, 256, 256);
    for id in CodecId::ALL {
        cycle_twice(codec(id), &geometry, &chunk(&geometry, finite(&mut random)));
    }
}

#[test]
fn sizes_follow_from_the_geometry() {
    for head_dim in HEAD_DIMS {
        for tokens in [1, 7, 32, 255, 256] {
            let geometry = geometry(3, head_dim, tokens);
            let (rows, dim) = (6 * usize::from(tokens), usize::from(head_dim));
            let plane = |bytes: usize| bytes.next_multiple_of(PLANE_ALIGN);
            let raw = HEADER_BYTES + plane(2 * rows * dim);
            let q8 = HEADER_BYTES + plane(2 * rows * dim.div_ceil(64)) + plane(rows * dim);
            assert_eq!(codec(CodecId::Raw).packed_bytes_max(&geometry), raw);
            assert_eq!(codec(CodecId::Raw).packed_bytes_usual(&geometry), raw);
            assert_eq!(codec(CodecId::Q8).packed_bytes_max(&geometry), raw.max(q8));
            assert_eq!(codec(CodecId::Q8).packed_bytes_usual(&geometry), q8);
        }
    }
}

/// Callers set it aside for each worker.
#[test]
fn scratch_is_what_is_worked_on_and_no_more() {
    for head_dim in HEAD_DIMS {
        let dim = usize::from(head_dim);
        let of = |id| {
            LAYOUTS.map(|layout| {
                let geometry = Geometry { layout, ..geometry(2, head_dim, 100) };
                codec(id).scratch_bytes(&geometry)
            })
        };
        assert_eq!(of(CodecId::Raw), [0; 2]);
        assert_eq!(of(CodecId::Q8), [0, 2 * 16 * dim], "some tokens of a head");
        assert_eq!(of(CodecId::Kv4), [0, 2 * 100 * dim], "a head");
        // A head by channels, or 32 of them and the symbols of a row more and of one for room.
        let unpacking: usize = (34 * 296usize).next_multiple_of(64) + 2 * 256 * 32;
        assert_eq!(of(CodecId::Kvh), [unpacking.max(2 * 256 * dim); 2]);
        // 32 channels, their symbols, and streams of at most 18 bits a symbol.
        assert_eq!(of(CodecId::CacheGen), [32 * (2 * 256 + 256 + 256 * 18 / 8 + 16); 2]);
    }
}

/// Plans reckon with them, so they are neither of nothing nor of everything.
#[test]
fn usual_sizes_are_near_what_real_chunks_take() {
    let geometry = geometry(8, 128, 256);
    let raw = codec(CodecId::Raw).packed_bytes_usual(&geometry);
    for (id, least, most) in
        [(CodecId::Kv4, 25, 32), (CodecId::Kvh, 17, 20), (CodecId::CacheGen, 17, 30)]
    {
        let percent = 100 * codec(id).packed_bytes_usual(&geometry) / raw;
        assert!((least..=most).contains(&percent), "{}: {percent} %", id.name());
    }
}

/// Fills a chunk by repeating `values`, cycles it through q8 and returns what came back for them.
fn cycle_pattern(values: &[u16]) -> Vec<u16> {
    let geometry = geometry(1, 64, 3);
    let mut pattern = values.iter().copied().cycle();
    let chunk = chunk(&geometry, || pattern.next().unwrap());
    let unpacked = cycle_twice(codec(CodecId::Q8), &geometry, &chunk);
    unpacked[..values.len()].to_vec()
}

#[test]
fn exceptional_finite_values() {
    const MAX: u16 = 0x7BFF;
    assert_eq!(cycle_pattern(&[0]), [0]);
    assert_eq!(cycle_pattern(&[0x8000]), [0], "minus zero becomes zero");
    assert_eq!(cycle_pattern(&[0x0001, 0x8001, 0x8000]), [0x0001, 0x8001, 0], "subnormals");
    assert_eq!(cycle_pattern(&[0x007F, 0x0040, 0x8003]), [0x007F, 0x0040, 0x8003]);
    // The greatest value keeps its code, and what comes back is finite: 127 * 515.5 in F16.
    assert_eq!(cycle_pattern(&[MAX, MAX | 0x8000, 0]), [0x7BFE, 0xFBFE, 0]);
    // Equal values come back equal, within 2^-11 of what they were; below 2^-7 exactly.
    for half in (1..=MAX).step_by(41) {
        let back = cycle_pattern(&[half, half | 0x8000]);
        assert_eq!(back[1], back[0] | 0x8000);
        let error = distance(back[0], half).sqrt();
        let is_exact = half < 0x2000;
        let error_max = if is_exact { 0.0 } else { f64::from(f32_from_f16(half)) / 1000.0 };
        assert!(error <= error_max, "{half:#06x} became {:#06x}", back[0]);
    }
}

#[test]
fn a_chunk_with_one_value_that_is_not_finite_is_stored_raw() {
    let mut random = Random::new(12);
    for special in [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF] {
        let geometry = geometry(2, 80, 5);
        let mut values = chunk(&geometry, finite(&mut random));
        let last = valid(&geometry).last().unwrap();
        values[last] = special;
        values[0] = 0x8000;
        let q8 = codec(CodecId::Q8);
        let packed = pack(q8, &geometry, &values);
        assert_eq!(packed.len(), codec(CodecId::Raw).packed_bytes_max(&geometry));
        assert_eq!(cycle_twice(q8, &geometry, &values), values, "to the bit, minus zero too");
        // What stands in rows that are not valid does not count.
        values[last] = 0;
        values[last + 1] = special;
        assert_eq!(pack(q8, &geometry, &values).len(), q8.packed_bytes_usual(&geometry));
    }
}

#[test]
fn every_rung_packs_and_unpacks_alike() {
    let mut random = Random::new(13);
    let rungs = rungs();
    for (head_dim, layout) in HEAD_DIMS.into_iter().flat_map(|dim| LAYOUTS.map(|l| (dim, l))) {
        let geometry = Geometry { layout, ..geometry(2, head_dim, 37) };
        let values = chunk(&geometry, finite(&mut random));
        for (id, (name, own)) in
            CodecId::ALL.into_iter().flat_map(|id| rungs.iter().map(move |rung| (id, rung)))
        {
            let expected = pack(codec(id), &geometry, &values);
            let with = With { kernels: own, ..usual(codec(id), &geometry) };
            assert_eq!(with.pack(codec(id), &geometry, &values), expected, "{name}");
            let unpacked = with.unpack(codec(id), &geometry, &expected);
            assert_eq!(unpacked, unpack(codec(id), &geometry, &expected), "{name}");
        }
    }
}
