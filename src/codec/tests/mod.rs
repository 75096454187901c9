//! Helpers of the codec tests: chunks to pack, and a full cycle of packing and unpacking.

mod cycles;
mod hostile;

use super::{Codec, Geometry, codec};
use crate::kernel::Kernels;
use crate::kernel::support::{Random, rungs};
use crate::units::{ChunkId, ChunkIndex, CodecId, KvShape, LayerIndex};
use std::vec::Vec;

/// The oracle; `every_rung_packs_and_unpacks_alike` compares what this machine can do.
const KERNELS: Kernels = Kernels::portable();

/// Every head size that the tests walk through; 256 is the greatest.
const HEAD_DIMS: [u16; 7] = [32, 64, 80, 96, 128, 192, 256];

/// Stands in rows that a codec must not touch.
const UNTOUCHED: u16 = 0xDEAD;

fn geometry(kv_heads: u16, head_dim: u16, tokens: u16) -> Geometry {
    let id = ChunkId { layer: LayerIndex::new(5), chunk: ChunkIndex::new(9) };
    Geometry { shape: KvShape { layers: 30, kv_heads, head_dim }, id, tokens }
}

/// A chunk whose valid rows come from `value` and whose other rows are marked.
fn chunk(geometry: &Geometry, mut value: impl FnMut() -> u16) -> Vec<u16> {
    let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
    for rows in geometry.heads() {
        chunk[rows].fill_with(&mut value);
    }
    chunk
}

/// Random finite values whose exponents lie in a range that differs from chunk to chunk.
fn finite(random: &mut Random) -> impl FnMut() -> u16 {
    let exponent_max = 1 + random.below(31) as u16;
    move || random.u16() & 0x83FF | (random.u16() % exponent_max) << 10
}

/// Packs into a buffer of the greatest size that is filled with noise before.
fn pack(codec: &dyn Codec, geometry: &Geometry, chunk: &[u16]) -> Vec<u8> {
    let mut packed = std::vec![0xA5; codec.packed_bytes_max(geometry)];
    let bytes = codec.pack(&KERNELS, geometry, chunk, &mut packed).unwrap();
    assert_eq!(bytes % 64, 0);
    packed.truncate(bytes);
    packed
}

/// Unpacks into a marked chunk.
fn unpack(codec: &dyn Codec, geometry: &Geometry, packed: &[u8]) -> Vec<u16> {
    let mut chunk = std::vec![UNTOUCHED; 2 * geometry.shape.block_values()];
    codec.unpack(&KERNELS, geometry, packed, &mut chunk).unwrap();
    chunk
}

/// The two real chunks of the fixtures, in the library's order.
fn real_chunks() -> [Vec<u16>; 2] {
    let layer0: [&[u8]; 2] = [
        include_bytes!("../../../tests/fixtures/kv/layer00_chunk2_k.f16"),
        include_bytes!("../../../tests/fixtures/kv/layer00_chunk2_v.f16"),
    ];
    let layer19: [&[u8]; 2] = [
        include_bytes!("../../../tests/fixtures/kv/layer19_chunk7_k.f16"),
        include_bytes!("../../../tests/fixtures/kv/layer19_chunk7_v.f16"),
    ];
    [layer0, layer19].map(|blocks| {
        let mut chunk = Vec::new();
        for block in blocks {
            let (halves, _) = block.as_chunks::<2>();
            let rows: Vec<&[[u8; 2]]> = halves.chunks_exact(64).collect();
            assert_eq!(rows.len(), 256 * 3);
            for (head, token) in (0..3).flat_map(|head| (0..256).map(move |token| (head, token))) {
                chunk.extend(rows[3 * token + head].iter().map(|&half| u16::from_le_bytes(half)));
            }
        }
        chunk
    })
}
