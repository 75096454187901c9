//! What runs down the lanes of panels: norms, rotations, sums.

use super::batch::Batch;
use crate::error::Result;
use crate::infer::model::Architecture;
use crate::infer::model::{Shape, Tensor};
use crate::kernel::math::MathKernels;

/// Widest panel.
const WIDTH_MAX: usize = 32;

/// `y = x / sqrt(mean(x^2) + epsilon) * weight`, over groups of `weight.cols` features.
pub fn rms_norm(
    kernels: &MathKernels,
    x: &[f32],
    y: &mut [f32],
    unit: &[u8],
    weight: &Tensor,
    epsilon: f32,
    width: usize,
) -> Result<()> {
    let weights = weight.in_unit(unit)?;
    let group = weight.cols * width;
    for (x, y) in x.chunks_exact(group).zip(y.chunks_exact_mut(group)) {
        y.copy_from_slice(x);
        normalise(kernels, y, weights, epsilon, width);
    }
    Ok(())
}

/// The same in place.
pub fn rms_norm_in_place(
    kernels: &MathKernels,
    y: &mut [f32],
    unit: &[u8],
    weight: &Tensor,
    epsilon: f32,
    width: usize,
) -> Result<()> {
    let weights = weight.in_unit(unit)?;
    for y in y.chunks_exact_mut(weight.cols * width) {
        normalise(kernels, y, weights, epsilon, width);
    }
    Ok(())
}

fn normalise(kernels: &MathKernels, y: &mut [f32], weights: &[u8], epsilon: f32, width: usize) {
    let mut factors = [0.0f32; WIDTH_MAX];
    let factors = &mut factors[..width];
    if width == 1 {
        // A sum along memory: the lanes of a register work side by side.
        kernels.dots(y, y, factors);
    } else {
        for lanes in y.chunks_exact(width) {
            for (sum, value) in factors.iter_mut().zip(lanes) {
                *sum += value * value;
            }
        }
    }
    let count = (y.len() / width) as f32;
    for factor in factors.iter_mut() {
        *factor = 1.0 / (*factor / count + epsilon).sqrt();
    }
    for (lanes, bytes) in y.chunks_exact_mut(width).zip(weights.chunks_exact(4)) {
        let weight = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        for (value, factor) in lanes.iter_mut().zip(factors.iter()) {
            *value = *value * factor * weight;
        }
    }
}

/// `x += y`.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `x *= factor`.
pub fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// Rows of panels times a factor for each lane.
pub fn scale_lanes(x: &mut [f32], factors: &[f32]) {
    for lanes in x.chunks_exact_mut(factors.len()) {
        for (value, factor) in lanes.iter_mut().zip(factors) {
            *value *= factor;
        }
    }
}

/// Cosines and sines of a batch's rotations: `[panel][pair][lane]`.
pub struct Rotation<'a> {
    /// Cosines.
    pub cos: &'a mut [f32],
    /// Sines.
    pub sin: &'a mut [f32],
}

impl Rotation<'_> {
    /// Fills in the angles of a batch's positions.
    pub fn prepare(&mut self, frequencies: &[f32], batch: &Batch) {
        let panel_values = frequencies.len() * batch.width;
        let panels = self.cos.chunks_exact_mut(panel_values);
        let panels = panels.zip(self.sin.chunks_exact_mut(panel_values)).take(batch.panels);
        for (panel, (cos, sin)) in panels.enumerate() {
            let rows = cos.chunks_exact_mut(batch.width).zip(sin.chunks_exact_mut(batch.width));
            for ((cos, sin), frequency) in rows.zip(frequencies) {
                for lane in 0..batch.width {
                    let position = (batch.panel_position(panel) + lane) as f32;
                    (sin[lane], cos[lane]) = (position * frequency).sin_cos();
                }
            }
        }
    }

    /// Rotates the pairs of every head of `x`, panels of whole heads.
    pub fn apply(&self, x: &mut [f32], shape: &Shape, batch: &Batch) {
        let pairs = usize::from(shape.head_dim / 2);
        let (width, head_values) = (batch.width, 2 * pairs * batch.width);
        let heads_values = x.len() / batch.panels;
        for (panel, x) in x.chunks_exact_mut(heads_values).enumerate() {
            let table = panel * pairs * width..(panel + 1) * pairs * width;
            let (cos, sin) = (&self.cos[table.clone()], &self.sin[table]);
            for head in x.chunks_exact_mut(head_values) {
                match shape.architecture {
                    Architecture::Llama => {
                        let both = head.chunks_exact_mut(2 * width);
                        let tables = cos.chunks_exact(width).zip(sin.chunks_exact(width));
                        for (both, (cos, sin)) in both.zip(tables) {
                            let (a, b) = both.split_at_mut(width);
                            rotate(a, b, cos, sin);
                        }
                    }
                    Architecture::Qwen3 => {
                        let (a, b) = head.split_at_mut(pairs * width);
                        rotate(a, b, cos, sin);
                    }
                }
            }
        }
    }
}

fn rotate(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}
