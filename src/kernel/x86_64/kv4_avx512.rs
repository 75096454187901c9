//! The 4-bit format with AVX-512: of K 64 channels at once; of V a whole table is one register.
//!
//! What is left of K runs with AVX2, what is left of V in the portable functions.

use super::super::kv4::{
    CHANNELS_MAX, HALF, KV4_BLOCK, Kv4Channels, Kv4Decode, Kv4VDecode, Scales, Upper, UpperPlane,
    kv4_step, padded,
};
use super::super::{CpuFlags, Kernels};
use super::kv4::{self, decode_groups, expand, load_bytes, v_decode_rest};
use core::arch::x86_64::*;

/// Channels of K that run at once: two groups.
const WIDE: usize = 64;
/// Values of V that run at once.
const V_BLOCK: usize = 32;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const ISA: &str = "avx512";
    const AVX2: CpuFlags = CpuFlags::AVX2.union(CpuFlags::F16C).union(CpuFlags::FMA);
    if flags.contains(CpuFlags::AVX512.union(AVX2)) {
        table.kv4_decode = Kv4Decode { isa: ISA, run: decode };
        table.kv4_v_decode = Kv4VDecode { isa: ISA, run: v_decode };
    }
    table
}

/// Needs AVX-512 with AVX2, F16C and FMA, whole tokens and matching lengths.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c,fma")]
fn decode(channels: &Kv4Channels<'_>, nibbles: &[u8], upper: &[u8], values: &mut [u16]) {
    let count = channels.widths.len();
    let (scales, at) = (Scales::new(channels), Upper::new(channels));
    let mut copy = [0; 2 * CHANNELS_MAX + HALF];
    let blocks = values.chunks_mut(KV4_BLOCK * count).zip(nibbles.chunks(KV4_BLOCK * count / 2));
    for (block, (values, nibbles)) in blocks.enumerate() {
        let block = padded(upper, block, at.bytes(), &mut copy);
        for wide in 0..count / WIDE {
            let [fifth, sixth] = &at.planes;
            let bits = [expand_wide(fifth, wide, block), expand_wide(sixth, wide, block)];
            decode_wide(wide, count, &scales, bits, nibbles, values);
        }
    }
    let first = count / WIDE * WIDE;
    if first < count {
        decode_groups(first, count, &scales, &at, nibbles, upper, values);
    }
}

/// Makes four bytes of each lane integers, from that one on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c,fma")]
#[inline]
fn pick<const BYTE: i32>() -> __m512i {
    _mm512_broadcast_i32x4(_mm256_castsi256_si128(kv4::pick::<BYTE>()))
}

/// The upper bits' bytes of 64 channels in a block of 8 tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c,fma")]
#[inline]
fn expand_wide(plane: &UpperPlane, wide: usize, block: &[u8]) -> __m512i {
    let groups = (expand(plane, 2 * wide, block), expand(plane, 2 * wide + 1, block));
    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(groups.0), groups.1);
    let order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15);
    _mm512_permutexvar_epi32(order, both)
}

