//! The arithmetic of CacheGen's release: values to symbols, and streams of arithmetic codes with
//! fixed frequencies, many at once.
//!
//! A stream holds the symbols of one channel, the first bit on top of a byte. Its coder keeps the
//! least and the greatest of the 32-bit numbers that may follow. A symbol narrows them to its share
//! of the frequencies, `floor(span * cdf / 2^16)` at both ends. Then, as long as both begin with
//! the same bit, or lie in the two middle quarters, a bit is shifted out. At the end two bits name
//! a quarter within, and zeros fill the byte.
//!
//! [`LANES`] streams are coded in step: each loop goes through all of them and has neither a branch
//! nor a division of integers, so that the compiler makes vectors of it. The shift is counted at
//! once, and a symbol is found by comparing all of its channel's frequencies. `tests` holds the
//! plain coder, bit by bit, which is the oracle.
//!
//! Invariant: whatever the bytes are, decoding reads inside them and ends, and it succeeds only for
//! the very bytes that encoding the same symbols would give.

mod decode;
mod encode;
mod quantize;
#[cfg(test)]
mod tests;

#[cfg_attr(all(target_arch = "x86_64", target_feature = "sse2"), path = "x86_64.rs")]
#[cfg_attr(not(all(target_arch = "x86_64", target_feature = "sse2")), path = "../no_arch.rs")]
mod arch;

pub(super) use arch::improve;
pub use decode::{BYTES_BEHIND_STREAMS, CacheGenDecode, Stream};
pub use encode::{CacheGenEncode, Ends, STREAM_BYTES_MAX};
pub use quantize::{CacheGenQuantize, CodeSteps};

/// Streams that are coded at once.
pub const LANES: usize = 32;

/// Symbols that frequencies are given for. The last one has whatever is left up to 2^16.
pub const SYMBOLS: usize = 32;

/// Where the shares of each lane's symbols begin, in parts of 2^16; the last entry is 2^16 - 1.
pub type Cdfs = [[u16; LANES]; SYMBOLS + 1];

/// Where a share ends, or begins: `floor((range + 1) * cdf / 2^16)`. No step exceeds 32 bits.
#[inline(always)]
fn share(range: u32, cdf: u16) -> u32 {
    let cdf = u32::from(cdf);
    (range >> 16) * cdf + (((range & 0xFFFF) * cdf + cdf) >> 16)
}

/// How many bits leave the numbers from `low` to `low + range`. First those with which all begin.
/// Then, behind a 0 of the least and a 1 of the greatest, as many as are 1 and 0 after these: the
/// last of both kinds is the first difference that no such bit follows.
#[inline(always)]
fn bits_settled(low: u32, range: u32) -> u32 {
    let high = low + range;
    ((low ^ high) & !((low & !high) << 1)).leading_zeros()
}

/// What is left of the least number when bits leave it.
#[inline(always)]
fn shifted(low: u32, bits: u32) -> u32 {
    low << bits & (u32::MAX >> 1)
}

/// The same for the distance of the greatest from it, into which ones follow.
#[inline(always)]
fn widened(range: u32, bits: u32) -> u32 {
    range << bits | !(u32::MAX << bits)
}
