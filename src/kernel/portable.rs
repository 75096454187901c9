//! Every kernel in plain Rust: the oracle of all others, and what runs where nothing faster exists.
//!
//! Owns the definition of each result, to the bit. The loops have no branch that depends on data,
//! so that the compiler can vectorise them. Nothing here is unsafe.

use super::typed::{Matrix, Q8_GROUP};

/// The polynomial of CRC-32C, reflected.
const CRC32C_POLYNOMIAL: u32 = 0x82F6_3B78;

/// Entry `[n][b]` is the checksum register after byte `b` and then `n` zero bytes.
static CRC32C_TABLE: [[u32; 256]; 8] = crc32c_table();

#[expect(clippy::cast_possible_truncation, reason = "the index stays below 256")]
const fn crc32c_table() -> [[u32; 256]; 8] {
    let mut table = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ CRC32C_POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = table[zeros - 1][byte];
            table[zeros][byte] = before >> 8 ^ table[0][(before & 0xFF) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    table
}

/// Continues a CRC-32C, eight bytes at a time by table.
pub fn crc32c(state: u32, bytes: &[u8]) -> u32 {
    let after = |byte: u8, zeros: usize| CRC32C_TABLE[zeros][usize::from(byte)];
    let mut crc = !state;
    let (words, rest) = bytes.as_chunks::<8>();
    for &[a, b, c, d, e, f, g, h] in words {
        let [a, b, c, d] = (crc ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
        crc = after(a, 7) ^ after(b, 6) ^ after(c, 5) ^ after(d, 4);
        crc ^= after(e, 3) ^ after(f, 2) ^ after(g, 1) ^ after(h, 0);
    }
    for &byte in rest {
        let [low, ..] = crc.to_le_bytes();
        crc = crc >> 8 ^ after(low ^ byte, 0);
    }
    !crc
}

/// Magnitude bits of F16 infinity; greater ones are NaNs.
pub const F16_INFINITY: u16 = 0x7C00;
/// Everything but the sign.
pub const F16_MAGNITUDE: u16 = 0x7FFF;

/// One F16 bit pattern as F32.
#[inline(always)]
pub const fn f32_from_f16(half: u16) -> f32 {
    const TWO_POW_112: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = (half & F16_MAGNITUDE) as u32;
    let sign = ((half & !F16_MAGNITUDE) as u32) << 16;
    // The exponent is rebased by a multiplication, which is exact and takes subnormals along.
    let finite = (f32::from_bits(magnitude << 13) * TWO_POW_112).to_bits();
    let quiet = if magnitude > F16_INFINITY as u32 { 1 << 22 } else { 0 };
    let special = 0x7F80_0000 | magnitude << 13 | quiet;
    let bits = if magnitude < F16_INFINITY as u32 { finite } else { special };
    f32::from_bits(sign | bits)
}

/// One F32 as an F16 bit pattern, rounded to nearest, ties to even.
#[inline(always)]
pub const fn f16_from_f32(single: f32) -> u16 {
    const NAN_FROM: u32 = 0x7F80_0001;
    /// 65520: halfway from the greatest F16 to the next power of two.
    const INFINITE_FROM: u32 = 0x477F_F000;
    /// 2^-14.
    const NORMAL_FROM: u32 = 0x3880_0000;
    let bits = single.to_bits();
    let magnitude = bits & 0x7FFF_FFFF;
    let rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    let normal = rounded.wrapping_sub((127 - 15) << 23) >> 13;
    // Added to one half, the last place is worth 2^-24, as in F16 subnormals: the sum rounds.
    let tiny = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7E00 | magnitude >> 13 & 0x3FF;
    let finite = if magnitude < NORMAL_FROM { tiny } else { normal };
    let special = if magnitude < NAN_FROM { F16_INFINITY as u32 } else { nan };
    let half = if magnitude < INFINITE_FROM { finite } else { special };
    low_half(bits >> 16 & 0x8000 | half)
}

/// The low 16 bits.
#[inline(always)]
const fn low_half(word: u32) -> u16 {
    let [low, high, ..] = word.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// F16 to F32, value by value.
pub fn f16_to_f32(from: &[u16], to: &mut [f32]) {
    for (to, &half) in to.iter_mut().zip(from) {
        *to = f32_from_f16(half);
    }
}

/// F32 to F16, value by value.
pub fn f32_to_f16(from: &[f32], to: &mut [u16]) {
    for (to, &single) in to.iter_mut().zip(from) {
        *to = f16_from_f32(single);
    }
}

/// Marks a scale word that holds the group's greatest magnitude instead of its step.
pub const Q8_ABSMAX_FORM: u16 = 0x8000;
/// 2^-7: greatest magnitudes from here on have an F16 step that reproduces itself.
pub const Q8_STEP_FORM_FROM: u16 = 0x2000;
/// 515.5: the greatest step; 127 times the next one would be no F16 value.
pub const Q8_STEP_MAX: u16 = 0x6007;

/// The step between codes that a scale word stands for.
#[inline(always)]
pub const fn q8_step(word: u16) -> f32 {
    Q8_SCALING.step(word)
}

/// The code of a value, given one over its group's step; ties go to the even code.
#[inline(always)]
pub const fn q8_code(half: u16, steps_per_one: f32) -> i8 {
    /// Added to it, a small number is rounded to an integer, which the low bits then hold.
    const ROUNDER: f32 = 12_582_912.0;
    let [code, ..] = (f32_from_f16(half) * steps_per_one + ROUNDER).to_bits().to_le_bytes();
    code.cast_signed()
}

/// The groups of all rows, in the order of their scale words.
#[inline(always)]
pub(super) fn q8_groups<T>(rows: &[T], row_values: usize) -> impl Iterator<Item = &[T]> + Clone {
    rows.chunks_exact(row_values).flat_map(|row| row.chunks(Q8_GROUP))
}

/// The groups of all rows, for writing.
#[inline(always)]
pub(super) fn q8_groups_mut<T>(
    rows: &mut [T],
    row_values: usize,
) -> impl Iterator<Item = &mut [T]> {
    rows.chunks_exact_mut(row_values).flat_map(|row| row.chunks_mut(Q8_GROUP))
}

/// The greatest magnitude of a group, and of what was seen before.
#[inline(always)]
pub fn q8_absmax(before: u16, group: &[u16]) -> u16 {
    group.iter().fold(before, |max, &half| max.max(half & F16_MAGNITUDE))
}

/// The codes of a group.
#[inline(always)]
pub(super) fn q8_encode(group: &[u16], steps_per_one: f32, codes: &mut [i8]) {
    for (code, &half) in codes.iter_mut().zip(group) {
        *code = q8_code(half, steps_per_one);
    }
}

/// The values of a group.
#[inline(always)]
pub(super) fn q8_decode(codes: &[i8], step: f32, group: &mut [u16]) {
    for (half, &code) in group.iter_mut().zip(codes) {
        *half = f16_from_f32(f32::from(code) * step);
    }
}

/// Groups whose scale words are found at once: by vectors, and without one group waiting for
/// another's divisions.
const GROUPS_AT_ONCE: usize = 16;

/// What scale words a format has: its greatest code, of which 7 and 127 are proven, and its
/// greatest step.
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    pub code_max: f32,
    pub step_max: u16,
}

/// That of the 8-bit format.
pub(super) const Q8_SCALING: Scaling = Scaling { code_max: 127.0, step_max: Q8_STEP_MAX };

impl Scaling {
    /// The scale word of a group whose greatest magnitude is the finite F16 `absmax`.
    ///
    /// Both forms give the same word again for what unpacking makes of the group, so that a second
    /// cycle changes nothing. The step form is preferred: code times step is then exact in F32.
    #[inline(always)]
    pub(super) const fn word(self, absmax: u16) -> u16 {
        if absmax < Q8_STEP_FORM_FROM {
            return Q8_ABSMAX_FORM | absmax;
        }
        let first = f16_from_f32(f32_from_f16(absmax) / self.code_max);
        let first = if first > self.step_max { self.step_max } else { first };
        let reproduced = f16_from_f32(self.code_max * f32_from_f16(first));
        f16_from_f32(f32_from_f16(reproduced) / self.code_max)
    }

    /// The step between codes that a scale word stands for.
    #[inline(always)]
    pub(super) const fn step(self, word: u16) -> f32 {
        /// 2^-24, the least F16 magnitude: a smaller step would make unstable codes.
        const STEP_MIN: f32 = f32::from_bits((127 - 24) << 23);
        let value = f32_from_f16(word & F16_MAGNITUDE);
        if word & Q8_ABSMAX_FORM == 0 {
            return value;
        }
        let step = value * (1.0 / self.code_max);
        if step < STEP_MIN { STEP_MIN } else { step }
    }

    /// The words for greatest magnitudes, and one over their steps.
    #[inline(always)]
    fn scale(
        self,
        magnitudes: [u16; GROUPS_AT_ONCE],
    ) -> ([u16; GROUPS_AT_ONCE], [f32; GROUPS_AT_ONCE]) {
        let mut words = [0; GROUPS_AT_ONCE];
        for (word, magnitude) in words.iter_mut().zip(magnitudes) {
            *word = self.word(magnitude);
        }
        let mut factors = [0.0; GROUPS_AT_ONCE];
        for (factor, word) in factors.iter_mut().zip(words) {
            *factor = 1.0 / self.step(word);
        }
        (words, factors)
    }

    /// Packs groups, each with a scale word: `measure` finds the greatest magnitude and `encode`
    /// writes the codes, given one over the step. False when a value is not finite.
    #[inline(always)]
    pub(super) fn pack_groups<'a, T: 'a>(
        self,
        groups: impl Iterator<Item = &'a [u16]> + Clone,
        codes: impl Iterator<Item = &'a mut [T]>,
        scales: &mut [u16],
        measure: impl Fn(&[u16]) -> u16,
        encode: impl Fn(&[u16], f32, &mut [T]),
    ) -> bool {
        let (mut measured, mut coded) = (groups.clone(), groups.zip(codes));
        for scales in scales.chunks_mut(GROUPS_AT_ONCE) {
            let count = scales.len();
            let mut magnitudes = [0; GROUPS_AT_ONCE];
            for (magnitude, group) in magnitudes[..count].iter_mut().zip(&mut measured) {
                *magnitude = measure(group);
            }
            if q8_absmax(0, &magnitudes) >= F16_INFINITY {
                return false;
            }
            let (words, factors) = self.scale(magnitudes);
            scales.copy_from_slice(&words[..count]);
            for (&factor, (group, codes)) in factors[..count].iter().zip(&mut coded) {
                encode(group, factor, codes);
            }
        }
        true
    }
}

/// Packs groups of rows for which `measure` and `encode` do what [`q8_absmax`] and [`q8_encode`]
/// do; false when a value is not finite.
#[inline(always)]
pub(super) fn q8_pack_with(
    values: &[u16],
    row_values: usize,
    scales: &mut [u16],
    codes: &mut [i8],
    measure: impl Fn(&[u16]) -> u16,
    encode: impl Fn(&[u16], f32, &mut [i8]),
) -> bool {
    if row_values.is_multiple_of(Q8_GROUP) {
        let groups = values.chunks_exact(Q8_GROUP);
        let codes = codes.chunks_exact_mut(Q8_GROUP);
        return Q8_SCALING.pack_groups(groups, codes, scales, measure, encode);
    }
    let groups = q8_groups(values, row_values);
    Q8_SCALING.pack_groups(groups, q8_groups_mut(codes, row_values), scales, measure, encode)
}

/// Packs rows into codes and scale words; false when a value is not finite.
pub fn q8_pack(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [i8]) -> bool {
    q8_pack_with(values, row_values, scales, codes, |group| q8_absmax(0, group), q8_encode)
}

/// Unpacks codes and scale words into rows.
pub fn q8_unpack(scales: &[u16], codes: &[i8], row_values: usize, values: &mut [u16]) {
    let inputs = scales.iter().zip(q8_groups(codes, row_values));
    for (group, (&scale, codes)) in q8_groups_mut(values, row_values).zip(inputs) {
        q8_decode(codes, q8_step(scale), group);
    }
}

/// Moves a matrix to where it lies by columns.
pub fn transpose(matrix: &Matrix, from: &[u16], to: &mut [u16]) {
    for (row, from) in from.chunks(matrix.from_stride).take(matrix.rows).enumerate() {
        let to = to[row..].iter_mut().step_by(matrix.to_stride);
        for (to, &value) in to.zip(&from[..matrix.columns]) {
            *to = value;
        }
    }
}
