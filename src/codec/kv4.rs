//! The 4-bit format: K by channel along tokens with 4 to 6 bits, V by token with 4.
//!
//! Rows of K are channels of up to 256 tokens, rows of V the channels of one token and head,
//! whichever way the chunk lies in memory; `kernel::kv4` defines their codes. The payload, each
//! plane filled up with zeros to a multiple of 64 bytes:
//!
//! ```text
//! K ends       u16 least, u16 greatest   [kv_head][channel]
//! K widths     u8                        [kv_head][channel]
//! V scales     u16                       [kv_head][token]
//! V codes      4 bits                    [kv_head][token][channel]
//! K codes      by width                  [kv_head][channel][token], tokens in blocks of 32
//! ```
//!
//! A width of 0 is a row of equal values, 16 a row of F16 values as they are: those with a NaN or
//! an infinity, and those whose codes would lie closer than 1.25 units of the last place of the
//! greatest magnitude. Of the others the step profile chooses the width, so that the distance
//! between codes is about [`K_STEPS`] base steps; without one it is 5. V has one scale word a token
//! and head, as in q8 but for codes up to 7.
//!
//! Packing what was unpacked gives the same bytes as long as the steps are the same: both ends of a
//! K row come back as they were, hence the same width and distance, and rounding moves no value by
//! as much as half a distance; for V see `q8`. Minus zero becomes zero. A chunk with a value of V
//! that is not finite, or whose payload would not be smaller, is stored raw.
//!
//! (After KIVI, which found that K wants channels and V wants tokens.)

mod read;
mod write;

use super::header::{self, Format, HEADER_BYTES, PLANE_ALIGN, Payload};
use super::{ChunkLayout, Codec, Geometry, Idempotence, LayerSteps, Opened};
use super::{Properties, StepsUse, Work, raw};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::kv4::{KV4_BLOCK, KV4_V_STEP_MAX};
use crate::kernel::portable::{F16_INFINITY, Q8_ABSMAX_FORM, Q8_STEP_FORM_FROM};
use crate::kernel::{Kernels, Kv4Row};
use crate::limits::CHUNK_TOKENS;
use crate::units::CodecId;
use read::Reader;
use write::Writer;

#[cfg(test)]
pub(super) use write::choose;

const VERSION: u8 = 1;
const TOKENS: usize = CHUNK_TOKENS as usize;
/// Values from one row of K to the next in the scratch. A power of two would put the values of a
/// token into a few sets of the cache.
const TILE_STRIDE: usize = TOKENS + 32;
/// Distance between codes of K, in base steps.
const K_STEPS: f32 = 0.30;
/// Bits of a K row when nobody knows what it may lose.
const WIDTH_BLIND: u8 = 5;
/// The width of a row of equal values.
const CONSTANT: u8 = 0;
/// The width of a row that is stored as it is.
const VERBATIM: u8 = 16;
/// Tokens whose rows of V are brought together at a time when they do not lie so.
const V_TOKENS: usize = 32;

/// The kv4 codec.
#[derive(Clone, Copy, Debug)]
pub struct Kv4;

impl Codec for Kv4 {
    fn id(&self) -> CodecId {
        CodecId::Kv4
    }

    fn version(&self) -> u8 {
        VERSION
    }

