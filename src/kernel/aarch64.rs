//! Kernels of aarch64 beyond the portable ones: declarations of `asm/aarch64/`, and intrinsics.
//!
//! Every function here gives the portable twin's result to the bit.

#[path = "aarch64/kv4.rs"]
pub(super) mod kv4;
#[path = "aarch64/kv4_fp16.rs"]
pub(super) mod kv4_fp16;

use super::Kernels;
use super::cpu::CpuFlags;
use super::portable::{self, q8_step};
use super::typed::{F16ToF32, F32ToF16, Q8Pack, Q8Unpack};
use core::arch::aarch64::*;

/// Replaces the entries for which the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    #[cfg(mz_asm)]
    if flags.contains(CpuFlags::CRC32.union(CpuFlags::PMULL)) {
        table.crc32c = super::typed::Crc32c { isa: "crc32", run: crc32c_crc };
    }
    if flags.contains(CpuFlags::NEON) {
        table.f16_to_f32 = F16ToF32 { isa: "neon", run: f16_to_f32_neon };
        table.f32_to_f16 = F32ToF16 { isa: "neon", run: f32_to_f16_neon };
        table.q8_pack = Q8Pack { isa: "neon", run: q8_pack_neon };
        table.q8_unpack = Q8Unpack { isa: "neon", run: q8_unpack_neon };
    }
    if flags.contains(CpuFlags::NEON.union(CpuFlags::FP16)) {
        table.q8_unpack = Q8Unpack { isa: "fp16", run: q8_unpack_fp16 };
    }
    kv4::improve(table, flags)
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

/// Needs NEON, whole rows and matching lengths.
#[target_feature(enable = "neon")]
fn q8_pack_neon(values: &[u16], row_values: usize, scales: &mut [u16], codes: &mut [i8]) -> bool {
    let measure = |group: &[u16]| q8_absmax_neon(group);
    let encode = |group: &[u16], factor, codes: &mut [i8]| q8_encode_neon(group, factor, codes);
    portable::q8_pack_with(values, row_values, scales, codes, measure, encode)
}

/// Needs NEON, and equal lengths.
#[target_feature(enable = "neon")]
#[inline]
fn q8_encode_neon(group: &[u16], steps_per_one: f32, codes: &mut [i8]) {
    let (group, group_rest) = group.as_chunks::<8>();
    let (codes, codes_rest) = codes.as_chunks_mut::<8>();
    for (halves, codes) in group.iter().zip(codes) {
        // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { vreinterpretq_f16_u16(vld1q_u16(halves.as_ptr())) };
        let low = vmulq_n_f32(vcvt_f32_f16(vget_low_f16(halves)), steps_per_one);
        let high = vmulq_n_f32(vcvt_high_f32_f16(halves), steps_per_one);
        let low = vqmovn_s32(vcvtnq_s32_f32(low));
        let bytes = vqmovn_s16(vqmovn_high_s32(low, vcvtnq_s32_f32(high)));
        // SAFETY: writes the 8 codes that `codes` refers to; no alignment is needed.
        unsafe { vst1_s8(codes.as_mut_ptr(), bytes) };
    }
    portable::q8_encode(group_rest, steps_per_one, codes_rest);
}

/// Needs NEON.
#[target_feature(enable = "neon")]
#[inline]
fn q8_absmax_neon(group: &[u16]) -> u16 {
    let magnitude = vdupq_n_u16(portable::F16_MAGNITUDE);
    let (group, rest) = group.as_chunks::<8>();
    let mut max = vdupq_n_u16(0);
    for halves in group {
        // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { vld1q_u16(halves.as_ptr()) };
        max = vmaxq_u16(max, vandq_u16(halves, magnitude));
    }
    portable::q8_absmax(vmaxvq_u16(max), rest)
}

/// Needs NEON, whole rows and matching lengths.
#[target_feature(enable = "neon")]
fn q8_unpack_neon(scales: &[u16], codes: &[i8], row_values: usize, values: &mut [u16]) {
    let inputs = scales.iter().zip(portable::q8_groups(codes, row_values));
    for (group, (&scale, codes)) in portable::q8_groups_mut(values, row_values).zip(inputs) {
        q8_decode_neon(codes, q8_step(scale), group);
    }
}

