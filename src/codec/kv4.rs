//! The 4-bit format: K by channel along tokens with 4 to 6 bits, V by token with 4.
//!
//! `kernel::kv4` defines the codes and how those of a token, or of 8, lie side by side. The
//! payload is the same whichever way the chunk lies in memory; each plane is filled up with zeros
//! to a multiple of 64 bytes:
//!
//! ```text
//! K ends       u16 least, u16 greatest   [kv_head][channel]
//! K widths     u8                        [kv_head][channel]
//! V scales     u16                       [kv_head][token]
//! V codes      4 bits                    [kv_head][token][channel]
//! K codes      their low 4 bits          [kv_head][token][channel]
//! K rest       by width                  [kv_head], bits above those in blocks of 8 tokens, then
//!                                        values that have no codes [channel][token]
//! ```
//!
//! A width of 0 is a channel of equal values, 16 one whose values are stored as they are: those
//! with a NaN or an infinity, and those whose codes would lie closer than 1.25 units of the last
//! place of the greatest magnitude. Of the others the step profile chooses the width, so that the
//! distance between codes is about [`K_STEPS`] base steps; without one it is 5. V has one scale
//! word a token and head, as in q8 but for codes up to 7.
//!
//! Packing what was unpacked gives the same bytes as long as the steps are the same: both ends of a
//! channel come back as they were, hence the same width and distance, and rounding moves no value
//! by as much as half a distance; for V see `q8`. Minus zero becomes zero where it is an end. A
//! chunk with a value of V that is not finite, or whose payload would not be smaller, is stored
//! raw.
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
use crate::kernel::portable::{F16_INFINITY, F16_MAGNITUDE, Q8_ABSMAX_FORM, Q8_STEP_FORM_FROM};
use crate::kernel::{Kernels, Kv4Channels, Kv4Row};
use crate::limits::CHUNK_TOKENS;
use crate::units::CodecId;
use read::Reader;
use write::Writer;

const VERSION: u8 = 2;
const TOKENS: usize = CHUNK_TOKENS as usize;
/// Distance between codes of K, in base steps.
const K_STEPS: f32 = 0.30;
/// Bits of a channel of K when nobody knows what it may lose.
const WIDTH_BLIND: u8 = 5;
/// The width of a channel of equal values.
const CONSTANT: u8 = 0;
/// The width of a channel that is stored as it is.
const VERBATIM: u8 = 16;

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
        let payload_bytes = planes.k_rest + planes.rows * planes.blocks;
        HEADER_BYTES + payload_bytes.next_multiple_of(PLANE_ALIGN).min(geometry.raw_payload_bytes())
    }

    fn scratch_bytes(&self, geometry: &Geometry) -> usize {
        match geometry.layout {
            ChunkLayout::TokenMajor => 0,
            ChunkLayout::ChannelMajor => 2 * geometry.part_valid_values(),
        }
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
        if !format.payload_bytes.is_empty() {
            let payload = packed.get_mut(HEADER_BYTES..).ok_or(too_small)?;
            let (fixed, rest) = payload.split_at_mut_checked(planes.k_rest).ok_or(too_small)?;
            let tile = tile(work, geometry)?;
            let mut writer = Writer { kernels, geometry, planes, tile };
            let written = match writer.write_v(chunk, fixed)? {
                true => writer.write_k(steps, chunk, fixed, rest)?,
                false => None,
            };
            if let Some(rest_bytes) = written {
                let payload_bytes = (planes.k_rest + rest_bytes).next_multiple_of(PLANE_ALIGN);
                if format.payload_bytes.contains(&payload_bytes) {
                    let payload = header::payload_mut(packed, payload_bytes)?;
                    payload[planes.k_rest + rest_bytes..].fill(0);
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
        Reader { kernels, geometry, planes, payload }.read(part, tile, values)
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
        payload_bytes: planes.k_rest..=geometry.raw_payload_bytes().saturating_sub(PLANE_ALIGN),
        has_raw_fallback: true,
    })
}

const MISALIGNED: Error = Error::new(Code::InvalidArgument, "packed buffer alignment");

/// Where the planes begin; K ends begin at 0.
#[derive(Clone, Copy, Debug)]
struct Planes {
    /// Channels of all heads.
    rows: usize,
    tokens: usize,
    /// Of tokens, in what is above four bits.
    blocks: usize,
    k_widths: usize,
    v_scales: usize,
    v_codes: usize,
    k_codes: usize,
    k_rest: usize,
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
        let k_rest = behind(k_codes, rows * tokens / 2);
        Planes { rows, tokens, blocks, k_widths, v_scales, v_codes, k_codes, k_rest }
    }

    /// Bytes that channels of these widths have in what is above four bits, and those of their
    /// values that have no codes.
    fn rest_bytes(&self, widths: &[u8]) -> (usize, usize) {
        let upper = Kv4Channels { ends: &[], widths }.upper_bytes();
        let verbatim = widths.iter().filter(|&&width| width == VERBATIM).count();
        (self.blocks * upper, 2 * self.tokens * verbatim)
    }
}

