//! Wrong arguments and damaged or foreign bytes: each gives its typed error and leaves the chunk.

use super::*;
use crate::codec::HEADER_BYTES;
use crate::error::{Code, Error};

/// Unpacks what must be refused, and sees that the chunk stayed as it was.
fn refused(id: CodecId, geometry: &Geometry, packed: &[u8]) -> Error {
    let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
    let error = PLAIN.try_unpack(codec(id), geometry, packed, &mut chunk).unwrap_err();
    assert!(chunk.iter().all(|&value| value == UNTOUCHED), "{error}");
    error
}

/// A packed chunk of each kind: raw, q8, and q8 that fell back to raw. The last two leave padding.
fn samples() -> [(CodecId, Geometry, Vec<u8>); 3] {
    let mut random = Random::new(21);
    let geometry = geometry(1, 72, 1);
    let mut values = chunk(&geometry, finite(&mut random));
    let raw = pack(codec(CodecId::Raw), &geometry, &values);
    let q8 = pack(codec(CodecId::Q8), &geometry, &values);
    values[71] = 0x7C00;
    let fallen_back = pack(codec(CodecId::Q8), &geometry, &values);
    assert_ne!(q8.len(), fallen_back.len());
    [(CodecId::Raw, raw), (CodecId::Q8, q8), (CodecId::Q8, fallen_back)]
        .map(|(id, packed)| (id, geometry, packed))
}

/// Writes both checksums anew, so that a change of other bytes is not found by them.
pub(super) fn seal(packed: &mut [u8]) {
    let crc = |bytes: &[u8]| KERNELS.crc32c.call(0, bytes).to_le_bytes();
    let payload_crc = crc(&packed[HEADER_BYTES..]);
    packed[24..28].copy_from_slice(&payload_crc);
    let header_crc = crc(&packed[..60]);
    packed[60..64].copy_from_slice(&header_crc);
}

#[test]
fn every_single_flipped_bit_is_an_error() {
    for (id, geometry, packed) in samples() {
        for bit in 0..8 * packed.len() {
            let mut damaged = packed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = refused(id, &geometry, &damaged);
            let expected = match bit / 8 {
                0..4 => Code::BadMagic,
                4 => Code::Unsupported,
                _ => Code::Corrupt,
            };
            assert_eq!(error.code, expected, "bit {bit}: {error}");
        }
    }
}

#[test]
fn every_length_that_is_too_short_is_truncated() {
    for (id, geometry, packed) in samples() {
        for length in 0..packed.len() {
            let error = refused(id, &geometry, &packed[..length]);
            let what = if length < HEADER_BYTES { "packed header" } else { "packed payload" };
            assert_eq!((error.code, error.what), (Code::Truncated, what), "{length} bytes");
        }
    }
}

#[test]
fn bytes_behind_the_packed_chunk_are_ignored() {
    for (id, geometry, mut packed) in samples() {
        let expected = unpack(codec(id), &geometry, &packed);
        packed.resize(4096, 0xFF);
        assert_eq!(unpack(codec(id), &geometry, &packed), expected);
    }
}

/// What a header byte with another value leads to, although the checksums are right.
fn verdict(at: usize, value: u8, raw_flag_is_known: bool) -> (Code, &'static str) {
    match at {
        0..4 => (Code::BadMagic, "packed chunk"),
        4 => (Code::Unsupported, "packed header version"),
        5 if usize::from(value) < CodecId::ALL.len() => (Code::Mismatch, "packed codec"),
        5 => (Code::Unsupported, "packed codec"),
        6 => (Code::Unsupported, "packed codec version"),
        7 if value & !3 == 0 && (raw_flag_is_known || value & 1 == 0) => match value & 2 {
            0 => (Code::Corrupt, "packed payload bytes"),
            _ => (Code::Mismatch, "packed layout"),
        },
        7 => (Code::Unsupported, "packed flags"),
        8 | 9 => (Code::Mismatch, "packed kv_heads"),
        10 | 11 => (Code::Mismatch, "packed head_dim"),
        12 | 13 => (Code::Mismatch, "packed tokens"),
        14 | 15 => (Code::Mismatch, "packed layer"),
        16 | 17 => (Code::Mismatch, "packed chunk"),
        18 | 19 | 32..60 => (Code::Corrupt, "packed reserved bytes"),
        28..32 => (Code::Mismatch, "packed steps"),
        20..24 => (Code::Corrupt, "packed payload bytes"),
        _ => unreachable!("checksums are written anew"),
    }
}

