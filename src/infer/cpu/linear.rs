//! Products of weight matrices with a batch, shared out by output rows.
//!
//! ```text
//! item = panel * rows + row          a team member takes a run of items
//!
//! for each block of rows:            decode it once into scratch
//!     for each panel in the run:     multiply the part of the block that is in the run
//! ```
//!
//! With few panels members share the rows; with many, each decodes all rows for its own panels,
//! which costs less than it saves in cache traffic.

use super::batch::Batch;
use crate::error::Result;
use crate::infer::model::Tensor;
use crate::kernel::math::{MathKernels, Strided};
use crate::limits::WORKERS_MAX;
use crate::port::Team;
use crate::port::parallel::parallel;
use core::array::from_fn;
use core::ops::Range;

/// Rows decoded at once for panels; a multiple of every kernel's row block.
const PANEL_ROWS: usize = 24;
/// Rows decoded at once for single tokens; small, so that they are still in the first cache level.
const SINGLE_ROWS: usize = 4;
/// Runs begin at multiples of this, so that few blocks are cut.
const RUN_STEP: usize = 12;
/// Matrices in one group.
pub const GROUP_MAX: usize = 3;

/// Scratch values that one team member needs.
pub fn scratch_values(cols_max: usize) -> usize {
    PANEL_ROWS * cols_max
}

/// What a product needs besides its operands.
#[derive(Clone, Copy)]
pub struct Engine<'a> {
    /// The loops.
    pub kernels: &'a MathKernels,
    /// Who shares the work.
    pub team: &'a dyn Team,
    /// Members that take part, at most the team's width.
    pub workers: usize,
}

/// One matrix of a group and where its outputs go.
pub struct Product<'a> {
    /// The matrix.
    pub weight: &'a Tensor,
    /// Added to each output, if there is one.
    pub bias: Option<&'a Tensor>,
    /// Panels of `weight.rows` features.
    pub y: &'a mut [f32],
}

/// What to do with the outputs of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Nothing.
    Plain,
    /// The first becomes `silu(first) * second`; both have the same rows.
    Swiglu,
}

/// A product with its bytes at hand, for one member.
struct Piece<'a> {
    kind_of: &'a Tensor,
    weight: &'a [u8],
    bias: Option<&'a [u8]>,
    items: Range<usize>,
    y: &'a mut [f32],
}

struct Part<'a> {
    pieces: [Option<Piece<'a>>; GROUP_MAX],
    scratch: &'a mut [f32],
}

/// Multiplies each matrix of a group with the same input `x`.
pub fn multiply<const N: usize>(
    engine: Engine<'_>,
    unit: &[u8],
    products: [Product<'_>; N],
    x: &[f32],
    batch: &Batch,
    scratch: &mut [f32],
    finish: Finish,
) -> Result<()> {
    const { assert!(N <= GROUP_MAX) };
    let workers = engine.workers;
    assert!((1..=WORKERS_MAX).contains(&workers));
    let share = scratch.len() / workers;
    let mut scratches = scratch.chunks_exact_mut(share);
    let mut parts: [Part<'_>; WORKERS_MAX] = from_fn(|_| Part {
        pieces: from_fn(|_| None),
        scratch: scratches.next().unwrap_or_default(),
    });
    for (slot, product) in products.into_iter().enumerate() {
        share_out(product, slot, unit, batch, &mut parts[..workers])?;
    }
    parallel(engine.team, &mut parts[..workers], |_, part| {
        for piece in part.pieces.iter_mut().flatten() {
            work(engine.kernels, piece, x, batch, part.scratch);
        }
        if finish == Finish::Swiglu
            && let [Some(gate), Some(up), ..] = &mut part.pieces
        {
            engine.kernels.swiglu(gate.y, up.y);
        }
    });
    Ok(())
}

