//! Kernels of x86-64 beyond the portable ones: declarations of `asm/x86_64/`, and intrinsics.
//!
//! Every function here gives the portable twin's result to the bit.

use super::cpu::CpuFlags;
use super::typed::{F16ToF32, F32ToF16};
use super::{Kernels, portable};
use core::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_storeu_ps,
};

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
    table
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

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_crc32c_sse42(state: u32, bytes: *const u8, length: usize) -> u32;
}

/// # Safety
///
/// The CPU has SSE4.2 and PCLMULQDQ.
#[cfg(mz_asm)]
unsafe fn crc32c_sse42(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are of one slice; the caller vouches for the CPU.
    unsafe { mz_crc32c_sse42(state, bytes.as_ptr(), bytes.len()) }
}
