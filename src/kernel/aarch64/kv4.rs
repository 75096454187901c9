//! The 4-bit format with NEON, and the transposition that goes with it.
//!
//! Groups of 32 channels of K and blocks of 32 values of V run here, what is left in the portable
//! functions.

use super::super::kv4::{
    self, CHANNELS_MAX, Factors, GROUP, HALF, KV4_BLOCK, Kv4Channels, Kv4Decode, Kv4Encode,
    Kv4Span, Kv4Spread, Kv4VDecode, Kv4VEncode, Scales, Upper, UpperPlane, kv4_step, span_of,
};
use super::super::portable;
use super::super::typed::{Matrix, Transpose};
use super::super::{CpuFlags, Kernels};
use super::kv4_fp16;
use core::arch::aarch64::*;

/// Values of V that run at once.
const V_BLOCK: usize = 32;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const ISA: &str = "neon";
    if flags.contains(CpuFlags::NEON) {
        table.transpose = Transpose { isa: ISA, run: transpose };
        table.kv4_spread = Kv4Spread { isa: ISA, run: spread };
        table.kv4_encode = Kv4Encode { isa: ISA, run: encode };
        table.kv4_decode = Kv4Decode { isa: ISA, run: decode };
        table.kv4_v_encode = Kv4VEncode { isa: ISA, run: v_encode };
        table.kv4_v_decode = Kv4VDecode { isa: ISA, run: v_decode };
    }
    if flags.contains(CpuFlags::NEON.union(CpuFlags::FP16)) {
        table.kv4_decode = Kv4Decode { isa: "fp16", run: kv4_fp16::decode };
    }
    table
}

