//! Unpacking K with half-precision arithmetic. The inner loop, the tokens of a group of channels in
//! one block, is assembly where there is an assembler, and intrinsics elsewhere.

use super::super::kv4::{CHANNELS_MAX, GROUP, Kv4Channels, Scales};
use super::super::portable::f16_from_f32;
use super::kv4::{GroupBlock, decode_with};
#[cfg(not(mz_asm))]
use super::kv4::{load, store};
#[cfg(mz_asm)]
use super::{super::kv4::HALF, kv4::store_bytes};
#[cfg(not(mz_asm))]
use core::arch::aarch64::*;
use core::mem;
use static_assertions::const_assert_eq;

/// What codes stand for as F16, channel by channel. The assembly knows where which numbers lie.
#[repr(C)]
pub(in crate::kernel) struct Halves {
    pub min: [u16; CHANNELS_MAX],
    pub max: [u16; CHANNELS_MAX],
    pub step: [u16; CHANNELS_MAX],
}

impl Halves {
    pub(in crate::kernel) fn new(channels: &Kv4Channels<'_>, scales: &Scales) -> Self {
        let mut halves =
            Halves { min: [0; CHANNELS_MAX], max: [0; CHANNELS_MAX], step: [0; CHANNELS_MAX] };
        for (channel, ends) in channels.ends.iter().enumerate() {
            [halves.min[channel], halves.max[channel]] = *ends;
            halves.step[channel] = f16_from_f32(scales.step[channel]);
        }
        halves
    }
}

// As `asm/aarch64/kv4_tokens_fp16.S` has it, in bytes.
const_assert_eq!(mem::offset_of!(Halves, min), 0);
const_assert_eq!(mem::offset_of!(Halves, max), 512);
const_assert_eq!(mem::offset_of!(Halves, step), 1024);

/// Needs NEON with half-precision arithmetic, whole tokens and matching lengths.
#[target_feature(enable = "neon,fp16")]
pub(super) fn decode(channels: &Kv4Channels<'_>, nibbles: &[u8], upper: &[u8], values: &mut [u16]) {
    let scales = Scales::new(channels);
    let halves = Halves::new(channels, &scales);
    decode_with(channels, &scales, nibbles, upper, values, |block| decode_group(&halves, block));
}

/// One group of a block.
#[cfg(mz_asm)]
#[target_feature(enable = "neon,fp16")]
#[inline]
fn decode_group(halves: &Halves, block: GroupBlock<'_>) {
    let GroupBlock { group, count, upper, nibbles, values } = block;
    let mut bytes = [[0; GROUP]; 2];
    let (to, _) = bytes.as_flattened_mut().as_chunks_mut::<HALF>();
    for (to, from) in to.iter_mut().zip(upper.as_flattened()) {
        store_bytes(to, *from);
    }
    let (first, tokens) = (group * GROUP, values.len() / count);
    let (nibbles, values) = (&nibbles[first / 2..], &mut values[first..]);
    // SAFETY: the group lies before `count`, and there are up to 8 tokens of as many channels, as
    // the caller checked; `Halves` is laid out as the function wants it; the CPU has NEON with
    // half-precision arithmetic.
    unsafe {
        let scales = core::ptr::from_ref(halves).cast::<u16>().add(first);
        let (upper, nibbles) = (bytes.as_ptr(), nibbles.as_ptr());
        mz_kv4_tokens_fp16(scales, upper, nibbles, values.as_mut_ptr(), count, tokens);
    }
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(in crate::kernel) fn mz_kv4_tokens_fp16(
        scales: *const u16,
        upper: *const [u8; GROUP],
        nibbles: *const u8,
        values: *mut u16,
        channels: usize,
        tokens: usize,
    );
}

/// One group of a block.
#[cfg(not(mz_asm))]
#[target_feature(enable = "neon,fp16")]
#[inline]
fn decode_group(of: &Halves, block: GroupBlock<'_>) {
    block.tokens(&|group, [low, high], values| {
        let (low, high) = (vreinterpretq_u32_u8(low), vreinterpretq_u32_u8(high));
        let a = vreinterpretq_u8_u32(vzip1q_u32(low, high));
        let b = vreinterpretq_u8_u32(vzip2q_u32(low, high));
        let codes = [
            vmovl_u8(vget_low_u8(a)),
            vmovl_high_u8(a),
            vmovl_u8(vget_low_u8(b)),
            vmovl_high_u8(b),
        ];
        for eight in 0..4 {
            let halves = |numbers: &[u16; CHANNELS_MAX]| {
                vreinterpretq_f16_u16(load(&numbers.as_chunks::<8>().0[group * GROUP / 8 + eight]))
            };
            let (min, max, step) = (halves(&of.min), halves(&of.max), halves(&of.step));
            let value = vminq_f16(vfmaq_f16(min, vcvtq_f16_u16(codes[eight]), step), max);
            store(&mut values[eight], vreinterpretq_u16_f16(value));
        }
    });
}
