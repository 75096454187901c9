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
//! The lower nibbles of 16 (or 32) code bytes are the first 16 (or 32) values, the upper nibbles
//! the next ones.

use super::kind::WeightType;
use super::vector::Vector;

/// Takes decoded values, a register or a single one at a time, each value once.
trait Sink<V> {
    /// Values `at` and following. `slot` tells apart registers that are decoded together.
    ///
    /// # Safety
    ///
    /// The CPU has V's instruction set, and the values lie inside what the sink was made for.
    unsafe fn put(&mut self, at: usize, slot: usize, values: V);

    /// Value `at`.
    ///
    /// # Safety
    ///
    /// As for [`Sink::put`].
    unsafe fn put_one(&mut self, at: usize, value: f32);
}

/// Stores the values.
struct Store(*mut f32);

impl<V: Vector> Sink<V> for Store {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, _slot: usize, values: V) {
        // SAFETY: inside the target (caller).
        unsafe { values.store(self.0.add(at)) }
    }

    #[inline(always)]
    unsafe fn put_one(&mut self, at: usize, value: f32) {
        // SAFETY: inside the target (caller).
        unsafe { *self.0.add(at) = value }
    }
}

/// Multiplies the values with `x` and adds up, in several sums so that additions overlap.
struct Dot<V> {
    x: *const f32,
    sums: [V; SUMS],
    rest: f32,
}

const SUMS: usize = 4;

/// Decoding takes so many instructions for each byte that the CPU alone looks only a few cache
/// lines ahead, and the hardware's prefetcher stops at every page.
const PREFETCH_BYTES: usize = 4096;

impl<V: Vector> Sink<V> for Dot<V> {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, slot: usize, values: V) {
        let sum = &mut self.sums[slot % SUMS];
        // SAFETY: inside `x` (caller).
        *sum = unsafe { values.mul_add(V::load(self.x.add(at)), *sum) };
    }

    #[inline(always)]
    unsafe fn put_one(&mut self, at: usize, value: f32) {
        // SAFETY: inside `x` (caller).
        self.rest += value * unsafe { *self.x.add(at) };
    }
}

/// Decodes `blocks` blocks.
///
/// # Safety
///
/// The CPU has V's instruction set; `from` is valid for `blocks` blocks of `kind` and `to` for
/// their values, without overlap.
#[inline(always)]
pub unsafe fn dequantise<V: Vector>(
    kind: WeightType,
    from: *const u8,
    to: *mut f32,
    blocks: usize,
) {
    // SAFETY: the store covers exactly the values of the blocks (caller).
    unsafe { decode::<V>(kind, from, blocks, &mut Store(to)) }
}

/// `y[row] = decoded row . x` for rows of `blocks` blocks, without storing what is decoded.
///
/// # Safety
///
/// The CPU has V's instruction set; `from` is valid for `rows * blocks` blocks of `kind`, `x` for
/// the values of `blocks` blocks, `y` for `rows` values; `y` overlaps neither.
#[inline(always)]
pub unsafe fn decode_dots<V: Vector>(
    kind: WeightType,
    from: *const u8,
    x: *const f32,
    blocks: usize,
    y: *mut f32,
    rows: usize,
) {
    for row in 0..rows {
        // SAFETY: the row's blocks are inside `from`, its values inside `x` (caller).
        unsafe {
            let from = from.add(row * blocks * kind.block_bytes());
            let mut dot = Dot { x, sums: [V::splat(0.0); SUMS], rest: 0.0 };
            decode::<V>(kind, from, blocks, &mut dot);
            let [a, b, c, d] = dot.sums;
            *y.add(row) = a.add(b).add(c.add(d)).sum() + dot.rest;
        }
    }
}

