//! Chunks to symbols, and these to streams.

use super::{CDF_VALUES, MISALIGNED_SCRATCH, Planes, code_max, is_k, payload_bytes};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, HEADER_BYTES};
use crate::error::{Code, Error, Result};
use crate::kernel::cachegen::{Cdfs, CodeSteps, LANES, STREAM_BYTES_MAX, SYMBOLS};
use crate::kernel::portable::{F16_INFINITY, F16_MAGNITUDE, q8_absmax};
use crate::kernel::{Kernels, Matrix};
use crate::limits::CHUNK_TOKENS;

const TOKENS: usize = CHUNK_TOKENS as usize;
const TILE_BYTES: usize = 2 * TOKENS * LANES;
const SYMBOLS_BYTES: usize = TOKENS * LANES;

/// Channels by tokens, their symbols, their streams.
pub(super) const SCRATCH_BYTES: usize = TILE_BYTES + SYMBOLS_BYTES + LANES * STREAM_BYTES_MAX;

/// Writes a payload into `room`, the streams as far as they fit; returns its bytes. `None` when a
/// value is not finite.
pub(super) fn write(
    kernels: &Kernels,
    scratch: &mut [u8],
    geometry: &Geometry,
    chunk: &[u16],
    room: &mut [u8],
) -> Result<Option<usize>> {
    let planes = Planes::new(geometry);
    let Some((fixed, streams)) = room.split_at_mut_checked(planes.streams) else {
        let needed = HEADER_BYTES + geometry.raw_payload_bytes();
        return Err(Error::new(Code::MemoryTooSmall, "packed buffer").with(needed));
    };
    let tokens = usize::from(geometry.tokens);
    let greatest = greatest(geometry, chunk);
    let greatest = greatest.each_ref().map(|tokens_greatest| &tokens_greatest[..tokens]);
    if greatest.iter().any(|block| block.iter().any(|&half| half >= F16_INFINITY)) {
        return Ok(None);
    }
    for (from, to) in planes.ends(geometry) {
        fixed[from..to].fill(0);
    }
    for (scales, greatest) in fixed.chunks_exact_mut(2 * tokens).zip(greatest) {
        scales.copy_from_slice(view::bytes_of(greatest));
    }
    let mut writer = Writer { fixed, streams, planes, streams_bytes: 0 };
    let parts = chunk.chunks_exact(geometry.part_values()).take(geometry.parts());
    for (part, values) in parts.enumerate() {
        writer.put_number(planes.places + 4 * part, planes.streams + writer.streams_bytes)?;
        let is_k = is_k(geometry, part);
        let (code_max, greatest) = (code_max(geometry, is_k), greatest[usize::from(!is_k)]);
        let mut steps = [CodeSteps::new(0, code_max); TOKENS];
        for (steps, &greatest) in steps.iter_mut().zip(greatest) {
            *steps = CodeSteps::new(greatest, code_max);
        }
        for first in (0..geometry.head_dim()).step_by(LANES) {
            let group = Group { kernels, geometry, first };
            let row = part * geometry.head_dim() + first;
            group.write(values, &steps[..tokens], scratch, row, &mut writer)?;
        }
    }
    let end = planes.streams + writer.streams_bytes;
    writer.put_number(planes.places + 4 * geometry.parts(), end)?;
    let bytes = payload_bytes(end);
    if let Some(padding) = room.get_mut(end..bytes) {
        padding.fill(0);
    }
    Ok(Some(bytes))
}

/// The greatest magnitude of each token in all heads of K, and of V.
fn greatest(geometry: &Geometry, chunk: &[u16]) -> [[u16; TOKENS]; 2] {
    let mut greatest = [[0; TOKENS]; 2];
    let (head_dim, tokens) = (geometry.head_dim(), usize::from(geometry.tokens));
    let heads = chunk.chunks_exact(geometry.part_values()).take(geometry.parts()).enumerate();
    for (part, values) in heads {
        let greatest = &mut greatest[usize::from(!is_k(geometry, part))][..tokens];
        match geometry.layout {
            ChunkLayout::TokenMajor => {
                for (greatest, row) in greatest.iter_mut().zip(values.chunks_exact(head_dim)) {
                    *greatest = q8_absmax(*greatest, row);
                }
            }
            ChunkLayout::ChannelMajor => {
                for run in geometry.runs() {
                    for (greatest, half) in greatest.iter_mut().zip(&values[run]) {
                        *greatest = (*greatest).max(half & F16_MAGNITUDE);
                    }
                }
            }
        }
    }
    greatest
}

/// What is written, of the streams as much as there is room for.
struct Writer<'a> {
    fixed: &'a mut [u8],
    streams: &'a mut [u8],
    planes: Planes,
    streams_bytes: usize,
}

