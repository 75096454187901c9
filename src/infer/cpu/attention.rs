//! Attention in one pass over a layer's KV chunks, with an online softmax.
//!
//! ```text
//! item = panel of some query heads   a team member takes a run of items
//!
//! for each key head:                 the chunk's K and V rows of that head
//!     for each chunk:
//!         for each item of the run whose query heads share the key head:
//!             scores = K q, mask, softmax step, rescale sums, sums += V factors
//! ```
//!
//! Panels of 16 or 32 lanes use the matrix kernel on K and V widened once for all items; where
//! tokens leave lanes empty, query heads share a panel (`fold`). Single tokens use the
//! half-precision row kernels. New tokens' keys and values are in the chunks already.

use super::batch::Batch;
use super::fold::Fold;
use super::linear::Engine;
use super::pointwise::{scale, scale_lanes};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::infer::Memory;
use crate::infer::model::Shape;
use crate::kernel::math::half::f16_of_f32;
use crate::kernel::math::{MASKED, MathKernels, Strided, WeightType};
use crate::limits::{CHUNK_TOKENS, WORKERS_MAX};
use crate::port::parallel::parallel;
use crate::units::{ChunkId, ChunkIndex, LayerIndex};
use core::array::from_fn;
use core::ops::Range;

const TOKENS: usize = CHUNK_TOKENS as usize;
const WIDTH_MAX: usize = 32;

/// Scratch values that one team member needs: K and V of one head and chunk, and scores.
pub fn scratch_values(shape: &Shape) -> usize {
    2 * TOKENS * usize::from(shape.head_dim) + TOKENS * WIDTH_MAX
}

/// Values of state for each item and lane: the largest score and the sum of factors.
pub const STATE_VALUES: usize = 2;

/// Chunk `index` of a layer.
fn chunk_id(layer: LayerIndex, index: usize) -> Result<ChunkId> {
    match u16::try_from(index) {
        Ok(index) => Ok(ChunkId { layer, chunk: ChunkIndex::new(index) }),
        Err(_) => Err(Error::new(Code::LimitExceeded, "context chunks").with(index)),
    }
}

/// Appends a batch's keys and values, rounded to half precision, to the layer's chunks.
pub fn write_kv(
    memory: &dyn Memory,
    layer: LayerIndex,
    shape: &Shape,
    batch: &Batch,
    k: &[f32],
    v: &[f32],
) -> Result<()> {
    let mut token = 0;
    while token < batch.tokens {
        let position = batch.position as usize + token;
        let (index, row) = (position / TOKENS, position % TOKENS);
        let count = (batch.tokens - token).min(TOKENS - row);
        let mut chunk = memory.kv_mut(chunk_id(layer, index)?)?;
        let values = view::numbers_mut::<u16>(&mut chunk).unwrap_or_default();
        let block = shape.kv().block_values();
        if values.len() != 2 * block {
            return Err(Error::new(Code::Mismatch, "kv chunk size").with(values.len()));
        }
        let (keys, others) = values.split_at_mut(block);
        copy_rows(k, keys, shape, batch, token..token + count, row);
        copy_rows(v, others, shape, batch, token..token + count, row);
        token += count;
    }
    Ok(())
}

/// Lanes of panels to rows of each head, from row `row` on.
fn copy_rows(
    from: &[f32],
    to: &mut [u16],
    shape: &Shape,
    batch: &Batch,
    tokens: Range<usize>,
    row: usize,
) {
    let head_dim = usize::from(shape.head_dim);
    for (head, to) in to.chunks_exact_mut(TOKENS * head_dim).enumerate() {
        let rows = to.chunks_exact_mut(head_dim).skip(row);
        for (token, to) in tokens.clone().zip(rows) {
            let first = batch.index(shape.kv_values(), head * head_dim, token);
            let values = from[first..].iter().step_by(batch.width);
            for (to, value) in to.iter_mut().zip(values) {
                *to = f16_of_f32(*value);
            }
        }
    }
}

