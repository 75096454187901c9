//! Packed chunks: unpacking gives an error and leaves the chunk alone, or gives a chunk that packs
//! to the same bytes from then on. The portable kernels and this machine's own must agree.
//!
//! ```text
//! 0 mode: bit 0 codec, bits 1 and 2 how the packed chunk is made,
//!   bit 3 raw payload, bit 4 channel-major, bits 5 and 6 codec      4 layer
//! 1 kv_heads     2 head_dim, an index     3 tokens                  5 chunk
//! 6 the packed chunk, or what it is made from
//! ```

use super::reader::Reader;
use mzcache::codec::{ChunkLayout, Codec, Geometry, HEADER_BYTES, Work, codec};
use mzcache::kernel::{CpuFlags, Kernels};
use mzcache::limits::CHUNK_TOKENS;
use mzcache::units::{ChunkId, ChunkIndex, CodecId, KvShape, LayerIndex};

/// Where the packed chunk begins in an input.
pub const PACKED_AT: usize = 6;
/// Head sizes that codecs take, and at the end some that they refuse.
const HEAD_DIMS: [u16; 12] = [32, 40, 64, 72, 80, 96, 128, 56, 0, 33, 264, 28];
/// Stands in the chunk before it is unpacked into.
const UNTOUCHED: u16 = 0xDEAD;
/// Bit 0 is set when the payload is that of the raw codec.
const FLAGS_AT: usize = 7;
const PAYLOAD_CRC_AT: usize = 24;
const HEADER_CRC_AT: usize = 60;

/// Unpacks the bytes, as they are or under right checksums; whether a chunk came out.
pub fn packed(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let mode = reader.byte();
    let codec = codec(codec_of(mode));
    let geometry = geometry(&mut reader, mode >> 4 & 1 != 0);
    let kernels = [Kernels::portable(), Kernels::select(CpuFlags::detect())];
    if !is_legal(&geometry) {
        let mut work = Work::new(&kernels[0]);
        let error = codec.unpack(&mut work, &geometry, reader.0, &mut []).unwrap_err();
        assert!(!error.what.is_empty());
        return false;
    }
    let packed = match mode >> 1 & 3 {
        0 => reader.0.to_vec(),
        1 => sealed(&kernels[0], reader.0.to_vec()),
        2 if codec.id() == CodecId::CacheGen => patched(&kernels, codec, &geometry, reader.0),
        2 => forged(&kernels[0], codec, &geometry, mode >> 3 & 1 != 0, reader.0),
        _ => {
            let chunk = chunk_of(&geometry, reader.0);
            let packed = pack(&kernels, codec, &geometry, &chunk);
            let Some(back) = unpack(&kernels, codec, &geometry, &packed) else {
                unreachable!("a packed chunk unpacks");
            };
            assert!(!codec.properties().is_lossless || back == chunk);
            packed
        }
    };
    let Some(first) = unpack(&kernels, codec, &geometry, &packed) else { return false };
    let settled = pack(&kernels, codec, &geometry, &first);
    let second = unpack(&kernels, codec, &geometry, &settled);
    let Some(second) = second else { unreachable!("a packed chunk unpacks") };
    assert!(!codec.properties().is_lossless || first == second);
    assert_eq!(pack(&kernels, codec, &geometry, &second), settled);
    true
}

/// Inputs that hold a chunk as that codec packs it now, in its own form: behind the checksums it
/// has, and behind checksums that are made anew. Both are accepted. `None` for codecs that other
/// targets are for.
pub(super) fn seeds(id: CodecId) -> Option<[Vec<u8>; 2]> {
    // Bits 1 and 2 say how the chunk is made.
    let mode = (0..=u8::MAX).find(|mode| mode & 6 == 0 && codec_of(*mode) == id)?;
    let kernels = [Kernels::portable(), Kernels::select(CpuFlags::detect())];
    // As few tokens as the codec's own form takes.
    [6, 9, 255].into_iter().find_map(|tokens| {
        let head = [1, 0, tokens, 5, 9];
        let geometry = geometry(&mut Reader(&head), false);
        let values: Vec<u8> = (0..999u16)
            .flat_map(|n| (n.wrapping_mul(40_503) & 0x87FF | 0x3800).to_le_bytes())
            .collect();
        let packed = pack(&kernels, codec(id), &geometry, &chunk_of(&geometry, &values));
        let input = |mode| [&[mode][..], &head, &packed].concat();
        (packed[FLAGS_AT] & 1 == 0).then(|| [input(mode), input(mode | 2)])
    })
}

