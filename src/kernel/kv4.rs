//! The codes of the 4-bit format: of K by channel for up to 256 tokens, of V by token, in one head.
//!
//! Owns the definition of both, the entries of the table, and for V the portable functions that are
//! the oracle of all others; `channels` has those for K. `codec::kv4` says how codes make up a
//! chunk.
//!
//! A channel of K has a least and a greatest value, and a step that follows from them and from the
//! width of its codes: the least number that reaches the greatest value with the last code and
//! has so few significant bits that its product with any code is an F16 value. Code `c` stands for
//! the least value plus `c` steps, rounded once to F16, or for the greatest value if that is less.
//! Arithmetic in F16 with a fused addition and arithmetic in F32 with or without one therefore give
//! the same.
//!
//! Codes lie by tokens, as values do. A token has 4 bytes for 8 channels: byte `j` holds the low
//! four bits of channel `j` in its low half and those of channel `j + 4` in its high half. What is
//! above them comes in blocks of 8 tokens, the last one filled up with code 0: one byte for each
//! channel of 5 bits or 6, which holds bit 4 of its first token in the highest bit and so on; then
//! one for each channel of 6 bits, with bit 5. Their order: by groups of 32 channels, in a group
//! those of low halves before those of high ones.
//!
//! A token of V has one step, and codes of two's complement from -7 to 7: byte `j` holds that of
//! channel `2 j` in its low half and that of channel `2 j + 1` in its high half.

mod channels;
#[cfg(test)]
mod tests;

use super::portable::{Scaling, f16_from_f32, f32_from_f16, q8_absmax};
pub use channels::{CHANNELS_MAX, Kv4Channels, Kv4Row};
pub(super) use channels::{Factors, GROUP, HALF, Scales, Upper, UpperPlane};
pub use channels::{decode, encode, spread};
pub(super) use channels::{decode_from, encode_from, padded, span_of, spread_from};

/// Tokens whose upper bits of a channel are one byte.
pub const KV4_BLOCK: usize = 8;
/// 9352: the greatest step of V; 7 times the next one would be no F16 value.
pub const KV4_V_STEP_MAX: u16 = 0x7091;
const KV4_V_SCALING: Scaling = Scaling { code_max: 7.0, step_max: KV4_V_STEP_MAX };

/// The step between codes of V that a scale word stands for.
#[inline(always)]
pub const fn kv4_step(word: u16) -> f32 {
    KV4_V_SCALING.step(word)
}

/// Least and greatest value of a channel of K.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kv4Span {
    /// F16 bits; minus zero counts as zero.
    pub min: u16,
    /// The same.
    pub max: u16,
    /// Whether all values are finite; otherwise the two mean nothing.
    pub is_finite: bool,
}

/// Finds [`Kv4Span`].
#[derive(Clone, Copy, Debug)]
pub struct Kv4Spread {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &mut [Kv4Span]),
}

impl Kv4Spread {
    /// Least and greatest value of each channel. `values` are those of at least one token.
    pub fn call(&self, values: &[u16], spans: &mut [Kv4Span]) {
        assert!(!values.is_empty());
        check_channels(spans.len(), values.len());
        // SAFETY: whole tokens, at least one, just checked; the flags given to `Kernels::select`
        // promise the CPU.
        unsafe { (self.run)(values, spans) }
    }
}

/// F16 values of K to codes.
#[derive(Clone, Copy, Debug)]
pub struct Kv4Encode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &Kv4Channels<'_>, &mut [u8], &mut [u8]),
}

impl Kv4Encode {
    /// Codes tokens whose values lie between the ends of their channels, those of channels without
    /// codes excepted. `nibbles` has a byte for two values, `upper` the channels'
    /// [`Kv4Channels::upper_bytes`] for each block.
    pub fn call(
        &self,
        values: &[u16],
        channels: &Kv4Channels<'_>,
        nibbles: &mut [u8],
        upper: &mut [u8],
    ) {
        let blocks = check_codes(channels, values.len(), nibbles.len());
        assert_eq!(upper.len(), blocks * channels.upper_bytes());
        // SAFETY: whole tokens and matching lengths, just checked; the flags given to
        // `Kernels::select` promise the CPU.
        unsafe { (self.run)(values, channels, nibbles, upper) }
    }
}

/// Codes of K back to F16 values.
#[derive(Clone, Copy, Debug)]
pub struct Kv4Decode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&Kv4Channels<'_>, &[u8], &[u8], &mut [u16]),
}

impl Kv4Decode {
    /// Lengths as for [`Kv4Encode::call`], but `upper` may be longer. Any codes and ends are safe;
    /// the values mean something where channels with codes are [stable](Kv4Row::is_stable).
    pub fn call(
        &self,
        channels: &Kv4Channels<'_>,
        nibbles: &[u8],
        upper: &[u8],
        values: &mut [u16],
    ) {
        let blocks = check_codes(channels, values.len(), nibbles.len());
        assert!(upper.len() >= blocks * channels.upper_bytes());
        // SAFETY: whole tokens and matching lengths, just checked; the flags given to
        // `Kernels::select` promise the CPU.
        unsafe { (self.run)(channels, nibbles, upper, values) }
    }
}

