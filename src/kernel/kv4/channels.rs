//! Channels of K: what their codes stand for and where the bits of these lie, and the portable
//! functions. Each of them takes the channel to start from, so that others can leave it the end.

use super::super::portable::{F16_INFINITY, F16_MAGNITUDE, f16_from_f32, f32_from_f16};
use super::{KV4_BLOCK, Kv4Span, nearest};
use crate::limits::HEAD_DIM_MAX;
use core::mem;
use static_assertions::const_assert_eq;

/// Most channels of a head.
pub const CHANNELS_MAX: usize = HEAD_DIM_MAX as usize;
/// Channels of a group: of what is above four bits, a vector of bytes.
pub(in crate::kernel) const GROUP: usize = 32;
/// Half of a group: those whose nibbles are low ones, or high ones.
pub(in crate::kernel) const HALF: usize = GROUP / 2;
/// In place of a byte that a channel does not have.
const NONE: u8 = 0x80;
/// Significant bits of an F16 value.
const F16_BITS: u8 = 11;
/// 2^-18: the least step. Its last place is one of F16.
const STEP_MIN: f32 = f32::from_bits((127 - 18) << 23);

/// How a channel of K is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv4Row {
    /// The least value, F16 bits.
    pub min: u16,
    /// The greatest.
    pub max: u16,
    /// Bits of a code, 4 to 6. Any other number: there are no codes, and all values are the least.
    pub width: u8,
}

impl Kv4Row {
    /// The last code; 0 where there are none.
    #[inline(always)]
    pub const fn top(&self) -> u8 {
        match self.width {
            4..=6 => (1 << self.width) - 1,
            _ => 0,
        }
    }

    /// The distance between codes; 0 where there are none.
    #[inline(always)]
    pub fn step(&self) -> f32 {
        step(f32_from_f16(self.min), f32_from_f16(self.max), self.width)
    }

    /// Whether every code finds itself again after its value was rounded to F16: the distance is at
    /// least 1.25 units of the greatest magnitude's last place. The ends must be finite.
    pub fn is_stable(&self) -> bool {
        let magnitude = (self.min & F16_MAGNITUDE).max(self.max & F16_MAGNITUDE);
        let exponent = u32::from(magnitude >> 10).max(1);
        let last_place = f32::from_bits((127 - 25 + exponent) << 23);
        let distance = (1.25 * last_place).max(STEP_MIN);
        f32_from_f16(self.max) - f32_from_f16(self.min) >= f32::from(self.top()) * distance
    }
}

/// The code of the greatest value: the first one that reaches it.
#[inline(always)]
fn last(min: f32, max: f32, step: f32, factor: f32, top: u8) -> u8 {
    let code = nearest((max - min) * factor) & top;
    let value = f32_from_f16(f16_from_f32(f32::from(code) * step + min));
    (code + u8::from(value < max)) & top
}

/// The least number of `11 - width` significant bits whose product with the last code leads from
/// `min` to `max`.
#[inline(always)]
fn step(min: f32, max: f32, width: u8) -> f32 {
    let width = u32::from(width);
    let is_coded = width.wrapping_sub(4) <= 2;
    let width = if is_coded { width } else { 4 };
    let top = ((1u32 << width) - 1) as f32;
    let unit = 1u32 << (width + 24 - F16_BITS as u32);
    let quotient = ((max - min) / top).to_bits();
    let step = quotient.wrapping_add(unit - 1) & !(unit - 1);
    // The division was rounded.
    let more = if top * f32::from_bits(step) + min < max { unit } else { 0 };
    let step = f32::from_bits(step.wrapping_add(more));
    if is_coded { step } else { 0.0 }
}

/// The channels of one head of K.
#[derive(Clone, Copy, Debug)]
pub struct Kv4Channels<'a> {
    /// Least and greatest value of each, F16 bits.
    pub ends: &'a [[u16; 2]],
    /// As [`Kv4Row::width`].
    pub widths: &'a [u8],
}

