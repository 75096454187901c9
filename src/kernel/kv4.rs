//! The rows of the 4-bit format: of K one channel of up to 256 tokens, of V one token in one head.
//!
//! Owns the definition of both kinds of row, and the portable functions that are the oracle of all
//! others; `codec::kv4` says how rows make up a chunk.
//!
//! A row of K has its least and its greatest value, which are codes 0 and the last; the others lie
//! between them at equal distances. Its tokens come in blocks of 32, the last one filled up with
//! code 0. The nibble plane has 16 bytes a block: byte `j` holds the low four bits of token `j` in
//! its low half and those of token `j + 16` in its high half. Codes of 5 bits have a plane of 4
//! bytes a block behind it: bit `k` of byte `j` is bit 4 of token `8 j + k`. Codes of 6 bits have
//! one of 8 bytes: byte `j` holds bits 4 and 5 of tokens `j`, `j + 8`, `j + 16` and `j + 24`, from
//! the low end.
//!
//! A row of V has one step, and codes of two's complement from -7 to 7: byte `j` holds that of
//! channel `2 j` in its low half and that of channel `2 j + 1` in its high half.

#[cfg(test)]
mod tests;

use super::portable::{
    F16_INFINITY, F16_MAGNITUDE, f16_from_f32, f32_from_f16, q8_absmax, scale_word, step_of,
};

/// Tokens of one block.
pub const KV4_BLOCK: usize = 32;
/// Bytes of one block's nibbles.
pub const KV4_NIBBLE_BYTES: usize = KV4_BLOCK / 2;
/// Greatest code of V.
const V_MAX: f32 = 7.0;
/// 9352: the greatest step of V; 7 times the next one would be no F16 value.
pub const KV4_V_STEP_MAX: u16 = 0x7091;

/// The scale word of a row of V, as [`super::portable::q8_scale_word`].
#[inline(always)]
pub const fn kv4_scale_word(absmax: u16) -> u16 {
    scale_word(absmax, V_MAX, KV4_V_STEP_MAX)
}

/// The step between codes of V that a scale word stands for.
#[inline(always)]
pub const fn kv4_step(word: u16) -> f32 {
    step_of(word, V_MAX)
}

/// Least and greatest value of a row of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv4Span {
    /// F16 bits; minus zero counts as zero.
    pub min: u16,
    /// The same.
    pub max: u16,
    /// Whether all values are finite; otherwise the two mean nothing.
    pub is_finite: bool,
}

/// How a row of K is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv4Row {
    /// The value of code 0, F16 bits.
    pub min: u16,
    /// The value of the last code.
    pub max: u16,
    /// Bits of a code, 4 to 6.
    pub width: u8,
}

impl Kv4Row {
    /// The last code.
    #[inline(always)]
    pub const fn top(&self) -> u8 {
        (1 << self.width) - 1
    }

    /// The distance between codes.
    #[inline(always)]
    pub fn step(&self) -> f32 {
        (f32_from_f16(self.max) - f32_from_f16(self.min)) / f32::from(self.top())
    }

    /// Whether every code finds itself again after its value was rounded to F16: the distance is at
    /// least 1.25 units of the greatest value's last place. The ends must be finite.
    pub fn is_stable(&self) -> bool {
        let magnitude = (self.min & F16_MAGNITUDE).max(self.max & F16_MAGNITUDE);
        let exponent = u32::from(magnitude >> 10).max(1);
        let last_place = f32::from_bits((127 - 25 + exponent) << 23);
        self.step() >= 1.25 * last_place
    }

    /// Bytes of its codes in `blocks` blocks.
    #[inline(always)]
    pub const fn code_bytes(&self, blocks: usize) -> usize {
        let upper = match self.width {
            5 => KV4_BLOCK / 8,
            6 => KV4_BLOCK / 4,
            _ => 0,
        };
        blocks * (KV4_NIBBLE_BYTES + upper)
    }