fn check_channels(channels: usize, values: usize) {
    assert!(channels.is_multiple_of(8) && (8..=CHANNELS_MAX).contains(&channels));
    assert!(values.is_multiple_of(channels));
}

/// The number of blocks.
fn check_codes(channels: &Kv4Channels<'_>, values: usize, nibbles: usize) -> usize {
    let count = channels.ends.len();
    assert_eq!(count, channels.widths.len());
    check_channels(count, values);
    assert_eq!(nibbles, values / 2);
    (values / count).div_ceil(KV4_BLOCK)
}

/// F16 rows of V to codes and one scale word each.
#[derive(Clone, Copy, Debug)]
pub struct Kv4VEncode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], usize, &mut [u16], &mut [u8]) -> bool,
}

impl Kv4VEncode {
    /// Codes rows of `row_values` values each, an even number. `scales` has one entry a row,
    /// `codes` one for two values. False when a value is not finite; the outputs then hold nothing
    /// useful.
    pub fn call(
        &self,
        values: &[u16],
        row_values: usize,
        scales: &mut [u16],
        codes: &mut [u8],
    ) -> bool {
        check_v_rows(values.len(), row_values, scales.len(), codes.len());
        // SAFETY: whole rows and matching lengths, just checked; the flags given to
        // `Kernels::select` promise the CPU.
        unsafe { (self.run)(values, row_values, scales, codes) }
    }
}

/// Codes and scale words of rows of V back to F16 values.
#[derive(Clone, Copy, Debug)]
pub struct Kv4VDecode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &[u8], usize, &mut [u16]),
}

impl Kv4VDecode {
    /// Lengths as for [`Kv4VEncode::call`]. Any scale word and any code is safe; words that
    /// [`Kv4VEncode`] never writes give values without meaning.
    pub fn call(&self, scales: &[u16], codes: &[u8], row_values: usize, values: &mut [u16]) {
        check_v_rows(values.len(), row_values, scales.len(), codes.len());
        // SAFETY: whole rows and matching lengths, just checked; the flags given to
        // `Kernels::select` promise the CPU.
        unsafe { (self.run)(scales, codes, row_values, values) }
    }
}

fn check_v_rows(values: usize, row_values: usize, scales: usize, codes: usize) {
    assert!(row_values > 0 && row_values.is_multiple_of(2));
    assert!(values.is_multiple_of(row_values));
    assert_eq!(scales, values / row_values);
    assert_eq!(codes, values / 2);
}

/// The nearest integer as its low byte; ties go to the even one.
#[inline(always)]
fn nearest(number: f32) -> u8 {
    /// Added to it, a small number is rounded to an integer, which the low bits then hold.
    const ROUNDER: f32 = 12_582_912.0;
    let [code, ..] = (number + ROUNDER).to_bits().to_le_bytes();
    code
}

/// Codes rows of V for which `measure` and `encode` do what [`q8_absmax`] and [`v_encode_row`] do;
/// false when a value is not finite.
#[inline(always)]
pub(super) fn v_encode_with(
    values: &[u16],
    row_values: usize,
    scales: &mut [u16],
    codes: &mut [u8],
    measure: impl Fn(&[u16]) -> u16,
    encode: impl Fn(&[u16], f32, &mut [u8]),
) -> bool {
    let rows = values.chunks_exact(row_values);
    let codes = codes.chunks_exact_mut(row_values / 2);
    KV4_V_SCALING.pack_groups(rows, codes, scales, measure, encode)
}

/// Codes rows of V; false when a value is not finite.
pub fn v_encode(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [u8]) -> bool {
    v_encode_with(values, row_values, scales, codes, |row| q8_absmax(0, row), v_encode_row)
}

/// Codes values of a magnitude up to 7 steps.
#[inline(always)]
pub(super) fn v_encode_row(row: &[u16], steps_per_one: f32, codes: &mut [u8]) {
    let (pairs, _) = row.as_chunks::<2>();
    for (byte, pair) in codes.iter_mut().zip(pairs) {
        let [even, odd] = pair.map(|half| nearest(f32_from_f16(half) * steps_per_one));
        *byte = even & 15 | odd << 4;
    }
}

/// Decodes rows of V.
pub fn v_decode(scales: &[u16], codes: &[u8], row_values: usize, values: &mut [u16]) {
    let rows = values.chunks_exact_mut(row_values).zip(codes.chunks_exact(row_values / 2));
    for ((row, codes), &scale) in rows.zip(scales) {
        let step = kv4_step(scale);
        // The sign is the nibble's highest bit.
        let value = |nibble: u8| f16_from_f32(f32::from((nibble << 4).cast_signed() >> 4) * step);
        v_decode_row(codes, value, row);
    }
}

/// Decodes a row of V, given the value of each nibble.
#[inline(always)]
pub(super) fn v_decode_row(codes: &[u8], value: impl Fn(u8) -> u16, row: &mut [u16]) {
    let (pairs, _) = row.as_chunks_mut::<2>();
    for (pair, byte) in pairs.iter_mut().zip(codes) {
        *pair = [value(byte & 15), value(byte >> 4)];
    }
}
