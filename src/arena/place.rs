//! Placement ([`Arena`]) and its twin, the size query ([`Sizer`]).

use super::ARENA_ALIGN;
use crate::error::{Code, Error, Result};
use core::mem::{MaybeUninit, align_of, needs_drop, size_of};

/// Adds up what an [`Arena`] will need. Call the same methods in the same order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizer {
    used: usize,
}

impl Sizer {
    /// Nothing yet.
    pub const fn new() -> Self {
        Sizer { used: 0 }
    }

    /// Room for `count` values.
    pub fn slice<T>(&mut self, count: usize) -> Result<()> {
        let bytes = size_of::<T>().checked_mul(count).ok_or(TOO_LARGE)?;
        self.used = end_of(self.used, bytes, align_of::<T>())?;
        Ok(())
    }

    /// Room for one value.
    pub fn value<T>(&mut self) -> Result<()> {
        self.slice::<T>(1)
    }

    /// Room for `count` bytes at an alignment.
    pub fn bytes(&mut self, count: usize, align: usize) -> Result<()> {
        self.used = end_of(self.used, count, align)?;
        Ok(())
    }

    /// Bytes placed so far, without the slack for aligning the start.
    pub const fn used(&self) -> usize {
        self.used
    }

    /// The size of a memory, at any alignment, that surely suffices.
    pub fn required(&self) -> Result<usize> {
        self.used.checked_add(ARENA_ALIGN - 1).ok_or(TOO_LARGE)
    }
}

const TOO_LARGE: Error = Error::new(Code::LimitExceeded, "arena size");

fn end_of(used: usize, bytes: usize, align: usize) -> Result<usize> {
    assert!(align.is_power_of_two());
    assert!(align <= ARENA_ALIGN);
    let start = used.checked_next_multiple_of(align).ok_or(TOO_LARGE)?;
    start.checked_add(bytes).ok_or(TOO_LARGE)
}

/// Hands out pieces of the caller's memory until it is sealed.
#[derive(Debug)]
pub struct Arena {
    /// What is left; its start is aligned to [`ARENA_ALIGN`] less `used`.
    rest: &'static mut [MaybeUninit<u8>],
    used: usize,
}

impl Arena {
    /// Takes the memory over. Its start is aligned up to [`ARENA_ALIGN`].
    pub fn new(memory: &'static mut [MaybeUninit<u8>]) -> Result<Self> {
        let skip = memory.as_ptr().align_offset(ARENA_ALIGN);
        match memory.split_at_mut_checked(skip) {
            Some((_, rest)) => Ok(Arena { rest, used: 0 }),
            None => Err(Error::new(Code::MemoryTooSmall, "memory").with(skip)),
        }
    }

    fn take(&mut self, bytes: usize, align: usize) -> Result<&'static mut [MaybeUninit<u8>]> {
        let end = end_of(self.used, bytes, align)?;
        let rest = core::mem::take(&mut self.rest);
        if end - self.used > rest.len() {
            let missing = end - self.used - rest.len();
            self.rest = rest;
            return Err(Error::new(Code::MemoryTooSmall, "memory").with(missing));
        }
        let (piece, rest) = rest.split_at_mut(end - self.used);
        let pad = piece.len() - bytes;
        self.rest = rest;
        self.used = end;
        let piece = &mut piece[pad..];
        assert!(piece.as_ptr().addr().is_multiple_of(align));
        Ok(piece)
    }

    /// A slice of `count` values, each made by `make(index)`. The values are never dropped.
    pub fn slice<T>(
        &mut self,
        count: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<&'static mut [T]> {
        const { assert!(!needs_drop::<T>()) };
        let bytes = size_of::<T>().checked_mul(count).ok_or(TOO_LARGE)?;
        let piece = self.take(bytes, align_of::<T>())?;
        let first = piece.as_mut_ptr().cast::<T>();
        for index in 0..count {
            // SAFETY: `piece` is `count` times the size of T, aligned for T (asserted in `take`),
            // exclusively ours for 'static, and index < count.
            unsafe { first.add(index).write(make(index)) };
        }
        // SAFETY: all `count` values were just written; the piece left `rest` for good, so nothing
        // else refers to it.
        Ok(unsafe { core::slice::from_raw_parts_mut(first, count) })
    }

    /// One value.
    pub fn value<T>(&mut self, value: T) -> Result<&'static mut T> {
        const { assert!(!needs_drop::<T>()) };
        let piece = self.take(size_of::<T>(), align_of::<T>())?;
        let place = piece.as_mut_ptr().cast::<T>();
        // SAFETY: `piece` has the size of T, is aligned for T (asserted in `take`) and exclusively
        // ours for 'static.
        unsafe {
            place.write(value);
            Ok(&mut *place)
        }
    }

    /// Zeroed bytes at an alignment.
    pub fn bytes(&mut self, count: usize, align: usize) -> Result<&'static mut [u8]> {
        let piece = self.take(count, align)?;
        piece.fill(MaybeUninit::new(0));
        // SAFETY: every byte was just initialised, and the piece is exclusively ours.
        Ok(unsafe { core::slice::from_raw_parts_mut(piece.as_mut_ptr().cast::<u8>(), count) })
    }

    /// Ends placement and says how many bytes were used, as [`Sizer::used`] counts them.
    pub fn seal(self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec;

    fn memory(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
        Box::leak(vec![MaybeUninit::new(0xA5u8); bytes].into_boxed_slice())
    }

    #[test]
    fn sizer_and_arena_agree_at_every_start_alignment() {
        let mut sizer = Sizer::new();
        sizer.slice::<u8>(3).unwrap();
        sizer.slice::<u64>(5).unwrap();
        sizer.bytes(100, 4096).unwrap();
        sizer.slice::<u16>(7).unwrap();
        for skew in [0, 1, 64, 4095] {
            let memory = &mut memory(sizer.required().unwrap() + skew)[skew..];
            let mut arena = Arena::new(memory).unwrap();
            arena.slice(3, |i| i as u8).unwrap();
            assert_eq!(arena.slice(5, |i| i as u64).unwrap(), &[0, 1, 2, 3, 4]);
            let bytes = arena.bytes(100, 4096).unwrap();
            assert_eq!(bytes.as_ptr().addr() % 4096, 0);
            assert!(bytes.iter().all(|b| *b == 0));
            assert_eq!(arena.slice(7, |i| i as u16).unwrap()[6], 6);
            assert_eq!(arena.seal(), sizer.used());
        }
    }

    #[test]
    fn too_little_memory_is_an_error_that_says_how_much_is_missing() {
        let mut arena = Arena::new(memory(4096 + 4095)).unwrap();
        let error = arena.bytes(1 << 20, 64).unwrap_err();
        assert_eq!(error.code, Code::MemoryTooSmall);
        assert!(error.value > 0);
        // What fits still fits.
        assert_eq!(*arena.value(7u32).unwrap(), 7);
    }

    #[test]
    fn overflow_is_an_error() {
        assert!(Sizer::new().slice::<u64>(usize::MAX).is_err());
        let mut arena = Arena::new(memory(8192)).unwrap();
        assert!(arena.slice::<u64>(usize::MAX, |_| 0).is_err());
    }
}
