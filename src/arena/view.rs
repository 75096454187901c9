//! Checked views of a byte slice as numbers. Little-endian machines only, like every format here.

use core::mem::{align_of, size_of};

const _: () = assert!(cfg!(target_endian = "little"), "formats are read in place: little-endian");

mod sealed {
    /// Types for which every bit pattern is a value, and that have no padding.
    pub trait Plain: Copy {}
    impl Plain for u8 {}
    impl Plain for i8 {}
    impl Plain for i16 {}
    impl Plain for u16 {}
    impl Plain for u32 {}
    impl Plain for u64 {}
    impl Plain for f32 {}
}

/// The bytes as numbers; `None` when they are misaligned or end inside a number.
pub fn numbers<T: sealed::Plain>(bytes: &[u8]) -> Option<&[T]> {
    if !fits::<T>(bytes) {
        return None;
    }
    // SAFETY: alignment and whole length were checked; T admits every bit pattern (sealed trait).
    Some(unsafe {
        core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>())
    })
}

/// The same for writing.
pub fn numbers_mut<T: sealed::Plain>(bytes: &mut [u8]) -> Option<&mut [T]> {
    if !fits::<T>(bytes) {
        return None;
    }
    let count = bytes.len() / size_of::<T>();
    // SAFETY: alignment and whole length were checked; T admits every bit pattern and has no
    // padding, so any value leaves valid bytes behind.
    Some(unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) })
}

/// Numbers as their bytes.
pub fn bytes_of<T: sealed::Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: T has no padding, and u8 has no alignment to respect.
    unsafe { core::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn fits<T>(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(align_of::<T>())
        && bytes.len().is_multiple_of(size_of::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misaligned_or_ragged_bytes_are_refused() {
        let words = [0x0403_0201u32, 0x0807_0605];
        let bytes = bytes_of(&words);
        assert_eq!(numbers::<u32>(bytes).unwrap(), &words);
        assert!(numbers::<u32>(&bytes[1..5]).is_none());
        assert!(numbers::<u32>(&bytes[..7]).is_none());
        assert_eq!(numbers::<u16>(&bytes[2..6]).unwrap(), &[0x0403, 0x0605]);
    }
}