    fn properties(&self) -> Properties {
        Properties {
            idempotence: Idempotence::Strong,
            is_lossless: false,
            steps: StepsUse::Welcome,
        }
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + geometry.raw_payload_bytes()
    }

    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        let planes = Planes::new(geometry);
        let row_bytes = Kv4Row { min: 0, max: 0, width: WIDTH_BLIND }.code_bytes(planes.blocks);
        let payload_bytes = planes.k_codes + planes.rows * row_bytes;
        HEADER_BYTES + payload_bytes.next_multiple_of(PLANE_ALIGN).min(geometry.raw_payload_bytes())
    }

    fn scratch_bytes(&self, geometry: &Geometry) -> usize {
        2 * scratch_values(geometry)
    }

    fn pack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        geometry.check(chunk.len())?;
        let (kernels, steps) = (work.kernels, work.steps);
        let format = format(geometry, steps)?;
        let planes = Planes::new(geometry);
        let raw_bytes = geometry.raw_payload_bytes();
        let too_small =
            Error::new(Code::MemoryTooSmall, "packed buffer").with(HEADER_BYTES + raw_bytes);
        if planes.k_codes < raw_bytes {
            let payload = packed.get_mut(HEADER_BYTES..).ok_or(too_small)?;
            let (fixed, k_codes) = payload.split_at_mut_checked(planes.k_codes).ok_or(too_small)?;
            let room = k_codes.len().min(raw_bytes - planes.k_codes);
            let tile = tile(work, geometry)?;
            let mut writer = Writer { kernels, geometry, planes, tile };
            let written = match writer.write_v(chunk, fixed)? {
                true => writer.write_k(steps, chunk, fixed, &mut k_codes[..room])?,
                false => None,
            };
            if let Some(k_bytes) = written {
                let payload_bytes = (planes.k_codes + k_bytes).next_multiple_of(PLANE_ALIGN);
                if payload_bytes < raw_bytes {
                    let payload = header::payload_mut(packed, payload_bytes)?;
                    payload[planes.k_codes + k_bytes..].fill(0);
                    let payload = Payload::Own(payload_bytes);
                    return header::seal(kernels, geometry, &format, payload, packed);
                }
            }
        }
        raw::seal(kernels, geometry, &format, chunk, packed)
    }

    fn open<'a>(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        steps: Option<LayerSteps<'_>>,
        packed: &'a [u8],
    ) -> Result<Opened<'a>> {
        geometry.check_numbers()?;
        header::open(kernels, geometry, &format(geometry, steps)?, packed)?.checked(check)
    }

    fn unpack_part(
        &self,
        work: &mut Work<'_>,
        opened: &Opened<'_>,
        part: usize,
        values: &mut [u16],
    ) -> Result<()> {
        let kernels = work.kernels;
        let tile = tile(work, &opened.geometry)?;
        let Some(payload) = opened.own_payload(CodecId::Kv4, part, values)? else {
            return Ok(());
        };
        let geometry = &opened.geometry;
        let planes = Planes::new(geometry);
        let reader = Reader { kernels, geometry, planes, payload };
        match part.checked_sub(usize::from(geometry.shape.kv_heads)) {
            None => reader.read_k(part, tile, values),
            Some(head) => reader.read_v(head, tile, values),
        }
    }
}

fn format(geometry: &Geometry, steps: Option<LayerSteps<'_>>) -> Result<Format> {
    let planes = Planes::new(geometry);
    if let Some(steps) = steps.filter(|steps| steps.k.len() != planes.rows) {
        return Err(Error::new(Code::InvalidArgument, "steps of a layer").with(steps.k.len()));
    }
    Ok(Format {
        id: CodecId::Kv4,
        version: VERSION,
        steps_id: steps.map_or(0, |steps| steps.id),
        payload_bytes: planes.k_codes..=geometry.raw_payload_bytes().saturating_sub(PLANE_ALIGN),
        has_raw_fallback: true,
    })
}

const MISALIGNED: Error = Error::new(Code::InvalidArgument, "packed buffer alignment");

/// Where the planes begin; K ends begin at 0.
#[derive(Clone, Copy, Debug)]
struct Planes {
    /// Rows of K, and of V.
    rows: usize,
    blocks: usize,
    k_widths: usize,
    v_scales: usize,
    v_codes: usize,
    k_codes: usize,
}

impl Planes {
    fn new(geometry: &Geometry) -> Self {
        let heads = usize::from(geometry.shape.kv_heads);
        let (rows, tokens) = (heads * geometry.head_dim(), usize::from(geometry.tokens));
        let blocks = tokens.div_ceil(KV4_BLOCK);
        let behind = |start: usize, bytes: usize| start + bytes.next_multiple_of(PLANE_ALIGN);
        let k_widths = behind(0, 4 * rows);
        let v_scales = behind(k_widths, rows);
        let v_codes = behind(v_scales, 2 * heads * tokens);
        let k_codes = behind(v_codes, rows * tokens / 2);
        Planes { rows, blocks, k_widths, v_scales, v_codes, k_codes }
    }

