//! Rows of the 4-bit format with AVX2 and F16C, and the transposition that goes with them.
//!
//! Whole blocks of 32 values run here, what is left in the portable functions.

use super::super::kv4::{
    self, KV4_BLOCK, KV4_NIBBLE_BYTES, Kv4Decode, Kv4Encode, Kv4Row, Kv4Span, Kv4Spread,
    Kv4VDecode, Kv4VEncode, kv4_scale_word, kv4_step,
};
use super::super::portable::{self, F16_INFINITY, f32_from_f16};
use super::super::typed::{Matrix, Transpose};
use super::super::{CpuFlags, Kernels};
use core::arch::x86_64::*;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const ISA: &str = "avx2";
    if flags.contains(CpuFlags::AVX2.union(CpuFlags::F16C)) {
        table.transpose = Transpose { isa: ISA, run: transpose };
        table.kv4_spread = Kv4Spread { isa: ISA, run: spread };
        table.kv4_encode = Kv4Encode { isa: ISA, run: encode };
        table.kv4_decode = Kv4Decode { isa: ISA, run: decode };
        table.kv4_v_encode = Kv4VEncode { isa: ISA, run: v_encode };
        table.kv4_v_decode = Kv4VDecode { isa: ISA, run: v_decode };
    }
    table
}

