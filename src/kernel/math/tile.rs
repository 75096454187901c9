//! The small matrix product that prefill and attention are made of.
//!
//! ```text
//! y[row][lane] (+)= sum over d of weight(row, d) * x[d][lane]
//! ```
//!
//! `x` and `y` are panels: one row of `width` tokens a feature. A block of R weight rows by N
//! registers of tokens stays in registers for the whole depth: each step loads N registers of `x`,
//! broadcasts R weights and does R * N multiply-adds. Weights are addressed by two strides, so that
//! a transposed operand needs no copy. A lane's sum runs over d in order, whatever the block sizes.

use super::vector::Vector;

/// Operands of one product. All offsets it implies are in bounds (checked by the table).
pub struct TileJob {
    pub weights: *const f32,
    pub row_stride: usize,
    pub depth_stride: usize,
    pub rows: usize,
    pub depth: usize,
    pub x: *const f32,
    pub y: *mut f32,
    pub width: usize,
    /// Add to `y` instead of replacing it.
    pub accumulate: bool,
}

/// The whole product in blocks of `R` rows, then 4, then 1.
///
/// # Safety
///
/// The CPU has V's instruction set; the job's operands are in bounds; `y` overlaps neither of the
/// others; `width` is a multiple of `V::LANES`.
#[inline(always)]
pub unsafe fn tile<V: Vector, const R: usize, const N: usize>(job: &TileJob) {
    let mut row = 0;
    // SAFETY: row + block <= rows in each call, the rest is the caller's promise.
    unsafe {
        while row + R <= job.rows {
            block_row::<V, R, N>(job, row);
            row += R;
        }
        while row + 4 <= job.rows {
            block_row::<V, 4, N>(job, row);
            row += 4;
        }
        while row < job.rows {
            block_row::<V, 1, N>(job, row);
            row += 1;
        }
    }
}

/// # Safety
///
/// As for [`tile`], and `row + R <= rows`.
#[inline(always)]
unsafe fn block_row<V: Vector, const R: usize, const N: usize>(job: &TileJob, row: usize) {
    let mut lane = 0;
    // SAFETY: lane + registers * LANES <= width in each call, the rest is the caller's promise.
    unsafe {
        while lane + N * V::LANES <= job.width {
            block::<V, R, N>(job, row, lane);
            lane += N * V::LANES;
        }
        while lane < job.width {
            block::<V, R, 1>(job, row, lane);
            lane += V::LANES;
        }
    }
}

/// # Safety
///
/// As for [`tile`]; `row + R <= rows` and `lane + N * LANES <= width`.
#[inline(always)]
unsafe fn block<V: Vector, const R: usize, const N: usize>(job: &TileJob, row: usize, lane: usize) {
    let TileJob { row_stride, depth_stride, width, .. } = *job;
    // SAFETY: every address is x[d][lane..], y[row..][lane..] or a weight of rows row..row+R at
    // depth d < depth, all in bounds by the caller's promise.
    unsafe {
        let y = job.y.add(row * width + lane);
        let mut sums = [[V::splat(0.0); N]; R];
        if job.accumulate {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(y.add(r * width + n * V::LANES));
                }
            }
        }
        let mut weights = job.weights.add(row * row_stride);
        let mut x = job.x.add(lane);
        for _ in 0..job.depth {
            let mut lanes = [V::splat(0.0); N];
            for (n, lanes) in lanes.iter_mut().enumerate() {
                *lanes = V::load(x.add(n * V::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*weights.add(r * row_stride));
                for (sum, lanes) in sums.iter_mut().zip(lanes) {
                    *sum = weight.mul_add(lanes, *sum);
                }
            }
            weights = weights.wrapping_add(depth_stride);
            x = x.wrapping_add(width);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (n, sum) in sums.iter().enumerate() {
                sum.store(y.add(r * width + n * V::LANES));
            }
        }
    }
}