#[target_feature(enable = "neon")]
#[inline]
fn load_bytes(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: reads the 16 bytes that `bytes` refers to; no alignment is needed.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load(halves: &[u16; 8]) -> uint16x8_t {
    // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
    unsafe { vld1q_u16(halves.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn load_floats(floats: &[f32; 4]) -> float32x4_t {
    // SAFETY: reads the 4 floats that `floats` refers to; no alignment is needed.
    unsafe { vld1q_f32(floats.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store(halves: &mut [u16; 8], from: uint16x8_t) {
    // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
    unsafe { vst1q_u16(halves.as_mut_ptr(), from) };
}

#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_bytes(bytes: &mut [u8; 16], from: uint8x16_t) {
    // SAFETY: writes the 16 bytes that `bytes` refers to; no alignment is needed.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), from) };
}

/// A number that is ordered as the F16 value is, for each of 8.
#[target_feature(enable = "neon")]
#[inline]
fn ordered(halves: uint16x8_t) -> int16x8_t {
    let sign = vreinterpretq_u16_s16(vshrq_n_s16::<15>(vreinterpretq_s16_u16(halves)));
    let magnitude = vdupq_n_u16(portable::F16_MAGNITUDE);
    vreinterpretq_s16_u16(veorq_u16(halves, vandq_u16(sign, magnitude)))
}

/// Needs NEON, whole tokens and at least one.
#[target_feature(enable = "neon")]
fn spread(values: &[u16], spans: &mut [Kv4Span]) {
    let mut first = 0;
    while spans.len() - first >= 32 {
        spread_some::<4>(first, values, spans);
        first += 32;
    }
    while spans.len() - first >= 8 {
        spread_some::<1>(first, values, spans);
        first += 8;
    }
    kv4::spread_from(first, values, spans);
}

/// As many times 8 channels, which there are.
#[target_feature(enable = "neon")]
#[inline]
fn spread_some<const VECTORS: usize>(first: usize, values: &[u16], spans: &mut [Kv4Span]) {
    let mut min = [vdupq_n_s16(i16::MAX); VECTORS];
    let mut max = [vdupq_n_s16(i16::MIN); VECTORS];
    for token in values.chunks_exact(spans.len()) {
        let (halves, _) = token[first..].as_chunks::<8>();
        for vector in 0..VECTORS {
            let numbers = ordered(load(&halves[vector]));
            min[vector] = vminq_s16(min[vector], numbers);
            max[vector] = vmaxq_s16(max[vector], numbers);
        }
    }
    let (spans, _) = spans[first..].as_chunks_mut::<8>();
    for vector in 0..VECTORS {
        let (mut least, mut greatest) = ([0; 8], [0; 8]);
        store(&mut least, vreinterpretq_u16_s16(min[vector]));
        store(&mut greatest, vreinterpretq_u16_s16(max[vector]));
        for (span, (min, max)) in spans[vector].iter_mut().zip(least.into_iter().zip(greatest)) {
            *span = span_of(min.cast_signed(), max.cast_signed());
        }
    }
}

/// The low and high four F32 of 8 halves.
#[target_feature(enable = "neon")]
#[inline]
fn widen(halves: uint16x8_t) -> (float32x4_t, float32x4_t) {
    let halves = vreinterpretq_f16_u16(halves);
    (vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
}

/// 8 halves, rounded from F32.
#[target_feature(enable = "neon")]
#[inline]
fn narrow(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high))
}

/// The nearest integers of twice 8 numbers that fit, as bytes.
#[target_feature(enable = "neon")]
#[inline]
fn nearest(numbers: [(float32x4_t, float32x4_t); 2]) -> uint8x16_t {
    let shorts = numbers.map(|(low, high)| {
        let low = vqmovn_s32(vcvtnq_s32_f32(low));
        vqmovn_high_s32(low, vcvtnq_s32_f32(high))
    });
    vreinterpretq_u8_s8(vqmovn_high_s16(vqmovn_s16(shorts[0]), shorts[1]))
}

/// The low four bits of two sets of codes, those of the second ones high.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles_of(codes: [uint8x16_t; 2]) -> uint8x16_t {
    vorrq_u8(vandq_u8(codes[0], vdupq_n_u8(15)), vshlq_n_u8::<4>(codes[1]))
}

/// Needs NEON, whole tokens and matching lengths.
#[target_feature(enable = "neon")]
fn encode(values: &[u16], channels: &Kv4Channels<'_>, nibbles: &mut [u8], upper: &mut [u8]) {
    let count = channels.widths.len();
    let (factors, at) = (Factors::new(channels), Upper::new(channels));
    let first = count / GROUP * GROUP;
    let (mut fifth, mut sixth) = ([0; CHANNELS_MAX], [0; CHANNELS_MAX]);
    let blocks = values.chunks(KV4_BLOCK * count).zip(nibbles.chunks_mut(KV4_BLOCK * count / 2));
    for (block, (values, nibbles)) in blocks.enumerate() {
        for group in 0..count / GROUP {
            let (fifth, sixth) = (&mut fifth[group * GROUP..], &mut sixth[group * GROUP..]);
            encode_group(group, count, &factors, values, nibbles, [fifth, sixth]);
        }
        let upper = &mut upper[block * at.bytes()..][..at.bytes()];
        at.planes[0].compact(&fifth[..first], upper);
        at.planes[1].compact(&sixth[..first], upper);
    }
    if first < count {
        kv4::encode_from(first, count, &factors, &at, values, nibbles, upper);
    }
}

/// One group of a block: its nibbles, and its upper bits in the order of their bytes.
#[target_feature(enable = "neon")]
#[inline]
fn encode_group(
    group: usize,
    count: usize,
    factors: &Factors,
    values: &[u16],
    nibbles: &mut [u8],
    upper: [&mut [u8]; 2],
) {
    let (tops, _) = factors.tops[group * GROUP..].as_chunks::<HALF>();
    let tops = [load_bytes(&tops[0]), load_bytes(&tops[1])];
    let (one, zero) = (vdupq_n_u8(1), vdupq_n_u8(0));
    let mut bits = [[zero; 2]; 2];
    for token in 0..KV4_BLOCK {
        let mut codes = [zero; 2];
        if let Some(values) = values.get(token * count..).filter(|values| !values.is_empty()) {
            let (values, _) = values[group * GROUP..][..GROUP].as_chunks::<8>();
            let mut numbers = [[vdupq_n_f32(0.0); 4]; 2];
            for eight in 0..4 {
                let (low, high) = widen(load(&values[eight]));
                let quad = group * GROUP / 4 + 2 * eight;
                numbers[0][eight] = scaled(factors, quad, low);
                numbers[1][eight] = scaled(factors, quad + 1, high);
            }
            for half in 0..2 {
                let [a, b, c, d] = numbers[half];
                codes[half] = vandq_u8(nearest([(a, b), (c, d)]), tops[half]);
            }
            let (nibbles, _) = nibbles[token * count / 2..].as_chunks_mut::<HALF>();
            store_bytes(&mut nibbles[group], nibbles_of(codes));
        }
        for half in 0..2 {
            let [fifth, sixth] = &mut bits;
            let bit = vandq_u8(vshrq_n_u8::<4>(codes[half]), one);
            fifth[half] = vorrq_u8(vshlq_n_u8::<1>(fifth[half]), bit);
            sixth[half] = vorrq_u8(vshlq_n_u8::<1>(sixth[half]), vshrq_n_u8::<5>(codes[half]));
        }
    }
    for (upper, bits) in upper.into_iter().zip(bits) {
        let (halves, _) = upper.as_chunks_mut::<HALF>();
        store_bytes(&mut halves[0], bits[0]);
        store_bytes(&mut halves[1], bits[1]);
    }
}

/// Values of four channels in steps from the least; the greatest ones become the last code.
#[target_feature(enable = "neon")]
#[inline]
fn scaled(factors: &Factors, quad: usize, values: float32x4_t) -> float32x4_t {
    let four = |numbers: &[f32; CHANNELS_MAX]| load_floats(&numbers.as_chunks::<4>().0[quad]);
    let number = vmulq_f32(vsubq_f32(values, four(&factors.scales.min)), four(&factors.factor));
    vbslq_f32(vceqq_f32(values, four(&factors.scales.max)), four(&factors.last), number)
}

/// Bytes of half a group in a block, zero where a channel has none.
#[target_feature(enable = "neon")]
#[inline]
fn expand(plane: &UpperPlane, half: usize, block: &[u8]) -> uint8x16_t {
    let bytes = load_bytes(&block[plane.starts[half]..].as_chunks().0[0]);
    vqtbl1q_u8(bytes, load_bytes(&plane.picks.as_chunks().0[half]))
}

/// The codes of a group in one token: those of the low halves and those of the high ones.
#[target_feature(enable = "neon")]
#[inline]
fn codes_of(nibbles: &[u8; HALF], token: usize, upper: &[[uint8x16_t; 2]; 2]) -> [uint8x16_t; 2] {
    const FIFTH: [i8; KV4_BLOCK] = [-3, -2, -1, 0, 1, 2, 3, 4];
    let mut codes = low_bits(nibbles);
    for half in 0..2 {
        // The first token's bit is the highest of its byte.
        let fifth = vshlq_u8(upper[0][half], vdupq_n_s8(FIFTH[token]));
        let sixth = vshlq_u8(upper[1][half], vdupq_n_s8(FIFTH[token] + 1));
        let upper = vorrq_u8(vandq_u8(fifth, vdupq_n_u8(16)), vandq_u8(sixth, vdupq_n_u8(32)));
        codes[half] = vorrq_u8(codes[half], upper);
    }
    codes
}

/// A group of channels in a block of tokens.
pub(super) struct GroupBlock<'a> {
    /// Its number.
    pub group: usize,
    /// Channels of a token.
    pub count: usize,
    /// Bits 4 and 5 of its codes, those of low halves and those of high ones.
    pub upper: [[uint8x16_t; 2]; 2],
    /// Of all channels.
    pub nibbles: &'a [u8],
    /// The same.
    pub values: &'a mut [u16],
}

impl GroupBlock<'_> {
    /// Calls `run` for each token with the group's number, codes and values.
    #[target_feature(enable = "neon")]
    #[inline]
    pub(super) fn tokens(self, run: &impl Fn(usize, [uint8x16_t; 2], &mut [[u16; 8]])) {
        let GroupBlock { group, count, upper, nibbles, values } = self;
        let tokens = values.chunks_exact_mut(count).zip(nibbles.chunks_exact(count / 2));
        for (token, (values, nibbles)) in tokens.enumerate() {
            let codes = codes_of(&nibbles.as_chunks().0[group], token, &upper);
            run(group, codes, values[group * GROUP..][..GROUP].as_chunks_mut().0);
        }
    }
}

/// Calls `run` for each group of each block, and leaves the channels behind the last group to the
/// portable function.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn decode_with(
    channels: &Kv4Channels<'_>,
    scales: &Scales,
    nibbles: &[u8],
    upper: &[u8],
    values: &mut [u16],
    run: impl Fn(GroupBlock<'_>),
) {
    let (count, at) = (channels.widths.len(), Upper::new(channels));
    let mut copy = [0; 2 * CHANNELS_MAX + HALF];
    let blocks = values.chunks_mut(KV4_BLOCK * count).zip(nibbles.chunks(KV4_BLOCK * count / 2));
    for (block, (values, nibbles)) in blocks.enumerate() {
        let block = kv4::padded(upper, block, at.bytes(), &mut copy);
        for group in 0..count / GROUP {
            let halves = |plane: &UpperPlane| {
                [expand(plane, 2 * group, block), expand(plane, 2 * group + 1, block)]
            };
            let upper = [halves(&at.planes[0]), halves(&at.planes[1])];
            run(GroupBlock { group, count, upper, nibbles, values });
        }
    }
    let first = count / GROUP * GROUP;
    if first < count {
        kv4::decode_from(first, count, scales, &at, nibbles, upper, values);
    }
}

/// Needs NEON, whole tokens and matching lengths.
#[target_feature(enable = "neon")]
fn decode(channels: &Kv4Channels<'_>, nibbles: &[u8], upper: &[u8], values: &mut [u16]) {
    let scales = Scales::new(channels);
    let run = |group, codes: [uint8x16_t; 2], values: &mut [[u16; 8]]| {
        let wide = [quads(codes[0]), quads(codes[1])];
        for eight in 0..4 {
            let quad = group * GROUP / 4 + 2 * eight;
            let low = valued(&scales, quad, wide[0][eight]);
            let high = valued(&scales, quad + 1, wide[1][eight]);
            store(&mut values[eight], narrow(low, high));
        }
    };
    decode_with(channels, &scales, nibbles, upper, values, |block| block.tokens(&run));
}

/// 16 bytes as F32, four by four.
#[target_feature(enable = "neon")]
#[inline]
fn quads(bytes: uint8x16_t) -> [float32x4_t; 4] {
    let (a, b) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(a))),
        vcvtq_f32_u32(vmovl_high_u16(a)),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(b))),
        vcvtq_f32_u32(vmovl_high_u16(b)),
    ]
}