impl Kv4Channels<'_> {
    /// One of them.
    #[inline(always)]
    pub fn row(&self, channel: usize) -> Kv4Row {
        let [min, max] = self.ends[channel];
        Kv4Row { min, max, width: self.widths[channel] }
    }

    /// Bytes of what is above four bits, for one block.
    pub fn upper_bytes(&self) -> usize {
        self.widths
            .iter()
            .map(|width| [1, 2].get(width.wrapping_sub(5) as usize).unwrap_or(&0))
            .sum()
    }
}

/// What codes stand for, channel by channel. The assembly knows where which numbers lie.
#[repr(C)]
pub(in crate::kernel) struct Scales {
    pub min: [f32; CHANNELS_MAX],
    pub max: [f32; CHANNELS_MAX],
    pub step: [f32; CHANNELS_MAX],
}

// As `asm/x86_64/kv4_tokens_avx2.S` has it, in bytes.
const_assert_eq!(mem::offset_of!(Scales, min), 0);
const_assert_eq!(mem::offset_of!(Scales, max), 1024);
const_assert_eq!(mem::offset_of!(Scales, step), 2048);

impl Scales {
    #[inline(always)]
    pub fn new(channels: &Kv4Channels<'_>) -> Self {
        let mut scales = Scales {
            min: [0.0; CHANNELS_MAX],
            max: [0.0; CHANNELS_MAX],
            step: [0.0; CHANNELS_MAX],
        };
        let Scales { min, max, step: steps } = &mut scales;
        // One loop each, so that they become vectors.
        for ((min, max), &[least, greatest]) in min.iter_mut().zip(&mut *max).zip(channels.ends) {
            (*min, *max) = (f32_from_f16(least), f32_from_f16(greatest));
        }
        let ends = min.iter().zip(max);
        for ((to, (&mut max, &min)), &width) in
            steps.iter_mut().zip(ends.map(|(min, max)| (max, min))).zip(channels.widths)
        {
            *to = step(min, max, width);
        }
        scales
    }

    /// The value of a code, F16 bits.
    #[inline(always)]
    fn value(&self, channel: usize, code: u8) -> u16 {
        let value = f32::from(code) * self.step[channel] + self.min[channel];
        let max = self.max[channel];
        f16_from_f32(if value < max { value } else { max })
    }
}

/// What becomes of values, channel by channel.
pub(in crate::kernel) struct Factors {
    pub scales: Scales,
    /// Codes for one; 0 where there are none.
    pub factor: [f32; CHANNELS_MAX],
    /// The greatest value's code.
    pub last: [f32; CHANNELS_MAX],
    /// The bits that a code may have, in the order of [`place`].
    pub tops: [u8; CHANNELS_MAX],
}

impl Factors {
    #[inline(always)]
    pub fn new(channels: &Kv4Channels<'_>) -> Self {
        let mut factors = Factors {
            scales: Scales::new(channels),
            factor: [0.0; CHANNELS_MAX],
            last: [0.0; CHANNELS_MAX],
            tops: [0; CHANNELS_MAX],
        };
        for channel in 0..channels.widths.len() {
            let Scales { min, max, step } = &factors.scales;
            let (min, max, step) = (min[channel], max[channel], step[channel]);
            let factor = if step == 0.0 { 0.0 } else { 1.0 / step };
            let top = channels.row(channel).top();
            factors.last[channel] = f32::from(last(min, max, step, factor, top));
            factors.factor[channel] = factor;
            factors.tops[place(channel)] = top;
        }
        factors
    }

    /// The code of a value.
    #[inline(always)]
    fn code(&self, channel: usize, half: u16) -> u8 {
        let value = f32_from_f16(half);
        let number = match value == self.scales.max[channel] {
            true => self.last[channel],
            false => (value - self.scales.min[channel]) * self.factor[channel],
        };
        nearest(number) & self.tops[place(channel)]
    }
}

/// Where a channel comes in the order of upper bits.
#[inline(always)]
const fn place(channel: usize) -> usize {
    let (group, quad, byte) = (channel / GROUP, channel % GROUP / 8, channel % 4);
    GROUP * group + HALF * (channel / 4 % 2) + 4 * quad + byte
}

/// Which channel comes there; its own inverse would be [`place`].
#[inline(always)]
const fn channel_at(place: usize) -> usize {
    let (group, quad, byte) = (place / GROUP, place % HALF / 4, place % 4);
    GROUP * group + 8 * quad + 4 * (place / HALF % 2) + byte
}