/// 64 channels of a block. Each lane of the bits has the bytes of four channels, then those of the
/// fourth four behind them and so on, so that four bytes of all lanes are 16 channels in order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c,fma")]
#[inline]
fn decode_wide(
    wide: usize,
    count: usize,
    scales: &Scales,
    [fifth, sixth]: [__m512i; 2],
    nibbles: &[u8],
    values: &mut [u16],
) {
    let mut parts = [[_mm512_setzero_ps(); 4]; 3];
    for (part, numbers) in parts.iter_mut().zip([&scales.min, &scales.max, &scales.step]) {
        let (sixteens, _) = numbers[wide * WIDE..][..WIDE].as_chunks::<16>();
        for at in 0..4 {
            part[at] = load_floats(&sixteens[at]);
        }
    }
    let [min, max, step] = parts;
    let picks = [pick::<0>(), pick::<4>(), pick::<8>(), pick::<12>()];
    let (four, fifth_bit, sixth_bit) =
        (_mm512_set1_epi8(15), _mm512_set1_epi8(16), _mm512_set1_epi8(32));
    let order = _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    let halves = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    // As with AVX2.
    let mut upper = (_mm512_srli_epi16::<3>(fifth), _mm512_srli_epi16::<2>(sixth));
    let tokens = values.chunks_exact_mut(count).zip(nibbles.chunks_exact(count / 2));
    for (token, (values, nibbles)) in tokens.enumerate() {
        if token == KV4_BLOCK / 2 {
            upper = (_mm512_add_epi8(fifth, fifth), _mm512_slli_epi16::<2>(sixth));
        }
        super::expect_writes(&values[wide * WIDE..], WIDE);
        let (values, _) = values[wide * WIDE..][..WIDE].as_chunks_mut::<16>();
        let (nibbles, _) = nibbles.as_chunks::<{ WIDE / 2 }>();
        let both = _mm512_castsi256_si512(load_32(&nibbles[wide]));
        let both = _mm512_permutexvar_epi32(order, both);
        let codes = _mm512_and_si512(_mm512_srlv_epi64(both, halves), four);
        // a | b & c
        let codes = _mm512_ternarylogic_epi64::<0xF8>(codes, upper.0, fifth_bit);
        let codes = _mm512_ternarylogic_epi64::<0xF8>(codes, upper.1, sixth_bit);
        upper = (_mm512_add_epi8(upper.0, upper.0), _mm512_add_epi8(upper.1, upper.1));
        for at in 0..4 {
            let code = _mm512_cvtepi32_ps(_mm512_shuffle_epi8(codes, picks[at]));
            let value = _mm512_fmadd_ps(code, step[at], min[at]);
            let value = _mm512_min_ps(value, max[at]);
            store_half(&mut values[at], _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: reads the 32 bytes that `bytes` refers to; no alignment is needed.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn load_floats(floats: &[f32; 16]) -> __m512 {
    // SAFETY: reads the 16 floats that `floats` refers to; no alignment is needed.
    unsafe { _mm512_loadu_ps(floats.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn store_half(values: &mut [u16; 16], from: __m256i) {
    // SAFETY: writes the 16 halves that `values` refers to; no alignment is needed.
    unsafe { _mm256_storeu_si256(values.as_mut_ptr().cast(), from) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn store_whole(values: &mut [u16; V_BLOCK], from: __m512i) {
    // SAFETY: writes the 32 halves that `values` refers to; no alignment is needed.
    unsafe { _mm512_storeu_si512(values.as_mut_ptr().cast(), from) };
}

/// Needs AVX-512 with F16C, whole rows and matching lengths.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
fn v_decode(scales: &[u16], codes: &[u8], row_values: usize, values: &mut [u16]) {
    let bytes = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    let numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    let rows = values.chunks_exact_mut(row_values).zip(codes.chunks_exact(row_values / 2));
    for ((row, codes), &scale) in rows.zip(scales) {
        super::expect_writes(row, row.len());
        let products = _mm512_mul_ps(numbers, _mm512_set1_ps(kv4_step(scale)));
        let table = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(products);
        // Twice the same, so that the fifth bit of an index does not matter.
        let both = _mm512_broadcast_i64x4(table);
        let (blocks, rest) = row.as_chunks_mut::<V_BLOCK>();
        let (bytes, rest_bytes) = codes.as_chunks::<16>();
        for (values, bytes) in blocks.iter_mut().zip(bytes) {
            let words = _mm512_cvtepu8_epi32(load_bytes(bytes));
            let index = _mm512_or_si512(words, _mm512_slli_epi32::<12>(words));
            store_whole(values, _mm512_permutexvar_epi16(index, both));
        }
        v_decode_rest(rest_bytes, table, rest);
    }
}
