//! The loops in plain Rust: the oracle of the others. Nothing here is unsafe.

use super::{CODE_MAX, RowSteps};
use crate::kernel::portable::{f16_from_f32, f32_from_f16};
use core::iter::repeat;

/// Quotients below it are rounded to at most [`CODE_MAX`].
pub(super) const QUOTIENT_END: f32 = CODE_MAX as f32 + 0.5;
/// Products from here on are rounded to infinity: halfway from the greatest F16 to the next power
/// of two.
pub(super) const PRODUCT_END: f32 = 65520.0;

pub(super) fn pack(values: &[u16], steps: RowSteps<'_>, codes: &mut [i16]) -> bool {
    match steps {
        RowSteps::Even(step) => pack_with(values, repeat((step, 1.0 / step)), codes),
        RowSteps::Each { steps, per_one } => {
            pack_with(values, steps.iter().copied().zip(per_one.iter().copied()), codes)
        }
    }
}

#[inline(always)]
fn pack_with(values: &[u16], steps: impl Iterator<Item = (f32, f32)>, codes: &mut [i16]) -> bool {
    /// Added to it, a small number is rounded to an integer, which the low bits then hold.
    const ROUNDER: f32 = 12_582_912.0;
    let mut fits = true;
    for ((&half, (step, per_one)), code) in values.iter().zip(steps).zip(codes) {
        let quotient = f32_from_f16(half) * per_one;
        let [low, high, ..] = (quotient + ROUNDER).to_bits().to_le_bytes();
        *code = i16::from_le_bytes([low, high]);
        let product = f32::from(*code) * step;
        // Numbers that are no numbers are not below anything.
        fits &= (quotient.abs() < QUOTIENT_END) & (product.abs() < PRODUCT_END);
    }
    fits
}

pub(super) fn unpack(codes: &[i16], steps: RowSteps<'_>, values: &mut [u16]) {
    match steps {
        RowSteps::Even(step) => unpack_with(codes, repeat(step), values),
        RowSteps::Each { steps, .. } => unpack_with(codes, steps.iter().copied(), values),
    }
}

#[inline(always)]
fn unpack_with(codes: &[i16], steps: impl Iterator<Item = f32>, values: &mut [u16]) {
    for ((&code, step), half) in codes.iter().zip(steps).zip(values) {
        *half = f16_from_f32(f32::from(code) * step);
    }
}

pub(super) fn offsets(residuals: &[u8], base: i16, codes: &mut [i16]) {
    for (code, &residual) in codes.iter_mut().zip(residuals) {
        *code = base.wrapping_add(i16::from(residual.cast_signed()));
    }
}

pub(super) fn running(residuals: &[u8], base: i16, codes: &mut [i16]) {
    let mut sum = base;
    for (code, &residual) in codes.iter_mut().zip(residuals) {
        sum = sum.wrapping_add(i16::from(residual.cast_signed()));
        *code = sum;
    }
}
