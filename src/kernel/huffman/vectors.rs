//! What writing codes by vectors has in common on all architectures: costs in the order in which
//! vectors look them up, and codes that have been joined by fours.
//!
//! Rows are filled up to whole blocks with what costs nothing and has no code, so that vectors have
//! no rest. Bringing each four to its place in the row must wait for the one before; that is done
//! here, and nothing else is.

use super::encode::{Bits, CODES_PER_STORE, Indices, ROW_BYTES_MAX, Writer};
use super::tables::{self, ENCODE, INDICES, PADDING, TABLES};
use crate::limits::CHUNK_TOKENS;

/// For each table, what each index costs.
pub(super) static COSTS: [[u8; INDICES as usize]; TABLES] = costs();

/// As many of them fit a byte when they are added up, which AVX-512 relies on.
const COSTS_PER_BYTE: u16 = 4;

#[expect(clippy::cast_possible_truncation, reason = "as asserted")]
const fn costs() -> [[u8; INDICES as usize]; TABLES] {
    let by_index = tables::costs();
    let mut by_table = [[0; INDICES as usize]; TABLES];
    let mut table = 0;
    while table < TABLES {
        let mut index = 0;
        while index < by_index.len() {
            assert!(by_index[index][table] <= u8::MAX as u16 / COSTS_PER_BYTE);
            by_table[table][index] = by_index[index][table] as u8;
            index += 1;
        }
        assert!(by_table[table][PADDING as usize] == 0 && ENCODE[table][PADDING as usize] == 0);
        table += 1;
    }
    by_table
}

impl Indices {
    /// As many blocks of this size as hold the row; the last one may be filled up.
    #[inline(always)]
    pub(super) fn blocks<const SIZE: usize>(&self) -> &[[u8; SIZE]] {
        const { assert!((CHUNK_TOKENS as usize).is_multiple_of(SIZE)) };
        &self.indices.as_chunks().0[..self.count.div_ceil(SIZE)]
    }
}

/// Of a four, so that two of them can be written at once.
const PAIRED_BITS_MAX: u64 = 57 / 2;

/// A row's codes by fours: each is the codes, and in the lowest [`Fours::COUNT_BITS`] bits the
/// number of bits that these take.
pub(super) struct Fours([u64; CHUNK_TOKENS as usize / CODES_PER_STORE]);

impl Fours {
    /// Bits of a number of bits.
    pub(super) const COUNT_BITS: u32 = 8;

    #[inline(always)]
    pub(super) fn new() -> Self {
        Fours([0; CHUNK_TOKENS as usize / CODES_PER_STORE])
    }

    /// Where the fours of each block go.
    #[inline(always)]
    pub(super) fn blocks<const SIZE: usize>(&mut self) -> &mut [[u64; SIZE]] {
        self.0.as_chunks_mut().0
    }

    /// Writes a row of which these are the fours and `longest` the bits of the longest; returns its
    /// bytes.
    #[inline(always)]
    pub(super) fn write(
        &self,
        row: &Indices,
        longest: u64,
        bytes: &mut [u8; ROW_BYTES_MAX],
    ) -> usize {
        let bits_of = |word: u64| {
            let [count, ..] = word.to_le_bytes();
            Bits { bits: word >> Self::COUNT_BITS, count: count.into() }
        };
        let mut writer = Writer::new(bytes);
        // Behind the row are fours without bits.
        let words = &self.0[..2 * row.count.div_ceil(2 * CODES_PER_STORE)];
        if longest <= PAIRED_BITS_MAX {
            for &[first, second] in words.as_chunks::<2>().0 {
                writer.put(bits_of(first).then(bits_of(second)));
            }
        } else {
            words.iter().for_each(|&word| writer.put(bits_of(word)));
        }
        writer.end()
    }
}
