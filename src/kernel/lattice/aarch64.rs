//! Lattice loops of aarch64 in intrinsics. Each gives the portable twin's result to the bit. None
//! computes in half precision: products are defined in F32, and F16 would round them once more.

use super::portable::{self, PRODUCT_END, QUOTIENT_END};
use super::{LatticePack, LatticeUnpack, RowSteps, Sums};
use crate::kernel::{CpuFlags, Kernels};
use core::arch::aarch64::*;

/// Replaces the entries for which the flags allow something faster.
pub const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    if flags.contains(CpuFlags::NEON) {
        table.lattice_pack = LatticePack { isa: "neon", run: pack_neon };
        table.lattice_unpack = LatticeUnpack { isa: "neon", run: unpack_neon };
        table.sums = Sums { isa: "neon", offsets: offsets_neon, running: running_neon };
    }
    table
}

/// Four of a row's steps, or their reciprocals.
#[target_feature(enable = "neon")]
#[inline]
fn four(numbers: &[[f32; 4]], block: usize) -> float32x4_t {
    // SAFETY: reads the 4 floats of one block.
    unsafe { vld1q_f32(numbers[block].as_ptr()) }
}

/// Needs NEON, and equal lengths.
#[target_feature(enable = "neon")]
fn pack_neon(values: &[u16], steps: RowSteps<'_>, codes: &mut [i16]) -> bool {
    let whole = values.len() - values.len() % 4;
    let (values, values_rest) = values.split_at(whole);
    let (codes, codes_rest) = codes.split_at_mut(whole);
    let fits = match steps {
        RowSteps::Even(step) => {
            let both = (vdupq_n_f32(step), vdupq_n_f32(1.0 / step));
            pack_blocks(values, |_| both, codes)
        }
        RowSteps::Each { steps, per_one } => {
            let (steps, per_one) = (steps.as_chunks().0, per_one.as_chunks().0);
            pack_blocks(values, |block| (four(steps, block), four(per_one, block)), codes)
        }
    };
    portable::pack(values_rest, steps.from(whole), codes_rest) && fits
}

#[target_feature(enable = "neon")]
#[inline]
fn pack_blocks(
    values: &[u16],
    steps: impl Fn(usize) -> (float32x4_t, float32x4_t),
    codes: &mut [i16],
) -> bool {
    let (quotient_end, product_end) = (vdupq_n_f32(QUOTIENT_END), vdupq_n_f32(PRODUCT_END));
    let mut fits = vdupq_n_u32(u32::MAX);
    let blocks = values.as_chunks::<4>().0.iter().zip(codes.as_chunks_mut::<4>().0);
    for (block, (halves, codes)) in blocks.enumerate() {
        let (steps, per_one) = steps(block);
        // SAFETY: reads the 4 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { vreinterpret_f16_u16(vld1_u16(halves.as_ptr())) };
        let quotients = vmulq_f32(vcvt_f32_f16(halves), per_one);
        let words = vcvtnq_s32_f32(quotients);
        let products = vmulq_f32(vcvtq_f32_s32(words), steps);
        // Numbers that are no numbers are not below anything.
        fits = vandq_u32(fits, vcaltq_f32(quotients, quotient_end));
        fits = vandq_u32(fits, vcaltq_f32(products, product_end));
        // SAFETY: writes the 4 codes that `codes` refers to; no alignment is needed.
        unsafe { vst1_s16(codes.as_mut_ptr(), vqmovn_s32(words)) };
    }
    vminvq_u32(fits) != 0
}

/// Needs NEON, and equal lengths.
#[target_feature(enable = "neon")]
fn unpack_neon(codes: &[i16], steps: RowSteps<'_>, values: &mut [u16]) {
    let whole = codes.len() - codes.len() % 8;
    let (codes, codes_rest) = codes.split_at(whole);
    let (values, values_rest) = values.split_at_mut(whole);
    match steps {
        RowSteps::Even(step) => {
            let step = vdupq_n_f32(step);
            unpack_blocks(codes, |_| step, values);
        }
        RowSteps::Each { steps, .. } => {
            let steps = steps.as_chunks().0;
            unpack_blocks(codes, |half_block| four(steps, half_block), values);
        }
    }
    portable::unpack(codes_rest, steps.from(whole), values_rest);
}

/// Steps are asked for by four.
#[target_feature(enable = "neon")]
#[inline]
fn unpack_blocks(codes: &[i16], steps: impl Fn(usize) -> float32x4_t, values: &mut [u16]) {
    let blocks = codes.as_chunks::<8>().0.iter().zip(values.as_chunks_mut::<8>().0);
    for (block, (codes, halves)) in blocks.enumerate() {
        // SAFETY: reads the 8 codes that `codes` refers to; no alignment is needed.
        let codes = unsafe { vld1q_s16(codes.as_ptr()) };
        let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes)));
        let high = vcvtq_f32_s32(vmovl_high_s16(codes));
        let low = vcvt_f16_f32(vmulq_f32(low, steps(2 * block)));
        let rounded = vcvt_high_f16_f32(low, vmulq_f32(high, steps(2 * block + 1)));
        // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
        unsafe { vst1q_u16(halves.as_mut_ptr(), vreinterpretq_u16_f16(rounded)) };
    }
}

/// Needs NEON, and equal lengths.
#[target_feature(enable = "neon")]
fn offsets_neon(residuals: &[u8], base: i16, codes: &mut [i16]) {
    let (residuals, residuals_rest) = residuals.as_chunks::<8>();
    let (codes, codes_rest) = codes.as_chunks_mut::<8>();
    let bases = vdupq_n_s16(base);
    for (residuals, codes) in residuals.iter().zip(codes) {
        // SAFETY: reads the 8 bytes that `residuals` refers to; no alignment is needed.
        let bytes = unsafe { vreinterpret_s8_u8(vld1_u8(residuals.as_ptr())) };
        // SAFETY: writes the 8 codes that `codes` refers to; no alignment is needed.
        unsafe { vst1q_s16(codes.as_mut_ptr(), vaddw_s8(bases, bytes)) };
    }
    portable::offsets(residuals_rest, base, codes_rest);
}

/// Needs NEON, and equal lengths. Sums of 1, 2, 4 and 8 neighbours; what came before is added last,
/// so that only one addition waits for it.
#[target_feature(enable = "neon")]
fn running_neon(residuals: &[u8], base: i16, codes: &mut [i16]) {
    let (residuals, residuals_rest) = residuals.as_chunks::<8>();
    let (codes, codes_rest) = codes.as_chunks_mut::<8>();
    let zeros = vdupq_n_s16(0);
    let mut before = vdupq_n_s16(base);
    for (residuals, codes) in residuals.iter().zip(codes) {
        // SAFETY: reads the 8 bytes that `residuals` refers to; no alignment is needed.
        let bytes = unsafe { vreinterpret_s8_u8(vld1_u8(residuals.as_ptr())) };
        let mut sums = vmovl_s8(bytes);
        sums = vaddq_s16(sums, vextq_s16::<7>(zeros, sums));
        sums = vaddq_s16(sums, vextq_s16::<6>(zeros, sums));
        sums = vaddq_s16(sums, vextq_s16::<4>(zeros, sums));
        // SAFETY: writes the 8 codes that `codes` refers to; no alignment is needed.
        unsafe { vst1q_s16(codes.as_mut_ptr(), vaddq_s16(sums, before)) };
        before = vaddq_s16(before, vdupq_laneq_s16::<7>(sums));
    }
    portable::running(residuals_rest, vgetq_lane_s16::<0>(before), codes_rest);
}