/// What codes of four channels stand for, before it is rounded.
#[target_feature(enable = "neon")]
#[inline]
fn valued(scales: &Scales, quad: usize, codes: float32x4_t) -> float32x4_t {
    let four = |numbers: &[f32; CHANNELS_MAX]| load_floats(&numbers.as_chunks::<4>().0[quad]);
    vminq_f32(vfmaq_f32(four(&scales.min), codes, four(&scales.step)), four(&scales.max))
}

/// The low four bits of 16 bytes, and the high ones.
#[target_feature(enable = "neon")]
#[inline]
fn low_bits(nibbles: &[u8; HALF]) -> [uint8x16_t; 2] {
    let bytes = load_bytes(nibbles);
    [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
}

/// Low and high bytes.
#[target_feature(enable = "neon")]
#[inline]
fn split(a: uint16x8_t, b: uint16x8_t) -> (uint8x16_t, uint8x16_t) {
    let (a, b) = (vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
    (vuzp1q_u8(a, b), vuzp2q_u8(a, b))
}

/// Looks 16 codes up, joins low and high bytes and stores the values.
#[target_feature(enable = "neon")]
#[inline]
fn store_half(values: &mut [u16], low: uint8x16_t, high: uint8x16_t) {
    let (values, _) = values.as_chunks_mut::<8>();
    store(&mut values[0], vreinterpretq_u16_u8(vzip1q_u8(low, high)));
    store(&mut values[1], vreinterpretq_u16_u8(vzip2q_u8(low, high)));
}

/// Needs NEON, whole rows and matching lengths.
#[target_feature(enable = "neon")]
fn v_encode(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [u8]) -> bool {
    let measure = |row: &[u16]| super::q8_absmax_neon(row);
    let encode = |row: &[u16], factor, codes: &mut [u8]| v_encode_row(row, factor, codes);
    kv4::v_encode_with(values, row_values, scales, codes, measure, encode)
}

/// Needs NEON, and half as many codes as values.
#[target_feature(enable = "neon")]
#[inline]
fn v_encode_row(row: &[u16], steps_per_one: f32, codes: &mut [u8]) {
    let (blocks, rest) = row.as_chunks::<V_BLOCK>();
    let (codes, rest_codes) = codes.split_at_mut(blocks.len() * HALF);
    let (codes, _) = codes.as_chunks_mut::<HALF>();
    for (values, codes) in blocks.iter().zip(codes) {
        let (values, _) = values.as_chunks::<8>();
        let [a, b] = [0, 2].map(|at| {
            nearest([at, at + 1].map(|at| {
                let (low, high) = widen(load(&values[at]));
                (vmulq_n_f32(low, steps_per_one), vmulq_n_f32(high, steps_per_one))
            }))
        });
        store_bytes(codes, nibbles_of([vuzp1q_u8(a, b), vuzp2q_u8(a, b)]));
    }
    kv4::v_encode_row(rest, steps_per_one, rest_codes);
}

/// Needs NEON, whole rows and matching lengths.
#[target_feature(enable = "neon")]
fn v_decode(scales: &[u16], codes: &[u8], row_values: usize, values: &mut [u16]) {
    let positive = (load_floats(&[0.0, 1.0, 2.0, 3.0]), load_floats(&[4.0, 5.0, 6.0, 7.0]));
    let negative = (load_floats(&[-8.0, -7.0, -6.0, -5.0]), load_floats(&[-4.0, -3.0, -2.0, -1.0]));
    let rows = values.chunks_exact_mut(row_values).zip(codes.chunks_exact(row_values / 2));
    for ((row, codes), &scale) in rows.zip(scales) {
        let step = kv4_step(scale);
        let [a, b] = [positive, negative]
            .map(|(low, high)| narrow(vmulq_n_f32(low, step), vmulq_n_f32(high, step)));
        let (low, high) = split(a, b);
        let (blocks, rest) = row.as_chunks_mut::<V_BLOCK>();
        let (bytes, rest_bytes) = codes.as_chunks::<HALF>();
        for (values, bytes) in blocks.iter_mut().zip(bytes) {
            let (first, second) = values.split_at_mut(V_BLOCK / 2);
            let [even, odd] = low_bits(bytes);
            let (a, b) = (vzip1q_u8(even, odd), vzip2q_u8(even, odd));
            store_half(first, vqtbl1q_u8(low, a), vqtbl1q_u8(high, a));
            store_half(second, vqtbl1q_u8(low, b), vqtbl1q_u8(high, b));
        }
        if !rest.is_empty() {
            let mut entries = [[0; 8]; 2];
            store(&mut entries[0], a);
            store(&mut entries[1], b);
            let value = |nibble| entries.as_flattened()[usize::from(nibble)];
            kv4::v_decode_row(rest_bytes, value, rest);
        }
    }
}

/// Needs NEON, and a matrix whose rows all end inside their slices. Takes 8 rows by 8 columns at a
/// time.
#[target_feature(enable = "neon")]
fn transpose(matrix: &Matrix, from: &[u16], to: &mut [u16]) {
    let &Matrix { rows, columns, from_stride, to_stride } = matrix;
    let (whole_rows, whole_columns) = (rows / 8 * 8, columns / 8 * 8);
    let mut block = |row: usize, column: usize| {
        let lines = core::array::from_fn(|line| {
            // SAFETY: the row lies before `rows` and 8 columns fit before `columns`, so the 16
            // bytes end inside `from`, as the caller checked.
            unsafe { vld1q_u16(from.as_ptr().add((row + line) * from_stride + column)) }
        });
        for (line, turned) in turn(lines).into_iter().enumerate() {
            // SAFETY: the column lies before `columns` and 8 rows fit before `rows`, so the 16
            // bytes end inside `to`, as the caller checked.
            unsafe { vst1q_u16(to.as_mut_ptr().add((column + line) * to_stride + row), turned) };
        }
    };
    // The longer way outside: the shorter one then stays in the cache with its neighbours' lines.
    if rows > columns {
        for row in (0..whole_rows).step_by(8) {
            (0..whole_columns).step_by(8).for_each(|column| block(row, column));
        }
    } else {
        for column in (0..whole_columns).step_by(8) {
            (0..whole_rows).step_by(8).for_each(|row| block(row, column));
        }
    }
    let rest = Matrix { rows: rows - whole_rows, ..*matrix };
    if rest.rows > 0 {
        portable::transpose(&rest, &from[whole_rows * from_stride..], &mut to[whole_rows..]);
    }
    let rest = Matrix { rows: whole_rows, columns: columns - whole_columns, ..*matrix };
    if rest.rows > 0 && rest.columns > 0 {
        let to = &mut to[whole_columns * to_stride..];
        portable::transpose(&rest, &from[whole_columns..], to);
    }
}

/// Transposes 8 by 8 values.
#[target_feature(enable = "neon")]
#[inline]
fn turn(lines: [uint16x8_t; 8]) -> [uint16x8_t; 8] {
    let [a, b, c, d, e, f, g, h] = lines;
    let two =
        |a, b| [vreinterpretq_u32_u16(vtrn1q_u16(a, b)), vreinterpretq_u32_u16(vtrn2q_u16(a, b))];
    let four =
        |a, b| [vreinterpretq_u64_u32(vtrn1q_u32(a, b)), vreinterpretq_u64_u32(vtrn2q_u32(a, b))];
    let eight =
        |a, b| [vreinterpretq_u16_u64(vtrn1q_u64(a, b)), vreinterpretq_u16_u64(vtrn2q_u64(a, b))];
    let ([ab0, ab1], [cd0, cd1], [ef0, ef1], [gh0, gh1]) =
        (two(a, b), two(c, d), two(e, f), two(g, h));
    // Columns 0 and 2, 1 and 3; each with 4 and 6, 5 and 7 in its upper half.
    let ([p0, p2], [p1, p3]) = (four(ab0, cd0), four(ab1, cd1));
    let ([q0, q2], [q1, q3]) = (four(ef0, gh0), four(ef1, gh1));
    let ([r0, r4], [r1, r5]) = (eight(p0, q0), eight(p1, q1));
    let ([r2, r6], [r3, r7]) = (eight(p2, q2), eight(p3, q3));
    [r0, r1, r2, r3, r4, r5, r6, r7]
}