/// Splits a product's items into runs of nearly equal length.
fn share_out<'a>(
    product: Product<'a>,
    slot: usize,
    unit: &'a [u8],
    batch: &Batch,
    parts: &mut [Part<'a>],
) -> Result<()> {
    let Product { weight: tensor, bias, y } = product;
    let weight = tensor.in_unit(unit)?;
    let bias = bias.map(|bias| bias.in_unit(unit)).transpose()?;
    let items = batch.panels * tensor.rows;
    let steps = items.div_ceil(RUN_STEP);
    let workers = parts.len();
    let mut rest = &mut y[..items * batch.width];
    let mut start = 0;
    for (index, part) in parts.iter_mut().enumerate() {
        let end = (steps * (index + 1) / workers * RUN_STEP).min(items);
        let (y, behind) = rest.split_at_mut((end - start) * batch.width);
        part.pieces[slot] = Some(Piece { kind_of: tensor, weight, bias, items: start..end, y });
        (rest, start) = (behind, end);
    }
    assert_eq!(start, items);
    Ok(())
}

/// One member's run of one product.
fn work(
    kernels: &MathKernels,
    piece: &mut Piece<'_>,
    x: &[f32],
    batch: &Batch,
    scratch: &mut [f32],
) {
    let Tensor { rows, cols, kind, bytes, .. } = *piece.kind_of;
    if piece.items.is_empty() {
        return;
    }
    let row_bytes = bytes / rows;
    if batch.lanes() == 1 {
        let run = piece.items.clone();
        let encoded = &piece.weight[run.start * row_bytes..run.end * row_bytes];
        kernels.decode_dots(kind, encoded, &x[..cols], piece.y);
        if let Some(bias) = piece.bias {
            add_bias(piece.y, &bias[4 * run.start..4 * run.end], 1);
        }
        return;
    }
    let panels = piece.items.start / rows..piece.items.end.div_ceil(rows);
    let step = if batch.width == 1 { SINGLE_ROWS } else { PANEL_ROWS };
    for block in (0..rows).step_by(step) {
        let block = block..rows.min(block + step);
        let needed = union(panels.clone().map(|panel| rows_of(piece, panel, rows, &block)));
        if needed.is_empty() {
            continue;
        }
        let values = &mut scratch[..needed.len() * cols];
        let encoded = &piece.weight[needed.start * row_bytes..needed.end * row_bytes];
        kernels.dequantise(kind, encoded, values);
        for panel in panels.clone() {
            let part = rows_of(piece, panel, rows, &block);
            if part.is_empty() {
                continue;
            }
            let first = panel * rows + part.start - piece.items.start;
            let y = &mut piece.y[first * batch.width..(first + part.len()) * batch.width];
            let weights = &values[(part.start - needed.start) * cols..];
            let weights = &weights[..part.len() * cols];
            let x = &x[panel * cols * batch.width..(panel + 1) * cols * batch.width];
            match batch.width {
                1 => kernels.dots(weights, x, y),
                width => kernels.tile(Strided::rows(weights, cols), x, y, width, false),
            }
            if let Some(bias) = piece.bias {
                add_bias(y, &bias[4 * part.start..4 * part.end], batch.width);
            }
        }
    }
}

/// The rows of a block that are in the run, for one panel.
fn rows_of(piece: &Piece<'_>, panel: usize, rows: usize, block: &Range<usize>) -> Range<usize> {
    let start = piece.items.start.saturating_sub(panel * rows).max(block.start);
    let end = piece.items.end.saturating_sub(panel * rows).min(block.end);
    start..end.max(start)
}

/// The smallest range that holds all that are not empty.
fn union(ranges: impl Iterator<Item = Range<usize>>) -> Range<usize> {
    ranges.filter(|range| !range.is_empty()).fold(0..0, |all, range| match all.is_empty() {
        true => range,
        false => all.start.min(range.start)..all.end.max(range.end),
    })
}

fn add_bias(y: &mut [f32], bias: &[u8], width: usize) {
    for (lanes, bytes) in y.chunks_exact_mut(width).zip(bias.chunks_exact(4)) {
        let bias = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        for lane in lanes {
            *lane += bias;
        }
    }
}

#[cfg(test)]
mod tests;
