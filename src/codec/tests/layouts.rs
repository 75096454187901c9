//! Both layouts of a chunk, its parts one by one, and the scratch that this takes.

use super::*;
use crate::codec::{Opened, Q8};
use crate::error::Code;

/// The same values in the other layout.
pub(super) fn transposed(geometry: &Geometry, chunk: &[u16]) -> (Geometry, Vec<u16>) {
    let (dim, values) = (usize::from(geometry.shape.head_dim), geometry.part_values());
    let (layout, columns) = match geometry.layout {
        ChunkLayout::TokenMajor => (ChunkLayout::ChannelMajor, dim),
        ChunkLayout::ChannelMajor => (ChunkLayout::TokenMajor, 256),
    };
    let places = (0..chunk.len()).map(|place| {
        let (part, place) = (place / values, place % values);
        let (row, column) = (place / (values / columns), place % (values / columns));
        part * values + column * columns + row
    });
    (Geometry { layout, ..*geometry }, places.map(|place| chunk[place]).collect())
}

#[test]
fn packed_bytes_do_not_depend_on_the_layout() {
    let mut random = Random::new(31);
    for head_dim in HEAD_DIMS.into_iter().chain([40, 104, 248]) {
        for tokens in [1, 2, 15, 16, 17, 31, 33, 100, 255, 256] {
            let geometry = geometry(2, head_dim, tokens);
            let values = chunk(&geometry, finite(&mut random));
            let (other, other_values) = transposed(&geometry, &values);
            assert_eq!(transposed(&other, &other_values), (geometry, values.clone()));
            let packed = pack(&Q8, &geometry, &values);
            let mut other_packed = pack(&Q8, &other, &other_values);
            assert_eq!((packed[7], other_packed[7]), (0, 2));
            other_packed[..64].copy_from_slice(&packed[..64]);
            assert_eq!(packed, other_packed, "{head_dim} {tokens}");
        }
    }
}

#[test]
fn unpacked_values_do_not_depend_on_the_layout() {
    let mut random = Random::new(32);
    for id in CodecId::ALL {
        for (head_dim, tokens) in [(32, 1), (64, 256), (72, 19), (256, 100)] {
            let geometry = geometry(2, head_dim, tokens);
            let values = chunk(&geometry, finite(&mut random));
            let (other, other_values) = transposed(&geometry, &values);
            let unpacked = unpack(codec(id), &geometry, &pack(codec(id), &geometry, &values));
            let other_packed = pack(codec(id), &other, &other_values);
            let other_unpacked = unpack(codec(id), &other, &other_packed);
            assert_eq!(transposed(&other, &other_unpacked).1, unpacked);
        }
    }
}

fn open<'a>(id: CodecId, geometry: &Geometry, packed: &'a [u8]) -> Opened<'a> {
    let With { steps, .. } = usual(codec(id), geometry);
    let opened = codec(id).open(&KERNELS, geometry, steps, packed).unwrap();
    assert_eq!(opened.geometry(), geometry);
    opened
}

#[test]
fn parts_can_be_unpacked_alone_and_in_any_order() {
    let mut random = Random::new(33);
    for (id, layout) in CodecId::ALL.into_iter().flat_map(|id| LAYOUTS.map(|l| (id, l))) {
        for special in [None, Some(0x7C00)] {
            let geometry = Geometry { layout, ..geometry(3, 72, 21) };
            let mut values = chunk(&geometry, finite(&mut random));
            values[0] = special.unwrap_or(values[0]);
            let packed = pack(codec(id), &geometry, &values);
            let expected = unpack(codec(id), &geometry, &packed);
            let opened = open(id, &geometry, &packed);
            let mut scratch = Scratch::new(codec(id), &geometry);
            let With { kernels, steps } = usual(codec(id), &geometry);
            let mut unpacked = std::vec![UNTOUCHED; values.len()];
            for part in [5, 0, 3, 1, 4, 2] {
                let mut work = Work { kernels, steps, scratch: scratch.bytes() };
                let place = part * geometry.part_values();
                let values = &mut unpacked[place..][..geometry.part_values()];
                codec(id).unpack_part(&mut work, &opened, part, values).unwrap();
            }
            assert_eq!(unpacked, expected);
        }
    }
}

#[test]
fn wrong_arguments_of_a_part_are_refused() {
    let geometry = geometry(1, 64, 3);
    let values = chunk(&geometry, || 0x3C00);
    let packed = pack(codec(CodecId::Raw), &geometry, &values);
    let opened = open(CodecId::Raw, &geometry, &packed);
    let mut work = Work::new(&KERNELS);
    let mut part = std::vec![UNTOUCHED; geometry.part_values()];
    let cases = [
        (CodecId::Q8, 0, part.len(), "opened chunk's codec"),
        (CodecId::Raw, 2, part.len(), "part"),
        (CodecId::Raw, usize::MAX, part.len(), "part"),
        (CodecId::Raw, 0, part.len() - 1, "part buffer"),
    ];
    for (id, index, length, what) in cases {
        let values = &mut part[..length];
        let error = codec(id).unpack_part(&mut work, &opened, index, values).unwrap_err();
        assert_eq!((error.code, error.what), (Code::InvalidArgument, what));
    }
    assert!(part.iter().all(|&value| value == UNTOUCHED));
}

#[test]
fn scratch_that_is_short_or_misaligned_is_refused() {
    for id in CodecId::ALL {
        let geometry = Geometry { layout: ChunkLayout::ChannelMajor, ..geometry(1, 64, 256) };
        let values = chunk(&geometry, || 0x3C00);
        let packed = pack(codec(id), &geometry, &values);
        let needed = codec(id).scratch_bytes(&geometry);
        if needed == 0 {
            continue;
        }
        let mut memory = std::vec![0; needed + 128];
        let With { kernels, steps } = usual(codec(id), &geometry);
        let start = memory.as_ptr().align_offset(64);
        for (range, code, what) in [
            (start..start + needed - 1, Code::MemoryTooSmall, "codec scratch"),
            (start + 2..start + 2 + needed, Code::InvalidArgument, "codec scratch alignment"),
        ] {
            let mut work = Work { kernels, steps, scratch: &mut memory[range] };
            let mut unpacked = std::vec![UNTOUCHED; values.len()];
            let error = codec(id).unpack(&mut work, &geometry, &packed, &mut unpacked).unwrap_err();
            assert_eq!((error.code, error.what), (code, what));
            assert!(unpacked.iter().all(|&value| value == UNTOUCHED));
            let mut again = packed.clone();
            let error = codec(id).pack(&mut work, &geometry, &values, &mut again).unwrap_err();
            assert_eq!((error.code, error.what), (code, what));
        }
    }
}
