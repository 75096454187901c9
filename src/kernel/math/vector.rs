//! What the bodies in this folder need of a vector register, and the portable stand-in.
//!
//! A body is written once over [`Vector`] and compiled once for each instruction set (see
//! `table`). Methods are unsafe because the hardware ones are valid only inside a function compiled
//! for their instruction set; they hold no state and touch only the memory they are given.

/// Declares methods whose contract is the trait's.
macro_rules! methods {
    ($(
        $(#[$doc:meta])*
        fn $name:ident $(<$(const $parameter:ident: $kind:ty),+>)?
            ($first:ident $(: $first_type:ty)? $(, $arg:ident: $type:ty)*) -> $out:ty;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As the trait says.
            unsafe fn $name $(<$(const $parameter: $kind),+>)?
                ($first $(: $first_type)? $(, $arg: $type)*) -> $out;
        )*
    };
}

/// A register of single-precision lanes.
///
/// # Safety
///
/// Every method: the CPU has the implementation's instruction set. Loads and stores: the pointer is
/// valid for [`Vector::LANES`] elements ([`Vector::splat_f16`]: for one); no alignment is needed.
pub unsafe trait Vector: Copy {
    /// Lanes of one register; divides 16.
    const LANES: usize;

    methods! {
        /// The same number in every lane.
        fn splat(value: f32) -> Self;
        /// Numbers as they lie.
        fn load(from: *const f32) -> Self;
        /// Numbers to memory.
        fn store(self, to: *mut f32) -> ();
        /// Asks for the cache line of an address, which need not be valid.
        fn prefetch(address: *const u8) -> ();
        /// One half in every lane.
        fn splat_f16(from: *const u16) -> Self;
        /// Halves, widened.
        fn load_f16(from: *const u16) -> Self;
        /// Upper halves of singles.
        fn load_bf16(from: *const u16) -> Self;
        /// Signed bytes as numbers.
        fn load_i8(from: *const i8) -> Self;
        /// `byte >> SHIFT & MASK` of each byte as a number.
        fn load_bits<const SHIFT: i32, const MASK: u8>(from: *const u8) -> Self;
        /// Sum.
        fn add(self, other: Self) -> Self;
        /// Difference.
        fn sub(self, other: Self) -> Self;
        /// Product.
        fn mul(self, other: Self) -> Self;
        /// Quotient.
        fn div(self, other: Self) -> Self;
        /// The larger of two.
        fn max(self, other: Self) -> Self;
        /// The smaller of two.
        fn min(self, other: Self) -> Self;
        /// `self * factor + sum`, rounded once where the hardware can.
        fn mul_add(self, factor: Self, sum: Self) -> Self;
        /// Adds the low bits of `exponent` to the exponent of each lane.
        fn scale_by_bits(self, exponent: Self) -> Self;
        /// Zero in lanes where `x < limit`.
        fn zero_below(self, x: Self, limit: Self) -> Self;
        /// Sum of all lanes.
        fn sum(self) -> f32;
        /// Largest lane.
        fn largest(self) -> f32;
    }
}

/// Below this, `exp` answers zero.
const EXP_LOWEST: f32 = -87.0;
const EXP_HIGHEST: f32 = 88.0;
/// Adding it leaves the nearest integer in the low mantissa bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts; the first has trailing zeros, so its product with a small integer is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// 1/n! from the seventh down to the second.
const TAYLOR: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];

/// e^x in each lane, to about 2 units in the last place; exactly 0 below -87, e^88 above 88.
///
/// # Safety
///
/// As for [`Vector`].
#[inline(always)]
pub unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: register arithmetic only; the caller has the instruction set.
    unsafe {
        let clamped = x.max(V::splat(EXP_LOWEST)).min(V::splat(EXP_HIGHEST));
        let rounded = clamped.mul_add(V::splat(core::f32::consts::LOG2_E), V::splat(ROUNDER));
        let n = rounded.sub(V::splat(ROUNDER));
        let r = n.mul_add(V::splat(-LN2_HIGH), clamped);
        let r = n.mul_add(V::splat(-LN2_LOW), r);
        let mut p = V::splat(TAYLOR[0]);
        for coefficient in &TAYLOR[1..] {
            p = p.mul_add(r, V::splat(*coefficient));
        }
        let p = p.mul_add(r.mul(r), r).add(V::splat(1.0));
        p.scale_by_bits(rounded).zero_below(x, V::splat(EXP_LOWEST))
    }
}

/// Eight lanes in an array: what every target can run, and what the compiler may vectorise.
#[derive(Clone, Copy)]
pub struct Lanes8([f32; 8]);

impl Lanes8 {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Lanes8(core::array::from_fn(|i| op(self.0[i], other.0[i])))
    }

    /// # Safety
    ///
    /// `from` is valid for eight elements.
    #[inline(always)]
    unsafe fn gather<T: Copy>(from: *const T, value: impl Fn(T) -> f32) -> Self {
        // SAFETY: eight elements are readable (caller).
        Lanes8(core::array::from_fn(|i| value(unsafe { from.add(i).read_unaligned() })))
    }
}

// SAFETY: plain arithmetic on any CPU; loads and stores touch exactly eight elements.
unsafe impl Vector for Lanes8 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Lanes8([value; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: eight elements are readable (trait contract).
        unsafe { Self::gather(from, |value| value) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: eight elements are writable (trait contract).
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}

    #[inline(always)]
    unsafe fn splat_f16(from: *const u16) -> Self {
        // SAFETY: one element is readable (trait contract).
        Lanes8([super::half::f32_of_f16(unsafe { from.read_unaligned() }); 8])
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: eight elements are readable (trait contract).
        unsafe { Self::gather(from, super::half::f32_of_f16) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: eight elements are readable (trait contract).
        unsafe { Self::gather(from, super::half::f32_of_bf16) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: eight elements are readable (trait contract).
        unsafe { Self::gather(from, f32::from) }
    }

    #[inline(always)]
    unsafe fn load_bits<const SHIFT: i32, const MASK: u8>(from: *const u8) -> Self {
        // SAFETY: eight elements are readable (trait contract).
        unsafe { Self::gather(from, |byte: u8| f32::from(byte >> SHIFT & MASK)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        // A fused multiply-add without hardware is a slow library call.
        Lanes8(core::array::from_fn(|i| self.0[i] * factor.0[i] + sum.0[i]))
    }

    #[inline(always)]
    unsafe fn scale_by_bits(self, exponent: Self) -> Self {
        self.zip(exponent, |p, e| {
            f32::from_bits(p.to_bits().wrapping_add(e.to_bits().wrapping_shl(23)))
        })
    }

    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        Lanes8(core::array::from_fn(|i| if x.0[i] < limit.0[i] { 0.0 } else { self.0[i] }))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (b + f)) + ((c + g) + (d + h))
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
