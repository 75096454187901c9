//! Weight blocks to single precision. The formats are ggml's; all numbers little-endian.
//!
//! | type | block, in this order | value |
//! |---|---|---|
//! | Q4_0 | d: f16, q: 16 bytes | d (q - 8) |
//! | Q4_1 | d: f16, m: f16, q: 16 bytes | d q + m |
//! | Q8_0 | d: f16, q: 32 signed bytes | d q |
//! | Q4_K | d, dmin: f16, 12 bytes of scales, q: 128 bytes | d sc q - dmin min |
//! | Q6_K | low: 128 bytes, high: 64 bytes, sc: 16 signed bytes, d: f16 | d sc (q - 32) |
//!
//! The lower nibbles of 16 (or 32) code bytes are the first 16 (or 32) values, the upper nibbles the
//! next ones.

use super::half::f32_of_f16;
use super::kind::WeightType;
use super::vector::Vector;

/// Dequantises `blocks` blocks.
///
/// # Safety
///
/// The CPU has V's instruction set; `from` is valid for `blocks` blocks of `kind` and `to` for their
/// values, without overlap.
#[inline(always)]
pub unsafe fn dequantise<V: Vector>(
    kind: WeightType,
    from: *const u8,
    to: *mut f32,
    blocks: usize,
) {
    // SAFETY: passed on unchanged.
    unsafe {
        match kind {
            WeightType::F32 => singles(from, to, blocks),
            WeightType::F16 => halves::<V>(from, to, blocks),
            WeightType::Bf16 => upper_halves::<V>(from, to, blocks),
            WeightType::Q4_0 => each(kind, from, to, blocks, |f, t| q4_0::<V>(f, t)),
            WeightType::Q4_1 => each(kind, from, to, blocks, |f, t| q4_1::<V>(f, t)),
            WeightType::Q8_0 => each(kind, from, to, blocks, |f, t| q8_0::<V>(f, t)),
            WeightType::Q4K => each(kind, from, to, blocks, |f, t| q4_k::<V>(f, t)),
            WeightType::Q6K => each(kind, from, to, blocks, |f, t| q6_k::<V>(f, t)),
        }
    }
}

/// # Safety
///
/// As for [`dequantise`].
#[inline(always)]
unsafe fn each(
    kind: WeightType,
    from: *const u8,
    to: *mut f32,
    blocks: usize,
    block: impl Fn(*const u8, *mut f32),
) {
    for i in 0..blocks {
        // SAFETY: block i lies inside both (caller's promise).
        unsafe { block(from.add(i * kind.block_bytes()), to.add(i * kind.block_values())) }
    }
}

/// # Safety
///
/// `from` is valid for two bytes.
#[inline(always)]
unsafe fn half(from: *const u8) -> f32 {
    // SAFETY: two bytes are readable (caller).
    f32_of_f16(unsafe { from.cast::<u16>().read_unaligned() })
}

/// # Safety
///
/// As for [`dequantise`].
#[inline(always)]
unsafe fn singles(from: *const u8, to: *mut f32, count: usize) {
    // SAFETY: `count` singles are readable and writable, without overlap (caller).
    unsafe { core::ptr::copy_nonoverlapping(from, to.cast::<u8>(), count * 4) }
}

/// # Safety
///
/// As for [`dequantise`].
#[inline(always)]
unsafe fn halves<V: Vector>(from: *const u8, to: *mut f32, count: usize) {
    let mut i = 0;
    // SAFETY: every element is below `count` (caller's promise).
    unsafe {
        while i + V::LANES <= count {
            V::load_f16(from.add(2 * i).cast()).store(to.add(i));
            i += V::LANES;
        }
        while i < count {
            *to.add(i) = half(from.add(2 * i));
            i += 1;
        }
    }
}

/// # Safety
///
/// As for [`dequantise`].
#[inline(always)]
unsafe fn upper_halves<V: Vector>(from: *const u8, to: *mut f32, count: usize) {
    let mut i = 0;
    // SAFETY: every element is below `count` (caller's promise).
    unsafe {
        while i + V::LANES <= count {
            V::load_bf16(from.add(2 * i).cast()).store(to.add(i));
            i += V::LANES;
        }
        while i < count {
            let upper = from.add(2 * i).cast::<u16>().read_unaligned();
            *to.add(i) = super::half::f32_of_bf16(upper);
            i += 1;
        }
    }
}

/// `scale * code + offset` for the nibbles at `SHIFT` of `count` bytes.
///
/// # Safety
///
/// `codes` is valid for `count` bytes and `to` for `count` values; `count` is a multiple of 16.
#[inline(always)]
unsafe fn nibbles<V: Vector, const SHIFT: i32>(
    codes: *const u8,
    to: *mut f32,
    count: usize,
    scale: f32,
    offset: f32,
) {
    let mut i = 0;
    while i < count {
        // SAFETY: i + LANES <= count, because LANES divides 16.
        unsafe {
            let code = V::load_bits::<SHIFT, 15>(codes.add(i));
            code.mul_add(V::splat(scale), V::splat(offset)).store(to.add(i));
        }
        i += V::LANES;
    }
}

