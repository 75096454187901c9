//! CRC-32C by carry-less multiplication of whole AVX-512 registers: 256 bytes at a time, where the
//! processor's own instruction takes eight.

use super::super::typed::Crc32c;
use super::super::{CpuFlags, Kernels};
use core::arch::x86_64::*;

/// Replaces the entry if the flags allow something faster.
pub(super) const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    const NEEDED: CpuFlags =
        CpuFlags::SSE42.union(CpuFlags::PCLMUL).union(CpuFlags::AVX512).union(CpuFlags::VPCLMUL);
    if flags.contains(NEEDED) {
        table.crc32c = Crc32c { isa: "vpclmul", run: crc32c };
    }
    table
}

/// The remainder of `x` to that power: its bits in the order of CRC-32C's, and one place up,
/// because the product of two numbers in that order comes out one place too low.
const fn power(exponent: u32) -> i64 {
    const POLYNOMIAL: u32 = 0x1EDC_6F41;
    let mut remainder = 1u32;
    let mut done = 0;
    while done < exponent {
        let carry = remainder >> 31 == 1;
        remainder = remainder << 1 ^ if carry { POLYNOMIAL } else { 0 };
        done += 1;
    }
    (remainder.reverse_bits() as i64) << 1
}

/// What 16 bytes are multiplied by to stand that many bits further on: the first eight of them,
/// which are worth 64 bits more, and the others. A factor is 32 bits in a word of 64.
const fn moved(bits: u32) -> [i64; 2] {
    [power(bits + 32), power(bits - 32)]
}

/// Bits of a register.
const LINE: u32 = 512;
/// Bytes that are folded at once: four registers.
const FOLDED: usize = 256;

/// Needs AVX-512 F, SSE4.2 and carry-less multiplication, also of whole registers. Four registers
/// go through the bytes side by side; then they are brought together. (After Gopal and others,
/// "Fast CRC computation using PCLMULQDQ", 2009.)
#[target_feature(enable = "avx512f,avx512vl,sse4.2,pclmulqdq,vpclmulqdq")]
fn crc32c(state: u32, bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<FOLDED>();
    let Some((first, blocks)) = blocks.split_first() else {
        return !continued((!state).into(), bytes);
    };
    let mut sums = lines(first);
    let register = _mm_cvtsi32_si128((!state).cast_signed());
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(register));
    let by_block = both(const { moved(4 * LINE) });
    for block in blocks {
        let lines = lines(block);
        for at in 0..4 {
            sums[at] = fold(sums[at], by_block, lines[at]);
        }
    }
    let by_line = both(const { moved(LINE) });
    let [a, b, c, d] = sums;
    let mut sum = fold(fold(fold(a, by_line, b), by_line, c), by_line, d);
    let (lines, rest) = rest.as_chunks::<64>();
    for line in lines {
        sum = fold(sum, by_line, load_line(line));
    }
    // The three quarters before the last one move to it.
    const BY_QUARTER: [[i64; 2]; 3] = [moved(LINE / 4 * 3), moved(LINE / 2), moved(LINE / 4)];
    let [a, b, c] = BY_QUARTER;
    let by_quarter = _mm512_setr_epi64(a[0], a[1], b[0], b[1], c[0], c[1], 0, 0);
    let last = _mm512_maskz_mov_epi64(0b1100_0000, sum);
    let quarters = fold(sum, by_quarter, last);
    let halves = _mm256_xor_si256(
        _mm512_castsi512_si256(quarters),
        _mm512_extracti64x4_epi64::<1>(quarters),
    );
    let sum = _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    let crc = _mm_crc32_u64(0, _mm_cvtsi128_si64(sum).cast_unsigned());
    let crc = _mm_crc32_u64(crc, _mm_extract_epi64::<1>(sum).cast_unsigned());
    !continued(crc, rest)
}

/// The register of a checksum after more bytes, by the processor's own instruction.
#[target_feature(enable = "sse4.2")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is zero")]
fn continued(register: u64, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let register = words
        .iter()
        .fold(register, |register, word| _mm_crc32_u64(register, u64::from_le_bytes(*word)));
    rest.iter().fold(register as u32, |register, &byte| _mm_crc32_u8(register, byte))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_line(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: reads the 64 bytes that `bytes` refers to; no alignment is needed.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn lines(block: &[u8; FOLDED]) -> [__m512i; 4] {
    let (lines, _) = block.as_chunks();
    [load_line(&lines[0]), load_line(&lines[1]), load_line(&lines[2]), load_line(&lines[3])]
}

/// The same factors for all 16 bytes of a register.
#[target_feature(enable = "avx512f")]
#[inline]
fn both(factors: [i64; 2]) -> __m512i {
    let [first, second] = factors;
    _mm512_setr_epi64(first, second, first, second, first, second, first, second)
}

/// Moves each 16 bytes by their factors and adds those that they come to.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold(sum: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let second = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    // a ^ b ^ c
    _mm512_ternarylogic_epi64::<0x96>(first, second, next)
}
