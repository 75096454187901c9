//! The smallest format: values as multiples of steps, in prefix codes; about 2.6 bits a value.
//!
//! K is coded by channel. The step of a channel is [`K_STEPS`] times its base step, which the
//! context's frozen [`Steps`](super::Steps) give: errors of K weigh by the energy of the queries
//! that meet them. V has one step for each token of a head, [`V_STEP`] times the power of the root
//! of 2 that is next to the root mean square of the token's values, because attention looks much at
//! tokens whose V is small. A value is its code times its step, rounded to F16 (`kernel::lattice`).
//! (After KIVI's axes and KVQuant's sensitivity weights.)
//!
//! The payload, little-endian, is for each part its place and then the parts themselves, so that a
//! part is found and unpacked alone:
//!
//! ```text
//! places   u32 [parts + 1]      first byte of each part in the payload, and where the last ends
//! part     u32 [rows] headers   then the bytes of the rows, one behind the other
//! zeros    at least 8           up to a multiple of 64
//! ```
//!
//! A part of K has a row for each channel, a part of V before these one for the tokens' steps. A
//! row holds the codes of all tokens, in one of four forms:
//!
//! ```text
//! header   bits 0..9 bytes of prefix codes, 9..15 escapes, 15..19 table, 19..21 form,
//!          21..32 base (signed)
//! form 0   prefix codes of the differences from the base, then the escapes' values, 16 bits each
//! form 1   the same of the differences from the code before, for the first one from the base; not
//!          for V's channels, whose neighbouring tokens have little in common
//! form 2   differences from the base, 8 bits each
//! form 3   F16 values; only for K
//! ```
//!
//! Form, table and base follow from the codes: the fewest bytes, then the lower form and table. The
//! base is the rounded mean of the codes or the first one. So the same codes are the same bytes.
//!
//! Packing what was unpacked gives the same bytes. For K that holds because a value of the lattice
//! has the code that it came from; a channel with a value that is not finite, or whose code is
//! greater than 1023, is in form 3. For V the steps would follow from other values the second time.
//! Therefore a token gets, before the step that its mean square asks for, that of the neighbouring
//! steps under which its values do not change at all, if there is one; what was unpacked has one.
//! And since a token that has just been rounded may have one nearer to its new mean square, that is
//! what its first step gives way to. A chunk is stored raw when a value of V is not finite, or when
//! that is not longer.

mod pack;
mod row;
mod scale;
mod unpack;

use super::header::{self, Format, HEADER_BYTES, PLANE_ALIGN, Payload, word};
use super::{Codec, Geometry, Idempotence, LayerSteps, Opened, Properties, StepsUse, Work, raw};
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::kernel::huffman::BYTES_BEHIND_ROWS;
use crate::limits::CHUNK_TOKENS;
use crate::units::CodecId;

const VERSION: u8 = 1;

/// A channel's step in parts of its base step.
const K_STEPS: f32 = 0.5;
/// A token's step in parts of its values' root mean square.
const V_STEP: f32 = 0.7;

/// Distance of two channels' rows in scratch.
const ROW_STRIDE: usize = CHUNK_TOKENS as usize;

/// The kvh codec.
#[derive(Clone, Copy, Debug)]
pub struct Kvh;

impl Codec for Kvh {
    fn id(&self) -> CodecId {
        CodecId::Kvh
    }

    fn version(&self) -> u8 {
        VERSION
    }

