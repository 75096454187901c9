//! The arithmetic coder of CacheGen's release as it is written down: one division a symbol, one bit
//! at a time, bits that are pending. The oracle of `kernel::cachegen`, and what it is measured
//! against.

use std::vec::Vec;

const HALF: u32 = 1 << 31;
const QUARTER: u32 = 1 << 30;

/// The share of a symbol in the numbers from `low` to `high`.
fn narrow(low: &mut u32, high: &mut u32, from: u16, to: u16) {
    let span = u64::from(*high) - u64::from(*low) + 1;
    *high = low.wrapping_sub(1).wrapping_add(((span * u64::from(to)) >> 16) as u32);
    *low += ((span * u64::from(from)) >> 16) as u32;
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: usize,
    pending: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.used.is_multiple_of(8) {
            self.bytes.push(0);
        }
        self.bytes[self.used / 8] |= u8::from(bit) << (7 - self.used % 8);
        self.used += 1;
    }

    /// A bit that is known now, and with it the pending ones.
    fn settle(&mut self, bit: bool) {
        self.push(bit);
        for _ in 0..core::mem::take(&mut self.pending) {
            self.push(!bit);
        }
    }
}

pub(crate) fn encode(symbols: &[u8], cdf: &[u16]) -> Vec<u8> {
    let mut bits = Bits::default();
    let (mut low, mut high) = (0, u32::MAX);
    for &symbol in symbols {
        let symbol = usize::from(symbol);
        narrow(&mut low, &mut high, cdf[symbol], cdf[symbol + 1]);
        loop {
            if high < HALF {
                bits.settle(false);
            } else if low >= HALF {
                bits.settle(true);
            } else if low >= QUARTER && high < HALF + QUARTER {
                bits.pending += 1;
                (low, high) = (low - QUARTER, high - QUARTER);
            } else {
                break;
            }
            (low, high) = (low << 1, high << 1 | 1);
        }
    }
    bits.pending += 1;
    bits.settle(low >= QUARTER);
    bits.bytes
}

/// Zeros are read behind the bytes.
pub(crate) fn decode(bytes: &[u8], cdf: &[u16], symbols: &mut [u8]) {
    let mut at = 0;
    let mut next = || {
        let byte = bytes.get(at / 8).copied().unwrap_or(0);
        at += 1;
        u32::from(byte >> (7 - (at - 1) % 8) & 1)
    };
    let mut value = (0..32).fold(0, |value, _| value << 1 | next());
    let (mut low, mut high) = (0, u32::MAX);
    for symbol in symbols {
        let span = u64::from(high) - u64::from(low) + 1;
        let count = ((u64::from(value) - u64::from(low) + 1) * 0x10000 - 1) / span;
        let found = cdf[..cdf.len() - 1].partition_point(|&start| u64::from(start) <= count) - 1;
        *symbol = found as u8;
        narrow(&mut low, &mut high, cdf[found], cdf[found + 1]);
        loop {
            if low >= QUARTER && high < HALF + QUARTER {
                (low, high, value) = (low - QUARTER, high - QUARTER, value - QUARTER);
            } else if high >= HALF && low < HALF {
                break;
            }
            (low, high, value) = (low << 1, high << 1 | 1, value << 1 | next());
        }
    }
}
