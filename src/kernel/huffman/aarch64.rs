//! Prefix codes on aarch64: declarations of `asm/aarch64/`, and intrinsics.

#[cfg(mz_asm)]
use super::decode::{HuffmanDecode, LANES, Lane};
use super::encode::{HuffmanEncode, Indices, ROW_BYTES_MAX};
use super::tables::{Codes, Costs};
use super::vectors::{COSTS, Fours};
use crate::kernel::{CpuFlags, Kernels};
use core::arch::aarch64::*;

/// Replaces the entries for which the flags allow something faster.
pub const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    if flags.contains(CpuFlags::NEON) {
        #[cfg(mz_asm)]
        {
            table.huffman_decode = HuffmanDecode { isa: "asm", run: run_asm };
        }
        table.huffman_encode = HuffmanEncode { isa: "neon", costs: costs_neon, write: write_neon };
    }
    table
}

#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: reads the 16 bytes that `bytes` refers to.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Indices that few residuals of a row are outside of: from this one on, as many as two registers
/// have bytes.
const NEAR: u8 = 5;
const NEAR_COUNT: u8 = 32;

/// Needs NEON. A look-up in two registers is much faster than one in four.
#[target_feature(enable = "neon")]
fn costs_neon(row: &Indices) -> Costs {
    let blocks = row.blocks::<16>();
    let from = vdupq_n_u8(NEAR);
    let mut far = vdupq_n_u8(0);
    for block in blocks {
        let near = vsubq_u8(load(block), from);
        far = vsubq_u8(far, vcgeq_u8(near, vdupq_n_u8(NEAR_COUNT)));
    }
    // What fills the row up is far, and costs nothing either way.
    if usize::from(vaddlvq_u8(far)) + row.count == 16 * blocks.len() {
        return costs_with(blocks, |costs| {
            let (near, _) = costs[NEAR.into()..][..NEAR_COUNT.into()].as_chunks();
            let entries = uint8x16x2_t(load(&near[0]), load(&near[1]));
            move |indices| vqtbl2q_u8(entries, vsubq_u8(indices, from))
        });
    }
    costs_with(blocks, |costs| {
        let (all, _) = costs.as_chunks();
        let entries = uint8x16x4_t(load(&all[0]), load(&all[1]), load(&all[2]), load(&all[3]));
        move |indices| vqtbl4q_u8(entries, indices)
    })
}

/// What a row costs under each table; `look_up` makes of its costs what looks indices up.
#[target_feature(enable = "neon")]
#[inline]
fn costs_with<F: Fn(uint8x16_t) -> uint8x16_t>(
    blocks: &[[u8; 16]],
    look_up: impl Fn(&[u8; 64]) -> F,
) -> Costs {
    let mut costs = [0; 16];
    let (fours, last) = COSTS.as_chunks::<4>();
    let (of_fours, _) = costs.as_chunks_mut();
    for (costs, tables) in of_fours.iter_mut().zip(fours) {
        *costs = sums(blocks, tables.each_ref().map(|table| look_up(table)));
    }
    for (cost, table) in costs[4 * fours.len()..].iter_mut().zip(last) {
        [*cost] = sums(blocks, [look_up(table)]);
    }
    costs
}

/// What a row costs under some tables, which share its loads.
#[target_feature(enable = "neon")]
#[inline]
fn sums<const COUNT: usize>(
    blocks: &[[u8; 16]],
    look_ups: [impl Fn(uint8x16_t) -> uint8x16_t; COUNT],
) -> [u16; COUNT] {
    let mut sums = [vdupq_n_u16(0); COUNT];
    for block in blocks {
        let indices = load(block);
        for (sum, look_up) in sums.iter_mut().zip(&look_ups) {
            *sum = vpadalq_u8(*sum, look_up(indices));
        }
    }
    sums.map(|sum| vaddvq_u16(sum))
}

/// Needs NEON.
#[target_feature(enable = "neon")]
fn write_neon(row: &Indices, codes: &Codes, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
    let (quarters, _) = codes.as_chunks::<16>();
    // SAFETY: reads the 32 bytes that each of these refers to.
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| unsafe { vld2q_u8(quarters[at].as_ptr().cast()) });
    let (low, high) = (uint8x16x4_t(a.0, b.0, c.0, d.0), uint8x16x4_t(a.1, b.1, c.1, d.1));
    let mut fours = Fours::new();
    let mut longest = vdupq_n_u32(0);
    for (block, words) in row.blocks::<16>().iter().zip(fours.blocks::<4>()) {
        let indices = load(block);
        let (low, high) = (vqtbl4q_u8(low, indices), vqtbl4q_u8(high, indices));
        let both = [vzip1q_u8(low, high), vzip2q_u8(low, high)];
        let (words, _) = words.as_chunks_mut::<2>();
        for (codes, words) in both.into_iter().zip(words) {
            let (bits, counts) = joined(vreinterpretq_u16_u8(codes));
            longest = vmaxq_u32(longest, vreinterpretq_u32_u64(counts));
            // SAFETY: writes the 2 numbers that `words` refers to.
            unsafe {
                vst1q_u64(
                    words.as_mut_ptr(),
                    vsliq_n_u64::<{ Fours::COUNT_BITS.cast_signed() }>(counts, bits),
                )
            };
        }
    }
    fours.write(row, vmaxvq_u32(longest).into(), bytes)
}

/// Two fours of codes, each above four bits of its length: their bits and the numbers of them.
#[target_feature(enable = "neon")]
#[inline]
fn joined(codes: uint16x8_t) -> (uint64x2_t, uint64x2_t) {
    let (bits, lengths) = (vshrq_n_u16::<4>(codes), vandq_u16(codes, vdupq_n_u16(15)));
    // Of each two the first lies below.
    let (twos, behind) = (vreinterpretq_u32_u16(bits), vreinterpretq_u32_u16(lengths));
    let firsts = vandq_u32(twos, vdupq_n_u32(0xFFFF));
    let firsts = vshlq_u32(firsts, vreinterpretq_s32_u32(vshrq_n_u32::<16>(behind)));
    let bits = vsraq_n_u32::<16>(firsts, twos);
    let lengths = vpaddlq_u16(lengths);
    let (twos, behind) = (vreinterpretq_u64_u32(bits), vreinterpretq_u64_u32(lengths));
    let firsts = vandq_u64(twos, vdupq_n_u64(0xFFFF_FFFF));
    let firsts = vshlq_u64(firsts, vreinterpretq_s64_u64(vshrq_n_u64::<32>(behind)));
    (vsraq_n_u64::<32>(firsts, twos), vpaddlq_u32(lengths))
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_huffman_run(bytes: *const u8, last: usize, lanes: *mut Lane, symbols: *mut u8);
}

/// # Safety
///
/// There are eight bytes, and behind each lane's end there is room in `symbols`
/// for what is read past it.
#[cfg(mz_asm)]
unsafe fn run_asm(bytes: &[u8], lanes: &mut [Lane; LANES], symbols: &mut [u8]) {
    let (lanes, symbols) = (lanes.as_mut_ptr(), symbols.as_mut_ptr());
    // SAFETY: pointers and lengths are of these slices; the caller vouches for the rest.
    unsafe { mz_huffman_run(bytes.as_ptr(), bytes.len() - 8, lanes, symbols) }
}