type Nibbles = [u8; KV4_NIBBLE_BYTES];

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn load_bytes(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: reads the 16 bytes that `bytes` refers to; no alignment is needed.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load(halves: &[u16; 8]) -> __m128i {
    // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
    unsafe { _mm_loadu_si128(halves.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_wide(halves: &[u16; 16]) -> __m256i {
    // SAFETY: reads the 16 halves that `halves` refers to; no alignment is needed.
    unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store(halves: &mut [u16; 8], from: __m128i) {
    // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
    unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), from) };
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_wide(halves: &mut [u16; 16], from: __m256i) {
    // SAFETY: writes the 16 halves that `halves` refers to; no alignment is needed.
    unsafe { _mm256_storeu_si256(halves.as_mut_ptr().cast(), from) };
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_bytes(bytes: &mut [u8; 16], from: __m128i) {
    // SAFETY: writes the 16 bytes that `bytes` refers to; no alignment is needed.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), from) };
}

/// Needs AVX2 and F16C.
#[target_feature(enable = "avx2,f16c")]
fn spread(values: &[u16]) -> Kv4Span {
    let (wide, rest) = values.as_chunks::<16>();
    let all = _mm256_set1_epi16(i16::MAX);
    let (mut min, mut max) = (all, _mm256_set1_epi16(i16::MIN));
    let mut magnitude = _mm256_setzero_si256();
    for halves in wide {
        let halves = load_wide(halves);
        let sign = _mm256_srai_epi16::<15>(halves);
        let ordered = _mm256_xor_si256(halves, _mm256_and_si256(sign, all));
        min = _mm256_min_epi16(min, ordered);
        max = _mm256_max_epi16(max, ordered);
        magnitude = _mm256_max_epu16(magnitude, _mm256_and_si256(halves, all));
    }
    // The one horizontal instruction finds an unsigned minimum.
    let bias = _mm256_set1_epi16(i16::MIN);
    let ones = _mm256_set1_epi16(-1);
    let min = least(_mm256_xor_si256(min, bias)) ^ 0x8000;
    let max = !least(_mm256_xor_si256(_mm256_xor_si256(max, bias), ones)) ^ 0x8000;
    let magnitude = !least(_mm256_xor_si256(magnitude, ones));
    kv4::spread_from((min.cast_signed(), max.cast_signed(), magnitude), rest)
}

/// The least of 16 unsigned numbers.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn least(numbers: __m256i) -> u16 {
    let halves = (_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
    let least = _mm_minpos_epu16(_mm_min_epu16(halves.0, halves.1));
    let [low, high, ..] = _mm_cvtsi128_si32(least).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Bytes of 32 tokens, in order, from four times 8 integers that fit.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn gather(words: [__m256i; 4]) -> __m256i {
    let [a, b, c, d] = words;
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The nibble plane of a block from its codes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn nibbles_of(codes: __m256i) -> __m128i {
    let low = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    let high = _mm_slli_epi16::<4>(_mm256_extracti128_si256::<1>(low));
    _mm_or_si128(_mm256_castsi256_si128(low), high)
}

/// Needs AVX2 and F16C, a width of 4 to 6 and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn encode(values: &[u16], row: &Kv4Row, codes: &mut [u8]) {
    let (nibbles, upper) = codes.split_at_mut(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let upper_bytes = upper.len() / (nibbles.len() / KV4_NIBBLE_BYTES).max(1);
    let min = _mm256_set1_ps(f32_from_f16(row.min));
    let factor = _mm256_set1_ps(1.0 / row.step());
    let top = _mm256_set1_epi8(row.top().cast_signed());
    let (nibbles, _) = nibbles.as_chunks_mut::<KV4_NIBBLE_BYTES>();
    let (blocks, rest) = values.as_chunks::<KV4_BLOCK>();
    for (block, (values, nibbles)) in blocks.iter().zip(&mut *nibbles).enumerate() {
        let (values, _) = values.as_chunks::<8>();
        let words = [0, 1, 2, 3].map(|at| {
            let distance = _mm256_sub_ps(_mm256_cvtph_ps(load(&values[at])), min);
            _mm256_cvtps_epi32(_mm256_mul_ps(distance, factor))
        });
        let codes = _mm256_and_si256(gather(words), top);
        store_bytes(nibbles, nibbles_of(codes));
        put_upper(codes, &mut upper[block * upper_bytes..][..upper_bytes]);
    }
    if !rest.is_empty() {
        let (nibbles, upper) =
            (&mut nibbles[blocks.len()], &mut upper[blocks.len() * upper_bytes..]);
        kv4::encode_block(rest, row, nibbles, upper);
    }
}

/// Writes the bits above the nibble, if there are any.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn put_upper(codes: __m256i, upper: &mut [u8]) {
    if let Ok(upper) = <&mut [u8; 4]>::try_from(&mut *upper) {
        *upper = _mm256_movemask_epi8(_mm256_slli_epi16::<3>(codes)).to_le_bytes();
    } else if let Ok(upper) = <&mut [u8; 8]>::try_from(upper) {
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), _mm256_set1_epi8(3));
        let high = _mm256_sllv_epi64(high, _mm256_setr_epi64x(0, 2, 4, 6));
        let half = (_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
        let half = _mm_or_si128(half.0, half.1);
        let whole = _mm_or_si128(half, _mm_unpackhi_epi64(half, half));
        *upper = _mm_cvtsi128_si64(whole).to_le_bytes();
    }
}

/// Low and high bytes of 16 table entries, in both lanes.
#[derive(Clone, Copy)]
struct Page {
    low: __m256i,
    high: __m256i,
}

/// The table of a row, 16 entries at a time.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn tables<const PAGES: usize>(row: &Kv4Row) -> [(__m128i, __m128i); PAGES] {
    const FIRST: [f32; 4] = [0.0, 16.0, 32.0, 48.0];
    let (min, step) = (_mm256_set1_ps(f32_from_f16(row.min)), _mm256_set1_ps(row.step()));
    let eight = |codes: __m256| {
        let values = _mm256_add_ps(_mm256_mul_ps(codes, step), min);
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values)
    };
    let codes = _mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
    core::array::from_fn(|page| {
        let codes = _mm256_add_ps(codes, _mm256_set1_ps(FIRST[page]));
        let last = eight(_mm256_add_ps(codes, _mm256_set1_ps(8.0)));
        let last = match page == PAGES - 1 {
            true => _mm_insert_epi16::<7>(last, row.max.into()),
            false => last,
        };
        (eight(codes), last)
    })
}

/// The same, split into bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn pages<const PAGES: usize>(row: &Kv4Row) -> [Page; PAGES] {
    tables(row).map(|(a, b)| page(a, b))
}

/// 16 entries, split into bytes.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn page(a: __m128i, b: __m128i) -> Page {
    let mask = _mm_set1_epi16(0xFF);
    let low = _mm_packus_epi16(_mm_and_si128(a, mask), _mm_and_si128(b, mask));
    let high = _mm_packus_epi16(_mm_srli_epi16::<8>(a), _mm_srli_epi16::<8>(b));
    Page { low: _mm256_broadcastsi128_si256(low), high: _mm256_broadcastsi128_si256(high) }
}

/// The low four bits of 32 tokens in order.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn low_bits(nibbles: &Nibbles) -> __m256i {
    let bytes = load_bytes(nibbles);
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Joins low and high bytes of 32 values and stores them.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store_block(values: &mut [u16; KV4_BLOCK], low: __m256i, high: __m256i) {
    let (a, b) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
    let (values, _) = values.as_chunks_mut::<16>();
    store_wide(&mut values[0], _mm256_permute2x128_si256::<0x20>(a, b));
    store_wide(&mut values[1], _mm256_permute2x128_si256::<0x31>(a, b));
}

/// Needs AVX2 and F16C, a width of 4 to 6 and matching lengths.
#[target_feature(enable = "avx2,f16c")]
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
    pub(in crate::kernel) fn mz_kv4_decode4_avx2(
        table: *const u16,
        codes: *const u8,
        values: *mut u16,
        blocks: usize,
    );
}

