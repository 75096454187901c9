//! One step of the online softmax, down the lanes of a panel or along a row, and SwiGLU.
//!
//! State of a query: `largest`, the largest score so far, and `total`, the sum of `exp(score -
//! largest)`. A step turns a chunk's scores into factors for the value rows and says by how much to
//! scale what was summed up before.

use super::vector::{Vector, exp};

/// Scores at or below this count as masked. Finite, so that no step computes infinity - infinity.
pub const MASKED: f32 = -1e30;

/// A step for `width` queries whose scores lie in the lanes of `keys` panel rows.
///
/// # Safety
///
/// The CPU has V's instruction set; `scores` is valid for `keys * width`, the others for `width`
/// elements, without overlap; `width` is a multiple of `V::LANES`.
#[inline(always)]
pub unsafe fn softmax_columns<V: Vector>(
    scores: *mut f32,
    keys: usize,
    width: usize,
    largest: *mut f32,
    total: *mut f32,
    rescale: *mut f32,
) {
    let mut lane = 0;
    while lane < width {
        // SAFETY: lane + LANES <= width, so every register is in bounds (caller's promise).
        unsafe {
            let before = V::load(largest.add(lane));
            let mut peak = before;
            for key in 0..keys {
                peak = peak.max(V::load(scores.add(key * width + lane)));
            }
            let mut sum = V::splat(0.0);
            for key in 0..keys {
                let at = scores.add(key * width + lane);
                let factor = exp(V::load(at).sub(peak));
                factor.store(at);
                sum = sum.add(factor);
            }
            let scale = exp(before.sub(peak));
            peak.store(largest.add(lane));
            V::load(total.add(lane)).mul_add(scale, sum).store(total.add(lane));
            scale.store(rescale.add(lane));
        }
        lane += V::LANES;
    }
}

/// A step for one query whose scores lie side by side. Returns the new largest score and the sum of
/// the factors.
///
/// # Safety
///
/// The CPU has V's instruction set; `scores` is valid for `keys` elements.
#[inline(always)]
pub unsafe fn softmax_row<V: Vector>(scores: *mut f32, keys: usize, before: f32) -> (f32, f32) {
    // SAFETY: registers and tails stay below `keys` (caller's promise).
    unsafe {
        let mut peak = V::splat(before);
        let mut key = 0;
        while key + V::LANES <= keys {
            peak = peak.max(V::load(scores.add(key)));
            key += V::LANES;
        }
        let (tail, tail_keys) = (key, keys - key);
        let last: V = load_tail(scores.add(tail), tail_keys, MASKED);
        let peak = peak.max(last).largest();
        let mut sum = V::splat(0.0);
        key = 0;
        while key < tail {
            let factor = exp(V::load(scores.add(key)).sub(V::splat(peak)));
            factor.store(scores.add(key));
            sum = sum.add(factor);
            key += V::LANES;
        }
        let factor = exp(last.sub(V::splat(peak)));
        store_tail(factor, scores.add(tail), tail_keys);
        // Lanes past the tail held MASKED; they add nothing unless all scores are masked.
        let mut kept = [0.0f32; LANES_MAX];
        factor.store(kept.as_mut_ptr());
        kept[tail_keys..].fill(0.0);
        (peak, sum.add(V::load(kept.as_ptr())).sum())
    }
}

/// `gate = gate / (1 + exp(-gate)) * up`.
///
/// # Safety
///
/// The CPU has V's instruction set; both are valid for `count` elements, without overlap.
#[inline(always)]
pub unsafe fn swiglu<V: Vector>(gate: *mut f32, up: *const f32, count: usize) {
    let mut i = 0;
    // SAFETY: registers and tails stay below `count` (caller's promise).
    unsafe {
        while i + V::LANES <= count {
            silu_times(V::load(gate.add(i)), V::load(up.add(i))).store(gate.add(i));
            i += V::LANES;
        }
        let left = count - i;
        let gates: V = load_tail(gate.add(i), left, 0.0);
        let ups: V = load_tail(up.add(i), left, 0.0);
        store_tail(silu_times(gates, ups), gate.add(i), left);
    }
}

/// # Safety
///
/// The CPU has V's instruction set.
#[inline(always)]
unsafe fn silu_times<V: Vector>(gate: V, up: V) -> V {
    // SAFETY: register arithmetic only.
    unsafe {
        let denominator = exp(V::splat(0.0).sub(gate)).add(V::splat(1.0));
        gate.div(denominator).mul(up)
    }
}

const LANES_MAX: usize = 16;

/// # Safety
///
/// The CPU has V's instruction set; `from` is valid for `count < V::LANES` elements.
#[inline(always)]
unsafe fn load_tail<V: Vector>(from: *const f32, count: usize, fill: f32) -> V {
    let mut lanes = [fill; LANES_MAX];
    // SAFETY: count < LANES <= 16 elements are readable (caller) and fit into `lanes`.
    unsafe {
        core::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
        V::load(lanes.as_ptr())
    }
}

/// # Safety
///
/// The CPU has V's instruction set; `to` is valid for `count < V::LANES` elements.
#[inline(always)]
unsafe fn store_tail<V: Vector>(value: V, to: *mut f32, count: usize) {
    let mut lanes = [0.0f32; LANES_MAX];
    // SAFETY: a register fits into `lanes`; count < LANES elements are writable (caller).
    unsafe {
        value.store(lanes.as_mut_ptr());
        core::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
    }
}
