//! What a row costs under each table, and writing it.

use super::tables::{COSTS, Codes, Costs, ENCODE, INDICES, LENGTH_MAX, PADDING, TABLES, clamped};
use crate::limits::CHUNK_TOKENS;

/// Room for a row's codes: the longest row, and what a store of eight bytes writes behind it.
pub const ROW_BYTES_MAX: usize = (CHUNK_TOKENS as usize * LENGTH_MAX as usize).div_ceil(8) + 8;

/// Codes between two stores: with the 7 bits that may be left they fit 64.
pub(super) const CODES_PER_STORE: usize = 4;

const _: () = assert!(CODES_PER_STORE * LENGTH_MAX as usize + 7 <= 64);

/// The residuals of a row, in the form in which they are looked up, and behind them what costs
/// nothing and has no code.
#[derive(Clone, Copy, Debug)]
pub struct Indices {
    pub(super) indices: [u8; CHUNK_TOKENS as usize],
    pub(super) count: usize,
}

impl Indices {
    /// Of a row of up to 256 residuals.
    pub fn new(residuals: &[i16]) -> Indices {
        let mut indices = [PADDING; CHUNK_TOKENS as usize];
        let count = residuals.len();
        for (index, &residual) in indices[..count].iter_mut().zip(residuals) {
            *index = clamped(residual);
        }
        Indices { indices, count }
    }

    pub(super) fn row(&self) -> &[u8] {
        &self.indices[..self.count]
    }
}

/// The table with the least cost, the narrowest of equals, and the cost.
pub fn cheapest(costs: &Costs) -> (usize, usize) {
    let mut cheapest = 0;
    for table in 1..TABLES {
        if costs[table] < costs[cheapest] {
            cheapest = table;
        }
    }
    (cheapest, usize::from(costs[cheapest]))
}

/// Rows to prefix codes.
#[derive(Clone, Copy, Debug)]
pub struct HuffmanEncode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) costs: unsafe fn(&Indices) -> Costs,
    pub(super) write: unsafe fn(&Indices, &Codes, &mut [u8; ROW_BYTES_MAX]) -> usize,
}

impl HuffmanEncode {
    pub(in crate::kernel) const PORTABLE: HuffmanEncode =
        HuffmanEncode { isa: "portable", costs, write };

    /// What the row costs under each table.
    pub fn costs(&self, row: &Indices) -> Costs {
        // SAFETY: any indices are allowed; the flags given to `Kernels::select` promise the CPU.
        unsafe { (self.costs)(row) }
    }

    /// Writes the row's codes, zero bits up to a whole byte, and returns the bytes. What `bytes`
    /// holds behind them is not defined.
    pub fn write(&self, row: &Indices, table: usize, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
        // SAFETY: any indices are allowed; the flags given to `Kernels::select` promise the CPU.
        unsafe { (self.write)(row, &ENCODE[table], bytes) }
    }
}

pub(super) fn costs(row: &Indices) -> Costs {
    // The longest row costs 256 * 26 bits, which fits.
    let mut sums = [0; 16];
    for &index in row.row() {
        for (sum, cost) in sums.iter_mut().zip(&COSTS[usize::from(index % INDICES)]) {
            *sum += cost;
        }
    }
    sums
}

/// A code or several, and their number of bits.
#[derive(Clone, Copy)]
pub(super) struct Bits {
    pub bits: u64,
    pub count: u32,
}

impl Bits {
    const NONE: Bits = Bits { bits: 0, count: 0 };

    #[inline(always)]
    fn of(codes: &Codes, index: u8) -> Bits {
        let code = codes[usize::from(index % INDICES)];
        Bits { bits: u64::from(code >> 4), count: u32::from(code & 15) }
    }

    #[inline(always)]
    pub(super) fn then(self, next: Bits) -> Bits {
        Bits { bits: self.bits << next.count | next.bits, count: self.count + next.count }
    }
}

/// A row that is being written.
pub(super) struct Writer<'a> {
    bytes: &'a mut [u8; ROW_BYTES_MAX],
    /// The last bits, of which the first ones have been written.
    bits: Bits,
    /// Where those go that do not fill a byte.
    at: usize,
}

impl<'a> Writer<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a mut [u8; ROW_BYTES_MAX]) -> Self {
        Writer { bytes, bits: Bits::NONE, at: 0 }
    }

    /// At most 57 bits. Without any before them and among them, what is written means nothing.
    #[inline(always)]
    pub(super) fn put(&mut self, group: Bits) {
        self.bits = self.bits.then(group);
        let word = self.bits.bits.wrapping_shl(64 - self.bits.count);
        self.bytes[self.at..self.at + 8].copy_from_slice(&word.to_be_bytes());
        self.at += (self.bits.count / 8) as usize;
        self.bits.count %= 8;
    }

    #[inline(always)]
    pub(super) fn end(self) -> usize {
        self.at + usize::from(self.bits.count > 0)
    }
}

/// Codes are joined in pairs and fours before they are joined to the row: only that must wait.
#[inline(always)]
pub(super) fn write(row: &Indices, codes: &Codes, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
    let mut writer = Writer::new(bytes);
    let (fours, rest) = row.row().as_chunks::<CODES_PER_STORE>();
    for four in fours {
        let &[a, b, c, d] = four;
        let first = Bits::of(codes, a).then(Bits::of(codes, b));
        writer.put(first.then(Bits::of(codes, c).then(Bits::of(codes, d))));
    }
    for &index in rest {
        writer.put(Bits::of(codes, index));
    }
    writer.end()
}
