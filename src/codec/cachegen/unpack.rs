//! Streams to symbols, and these to values.

use super::pack::SCRATCH_BYTES;
use super::{CDF_VALUES, MISALIGNED, MISALIGNED_SCRATCH, Planes, code_max, index, is_k};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry};
use crate::error::{Code, Error, Result};
use crate::kernel::cachegen::{Cdfs, CodeSteps, LANES, Stream};
use crate::kernel::lattice::RowSteps;
use crate::kernel::{Kernels, Matrix};
use crate::limits::CHUNK_TOKENS;

const TOKENS: usize = CHUNK_TOKENS as usize;
const ROWS_BYTES: usize = 2 * TOKENS * LANES;

/// Codes and values of some channels by tokens, which are less than what packing takes.
const _: () = assert!(SCRATCH_BYTES >= 2 * ROWS_BYTES);

/// Unpacks one part of a checked payload.
pub(super) fn read(
    kernels: &Kernels,
    scratch: &mut [u8],
    geometry: &Geometry,
    payload: &[u8],
    part: usize,
    values: &mut [u16],
) -> Result<()> {
    let (codes, rest) = scratch.split_at_mut(ROWS_BYTES);
    let codes = view::numbers_mut::<i16>(codes).ok_or(MISALIGNED_SCRATCH)?;
    let tile = view::numbers_mut::<u16>(&mut rest[..ROWS_BYTES]).ok_or(MISALIGNED_SCRATCH)?;
    let tokens = usize::from(geometry.tokens);
    let codes = &mut codes.as_chunks_mut::<LANES>().0[..tokens];
    let (is_k, head_dim) = (is_k(geometry, part), geometry.head_dim());
    let code_max = code_max(geometry, is_k);
    let planes = Planes::new(geometry);
    let scales = view::numbers::<u16>(&payload[..planes.places]).ok_or(MISALIGNED)?;
    let scales = &scales[usize::from(!is_k) * tokens..][..tokens];
    let mut steps = [0.0; TOKENS];
    for (step, &scale) in steps.iter_mut().zip(scales) {
        *step = CodeSteps::new(scale, code_max).step;
    }
    let mut start = index(payload, planes.places, part).ok_or(STREAM)?;
    for first in (0..head_dim).step_by(LANES) {
        let lanes = LANES.min(head_dim - first);
        let row = part * head_dim + first;
        let cdfs = cdfs(kernels, &planes, payload, row, lanes)?;
        let mut streams = [Stream::default(); LANES];
        for (lane, stream) in streams[..lanes].iter_mut().enumerate() {
            let length = index(payload, planes.lengths, row + lane).ok_or(STREAM)?;
            *stream = Stream { start, end: start + length };
            start += length;
        }
        let streams = &streams[..lanes];
        let symbols = 2 * u16::from(code_max) + 1;
        if !kernels.cachegen_decode.call(payload, streams, &cdfs, symbols, codes) {
            return Err(STREAM.with(first));
        }
        let (rows, stride) = match geometry.layout {
            ChunkLayout::TokenMajor => (&mut values[first..], head_dim),
            ChunkLayout::ChannelMajor => (&mut *tile, LANES),
        };
        for ((row, codes), &step) in rows.chunks_mut(stride).zip(&*codes).zip(&steps) {
            let steps = RowSteps::Even(step);
            kernels.lattice_unpack.call(&codes[..lanes], steps, &mut row[..lanes]);
        }
        if geometry.layout == ChunkLayout::ChannelMajor {
            let matrix =
                Matrix { rows: tokens, columns: lanes, from_stride: LANES, to_stride: TOKENS };
            kernels.transpose.call(&matrix, tile, &mut values[first * TOKENS..]);
        }
    }
    Ok(())
}

const STREAM: Error = Error::new(Code::Corrupt, "packed stream");

/// The frequencies of some channels from `row` on; those of the first for lanes without a channel.
fn cdfs(
    kernels: &Kernels,
    planes: &Planes,
    payload: &[u8],
    row: usize,
    lanes: usize,
) -> Result<Cdfs> {
    let entries = view::numbers::<u16>(&payload[planes.cdfs..planes.streams]).ok_or(MISALIGNED)?;
    let mut cdfs = [[0; LANES]; CDF_VALUES];
    let matrix =
        Matrix { rows: lanes, columns: CDF_VALUES, from_stride: CDF_VALUES, to_stride: LANES };
    kernels.transpose.call(&matrix, &entries[CDF_VALUES * row..], cdfs.as_flattened_mut());
    for entries in &mut cdfs {
        let first = entries[0];
        entries[lanes..].fill(first);
    }
    let ends = [cdfs[0], cdfs[CDF_VALUES - 1]];
    let mut is_sound = ends == [[0; LANES], [u16::MAX; LANES]];
    for (one, next) in cdfs.iter().zip(&cdfs[1..]) {
        is_sound &= one.iter().zip(next).fold(true, |sound, (one, next)| sound & (one < next));
    }
    match is_sound {
        true => Ok(cdfs),
        false => Err(Error::new(Code::Corrupt, "packed frequencies").with(row)),
    }
}
