//! Lattice loops of x86-64 in intrinsics. Each gives the portable twin's result to the bit.
//!
//! Sums end with AVX2: they take a fortieth of unpacking.

use super::portable::{self, PRODUCT_END, QUOTIENT_END};
use super::{LatticePack, LatticeUnpack, RowSteps, Sums};
use crate::kernel::{CpuFlags, Kernels};
use core::arch::x86_64::*;

/// Replaces the entries for which the flags allow something faster.
pub const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    if flags.contains(CpuFlags::AVX2.union(CpuFlags::F16C)) {
        table.lattice_pack = LatticePack { isa: "avx2", run: pack_avx2 };
        table.lattice_unpack = LatticeUnpack { isa: "avx2", run: unpack_avx2 };
        table.sums = Sums { isa: "avx2", offsets: offsets_avx2, running: running_avx2 };
    }
    if flags.contains(CpuFlags::AVX512) {
        table.lattice_pack = LatticePack { isa: "avx512", run: pack_avx512 };
        table.lattice_unpack = LatticeUnpack { isa: "avx512", run: unpack_avx512 };
    }
    table
}

/// Eight of a row's steps, or their reciprocals.
#[target_feature(enable = "avx2")]
#[inline]
fn eight(numbers: &[[f32; 8]], block: usize) -> __m256 {
    // SAFETY: reads the 8 floats of one block; no alignment is needed.
    unsafe { _mm256_loadu_ps(numbers[block].as_ptr()) }
}

/// Needs AVX2 and F16C, and equal lengths.
#[target_feature(enable = "avx2,f16c")]
fn pack_avx2(values: &[u16], steps: RowSteps<'_>, codes: &mut [i16]) -> bool {
    let whole = values.len() - values.len() % 8;
    let (values, values_rest) = values.split_at(whole);
    let (codes, codes_rest) = codes.split_at_mut(whole);
    let fits = match steps {
        RowSteps::Even(step) => {
            let both = (_mm256_set1_ps(step), _mm256_set1_ps(1.0 / step));
            pack_blocks(values, |_| both, codes)
        }
        RowSteps::Each { steps, per_one } => {
            let (steps, per_one) = (steps.as_chunks().0, per_one.as_chunks().0);
            pack_blocks(values, |block| (eight(steps, block), eight(per_one, block)), codes)
        }
    };
    portable::pack(values_rest, steps.from(whole), codes_rest) && fits
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn pack_blocks(
    values: &[u16],
    steps: impl Fn(usize) -> (__m256, __m256),
    codes: &mut [i16],
) -> bool {
    let sign = _mm256_set1_ps(-0.0);
    let (quotient_end, product_end) = (_mm256_set1_ps(QUOTIENT_END), _mm256_set1_ps(PRODUCT_END));
    let mut fits = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    let blocks = values.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0);
    for (block, (halves, codes)) in blocks.enumerate() {
        let (steps, per_one) = steps(block);
        // SAFETY: reads the 8 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { _mm_loadu_si128(halves.as_ptr().cast()) };
        let quotients = _mm256_mul_ps(_mm256_cvtph_ps(halves), per_one);
        let words = _mm256_cvtps_epi32(quotients);
        let products = _mm256_mul_ps(_mm256_cvtepi32_ps(words), steps);
        let (quotients, products) =
            (_mm256_andnot_ps(sign, quotients), _mm256_andnot_ps(sign, products));
        fits = _mm256_and_ps(fits, _mm256_cmp_ps::<_CMP_LT_OQ>(quotients, quotient_end));
        fits = _mm256_and_ps(fits, _mm256_cmp_ps::<_CMP_LT_OQ>(products, product_end));
        let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        // SAFETY: writes the 8 codes that `codes` refers to; no alignment is needed.
        unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), _mm_packs_epi32(low, high)) };
    }
    _mm256_movemask_ps(fits) == 0xFF
}

