//! The inner loop of unpacking K with AVX2: the tokens of a group of channels in one block. It is
//! assembly where there is an assembler, and intrinsics elsewhere.

use super::super::kv4::{GROUP, Scales};
#[cfg(not(mz_asm))]
use super::super::kv4::{HALF, KV4_BLOCK};
#[cfg(mz_asm)]
use super::kv4::store_group;
#[cfg(not(mz_asm))]
use super::kv4::{eights, load_bytes, pick};
use core::arch::x86_64::*;

/// One group of a block.
#[cfg(mz_asm)]
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
pub(super) fn decode_group(
    group: usize,
    count: usize,
    scales: &Scales,
    bits: [__m256i; 2],
    nibbles: &[u8],
    values: &mut [u16],
) {
    let mut upper = [[0; GROUP]; 2];
    for (upper, bits) in upper.iter_mut().zip(bits) {
        store_group(upper, bits);
    }
    let (first, tokens) = (group * GROUP, values.len() / count);
    let (nibbles, values) = (&nibbles[first / 2..], &mut values[first..]);
    // SAFETY: the group lies before `count`, and there are up to 8 tokens of as many channels, as
    // the caller checked; `Scales` is laid out as the function wants it; the CPU has AVX2, F16C and
    // FMA.
    unsafe {
        let scales = core::ptr::from_ref(scales).cast::<f32>().add(first);
        let (upper, nibbles) = (upper.as_ptr(), nibbles.as_ptr());
        mz_kv4_tokens_avx2(scales, upper, nibbles, values.as_mut_ptr(), count, tokens);
    }
}

#[cfg(mz_asm)]
unsafe extern "C" {
    /// cbindgen:ignore
    pub(in crate::kernel) fn mz_kv4_tokens_avx2(
        scales: *const f32,
        upper: *const [u8; GROUP],
        nibbles: *const u8,
        values: *mut u16,
        channels: usize,
        tokens: usize,
    );
}

/// One group of a block.
#[cfg(not(mz_asm))]
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
pub(super) fn decode_group(
    group: usize,
    count: usize,
    scales: &Scales,
    [fifth, sixth]: [__m256i; 2],
    nibbles: &[u8],
    values: &mut [u16],
) {
    let (min, max) = (eights(group, &scales.min), eights(group, &scales.max));
    let step = eights(group, &scales.step);
    let picks = [pick::<0>(), pick::<4>(), pick::<8>(), pick::<12>()];
    let (four, fifth_bit, sixth_bit) =
        (_mm256_set1_epi8(15), _mm256_set1_epi8(16), _mm256_set1_epi8(32));
    let halves = _mm256_setr_epi64x(0, 0, 4, 4);
    // The first token's bit is the highest of its byte. Half of the tokens start from where it is
    // in place, then it moves up by one.
    let mut upper = (_mm256_srli_epi16::<3>(fifth), _mm256_srli_epi16::<2>(sixth));
    let tokens = values.chunks_exact_mut(count).zip(nibbles.chunks_exact(count / 2));
    for (token, (values, nibbles)) in tokens.enumerate() {
        if token == KV4_BLOCK / 2 {
            upper = (_mm256_add_epi8(fifth, fifth), _mm256_slli_epi16::<2>(sixth));
        }
        let (nibbles, _) = nibbles.as_chunks::<HALF>();
        let both = _mm256_broadcastsi128_si256(load_bytes(&nibbles[group]));
        let low = _mm256_and_si256(_mm256_srlv_epi64(both, halves), four);
        let fifth = _mm256_and_si256(upper.0, fifth_bit);
        let sixth = _mm256_and_si256(upper.1, sixth_bit);
        upper = (_mm256_add_epi8(upper.0, upper.0), _mm256_add_epi8(upper.1, upper.1));
        let codes = _mm256_or_si256(low, _mm256_or_si256(fifth, sixth));
        super::expect_writes(&values[group * GROUP..], GROUP);
        let (values, _) = values[group * GROUP..][..GROUP].as_chunks_mut::<8>();
        for eight in 0..4 {
            let code = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(codes, picks[eight]));
            let value = _mm256_fmadd_ps(code, step[eight], min[eight]);
            let value = _mm256_min_ps(value, max[eight]);
            store(&mut values[eight], _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value));
        }
    }
}

/// Writes 8 values.
#[cfg(not(mz_asm))]
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn store(halves: &mut [u16; 8], from: __m128i) {
    // SAFETY: writes the 8 halves that `halves` refers to; no alignment is needed.
    unsafe { _mm_storeu_si128(halves.as_mut_ptr().cast(), from) };
}
