//! Rows of codes back to symbols, several at a time.

use super::tables::{
    DECODE, LENGTH_MAX, LENGTHS, LOOKUP_SYMBOLS_MAX, LOOKUPS_PER_LOAD, Lookup, RESIDUAL_MAX, TABLES,
};
use crate::limits::CHUNK_TOKENS;

/// Rows that are read at once.
pub(super) const LANES: usize = 4;

/// Symbols that the look-ups after one load give at most.
const LOAD_SYMBOLS_MAX: usize = LOOKUPS_PER_LOAD * LOOKUP_SYMBOLS_MAX;

/// What one look-up writes, whatever the number of its symbols.
const STORE_BYTES: usize = 8;

/// Distance of two rows of symbols. The look-ups after the last load may go past a row's end.
pub const SYMBOLS_STRIDE: usize = CHUNK_TOKENS as usize + SYMBOLS_SLACK;

const SYMBOLS_SLACK: usize = 40;

const _: () = assert!(LOAD_SYMBOLS_MAX - 1 + STORE_BYTES <= SYMBOLS_SLACK);

/// Bytes that follow a row's: one load can begin in its last byte.
pub const BYTES_BEHIND_ROWS: usize = 8;

/// Where the codes of one row stand.
#[derive(Clone, Copy, Debug, Default)]
pub struct CodedRow {
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
    /// The table, less than [`TABLES`].
    pub table: usize,
}

/// A row that is being read. The hand-written loops know this layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane {
    /// The next bit.
    bit: usize,
    /// Where the next symbol goes.
    at: usize,
    /// Where the row's symbols end; reading may go on past it.
    end: usize,
    table: &'static Lookup,
}

const _: () = assert!(size_of::<Lane>() == 4 * size_of::<usize>());

impl Lane {
    /// The row whose `count` symbols go to the place with that number.
    pub(super) fn new(row: &CodedRow, place: usize, count: usize) -> Lane {
        let at = place * SYMBOLS_STRIDE;
        Lane { bit: 8 * row.start, at, end: at + count, table: &DECODE[row.table] }
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.end
    }

    /// Whether the codes up to the row's last symbol fill its bytes, but for zero bits. What was
    /// read past it is known by its lengths.
    fn filled(&self, bytes: &[u8], row: &CodedRow, symbols: &[u8]) -> bool {
        let lengths = &LENGTHS[row.table];
        let index = |symbol: u8| usize::from(symbol.wrapping_add(RESIDUAL_MAX.to_le_bytes()[0]));
        let past = symbols[self.end..self.at].iter();
        let bits_past: usize = past.map(|&symbol| usize::from(lengths[index(symbol)])).sum();
        let bit = self.bit - bits_past;
        if bit.div_ceil(8) != row.end {
            return false;
        }
        match bit % 8 {
            0 => true,
            used => bytes[row.end - 1] << used == 0,
        }
    }
}

/// The bits from `bit` on, the first one on top; at least 57 of them, or as many as there are. Past
/// the end they have no meaning. There are at least eight bytes.
#[inline(always)]
pub(in crate::kernel) fn window(bytes: &[u8], bit: usize) -> u64 {
    let at = (bit / 8).min(bytes.len() - 8);
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word).wrapping_shl(u32::from(low_byte(bit - 8 * at)))
}

#[inline(always)]
fn low_byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

/// Writes the symbols that the window begins with; returns their bits and their number.
#[inline(always)]
fn look_up(table: &Lookup, window: u64, at: usize, symbols: &mut [u8]) -> (usize, usize) {
    let [high, low, ..] = window.to_be_bytes();
    let index = u16::from_be_bytes([high, low]) >> (16 - LENGTH_MAX);
    let entry = table[usize::from(index)].to_le_bytes();
    symbols[at..at + STORE_BYTES].copy_from_slice(&entry);
    (usize::from(entry[6]), usize::from(entry[7]))
}

/// Reads on in all lanes until one is at its end, one load and its look-ups at a time.
pub(super) fn run(bytes: &[u8], lanes: &mut [Lane; LANES], symbols: &mut [u8]) {
    while !lanes.iter().any(Lane::is_at_end) {
        for lane in &mut *lanes {
            let mut window = window(bytes, lane.bit);
            for _ in 0..LOOKUPS_PER_LOAD {
                let (bits, count) = look_up(lane.table, window, lane.at, symbols);
                window <<= bits;
                lane.bit += bits;
                lane.at += count;
            }
        }
    }
}

/// Rows of codes to symbols.
#[derive(Clone, Copy, Debug)]
pub struct HuffmanDecode {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u8], &mut [Lane; LANES], &mut [u8]),
}

impl HuffmanDecode {
    pub(in crate::kernel) const PORTABLE: HuffmanDecode = HuffmanDecode { isa: "portable", run };

    /// Reads rows of `count` symbols each. Row `n`'s symbols go to `symbols` from
    /// `n * SYMBOLS_STRIDE` on, as signed bytes; what follows them there, up to the stride, is not
    /// defined, and there must be room for one row more. The bytes may be any;
    /// [`BYTES_BEHIND_ROWS`] of them follow the last row. False when a row's symbols do not end
    /// where the row does, or other than in zero bits; the symbols then have no meaning.
    pub fn call(&self, bytes: &[u8], rows: &[CodedRow], count: usize, symbols: &mut [u8]) -> bool {
        assert!((1..=usize::from(CHUNK_TOKENS)).contains(&count));
        assert!(symbols.len() >= (rows.len() + 1) * SYMBOLS_STRIDE);
        for row in rows {
            assert!(row.start <= row.end && row.table < TABLES);
            assert!(bytes.len() >= BYTES_BEHIND_ROWS && row.end <= bytes.len() - BYTES_BEHIND_ROWS);
        }
        let mut queue = Queue { rows, count, next: 0 };
        let mut places = [0; LANES];
        let mut lanes = places.each_mut().map(|place| {
            let (lane, at) = queue.take();
            *place = at;
            lane
        });
        let mut unread = rows.len();
        while unread > 0 {
            // SAFETY: a row is there, and with it eight bytes. Before a load a lane is not at its
            // end, so that it writes less than `SYMBOLS_SLACK` past it: within its row's stride,
            // and `symbols` has all strides, as was just checked. The flags given to
            // `Kernels::select` promise the CPU.
            unsafe { (self.run)(bytes, &mut lanes, symbols) };
            for (lane, place) in lanes.iter_mut().zip(&mut places) {
                if !lane.is_at_end() {
                    continue;
                }
                if let Some(row) = rows.get(*place) {
                    if !lane.filled(bytes, row, symbols) {
                        return false;
                    }
                    unread -= 1;
                }
                (*lane, *place) = queue.take();
            }
        }
        true
    }
}

/// Rows that no lane has begun.
struct Queue<'a> {
    rows: &'a [CodedRow],
    count: usize,
    next: usize,
}

impl Queue<'_> {
    /// The next row and its place. When there is none left, a lane keeps the others company by
    /// reading the first bytes into the room that is left over.
    fn take(&mut self) -> (Lane, usize) {
        let place = self.next.min(self.rows.len());
        self.next += 1;
        let row = self.rows.get(place).copied().unwrap_or_default();
        (Lane::new(&row, place, self.count), place)
    }
}
