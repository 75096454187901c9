//! The code lengths, and the tables for encoding and decoding that follow from them.
//!
//! Table `j` is for residuals that are distributed like the even mixture of a normal and a Laplace
//! distribution with standard deviation `0.25 * 2^(j/2)`, rounded to integers. It has codes for the
//! residuals within a bound of its own and for the escape, at most [`LENGTH_MAX`] bits long, such
//! that the expected cost is least; a test derives them again. They are constants because computed
//! logarithms differ from machine to machine, and a packed chunk must not.
//!
//! Codes are canonical: shorter before longer, among equal lengths by residual, the escape last.
//!
//! The decoding tables take 104 KiB of read-only data. In memory of the caller they would have to
//! be built at each open and could be damaged; as constants all processes share their pages, and
//! the system may drop them, as it may the code.

/// Number of tables.
pub const TABLES: usize = 13;
/// Greatest magnitude of a residual with a code of its own.
pub const RESIDUAL_MAX: i16 = 20;
/// What decoding gives for an escape.
pub const ESCAPE: i8 = 21;
/// Bits of the longest code, and of one look-up.
pub const LENGTH_MAX: u32 = 10;

/// Residuals -20 to 20, then the escape.
pub const SYMBOLS: usize = 42;
/// Bits of an escaped residual behind the codes.
pub const ESCAPE_BITS: u16 = 16;

const ESCAPE_INDEX: usize = SYMBOLS - 1;

/// Code lengths of residuals -20 to 20 and of the escape; 0 where there is no code.
#[rustfmt::skip]
pub const LENGTHS: [[u8; SYMBOLS]; TABLES] = [
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 3,
     1, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 5, 3,
     1, 2, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 7, 5, 3,
     1, 2, 4, 6, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 9, 7, 5, 3,
     1, 2, 4, 6, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 10, 7, 5, 3,
     1, 2, 4, 6, 9, 10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 10, 8, 6, 4, 2,
     2, 2, 3, 5, 8, 9, 10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10, 10, 10, 9, 7, 6, 5, 4, 3, 3,
     2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10],
    [0, 0, 0, 0, 0, 0, 10, 10, 10, 10, 10, 10, 9, 8, 6, 5, 4, 4, 3, 3,
     3, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 10, 0, 0, 0, 0, 0, 0, 10],
    [10, 10, 10, 10, 10, 10, 10, 9, 9, 8, 7, 7, 6, 6, 5, 5, 4, 4, 4, 3,
     3, 3, 4, 4, 4, 5, 5, 6, 6, 7, 7, 8, 9, 9, 9, 10, 10, 10, 10, 10, 10, 10],
    [10, 10, 10, 9, 9, 9, 8, 7, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 4, 4,
     3, 4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 7, 7, 7, 8, 8, 9, 9, 10, 10, 10, 8],
    [9, 8, 8, 8, 8, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5, 5, 4, 4, 4,
     4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 6],
    [7, 7, 7, 7, 7, 6, 6, 6, 6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 4,
     4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 4],
    [7, 7, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5,
     5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 7, 7, 3],
];

/// Symbols that one look-up gives at most.
pub const LOOKUP_SYMBOLS_MAX: usize = 6;
/// Look-ups that one 64-bit load feeds, wherever in its first byte the codes begin.
pub const LOOKUPS_PER_LOAD: usize = 5;

const _: () = assert!(LOOKUPS_PER_LOAD * LENGTH_MAX as usize <= 64 - 7);

/// What the next [`LENGTH_MAX`] bits mean: symbols in bytes 0 to 5, the bits they take in byte 6,
/// their number in byte 7.
pub type Lookup = [u64; 1 << LENGTH_MAX];

/// For each table, what each look-up gives.
pub static DECODE: [Lookup; TABLES] = decode_tables();

/// Indices of the tables for encoding: residuals from -21 to 21, then what is never used but makes
/// every remainder an index.
pub const INDICES: u8 = 64;

/// What behind a row fills it up: it costs nothing and has no code.
pub const PADDING: u8 = INDICES - 1;

/// For each index the code under one table times 16 plus its length; where there is none, those of
/// the escape.
pub type Codes = [u16; INDICES as usize];

/// For each table, its codes.
pub static ENCODE: [Codes; TABLES] = encode_tables();

/// Bits under each table, an escaped value included; the last three are 0.
pub type Costs = [u16; 16];

/// For each index what it costs.
pub static COSTS: [Costs; INDICES as usize] = costs();

/// For each table, the greatest magnitude of a residual that has a code.
static BOUNDS: [i16; TABLES] = bounds();

/// The greatest magnitude of a residual for which the table has a code of its own.
pub fn residual_bound(table: usize) -> i16 {
    BOUNDS[table]
}

