//! Streams back to symbols.

use super::{Cdfs, LANES, SYMBOLS, bits_settled, share, shifted, widened};
use crate::kernel::huffman::window;
use crate::limits::CHUNK_TOKENS;

/// Bytes that follow a stream: decoding looks ahead.
pub const BYTES_BEHIND_STREAMS: usize = 16;

/// Bits of a window that are sure to be there.
const WINDOW_BITS: u32 = 57;
/// Bits that one symbol can take: a share is at least 2^-16 of a span above 2^30.
const SYMBOL_BITS_MAX: u32 = 18;

/// Where one stream stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

type Run = unsafe fn(&[u8], &mut Lanes, &Cdfs, u16, &mut [[i16; LANES]]);

/// Streams to symbols.
#[derive(Clone, Copy, Debug)]
pub struct CacheGenDecode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: Run,
}

impl CacheGenDecode {
    pub(in crate::kernel) const PORTABLE: CacheGenDecode = CacheGenDecode { isa: "portable", run };

    /// Reads one symbol of each lane for every row of `codes`, where it stands less the middle one
    /// of those below `symbols`. There are up to [`LANES`] streams, further lanes repeat the first.
    /// The frequencies increase strictly, the bytes may be any; [`BYTES_BEHIND_STREAMS`] of them
    /// follow the last stream. False when a symbol is not below `symbols`, or a stream other than
    /// encoding would write it; the codes then have no meaning.
    pub fn call(
        &self,
        bytes: &[u8],
        streams: &[Stream],
        cdfs: &Cdfs,
        symbols: u16,
        codes: &mut [[i16; LANES]],
    ) -> bool {
        assert!((1..=LANES).contains(&streams.len()) && codes.len() <= usize::from(CHUNK_TOKENS));
        assert!((2..SYMBOLS).contains(&usize::from(symbols)));
        for stream in streams {
            let end = bytes.len().checked_sub(BYTES_BEHIND_STREAMS);
            assert!(stream.start <= stream.end && end.is_some_and(|end| stream.end <= end));
        }
        let mut lanes = Lanes::new(bytes, streams);
        // SAFETY: the flags given to `Kernels::select` promise the CPU; all else is safe code.
        unsafe { (self.run)(bytes, &mut lanes, cdfs, symbols, codes) };
        let mut sound = lanes.greatest.iter().take(streams.len()).all(|&found| found < symbols);
        for (lane, stream) in streams.iter().enumerate() {
            sound &= lanes.ended(lane, stream);
        }
        sound
    }
}

/// Streams that are being read.
#[derive(Debug)]
pub struct Lanes {
    /// The least number that may follow.
    low: [u32; LANES],
    /// From it to the greatest.
    range: [u32; LANES],
    /// From it to the number that follows.
    offset: [u32; LANES],
    /// Bits behind that number, the next one on top.
    windows: [u64; LANES],
    /// Bits that have left the window.
    taken: [u32; LANES],
    /// Where the window began.
    bit: [usize; LANES],
    /// The greatest symbol.
    greatest: [u16; LANES],
}

impl Lanes {
    fn new(bytes: &[u8], streams: &[Stream]) -> Lanes {
        let mut lanes = Lanes {
            low: [0; LANES],
            range: [u32::MAX; LANES],
            offset: [0; LANES],
            windows: [0; LANES],
            taken: [0; LANES],
            bit: [8 * streams[0].start; LANES],
            greatest: [0; LANES],
        };
        for (bit, stream) in lanes.bit.iter_mut().zip(streams) {
            *bit = 8 * stream.start;
        }
        lanes.refill(bytes);
        for lane in 0..LANES {
            lanes.offset[lane] = high_word(lanes.windows[lane]);
            lanes.windows[lane] <<= 32;
            lanes.taken[lane] = 32;
        }
        lanes
    }

    #[inline(always)]
    fn refill(&mut self, bytes: &[u8]) {
        for lane in 0..LANES {
            self.bit[lane] += self.taken[lane] as usize;
            self.taken[lane] = 0;
            self.windows[lane] = window(bytes, self.bit[lane]);
        }
    }

    /// Whether a stream ends where its symbols do: what follows is the two bits that name the
    /// quarter, and zeros up to a whole byte.
    fn ended(&self, lane: usize, stream: &Stream) -> bool {
        const QUARTER: u32 = 1 << 30;
        // The number that follows is 32 bits long.
        let bit = self.bit[lane] + self.taken[lane] as usize - 32;
        let left = (8 * stream.end).wrapping_sub(bit);
        let low = self.low[lane];
        let last = low.wrapping_add(self.offset[lane]);
        let quarter = if low < QUARTER { 1 } else { 2 };
        match left {
            2..=9 => last >> (32 - left) == quarter << (left - 2),
            _ => false,
        }
    }
}

