//! The 4-bit format with AVX2, F16C and FMA, and the transposition that goes with it.
//!
//! Groups of 32 channels of K and blocks of 32 values of V run here, what is left in the portable
//! functions.

use super::super::kv4::{
    self, Factors, GROUP, HALF, KV4_BLOCK, Kv4Channels, Kv4Decode, Kv4Encode, Kv4Span, Kv4Spread,
    Kv4VDecode, Kv4VEncode, Scales, Upper, UpperPlane, kv4_step, span_of,
};
use super::super::portable;
use super::super::typed::{Matrix, Transpose};
use super::super::{CpuFlags, Kernels};
use super::kv4_tokens::decode_group;
use core::arch::x86_64::*;

/// Values of V that run at once.
const V_BLOCK: usize = 32;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const ISA: &str = "avx2";
    if flags.contains(CpuFlags::AVX2.union(CpuFlags::F16C)) {
        table.transpose = Transpose { isa: ISA, run: transpose };
        table.kv4_spread = Kv4Spread { isa: ISA, run: spread };
        table.kv4_encode = Kv4Encode { isa: ISA, run: encode };
        table.kv4_v_encode = Kv4VEncode { isa: ISA, run: v_encode };
        table.kv4_v_decode = Kv4VDecode { isa: ISA, run: v_decode };
    }
    if flags.contains(CpuFlags::AVX2.union(CpuFlags::F16C).union(CpuFlags::FMA)) {
        table.kv4_decode = Kv4Decode { isa: ISA, run: decode };
    }
    table
}

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

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_group(bytes: &[u8; GROUP]) -> __m256i {
    // SAFETY: reads the 32 bytes that `bytes` refers to; no alignment is needed.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn store_group(bytes: &mut [u8; GROUP], from: __m256i) {
    // SAFETY: writes the 32 bytes that `bytes` refers to; no alignment is needed.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), from) };
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_floats(floats: &[f32; 8]) -> __m256 {
    // SAFETY: reads the 8 floats that `floats` refers to; no alignment is needed.
    unsafe { _mm256_loadu_ps(floats.as_ptr()) }
}

/// A number that is ordered as the F16 value is, for each of 16.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn ordered(halves: __m256i) -> __m256i {
    let sign = _mm256_srai_epi16::<15>(halves);
    _mm256_xor_si256(halves, _mm256_and_si256(sign, _mm256_set1_epi16(i16::MAX)))
}

/// Needs AVX2 and F16C, whole tokens and at least one.
#[target_feature(enable = "avx2,f16c")]
fn spread(values: &[u16], spans: &mut [Kv4Span]) {
    let mut first = 0;
    while spans.len() - first >= 64 {
        spread_some::<4>(first, values, spans);
        first += 64;
    }
    while spans.len() - first >= 16 {
        spread_some::<1>(first, values, spans);
        first += 16;
    }
    kv4::spread_from(first, values, spans);
}

/// As many times 16 channels, which there are.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn spread_some<const VECTORS: usize>(first: usize, values: &[u16], spans: &mut [Kv4Span]) {
    let mut min = [_mm256_set1_epi16(i16::MAX); VECTORS];
    let mut max = [_mm256_set1_epi16(i16::MIN); VECTORS];
    for token in values.chunks_exact(spans.len()) {
        let (halves, _) = token[first..].as_chunks::<16>();
        for vector in 0..VECTORS {
            let numbers = ordered(load_wide(&halves[vector]));
            min[vector] = _mm256_min_epi16(min[vector], numbers);
            max[vector] = _mm256_max_epi16(max[vector], numbers);
        }
    }
    let (spans, _) = spans[first..].as_chunks_mut::<16>();
    for ((min, max), spans) in min.into_iter().zip(max).zip(spans) {
        let (mut least, mut greatest) = ([0; 16], [0; 16]);
        store_wide(&mut least, min);
        store_wide(&mut greatest, max);
        for ((min, max), span) in least.into_iter().zip(greatest).zip(spans) {
            *span = span_of(min.cast_signed(), max.cast_signed());
        }
    }
}

/// Bytes from four times 8 integers that fit: of each four the first in the low lane, the second in
/// the high one.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn gather(words: [__m256i; 4]) -> __m256i {
    let [a, b, c, d] = words;
    _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d))
}

