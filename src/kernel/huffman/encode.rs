//! What a row costs under each table, and writing it.

use super::tables::{COSTS, Codes, Costs, ENCODE, INDICES, LENGTH_MAX, TABLES, clamped};
use crate::limits::CHUNK_TOKENS;

/// Room for a row's codes: the longest row, and what a store of eight bytes writes behind it.
pub const ROW_BYTES_MAX: usize = (CHUNK_TOKENS as usize * LENGTH_MAX as usize).div_ceil(8) + 8;

/// Codes between two stores: with the 7 bits that may be left they fit 64.
const CODES_PER_STORE: usize = 4;

const _: () = assert!(CODES_PER_STORE * LENGTH_MAX as usize + 7 <= 64);

/// The residuals of a row, in the form in which they are looked up.
#[derive(Clone, Copy, Debug)]
pub struct Indices {
    indices: [u8; CHUNK_TOKENS as usize],
    count: usize,
}

impl Indices {
    /// Of a row of up to 256 residuals.
    pub fn new(residuals: &[i16]) -> Indices {
        let mut indices = [0; CHUNK_TOKENS as usize];
        let count = residuals.len();
        for (index, &residual) in indices[..count].iter_mut().zip(residuals) {
            *index = clamped(residual);
        }
        Indices { indices, count }
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
    pub(super) costs: unsafe fn(&[u8]) -> Costs,
    pub(super) write: unsafe fn(&[u8], &Codes, &mut [u8; ROW_BYTES_MAX]) -> usize,
}

impl HuffmanEncode {
    pub(in crate::kernel) const PORTABLE: HuffmanEncode =
        HuffmanEncode { isa: "portable", costs, write };

    /// What the row costs under each table.
    pub fn costs(&self, row: &Indices) -> Costs {
        // SAFETY: any indices are allowed; the flags given to `Kernels::select` promise the CPU.
        unsafe { (self.costs)(&row.indices[..row.count]) }
    }

    /// Writes the row's codes, zero bits up to a whole byte, and returns the bytes. What `bytes`
    /// holds behind them is not defined.
    pub fn write(&self, row: &Indices, table: usize, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
        // SAFETY: any indices are allowed; the flags given to `Kernels::select` promise the CPU.
        unsafe { (self.write)(&row.indices[..row.count], &ENCODE[table], bytes) }
    }
}

pub(super) fn costs(indices: &[u8]) -> Costs {
    // The longest row costs 256 * 26 bits, which fits.
    let mut sums = [0; 16];
    for &index in indices {
        for (sum, cost) in sums.iter_mut().zip(&COSTS[usize::from(index % INDICES)]) {
            *sum += cost;
        }
    }
    sums
}

/// A code or several, and their number of bits.
#[derive(Clone, Copy)]
struct Bits {
    bits: u64,
    count: u32,
}

impl Bits {
    #[inline(always)]
    fn of(codes: &Codes, index: u8) -> Bits {
        let code = codes[usize::from(index % INDICES)];
        Bits { bits: u64::from(code >> 4), count: u32::from(code & 15) }
    }

    #[inline(always)]
    fn then(self, next: Bits) -> Bits {
        Bits { bits: self.bits << next.count | next.bits, count: self.count + next.count }
    }
}

/// Codes are joined in pairs and fours before they are joined to the row: only that must wait.
#[inline(always)]
pub(super) fn write(indices: &[u8], codes: &Codes, bytes: &mut [u8; ROW_BYTES_MAX]) -> usize {
    let mut row = Bits { bits: 0, count: 0 };
    let mut at = 0;
    let (fours, rest) = indices.as_chunks::<CODES_PER_STORE>();
    let mut put = |group: Bits| {
        row = row.then(group);
        bytes[at..at + 8].copy_from_slice(&(row.bits << (64 - row.count)).to_be_bytes());
        at += (row.count / 8) as usize;
        row.count %= 8;
    };
    for four in fours {
        let &[a, b, c, d] = four;
        let first = Bits::of(codes, a).then(Bits::of(codes, b));
        put(first.then(Bits::of(codes, c).then(Bits::of(codes, d))));
    }
    for &index in rest {
        put(Bits::of(codes, index));
    }
    at + usize::from(row.count > 0)
}
