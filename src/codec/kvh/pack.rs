//! Chunks to rows of codes.

use super::row::{self, Header};
use super::scale::{Rows, TokenSteps};
use super::{ROW_STRIDE, head_of, k_step, payload_bytes, places_bytes, rows_of};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, LayerSteps};
use crate::error::{Code, Error, Result};
use crate::kernel::lattice::RowSteps;
use crate::kernel::{Kernels, Matrix};
use crate::limits::CHUNK_TOKENS;

/// One part by channels.
pub(super) fn scratch_bytes(geometry: &Geometry) -> usize {
    2 * ROW_STRIDE * geometry.head_dim()
}

/// What is written, of which as much is kept as there is room for.
struct Writer<'a> {
    room: &'a mut [u8],
    /// Where the next row goes.
    end: usize,
}

impl Writer<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.room.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    fn put_number(&mut self, at: usize, number: usize) -> Result<()> {
        match u32::try_from(number) {
            Ok(number) => self.put(at, &number.to_le_bytes()),
            Err(_) => return Err(Error::new(Code::LimitExceeded, "packed payload").with(number)),
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) {
        self.put(self.end, bytes);
        self.end += bytes.len();
    }
}

/// Writes a payload into `room` as far as it fits; returns its bytes. `None` when a value of V is
/// not finite, or would not be.
pub(super) fn write(
    kernels: &Kernels,
    steps: LayerSteps<'_>,
    scratch: &mut [u8],
    geometry: &Geometry,
    chunk: &[u16],
    room: &mut [u8],
) -> Result<Option<usize>> {
    const MISALIGNED: Error = Error::new(Code::InvalidArgument, "codec scratch alignment");
    let rows = view::numbers_mut(&mut scratch[..scratch_bytes(geometry)]).ok_or(MISALIGNED)?;
    let mut writer = Writer { room, end: places_bytes(geometry) };
    let parts = chunk.chunks_exact(geometry.part_values()).take(geometry.parts());
    for (part, values) in parts.enumerate() {
        writer.put_number(4 * part, writer.end)?;
        by_channels(kernels, geometry, values, rows);
        let mut target = Part { headers_at: writer.end, writer: &mut writer };
        target.writer.end += 4 * rows_of(geometry, part);
        match head_of(geometry, part) {
            (true, head) => {
                let steps = &steps.k[head * geometry.head_dim()..][..geometry.head_dim()];
                target.write_k(kernels, steps, rows, geometry.tokens.into());
            }
            (false, _) => {
                if !target.write_v(kernels, rows, geometry.tokens.into()) {
                    return Ok(None);
                }
            }
        }
    }
    let end = writer.end;
    writer.put_number(4 * geometry.parts(), end)?;
    let bytes = payload_bytes(end);
    if let Some(padding) = writer.room.get_mut(end..bytes) {
        padding.fill(0);
    }
    Ok(Some(bytes))
}

/// Copies a part's valid values to where each channel is a row.
fn by_channels(kernels: &Kernels, geometry: &Geometry, values: &[u16], rows: &mut [u16]) {
    match geometry.layout {
        ChunkLayout::TokenMajor => {
            let matrix = Matrix {
                rows: geometry.tokens.into(),
                columns: geometry.head_dim(),
                from_stride: geometry.head_dim(),
                to_stride: ROW_STRIDE,
            };
            kernels.transpose.call(&matrix, values, rows);
        }
        ChunkLayout::ChannelMajor => {
            for run in geometry.runs() {
                rows[run.clone()].copy_from_slice(&values[run]);
            }
        }
    }
}

const _: () = assert!(ROW_STRIDE == CHUNK_TOKENS as usize);

/// A part that is being written.
struct Part<'a, 'b> {
    writer: &'a mut Writer<'b>,
    /// Where the next row's header goes.
    headers_at: usize,
}

impl Part<'_, '_> {
    fn write_k(&mut self, kernels: &Kernels, bases: &[f32], rows: &[u16], tokens: usize) {
        let mut codes = [0; ROW_STRIDE];
        let codes = &mut codes[..tokens];
        for (row, &base) in rows.chunks_exact(ROW_STRIDE).zip(bases) {
            let row = &row[..tokens];
            let steps = RowSteps::Even(k_step(base));
            let is_coded = kernels.lattice_pack.call(row, steps, codes)
                && self.write_codes(kernels, codes, true);
            if !is_coded {
                self.write_header(&Header::VALUES);
                self.writer.append(view::bytes_of(row));
            }
        }
    }

    /// False when a value is not finite, or would not be.
    fn write_v(&mut self, kernels: &Kernels, rows: &mut [u16], tokens: usize) -> bool {
        let Some(points) = (Rows { kernels, values: rows, tokens }).settle() else { return false };
        let points = &points[..tokens];
        let mut codes = [0; ROW_STRIDE];
        let codes = &mut codes[..tokens];
        let steps = TokenSteps::new(points);
        let mut is_coded = self.write_codes(kernels, points, true);
        for row in rows.chunks_exact(ROW_STRIDE) {
            is_coded = is_coded
                && kernels.lattice_pack.call(&row[..tokens], steps.row(), codes)
                && self.write_codes(kernels, codes, false);
        }
        is_coded
    }

    /// False when there is no form for the codes.
    fn write_codes(&mut self, kernels: &Kernels, codes: &[i16], may_run: bool) -> bool {
        let mut bytes = [0; row::ROOM];
        let header = row::write_codes(&kernels.huffman_encode, codes, may_run, &mut bytes);
        let Some(header) = header else { return false };
        self.write_header(&header);
        self.writer.append(&bytes[..header.row_bytes(codes.len())]);
        true
    }

    fn write_header(&mut self, header: &Header) {
        self.writer.put(self.headers_at, &header.word().to_le_bytes());
        self.headers_at += 4;
    }
}
