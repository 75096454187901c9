//! The lossless format: the valid values as they lie in memory, `[K, V][kv_head][token][head_dim]`
//! or `[K, V][kv_head][head_dim][token]` in F16, then zeros up to a multiple of 64 bytes.
//!
//! Any bit pattern is a value, NaNs included, and comes back unchanged. It is also what other
//! codecs store for a chunk that does not fit their own format.

use super::header::{self, Format, HEADER_BYTES, Payload};
use super::{Codec, Geometry, Idempotence, LayerSteps, Opened, Properties, StepsUse, Work};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::units::CodecId;

const VERSION: u8 = 1;

/// The raw codec.
#[derive(Clone, Copy, Debug)]
pub struct Raw;

impl Codec for Raw {
    fn id(&self) -> CodecId {
        CodecId::Raw
    }

    fn version(&self) -> u8 {
        VERSION
    }

    fn properties(&self) -> Properties {
        Properties { idempotence: Idempotence::Strong, is_lossless: true, steps: StepsUse::Ignored }
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + geometry.raw_payload_bytes()
    }

    fn pack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        geometry.check(chunk.len())?;
        let payload_bytes = geometry.raw_payload_bytes();
        write(geometry, chunk, header::payload_mut(packed, payload_bytes)?);
        let payload = Payload::Own(payload_bytes);
        header::seal(work.kernels, geometry, &format(geometry), payload, packed)
    }

    fn open<'a>(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        _steps: Option<LayerSteps<'_>>,
        packed: &'a [u8],
    ) -> Result<Opened<'a>> {
        geometry.check_numbers()?;
        let opened = header::open(kernels, geometry, &format(geometry), packed)?;
        let (Payload::Own(payload) | Payload::Raw(payload)) = opened.payload;
        check(geometry, payload)?;
        Ok(opened)
    }

    fn unpack_part(
        &self,
        _work: &mut Work<'_>,
        opened: &Opened<'_>,
        part: usize,
        values: &mut [u16],
    ) -> Result<()> {
        if let Some(payload) = opened.own_payload(CodecId::Raw, part, values)? {
            read_part(&opened.geometry, payload, part, values);
        }
        Ok(())
    }
}

fn format(geometry: &Geometry) -> Format {
    let payload_bytes = geometry.raw_payload_bytes();
    Format {
        id: CodecId::Raw,
        version: VERSION,
        steps_id: 0,
        payload_bytes: payload_bytes..=payload_bytes,
        has_raw_fallback: false,
    }
}

/// Packs a chunk raw for a codec whose own format does not fit it.
pub(super) fn seal(
    kernels: &Kernels,
    geometry: &Geometry,
    format: &Format,
    chunk: &[u16],
    packed: &mut [u8],
) -> Result<usize> {
    let bytes = geometry.raw_payload_bytes();
    write(geometry, chunk, header::payload_mut(packed, bytes)?);
    header::seal(kernels, geometry, format, Payload::Raw(bytes), packed)
}

/// Fills a payload of [`Geometry::raw_payload_bytes`].
fn write(geometry: &Geometry, chunk: &[u16], payload: &mut [u8]) {
    let mut rest = payload;
    for part in chunk.chunks_exact(geometry.part_values()).take(geometry.parts()) {
        for run in geometry.runs() {
            let values = view::bytes_of(&part[run]);
            let (target, behind) = rest.split_at_mut(values.len());
            target.copy_from_slice(values);
            rest = behind;
        }
    }
    rest.fill(0);
}

/// Checks what the checksum does not, in a payload of [`Geometry::raw_payload_bytes`].
pub(super) fn check(geometry: &Geometry, payload: &[u8]) -> Result<()> {
    match payload[2 * geometry.valid_values()..].iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(Error::new(Code::Corrupt, "packed padding")),
    }
}

/// Reads one part of a checked payload of [`Geometry::raw_payload_bytes`].
pub(super) fn read_part(geometry: &Geometry, payload: &[u8], part: usize, values: &mut [u16]) {
    let part_values = geometry.part_valid_values();
    let (halves, _) = payload.as_chunks::<2>();
    let mut rest = &halves[part * part_values..][..part_values];
    for run in geometry.runs() {
        let (halves, behind) = rest.split_at(run.len());
        for (value, &half) in values[run].iter_mut().zip(halves) {
            *value = u16::from_le_bytes(half);
        }
        rest = behind;
    }
}