/// The whole blocks of a row of 4-bit codes.
#[cfg(mz_asm)]
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn decode_4(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [page] = tables(row);
    let blocks = values.len() / KV4_BLOCK;
    let mut table = [[0; 8]; 2];
    store(&mut table[0], page.0);
    store(&mut table[1], page.1);
    // SAFETY: the table has 16 entries; `codes` has the bytes of all blocks and `values` room for
    // the whole ones, as the caller checked; the CPU has AVX2.
    unsafe {
        mz_kv4_decode4_avx2(table.as_ptr().cast(), codes.as_ptr(), values.as_mut_ptr(), blocks);
    }
}

/// The whole blocks of a row of 4-bit codes.
#[cfg(not(mz_asm))]
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn decode_4(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [page] = pages(row);
    let (nibbles, _) = codes.as_chunks::<KV4_NIBBLE_BYTES>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    for (values, nibbles) in blocks.iter_mut().zip(nibbles) {
        let index = low_bits(nibbles);
        let low = _mm256_shuffle_epi8(page.low, index);
        store_block(values, low, _mm256_shuffle_epi8(page.high, index));
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn decode_5(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let [first, second] = pages(row);
    let (nibbles, upper) = codes.split_at(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks::<KV4_NIBBLE_BYTES>();
    let (upper, _) = upper.as_chunks::<4>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    let spread =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
    for ((values, nibbles), &upper) in blocks.iter_mut().zip(nibbles).zip(upper) {
        let index = low_bits(nibbles);
        let upper = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(upper)), spread);
        let is_second = _mm256_cmpeq_epi8(_mm256_and_si256(upper, bits), bits);
        let pick = |first, second| {
            let (first, second) =
                (_mm256_shuffle_epi8(first, index), _mm256_shuffle_epi8(second, index));
            _mm256_blendv_epi8(first, second, is_second)
        };
        store_block(values, pick(first.low, second.low), pick(first.high, second.high));
    }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn decode_6(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let pages: [Page; 4] = pages(row);
    let (nibbles, upper) = codes.split_at(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks::<KV4_NIBBLE_BYTES>();
    let (upper, _) = upper.as_chunks::<8>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    let shifts = _mm256_setr_epi64x(0, 2, 4, 6);
    for ((values, nibbles), &upper) in blocks.iter_mut().zip(nibbles).zip(upper) {
        let index = low_bits(nibbles);
        let upper = _mm256_srlv_epi64(_mm256_set1_epi64x(i64::from_le_bytes(upper)), shifts);
        let upper = _mm256_and_si256(upper, _mm256_set1_epi8(3));
        // Each bit in turn as the highest of its byte, which is the one that blending looks at.
        let (even, high) = (_mm256_slli_epi16::<7>(upper), _mm256_slli_epi16::<6>(upper));
        let pick = |pages: [__m256i; 4]| {
            let [a, b, c, d] = pages.map(|page| _mm256_shuffle_epi8(page, index));
            let (a, c) = (_mm256_blendv_epi8(a, b, even), _mm256_blendv_epi8(c, d, even));
            _mm256_blendv_epi8(a, c, high)
        };
        store_block(values, pick(pages.map(|page| page.low)), pick(pages.map(|page| page.high)));
    }
}

/// Needs AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn v_encode(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [u8]) -> bool {
    let rows = values.chunks_exact(row_values).zip(codes.chunks_exact_mut(row_values / 2));
    for ((row, codes), scale) in rows.zip(scales) {
        let absmax = super::q8_absmax_avx2(row);
        if absmax >= F16_INFINITY {
            return false;
        }
        *scale = kv4_scale_word(absmax);
        let steps_per_one = 1.0 / kv4_step(*scale);
        let factor = _mm256_set1_ps(steps_per_one);
        let (blocks, rest) = row.as_chunks::<KV4_BLOCK>();
        let (codes, rest_codes) = codes.split_at_mut(blocks.len() * KV4_NIBBLE_BYTES);
        let (codes, _) = codes.as_chunks_mut::<KV4_NIBBLE_BYTES>();
        for (values, codes) in blocks.iter().zip(codes) {
            let (values, _) = values.as_chunks::<8>();
            let words = [0, 1, 2, 3].map(|at| {
                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtph_ps(load(&values[at])), factor))
            });
            let nibbles = _mm256_and_si256(gather(words), _mm256_set1_epi8(15));
            // Even ones once and odd ones 16 times make bytes.
            let pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
            let halves = (_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
            store_bytes(codes, _mm_packus_epi16(halves.0, halves.1));
        }
        kv4::v_encode_row(rest, steps_per_one, rest_codes);
    }
    true
}

/// Needs AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn v_decode(scales: &[u16], codes: &[u8], row_values: usize, values: &mut [u16]) {
    let positive = _mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
    let negative = _mm256_setr_ps(-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0);
    let rows = values.chunks_exact_mut(row_values).zip(codes.chunks_exact(row_values / 2));
    for ((row, codes), &scale) in rows.zip(scales) {
        let step = _mm256_set1_ps(kv4_step(scale));
        let [a, b] = [positive, negative].map(|numbers| {
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_mul_ps(numbers, step))
        });
        let page = page(a, b);
        let (blocks, rest) = row.as_chunks_mut::<KV4_BLOCK>();
        let (bytes, rest_bytes) = codes.as_chunks::<16>();
        for (values, bytes) in blocks.iter_mut().zip(bytes) {
            // The order in which joining low and high bytes lane by lane makes rows of 16.
            let bytes = _mm_shuffle_epi32::<0b11_01_10_00>(load_bytes(bytes));
            let words = _mm256_cvtepu8_epi16(bytes);
            let both = _mm256_or_si256(words, _mm256_slli_epi16::<4>(words));
            let index = _mm256_and_si256(both, _mm256_set1_epi8(15));
            let low = _mm256_shuffle_epi8(page.low, index);
            let high = _mm256_shuffle_epi8(page.high, index);
            let (values, _) = values.as_chunks_mut::<16>();
            store_wide(&mut values[0], _mm256_unpacklo_epi8(low, high));
            store_wide(&mut values[1], _mm256_unpackhi_epi8(low, high));
        }
        v_decode_rest(rest_bytes, _mm256_set_m128i(b, a), rest);
    }
}