/// Needs NEON, and equal lengths.
#[target_feature(enable = "neon")]
#[inline]
fn q8_decode_neon(codes: &[i8], step: f32, group: &mut [u16]) {
    let (group, group_rest) = group.as_chunks_mut::<8>();
    let (codes, codes_rest) = codes.as_chunks::<8>();
    for (halves, codes) in group.iter_mut().zip(codes) {
        // SAFETY: reads the 8 codes that `codes` refers to; no alignment is needed.
        let shorts = vmovl_s8(unsafe { vld1_s8(codes.as_ptr()) });
        let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(shorts)));
        let high = vcvtq_f32_s32(vmovl_high_s16(shorts));
        let low = vcvt_f16_f32(vmulq_n_f32(low, step));
        let rounded = vcvt_high_f16_f32(low, vmulq_n_f32(high, step));
        // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
        unsafe { vst1q_u16(halves.as_mut_ptr(), vreinterpretq_u16_f16(rounded)) };
    }
    portable::q8_decode(codes_rest, step, group_rest);
}

/// Needs NEON with half-precision arithmetic, whole rows and matching lengths. Where the scale word
/// is the step, code times step is exact before the one rounding, so that F16 arithmetic gives what
/// F32 arithmetic and a conversion give.
#[target_feature(enable = "neon,fp16")]
fn q8_unpack_fp16(scales: &[u16], codes: &[i8], row_values: usize, values: &mut [u16]) {
    #[cfg(mz_asm)]
    if row_values.is_multiple_of(super::Q8_GROUP) {
        return q8_unpack_groups(scales, codes, values);
    }
    let inputs = scales.iter().zip(portable::q8_groups(codes, row_values));
    for (group, (&scale, codes)) in portable::q8_groups_mut(values, row_values).zip(inputs) {
        let step = q8_step(scale);
        if scale & portable::Q8_ABSMAX_FORM != 0 {
            q8_decode_neon(codes, step, group);
            continue;
        }
        let factor = vreinterpretq_f16_u16(vdupq_n_u16(scale));
        let (group, group_rest) = group.as_chunks_mut::<8>();
        let (codes, codes_rest) = codes.as_chunks::<8>();
        for (halves, codes) in group.iter_mut().zip(codes) {
            // SAFETY: reads the 8 codes that `codes` refers to; no alignment is needed.
            let shorts = vmovl_s8(unsafe { vld1_s8(codes.as_ptr()) });
            let product = vmulq_f16(vcvtq_f16_s16(shorts), factor);
            // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
            unsafe { vst1q_u16(halves.as_mut_ptr(), vreinterpretq_u16_f16(product)) };
        }
        portable::q8_decode(codes_rest, step, group_rest);
    }
}

/// Needs NEON with half-precision arithmetic, and whole groups, one a scale word.
#[cfg(mz_asm)]
#[target_feature(enable = "neon,fp16")]
fn q8_unpack_groups(scales: &[u16], codes: &[i8], values: &mut [u16]) {
    let (codes, _) = codes.as_chunks::<{ super::Q8_GROUP }>();
    let (values, _) = values.as_chunks_mut::<{ super::Q8_GROUP }>();
    let mut done = 0;
    while done < scales.len() {
        let (scales, codes, values) = (&scales[done..], &codes[done..], &mut values[done..]);
        let (from, to) = (codes.as_ptr().cast(), values.as_mut_ptr().cast());
        // SAFETY: codes and room for as many groups as there are scale words, as the caller
        // checked; the CPU has NEON with half-precision arithmetic.
        let steps = unsafe { mz_q8_unpack_neon_fp16(scales.as_ptr(), from, to, scales.len()) };
        done += steps;
        if let Some(&scale) = scales.get(steps) {
            q8_decode_neon(&codes[steps], q8_step(scale), &mut values[steps]);
            done += 1;
        }
    }
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_crc32c_crc(state: u32, bytes: *const u8, length: usize) -> u32;
    /// cbindgen:ignore
    pub(super) fn mz_q8_unpack_neon_fp16(
        scales: *const u16,
        codes: *const i8,
        values: *mut u16,
        groups: usize,
    ) -> usize;
}

/// # Safety
///
/// The CPU has the CRC-32C instructions and 64-bit PMULL.
#[cfg(mz_asm)]
unsafe fn crc32c_crc(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: pointer and length are of one slice; the caller vouches for the CPU.
    unsafe { mz_crc32c_crc(state, bytes.as_ptr(), bytes.len()) }
}
