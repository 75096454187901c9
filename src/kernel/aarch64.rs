//! Kernels of aarch64 beyond the portable ones: declarations of `asm/aarch64/`, and intrinsics.
//!
//! Every function here gives the portable twin's result to the bit.

use super::cpu::CpuFlags;
use super::typed::{F16ToF32, F32ToF16};
use super::{Kernels, portable};
use core::arch::aarch64::{
    vcvt_f16_f32, vcvt_f32_f16, vld1_u16, vld1q_f32, vreinterpret_f16_u16, vreinterpret_u16_f16,
    vst1_u16, vst1q_f32,
};

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    #[cfg(mz_asm)]
    if flags.contains(CpuFlags::CRC32.union(CpuFlags::PMULL)) {
        table.crc32c = super::typed::Crc32c { isa: "crc32", run: crc32c_crc };
    }
    if flags.contains(CpuFlags::NEON) {
        table.f16_to_f32 = F16ToF32 { isa: "neon", run: f16_to_f32_neon };
        table.f32_to_f16 = F32ToF16 { isa: "neon", run: f32_to_f16_neon };
    }
    table
}

/// Needs NEON, and equal lengths.
#[target_feature(enable = "neon")]
fn f16_to_f32_neon(from: &[u16], to: &mut [f32]) {
    let (from, from_rest) = from.as_chunks::<4>();
    let (to, to_rest) = to.as_chunks_mut::<4>();
    for (from, to) in from.iter().zip(to) {
        // SAFETY: reads the 4 halves that `from` refers to; no alignment is needed.
        let halves = unsafe { vreinterpret_f16_u16(vld1_u16(from.as_ptr())) };
        // SAFETY: writes the 4 floats that `to` refers to; no alignment is needed.
        unsafe { vst1q_f32(to.as_mut_ptr(), vcvt_f32_f16(halves)) };
    }
    portable::f16_to_f32(from_rest, to_rest);
}

/// Needs NEON, and equal lengths. Rounds as FPCR says, which is to nearest, ties to even.
#[target_feature(enable = "neon")]
fn f32_to_f16_neon(from: &[f32], to: &mut [u16]) {
    let (from, from_rest) = from.as_chunks::<4>();
    let (to, to_rest) = to.as_chunks_mut::<4>();
    for (from, to) in from.iter().zip(to) {
        // SAFETY: reads the 4 floats that `from` refers to; no alignment is needed.
        let singles = unsafe { vld1q_f32(from.as_ptr()) };
        let halves = vreinterpret_u16_f16(vcvt_f16_f32(singles));
        // SAFETY: writes the 4 halves that `to` refers to; no alignment is needed.
        unsafe { vst1_u16(to.as_mut_ptr(), halves) };
    }
    portable::f32_to_f16(from_rest, to_rest);
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_crc32c_crc(state: u32, bytes: *const u8, length: usize) -> u32;
}

/// # Safety
///
/// The CPU has the CRC-32C instructions and 64-bit PMULL.
#[cfg(mz_asm)]
unsafe fn crc32c_crc(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are of one slice; the caller vouches for the CPU.
    unsafe { mz_crc32c_crc(state, bytes.as_ptr(), bytes.len()) }
}
