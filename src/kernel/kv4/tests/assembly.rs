//! The assembly of the 4-bit format, called as such.

use super::*;
use crate::kernel::support::available;
use crate::kernel::support::checked_call::checked_call;

/// Bits 4 and 5 of a group's codes, expanded to one byte a channel.
fn upper_of_group(at: &Upper, group: usize, block: &[u8]) -> [[u8; GROUP]; 2] {
    core::array::from_fn(|plane| {
        let UpperPlane { starts, picks, .. } = &at.planes[plane];
        core::array::from_fn(|byte| {
            let place = group * GROUP + byte;
            match picks[place] {
                pick @ 0..128 => block[starts[place / HALF] + usize::from(pick)],
                _ => 0,
            }
        })
    })
}

#[test]
fn tokens_of_a_group_equal_portable_and_keep_the_calling_convention() {
    #[cfg(target_arch = "x86_64")]
    let (function, needed) = (
        crate::kernel::arch::kv4_tokens::mz_kv4_tokens_avx2 as *const (),
        CpuFlags::AVX2 | CpuFlags::F16C | CpuFlags::FMA,
    );
    #[cfg(target_arch = "aarch64")]
    let (function, needed) = (
        crate::kernel::arch::kv4_fp16::mz_kv4_tokens_fp16 as *const (),
        CpuFlags::NEON | CpuFlags::FP16,
    );
    if !available().contains(needed) {
        return;
    }
    let mut random = Random::new(97);
    let mut memory: [Guarded; 4] = core::array::from_fn(|_| Guarded::new(2 * 8 * CHANNELS_MAX * 2));
    let counts = (GROUP..=CHANNELS_MAX).step_by(8);
    let shapes = counts.flat_map(|count| (0..=KV4_BLOCK).map(move |tokens| (count, tokens)));
    for ((count, tokens), at_end) in shapes.flat_map(|shape| [(shape, false), (shape, true)]) {
        let input = Input::random(&mut random, (count, tokens.max(1)), &[0, 4, 5, 6, 16]);
        let channels = input.channels();
        let nibbles: Vec<u8> = (0..count * tokens / 2).map(|_| random.byte()).collect();
        let block: Vec<u8> = (0..input.upper_bytes()).map(|_| random.byte()).collect();
        let mut expected = std::vec![0; count * tokens];
        decode(&channels, &nibbles, &block, &mut expected);
        for group in 0..count / GROUP {
            // From the group's first channel in the first token to its last one in the last token.
            let first = group * GROUP;
            let length = (tokens * count).saturating_sub(count - GROUP);
            let [scales, upper, codes, values] = &mut memory;
            let scales = scales_of(&channels, scales.at(at_end, 3 * CHANNELS_MAX));
            let upper = upper.at::<[u8; GROUP]>(at_end, 2);
            upper.copy_from_slice(&upper_of_group(&Upper::new(&channels), group, &block));
            let codes = codes.at(at_end, length / 2);
            codes.copy_from_slice(&nibbles[nibbles.len().min(first / 2)..][..length / 2]);
            let values = values.at::<u16>(at_end, length);
            values.fill(0xAAAA);
            let scales = scales[first..].as_ptr() as u64;
            let pointers = [upper.as_ptr() as u64, codes.as_ptr() as u64];
            let to = values.as_mut_ptr() as u64;
            let arguments = [scales, pointers[0], pointers[1], to, count as u64, tokens as u64];
            // SAFETY: the tokens of a group, from its first channel on, in the layout that the
            // function wants; the CPU has what it needs.
            let outcome = unsafe { checked_call(function, arguments) };
            assert_eq!(outcome.trashed, 0, "{count} {tokens} {group}");
            for (at, &value) in values.iter().enumerate() {
                let of_group = at % count < GROUP;
                let expected = if of_group { expected[first + at] } else { 0xAAAA };
                assert_eq!(value, expected, "{count} {tokens} {group} {at}");
            }
        }
    }
}

/// What codes stand for, as the assembly wants it.
#[cfg(target_arch = "x86_64")]
fn scales_of<'a>(channels: &Kv4Channels<'_>, to: &'a mut [f32]) -> &'a [f32] {
    let Scales { min, max, step } = Scales::new(channels);
    to.copy_from_slice([min, max, step].as_flattened());
    to
}

/// The same in F16.
#[cfg(target_arch = "aarch64")]
fn scales_of<'a>(channels: &Kv4Channels<'_>, to: &'a mut [u16]) -> &'a [u16] {
    use crate::kernel::arch::kv4_fp16::Halves;
    let Halves { min, max, step } = Halves::new(channels, &Scales::new(channels));
    to.copy_from_slice([min, max, step].as_flattened());
    to
}
