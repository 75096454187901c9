//! Rows of codes to chunks.

use super::row::{Form, Header};
use super::scale::{SCALES, TokenSteps};
use super::{ROW_STRIDE, head_of, k_step, rows_of, word};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, LayerSteps};
use crate::error::{Code, Error, Result};
use crate::kernel::huffman::{
    BYTES_BEHIND_ROWS, CodedRow, ESCAPE, SYMBOLS_STRIDE, TABLES, has_code,
};
use crate::kernel::lattice::RowSteps;
use crate::kernel::{Kernels, Matrix};

/// Channels that are unpacked before they are brought in order: of each token one cache line.
const GROUP: usize = 32;
/// Rows that are decoded together: a group, and in V the tokens' steps before the first.
const GROUP_ROWS: usize = GROUP + 1;

/// The rows' symbols, and the room that decoding wants besides.
const SYMBOLS_BYTES: usize = ((GROUP_ROWS + 1) * SYMBOLS_STRIDE).next_multiple_of(64);
pub(super) const SCRATCH_BYTES: usize = SYMBOLS_BYTES + 2 * GROUP * ROW_STRIDE;

const HEADER: Error = Error::new(Code::Corrupt, "packed row header");
const ROWS: Error = Error::new(Code::Corrupt, "packed rows");
const CODES: Error = Error::new(Code::Corrupt, "packed row codes");
const ESCAPES: Error = Error::new(Code::Corrupt, "packed row escapes");
const SCALE: Error = Error::new(Code::Corrupt, "packed row scale");

/// Unpacks one part of a payload whose places were checked.
pub(super) fn read(
    kernels: &Kernels,
    steps: LayerSteps<'_>,
    scratch: &mut [u8],
    geometry: &Geometry,
    payload: &[u8],
    part: usize,
    values: &mut [u16],
) -> Result<()> {
    const MISALIGNED: Error = Error::new(Code::InvalidArgument, "codec scratch alignment");
    let (symbols, rest) = scratch.split_at_mut(SYMBOLS_BYTES);
    let tile = view::numbers_mut(&mut rest[..2 * GROUP * ROW_STRIDE]).ok_or(MISALIGNED)?;
    let tokens = usize::from(geometry.tokens);
    let mut reader = Reader::new(kernels, geometry, payload, part)?;
    let (is_k, head) = head_of(geometry, part);
    let bases = &steps.k[head * geometry.head_dim()..][..geometry.head_dim()];
    let mut codes = [0; ROW_STRIDE];
    let codes = &mut codes[..tokens];
    let mut token_steps = None;
    for (first, bases) in (0..).step_by(GROUP).zip(bases.chunks(GROUP)) {
        let scale_rows = usize::from(!is_k && first == 0);
        let group = reader.group(scale_rows + bases.len(), symbols)?;
        let (scale_row, rows) = group.rows().split_at(scale_rows);
        if let [row] = scale_row {
            group.read_codes(row, codes)?;
            token_steps = Some(steps_of_points(codes)?);
        }
        for (channel, (row, &base)) in rows.iter().zip(bases).enumerate() {
            let steps = match &token_steps {
                Some(steps) => steps.row(),
                None => RowSteps::Even(k_step(base)),
            };
            let target = match geometry.layout {
                ChunkLayout::TokenMajor => &mut tile[channel * ROW_STRIDE..][..tokens],
                ChunkLayout::ChannelMajor => {
                    &mut values[(first + channel) * ROW_STRIDE..][..tokens]
                }
            };
            group.read_values(row, steps, codes, target)?;
        }
        if geometry.layout == ChunkLayout::TokenMajor {
            let to_stride = geometry.head_dim();
            let matrix =
                Matrix { rows: bases.len(), columns: tokens, from_stride: ROW_STRIDE, to_stride };
            kernels.transpose.call(&matrix, tile, &mut values[first..]);
        }
    }
    reader.finish()
}

/// Gives the rows with prefix codes their places, by table: rows that are read at once then share
/// one, which stays in the cache. Returns how many there are.
fn coded_rows(rows: &mut [Row], coded: &mut [CodedRow; GROUP_ROWS]) -> usize {
    let has_codes = |row: &Row| matches!(row.header.form, Form::Offsets | Form::Running);
    let mut next_places = [0; TABLES + 1];
    for row in rows.iter().filter(|row| has_codes(row)) {
        next_places[row.header.table + 1] += 1;
    }
    for table in 0..TABLES {
        next_places[table + 1] += next_places[table];
    }
    for row in rows.iter_mut().filter(|row| has_codes(row)) {
        let Header { table, codes_bytes, .. } = row.header;
        row.place = next_places[table];
        next_places[table] += 1;
        coded[row.place] = CodedRow { start: row.start, end: row.start + codes_bytes, table };
    }
    next_places[TABLES]
}

/// The steps of V's tokens.
fn steps_of_points(points: &[i16]) -> Result<TokenSteps> {
    match points.iter().find(|point| !(0..SCALES).contains(*point)) {
        Some(point) => Err(SCALE.with(*point)),
        None => Ok(TokenSteps::new(points)),
    }
}

/// The rows of a part, from the first on.
struct Reader<'a> {
    kernels: &'a Kernels,
    is_k: bool,
    tokens: usize,
    /// From the part's headers to the end of the payload.
    bytes: &'a [u8],
    /// The next row.
    row: usize,
    /// Where its bytes begin.
    at: usize,
    /// Where the last row's end.
    end: usize,
}

/// A row whose header was right and whose bytes are there.
#[derive(Clone, Copy)]
struct Row {
    header: Header,
    start: usize,
    /// Which of the decoded rows it is.
    place: usize,
}

