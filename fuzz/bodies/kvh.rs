//! Chunks of the kvh codec: hostile payloads whose rows are read deep into, and round trips. The
//! portable kernels and this machine's own must agree.
//!
//! ```text
//! 0 mode: bits 0 and 1 what follows, bit 2 channel-major      3 tokens
//! 1 kv_heads     2 head_dim, an index                         4 exponent of K's steps
//! 5 values, a payload, rows, or changes of a packed chunk
//! ```

use super::packed::{sealed, untouched, valid};
use super::reader::Reader;
use mzcache::codec::{ChunkLayout, Codec, Geometry, HEADER_BYTES, Kvh, LayerSteps, Work};
use mzcache::kernel::{CpuFlags, Kernels};
use mzcache::units::{ChunkId, KvShape};
use mzcache::{Code, Result};

/// One geometry and its steps.
struct Case {
    kernels: [Kernels; 2],
    geometry: Geometry,
    steps: Vec<f32>,
}

/// Unpacks what the bytes make; whether a chunk came out.
pub fn kvh(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let mode = reader.byte();
    let case = Case::new(&mut reader, mode >> 2 & 1 != 0);
    let packed = match mode & 3 {
        0 => case.pack(&case.chunk(reader.0)),
        1 => case.with_payload(reader.0),
        2 => case.with_payload(&case.rows(&mut reader)),
        _ => {
            let mut packed = case.pack(&case.chunk(&bell(&mut reader)));
            for change in reader.0.chunks_exact(3) {
                let at = usize::from(change[0]) | usize::from(change[1]) << 8;
                let payload = &mut packed[HEADER_BYTES..];
                let length = payload.len();
                payload[at % length] ^= change[2];
            }
            sealed(&case.kernels[0], packed)
        }
    };
    let first = match case.unpack(&packed) {
        Ok(chunk) => chunk,
        Err(error) => {
            assert!(mode & 3 != 0 && error.code == Code::Corrupt, "{error}");
            return false;
        }
    };
    let settled = case.pack(&first);
    let second = case.unpack(&settled).unwrap();
    assert!(case.pack(&second) == settled, "packing again gives other bytes");
    // What pack itself wrote was settled before.
    assert!(mode & 3 != 0 || settled == packed);
    true
}

/// An input whose payload is one as the codec writes it now; it is accepted.
pub(super) fn seed() -> Vec<u8> {
    let head = [1, 0, 0, 39, 24];
    let case = Case::new(&mut Reader(&head[1..]), false);
    let packed = case.pack(&case.chunk(&bell(&mut Reader(&[]))));
    let payload = &packed[HEADER_BYTES..];
    // The last part's end; what fills the payload up is no part of an input.
    let [a, b, c, d] = payload.as_chunks::<4>().0[2 * usize::from(case.geometry.shape.kv_heads)];
    let end = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap();
    [&head, &payload[..end]].concat()
}

/// Values of which most have short codes.
fn bell(reader: &mut Reader<'_>) -> Vec<u8> {
    let seed = reader.byte();
    let value = |n: u16| {
        let noise = n.wrapping_mul(40_503) ^ u16::from(seed).wrapping_mul(257);
        noise & 0x8FFF | 0x2800
    };
    (0..999).flat_map(|n| value(n).to_le_bytes()).collect()
}

impl Case {
    fn new(reader: &mut Reader<'_>, by_channels: bool) -> Case {
        let kv_heads = u16::from(reader.byte() % 2) + 1;
        let head_dim = reader.pick(&[32, 40, 64]);
        // Few, for the sake of speed, or almost a whole chunk.
        let tokens = match u16::from(reader.byte()) {
            byte @ 0..250 => byte % 40 + 1,
            byte => 256 - (byte - 250),
        };
        let exponent = i32::from(reader.byte() % 41) - 24;
        let layout = if by_channels { ChunkLayout::ChannelMajor } else { ChunkLayout::TokenMajor };
        let shape = KvShape { layers: 1, kv_heads, head_dim };
        // Neighbours have other steps.
        let step = |channel: u16| 2f32.powi(exponent) * (1.0 + f32::from(channel % 7) / 8.0);
        Case {
            kernels: [Kernels::portable(), Kernels::select(CpuFlags::detect())],
            geometry: Geometry { shape, id: ChunkId::default(), tokens, layout },
            steps: (0..kv_heads * head_dim).map(step).collect(),
        }
    }