/// Needs AVX2 and F16C, and equal lengths.
#[target_feature(enable = "avx2,f16c")]
fn unpack_avx2(codes: &[i16], steps: RowSteps<'_>, values: &mut [u16]) {
    let whole = codes.len() - codes.len() % 8;
    let (codes, codes_rest) = codes.split_at(whole);
    let (values, values_rest) = values.split_at_mut(whole);
    match steps {
        RowSteps::Even(step) => {
            let step = _mm256_set1_ps(step);
            unpack_blocks(codes, |_| step, values);
        }
        RowSteps::Each { steps, .. } => {
            let steps = steps.as_chunks().0;
            unpack_blocks(codes, |block| eight(steps, block), values);
        }
    }
    portable::unpack(codes_rest, steps.from(whole), values_rest);
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
fn unpack_blocks(codes: &[i16], steps: impl Fn(usize) -> __m256, values: &mut [u16]) {
    let blocks = codes.as_chunks::<8>().0.iter().zip(values.as_chunks_mut::<8>().0);
    for (block, (codes, halves)) in blocks.enumerate() {
        // SAFETY: reads the 8 codes that `codes` refers to; no alignment is needed.
        let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
        let singles = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(codes)), steps(block));
        let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(singles);
        // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
        unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), rounded) };
    }
}

/// Sixteen of a row's steps, or their reciprocals.
#[target_feature(enable = "avx512f")]
#[inline]
fn sixteen(numbers: &[[f32; 16]], block: usize) -> __m512 {
    // SAFETY: reads the 16 floats of one block; no alignment is needed.
    unsafe { _mm512_loadu_ps(numbers[block].as_ptr()) }
}

/// Needs AVX-512 F, and equal lengths.
#[target_feature(enable = "avx512f")]
fn pack_avx512(values: &[u16], steps: RowSteps<'_>, codes: &mut [i16]) -> bool {
    let whole = values.len() - values.len() % 16;
    let (values, values_rest) = values.split_at(whole);
    let (codes, codes_rest) = codes.split_at_mut(whole);
    let fits = match steps {
        RowSteps::Even(step) => {
            let both = (_mm512_set1_ps(step), _mm512_set1_ps(1.0 / step));
            pack_wide_blocks(values, |_| both, codes)
        }
        RowSteps::Each { steps, per_one } => {
            let (steps, per_one) = (steps.as_chunks().0, per_one.as_chunks().0);
            pack_wide_blocks(values, |at| (sixteen(steps, at), sixteen(per_one, at)), codes)
        }
    };
    portable::pack(values_rest, steps.from(whole), codes_rest) && fits
}

#[target_feature(enable = "avx512f")]
#[inline]
fn pack_wide_blocks(
    values: &[u16],
    steps: impl Fn(usize) -> (__m512, __m512),
    codes: &mut [i16],
) -> bool {
    let (quotient_end, product_end) = (_mm512_set1_ps(QUOTIENT_END), _mm512_set1_ps(PRODUCT_END));
    let mut fits = !0;
    let blocks = values.as_chunks::<16>().0.iter().zip(codes.as_chunks_mut::<16>().0);
    for (block, (halves, codes)) in blocks.enumerate() {
        let (steps, per_one) = steps(block);
        // SAFETY: reads the 16 halves that `halves` refers to; no alignment is needed.
        let halves = unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) };
        let quotients = _mm512_mul_ps(_mm512_cvtph_ps(halves), per_one);
        let words = _mm512_cvtps_epi32(quotients);
        let products = _mm512_mul_ps(_mm512_cvtepi32_ps(words), steps);
        let (quotients, products) = (_mm512_abs_ps(quotients), _mm512_abs_ps(products));
        fits &= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(quotients, quotient_end);
        fits &= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(products, product_end);
        // SAFETY: writes the 16 codes that `codes` refers to; no alignment is needed.
        unsafe {
            _mm256_storeu_si256(codes.as_mut_ptr().cast(), _mm512_cvtsepi32_epi16(words));
        }
    }
    fits == !0
}

