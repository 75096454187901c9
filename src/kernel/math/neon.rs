//! [`Vector`] for NEON, which every aarch64 has.

use super::vector::Vector;
use core::arch::aarch64::*;

/// Four lanes of NEON.
#[derive(Clone, Copy)]
pub struct Neon(float32x4_t);

macro_rules! registers {
    ($($name:ident($first:ident $(: $type:ty)? $(, $arg:ident)*) -> $out:ty = $body:expr;)*) => {
        $(
            /// # Safety
            ///
            /// As the trait says.
            #[inline(always)]
            unsafe fn $name($first $(: $type)? $(, $arg: Self)*) -> $out {
                // SAFETY: NEON is part of the architecture, and pointers are valid for four
                // elements (trait contract).
                unsafe { $body }
            }
        )*
    };
}

/// Four bytes in the lower half of a register, widened to 16 bits.
///
/// # Safety
///
/// `from` is valid for four bytes.
#[inline(always)]
unsafe fn four_bytes(from: *const u8) -> uint8x8_t {
    // SAFETY: four bytes are readable (caller).
    unsafe { vcreate_u8(u64::from(from.cast::<u32>().read_unaligned())) }
}

/// Halves to singles by integer steps: the half-precision intrinsics are not stable. The exponent
/// is moved to its place and corrected by a multiplication, which is exact and also right for
/// subnormals; infinity and NaN are set apart.
///
/// # Safety
///
/// None beyond NEON.
#[inline(always)]
unsafe fn widen(halves: uint16x4_t) -> Neon {
    // SAFETY: register arithmetic only.
    unsafe {
        let wide = vmovl_u16(halves);
        let sign = vshlq_n_u32::<16>(vandq_u32(wide, vdupq_n_u32(0x8000)));
        let body = vshlq_n_u32::<13>(vandq_u32(wide, vdupq_n_u32(0x7fff)));
        let power = vdupq_n_f32(f32::from_bits(0x7780_0000));
        let finite = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(body), power));
        let special = vorrq_u32(body, vdupq_n_u32(0x7f80_0000));
        let is_special = vcgeq_u32(body, vdupq_n_u32(0x7c00 << 13));
        let magnitude = vbslq_u32(is_special, special, finite);
        Neon(vreinterpretq_f32_u32(vorrq_u32(magnitude, sign)))
    }
}

// SAFETY: each method is one or a few NEON operations on what it is given.
unsafe impl Vector for Neon {
    const LANES: usize = 4;

    registers! {
        splat(value: f32) -> Self = Neon(vdupq_n_f32(value));
        load(from: *const f32) -> Self = Neon(vld1q_f32(from));
        prefetch(address: *const u8) -> () = core::arch::asm!(
            "prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)
        );
        splat_f16(from: *const u16) -> Self = widen(vld1_dup_u16(from));
        load_f16(from: *const u16) -> Self = widen(vld1_u16(from));
        load_bf16(from: *const u16) -> Self =
            Neon(vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))));
        load_i8(from: *const i8) -> Self = {
            let bytes = vreinterpret_s8_u8(four_bytes(from.cast()));
            Neon(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes)))))
        };
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: four elements are writable (trait contract).
        unsafe { vst1q_f32(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bits<const SHIFT: i32, const MASK: u8>(from: *const u8) -> Self {
        // SAFETY: four bytes are readable (trait contract).
        unsafe {
            let wide = vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(from))));
            let shifted = vshlq_u32(wide, vdupq_n_s32(-SHIFT));
            Neon(vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(MASK as u32))))
        }
    }

    registers! {
        add(self, b) -> Self = Neon(vaddq_f32(self.0, b.0));
        sub(self, b) -> Self = Neon(vsubq_f32(self.0, b.0));
        mul(self, b) -> Self = Neon(vmulq_f32(self.0, b.0));
        div(self, b) -> Self = Neon(vdivq_f32(self.0, b.0));
        max(self, b) -> Self = Neon(vmaxq_f32(self.0, b.0));
        min(self, b) -> Self = Neon(vminq_f32(self.0, b.0));
        mul_add(self, b, sum) -> Self = Neon(vfmaq_f32(sum.0, self.0, b.0));
        scale_by_bits(self, e) -> Self = Neon(vreinterpretq_f32_u32(vaddq_u32(
            vreinterpretq_u32_f32(self.0),
            vshlq_n_u32::<23>(vreinterpretq_u32_f32(e.0)),
        )));
        zero_below(self, x, limit) -> Self = Neon(vreinterpretq_f32_u32(vbicq_u32(
            vreinterpretq_u32_f32(self.0),
            vcltq_f32(x.0, limit.0),
        )));
        sum(self) -> f32 = vaddvq_f32(self.0);
        largest(self) -> f32 = vmaxvq_f32(self.0);
    }
}
