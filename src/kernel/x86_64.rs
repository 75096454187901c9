//! Kernels of x86-64 beyond the portable ones: declarations of `asm/x86_64/`, and intrinsics.
//!
//! Every function here gives the portable twin's result to the bit.

#[path = "x86_64/crc32c.rs"]
mod crc32c;
#[path = "x86_64/kv4.rs"]
pub(super) mod kv4;
#[path = "x86_64/kv4_avx512.rs"]
mod kv4_avx512;
#[path = "x86_64/kv4_tokens.rs"]
pub(super) mod kv4_tokens;
#[path = "x86_64/q8_avx512.rs"]
mod q8_avx512;

use super::Kernels;
use super::cpu::CpuFlags;
use super::portable::{self, q8_step};
use super::typed::{F16ToF32, F32ToF16, Q8Pack, Q8Unpack};
use core::arch::x86_64::*;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    #[cfg(mz_asm)]
    if flags.contains(CpuFlags::SSE42.union(CpuFlags::PCLMUL)) {
        table.crc32c = super::typed::Crc32c { isa: "sse42", run: crc32c_sse42 };
    }
    if flags.contains(CpuFlags::F16C) {
        table.f16_to_f32 = F16ToF32 { isa: "f16c", run: f16_to_f32_f16c };
        table.f32_to_f16 = F32ToF16 { isa: "f16c", run: f32_to_f16_f16c };
    }
    if flags.contains(CpuFlags::AVX2.union(CpuFlags::F16C)) {
        table.q8_pack = Q8Pack { isa: "avx2", run: q8_pack_avx2 };
        table.q8_unpack = Q8Unpack { isa: "avx2", run: q8_unpack_avx2 };
    }
    let table = kv4_avx512::improve(kv4::improve(table, flags), flags);
    crc32c::improve(q8_avx512::improve(table, flags), flags)
}

/// Asks for the lines of `count` values that lie a little behind these, because they are written
/// soon: storing then does not wait for their old contents.
#[inline(always)]
fn expect_writes(values: &[u16], count: usize) {
    /// Values from one to the other: 2 KiB.
    const AHEAD: usize = 1024;
    for value in (0..count).step_by(32) {
        let line = values.as_ptr().wrapping_add(AHEAD + value);
        // SAFETY: it neither reads nor writes, and never faults, wherever the line lies.
        unsafe {
            core::arch::asm!(
                "prefetchw [{}]", in(reg) line, options(readonly, nostack, preserves_flags),
            );
        }
    }
}

/// Needs AVX and F16C, and equal lengths.
#[target_feature(enable = "avx,f16c")]
fn f16_to_f32_f16c(from: &[u16], to: &mut [f32]) {
    let (from, from_rest) = from.as_chunks::<8>();
    let (to, to_rest) = to.as_chunks_mut::<8>();
    for (from, to) in from.iter().zip(to) {
        // SAFETY: reads the 8 halves that `from` refers to; no alignment is needed.
        let halves = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
        // SAFETY: writes the 8 floats that `to` refers to; no alignment is needed.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(halves)) };
    }
    portable::f16_to_f32(from_rest, to_rest);
}

/// Needs AVX and F16C, and equal lengths.
#[target_feature(enable = "avx,f16c")]
fn f32_to_f16_f16c(from: &[f32], to: &mut [u16]) {
    let (from, from_rest) = from.as_chunks::<8>();
    let (to, to_rest) = to.as_chunks_mut::<8>();
    for (from, to) in from.iter().zip(to) {
        // SAFETY: reads the 8 floats that `from` refers to; no alignment is needed.
        let singles = unsafe { _mm256_loadu_ps(from.as_ptr()) };
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(singles);
        // SAFETY: writes the 8 halves that `to` refers to; no alignment is needed.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), halves) };
    }
    portable::f32_to_f16(from_rest, to_rest);
}

/// Needs AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn q8_pack_avx2(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [i8]) -> bool {
    let measure = |group: &[u16]| q8_absmax_avx2(group);
    let encode = |group: &[u16], factor, codes: &mut [i8]| q8_encode_avx2(group, factor, codes);
    portable::q8_pack_with(values, row_values, scales, codes, measure, encode)
}

