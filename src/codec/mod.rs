//! KV chunk formats: how a chunk's F16 values are packed, and nothing else.
//!
//! A codec is deterministic, keeps no state between chunks, and is idempotent: what was unpacked
//! once no longer changes. The worst-case packed size and the scratch are known before packing.
//! Bytes handed to `open` are hostile; nothing is written unless the checksum passed, and what is
//! written is never read back.
//!
//! A packed chunk is a 64-byte header (`header`), then planes that each start at a multiple of 64.
//! `raw` copies, `q8` holds 8-bit codes, `kv4` about 4-bit ones, `kvh` prefix codes of less than 3
//! bits; `cachegen` is for comparison. `steps` are what a model's K may lose, frozen for as long as
//! a context lives. [`codec`] finds a codec by its name, [`find`] by what a header says.

mod cachegen;
mod geometry;
mod header;
mod kv4;
mod kvh;
mod opened;
mod q8;
mod raw;
mod steps;
#[cfg(test)]
mod tests;

pub use cachegen::CacheGen;
pub use geometry::{ChunkLayout, Geometry};
pub use header::{HEADER_BYTES, PLANE_ALIGN};
pub use kv4::Kv4;
pub use kvh::Kvh;
pub use opened::{Opened, Work};
pub use q8::Q8;
pub use raw::Raw;
pub use steps::{LayerSteps, RotaryPairs, STEPS_HEADER_BYTES, Steps, mean_square};

use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::units::CodecId;

/// What does not change when a chunk is packed, unpacked and packed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotence {
    /// The packed bytes: packing what was unpacked gives the same bytes.
    Strong,
    /// The values: unpacking those other bytes gives the same values.
    Value,
}

/// What a codec does with [`LayerSteps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepsUse {
    /// Ignores them.
    Ignored,
    /// Packs better with them.
    Welcome,
    /// Refuses to work without them.
    Needed,
}

/// What callers may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// From the first cycle on; with steps, as long as these are the same.
    pub idempotence: Idempotence,
    /// Whether unpacking gives back the very bits that were packed, on the first cycle too.
    pub is_lossless: bool,
    /// What becomes of the steps.
    pub steps: StepsUse,
}

/// One chunk format.
pub trait Codec: Sync {
    /// Its number and name.
    fn id(&self) -> CodecId;

    /// The version of its format; another one's chunks are refused.
    fn version(&self) -> u8;

    /// What callers may rely on.
    fn properties(&self) -> Properties;

    /// Bytes that `pack` never exceeds, header included; a multiple of 64.
    fn packed_bytes_max(&self, geometry: &Geometry) -> usize;

    /// Bytes that `pack` uses for a chunk without exceptional values: what plans should reckon
    /// with.
    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        self.packed_bytes_max(geometry)
    }

    /// Bytes of scratch in [`Work`] that `pack` and `unpack_part` need for this geometry.
    fn scratch_bytes(&self, _geometry: &Geometry) -> usize {
        0
    }

    /// Packs `chunk` (the whole buffer as F16 bit patterns) and returns the bytes used. A buffer
    /// that is shorter than `packed_bytes_max` may do; if not, the error is `MemoryTooSmall` with
    /// the bytes that are needed. `packed` starts at an even address and holds nothing useful after
    /// an error.
    fn pack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize>;

    /// Checks header, checksum and the bounds of all planes; writes nothing. `packed` starts at an
    /// even address; bytes behind the packed chunk are ignored.
    fn open<'a>(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        steps: Option<LayerSteps<'_>>,
        packed: &'a [u8],
    ) -> Result<Opened<'a>>;

    /// Unpacks one part into the chunk's [`Geometry::part_values`] values that belong to it. Only
    /// the valid rows are written. Parts may be unpacked in any order, at the same time too, each
    /// with work of its own; the steps must be those that the chunk was opened with. After
    /// `Corrupt`, which means bytes that `pack` never wrote under a right checksum, the part holds
    /// nothing useful; any other error leaves it as it was.
    fn unpack_part(
        &self,
        work: &mut Work<'_>,
        opened: &Opened<'_>,
        part: usize,
        values: &mut [u16],
    ) -> Result<()>;

    /// Opens a packed chunk and unpacks all its parts.
    fn unpack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        packed: &[u8],
        chunk: &mut [u16],
    ) -> Result<()> {
        geometry.check(chunk.len())?;
        let opened = self.open(work.kernels, geometry, work.steps, packed)?;
        let parts = chunk.chunks_exact_mut(geometry.part_values()).take(geometry.parts());
        for (part, values) in parts.enumerate() {
            self.unpack_part(work, &opened, part, values)?;
        }
        Ok(())
    }
}

/// Every codec, at the place that its number gives.
static CODECS: [&dyn Codec; CodecId::ALL.len()] = [&Raw, &Q8, &Kv4, &Kvh, &CacheGen];

/// The codec of that name.
pub fn codec(id: CodecId) -> &'static dyn Codec {
    CODECS[id as usize]
}

/// The codec that a header names by its number and the version of its format.
pub fn find(number: u8, version: u8) -> Result<&'static dyn Codec> {
    let Some(id) = CodecId::from_number(number) else {
        return Err(Error::new(Code::Unsupported, "packed codec").with(number));
    };
    let codec = codec(id);
    match codec.version() == version {
        true => Ok(codec),
        false => Err(Error::new(Code::Unsupported, "packed codec version").with(version)),
    }
}