/// Where the bytes of what is above four bits lie in a block: of bit 4, then of bit 5.
pub(in crate::kernel) struct Upper {
    pub planes: [UpperPlane; 2],
}

/// Those of one bit.
pub(in crate::kernel) struct UpperPlane {
    /// How many there are.
    pub bytes: usize,
    /// Where those of each half group begin.
    pub starts: [usize; CHANNELS_MAX / HALF],
    /// By place: which one from there on, or a number over 127.
    pub picks: [u8; CHANNELS_MAX],
}

impl Upper {
    #[inline(always)]
    pub fn new(channels: &Kv4Channels<'_>) -> Self {
        let fifth = UpperPlane::new(channels, 5, 0);
        let sixth = UpperPlane::new(channels, 6, fifth.bytes);
        Upper { planes: [fifth, sixth] }
    }

    /// Bytes of a block.
    #[inline(always)]
    pub fn bytes(&self) -> usize {
        self.planes[0].bytes + self.planes[1].bytes
    }
}

impl UpperPlane {
    /// The bytes of codes of at least that width; the first one lies at `start`.
    #[inline(always)]
    fn new(channels: &Kv4Channels<'_>, width: u8, start: usize) -> Self {
        let mut plane =
            UpperPlane { bytes: 0, starts: [0; CHANNELS_MAX / HALF], picks: [NONE; CHANNELS_MAX] };
        let mut at = start;
        let places = channels.widths.len().next_multiple_of(GROUP);
        for (half, picks) in plane.picks[..places].chunks_exact_mut(HALF).enumerate() {
            plane.starts[half] = at;
            let mut pick = 0;
            for (byte, to) in picks.iter_mut().enumerate() {
                let other = channels.widths.get(channel_at(half * HALF + byte)).unwrap_or(&0);
                if (width..=6).contains(other) {
                    *to = pick;
                    pick += 1;
                }
            }
            at += usize::from(pick);
        }
        plane.bytes = at - start;
        plane
    }

    /// Where in a block the byte of a channel lies, if it has one.
    #[inline(always)]
    fn byte(&self, channel: usize) -> Option<usize> {
        let place = place(channel);
        let pick = self.picks[place];
        (pick < NONE).then(|| self.starts[place / HALF] + usize::from(pick))
    }

    /// Writes the bytes of a block that come from bytes at all places.
    #[inline(always)]
    pub fn compact(&self, all: &[u8], block: &mut [u8]) {
        let halves = all.chunks_exact(HALF).zip(self.picks.chunks_exact(HALF));
        for ((all, picks), &start) in halves.zip(&self.starts) {
            for (&byte, &pick) in all.iter().zip(picks) {
                if pick < NONE {
                    block[start + usize::from(pick)] = byte;
                }
            }
        }
    }
}

/// A block's upper bits with half a group of bytes behind them.
#[inline(always)]
pub(in crate::kernel) fn padded<'a>(
    upper: &'a [u8],
    block: usize,
    bytes: usize,
    copy: &'a mut [u8; 2 * CHANNELS_MAX + HALF],
) -> &'a [u8] {
    let rest = &upper[block * bytes..];
    match rest.get(..bytes + HALF) {
        Some(padded) => padded,
        None => {
            copy[..bytes].copy_from_slice(&rest[..bytes]);
            &copy[..bytes + HALF]
        }
    }
}

/// Least and greatest value of each channel.
pub fn spread(values: &[u16], spans: &mut [Kv4Span]) {
    spread_from(0, values, spans);
}

/// The same from a channel on.
#[inline(always)]
pub(in crate::kernel) fn spread_from(first: usize, values: &[u16], spans: &mut [Kv4Span]) {
    let channels = spans.len();
    for (channel, span) in spans.iter_mut().enumerate().skip(first) {
        let numbers = values[channel..].iter().step_by(channels).map(|&half| ordered(half));
        let (min, max) = numbers
            .fold((i16::MAX, i16::MIN), |(min, max), number| (min.min(number), max.max(number)));
        *span = span_of(min, max);
    }
}