/// What one call works on.
#[derive(Clone, Copy)]
struct Job<'a> {
    kernels: &'a MathKernels,
    memory: &'a dyn Memory,
    layer: LayerIndex,
    shape: &'a Shape,
    batch: &'a Batch,
    fold: Fold,
    q: &'a [f32],
}

/// One member's run of items.
struct Part<'a> {
    items: Range<usize>,
    y: &'a mut [f32],
    state: &'a mut [f32],
    scratch: &'a mut [f32],
    result: Result<()>,
}

/// `y = softmax(q K) V` for a batch whose last token ends the context. `q` is scaled already, and
/// of no use afterwards; `q` and `y` are panels of all query heads; `state` holds [`STATE_VALUES`]
/// for each item and lane.
#[expect(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
pub fn attend(
    engine: Engine<'_>,
    memory: &dyn Memory,
    layer: LayerIndex,
    shape: &Shape,
    batch: &Batch,
    q: &mut [f32],
    y: &mut [f32],
    state: &mut [f32],
    scratch: &mut [f32],
) -> Result<()> {
    let workers = engine.workers;
    assert!((1..=WORKERS_MAX).contains(&workers));
    let fold = Fold::of(shape, batch);
    let items = batch.panels * shape.heads / fold.heads;
    let head_values = usize::from(shape.head_dim) * batch.width;
    let state_values = STATE_VALUES * batch.width;
    let share = scratch.len() / workers;
    let mut scratches = scratch.chunks_exact_mut(share);
    let mut y_rest = &mut y[..items * head_values];
    let mut state_rest = &mut state[..items * state_values];
    let mut parts: [Part<'_>; WORKERS_MAX] = from_fn(|index| {
        let index = index.min(workers);
        let run = items * index / workers..(items * (index + 1) / workers).min(items);
        let (y, y_behind) = core::mem::take(&mut y_rest).split_at_mut(run.len() * head_values);
        let (state, behind) =
            core::mem::take(&mut state_rest).split_at_mut(run.len() * state_values);
        (y_rest, state_rest) = (y_behind, behind);
        let scratch = scratches.next().unwrap_or_default();
        Part { items: run, y, state, scratch, result: Ok(()) }
    });
    fold.fold(q);
    let job = Job { kernels: engine.kernels, memory, layer, shape, batch, fold, q };
    parallel(engine.team, &mut parts[..workers], |_, part| part.result = job.work(part));
    parts[..workers].iter().try_for_each(|part| part.result)?;
    fold.unfold(y);
    Ok(())
}