    /// Bytes of the codes of a K row; `None` for a width that there is not.
    fn code_bytes(&self, width: u8) -> Option<usize> {
        match width {
            CONSTANT => Some(0),
            4..=6 => Some(Kv4Row { min: 0, max: 0, width }.code_bytes(self.blocks)),
            VERBATIM => Some(2 * KV4_BLOCK * self.blocks),
            _ => None,
        }
    }
}

/// Values of scratch: the rows of K of one head or, where those lie so in memory, some rows of V.
fn scratch_values(geometry: &Geometry) -> usize {
    match geometry.layout {
        ChunkLayout::TokenMajor => geometry.head_dim() * TILE_STRIDE,
        ChunkLayout::ChannelMajor => geometry.head_dim() * V_TOKENS,
    }
}

/// A worker's scratch.
fn tile<'a>(work: &'a mut Work<'_>, geometry: &Geometry) -> Result<&'a mut [u16]> {
    view::numbers_mut(work.scratch(Kv4.scratch_bytes(geometry))?).ok_or(MISALIGNED)
}

/// Checks what the checksum does not: every width, end and scale word is one that packing writes,
/// and the rows fill the payload.
fn check(geometry: &Geometry, payload: &[u8]) -> Result<()> {
    let planes = Planes::new(geometry);
    let corrupt = |what, value: u16| Err(Error::new(Code::Corrupt, what).with(value));
    let (ends, widths) = k_rows(&planes, payload)?;
    let mut k_bytes = 0;
    for (&[min, max], &width) in ends.iter().zip(widths).take(planes.rows) {
        let row = Kv4Row { min, max, width };
        let Some(bytes) = planes.code_bytes(width) else {
            return corrupt("packed row width", u16::from(width));
        };
        k_bytes += bytes;
        let magnitude = (min & 0x7FFF).max(max & 0x7FFF);
        let is_sound = match width {
            CONSTANT => min == max && magnitude < F16_INFINITY,
            VERBATIM => magnitude == 0,
            _ => magnitude < F16_INFINITY && row.is_stable(),
        };
        if !is_sound {
            return corrupt("packed row ends", max);
        }
    }
    let k_end = planes.k_codes + k_bytes;
    if k_end.next_multiple_of(PLANE_ALIGN) != payload.len() {
        return Err(Error::new(Code::Corrupt, "packed rows").with(k_bytes));
    }
    let scales = view::numbers::<u16>(&payload[planes.v_scales..planes.v_codes]);
    let scales = scales.ok_or(MISALIGNED)?;
    let count = usize::from(geometry.shape.kv_heads) * usize::from(geometry.tokens);
    let (scales, scale_padding) = scales.split_at(count);
    if let Some(word) = scales.iter().find(|&&word| !is_scale_word(word)) {
        return corrupt("packed scale word", *word);
    }
    let v_end = planes.v_codes + planes.rows * usize::from(geometry.tokens) / 2;
    let is_clean = ends[planes.rows..].iter().all(|&ends| ends == [0; 2])
        && widths[planes.rows..].iter().all(|&width| width == 0)
        && scale_padding.iter().all(|&word| word == 0)
        && payload[v_end..planes.k_codes].iter().all(|&byte| byte == 0)
        && payload[k_end..].iter().all(|&byte| byte == 0);
    match is_clean {
        true => Ok(()),
        false => corrupt("packed padding", 0),
    }
}

/// Ends and widths of all K rows, with the padding of their planes.
fn k_rows<'a>(planes: &Planes, payload: &'a [u8]) -> Result<(&'a [[u16; 2]], &'a [u8])> {
    let ends = view::numbers::<u16>(&payload[..planes.k_widths]).ok_or(MISALIGNED)?;
    let (ends, _) = ends.as_chunks::<2>();
    Ok((ends, &payload[planes.k_widths..planes.v_scales]))
}

/// Whether packing could have written this word.
fn is_scale_word(word: u16) -> bool {
    if word & Q8_ABSMAX_FORM == 0 {
        word <= KV4_V_STEP_MAX
    } else {
        word & !Q8_ABSMAX_FORM < Q8_STEP_FORM_FROM
    }
}