#[test]
fn every_header_byte_with_every_value_under_a_right_checksum() {
    for (id, geometry, packed) in samples() {
        for at in (0..24).chain(28..60) {
            for value in (0..=255).filter(|&value| value != packed[at]) {
                let mut forged = packed.clone();
                forged[at] = value;
                seal(&mut forged);
                let error = refused(id, &geometry, &forged);
                let expected = verdict(at, value, id == CodecId::Q8);
                assert_eq!((error.code, error.what), expected, "byte {at} = {value}");
            }
        }
    }
}

#[test]
fn a_packed_chunk_of_another_place_or_size_is_a_mismatch() {
    let (id, own, packed) = samples()[1].clone();
    let mut other = own;
    other.id.layer = LayerIndex::new(6);
    assert_eq!(refused(id, &other, &packed).what, "packed layer");
    other = own;
    other.id.chunk = ChunkIndex::new(8);
    assert_eq!(refused(id, &other, &packed).what, "packed chunk");
    other = own;
    other.tokens = 2;
    assert_eq!(refused(id, &other, &packed).what, "packed tokens");
    other = own;
    other.shape.kv_heads = 2;
    assert_eq!(refused(id, &other, &packed).what, "packed kv_heads");
    other = own;
    other.shape.head_dim = 80;
    assert_eq!(refused(id, &other, &packed).what, "packed head_dim");
    other = own;
    other.layout = ChunkLayout::ChannelMajor;
    assert_eq!(refused(id, &other, &packed).what, "packed layout");
    assert_eq!(refused(CodecId::Raw, &own, &packed).what, "packed codec");
}

#[test]
fn forged_payloads_under_right_checksums() {
    for (id, geometry, packed) in samples() {
        let is_raw = packed[7] == 1 || id == CodecId::Raw;
        // One head of 72 values and one token: two rows of two groups; the rest of a plane is
        // padding.
        let padding: Vec<usize> = match is_raw {
            true => (64 + 288..packed.len()).collect(),
            false => (64 + 8..128).chain(128 + 144..packed.len()).collect(),
        };
        assert!(padding.len() > 10);
        for at in padding {
            let mut forged = packed.clone();
            forged[at] = 1;
            seal(&mut forged);
            let error = refused(id, &geometry, &forged);
            assert_eq!((error.code, error.what), (Code::Corrupt, "packed padding"), "byte {at}");
        }
    }
}

#[test]
fn scale_words_that_packing_never_writes_are_corrupt_and_codes_are_free() {
    let (id, geometry, packed) = samples()[1].clone();
    for word in 0..=u16::MAX {
        let mut forged = packed.clone();
        forged[66..68].copy_from_slice(&word.to_le_bytes());
        forged[128..272].fill(0x80);
        seal(&mut forged);
        let is_known = matches!(word, 0..=0x6007 | 0x8000..=0x9FFF);
        if is_known {
            unpack(codec(id), &geometry, &forged);
        } else {
            let error = refused(id, &geometry, &forged);
            assert_eq!((error.code, error.what), (Code::Corrupt, "packed scale word"));
            assert_eq!(error.value, i64::from(word));
        }
    }
}