    fn with_work<T>(&self, kernels: &Kernels, run: impl FnOnce(&mut Work<'_>) -> T) -> T {
        let bytes = Kvh.scratch_bytes(&self.geometry);
        let mut memory = vec![0x5A; bytes + 63];
        let start = memory.as_ptr().align_offset(64);
        let steps = Some(LayerSteps { id: 9, k: &self.steps });
        run(&mut Work { kernels, steps, scratch: &mut memory[start..][..bytes] })
    }

    /// Packs with both kernels.
    fn pack(&self, chunk: &[u16]) -> Vec<u8> {
        let [portable, own] = self.kernels.each_ref().map(|kernels| {
            let mut packed = vec![0xA5; Kvh.packed_bytes_max(&self.geometry)];
            let pack = |work: &mut Work<'_>| Kvh.pack(work, &self.geometry, chunk, &mut packed);
            let bytes = self.with_work(kernels, pack).unwrap();
            packed.truncate(bytes);
            packed
        });
        assert!(portable == own, "kernels differ");
        own
    }

    /// Unpacks with both kernels.
    fn unpack(&self, packed: &[u8]) -> Result<Vec<u16>> {
        let [portable, own] = self.kernels.each_ref().map(|kernels| {
            let mut chunk = untouched(&self.geometry);
            let unpack = |work: &mut Work<'_>| Kvh.unpack(work, &self.geometry, packed, &mut chunk);
            self.with_work(kernels, unpack).map(|()| chunk)
        });
        assert!(portable == own, "kernels differ");
        let (mut rest, untouched) = (own.clone()?, untouched(&self.geometry));
        valid(&self.geometry).for_each(|place| rest[place] = untouched[place]);
        assert!(rest == untouched, "a value beyond the tokens was written");
        own
    }

    /// A chunk whose valid values are these bytes, over and over.
    fn chunk(&self, bytes: &[u8]) -> Vec<u16> {
        let mut chunk = untouched(&self.geometry);
        let (pairs, _) = bytes.as_chunks::<2>();
        let mut values = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).cycle();
        valid(&self.geometry).for_each(|place| chunk[place] = values.next().unwrap_or(0));
        chunk
    }

    /// A payload behind a right header, filled up as payloads are.
    fn with_payload(&self, payload: &[u8]) -> Vec<u8> {
        let mut packed = self.pack(&self.chunk(&[]));
        // Not raw, and as long as it is.
        packed[7] &= !1;
        packed.truncate(HEADER_BYTES);
        packed.extend(payload);
        packed.extend([0; 8]);
        packed.resize(packed.len().next_multiple_of(64), 0);
        let bytes = packed.len() - HEADER_BYTES;
        packed[20..24].copy_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
        sealed(&self.kernels[0], packed)
    }

    /// Parts whose rows have headers from the input and the bytes that these promise.
    fn rows(&self, reader: &mut Reader<'_>) -> Vec<u8> {
        let heads = usize::from(self.geometry.shape.kv_heads);
        let (dim, tokens) =
            (usize::from(self.geometry.shape.head_dim), usize::from(self.geometry.tokens));
        let mut payload = vec![0; 4 * (2 * heads + 1)];
        for part in 0..2 * heads {
            let place = u32::try_from(payload.len()).unwrap().to_le_bytes();
            payload[4 * part..][..4].copy_from_slice(&place);
            let rows = dim + usize::from(part >= heads);
            let words: Vec<[u8; 4]> = (0..rows).map(|_| [(); 4].map(|()| reader.byte())).collect();
            payload.extend(words.as_flattened());
            for word in words {
                let word = u32::from_le_bytes(word) as usize;
                let bytes = match word >> 19 & 3 {
                    0 | 1 => (word & 511) + 2 * (word >> 9 & 63),
                    2 => tokens,
                    _ => 2 * tokens,
                };
                payload.extend((0..bytes).map(|_| reader.byte()));
            }
        }
        let end = u32::try_from(payload.len()).unwrap().to_le_bytes();
        payload[8 * heads..][..4].copy_from_slice(&end);
        payload
    }
}