    fn properties(&self) -> Properties {
        Properties { idempotence: Idempotence::Strong, is_lossless: false, steps: StepsUse::Needed }
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + geometry.raw_payload_bytes()
    }

    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        // 2.75 bits a value: what chunks of real models take, and a little more.
        let rows_bytes = places_bytes(geometry) + geometry.valid_values() * 11 / 32;
        let payload_bytes = rows_bytes.next_multiple_of(PLANE_ALIGN);
        HEADER_BYTES + payload_bytes.min(geometry.raw_payload_bytes())
    }

    fn scratch_bytes(&self, geometry: &Geometry) -> usize {
        pack::scratch_bytes(geometry).max(unpack::SCRATCH_BYTES)
    }

    fn pack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        geometry.check(chunk.len())?;
        let (kernels, steps) = (work.kernels, steps_of(geometry, work.steps)?);
        let format = format(geometry, steps);
        let scratch = work.scratch(self.scratch_bytes(geometry))?;
        let room = packed.get_mut(HEADER_BYTES..).unwrap_or_default();
        let own_bytes = pack::write(kernels, steps, scratch, geometry, chunk, room)?;
        match own_bytes.filter(|bytes| format.payload_bytes.contains(bytes)) {
            Some(bytes) => {
                header::payload_mut(packed, bytes)?;
                header::seal(kernels, geometry, &format, Payload::Own(bytes), packed)
            }
            None => raw::seal(kernels, geometry, &format, chunk, packed),
        }
    }

    fn open<'a>(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        steps: Option<LayerSteps<'_>>,
        packed: &'a [u8],
    ) -> Result<Opened<'a>> {
        geometry.check_numbers()?;
        let steps = steps_of(geometry, steps)?;
        header::open(kernels, geometry, &format(geometry, steps), packed)?.checked(check)
    }

    fn unpack_part(
        &self,
        work: &mut Work<'_>,
        opened: &Opened<'_>,
        part: usize,
        values: &mut [u16],
    ) -> Result<()> {
        let (kernels, geometry) = (work.kernels, &opened.geometry);
        let steps = steps_of(geometry, work.steps)?;
        let scratch = work.scratch(self.scratch_bytes(geometry))?;
        match opened.own_payload(CodecId::Kvh, part, values)? {
            Some(payload) => unpack::read(kernels, steps, scratch, geometry, payload, part, values),
            None => Ok(()),
        }
    }
}

/// The steps, which must be there, one for each channel.
fn steps_of<'a>(geometry: &Geometry, steps: Option<LayerSteps<'a>>) -> Result<LayerSteps<'a>> {
    let Some(steps) = steps else {
        return Err(Error::new(Code::InvalidArgument, "codec steps"));
    };
    let channels = usize::from(geometry.shape.kv_heads) * geometry.head_dim();
    match steps.k.len() == channels {
        true => Ok(steps),
        false => Err(Error::new(Code::InvalidArgument, "codec steps").with(steps.k.len())),
    }
}

fn format(geometry: &Geometry, steps: LayerSteps<'_>) -> Format {
    let bytes_min = (places_bytes(geometry) + BYTES_BEHIND_ROWS).next_multiple_of(PLANE_ALIGN);
    Format {
        id: CodecId::Kvh,
        version: VERSION,
        steps_id: steps.id,
        payload_bytes: bytes_min..=geometry.raw_payload_bytes().saturating_sub(PLANE_ALIGN),
        has_raw_fallback: true,
    }
}

/// The places of all parts, and of the end.
fn places_bytes(geometry: &Geometry) -> usize {
    4 * (geometry.parts() + 1)
}

/// Whether a part is of K, and which head's.
fn head_of(geometry: &Geometry, part: usize) -> (bool, usize) {
    let heads = usize::from(geometry.shape.kv_heads);
    (part < heads, part % heads)
}

/// Rows of a part.
fn rows_of(geometry: &Geometry, part: usize) -> usize {
    let (is_k, _) = head_of(geometry, part);
    geometry.head_dim() + usize::from(!is_k)
}

/// The step of a K channel.
fn k_step(base: f32) -> f32 {
    /// 2^-24, the least F16 magnitude: codes of smaller steps would not be stable.
    const STEP_MIN: f32 = f32::from_bits((127 - 24) << 23);
    (K_STEPS * base).max(STEP_MIN)
}

/// Checks the places of the parts and the zeros behind the last one.
fn check(geometry: &Geometry, payload: &[u8]) -> Result<()> {
    const PLACE: Error = Error::new(Code::Corrupt, "packed part's place");
    let place = |part| {
        let place = word(payload, part).ok_or(PLACE)?;
        usize::try_from(place).map_err(|_| PLACE.with(place))
    };
    let mut start = place(0)?;
    if start != places_bytes(geometry) {
        return Err(PLACE.with(start));
    }
    for part in 0..geometry.parts() {
        let end = place(part + 1)?;
        let headers_end = start + 4 * rows_of(geometry, part);
        if payload.get(headers_end..end).is_none() {
            return Err(PLACE.with(end));
        }
        start = end;
    }
    if payload_bytes(start) != payload.len() {
        return Err(PLACE.with(start));
    }
    match payload[start..].iter().all(|&byte| byte == 0) {
        true => Ok(()),
        false => Err(Error::new(Code::Corrupt, "packed padding")),
    }
}

/// Bytes of a payload whose last part ends there.
fn payload_bytes(end: usize) -> usize {
    (end + BYTES_BEHIND_ROWS).next_multiple_of(PLANE_ALIGN)
}