/// # Safety
///
/// The CPU has V's instruction set; `from` is valid for `blocks` blocks, and the sink for their
/// values.
#[inline(always)]
unsafe fn decode<V: Vector>(
    kind: WeightType,
    from: *const u8,
    blocks: usize,
    sink: &mut impl Sink<V>,
) {
    macro_rules! each {
        ($block:ident) => {
            for i in 0..blocks {
                let block = from.add(i * kind.block_bytes());
                V::prefetch(block.wrapping_add(PREFETCH_BYTES));
                $block::<V>(block, i * kind.block_values(), sink)
            }
        };
    }
    // SAFETY: block i lies inside `from`, its values inside the sink (caller).
    unsafe {
        match kind {
            WeightType::F32 => singles::<V>(from, blocks, sink),
            WeightType::F16 => halves::<V>(from, blocks, sink),
            WeightType::Bf16 => upper_halves::<V>(from, blocks, sink),
            WeightType::Q4_0 => each!(q4_0),
            WeightType::Q4_1 => each!(q4_1),
            WeightType::Q8_0 => each!(q8_0),
            WeightType::Q4K => each!(q4_k),
            WeightType::Q6K => each!(q6_k),
        }
    }
}

/// Unblocked values: registers, then single ones.
macro_rules! unblocked {
    ($name:ident, $bytes:literal, $load:expr, $load_one:expr) => {
        /// # Safety
        ///
        /// As for [`decode`], with a block for each value.
        #[inline(always)]
        unsafe fn $name<V: Vector>(from: *const u8, count: usize, sink: &mut impl Sink<V>) {
            let mut i = 0;
            // SAFETY: every value is below `count` (caller).
            unsafe {
                while i + SUMS * V::LANES <= count {
                    for slot in 0..SUMS {
                        let at = i + slot * V::LANES;
                        sink.put(at, slot, $load(from.add($bytes * at).cast()));
                    }
                    i += SUMS * V::LANES;
                }
                while i + V::LANES <= count {
                    sink.put(i, 0, $load(from.add($bytes * i).cast()));
                    i += V::LANES;
                }
                while i < count {
                    sink.put_one(i, $load_one(from.add($bytes * i).cast()));
                    i += 1;
                }
            }
        }
    };
}

unblocked!(singles, 4, V::load, |from: *const f32| from.read_unaligned());
unblocked!(halves, 2, V::load_f16, |from: *const u16| super::half::f32_of_f16(
    from.read_unaligned()
));
unblocked!(upper_halves, 2, V::load_bf16, |from: *const u16| {
    super::half::f32_of_bf16(from.read_unaligned())
});

/// `scale * code + offset` for the nibbles at `SHIFT` of `COUNT` bytes, a multiple of 16.
///
/// # Safety
///
/// `codes` is valid for `COUNT` bytes and the sink for as many values from `at` on.
#[inline(always)]
unsafe fn nibbles<V: Vector, const SHIFT: i32, const COUNT: usize>(
    codes: *const u8,
    at: usize,
    sink: &mut impl Sink<V>,
    scale: V,
    offset: V,
) {
    // Upper nibbles are decoded together with the lower ones of the same bytes.
    let first_slot = if SHIFT == 0 { 0 } else { COUNT / V::LANES };
    for slot in 0..COUNT / V::LANES {
        let i = slot * V::LANES;
        // SAFETY: i + LANES <= COUNT, because LANES divides 16.
        unsafe {
            let code = V::load_bits::<SHIFT, 15>(codes.add(i));
            let values = code.mul_add(scale, offset);
            sink.put(at + i, first_slot + slot, values);
        }
    }
}

/// # Safety
///
/// One block of Q4_0 and its values are in bounds.
#[inline(always)]
unsafe fn q4_0<V: Vector>(from: *const u8, at: usize, sink: &mut impl Sink<V>) {
    // SAFETY: offsets below 18 bytes and 32 values.
    unsafe {
        let d = V::splat_f16(from.cast());
        let offset = d.mul(V::splat(-8.0));
        nibbles::<V, 0, 16>(from.add(2), at, sink, d, offset);
        nibbles::<V, 4, 16>(from.add(2), at + 16, sink, d, offset);
    }
}