/// The same bytes in order.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn in_order(bytes: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The numbers of a group.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn eights(group: usize, numbers: &[f32; kv4::CHANNELS_MAX]) -> [__m256; 4] {
    let (eights, _) = numbers[group * GROUP..][..GROUP].as_chunks::<8>();
    [
        load_floats(&eights[0]),
        load_floats(&eights[1]),
        load_floats(&eights[2]),
        load_floats(&eights[3]),
    ]
}

/// Needs AVX2 and F16C, whole tokens and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn encode(values: &[u16], channels: &Kv4Channels<'_>, nibbles: &mut [u8], upper: &mut [u8]) {
    let count = channels.widths.len();
    let (factors, at) = (Factors::new(channels), Upper::new(channels));
    let first = count / GROUP * GROUP;
    let (mut fifth, mut sixth) = ([0; kv4::CHANNELS_MAX], [0; kv4::CHANNELS_MAX]);
    let blocks = values.chunks(KV4_BLOCK * count).zip(nibbles.chunks_mut(KV4_BLOCK * count / 2));
    for (block, (values, nibbles)) in blocks.enumerate() {
        for group in 0..count / GROUP {
            let bits = encode_group(group, count, &factors, values, nibbles);
            store_group(&mut fifth.as_chunks_mut::<GROUP>().0[group], bits[0]);
            store_group(&mut sixth.as_chunks_mut::<GROUP>().0[group], bits[1]);
        }
        let upper = &mut upper[block * at.bytes()..][..at.bytes()];
        at.planes[0].compact(&fifth[..first], upper);
        at.planes[1].compact(&sixth[..first], upper);
    }
    if first < count {
        kv4::encode_from(first, count, &factors, &at, values, nibbles, upper);
    }
}

/// One group of a block: its nibbles are written, its upper bits given back.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn encode_group(
    group: usize,
    count: usize,
    factors: &Factors,
    values: &[u16],
    nibbles: &mut [u8],
) -> [__m256i; 2] {
    let (min, max) = (eights(group, &factors.scales.min), eights(group, &factors.scales.max));
    let (factor, last) = (eights(group, &factors.factor), eights(group, &factors.last));
    let tops = load_group(&factors.tops.as_chunks::<GROUP>().0[group]);
    let (one, zero) = (_mm256_set1_epi8(1), _mm256_setzero_si256());
    let (mut fifth, mut sixth) = (zero, zero);
    let push =
        |bits, codes| _mm256_or_si256(_mm256_add_epi8(bits, bits), _mm256_and_si256(codes, one));
    for token in 0..KV4_BLOCK {
        let mut codes = zero;
        if let Some(values) = values.get(token * count..).filter(|values| !values.is_empty()) {
            let (values, _) = values[group * GROUP..][..GROUP].as_chunks::<8>();
            let mut words = [zero; 4];
            for eight in 0..4 {
                let value = _mm256_cvtph_ps(load(&values[eight]));
                let number = _mm256_mul_ps(_mm256_sub_ps(value, min[eight]), factor[eight]);
                let is_max = _mm256_cmp_ps::<_CMP_EQ_OQ>(value, max[eight]);
                words[eight] = _mm256_cvtps_epi32(_mm256_blendv_ps(number, last[eight], is_max));
            }
            codes = _mm256_and_si256(gather(words), tops);
            let low = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            let high = _mm_slli_epi16::<4>(_mm256_extracti128_si256::<1>(low));
            let (nibbles, _) = nibbles[token * count / 2..].as_chunks_mut::<HALF>();
            store_bytes(&mut nibbles[group], _mm_or_si128(_mm256_castsi256_si128(low), high));
        }
        fifth = push(fifth, _mm256_srli_epi16::<4>(codes));
        sixth = push(sixth, _mm256_srli_epi16::<5>(codes));
    }
    [fifth, sixth]
}

/// The bytes of a group in a block of 8 tokens, zero where a channel has none. `block` has 16 bytes
/// more than a block.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn expand(plane: &UpperPlane, group: usize, block: &[u8]) -> __m256i {
    let [low, high] = [plane.starts[2 * group], plane.starts[2 * group + 1]];
    let low = load_bytes(&block[low..].as_chunks().0[0]);
    let high = load_bytes(&block[high..].as_chunks().0[0]);
    let picks = load_group(&plane.picks.as_chunks::<GROUP>().0[group]);
    _mm256_shuffle_epi8(_mm256_set_m128i(high, low), picks)
}