fn codec_of(mode: u8) -> CodecId {
    match (mode & 1, mode >> 5 & 3) {
        (0, _) => CodecId::Raw,
        (_, 0) => CodecId::Q8,
        (_, 1) => CodecId::Kv4,
        _ => CodecId::CacheGen,
    }
}

fn geometry(reader: &mut Reader<'_>, by_channels: bool) -> Geometry {
    let kv_heads = u16::from(reader.byte() % 3);
    let head_dim = reader.pick(&HEAD_DIMS);
    // Few, for the sake of speed, or almost a whole chunk.
    let tokens = match u16::from(reader.byte()) {
        byte @ 0..250 => byte % 10 + 1,
        byte => CHUNK_TOKENS - (byte - 250),
    };
    let layer = LayerIndex::new(reader.byte().into());
    let chunk = ChunkIndex::new(reader.byte().into());
    let shape = KvShape { layers: 30, kv_heads, head_dim };
    let layout = match by_channels {
        true => ChunkLayout::ChannelMajor,
        false => ChunkLayout::TokenMajor,
    };
    Geometry { shape, id: ChunkId { layer, chunk }, tokens, layout }
}

fn is_legal(geometry: &Geometry) -> bool {
    let head_dim = geometry.shape.head_dim;
    geometry.shape.kv_heads > 0 && (32..=256).contains(&head_dim) && head_dim.is_multiple_of(8)
}

/// A chunk that nobody wrote to.
pub(super) fn untouched(geometry: &Geometry) -> Vec<u16> {
    vec![UNTOUCHED; 2 * geometry.shape.block_values()]
}

/// Where the values lie that a codec reads and writes, in memory order.
pub(super) fn valid(geometry: &Geometry) -> impl Iterator<Item = usize> {
    let (head_dim, tokens) = (usize::from(geometry.shape.head_dim), usize::from(geometry.tokens));
    let (rows, stride, columns) = match geometry.layout {
        ChunkLayout::TokenMajor => (tokens, head_dim, head_dim),
        ChunkLayout::ChannelMajor => (head_dim, usize::from(CHUNK_TOKENS), tokens),
    };
    let part = usize::from(CHUNK_TOKENS) * head_dim;
    (0..2 * usize::from(geometry.shape.kv_heads))
        .flat_map(move |head| (0..rows).map(move |row| head * part + row * stride))
        .flat_map(move |start| start..start + columns)
}