impl Job<'_> {
    fn work(&self, part: &mut Part<'_>) -> Result<()> {
        part.y.fill(0.0);
        for state in part.state.chunks_exact_mut(STATE_VALUES * self.batch.width) {
            let (largest, total) = state.split_at_mut(self.batch.width);
            largest.fill(MASKED);
            total.fill(0.0);
        }
        let context = self.batch.position as usize + self.batch.tokens;
        for kv_head in 0..usize::from(self.shape.kv_heads) {
            if part.items.clone().any(|item| self.shares(item, kv_head)) {
                for chunk in 0..context.div_ceil(TOKENS) {
                    let keys = TOKENS.min(context - chunk * TOKENS);
                    self.chunk(part, kv_head, chunk, keys)?;
                }
            }
        }
        let width = self.batch.width;
        let head_values = usize::from(self.shape.head_dim) * width;
        let states = part.state.chunks_exact_mut(STATE_VALUES * width);
        for (y, state) in part.y.chunks_exact_mut(head_values).zip(states) {
            let total = &mut state[width..];
            for total in total.iter_mut() {
                *total = 1.0 / *total;
            }
            scale_lanes(y, total);
        }
        Ok(())
    }

    /// Where a panel's tokens begin.
    fn position(&self, item: usize) -> usize {
        self.batch.panel_position(item * self.fold.heads / self.shape.heads)
    }

    fn shares(&self, item: usize, kv_head: usize) -> bool {
        item * self.fold.heads % self.shape.heads / self.shape.group() == kv_head
    }

    /// All items of the run that read this key head, over one chunk.
    fn chunk(&self, part: &mut Part<'_>, kv_head: usize, chunk: usize, keys: usize) -> Result<()> {
        let lease = self.memory.kv(chunk_id(self.layer, chunk)?)?;
        let block = self.shape.kv().block_values();
        let head_dim = usize::from(self.shape.head_dim);
        if lease.len() != self.shape.kv().chunk_bytes() {
            return Err(Error::new(Code::Mismatch, "kv chunk size").with(lease.len()));
        }
        let first = 2 * kv_head * TOKENS * head_dim;
        let k = &lease[first..first + 2 * keys * head_dim];
        let v = &lease[2 * block + first..2 * block + first + 2 * keys * head_dim];
        let (wide, scores) = part.scratch.split_at_mut(2 * TOKENS * head_dim);
        let (wide_k, wide_v) = wide.split_at_mut(TOKENS * head_dim);
        let (wide_k, wide_v) = (&mut wide_k[..keys * head_dim], &mut wide_v[..keys * head_dim]);
        if self.batch.width > 1 {
            self.kernels.dequantise(WeightType::F16, k, wide_k);
            self.kernels.dequantise(WeightType::F16, v, wide_v);
        }
        let head_values = head_dim * self.batch.width;
        let ys = part.y.chunks_exact_mut(head_values);
        let states = part.state.chunks_exact_mut(STATE_VALUES * self.batch.width);
        for (item, (y, state)) in part.items.clone().zip(ys.zip(states)) {
            let last = self.position(item) + self.batch.width;
            let visible = keys.min(last.saturating_sub(chunk * TOKENS));
            if !self.shares(item, kv_head) || visible == 0 {
                continue;
            }
            let q = &self.q[item * head_values..(item + 1) * head_values];
            let visible_values = visible * head_dim;
            if self.batch.width == 1 {
                let halves = |bytes| view::numbers::<u16>(bytes).unwrap_or_default();
                let k = &halves(k)[..visible_values];
                let v = &halves(v)[..visible_values];
                self.single(q, k, v, &mut scores[..visible], y, state);
            } else {
                let (k, v) = (&wide_k[..visible_values], &wide_v[..visible_values]);
                let before = self.position(item);
                let scores = &mut scores[..visible * self.batch.width];
                self.panel(q, k, v, scores, y, state, (chunk * TOKENS, before));
            }
        }
        Ok(())
    }

    fn single(
        &self,
        q: &[f32],
        k: &[u16],
        v: &[u16],
        scores: &mut [f32],
        y: &mut [f32],
        state: &mut [f32],
    ) {
        self.kernels.dots_f16(k, q, scores);
        let before = state[0];
        let (largest, sum) = self.kernels.softmax_row(scores, before);
        let rescale = (before - largest).exp();
        state[0] = largest;
        state[1] = state[1] * rescale + sum;
        scale(y, rescale);
        self.kernels.add_rows_f16(v, scores, y);
    }

    /// `starts`: the positions of the first key and of the first lane.
    #[expect(clippy::too_many_arguments, reason = "the operands of one step, all of them slices")]
    fn panel(
        &self,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        scores: &mut [f32],
        y: &mut [f32],
        state: &mut [f32],
        starts: (usize, usize),
    ) {
        let (width, head_dim) = (self.batch.width, usize::from(self.shape.head_dim));
        self.kernels.tile(Strided::rows(k, head_dim), q, scores, width, false);
        let (first_key, first_lane) = starts;
        for (key, lanes) in scores.chunks_exact_mut(width).enumerate() {
            // Lanes before the key's own position must not see it.
            let hidden = (first_key + key).saturating_sub(first_lane).min(self.fold.lanes);
            for lanes in lanes.chunks_exact_mut(self.fold.lanes).take(self.fold.heads) {
                lanes[..hidden].fill(MASKED);
            }
        }
        let mut rescale = [0.0; WIDTH_MAX];
        let rescale = &mut rescale[..width];
        let (largest, total) = state.split_at_mut(width);
        self.kernels.softmax_columns(scores, largest, total, rescale);
        scale_lanes(y, rescale);
        self.kernels.tile(Strided::columns(v, head_dim), scores, y, width, true);
    }
}