/// A worker's scratch: one part by tokens, where those do not lie so.
fn tile<'a>(work: &'a mut Work<'_>, geometry: &Geometry) -> Result<&'a mut [u16]> {
    match Kv4.scratch_bytes(geometry) {
        0 => Ok(&mut []),
        bytes => view::numbers_mut(work.scratch(bytes)?).ok_or(MISALIGNED),
    }
}

/// Checks what the checksum does not: every width, end and scale word is one that packing writes,
/// and what is behind the fixed planes fills the payload.
fn check(geometry: &Geometry, payload: &[u8]) -> Result<()> {
    let planes = Planes::new(geometry);
    let corrupt = |what, value: u16| Err(Error::new(Code::Corrupt, what).with(value));
    let (ends, widths) = k_rows(&planes, payload)?;
    for (&[min, max], &width) in ends.iter().zip(widths).take(planes.rows) {
        let magnitude = (min & F16_MAGNITUDE).max(max & F16_MAGNITUDE);
        let is_sound = match width {
            CONSTANT => min == max && magnitude < F16_INFINITY,
            4..=6 => magnitude < F16_INFINITY && Kv4Row { min, max, width }.is_stable(),
            VERBATIM => magnitude == 0,
            _ => return corrupt("packed row width", u16::from(width)),
        };
        if !is_sound {
            return corrupt("packed row ends", max);
        }
    }
    let (upper, verbatim) = planes.rest_bytes(&widths[..planes.rows]);
    let k_end = planes.k_rest + upper + verbatim;
    if k_end.next_multiple_of(PLANE_ALIGN) != payload.len() {
        return Err(Error::new(Code::Corrupt, "packed rows").with(upper + verbatim));
    }
    let scales = view::numbers::<u16>(&payload[planes.v_scales..planes.v_codes]);
    let scales = scales.ok_or(MISALIGNED)?;
    let (scales, scale_padding) =
        scales.split_at(usize::from(geometry.shape.kv_heads) * planes.tokens);
    if let Some(word) = scales.iter().find(|&&word| !is_scale_word(word)) {
        return corrupt("packed scale word", *word);
    }
    let code_bytes = planes.rows * planes.tokens / 2;
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    let is_clean = ends[planes.rows..].iter().all(|&ends| ends == [0; 2])
        && is_zero(&widths[planes.rows..])
        && scale_padding.iter().all(|&word| word == 0)
        && is_zero(&payload[planes.v_codes + code_bytes..planes.k_codes])
        && is_zero(&payload[planes.k_codes + code_bytes..planes.k_rest])
        && is_zero(&payload[k_end..]);
    match is_clean {
        true => Ok(()),
        false => corrupt("packed padding", 0),
    }
}

/// Ends and widths of all channels, with the padding of their planes.
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
