//! Symbols to streams.

use super::{Cdfs, LANES, SYMBOLS, bits_settled, share, shifted, widened};
use crate::limits::CHUNK_TOKENS;

/// Bits that one symbol can take: a share is at least 2^-16 of a span above 2^30.
const SYMBOL_BITS_MAX: u32 = 18;

/// Room for a stream: the longest, and what a store of eight bytes writes behind it.
pub const STREAM_BYTES_MAX: usize = (CHUNK_TOKENS as usize * SYMBOL_BITS_MAX as usize) / 8 + 16;

/// Where streams end.
pub type Ends = [usize; LANES];

type Run = unsafe fn(&[[u8; LANES]], &Cdfs, &mut [[u8; STREAM_BYTES_MAX]; LANES], &mut Ends);

/// Symbols to streams.
#[derive(Clone, Copy, Debug)]
pub struct CacheGenEncode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: Run,
}

impl CacheGenEncode {
    pub(in crate::kernel) const PORTABLE: CacheGenEncode = CacheGenEncode { isa: "portable", run };

    /// Writes each lane's symbols, one of each row, and returns the bytes of the streams. Symbols
    /// are below 31, modulo 32, and the frequencies increase strictly. What a stream's room holds
    /// behind it is not defined.
    pub fn call(
        &self,
        symbols: &[[u8; LANES]],
        cdfs: &Cdfs,
        streams: &mut [[u8; STREAM_BYTES_MAX]; LANES],
    ) -> Ends {
        assert!(symbols.len() <= usize::from(CHUNK_TOKENS));
        let mut ends = [0; LANES];
        // SAFETY: the flags given to `Kernels::select` promise the CPU; all else is safe code.
        unsafe { (self.run)(symbols, cdfs, streams, &mut ends) };
        ends
    }
}

/// Streams that are being written.
struct Lanes {
    /// The least number that may follow.
    low: [u32; LANES],
    /// From it to the greatest.
    range: [u32; LANES],
    /// The bits that have left the least number since the last store, and on top of them the carry
    /// into what was stored.
    settled: [u64; LANES],
    /// How many these are, without the carry.
    held: [u32; LANES],
    ends: Ends,
}

/// Bits that may be held before a symbol.
const HELD_MAX: u32 = 62 - SYMBOL_BITS_MAX;

impl Lanes {
    /// Stores whole bytes.
    #[inline(always)]
    fn store(&mut self, streams: &mut [[u8; STREAM_BYTES_MAX]; LANES]) {
        for (lane, stream) in streams.iter_mut().enumerate() {
            let (settled, held, end) = (self.settled[lane], self.held[lane], self.ends[lane]);
            if settled >> held != 0 {
                carry(&mut stream[..end]);
            }
            stream[end..end + 8].copy_from_slice(&(settled << 1 << (63 - held)).to_be_bytes());
            self.ends[lane] += (held / 8) as usize;
            self.held[lane] = held % 8;
            self.settled[lane] = settled & !(u64::MAX << (held % 8));
        }
    }
}

/// Adds one to the number that the bytes are.
#[inline(always)]
fn carry(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return;
        }
    }
}

#[inline(always)]
pub(super) fn run(
    symbols: &[[u8; LANES]],
    cdfs: &Cdfs,
    streams: &mut [[u8; STREAM_BYTES_MAX]; LANES],
    ends: &mut Ends,
) {
    let mut lanes = Lanes {
        low: [0; LANES],
        range: [u32::MAX; LANES],
        settled: [0; LANES],
        // The least number's own top bit.
        held: [1; LANES],
        ends: [0; LANES],
    };
    for symbols in symbols {
        let (mut from, mut to) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            let symbol = usize::from(symbols[lane]) % SYMBOLS;
            (from[lane], to[lane]) = (cdfs[symbol][lane], cdfs[symbol + 1][lane]);
        }
        if lanes.held.iter().fold(0, |most, &held| most.max(held)) > HELD_MAX {
            lanes.store(streams);
        }
        for lane in 0..LANES {
            let range = lanes.range[lane];
            let start = share(range, from[lane]);
            let range = share(range, to[lane]) - start - 1;
            let low = lanes.low[lane] + start;
            let bits = bits_settled(low, range);
            // The bit on top of the least number is its last settled one.
            lanes.settled[lane] = (lanes.settled[lane] << bits) + (u64::from(low) << bits >> 31);
            lanes.held[lane] += bits;
            lanes.low[lane] = shifted(low, bits);
            lanes.range[lane] = widened(range, bits);
        }
    }
    // The next quarter behind the least number lies within.
    for lane in 0..LANES {
        let quarter = u64::from(lanes.low[lane] >> 30);
        lanes.settled[lane] = (lanes.settled[lane] << 1 | quarter) + 1;
        lanes.held[lane] += 1;
    }
    lanes.store(streams);
    for (end, (stored, held)) in ends.iter_mut().zip(lanes.ends.iter().zip(&lanes.held)) {
        *end = stored + usize::from(*held > 0);
    }
}