/// Runs `run` with scratch that starts where a codec wants it.
fn with_work<T>(
    kernels: &Kernels,
    codec: &dyn Codec,
    geometry: &Geometry,
    run: impl FnOnce(&mut Work<'_>) -> T,
) -> T {
    let bytes = codec.scratch_bytes(geometry);
    let mut memory = vec![0x5A; bytes + 63];
    let start = memory.as_ptr().align_offset(64);
    run(&mut Work { scratch: &mut memory[start..][..bytes], ..Work::new(kernels) })
}

/// Unpacks with both kernels. `None` after an error, which must leave the chunk alone, unless the
/// codec finds wrong bytes only when it reads them.
fn unpack(
    kernels: &[Kernels; 2],
    codec: &dyn Codec,
    geometry: &Geometry,
    packed: &[u8],
) -> Option<Vec<u16>> {
    let unpack = |kernels: &Kernels| {
        let mut chunk = untouched(geometry);
        let result = with_work(kernels, codec, geometry, |work| {
            codec.unpack(work, geometry, packed, &mut chunk)
        });
        (result, chunk)
    };
    let unpacked = unpack(&kernels[0]);
    let (result, mut chunk) = unpack(&kernels[1]);
    assert!(result == unpacked.0 && chunk == unpacked.1, "kernels differ");
    if result.is_ok() || codec.id() == CodecId::CacheGen {
        valid(geometry).for_each(|place| chunk[place] = UNTOUCHED);
        assert!(chunk == untouched(geometry), "a value beyond the tokens was written");
    }
    assert!(chunk == untouched(geometry), "an error left its mark");
    result.ok().map(|()| unpacked.1)
}

/// Packs with both kernels, into a buffer of the greatest size.
fn pack(kernels: &[Kernels; 2], codec: &dyn Codec, geometry: &Geometry, chunk: &[u16]) -> Vec<u8> {
    let pack = |kernels: &Kernels| {
        let mut packed = vec![0xA5; codec.packed_bytes_max(geometry)];
        let bytes = with_work(kernels, codec, geometry, |work| {
            codec.pack(work, geometry, chunk, &mut packed).unwrap()
        });
        packed.truncate(bytes);
        packed
    };
    let packed = pack(&kernels[0]);
    assert!(pack(&kernels[1]) == packed, "kernels differ");
    packed
}

/// A chunk whose valid values are these bytes, over and over.
fn chunk_of(geometry: &Geometry, bytes: &[u8]) -> Vec<u16> {
    let mut chunk = untouched(geometry);
    let (pairs, _) = bytes.as_chunks::<2>();
    let mut values = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).cycle();
    for place in valid(geometry) {
        chunk[place] = values.next().unwrap_or(0);
    }
    chunk
}

/// The same bytes under right checksums.
pub(super) fn sealed(kernels: &Kernels, mut packed: Vec<u8>) -> Vec<u8> {
    let Some((header, payload)) = packed.split_at_mut_checked(HEADER_BYTES) else { return packed };
    // The payload ends where the header says; bytes behind it are not summed.
    let stated = u32::from_le_bytes([header[20], header[21], header[22], header[23]]);
    let bytes = usize::try_from(stated).unwrap_or(usize::MAX).min(payload.len());
    let payload_crc = kernels.crc32c.call(0, &payload[..bytes]);
    header[PAYLOAD_CRC_AT..][..4].copy_from_slice(&payload_crc.to_le_bytes());
    let header_crc = kernels.crc32c.call(0, &header[..HEADER_CRC_AT]);
    header[HEADER_CRC_AT..].copy_from_slice(&header_crc.to_le_bytes());
    packed
}

/// A right header before a payload of these bytes, which are filled up with zeros.
fn forged(
    kernels: &Kernels,
    codec: &dyn Codec,
    geometry: &Geometry,
    raw: bool,
    payload: &[u8],
) -> Vec<u8> {
    // A value that is not finite makes every codec store the chunk as it is.
    let value = if raw { f16_infinity() } else { [0; 2] };
    let chunk = chunk_of(geometry, &value);
    let mut packed = vec![0; codec.packed_bytes_max(geometry)];
    let bytes = with_work(kernels, codec, geometry, |work| {
        codec.pack(work, geometry, &chunk, &mut packed).unwrap()
    });
    packed.truncate(bytes);
    let room = &mut packed[HEADER_BYTES..];
    room.fill(0);
    let count = payload.len().min(room.len());
    room[..count].copy_from_slice(&payload[..count]);
    sealed(kernels, packed)
}

/// A packed chunk of the first 16 bytes in which the others, three by three, are changes: a place
/// in the payload, in two bytes, and what is added there.
fn patched(kernels: &[Kernels; 2], codec: &dyn Codec, geometry: &Geometry, data: &[u8]) -> Vec<u8> {
    let (values, changes) = data.split_at(data.len().min(16));
    let mut packed = pack(kernels, codec, geometry, &chunk_of(geometry, values));
    let payload = &mut packed[HEADER_BYTES..];
    for &[low, high, difference] in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % payload.len();
        payload[at] = payload[at].wrapping_add(difference);
    }
    sealed(&kernels[0], packed)
}

fn f16_infinity() -> [u8; 2] {
    0x7C00u16.to_le_bytes()
}