/// Some rows whose prefix codes have been decoded.
struct Group<'a> {
    kernels: &'a Kernels,
    bytes: &'a [u8],
    symbols: &'a [u8],
    rows: [Row; GROUP_ROWS],
    count: usize,
}

impl<'a> Reader<'a> {
    fn new(
        kernels: &'a Kernels,
        geometry: &Geometry,
        payload: &'a [u8],
        part: usize,
    ) -> Result<Self> {
        let place = |part| word(payload, part).and_then(|place| usize::try_from(place).ok());
        let (start, end) = place(part).zip(place(part + 1)).ok_or(ROWS)?;
        let bytes = payload.get(start..).ok_or(ROWS)?;
        let (at, end) = (4 * rows_of(geometry, part), end.checked_sub(start).ok_or(ROWS)?);
        // Behind the last part are zeros, behind others is the next one.
        if at > end || end + BYTES_BEHIND_ROWS > bytes.len() {
            return Err(ROWS);
        }
        let (is_k, _) = head_of(geometry, part);
        let tokens = geometry.tokens.into();
        Ok(Reader { kernels, is_k, tokens, bytes, row: 0, at, end })
    }

    /// Checks the next rows' headers and decodes those that have prefix codes.
    fn group<'s>(&mut self, count: usize, symbols: &'s mut [u8]) -> Result<Group<'s>>
    where
        'a: 's,
    {
        let mut rows = [Row { header: Header::VALUES, start: 0, place: 0 }; GROUP_ROWS];
        for row in &mut rows[..count] {
            let word = word(self.bytes, self.row).ok_or(ROWS)?;
            let header = Header::from_word(word).filter(|header| self.takes(header.form));
            row.header = header.ok_or(HEADER.with(word))?;
            row.start = self.at;
            self.at += row.header.row_bytes(self.tokens);
            if self.at > self.end {
                return Err(ROWS.with(self.row));
            }
            self.row += 1;
        }
        let mut coded = [CodedRow::default(); GROUP_ROWS];
        let places = coded_rows(&mut rows[..count], &mut coded);
        if !self.kernels.huffman_decode.call(self.bytes, &coded[..places], self.tokens, symbols) {
            return Err(CODES);
        }
        Ok(Group { kernels: self.kernels, bytes: self.bytes, symbols, rows, count })
    }

    /// Only K has rows that are stored as they are.
    fn takes(&self, form: Form) -> bool {
        self.is_k || form != Form::Values
    }

    /// Sees that the rows filled the part.
    fn finish(&self) -> Result<()> {
        if self.at == self.end { Ok(()) } else { Err(ROWS.with(self.at)) }
    }
}

impl Group<'_> {
    fn rows(&self) -> &[Row] {
        &self.rows[..self.count]
    }

    /// The values of a channel. `codes` is room for as many.
    fn read_values(
        &self,
        row: &Row,
        steps: RowSteps<'_>,
        codes: &mut [i16],
        values: &mut [u16],
    ) -> Result<()> {
        if row.header.form != Form::Values {
            self.read_codes(row, codes)?;
            self.kernels.lattice_unpack.call(codes, steps, values);
            return Ok(());
        }
        let (halves, _) = self.bytes[row.start..].as_chunks::<2>();
        for (value, &half) in values.iter_mut().zip(halves) {
            *value = u16::from_le_bytes(half);
        }
        Ok(())
    }

    fn read_codes(&self, row: &Row, codes: &mut [i16]) -> Result<()> {
        let (header, sums) = (&row.header, &self.kernels.sums);
        if header.form == Form::Bytes {
            sums.offsets(&self.bytes[row.start..][..codes.len()], header.base, codes);
            return Ok(());
        }
        let symbols = &self.symbols[row.place * SYMBOLS_STRIDE..][..codes.len()];
        match header.form {
            Form::Running => sums.running(symbols, header.base, codes),
            _ => sums.offsets(symbols, header.base, codes),
        }
        if has_escape(symbols) || header.escapes != 0 {
            self.escape(row, symbols, codes)
        } else {
            Ok(())
        }
    }

    /// Puts the escapes' values in their places. There are few of them.
    fn escape(&self, row: &Row, symbols: &[u8], codes: &mut [i16]) -> Result<()> {
        const RUN: usize = 16;
        let header = &row.header;
        let (values, _) = self.bytes[row.start + header.codes_bytes..].as_chunks::<2>();
        let mut values = values[..header.escapes].iter();
        for (start, run) in (0..).step_by(RUN).zip(symbols.chunks(RUN)) {
            if !has_escape(run) {
                continue;
            }
            for (token, _) in (start..).zip(run).filter(|(_, symbol)| is_escape(**symbol)) {
                let residual = i16::from_le_bytes(*values.next().ok_or(ESCAPES)?);
                if has_code(header.table, residual) {
                    return Err(ESCAPES.with(residual));
                }
                let difference = residual.wrapping_sub(ESCAPE.into());
                let end = if header.form == Form::Running { codes.len() } else { token + 1 };
                for code in &mut codes[token..end] {
                    *code = code.wrapping_add(difference);
                }
            }
        }
        if values.next().is_some() { Err(ESCAPES) } else { Ok(()) }
    }
}

fn is_escape(symbol: u8) -> bool {
    symbol == ESCAPE.cast_unsigned()
}

/// Looks at all of them, so that one comparison is of many.
fn has_escape(symbols: &[u8]) -> bool {
    symbols.iter().fold(0, |any, &symbol| any | u8::from(is_escape(symbol))) != 0
}