/// Needs AVX2, F16C and FMA, whole tokens and matching lengths.
#[target_feature(enable = "avx2,f16c,fma")]
fn decode(channels: &Kv4Channels<'_>, nibbles: &[u8], upper: &[u8], values: &mut [u16]) {
    let count = channels.widths.len();
    let (scales, at) = (Scales::new(channels), Upper::new(channels));
    decode_groups(0, count, &scales, &at, nibbles, upper, values);
}

/// The channels from that one on, the first of a group. The rest of the channels is done by the
/// portable function.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn decode_groups(
    first: usize,
    count: usize,
    scales: &Scales,
    at: &Upper,
    nibbles: &[u8],
    upper: &[u8],
    values: &mut [u16],
) {
    let mut copy = [0; 2 * kv4::CHANNELS_MAX + HALF];
    let blocks = values.chunks_mut(KV4_BLOCK * count).zip(nibbles.chunks(KV4_BLOCK * count / 2));
    for (block, (values, nibbles)) in blocks.enumerate() {
        let block = kv4::padded(upper, block, at.bytes(), &mut copy);
        for group in first / GROUP..count / GROUP {
            let [fifth, sixth] = &at.planes;
            let bits = [expand(fifth, group, block), expand(sixth, group, block)];
            decode_group(group, count, scales, bits, nibbles, values);
        }
    }
    let first = count / GROUP * GROUP;
    if first < count {
        kv4::decode_from(first, count, scales, at, nibbles, upper, values);
    }
}

/// Makes four bytes of each lane integers, from that one on.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn pick<const BYTE: i32>() -> __m256i {
    // The highest bit of an index makes a zero.
    let lane =
        _mm_setr_epi32(BYTE | !0xFF, (BYTE + 1) | !0xFF, (BYTE + 2) | !0xFF, (BYTE + 3) | !0xFF);
    _mm256_broadcastsi128_si256(lane)
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

/// Low and high bytes of 16 table entries, in both lanes.
#[derive(Clone, Copy)]
struct Page {
    low: __m256i,
    high: __m256i,
}

/// Needs AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn v_encode(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [u8]) -> bool {
    let measure = |row: &[u16]| super::q8_absmax_avx2(row);
    let encode = |row: &[u16], factor, codes: &mut [u8]| v_encode_row(row, factor, codes);
    kv4::v_encode_with(values, row_values, scales, codes, measure, encode)
}

/// Needs AVX2 and F16C, and half as many codes as values.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn v_encode_row(row: &[u16], steps_per_one: f32, codes: &mut [u8]) {
    let factor = _mm256_set1_ps(steps_per_one);
    let (blocks, rest) = row.as_chunks::<V_BLOCK>();
    let (codes, rest_codes) = codes.split_at_mut(blocks.len() * V_BLOCK / 2);
    let (codes, _) = codes.as_chunks_mut::<{ V_BLOCK / 2 }>();
    for (values, codes) in blocks.iter().zip(codes) {
        let (values, _) = values.as_chunks::<8>();
        let words = [0, 1, 2, 3].map(|at| {
            _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtph_ps(load(&values[at])), factor))
        });
        let nibbles = _mm256_and_si256(in_order(gather(words)), _mm256_set1_epi8(15));
        // Even ones once and odd ones 16 times make bytes.
        let pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
        let halves = (_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        store_bytes(codes, _mm_packus_epi16(halves.0, halves.1));
    }
    kv4::v_encode_row(rest, steps_per_one, rest_codes);
}

/// Needs AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn v_decode(scales: &[u16], codes: &[u8], row_values: usize, values: &mut [u16]) {
    let positive = _mm256_setr_ps(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
    let negative = _mm256_setr_ps(-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0);
    let rows = values.chunks_exact_mut(row_values).zip(codes.chunks_exact(row_values / 2));
    for ((row, codes), &scale) in rows.zip(scales) {
        super::expect_writes(row, row.len());
        let step = _mm256_set1_ps(kv4_step(scale));
        let [a, b] = [positive, negative].map(|numbers| {
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_mul_ps(numbers, step))
        });
        let page = page(a, b);
        let (blocks, rest) = row.as_chunks_mut::<V_BLOCK>();
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