/// Needs AVX-512 F, and equal lengths.
#[target_feature(enable = "avx512f")]
fn unpack_avx512(codes: &[i16], steps: RowSteps<'_>, values: &mut [u16]) {
    let whole = codes.len() - codes.len() % 16;
    let (codes, codes_rest) = codes.split_at(whole);
    let (values, values_rest) = values.split_at_mut(whole);
    match steps {
        RowSteps::Even(step) => {
            let step = _mm512_set1_ps(step);
            unpack_wide_blocks(codes, |_| step, values);
        }
        RowSteps::Each { steps, .. } => {
            let steps = steps.as_chunks().0;
            unpack_wide_blocks(codes, |block| sixteen(steps, block), values);
        }
    }
    portable::unpack(codes_rest, steps.from(whole), values_rest);
}

#[target_feature(enable = "avx512f")]
#[inline]
fn unpack_wide_blocks(codes: &[i16], steps: impl Fn(usize) -> __m512, values: &mut [u16]) {
    let blocks = codes.as_chunks::<16>().0.iter().zip(values.as_chunks_mut::<16>().0);
    for (block, (codes, halves)) in blocks.enumerate() {
        // SAFETY: reads the 16 codes that `codes` refers to; no alignment is needed.
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
        let singles = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(codes)), steps(block));
        let rounded = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(singles);
        // SAFETY: writes the 16 halves that `halves` refers to; no alignment is needed.
        unsafe { _mm256_storeu_si256(halves.as_mut_ptr().cast(), rounded) };
    }
}

/// Needs AVX2, and equal lengths.
#[target_feature(enable = "avx2")]
fn offsets_avx2(residuals: &[u8], base: i16, codes: &mut [i16]) {
    let (residuals, residuals_rest) = residuals.as_chunks::<16>();
    let (codes, codes_rest) = codes.as_chunks_mut::<16>();
    let bases = _mm256_set1_epi16(base);
    for (residuals, codes) in residuals.iter().zip(codes) {
        // SAFETY: reads the 16 bytes that `residuals` refers to; no alignment is needed.
        let bytes = unsafe { _mm_loadu_si128(residuals.as_ptr().cast()) };
        let sums = _mm256_add_epi16(_mm256_cvtepi8_epi16(bytes), bases);
        // SAFETY: writes the 16 codes that `codes` refers to; no alignment is needed.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), sums) };
    }
    portable::offsets(residuals_rest, base, codes_rest);
}

/// Needs AVX2, and equal lengths. Sums of 1, 2, 4 and 8 neighbours; what came before is added last,
/// so that only one addition waits for it.
#[target_feature(enable = "avx2")]
fn running_avx2(residuals: &[u8], base: i16, codes: &mut [i16]) {
    let (residuals, residuals_rest) = residuals.as_chunks::<8>();
    let (codes, codes_rest) = codes.as_chunks_mut::<8>();
    let last_everywhere = _mm_set1_epi16(0x0F0E);
    let mut before = _mm_set1_epi16(base);
    for (residuals, codes) in residuals.iter().zip(codes) {
        // SAFETY: reads the 8 bytes that `residuals` refers to; no alignment is needed.
        let bytes = unsafe { _mm_loadl_epi64(residuals.as_ptr().cast()) };
        let mut sums = _mm_cvtepi8_epi16(bytes);
        sums = _mm_add_epi16(sums, _mm_slli_si128::<2>(sums));
        sums = _mm_add_epi16(sums, _mm_slli_si128::<4>(sums));
        sums = _mm_add_epi16(sums, _mm_slli_si128::<8>(sums));
        // SAFETY: writes the 8 codes that `codes` refers to; no alignment is needed.
        unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), _mm_add_epi16(sums, before)) };
        before = _mm_add_epi16(before, _mm_shuffle_epi8(sums, last_everywhere));
    }
    let before = _mm_extract_epi16::<0>(before).to_le_bytes();
    portable::running(residuals_rest, i16::from_le_bytes([before[0], before[1]]), codes_rest);
}