#[test]
fn random_payloads_under_right_checksums_never_panic() {
    let mut random = Random::new(22);
    let mut results = [0; 2];
    for (id, geometry, packed) in samples() {
        for _ in 0..20_000 {
            let mut forged = packed.clone();
            for _ in 0..random.below(8) {
                let at = HEADER_BYTES + random.below((packed.len() - HEADER_BYTES) as u64) as usize;
                forged[at] = random.byte();
            }
            seal(&mut forged);
            let mut chunk = std::vec![0; 2 * geometry.shape.block_values()];
            let result = PLAIN.try_unpack(codec(id), &geometry, &forged, &mut chunk);
            results[usize::from(result.is_ok())] += 1;
        }
    }
    assert!(results.iter().all(|&count| count > 1000), "{results:?}");
}

#[test]
fn arguments_outside_their_ranges_are_refused() {
    let mut packed = std::vec![0; 1 << 20];
    let mut values = std::vec![0; 1 << 20];
    let cases = [
        (geometry(0, 64, 1), "kv_heads"),
        (geometry(65, 64, 1), "kv_heads"),
        (geometry(1, 24, 1), "head_dim"),
        (geometry(1, 36, 1), "head_dim"),
        (geometry(1, 264, 1), "head_dim"),
        (geometry(1, 64, 0), "tokens"),
        (geometry(1, 64, 257), "tokens"),
        (geometry(64, 256, 1), "chunk buffer"),
        (geometry(u16::MAX, u16::MAX, u16::MAX), "kv_heads"),
    ];
    for (geometry, what) in cases {
        for id in CodecId::ALL {
            let error = PLAIN.try_pack(codec(id), &geometry, &values, &mut packed).unwrap_err();
            assert_eq!((error.code, error.what), (Code::InvalidArgument, what));
            let error = PLAIN.try_unpack(codec(id), &geometry, &packed, &mut values).unwrap_err();
            assert_eq!((error.code, error.what), (Code::InvalidArgument, what));
            assert!(codec(id).packed_bytes_max(&geometry) >= HEADER_BYTES);
        }
    }
}

#[test]
fn a_packed_buffer_that_is_too_small_says_how_much_is_needed() {
    let geometry = geometry(1, 40, 7);
    let mut values = chunk(&geometry, || 0x3C00);
    let check = |id: CodecId, values: &[u16], needed: usize| {
        for length in (0..needed).step_by(7).chain([needed - 1]) {
            let mut packed = std::vec![0; length];
            let error = PLAIN.try_pack(codec(id), &geometry, values, &mut packed).unwrap_err();
            assert_eq!((error.code, error.what), (Code::MemoryTooSmall, "packed buffer"));
            assert!(usize::try_from(error.value).unwrap() <= needed && error.value > length as i64);
        }
        let mut packed = std::vec![0; needed];
        assert_eq!(PLAIN.try_pack(codec(id), &geometry, values, &mut packed), Ok(needed));
    };
    let raw_bytes = codec(CodecId::Raw).packed_bytes_max(&geometry);
    check(CodecId::Raw, &values, raw_bytes);
    check(CodecId::Q8, &values, codec(CodecId::Q8).packed_bytes_usual(&geometry));
    values[3] = 0x7E00;
    check(CodecId::Q8, &values, raw_bytes);
}

#[test]
fn an_odd_address_is_refused() {
    let geometry = geometry(1, 64, 2);
    let values = chunk(&geometry, || 0x3C00);
    let words = std::vec![0u16; 1000];
    let mut bytes = crate::arena::view::bytes_of(&words).to_vec();
    let odd = usize::from(bytes.as_ptr().addr().is_multiple_of(2));
    let q8 = codec(CodecId::Q8);
    let error = PLAIN.try_pack(q8, &geometry, &values, &mut bytes[odd..]).unwrap_err();
    assert_eq!((error.code, error.what), (Code::InvalidArgument, "packed buffer alignment"));
    let packed = pack(q8, &geometry, &values);
    bytes[odd..][..packed.len()].copy_from_slice(&packed);
    let error = refused(CodecId::Q8, &geometry, &bytes[odd..]);
    assert_eq!((error.code, error.what), (Code::InvalidArgument, "packed buffer alignment"));
}