    /// The values of all codes; those past the last repeat it.
    #[inline(always)]
    pub(super) fn table(&self) -> [u16; 64] {
        let (min, step, top) = (f32_from_f16(self.min), self.step(), self.top());
        let mut table = [self.max; 64];
        for (code, value) in (0..top).zip(&mut table) {
            *value = f16_from_f32(f32::from(code) * step + min);
        }
        table
    }
}

/// Finds [`Kv4Span`].
#[derive(Clone, Copy, Debug)]
pub struct Kv4Spread {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16]) -> Kv4Span,
}

impl Kv4Spread {
    /// Least and greatest of at least one value.
    pub fn call(&self, values: &[u16]) -> Kv4Span {
        assert!(!values.is_empty());
        // SAFETY: not empty, just checked; the flags given to `Kernels::select` promise the CPU.
        unsafe { (self.run)(values) }
    }
}

/// F16 values of a row of K to codes.
#[derive(Clone, Copy, Debug)]
pub struct Kv4Encode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &Kv4Row, &mut [u8]),
}

impl Kv4Encode {
    /// Codes values that lie between the row's ends, which differ. `codes` has the row's bytes.
    pub fn call(&self, values: &[u16], row: &Kv4Row, codes: &mut [u8]) {
        check_row(values.len(), row, codes.len());
        // SAFETY: width and lengths fit, just checked; the flags given to `Kernels::select` promise
        // the CPU.
        unsafe { (self.run)(values, row, codes) }
    }
}

/// Codes of a row of K back to F16 values.
#[derive(Clone, Copy, Debug)]
pub struct Kv4Decode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&Kv4Row, &[u8], &mut [u16]),
}

impl Kv4Decode {
    /// Lengths as for [`Kv4Encode::call`]; any codes and finite ends are safe.
    pub fn call(&self, row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
        check_row(values.len(), row, codes.len());
        // SAFETY: width and lengths fit, just checked; the flags given to `Kernels::select` promise
        // the CPU.
        unsafe { (self.run)(row, codes, values) }
    }
}

