//! The 8-bit format with AVX-512, by groups of 64 values. Groups that are not whole run with AVX2.
//!
//! One core of a server unpacks 14.8 GB/s of values in its cache where AVX2 unpacks 13.9, checksums
//! by the same function included, and 19.7 once these are by [`super::crc32c`]: 0.92 of what it
//! copies. Half-precision arithmetic, which some of these processors have, could save little.

use super::super::portable::{self, q8_step};
use super::super::typed::{Q8_GROUP, Q8Pack, Q8Unpack};
use super::super::{CpuFlags, Kernels};
use core::arch::x86_64::*;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const ISA: &str = "avx512";
    if flags.contains(CpuFlags::AVX512.union(CpuFlags::AVX2).union(CpuFlags::F16C)) {
        table.q8_pack = Q8Pack { isa: ISA, run: q8_pack };
        table.q8_unpack = Q8Unpack { isa: ISA, run: q8_unpack };
    }
    table
}

/// Needs AVX-512 with AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
fn q8_pack(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [i8]) -> bool {
    let measure = |group: &[u16]| q8_absmax(group);
    let encode = |group: &[u16], factor, codes: &mut [i8]| q8_encode(group, factor, codes);
    portable::q8_pack_with(values, row_values, scales, codes, measure, encode)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn load(halves: &[u16; 32]) -> __m512i {
    // SAFETY: reads the 32 halves that `halves` refers to; no alignment is needed.
    unsafe { _mm512_loadu_si512(halves.as_ptr().cast()) }
}

/// Needs AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn q8_absmax(group: &[u16]) -> u16 {
    let Ok(group) = <&[u16; Q8_GROUP]>::try_from(group) else {
        return super::q8_absmax_avx2(group);
    };
    let magnitude = _mm512_set1_epi16(portable::F16_MAGNITUDE.cast_signed());
    let (halves, _) = group.as_chunks::<32>();
    let [low, high] = [0, 1].map(|at| _mm512_and_si512(load(&halves[at]), magnitude));
    let max = _mm512_max_epu16(low, high);
    let max = _mm256_max_epu16(_mm512_castsi512_si256(max), _mm512_extracti64x4_epi64::<1>(max));
    let max = _mm_max_epu16(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    super::greatest(max)
}

/// Needs AVX-512 with AVX2 and F16C, and equal lengths.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
#[inline]
fn q8_encode(group: &[u16], steps_per_one: f32, codes: &mut [i8]) {
    let (blocks, rest) = group.as_chunks::<Q8_GROUP>();
    let (block_codes, rest_codes) = codes.as_chunks_mut::<Q8_GROUP>();
    let factor = _mm512_set1_ps(steps_per_one);
    for (halves, codes) in blocks.iter().zip(block_codes) {
        let (halves, _) = halves.as_chunks::<16>();
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| {
            // SAFETY: reads the 16 halves that `halves[at]` is; no alignment is needed.
            let halves = unsafe { _mm256_loadu_si256(halves[at].as_ptr().cast()) };
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtph_ps(halves), factor))
        });
        let bytes = _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
        // Each lane has four codes of each.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let bytes = _mm512_permutexvar_epi32(order, bytes);
        // SAFETY: writes the 64 codes that `codes` refers to; no alignment is needed.
        unsafe { _mm512_storeu_si512(codes.as_mut_ptr().cast(), bytes) };
    }
    super::q8_encode_avx2(rest, steps_per_one, rest_codes);
}

/// Needs AVX-512 with AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
fn q8_unpack(scales: &[u16], codes: &[i8], row_values: usize, values: &mut [u16]) {
    if !row_values.is_multiple_of(Q8_GROUP) {
        return super::q8_unpack_avx2(scales, codes, row_values, values);
    }
    let (codes, _) = codes.as_chunks::<Q8_GROUP>();
    let (groups, _) = values.as_chunks_mut::<Q8_GROUP>();
    for ((group, codes), &scale) in groups.iter_mut().zip(codes).zip(scales) {
        super::expect_writes(group, Q8_GROUP);
        let step = _mm512_set1_ps(q8_step(scale));
        let (sixteens, _) = codes.as_chunks::<16>();
        for (halves, codes) in group.as_chunks_mut::<16>().0.iter_mut().zip(sixteens) {
            // SAFETY: reads the 16 codes that `codes` refers to; no alignment is needed.
            let bytes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
            let singles = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), step);
            let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(singles);
            // SAFETY: writes the 16 halves that `halves` refers to; no alignment is needed.
            unsafe { _mm256_storeu_si256(halves.as_mut_ptr().cast(), rounded) };
        }
    }
}
