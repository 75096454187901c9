//! Rows of the 4-bit format with NEON, and the transposition that goes with them.
//!
//! Whole blocks of 32 values run here, what is left in the portable functions.

use super::super::kv4::{
    self, KV4_BLOCK, KV4_NIBBLE_BYTES, Kv4Decode, Kv4Encode, Kv4Row, Kv4Span, Kv4Spread,
    Kv4VDecode, Kv4VEncode, kv4_scale_word, kv4_step,
};
use super::super::portable::{self, F16_INFINITY, f32_from_f16};
use super::super::typed::{Matrix, Transpose};
use super::super::{CpuFlags, Kernels};
use core::arch::aarch64::*;

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
fn load_eight(bytes: &[u8; 8]) -> uint8x8_t {
    // SAFETY: reads the 8 bytes that `bytes` refers to; no alignment is needed.
    unsafe { vld1_u8(bytes.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn load(halves: &[u16; 8]) -> uint16x8_t {
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
fn store(halves: &mut [u16; 8], from: uint16x8_t) {
    // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
    unsafe { vst1q_u16(halves.as_mut_ptr(), from) };
}

#[target_feature(enable = "neon")]
#[inline]
fn store_bytes(bytes: &mut [u8; 16], from: uint8x16_t) {
    // SAFETY: writes the 16 bytes that `bytes` refers to; no alignment is needed.
    unsafe { vst1q_u8(bytes.as_mut_ptr(), from) };
}

/// Needs NEON.
#[target_feature(enable = "neon")]
fn spread(values: &[u16]) -> Kv4Span {
    let (wide, rest) = values.as_chunks::<8>();
    let all = vdupq_n_u16(portable::F16_MAGNITUDE);
    let (mut min, mut max) = (vdupq_n_s16(i16::MAX), vdupq_n_s16(i16::MIN));
    let mut magnitude = vdupq_n_u16(0);
    for halves in wide {
        let halves = load(halves);
        let sign = vreinterpretq_u16_s16(vshrq_n_s16::<15>(vreinterpretq_s16_u16(halves)));
        let ordered = vreinterpretq_s16_u16(veorq_u16(halves, vandq_u16(sign, all)));
        min = vminq_s16(min, ordered);
        max = vmaxq_s16(max, ordered);
        magnitude = vmaxq_u16(magnitude, vandq_u16(halves, all));
    }
    kv4::spread_from((vminvq_s16(min), vmaxvq_s16(max), vmaxvq_u16(magnitude)), rest)
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

/// The nibble plane of a block from the codes of its halves.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles_of(codes: [uint8x16_t; 2]) -> uint8x16_t {
    vorrq_u8(vandq_u8(codes[0], vdupq_n_u8(15)), vshlq_n_u8::<4>(codes[1]))
}

/// Needs NEON, a width of 4 to 6 and matching lengths.
#[target_feature(enable = "neon")]
fn encode(values: &[u16], row: &Kv4Row, codes: &mut [u8]) {
    let (nibbles, upper) = codes.split_at_mut(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let upper_bytes = upper.len() / (nibbles.len() / KV4_NIBBLE_BYTES).max(1);
    let (min, factor) = (vdupq_n_f32(f32_from_f16(row.min)), 1.0 / row.step());
    let top = vdupq_n_u8(row.top());
    let (nibbles, _) = nibbles.as_chunks_mut::<KV4_NIBBLE_BYTES>();
    let (blocks, rest) = values.as_chunks::<KV4_BLOCK>();
    for (block, (values, nibbles)) in blocks.iter().zip(&mut *nibbles).enumerate() {
        let (values, _) = values.as_chunks::<8>();
        let codes = [0, 2].map(|at| {
            let numbers = [at, at + 1].map(|at| {
                let (low, high) = widen(load(&values[at]));
                let scaled = |value| vmulq_n_f32(vsubq_f32(value, min), factor);
                (scaled(low), scaled(high))
            });
            vandq_u8(nearest(numbers), top)
        });
        store_bytes(nibbles, nibbles_of(codes));
        put_upper(codes, &mut upper[block * upper_bytes..][..upper_bytes]);
    }
    if !rest.is_empty() {
        let upper = &mut upper[blocks.len() * upper_bytes..];
        kv4::encode_block(rest, row, &mut nibbles[blocks.len()], upper);
    }
}

/// One bit a token, from the low end.
const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// Writes the bits above the nibble, if there are any.
#[target_feature(enable = "neon")]
#[inline]
fn put_upper(codes: [uint8x16_t; 2], upper: &mut [u8]) {
    if let Ok(upper) = <&mut [u8; 4]>::try_from(&mut *upper) {
        let bits = load_bytes(&BITS);
        let [a, b] = codes.map(|codes| vandq_u8(vtstq_u8(codes, vdupq_n_u8(16)), bits));
        let sum = |bits| vaddv_u8(bits);
        *upper =
            [sum(vget_low_u8(a)), sum(vget_high_u8(a)), sum(vget_low_u8(b)), sum(vget_high_u8(b))];
    } else if let Ok(upper) = <&mut [u8; 8]>::try_from(upper) {
        let [a, b] = codes.map(|codes| vandq_u8(vshrq_n_u8::<4>(codes), vdupq_n_u8(3)));
        let low = vorr_u8(vget_low_u8(a), vshl_n_u8::<2>(vget_high_u8(a)));
        let high = vorr_u8(vshl_n_u8::<4>(vget_low_u8(b)), vshl_n_u8::<6>(vget_high_u8(b)));
        // SAFETY: writes the 8 bytes that `upper` refers to; no alignment is needed.
        unsafe { vst1_u8(upper.as_mut_ptr(), vorr_u8(low, high)) };
    }
}

/// The table of a row, 16 entries at a time.
#[target_feature(enable = "neon")]
#[inline]
fn tables<const PAGES: usize>(row: &Kv4Row) -> [(uint16x8_t, uint16x8_t); PAGES] {
    const FIRST: [f32; 4] = [0.0, 16.0, 32.0, 48.0];
    let (min, step) = (vdupq_n_f32(f32_from_f16(row.min)), row.step());
    let four = |codes| vaddq_f32(vmulq_n_f32(codes, step), min);
    let ascending = load_floats(&[0.0, 1.0, 2.0, 3.0]);
    core::array::from_fn(|page| {
        let codes = |first: f32| vaddq_f32(ascending, vdupq_n_f32(FIRST[page] + first));
        let last = narrow(four(codes(8.0)), four(codes(12.0)));
        let last = match page == PAGES - 1 {
            true => vsetq_lane_u16::<7>(row.max, last),
            false => last,
        };
        (narrow(four(codes(0.0)), four(codes(4.0))), last)
    })
}

/// The same, split into low and high bytes.
#[target_feature(enable = "neon")]
#[inline]
fn pages<const PAGES: usize>(row: &Kv4Row) -> [(uint8x16_t, uint8x16_t); PAGES] {
    tables(row).map(|(a, b)| split(a, b))
}

/// Low and high bytes.
#[target_feature(enable = "neon")]
#[inline]
fn split(a: uint16x8_t, b: uint16x8_t) -> (uint8x16_t, uint8x16_t) {
    let (a, b) = (vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
    (vuzp1q_u8(a, b), vuzp2q_u8(a, b))
}

/// The low four bits of both halves of a block.
#[target_feature(enable = "neon")]
#[inline]
fn low_bits(nibbles: &[u8; KV4_NIBBLE_BYTES]) -> [uint8x16_t; 2] {
    let bytes = load_bytes(nibbles);
    [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
}

/// Looks 16 codes up, joins low and high bytes and stores the values.
#[target_feature(enable = "neon")]
#[inline]
fn store_half(values: &mut [u16], low: uint8x16_t, high: uint8x16_t) {
    let (values, _) = values.as_chunks_mut::<8>();
    store(&mut values[0], vreinterpretq_u16_u8(vzip1q_u8(low, high)));
    store(&mut values[1], vreinterpretq_u16_u8(vzip2q_u8(low, high)));
}

/// Needs NEON, a width of 4 to 6 and matching lengths.
#[target_feature(enable = "neon")]
fn decode(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    match row.width {
        4 => decode_4(row, codes, values),
        5 => decode_5(row, codes, values),
        _ => decode_6(row, codes, values),
    }
    let whole = values.len() / KV4_BLOCK;
    if whole * KV4_BLOCK < values.len() {
        kv4::decode_blocks(&row.table(), row.width, whole, codes, values);
    }
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(in crate::kernel) fn mz_kv4_decode4_neon(
        table: *const u16,
        codes: *const u8,
        values: *mut u16,
        blocks: usize,
    );
}

/// The whole blocks of a row of 4-bit codes.
#[cfg(mz_asm)]
#[target_feature(enable = "neon")]
#[inline]
fn decode_4(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [page] = tables(row);
    let blocks = values.len() / KV4_BLOCK;
    let mut table = [[0; 8]; 2];
    store(&mut table[0], page.0);
    store(&mut table[1], page.1);
    // SAFETY: the table has 16 entries; `codes` has the bytes of all blocks and `values` room for
    // the whole ones, as the caller checked; the CPU has NEON.
    unsafe {
        mz_kv4_decode4_neon(table.as_ptr().cast(), codes.as_ptr(), values.as_mut_ptr(), blocks);
    }
}

/// The whole blocks of a row of 4-bit codes.
#[cfg(not(mz_asm))]
#[target_feature(enable = "neon")]
#[inline]
fn decode_4(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [(low, high)] = pages(row);
    let (nibbles, _) = codes.as_chunks::<KV4_NIBBLE_BYTES>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    for (values, nibbles) in blocks.iter_mut().zip(nibbles) {
        let (first, second) = values.split_at_mut(KV4_BLOCK / 2);
        let [a, b] = low_bits(nibbles);
        store_half(first, vqtbl1q_u8(low, a), vqtbl1q_u8(high, a));
        store_half(second, vqtbl1q_u8(low, b), vqtbl1q_u8(high, b));
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn decode_5(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [a, b] = pages(row);
    let (low, high) = (uint8x16x2_t(a.0, b.0), uint8x16x2_t(a.1, b.1));
    let (nibbles, upper) = codes.split_at(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks::<KV4_NIBBLE_BYTES>();
    let (upper, _) = upper.as_chunks::<4>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    let bits = load_bytes(&BITS);
    for ((values, nibbles), upper) in blocks.iter_mut().zip(nibbles).zip(upper) {
        let (first, second) = values.split_at_mut(KV4_BLOCK / 2);
        let [a, b] = low_bits(nibbles);
        let fifth = |first: u8, second: u8| {
            let bytes = vcombine_u8(vdup_n_u8(first), vdup_n_u8(second));
            vandq_u8(vtstq_u8(bytes, bits), vdupq_n_u8(16))
        };
        let a = vorrq_u8(a, fifth(upper[0], upper[1]));
        let b = vorrq_u8(b, fifth(upper[2], upper[3]));
        store_half(first, vqtbl2q_u8(low, a), vqtbl2q_u8(high, a));
        store_half(second, vqtbl2q_u8(low, b), vqtbl2q_u8(high, b));
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn decode_6(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [a, b, c, d] = pages(row);
    let low = uint8x16x4_t(a.0, b.0, c.0, d.0);
    let high = uint8x16x4_t(a.1, b.1, c.1, d.1);
    let (nibbles, upper) = codes.split_at(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks::<KV4_NIBBLE_BYTES>();
    let (upper, _) = upper.as_chunks::<8>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    let mask = vdup_n_u8(0x30);
    for ((values, nibbles), upper) in blocks.iter_mut().zip(nibbles).zip(upper) {
        let (first, second) = values.split_at_mut(KV4_BLOCK / 2);
        let [a, b] = low_bits(nibbles);
        let upper = load_eight(upper);
        let pair = |a, b| vcombine_u8(vand_u8(a, mask), vand_u8(b, mask));
        let a = vorrq_u8(a, pair(vshl_n_u8::<4>(upper), vshl_n_u8::<2>(upper)));
        let b = vorrq_u8(b, pair(upper, vshr_n_u8::<2>(upper)));
        store_half(first, vqtbl4q_u8(low, a), vqtbl4q_u8(high, a));
        store_half(second, vqtbl4q_u8(low, b), vqtbl4q_u8(high, b));
    }
}

/// Needs NEON, whole rows and matching lengths.
#[target_feature(enable = "neon")]
fn v_encode(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [u8]) -> bool {
    let rows = values.chunks_exact(row_values).zip(codes.chunks_exact_mut(row_values / 2));
    for ((row, codes), scale) in rows.zip(scales) {
        let absmax = super::q8_absmax_neon(row);
        if absmax >= F16_INFINITY {
            return false;
        }
        *scale = kv4_scale_word(absmax);
        let steps_per_one = 1.0 / kv4_step(*scale);
        let (blocks, rest) = row.as_chunks::<KV4_BLOCK>();
        let (codes, rest_codes) = codes.split_at_mut(blocks.len() * KV4_NIBBLE_BYTES);
        let (codes, _) = codes.as_chunks_mut::<KV4_NIBBLE_BYTES>();
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
    true
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
        let (blocks, rest) = row.as_chunks_mut::<KV4_BLOCK>();
        let (bytes, rest_bytes) = codes.as_chunks::<KV4_NIBBLE_BYTES>();
        for (values, bytes) in blocks.iter_mut().zip(bytes) {
            let (first, second) = values.split_at_mut(KV4_BLOCK / 2);
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
