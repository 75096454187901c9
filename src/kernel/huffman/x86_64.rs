//! Prefix codes on x86-64: declarations of `asm/x86_64/`, where reading is a tenth faster than what
//! the compiler makes of the same loop with BMI2, and intrinsics.

#[cfg(mz_asm)]
use super::decode::{HuffmanDecode, LANES, Lane};
use super::encode::{self, HuffmanEncode, Indices, ROW_BYTES_MAX};
use super::tables::{self, Codes, Costs, INDICES};
use super::vectors::{COSTS, Fours};
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
    const AVX512: CpuFlags = CpuFlags::AVX512.union(CpuFlags::AVX2).union(CpuFlags::BMI2);
    if flags.contains(AVX512) {
        let costs = costs_avx2;
        table.huffman_encode = HuffmanEncode { isa: "avx512", costs, write: write_avx512 };
    }
    if flags.contains(AVX512.union(CpuFlags::AVX512_VBMI)) {
        let costs = costs_vbmi;
        table.huffman_encode = HuffmanEncode { isa: "vbmi", costs, write: write_avx512 };
    }
    table
}

/// Needs AVX2.
#[target_feature(enable = "avx2")]
fn costs_avx2(row: &Indices) -> Costs {
    let costs_of = |index: u8| {
        // SAFETY: reads one entry of 16 numbers; no alignment is needed.
        unsafe { _mm256_loadu_si256(tables::COSTS[usize::from(index % INDICES)].as_ptr().cast()) }
    };
    // Two sums, which do not wait for each other.
    let (pairs, rest) = row.row().as_chunks::<2>();
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
fn write_bmi2(row: &Indices, codes: &Codes, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
    encode::write(row, codes, bytes)
}

/// Needs AVX-512 F and VBMI, which looks 64 costs up at once.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn costs_vbmi(row: &Indices) -> Costs {
    let blocks = row.blocks::<64>();
    // SAFETY: reads the 64 bytes that `bytes` refers to; no alignment is needed.
    let load = |bytes: &[u8; 64]| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    let padding = _mm512_set1_epi8(tables::PADDING.cast_signed());
    let indices: [_; 4] = core::array::from_fn(|at| blocks.get(at).map_or(padding, load));
    let mut sums = [0; 16];
    let (fours, _) = sums.as_chunks_mut::<4>();
    for (sums, costs) in fours.iter_mut().zip(COSTS.chunks(4)) {
        // Each table's sums have 16 bits of their own in every word of 64.
        let mut words = _mm512_setzero_si512();
        for costs in costs.iter().rev() {
            let costs = load(costs);
            let bytes = indices.map(|indices| _mm512_permutexvar_epi8(indices, costs));
            let bytes = _mm512_add_epi8(
                _mm512_add_epi8(bytes[0], bytes[1]),
                _mm512_add_epi8(bytes[2], bytes[3]),
            );
            let own = _mm512_sad_epu8(bytes, _mm512_setzero_si512());
            words = _mm512_or_si512(_mm512_slli_epi64::<16>(words), own);
        }
        let sum = _mm512_reduce_add_epi64(words).cast_unsigned();
        for (at, sum_of_one) in sums.iter_mut().take(costs.len()).enumerate() {
            let [low, high, ..] = (sum >> (16 * at)).to_le_bytes();
            *sum_of_one = u16::from_le_bytes([low, high]);
        }
    }
    sums
}

/// Needs AVX-512 F and BW, and BMI2.
#[target_feature(enable = "avx512f,avx512bw,bmi2")]
fn write_avx512(row: &Indices, codes: &Codes, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
    let (halves, _) = codes.as_chunks::<32>();
    // SAFETY: reads the 32 numbers that each of these refers to; no alignment is needed.
    let [low, high] = [0, 1].map(|at| unsafe { _mm512_loadu_si512(halves[at].as_ptr().cast()) });
    let mut fours = Fours::new();
    let mut longest = _mm512_setzero_si512();
    for (block, words) in row.blocks::<32>().iter().zip(fours.blocks::<8>()) {
        // SAFETY: reads the 32 bytes that `block` refers to; no alignment is needed.
        let indices = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        let indices = _mm512_cvtepu8_epi16(indices);
        let (bits, counts) = joined(_mm512_permutex2var_epi16(low, indices, high));
        longest = _mm512_max_epu64(longest, counts);
        let both = _mm512_or_si512(_mm512_slli_epi64::<{ Fours::COUNT_BITS }>(bits), counts);
        // SAFETY: writes the 8 numbers that `words` refers to; no alignment is needed.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), both) };
    }
    fours.write(row, _mm512_reduce_max_epu64(longest), bytes)
}

/// Eight fours of codes, each above four bits of its length: their bits and the numbers of them.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn joined(codes: __m512i) -> (__m512i, __m512i) {
    let bits = _mm512_srli_epi16::<4>(codes);
    let lengths = _mm512_and_si512(codes, _mm512_set1_epi16(15));
    // Of each two the first lies below.
    let firsts = _mm512_and_si512(bits, _mm512_set1_epi32(0xFFFF));
    let firsts = _mm512_sllv_epi32(firsts, _mm512_srli_epi32::<16>(lengths));
    let bits = _mm512_or_si512(firsts, _mm512_srli_epi32::<16>(bits));
    let lengths = _mm512_madd_epi16(lengths, _mm512_set1_epi16(1));
    let behind = _mm512_srli_epi64::<32>(lengths);
    let low = _mm512_set1_epi64(0xFFFF_FFFF);
    let firsts = _mm512_sllv_epi64(_mm512_and_si512(bits, low), behind);
    let bits = _mm512_or_si512(firsts, _mm512_srli_epi64::<32>(bits));
    (bits, _mm512_add_epi64(_mm512_and_si512(lengths, low), behind))
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
