//! Products of rows with one vector: what generating one token at a time is made of.

use super::half::f32_of_f16;
use super::vector::Vector;

/// How far ahead keys and values are asked for: the hardware's prefetcher stops at every page.
const PREFETCH_BYTES: usize = 2048;

/// `y[row] = weights[row] . x` for single-precision rows of `depth` values.
///
/// # Safety
///
/// The CPU has V's instruction set; `weights` is valid for `rows * depth`, `x` for `depth`, `y` for
/// `rows` elements; `y` overlaps neither.
#[inline(always)]
pub unsafe fn dots<V: Vector>(
    weights: *const f32,
    x: *const f32,
    depth: usize,
    y: *mut f32,
    rows: usize,
) {
    for row in 0..rows {
        // SAFETY: the row is inside `weights`; registers and single elements stay below `depth`.
        unsafe {
            let w = weights.add(row * depth);
            let mut sums = [V::splat(0.0); 4];
            let mut d = 0;
            while d + 4 * V::LANES <= depth {
                for (n, sum) in sums.iter_mut().enumerate() {
                    let at = d + n * V::LANES;
                    *sum = V::load(w.add(at)).mul_add(V::load(x.add(at)), *sum);
                }
                d += 4 * V::LANES;
            }
            while d + V::LANES <= depth {
                sums[0] = V::load(w.add(d)).mul_add(V::load(x.add(d)), sums[0]);
                d += V::LANES;
            }
            let mut total = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
            while d < depth {
                total += *w.add(d) * *x.add(d);
                d += 1;
            }
            *y.add(row) = total;
        }
    }
}

/// The same for half-precision rows: attention scores of one query.
///
/// # Safety
///
/// As for [`dots`].
#[inline(always)]
pub unsafe fn dots_f16<V: Vector>(
    weights: *const u16,
    x: *const f32,
    depth: usize,
    y: *mut f32,
    rows: usize,
) {
    for row in 0..rows {
        // SAFETY: the row is inside `weights`; registers and single elements stay below `depth`.
        unsafe {
            let w = weights.add(row * depth);
            V::prefetch(w.cast::<u8>().wrapping_add(PREFETCH_BYTES));
            let mut sums = [V::splat(0.0); 2];
            let mut d = 0;
            while d + 2 * V::LANES <= depth {
                for (n, sum) in sums.iter_mut().enumerate() {
                    let at = d + n * V::LANES;
                    *sum = V::load_f16(w.add(at)).mul_add(V::load(x.add(at)), *sum);
                }
                d += 2 * V::LANES;
            }
            while d + V::LANES <= depth {
                sums[0] = V::load_f16(w.add(d)).mul_add(V::load(x.add(d)), sums[0]);
                d += V::LANES;
            }
            let mut total = sums[0].add(sums[1]).sum();
            while d < depth {
                total += f32_of_f16(*w.add(d)) * *x.add(d);
                d += 1;
            }
            *y.add(row) = total;
        }
    }
}

/// `y += sum over rows of factors[row] * rows[row]` for half-precision rows of `depth` values:
/// attention output of one query.
///
/// # Safety
///
/// The CPU has V's instruction set; `rows` is valid for `count * depth`, `factors` for `count`, `y`
/// for `depth` elements; `y` overlaps neither.
#[inline(always)]
pub unsafe fn add_rows_f16<V: Vector>(
    rows: *const u16,
    factors: *const f32,
    count: usize,
    y: *mut f32,
    depth: usize,
) {
    let mut d = 0;
    // SAFETY: every access is at row < count and below `depth`, in bounds by the caller's promise.
    unsafe {
        while d + 4 * V::LANES <= depth {
            add_columns::<V, 4>(rows.add(d), factors, count, y.add(d), depth);
            d += 4 * V::LANES;
        }
        while d + V::LANES <= depth {
            add_columns::<V, 1>(rows.add(d), factors, count, y.add(d), depth);
            d += V::LANES;
        }
        while d < depth {
            for row in 0..count {
                *y.add(d) += *factors.add(row) * f32_of_f16(*rows.add(row * depth + d));
            }
            d += 1;
        }
    }
}

/// # Safety
///
/// As for [`add_rows_f16`], with `N` registers of columns from where the pointers stand.
#[inline(always)]
unsafe fn add_columns<V: Vector, const N: usize>(
    rows: *const u16,
    factors: *const f32,
    count: usize,
    y: *mut f32,
    depth: usize,
) {
    // SAFETY: N registers of each row are in bounds by the caller's promise.
    unsafe {
        let mut sums = [V::splat(0.0); N];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = V::load(y.add(n * V::LANES));
        }
        for row in 0..count {
            let factor = V::splat(*factors.add(row));
            let values = rows.add(row * depth);
            V::prefetch(values.cast::<u8>().wrapping_add(PREFETCH_BYTES));
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = V::load_f16(values.add(n * V::LANES)).mul_add(factor, *sum);
            }
        }
        for (n, sum) in sums.iter().enumerate() {
            sum.store(y.add(n * V::LANES));
        }
    }
}
