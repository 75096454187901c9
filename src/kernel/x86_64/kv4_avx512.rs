//! Rows of the 4-bit format with AVX-512: a whole table is one register, or two.
//!
//! Whole blocks of 32 values run here, what is left in the portable functions.

use super::super::kv4::{
    self, KV4_BLOCK, KV4_NIBBLE_BYTES, Kv4Decode, Kv4Row, Kv4VDecode, kv4_step,
};
use super::super::portable::f32_from_f16;
use super::super::{CpuFlags, Kernels};
use super::kv4::{load_bytes, low_bits, v_decode_rest};
use core::arch::x86_64::*;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const ISA: &str = "avx512";
    if flags.contains(CpuFlags::AVX512.union(CpuFlags::AVX2).union(CpuFlags::F16C)) {
        table.kv4_decode = Kv4Decode { isa: ISA, run: decode };
        table.kv4_v_decode = Kv4VDecode { isa: ISA, run: v_decode };
    }
    table
}

/// Needs AVX-512 with F16C, a width of 4 to 6 and matching lengths. A table of 32 entries is one
/// register, and a block one permutation of it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
fn decode(row: &Kv4Row, codes: &[u8], values: &mut [u16]) {
    let (min, step) = (_mm512_set1_ps(f32_from_f16(row.min)), _mm512_set1_ps(row.step()));
    let ascending =
        _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    let sixteen = |first: f32| {
        let codes = _mm512_add_ps(ascending, _mm512_set1_ps(first));
        let values = _mm512_add_ps(_mm512_mul_ps(codes, step), min);
        _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values)
    };
    let page = |first: f32| {
        let low = _mm512_castsi256_si512(sixteen(first));
        _mm512_inserti64x4::<1>(low, sixteen(first + 16.0))
    };
    let max = _mm512_set1_epi16(row.max.cast_signed());
    let (nibbles, upper) = codes.split_at(values.len().div_ceil(KV4_BLOCK) * KV4_NIBBLE_BYTES);
    let (nibbles, _) = nibbles.as_chunks::<KV4_NIBBLE_BYTES>();
    let (blocks, _) = values.as_chunks_mut::<KV4_BLOCK>();
    let whole = blocks.len();
    match row.width {
        4 => {
            let table = _mm512_mask_blend_epi16(1 << 15, page(0.0), max);
            for (values, nibbles) in blocks.iter_mut().zip(nibbles) {
                let index = _mm512_cvtepu8_epi16(low_bits(nibbles));
                store_whole(values, _mm512_permutexvar_epi16(index, table));
            }
        }
        5 => {
            let table = _mm512_mask_blend_epi16(1 << 31, page(0.0), max);
            let (upper, _) = upper.as_chunks::<4>();
            for ((values, nibbles), &upper) in blocks.iter_mut().zip(nibbles).zip(upper) {
                let (low, upper) = (low_bits(nibbles), u32::from_le_bytes(upper));
                let index = with_bit_4(low, upper);
                store_whole(values, _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(index), table));
            }
        }
        _ => {
            let tables = (page(0.0), _mm512_mask_blend_epi16(1 << 31, page(32.0), max));
            let shifts = _mm256_setr_epi64x(4, 2, 0, 0);
            let back = _mm256_setr_epi64x(0, 0, 0, 2);
            let (upper, _) = upper.as_chunks::<8>();
            for ((values, nibbles), &upper) in blocks.iter_mut().zip(nibbles).zip(upper) {
                let upper = _mm256_set1_epi64x(i64::from_le_bytes(upper));
                let upper = _mm256_srlv_epi64(_mm256_sllv_epi64(upper, shifts), back);
                let upper = _mm256_and_si256(upper, _mm256_set1_epi8(0x30));
                let index = _mm512_cvtepu8_epi16(_mm256_or_si256(low_bits(nibbles), upper));
                store_whole(values, _mm512_permutex2var_epi16(tables.0, index, tables.1));
            }
        }
    }
    if whole * KV4_BLOCK < values.len() {
        kv4::decode_blocks(&row.table(), row.width, whole, codes, values);
    }
}

/// Sets bit 4 of the bytes that the mask names.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn with_bit_4(bytes: __m256i, mask: u32) -> __m256i {
    _mm256_or_si256(bytes, _mm256_maskz_mov_epi8(mask, _mm256_set1_epi8(16)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn store_whole(values: &mut [u16; KV4_BLOCK], from: __m512i) {
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
        let products = _mm512_mul_ps(numbers, _mm512_set1_ps(kv4_step(scale)));
        let table = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(products);
        // Twice the same, so that the fifth bit of an index does not matter.
        let both = _mm512_broadcast_i64x4(table);
        let (blocks, rest) = row.as_chunks_mut::<KV4_BLOCK>();
        let (bytes, rest_bytes) = codes.as_chunks::<16>();
        for (values, bytes) in blocks.iter_mut().zip(bytes) {
            let words = _mm512_cvtepu8_epi32(load_bytes(bytes));
            let index = _mm512_or_si512(words, _mm512_slli_epi32::<12>(words));
            store_whole(values, _mm512_permutexvar_epi16(index, both));
        }
        v_decode_rest(rest_bytes, table, rest);
    }
}