/// # Safety
///
/// One block of Q4_1 and its values are in bounds.
#[inline(always)]
unsafe fn q4_1<V: Vector>(from: *const u8, at: usize, sink: &mut impl Sink<V>) {
    // SAFETY: offsets below 20 bytes and 32 values.
    unsafe {
        let (d, m) = (V::splat_f16(from.cast()), V::splat_f16(from.add(2).cast()));
        nibbles::<V, 0, 16>(from.add(4), at, sink, d, m);
        nibbles::<V, 4, 16>(from.add(4), at + 16, sink, d, m);
    }
}

/// # Safety
///
/// One block of Q8_0 and its values are in bounds.
#[inline(always)]
unsafe fn q8_0<V: Vector>(from: *const u8, at: usize, sink: &mut impl Sink<V>) {
    // SAFETY: offsets below 34 bytes and 32 values; LANES divides 32.
    unsafe {
        let d = V::splat_f16(from.cast());
        for slot in 0..32 / V::LANES {
            let i = slot * V::LANES;
            sink.put(at + i, slot, V::load_i8(from.add(2 + i).cast()).mul(d));
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
unsafe fn q4_k<V: Vector>(from: *const u8, at: usize, sink: &mut impl Sink<V>) {
    // SAFETY: offsets below 144 bytes and 256 values; groups below 8.
    unsafe {
        let (d, d_min) = (V::splat_f16(from.cast()), V::splat_f16(from.add(2).cast()));
        for pair in 0..4 {
            let codes = from.add(16 + 32 * pair);
            let at = at + 64 * pair;
            let (scale, min) = scale_and_min(from.add(4), 2 * pair);
            nibbles::<V, 0, 32>(codes, at, sink, d.mul(V::splat(scale)), d_min.mul(V::splat(-min)));
            let (scale, min) = scale_and_min(from.add(4), 2 * pair + 1);
            nibbles::<V, 4, 32>(
                codes,
                at + 32,
                sink,
                d.mul(V::splat(scale)),
                d_min.mul(V::splat(-min)),
            );
        }
    }
}

/// 32 values of a Q6_K half block: the nibbles at `LOW`, the two bits at `HIGH`, two scales.
///
/// # Safety
///
/// `low` and `high` are valid for 32 bytes, `scales` for 2, the sink for 32 values from `at` on.
#[inline(always)]
unsafe fn sixes<V: Vector, const LOW: i32, const HIGH: i32>(
    low: *const u8,
    high: *const u8,
    scales: *const i8,
    d: V,
    at: usize,
    sink: &mut impl Sink<V>,
) {
    for slot in 0..32 / V::LANES {
        let i = slot * V::LANES;
        // SAFETY: i + LANES <= 32, because LANES divides 16; the scale index is 0 or 1.
        unsafe {
            let scale = d.mul(V::splat(f32::from(*scales.add(i / 16))));
            let low = V::load_bits::<LOW, 15>(low.add(i));
            let high = V::load_bits::<HIGH, 3>(high.add(i));
            let code = high.mul_add(V::splat(16.0), low).sub(V::splat(32.0));
            sink.put(at + i, slot, code.mul(scale));
        }
    }
}

/// # Safety
///
/// One block of Q6_K and its values are in bounds.
#[inline(always)]
unsafe fn q6_k<V: Vector>(from: *const u8, at: usize, sink: &mut impl Sink<V>) {
    // SAFETY: offsets below 210 bytes and 256 values.
    unsafe {
        let d = V::splat_f16(from.add(208).cast());
        for part in 0..2 {
            let low = from.add(64 * part);
            let high = from.add(128 + 32 * part);
            let scales = from.add(192 + 8 * part).cast::<i8>();
            let at = at + 128 * part;
            sixes::<V, 0, 0>(low, high, scales, d, at, sink);
            sixes::<V, 0, 2>(low.add(32), high, scales.add(2), d, at + 32, sink);
            sixes::<V, 4, 4>(low, high, scales.add(4), d, at + 64, sink);
            sixes::<V, 4, 6>(low.add(32), high, scales.add(6), d, at + 96, sink);
        }
    }
}