impl Writer<'_> {
    fn put_number(&mut self, at: usize, number: usize) -> Result<()> {
        let Ok(number) = u32::try_from(number) else {
            return Err(Error::new(Code::LimitExceeded, "packed payload").with(number));
        };
        self.fixed[at..at + 4].copy_from_slice(&number.to_le_bytes());
        Ok(())
    }

    /// Appends a channel's stream and puts its frequencies into their place.
    fn put(&mut self, row: usize, cdfs: &Cdfs, lane: usize, stream: &[u8]) -> Result<()> {
        self.put_number(self.planes.lengths + 4 * row, stream.len())?;
        let at = self.planes.cdfs + 2 * CDF_VALUES * row;
        let (entries, _) = self.fixed[at..at + 2 * CDF_VALUES].as_chunks_mut::<2>();
        for (entry, cdf) in entries.iter_mut().zip(cdfs) {
            *entry = cdf[lane].to_le_bytes();
        }
        let end = self.streams_bytes + stream.len();
        if let Some(room) = self.streams.get_mut(self.streams_bytes..end) {
            room.copy_from_slice(stream);
        }
        self.streams_bytes = end;
        Ok(())
    }
}

/// Channels of one head that are coded at once.
struct Group<'a> {
    kernels: &'a Kernels,
    geometry: &'a Geometry,
    first: usize,
}

impl Group<'_> {
    /// `row` is the number of the first channel's stream.
    fn write(
        &self,
        values: &[u16],
        steps: &[CodeSteps],
        scratch: &mut [u8],
        row: usize,
        writer: &mut Writer<'_>,
    ) -> Result<()> {
        let (tile, rest) = scratch.split_at_mut(TILE_BYTES);
        let tile = view::numbers_mut::<u16>(tile).ok_or(MISALIGNED_SCRATCH)?;
        let (symbols, streams) = rest.split_at_mut(SYMBOLS_BYTES);
        let symbols = &mut symbols.as_chunks_mut::<LANES>().0[..steps.len()];
        let (streams, _) = streams.as_chunks_mut::<STREAM_BYTES_MAX>();
        let Some((streams, _)) = streams.split_first_chunk_mut::<LANES>() else {
            return Err(MISALIGNED_SCRATCH);
        };
        self.quantize(values, steps, tile, symbols);
        let cdfs = cdfs_of(symbols);
        let ends = self.kernels.cachegen_encode.call(symbols, &cdfs, streams);
        for lane in 0..self.lanes() {
            writer.put(row + lane, &cdfs, lane, &streams[lane][..ends[lane]])?;
        }
        Ok(())
    }

    fn lanes(&self) -> usize {
        LANES.min(self.geometry.head_dim() - self.first)
    }

    /// Symbols of each token's channels. Where there is no channel any symbols may stay.
    fn quantize(
        &self,
        values: &[u16],
        steps: &[CodeSteps],
        tile: &mut [u16],
        symbols: &mut [[u8; LANES]],
    ) {
        let (lanes, first) = (self.lanes(), self.first);
        let (rows, stride) = match self.geometry.layout {
            ChunkLayout::TokenMajor => (&values[first..], self.geometry.head_dim()),
            ChunkLayout::ChannelMajor => {
                let matrix = Matrix {
                    rows: lanes,
                    columns: steps.len(),
                    from_stride: TOKENS,
                    to_stride: LANES,
                };
                self.kernels.transpose.call(&matrix, &values[first * TOKENS..], tile);
                (&*tile, LANES)
            }
        };
        for ((row, steps), symbols) in rows.chunks(stride).zip(steps).zip(symbols) {
            self.kernels.cachegen_quantize.call(&row[..lanes], steps, &mut symbols[..lanes]);
        }
    }
}

/// The frequencies of each lane's symbols.
#[expect(clippy::cast_possible_truncation, reason = "the greatest is 65503 + 32")]
fn cdfs_of(symbols: &[[u8; LANES]]) -> Cdfs {
    /// What is left when each entry is to be greater than the one before.
    const SHARED: u32 = 0xFFFF - SYMBOLS as u32;
    let mut counts = [[0u32; SYMBOLS]; LANES];
    for symbols in symbols {
        for (counts, symbol) in counts.iter_mut().zip(symbols) {
            counts[usize::from(*symbol) % SYMBOLS] += 1;
        }
    }
    let mut cdfs = [[0; LANES]; CDF_VALUES];
    let tokens = symbols.len() as u32;
    for (lane, counts) in counts.iter().enumerate() {
        let mut below = 0;
        for (symbol, count) in (1..).zip(counts) {
            below += count;
            cdfs[symbol as usize][lane] = (SHARED * below / tokens + symbol) as u16;
        }
    }
    cdfs
}
