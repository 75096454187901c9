//! One row's header, and the choice of its form.

use super::ROW_STRIDE;
use crate::kernel::HuffmanEncode;
use crate::kernel::huffman::{Indices, ROW_BYTES_MAX, TABLES, cheapest, residual_bound};

/// Escapes of one row; a row with more is not worth prefix codes.
const ESCAPES_MAX: usize = 63;

/// Bytes of a row's prefix codes and escapes, and what writing may leave behind them.
pub(super) const ROOM: usize = ROW_BYTES_MAX + 2 * ESCAPES_MAX;

const _: () = assert!(ROOM - ROW_BYTES_MAX == ESCAPES_MAX * size_of::<i16>());

/// What a row's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Prefix codes of differences from the base.
    Offsets = 0,
    /// Prefix codes of differences from the code before.
    Running = 1,
    /// Differences from the base, a byte each.
    Bytes = 2,
    /// The F16 values.
    Values = 3,
}

/// What precedes a row's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) form: Form,
    /// Of the prefix codes; 0 in other forms, as are the next two.
    pub(super) codes_bytes: usize,
    pub(super) escapes: usize,
    pub(super) table: usize,
    pub(super) base: i16,
}

impl Header {
    /// Of a row that is stored as it is.
    pub(super) const VALUES: Header = Header::plain(Form::Values, 0);

    const fn plain(form: Form, base: i16) -> Header {
        Header { form, codes_bytes: 0, escapes: 0, table: 0, base }
    }

    /// As it is stored.
    #[expect(clippy::cast_sign_loss, reason = "the upper bits are the base, with its sign")]
    #[expect(clippy::cast_possible_truncation, reason = "no field is longer than its bits")]
    pub(super) const fn word(&self) -> u32 {
        let fields = self.codes_bytes | self.escapes << 9 | self.table << 15;
        fields as u32 | (self.form as u32) << 19 | (self.base as i32 as u32) << 21
    }

    /// What is stored, unless packing never writes it.
    pub(super) fn from_word(word: u32) -> Option<Header> {
        let field = |from: u32, bits: u32| (word >> from & ((1 << bits) - 1)) as usize;
        let base = (word.cast_signed() >> 21) as i16;
        let form = match field(19, 2) {
            0 => Form::Offsets,
            1 => Form::Running,
            2 => Form::Bytes,
            _ => Form::Values,
        };
        let (codes_bytes, escapes, table) = (field(0, 9), field(9, 6), field(15, 4));
        let header = Header { form, codes_bytes, escapes, table, base };
        let is_known = match form {
            Form::Offsets | Form::Running => table < TABLES && codes_bytes > 0,
            Form::Bytes => header == Header::plain(form, base),
            Form::Values => header == Header::VALUES,
        };
        is_known.then_some(header)
    }

    /// Bytes of the row.
    pub(super) fn row_bytes(&self, tokens: usize) -> usize {
        match self.form {
            Form::Offsets | Form::Running => self.codes_bytes + 2 * self.escapes,
            Form::Bytes => tokens,
            Form::Values => 2 * tokens,
        }
    }
}

/// Writes the codes in the form that takes the fewest bytes, [`Form::Running`] only where
/// `may_run`. `None` when that is [`Form::Values`]. What `out` holds behind the row is not defined.
pub(super) fn write_codes(
    encode: &HuffmanEncode,
    codes: &[i16],
    may_run: bool,
    out: &mut [u8; ROOM],
) -> Option<Header> {
    let tokens = codes.len();
    let mut offsets = [0; ROW_STRIDE];
    let offsets = &mut offsets[..tokens];
    let base = mean(codes);
    let (mut least, mut greatest) = (0, 0);
    for (offset, code) in offsets.iter_mut().zip(codes) {
        *offset = code - base;
        (least, greatest) = (least.min(*offset), greatest.max(*offset));
    }
    let has_bytes = least >= -128 && greatest < 128;
    let bytes_max = if has_bytes { tokens } else { 2 * tokens };
    let indices = Indices::new(offsets);
    let (table, bits) = cheapest(&encode.costs(&indices));
    let header = Header { table, ..Header::plain(Form::Offsets, base) };
    let by_offsets = Prefixed { header, residuals: offsets, indices, bits };
    let mut running = [0; ROW_STRIDE];
    let by_running = may_run.then(|| Prefixed::running(encode, codes, &mut running[..tokens]));
    let header = match by_running {
        Some(by_running) if by_running.bits < bits => by_running.write(encode, bytes_max, out),
        _ => by_offsets.write(encode, bytes_max, out),
    };
    if header.is_some() || !has_bytes {
        return header;
    }
    for (byte, offset) in out.iter_mut().zip(&*offsets) {
        [*byte, _] = offset.to_le_bytes();
    }
    Some(Header::plain(Form::Bytes, base))
}

/// A row in prefix codes, which is not yet written.
struct Prefixed<'a> {
    /// Its bytes are not yet known.
    header: Header,
    residuals: &'a [i16],
    indices: Indices,
    /// Codes and escapes under the header's table.
    bits: usize,
}

impl<'a> Prefixed<'a> {
    /// The differences from the code before.
    fn running(encode: &HuffmanEncode, codes: &[i16], residuals: &'a mut [i16]) -> Self {
        for ((difference, code), before) in residuals[1..].iter_mut().zip(&codes[1..]).zip(codes) {
            *difference = code - before;
        }
        let indices = Indices::new(residuals);
        let (table, bits) = cheapest(&encode.costs(&indices));
        let header = Header { table, ..Header::plain(Form::Running, codes[0]) };
        Prefixed { header, residuals, indices, bits }
    }

    /// `None` when there are too many escapes or bytes.
    fn write(
        &self,
        encode: &HuffmanEncode,
        bytes_max: usize,
        out: &mut [u8; ROOM],
    ) -> Option<Header> {
        let table = self.header.table;
        let bound = residual_bound(table).unsigned_abs();
        let is_escaped = |residual: &i16| residual.unsigned_abs() > bound;
        let count = |residual| u16::from(is_escaped(residual));
        let escapes = usize::from(self.residuals.iter().map(count).sum::<u16>());
        if escapes > ESCAPES_MAX {
            return None;
        }
        let codes = out.first_chunk_mut::<ROW_BYTES_MAX>()?;
        let codes_bytes = encode.write(&self.indices, table, codes);
        if escapes != 0 {
            let (places, _) = out[codes_bytes..].as_chunks_mut::<2>();
            let escaped = self.residuals.iter().filter(|residual| is_escaped(residual));
            for (place, residual) in places.iter_mut().zip(escaped) {
                *place = residual.to_le_bytes();
            }
        }
        let header = Header { codes_bytes, escapes, ..self.header };
        (header.row_bytes(self.residuals.len()) <= bytes_max).then_some(header)
    }
}

/// The mean, rounded to nearest, halves up.
#[expect(clippy::cast_possible_truncation, reason = "a mean of 16-bit numbers")]
#[expect(clippy::cast_possible_wrap, reason = "a row has at most 256 codes")]
fn mean(codes: &[i16]) -> i16 {
    let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
    let count = codes.len() as i32;
    (2 * sum + count).div_euclid(2 * count) as i16
}