/// # Safety
///
/// One block of Q4_0 and its values are in bounds.
#[inline(always)]
unsafe fn q4_0<V: Vector>(from: *const u8, to: *mut f32) {
    // SAFETY: offsets below 18 bytes and 32 values.
    unsafe {
        let d = half(from);
        nibbles::<V, 0>(from.add(2), to, 16, d, -8.0 * d);
        nibbles::<V, 4>(from.add(2), to.add(16), 16, d, -8.0 * d);
    }
}

/// # Safety
///
/// One block of Q4_1 and its values are in bounds.
#[inline(always)]
unsafe fn q4_1<V: Vector>(from: *const u8, to: *mut f32) {
    // SAFETY: offsets below 20 bytes and 32 values.
    unsafe {
        let (d, m) = (half(from), half(from.add(2)));
        nibbles::<V, 0>(from.add(4), to, 16, d, m);
        nibbles::<V, 4>(from.add(4), to.add(16), 16, d, m);
    }
}

/// # Safety
///
/// One block of Q8_0 and its values are in bounds.
#[inline(always)]
unsafe fn q8_0<V: Vector>(from: *const u8, to: *mut f32) {
    // SAFETY: offsets below 34 bytes and 32 values; LANES divides 32.
    unsafe {
        let d = V::splat(half(from));
        let mut i = 0;
        while i < 32 {
            V::load_i8(from.add(2 + i).cast()).mul(d).store(to.add(i));
            i += V::LANES;
        }
    }
}

/// Scale and minimum of group `j` of a Q4_K block, from its 12 packed bytes.
///
/// # Safety
///
/// `packed` is valid for 12 bytes; `j < 8`.
#[inline(always)]
unsafe fn scale_and_min(packed: *const u8, j: usize) -> (f32, f32) {
    // SAFETY: indexes below 12.
    unsafe {
        let at = |i: usize| *packed.add(i);
        let (scale, min) = if j < 4 {
            (at(j) & 63, at(j + 4) & 63)
        } else {
            // The upper two bits of groups 4 to 7 sit on top of groups 0 to 3.
            (at(j + 4) & 15 | at(j - 4) >> 6 << 4, at(j + 4) >> 4 | at(j) >> 6 << 4)
        };
        (f32::from(scale), f32::from(min))
    }
}

/// # Safety
///
/// One block of Q4_K and its values are in bounds.
#[inline(always)]
unsafe fn q4_k<V: Vector>(from: *const u8, to: *mut f32) {
    // SAFETY: offsets below 144 bytes and 256 values; groups below 8.
    unsafe {
        let (d, d_min) = (half(from), half(from.add(2)));
        for pair in 0..4 {
            let codes = from.add(16 + 32 * pair);
            let to = to.add(64 * pair);
            let (scale, min) = scale_and_min(from.add(4), 2 * pair);
            nibbles::<V, 0>(codes, to, 32, d * scale, -(d_min * min));
            let (scale, min) = scale_and_min(from.add(4), 2 * pair + 1);
            nibbles::<V, 4>(codes, to.add(32), 32, d * scale, -(d_min * min));
        }
    }
}

/// 32 values of a Q6_K half block: the nibbles at `LOW`, the two bits at `HIGH`, two scales.
///
/// # Safety
///
/// `low` and `high` are valid for 32 bytes, `scales` for 2, `to` for 32 values.
#[inline(always)]
unsafe fn sixes<V: Vector, const LOW: i32, const HIGH: i32>(
    low: *const u8,
    high: *const u8,
    scales: *const i8,
    d: f32,
    to: *mut f32,
) {
    let mut i = 0;
    while i < 32 {
        // SAFETY: i + LANES <= 32, because LANES divides 16; the scale index is 0 or 1.
        unsafe {
            let scale = d * f32::from(*scales.add(i / 16));
            let low = V::load_bits::<LOW, 15>(low.add(i));
            let high = V::load_bits::<HIGH, 3>(high.add(i));
            let code = high.mul_add(V::splat(16.0), low).sub(V::splat(32.0));
            code.mul(V::splat(scale)).store(to.add(i));
        }
        i += V::LANES;
    }
}

/// # Safety
///
/// One block of Q6_K and its values are in bounds.
#[inline(always)]
unsafe fn q6_k<V: Vector>(from: *const u8, to: *mut f32) {
    // SAFETY: offsets below 210 bytes and 256 values.
    unsafe {
        let d = half(from.add(208));
        for part in 0..2 {
            let low = from.add(64 * part);
            let high = from.add(128 + 32 * part);
            let scales = from.add(192 + 8 * part).cast::<i8>();
            let to = to.add(128 * part);
            sixes::<V, 0, 0>(low, high, scales, d, to);
            sixes::<V, 0, 2>(low.add(32), high, scales.add(2), d, to.add(32));
            sixes::<V, 4, 4>(low, high, scales.add(4), d, to.add(64));
            sixes::<V, 4, 6>(low.add(32), high, scales.add(6), d, to.add(96));
        }
    }
}