fn check_row(values: usize, row: &Kv4Row, codes: usize) {
    assert!((4..=6).contains(&row.width));
    assert_eq!(codes, row.code_bytes(values.div_ceil(KV4_BLOCK)));
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

/// Least and greatest value of a row.
pub fn spread(values: &[u16]) -> Kv4Span {
    spread_from((i16::MAX, i16::MIN, 0), values)
}

/// A number that is ordered as the F16 value is; its own inverse but for the type.
#[inline(always)]
const fn ordered(half: u16) -> i16 {
    let bits = half.cast_signed();
    bits ^ (bits >> 15 & i16::MAX)
}

/// Continues from what was seen before: least and greatest in order, and greatest magnitude.
#[inline(always)]
pub(super) fn spread_from((min, max, magnitude): (i16, i16, u16), values: &[u16]) -> Kv4Span {
    let min = values.iter().fold(min, |min, &half| min.min(ordered(half)));
    let max = values.iter().fold(max, |max, &half| max.max(ordered(half)));
    let magnitude = q8_absmax(magnitude, values);
    let half = |number: i16| match ordered(number.cast_unsigned()).cast_unsigned() {
        0x8000 => 0,
        half => half,
    };
    Kv4Span { min: half(min), max: half(max), is_finite: magnitude < F16_INFINITY }
}

/// The nearest integer as its low byte; ties go to the even one.
#[inline(always)]
fn nearest(number: f32) -> u8 {
    /// Added to it, a small number is rounded to an integer, which the low bits then hold.
    const ROUNDER: f32 = 12_582_912.0;
    let [code, ..] = (number + ROUNDER).to_bits().to_le_bytes();
    code
}

/// Codes a row of K.
pub fn encode(values: &[u16], row: &Kv4Row, codes: &mut [u8]) {
    let (nibbles, upper) = codes.split_at_mut(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks_mut::<KV4_NIBBLE_BYTES>();
    let upper_bytes = upper.len() / nibbles.len().max(1);
    for (block, (values, nibbles)) in values.chunks(KV4_BLOCK).zip(nibbles).enumerate() {
        encode_block(values, row, nibbles, &mut upper[block * upper_bytes..][..upper_bytes]);
    }
}

/// Codes up to one block.
#[inline(always)]
pub(super) fn encode_block(
    values: &[u16],
    row: &Kv4Row,
    nibbles: &mut [u8; KV4_NIBBLE_BYTES],
    upper: &mut [u8],
) {
    let (min, steps_per_one, top) = (f32_from_f16(row.min), 1.0 / row.step(), row.top());
    let mut codes = [0; KV4_BLOCK];
    for (code, &half) in codes.iter_mut().zip(values) {
        *code = nearest((f32_from_f16(half) - min) * steps_per_one) & top;
    }
    put_block(&codes, row.width, nibbles, upper);
}

/// Writes the planes of one block.
#[inline(always)]
fn put_block(
    codes: &[u8; KV4_BLOCK],
    width: u8,
    nibbles: &mut [u8; KV4_NIBBLE_BYTES],
    upper: &mut [u8],
) {
    for (j, byte) in nibbles.iter_mut().enumerate() {
        *byte = codes[j] & 15 | codes[j + 16] << 4;
    }
    match width {
        5 => {
            for (byte, codes) in upper.iter_mut().zip(codes.chunks_exact(8)) {
                *byte = (0..8).fold(0, |byte, k| byte | (codes[k] >> 4 & 1) << k);
            }
        }
        6 => {
            for (j, byte) in upper.iter_mut().enumerate() {
                *byte = (0..4).fold(0, |byte, k| byte | (codes[j + 8 * k] >> 4 & 3) << (2 * k));
            }
        }
        _ => {}
    }
}

/// Reads the planes of one block.
#[inline(always)]
fn block_of(width: u8, nibbles: &[u8; KV4_NIBBLE_BYTES], upper: &[u8]) -> [u8; KV4_BLOCK] {
    core::array::from_fn(|token| {
        let low = nibbles[token % 16] >> (4 * (token / 16)) & 15;
        let high = match width {
            5 => upper[token / 8] >> (token % 8) & 1,
            6 => upper[token % 8] >> (2 * (token / 8)) & 3,
            _ => 0,
        };
        low | high << 4
    })
}

/// Decodes a row of K.
pub fn decode(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    decode_blocks(&row.table(), row.width, 0, codes, values);
}

/// Decodes a row of K from a block on, by its table.
#[inline(always)]
pub(super) fn decode_blocks(
    table: &[u16; 64],
    width: u8,
    first: usize,
    codes: &[u8],
    values: &mut [u16],
) {
    let blocks = values.len().div_ceil(KV4_BLOCK);
    let (nibbles, upper) = codes.split_at(blocks * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks::<KV4_NIBBLE_BYTES>();
    let upper_bytes = upper.len() / blocks.max(1);
    for (block, values) in values.chunks_mut(KV4_BLOCK).enumerate().skip(first) {
        let codes = block_of(width, &nibbles[block], &upper[block * upper_bytes..]);
        for (value, code) in values.iter_mut().zip(codes) {
            *value = table[usize::from(code)];
        }
    }
}

/// Codes rows of V; false when a value is not finite.
pub fn v_encode(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [u8]) -> bool {
    let rows = values.chunks_exact(row_values).zip(codes.chunks_exact_mut(row_values / 2));
    for ((row, codes), scale) in rows.zip(scales) {
        let absmax = q8_absmax(0, row);
        if absmax >= F16_INFINITY {
            return false;
        }
        *scale = kv4_scale_word(absmax);
        v_encode_row(row, 1.0 / kv4_step(*scale), codes);
    }
    true
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