/// A number that is ordered as the F16 value is; its own inverse but for the type.
#[inline(always)]
const fn ordered(half: u16) -> i16 {
    let bits = half.cast_signed();
    bits ^ (bits >> 15 & i16::MAX)
}

/// The span of values from the least to the greatest in order.
#[inline(always)]
pub(in crate::kernel) const fn span_of(min: i16, max: i16) -> Kv4Span {
    const INFINITY: i16 = ordered(F16_INFINITY);
    const MINUS_INFINITY: i16 = ordered(F16_INFINITY | !F16_MAGNITUDE);
    const fn half(number: i16) -> u16 {
        match ordered(number.cast_unsigned()).cast_unsigned() {
            0x8000 => 0,
            half => half,
        }
    }
    let is_finite = max < INFINITY && min > MINUS_INFINITY;
    Kv4Span { min: half(min), max: half(max), is_finite }
}

/// Codes tokens of K.
pub fn encode(values: &[u16], channels: &Kv4Channels<'_>, nibbles: &mut [u8], upper: &mut [u8]) {
    let (factors, at) = (Factors::new(channels), Upper::new(channels));
    encode_from(0, channels.widths.len(), &factors, &at, values, nibbles, upper);
}

/// The same from one of the channels on; writes no bit of others.
#[inline(always)]
pub(in crate::kernel) fn encode_from(
    first: usize,
    channels: usize,
    factors: &Factors,
    at: &Upper,
    values: &[u16],
    nibbles: &mut [u8],
    upper: &mut [u8],
) {
    let bytes = at.bytes();
    let tokens = values.chunks_exact(channels).zip(nibbles.chunks_exact_mut(channels / 2));
    for (token, (values, nibbles)) in tokens.enumerate() {
        let block = &mut upper[token / KV4_BLOCK * bytes..][..bytes];
        let bit = token % KV4_BLOCK;
        let eights = values.as_chunks::<8>().0.iter().zip(nibbles.as_chunks_mut::<4>().0);
        for (eight, (values, nibbles)) in eights.enumerate().skip(first / 8) {
            let codes: [u8; 8] =
                core::array::from_fn(|at| factors.code(8 * eight + at, values[at]));
            *nibbles = core::array::from_fn(|at| codes[at] & 15 | codes[at + 4] << 4);
            for (channel, code) in (8 * eight..).zip(codes) {
                for (plane, upper) in at.planes.iter().zip([code >> 4, code >> 5]) {
                    if let Some(byte) = plane.byte(channel) {
                        let others = if bit == 0 { 0 } else { block[byte] };
                        block[byte] = others | (upper & 1) << (KV4_BLOCK - 1 - bit);
                    }
                }
            }
        }
    }
}

/// Decodes tokens of K.
pub fn decode(channels: &Kv4Channels<'_>, nibbles: &[u8], upper: &[u8], values: &mut [u16]) {
    let (scales, at) = (Scales::new(channels), Upper::new(channels));
    decode_from(0, channels.widths.len(), &scales, &at, nibbles, upper, values);
}

/// The same from one of the channels on; writes no value of others.
#[inline(always)]
pub(in crate::kernel) fn decode_from(
    first: usize,
    channels: usize,
    scales: &Scales,
    at: &Upper,
    nibbles: &[u8],
    upper: &[u8],
    values: &mut [u16],
) {
    let bytes = at.bytes();
    let tokens = values.chunks_exact_mut(channels).zip(nibbles.chunks_exact(channels / 2));
    for (token, (values, nibbles)) in tokens.enumerate() {
        let block = &upper[token / KV4_BLOCK * bytes..][..bytes];
        for (channel, value) in values.iter_mut().enumerate().skip(first) {
            let nibble = nibbles[channel / 8 * 4 + channel % 4] >> (channel & 4) & 15;
            let bit = |plane: &UpperPlane| match plane.byte(channel) {
                Some(byte) => block[byte] >> (KV4_BLOCK - 1 - token % KV4_BLOCK) & 1,
                None => 0,
            };
            let code = nibble | bit(&at.planes[0]) << 4 | bit(&at.planes[1]) << 5;
            *value = scales.value(channel, code);
        }
    }
}
