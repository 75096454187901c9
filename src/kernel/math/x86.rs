//! [`Vector`] for AVX2 with FMA and F16C, and for AVX-512F.

use super::vector::Vector;
use core::arch::x86_64::*;

/// Eight lanes of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(__m256);

/// Sixteen lanes of AVX-512F.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

macro_rules! registers {
    ($($name:ident($first:ident $(: $type:ty)? $(, $arg:ident)*) -> $out:ty = $body:expr;)*) => {
        $(
            /// # Safety
            ///
            /// As the trait says.
            #[inline(always)]
            unsafe fn $name($first $(: $type)? $(, $arg: Self)*) -> $out {
                // SAFETY: the caller has the instruction set, and pointers are valid for one
                // register (trait contract).
                unsafe { $body }
            }
        )*
    };
}

// SAFETY: each method is one or a few AVX2, FMA or F16C operations on what it is given.
unsafe impl Vector for Avx2 {
    const LANES: usize = 8;

    registers! {
        splat(value: f32) -> Self = Avx2(_mm256_set1_ps(value));
        load(from: *const f32) -> Self = Avx2(_mm256_loadu_ps(from));
        prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(address.cast());
        // Broadcast, then widened: inserting one half would wait for the register's old value.
        splat_f16(from: *const u16) -> Self =
            Avx2(_mm256_cvtph_ps(_mm_set1_epi16(from.read_unaligned().cast_signed())));
        load_f16(from: *const u16) -> Self = Avx2(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())));
        load_bf16(from: *const u16) -> Self = Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))
        )));
        load_i8(from: *const i8) -> Self = Avx2(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
            _mm_loadl_epi64(from.cast())
        )));
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: eight elements are writable (trait contract).
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bits<const SHIFT: i32, const MASK: u8>(from: *const u8) -> Self {
        // SAFETY: eight bytes are readable (trait contract).
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let bits = _mm256_and_si256(
                _mm256_srli_epi32::<SHIFT>(wide),
                _mm256_set1_epi32(i32::from(MASK)),
            );
            Avx2(_mm256_cvtepi32_ps(bits))
        }
    }

    registers! {
        add(self, b) -> Self = Avx2(_mm256_add_ps(self.0, b.0));
        sub(self, b) -> Self = Avx2(_mm256_sub_ps(self.0, b.0));
        mul(self, b) -> Self = Avx2(_mm256_mul_ps(self.0, b.0));
        div(self, b) -> Self = Avx2(_mm256_div_ps(self.0, b.0));
        max(self, b) -> Self = Avx2(_mm256_max_ps(self.0, b.0));
        min(self, b) -> Self = Avx2(_mm256_min_ps(self.0, b.0));
        mul_add(self, b, sum) -> Self = Avx2(_mm256_fmadd_ps(self.0, b.0, sum.0));
        scale_by_bits(self, e) -> Self = Avx2(_mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_castps_si256(self.0),
            _mm256_slli_epi32::<23>(_mm256_castps_si256(e.0)),
        )));
        zero_below(self, x, limit) -> Self =
            Avx2(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x.0, limit.0), self.0));
        sum(self) -> f32 = {
            let upper = _mm256_extractf128_ps::<1>(self.0);
            let four = _mm_add_ps(_mm256_castps256_ps128(self.0), upper);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        };
        largest(self) -> f32 = {
            let upper = _mm256_extractf128_ps::<1>(self.0);
            let four = _mm_max_ps(_mm256_castps256_ps128(self.0), upper);
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        };
    }
}

// SAFETY: each method is one or a few AVX-512F operations on what it is given.
unsafe impl Vector for Avx512 {
    const LANES: usize = 16;

    registers! {
        splat(value: f32) -> Self = Avx512(_mm512_set1_ps(value));
        load(from: *const f32) -> Self = Avx512(_mm512_loadu_ps(from));
        prefetch(address: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(address.cast());
        splat_f16(from: *const u16) -> Self =
            Avx512(_mm512_cvtph_ps(_mm256_set1_epi16(from.read_unaligned().cast_signed())));
        load_f16(from: *const u16) -> Self =
            Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())));
        load_bf16(from: *const u16) -> Self = Avx512(_mm512_castsi512_ps(
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))
        ));
        load_i8(from: *const i8) -> Self = Avx512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
            _mm_loadu_si128(from.cast())
        )));
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen elements are writable (trait contract).
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_bits<const SHIFT: i32, const MASK: u8>(from: *const u8) -> Self {
        // SAFETY: sixteen bytes are readable (trait contract).
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            // The intrinsic takes its shift as u32, which a const parameter cannot be turned into.
            let shift = _mm_cvtsi32_si128(SHIFT);
            let bits =
                _mm512_and_si512(_mm512_srl_epi32(wide, shift), _mm512_set1_epi32(i32::from(MASK)));
            Avx512(_mm512_cvtepi32_ps(bits))
        }
    }

    registers! {
        add(self, b) -> Self = Avx512(_mm512_add_ps(self.0, b.0));
        sub(self, b) -> Self = Avx512(_mm512_sub_ps(self.0, b.0));
        mul(self, b) -> Self = Avx512(_mm512_mul_ps(self.0, b.0));
        div(self, b) -> Self = Avx512(_mm512_div_ps(self.0, b.0));
        max(self, b) -> Self = Avx512(_mm512_max_ps(self.0, b.0));
        min(self, b) -> Self = Avx512(_mm512_min_ps(self.0, b.0));
        mul_add(self, b, sum) -> Self = Avx512(_mm512_fmadd_ps(self.0, b.0, sum.0));
        scale_by_bits(self, e) -> Self = Avx512(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(self.0),
            _mm512_slli_epi32::<23>(_mm512_castps_si512(e.0)),
        )));
        zero_below(self, x, limit) -> Self =
            Avx512(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, limit.0), self.0));
        sum(self) -> f32 = _mm512_reduce_add_ps(self.0);
        largest(self) -> f32 = _mm512_reduce_max_ps(self.0);
    }
}