/// Whether the table has a code of its own for the residual.
pub fn has_code(table: usize, residual: i16) -> bool {
    residual.unsigned_abs() <= BOUNDS[table].unsigned_abs()
}

const fn bounds() -> [i16; TABLES] {
    let mut bounds = [0; TABLES];
    let mut table = 0;
    while table < TABLES {
        let middle = RESIDUAL_MAX.unsigned_abs() as usize;
        while bounds[table] < RESIDUAL_MAX
            && LENGTHS[table][middle + bounds[table].unsigned_abs() as usize + 1] > 0
        {
            bounds[table] += 1;
        }
        table += 1;
    }
    bounds
}

/// A residual as an index of [`ENCODE`] and [`COSTS`]: beyond the greatest ones is the escape.
#[inline(always)]
#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "0 to 42")]
pub const fn clamped(residual: i16) -> u8 {
    const BOUND: i16 = RESIDUAL_MAX + 1;
    let low = if residual < -BOUND { -BOUND } else { residual };
    let bounded = if low > BOUND { BOUND } else { low };
    (bounded + BOUND) as u8
}

/// The canonical code of each symbol that has one.
#[expect(clippy::cast_possible_truncation, reason = "lengths are at most 10")]
const fn codes(lengths: &[u8; SYMBOLS]) -> [u16; SYMBOLS] {
    let mut codes = [0; SYMBOLS];
    let mut next = 0;
    let mut length = 1;
    while length <= LENGTH_MAX as u8 {
        next <<= 1;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if lengths[symbol] == length {
                codes[symbol] = next;
                next += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    // The codes leave nothing over: every look-up finds one.
    assert!(next == 1 << LENGTH_MAX);
    codes
}

const fn encode_tables() -> [Codes; TABLES] {
    let mut tables = [[0; INDICES as usize]; TABLES];
    let mut table = 0;
    while table < TABLES {
        let lengths = &LENGTHS[table];
        let codes = codes(lengths);
        let mut index = 0;
        while index <= SYMBOLS {
            let symbol = match index {
                0 => ESCAPE_INDEX,
                _ if lengths[index - 1] == 0 => ESCAPE_INDEX,
                _ => index - 1,
            };
            tables[table][index] = codes[symbol] << 4 | lengths[symbol] as u16;
            index += 1;
        }
        table += 1;
    }
    tables
}

pub const fn costs() -> [Costs; INDICES as usize] {
    let mut costs = [[0; 16]; INDICES as usize];
    let mut table = 0;
    while table < TABLES {
        let lengths = &LENGTHS[table];
        let mut index = 0;
        while index <= SYMBOLS {
            let has_code = index > 0 && index < SYMBOLS && lengths[index - 1] != 0;
            costs[index][table] = if has_code {
                lengths[index - 1] as u16
            } else {
                lengths[ESCAPE_INDEX] as u16 + ESCAPE_BITS
            };
            index += 1;
        }
        table += 1;
    }
    costs
}

const fn decode_tables() -> [Lookup; TABLES] {
    let mut tables = [[0; 1 << LENGTH_MAX]; TABLES];
    let mut table = 0;
    while table < TABLES {
        tables[table] = decode_table(&LENGTHS[table]);
        table += 1;
    }
    tables
}

const fn decode_table(lengths: &[u8; SYMBOLS]) -> Lookup {
    let first = first_symbols(lengths);
    let mut entries = [0; 1 << LENGTH_MAX];
    let mut window = 0;
    while window < entries.len() {
        let (mut entry, mut count, mut bits) = (0u64, 0, 0u32);
        while count < LOOKUP_SYMBOLS_MAX {
            let symbol = first[window << bits & ((1 << LENGTH_MAX) - 1)];
            let length = lengths[symbol as usize] as u32;
            if bits + length > LENGTH_MAX {
                break;
            }
            // The residual as a byte.
            entry |= (symbol.wrapping_sub(20) as u64) << (8 * count);
            bits += length;
            count += 1;
        }
        entries[window] = entry | (bits as u64) << 48 | (count as u64) << 56;
        window += 1;
    }
    entries
}

/// The symbol whose code the bits begin with, for each window.
#[expect(clippy::cast_possible_truncation, reason = "there are 42 symbols")]
const fn first_symbols(lengths: &[u8; SYMBOLS]) -> [u8; 1 << LENGTH_MAX] {
    let codes = codes(lengths);
    let mut first = [0; 1 << LENGTH_MAX];
    let mut symbol = 0;
    while symbol < SYMBOLS {
        if lengths[symbol] != 0 {
            let spare = LENGTH_MAX - lengths[symbol] as u32;
            let mut window = (codes[symbol] as usize) << spare;
            let end = window + (1 << spare);
            while window < end {
                first[window] = symbol as u8;
                window += 1;
            }
        }
        symbol += 1;
    }
    first
}