/// Needs AVX2 and F16C, and equal lengths.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn q8_encode_avx2(group: &[u16], steps_per_one: f32, codes: &mut [i8]) {
    let factor = _mm256_set1_ps(steps_per_one);
    let (group, group_rest) = group.as_chunks::<8>();
    let (codes, codes_rest) = codes.as_chunks_mut::<8>();
    for (halves, codes) in group.iter().zip(codes) {
        // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { _mm_loadu_si128(halves.as_ptr().cast()) };
        let words = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtph_ps(halves), factor));
        let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        let shorts = _mm_packs_epi32(low, high);
        let bytes = _mm_packs_epi16(shorts, shorts);
        // SAFETY: writes the 8 codes that `codes` refers to; no alignment is needed.
        unsafe { _mm_storel_epi64(codes.as_mut_ptr().cast(), bytes) };
    }
    portable::q8_encode(group_rest, steps_per_one, codes_rest);
}

/// Needs AVX2.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn q8_absmax_avx2(group: &[u16]) -> u16 {
    let magnitude = _mm_set1_epi16(portable::F16_MAGNITUDE.cast_signed());
    let (group, rest) = group.as_chunks::<8>();
    let mut max = _mm_setzero_si128();
    for halves in group {
        // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { _mm_loadu_si128(halves.as_ptr().cast()) };
        max = _mm_max_epu16(max, _mm_and_si128(halves, magnitude));
    }
    portable::q8_absmax(greatest(max), rest)
}

/// The greatest of eight numbers.
#[target_feature(enable = "avx2")]
#[inline]
fn greatest(numbers: __m128i) -> u16 {
    // There is a horizontal minimum only; complements turn it into a maximum.
    let ones = _mm_set1_epi16(-1);
    let least = _mm_extract_epi16::<0>(_mm_minpos_epu16(_mm_xor_si128(numbers, ones)));
    let [low, high, ..] = (!least).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Needs AVX2 and F16C, whole rows and matching lengths.
#[target_feature(enable = "avx2,f16c")]
fn q8_unpack_avx2(scales: &[u16], codes: &[i8], row_values: usize, values: &mut [u16]) {
    #[cfg(mz_asm)]
    if row_values.is_multiple_of(super::Q8_GROUP) {
        let groups = scales.len();
        // SAFETY: rows of whole groups: codes and room for as many as there are scale words, as the
        // caller checked; the CPU has AVX2 and F16C.
        unsafe {
            mz_q8_unpack_avx2(scales.as_ptr(), codes.as_ptr(), values.as_mut_ptr(), groups);
        }
        return;
    }
    let inputs = scales.iter().zip(portable::q8_groups(codes, row_values));
    for (group, (&scale, codes)) in portable::q8_groups_mut(values, row_values).zip(inputs) {
        let step = q8_step(scale);
        let factor = _mm256_set1_ps(step);
        let (group, group_rest) = group.as_chunks_mut::<8>();
        let (codes, codes_rest) = codes.as_chunks::<8>();
        for (halves, codes) in group.iter_mut().zip(codes) {
            // SAFETY: reads the 8 codes that `codes` refers to; no alignment is needed.
            let bytes = unsafe { _mm_loadl_epi64(codes.as_ptr().cast()) };
            let singles = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), factor);
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(singles);
            // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
            unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), rounded) };
        }
        portable::q8_decode(codes_rest, step, group_rest);
    }
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_crc32c_sse42(state: u32, bytes: *const u8, length: usize) -> u32;
    /// cbindgen:ignore
    pub(super) fn mz_q8_unpack_avx2(
        scales: *const u16,
        codes: *const i8,
        values: *mut u16,
        groups: usize,
    );
}

/// # Safety
///
/// The CPU has SSE4.2 and PCLMULQDQ.
#[cfg(mz_asm)]
unsafe fn crc32c_sse42(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are of one slice; the caller vouches for the CPU.
    unsafe { mz_crc32c_sse42(state, bytes.as_ptr(), bytes.len()) }
}
