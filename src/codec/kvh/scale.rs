//! The steps of V: a grid of half octaves, and which of its points a token gets.

use super::{ROW_STRIDE, V_STEP};
use crate::kernel::Kernels;
use crate::kernel::lattice::RowSteps;
use crate::limits::CHUNK_TOKENS;
use core::f32::consts::SQRT_2;

/// Points of the grid: from the least step that keeps codes stable to the greatest mean square of
/// F16 values.
pub(super) const SCALES: i16 = 79;

/// Binary logarithm of the mean square that belongs to point 0.
const LOG_MIN: i32 = -46;

const _: () = assert!(step(0) >= f32::from_bits((127 - 24) << 23));
const _: () = assert!(SCALES as i32 + LOG_MIN == 33);

/// In which order a token tries the points around its own. Rounding moves the mean square by less
/// than two of them.
const NEIGHBOURS: [i16; 5] = [0, 1, -1, 2, -2];

pub(super) type Indices = [i16; CHUNK_TOKENS as usize];

/// The step of a point, which is within the grid.
#[expect(clippy::cast_sign_loss, reason = "exponents of finite numbers")]
pub(super) const fn step(index: i16) -> f32 {
    let log = index as i32 + LOG_MIN;
    let root = if log % 2 == 0 { 1.0 } else { SQRT_2 };
    V_STEP * root * f32::from_bits(((127 + log.div_euclid(2)) as u32) << 23)
}

/// The steps of a row of tokens.
pub(super) struct TokenSteps {
    steps: [f32; ROW_STRIDE],
    per_one: [f32; ROW_STRIDE],
    tokens: usize,
}

impl TokenSteps {
    /// Of tokens with these points of the grid.
    pub(super) fn new(points: &[i16]) -> TokenSteps {
        let mut row = TokenSteps {
            steps: [1.0; ROW_STRIDE],
            per_one: [1.0; ROW_STRIDE],
            tokens: points.len(),
        };
        for ((step_of_token, per_one), &point) in
            row.steps.iter_mut().zip(&mut row.per_one).zip(points)
        {
            *step_of_token = step(point);
            *per_one = 1.0 / *step_of_token;
        }
        row
    }

    pub(super) fn row(&self) -> RowSteps<'_> {
        RowSteps::Each { steps: &self.steps[..self.tokens], per_one: &self.per_one[..self.tokens] }
    }
}

/// Rows of one part of V, one channel each, [`ROW_STRIDE`] apart.
pub(super) struct Rows<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) values: &'a mut [u16],
    pub(super) tokens: usize,
}

impl Rows<'_> {
    fn iter(&self) -> impl Iterator<Item = &[u16]> {
        self.values.chunks_exact(ROW_STRIDE).map(|row| &row[..self.tokens])
    }

    /// Chooses the tokens' points and makes every value a multiple of its token's step. `None` when
    /// a value is not finite, or would not be.
    pub(super) fn settle(&mut self) -> Option<Indices> {
        let own = self.own_points()?;
        let mut indices = own;
        if self.keep(&own, &mut indices) {
            return Some(indices);
        }
        if !self.round(&indices) {
            return None;
        }
        let own = self.own_points()?;
        self.keep(&own, &mut indices).then_some(indices)
    }

    /// The points that the tokens' mean squares ask for. Squares are added channel by channel, so
    /// that all machines agree.
    fn own_points(&self) -> Option<Indices> {
        let mut singles = [0.0; ROW_STRIDE];
        let mut sums = [0.0; ROW_STRIDE];
        let (singles, sums) = (&mut singles[..self.tokens], &mut sums[..self.tokens]);
        let mut channels = 0u16;
        for row in self.iter() {
            self.kernels.f16_to_f32.call(row, singles);
            for (sum, &single) in sums.iter_mut().zip(&*singles) {
                *sum += single * single;
            }
            channels += 1;
        }
        let mut points = [0; ROW_STRIDE];
        for (point, &sum) in points.iter_mut().zip(&*sums) {
            if !f32::is_finite(sum) {
                return None;
            }
            // Times the root of 2, the exponent is the nearest one.
            *point = clamped(log_of(sum * (SQRT_2 / f32::from(channels))) - LOG_MIN);
        }
        Some(points)
    }

    /// Gives tokens the first of the points around their own under which none of their values
    /// changes, and leaves the others theirs; whether all tokens have one.
    fn keep(&self, own: &Indices, indices: &mut Indices) -> bool {
        let (mut codes, mut back) = ([0; ROW_STRIDE], [0; ROW_STRIDE]);
        let (codes, back) = (&mut codes[..self.tokens], &mut back[..self.tokens]);
        // Words of ones are true.
        let mut seeking = [u16::MAX; ROW_STRIDE];
        seeking[self.tokens..].fill(0);
        for neighbour in NEIGHBOURS {
            let tried = own.map(|point| clamped(i32::from(point + neighbour)));
            let steps = TokenSteps::new(&tried[..self.tokens]);
            let mut same = seeking;
            for row in self.iter() {
                // A mean square bounds the values, and so the codes.
                self.kernels.lattice_pack.call(row, steps.row(), codes);
                self.kernels.lattice_unpack.call(codes, steps.row(), back);
                let mut any = 0;
                for ((same, before), after) in same.iter_mut().zip(row).zip(&*back) {
                    *same &= if before == after { u16::MAX } else { 0 };
                    any |= *same;
                }
                if any == 0 {
                    break;
                }
            }
            let mut any = 0;
            for (token, same) in same.iter().enumerate() {
                if *same != 0 {
                    indices[token] = tried[token];
                    seeking[token] = 0;
                }
                any |= seeking[token];
            }
            if any == 0 {
                return true;
            }
        }
        false
    }

    /// Makes every value a multiple of its token's step; false when one would not be finite.
    fn round(&mut self, indices: &Indices) -> bool {
        let steps = TokenSteps::new(&indices[..self.tokens]);
        let mut codes = [0; ROW_STRIDE];
        let codes = &mut codes[..self.tokens];
        for row in self.values.chunks_exact_mut(ROW_STRIDE) {
            let row = &mut row[..self.tokens];
            if !self.kernels.lattice_pack.call(row, steps.row(), codes) {
                return false;
            }
            self.kernels.lattice_unpack.call(codes, steps.row(), row);
        }
        true
    }
}

/// The exponent of a number that is not negative; very small for zero and what is near it.
fn log_of(number: f32) -> i32 {
    let [.., low, high] = number.to_bits().to_le_bytes();
    i32::from(u16::from_le_bytes([low, high]) >> 7) - 127
}

/// The nearest point of the grid.
#[expect(clippy::cast_possible_truncation, reason = "within the grid")]
fn clamped(point: i32) -> i16 {
    point.clamp(0, SCALES as i32 - 1) as i16
}
