//! Step profiles: what is accepted is written back to the same bytes, and every step is usable.
//!
//! ```text
//! 0 layers     1 kv_heads     2 head_dim, an index     3 bit 0: under a right checksum
//! 4 the serialised profile
//! ```

use super::reader::Reader;
use mzcache::codec::{STEPS_HEADER_BYTES, Steps};
use mzcache::kernel::Kernels;
use mzcache::units::{KvShape, LayerIndex};

/// Head sizes that codecs take, and one that they refuse.
const HEAD_DIMS: [u16; 4] = [32, 40, 64, 30];
const ID_AT: usize = 28;

/// Reads the bytes as a profile; whether they are one.
pub fn steps(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let (layers, kv_heads) = (u16::from(reader.byte() % 4), u16::from(reader.byte() % 3));
    let shape = KvShape { layers, kv_heads, head_dim: reader.pick(&HEAD_DIMS) };
    let is_sealed = reader.byte() & 1 != 0;
    let kernels = Kernels::portable();
    let mut bytes = reader.0.to_vec();
    if is_sealed {
        seal(&kernels, &shape, &mut bytes);
    }
    let mut memory = vec![f32::NAN; Steps::values(&shape)];
    let steps = match Steps::parse(&kernels, shape, &bytes, &mut memory) {
        Ok(steps) => steps,
        Err(error) => {
            assert!(!error.what.is_empty());
            return false;
        }
    };
    assert!(steps.id() != 0);
    let mut written = vec![0xA5; Steps::serialised_bytes(&shape)];
    steps.write(&mut written).unwrap();
    assert!(bytes.starts_with(&written));
    for layer in (0..layers).map(LayerIndex::new) {
        let layer = steps.layer(layer).unwrap();
        assert!(layer.id == steps.id() && layer.k.iter().all(|step| step.is_normal()));
    }
    assert!(steps.layer(LayerIndex::new(layers)).is_none());
    true
}

/// Writes the checksum anew, as far as there are bytes.
fn seal(kernels: &Kernels, shape: &KvShape, bytes: &mut [u8]) {
    let end = Steps::serialised_bytes(shape).min(bytes.len());
    let Some((header, steps)) = bytes[..end].split_at_mut_checked(STEPS_HEADER_BYTES) else {
        return;
    };
    let crc = kernels.crc32c.call(kernels.crc32c.call(0, steps), &header[..ID_AT]);
    header[ID_AT..].copy_from_slice(&crc.max(1).to_le_bytes());
}