/// The end of a row of V, by its table.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn v_decode_rest(codes: &[u8], table: __m256i, rest: &mut [u16]) {
    if !rest.is_empty() {
        let mut entries = [0; 16];
        store_wide(&mut entries, table);
        kv4::v_decode_row(codes, |nibble| entries[usize::from(nibble)], rest);
    }
}

/// Needs AVX2, and a matrix whose rows all end inside their slices. Takes 16 rows by 8 columns at a
/// time, so that rows of 16 come out.
#[target_feature(enable = "avx2,f16c")]
fn transpose(matrix: &Matrix, from: &[u16], to: &mut [u16]) {
    let &Matrix { rows, columns, from_stride, to_stride } = matrix;
    let (whole_rows, whole_columns) = (rows / 16 * 16, columns / 8 * 8);
    let mut block = |row: usize, column: usize| {
        let lines = core::array::from_fn(|line| {
            // SAFETY: the row lies before `rows` and 8 columns fit before `columns`, so the 16
            // bytes end inside `from`, as the caller checked.
            let half = |row: usize| unsafe {
                _mm_loadu_si128(from.as_ptr().add(row * from_stride + column).cast())
            };
            _mm256_set_m128i(half(row + line + 8), half(row + line))
        });
        for (line, turned) in turn(lines).into_iter().enumerate() {
            // SAFETY: the column lies before `columns` and 16 rows fit before `rows`, so the 32
            // bytes end inside `to`, as the caller checked.
            unsafe {
                let target = to.as_mut_ptr().add((column + line) * to_stride + row);
                _mm256_storeu_si256(target.cast(), turned);
            }
        }
    };
    // The longer way outside: the shorter one then stays in the cache with its neighbours' lines.
    if rows > columns {
        for row in (0..whole_rows).step_by(16) {
            (0..whole_columns).step_by(8).for_each(|column| block(row, column));
        }
    } else {
        for column in (0..whole_columns).step_by(8) {
            (0..whole_rows).step_by(16).for_each(|row| block(row, column));
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

/// Transposes 8 by 8 values in each lane.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn turn(lines: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = lines;
    let ab = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
    let cd = (_mm256_unpacklo_epi16(c, d), _mm256_unpackhi_epi16(c, d));
    let ef = (_mm256_unpacklo_epi16(e, f), _mm256_unpackhi_epi16(e, f));
    let gh = (_mm256_unpacklo_epi16(g, h), _mm256_unpackhi_epi16(g, h));
    let four = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (abcd, efgh) = ((four(ab.0, cd.0), four(ab.1, cd.1)), (four(ef.0, gh.0), four(ef.1, gh.1)));
    let eight = |a, b| [_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)];
    let [r0, r1] = eight(abcd.0.0, efgh.0.0);
    let [r2, r3] = eight(abcd.0.1, efgh.0.1);
    let [r4, r5] = eight(abcd.1.0, efgh.1.0);
    let [r6, r7] = eight(abcd.1.1, efgh.1.1);
    [r0, r1, r2, r3, r4, r5, r6, r7]
}
