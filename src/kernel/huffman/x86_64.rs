//! Prefix codes on x86-64: declarations of `asm/x86_64/`, where reading is a tenth faster than what
//! the compiler makes of the same loop with BMI2, and intrinsics.

#[cfg(mz_asm)]
use super::decode::{HuffmanDecode, LANES, Lane};
use super::encode::{self, HuffmanEncode, ROW_BYTES_MAX};
use super::tables::{COSTS, Codes, Costs, INDICES};
use crate::kernel::{CpuFlags, Kernels};
use core::arch::x86_64::*;

/// Replaces the entries for which the flags allow something faster.
pub const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    #[cfg(mz_asm)]
    if flags.contains(CpuFlags::BMI2) {
        table.huffman_decode = HuffmanDecode { isa: "bmi2", run: run_bmi2 };
    }
    if flags.contains(CpuFlags::AVX2.union(CpuFlags::BMI2)) {
        table.huffman_encode = HuffmanEncode { isa: "avx2", costs: costs_avx2, write: write_bmi2 };
    }
    table
}

/// Needs AVX2.
#[target_feature(enable = "avx2")]
fn costs_avx2(indices: &[u8]) -> Costs {
    let costs_of = |index: u8| {
        // SAFETY: reads one entry of 16 numbers; no alignment is needed.
        unsafe { _mm256_loadu_si256(COSTS[usize::from(index % INDICES)].as_ptr().cast()) }
    };
    // Two sums, which do not wait for each other.
    let (pairs, rest) = indices.as_chunks::<2>();
    let (mut sum, mut other) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for &[first, second] in pairs {
        sum = _mm256_add_epi16(sum, costs_of(first));
        other = _mm256_add_epi16(other, costs_of(second));
    }
    for &last in rest {
        sum = _mm256_add_epi16(sum, costs_of(last));
    }
    let mut costs = [0; 16];
    // SAFETY: writes the 16 numbers of `costs`; no alignment is needed.
    unsafe { _mm256_storeu_si256(costs.as_mut_ptr().cast(), _mm256_add_epi16(sum, other)) };
    costs
}

/// Needs BMI2, whose shifts make the portable loop faster.
#[target_feature(enable = "bmi2")]
fn write_bmi2(indices: &[u8], codes: &Codes, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
    encode::write(indices, codes, bytes)
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_huffman_run_bmi2(
        bytes: *const u8,
        last: usize,
        lanes: *mut Lane,
        symbols: *mut u8,
    );
}

/// # Safety
///
/// The CPU has BMI2. There are eight bytes, and behind each lane's end there is room in `symbols`
/// for what is read past it.
#[cfg(mz_asm)]
unsafe fn run_bmi2(bytes: &[u8], lanes: &mut [Lane; LANES], symbols: &mut [u8]) {
    let (lanes, symbols) = (lanes.as_mut_ptr(), symbols.as_mut_ptr());
    // SAFETY: pointers and lengths are of these slices; the caller vouches for the rest.
    unsafe { mz_huffman_run_bmi2(bytes.as_ptr(), bytes.len() - 8, lanes, symbols) }
}