#[inline(always)]
fn high_word(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The frequency that the number that follows stands for: `floor((2^16 (offset + 1) - 1) / (range +
/// 1))`, which is below 2^16 as long as the offset is within the range. Another one in place of
/// 2^16 - 1, which no share holds, so that the symbol is the last one, which is refused, and its
/// share is not empty.
///
/// The quotient in F64, less one half, is rounded to an integer. No quotient with half a unit more
/// above is an integer, and the next one is 2^-33 away, so that two roundings do not reach it.
#[inline(always)]
fn frequency_of(offset: u32, range: u32) -> u16 {
    /// Added to it, a small number is rounded to an integer, which the low bits then hold.
    const ROUNDER: f64 = 6_755_399_441_055_744.0;
    let span = f64::from(range) + 1.0;
    let above = f64::from(offset) * 65536.0 + 65535.5;
    let [low, high, ..] = ((above - 0.5 * span) / span + ROUNDER).to_bits().to_le_bytes();
    u16::from_le_bytes([low, high]).min(u16::MAX - 1)
}

/// The symbols in whose shares the frequencies are, and where the shares begin and end.
///
/// The distance from a beginning up to the frequency, modulo 2^16, is at most the frequency for the
/// symbol's own and those before, and greater for those behind. So the least of all belongs to the
/// symbol's own, and the greatest to the next one.
#[inline(always)]
fn search(
    frequencies: &[u16; LANES],
    cdfs: &Cdfs,
    symbols: u16,
) -> ([u16; LANES], [u16; LANES], [u16; LANES]) {
    let (mut found, mut least, mut greatest) = ([0; LANES], *frequencies, [0; LANES]);
    for lane in 0..LANES {
        greatest[lane] = frequencies[lane].wrapping_sub(u16::MAX);
    }
    for cdf in &cdfs[1..=usize::from(symbols)] {
        for lane in 0..LANES {
            let distance = frequencies[lane].wrapping_sub(cdf[lane]);
            found[lane] += u16::from(cdf[lane] <= frequencies[lane]);
            least[lane] = least[lane].min(distance);
            greatest[lane] = greatest[lane].max(distance);
        }
    }
    for lane in 0..LANES {
        least[lane] = frequencies[lane].wrapping_sub(least[lane]);
        greatest[lane] = frequencies[lane].wrapping_sub(greatest[lane]);
    }
    (found, least, greatest)
}

#[inline(always)]
pub(super) fn run(
    bytes: &[u8],
    lanes: &mut Lanes,
    cdfs: &Cdfs,
    symbols: u16,
    codes: &mut [[i16; LANES]],
) {
    let middle = (symbols / 2).cast_signed();
    for codes in codes {
        let mut frequencies = [0; LANES];
        let places = lanes.offset.iter().zip(&lanes.range);
        for (frequency, (&offset, &range)) in frequencies.iter_mut().zip(places) {
            *frequency = frequency_of(offset, range);
        }
        let (found, from, to) = search(&frequencies, cdfs, symbols);
        for lane in 0..LANES {
            codes[lane] = found[lane].cast_signed() - middle;
            lanes.greatest[lane] = lanes.greatest[lane].max(found[lane]);
        }
        if lanes.taken.iter().fold(0, |most, &taken| most.max(taken))
            > WINDOW_BITS - SYMBOL_BITS_MAX
        {
            lanes.refill(bytes);
        }
        let mut bits = [0; LANES];
        for lane in 0..LANES {
            let range = lanes.range[lane];
            let start = share(range, from[lane]);
            let range = share(range, to[lane]) - start - 1;
            let low = lanes.low[lane] + start;
            bits[lane] = bits_settled(low, range);
            lanes.low[lane] = shifted(low, bits[lane]);
            lanes.range[lane] = widened(range, bits[lane]);
            lanes.offset[lane] = lanes.offset[lane].wrapping_sub(start) << bits[lane];
            lanes.taken[lane] += bits[lane];
        }
        let windows = lanes.windows.iter_mut().zip(&mut lanes.offset);
        for ((window, offset), &bits) in windows.zip(&bits) {
            *offset |= high_word(*window >> 1) >> (31 - bits);
            *window <<= bits;
        }
    }
}
