//! Values as whole multiples of steps: F16 rows to 16-bit codes, and back.
//!
//! A code is the product of value and reciprocal step in F32, rounded to an integer, ties to even;
//! the value of a code is the product of code and step in F32, rounded to F16. Invariant: for steps
//! from 2^-24 on and codes up to [`CODE_MAX`] the value of a code has that code again. In the
//! normal range the value lies within 2^-11 of the product, which is less than half a step as the
//! code is below 1024; three F32 roundings add less than what is left. In the subnormal range it
//! lies within 2^-25, which is half a step only when the step is 2^-24, and then all is exact.
//!
//! Residuals, which is what codes become before they are coded, are differences either from one
//! number for the whole row or from the code before; [`Sums`] undoes that. Nothing here knows where
//! steps come from.

mod portable;
#[cfg(test)]
mod tests;

#[cfg_attr(all(target_arch = "x86_64", target_feature = "sse2"), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", target_feature = "neon"), path = "aarch64.rs")]
#[cfg_attr(
    not(any(
        all(target_arch = "x86_64", target_feature = "sse2"),
        all(target_arch = "aarch64", target_feature = "neon")
    )),
    path = "../no_arch.rs"
)]
mod arch;

pub(super) use arch::improve;

/// Greatest magnitude of a code.
pub const CODE_MAX: i16 = 1023;

/// The steps of a row's values, positive and finite.
#[derive(Clone, Copy, Debug)]
pub enum RowSteps<'a> {
    /// The same for all.
    Even(f32),
    /// One for each value.
    Each {
        /// The steps.
        steps: &'a [f32],
        /// One over each.
        per_one: &'a [f32],
    },
}

impl<'a> RowSteps<'a> {
    /// Whether these are steps for a row of that many values.
    fn fit(&self, values: usize) -> bool {
        match self {
            RowSteps::Even(_) => true,
            RowSteps::Each { steps, per_one } => steps.len() == values && per_one.len() == values,
        }
    }

    /// The steps from that value on, which is one of the row or its end.
    fn from(self, value: usize) -> RowSteps<'a> {
        match self {
            RowSteps::Even(step) => RowSteps::Even(step),
            RowSteps::Each { steps, per_one } => {
                RowSteps::Each { steps: &steps[value..], per_one: &per_one[value..] }
            }
        }
    }
}

/// F16 values to codes.
#[derive(Clone, Copy, Debug)]
pub struct LatticePack {
    /// The rung this entry comes from.
    pub isa: &'static str,
    run: unsafe fn(&[u16], RowSteps<'_>, &mut [i16]) -> bool,
}

impl LatticePack {
    pub(super) const PORTABLE: LatticePack = LatticePack { isa: "portable", run: portable::pack };

    /// One code a value. False when a value is not finite or a code greater than [`CODE_MAX`], and
    /// the codes then hold nothing useful, or when the value of a code would not be finite.
    pub fn call(&self, values: &[u16], steps: RowSteps<'_>, codes: &mut [i16]) -> bool {
        assert_eq!(values.len(), codes.len());
        assert!(steps.fit(values.len()));
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.run)(values, steps, codes) }
    }
}

/// Codes to F16 values.
#[derive(Clone, Copy, Debug)]
pub struct LatticeUnpack {
    /// The rung this entry comes from.
    pub isa: &'static str,
    run: unsafe fn(&[i16], RowSteps<'_>, &mut [u16]),
}

impl LatticeUnpack {
    pub(super) const PORTABLE: LatticeUnpack =
        LatticeUnpack { isa: "portable", run: portable::unpack };

    /// One value a code. Any code and any step is safe.
    pub fn call(&self, codes: &[i16], steps: RowSteps<'_>, values: &mut [u16]) {
        assert_eq!(codes.len(), values.len());
        assert!(steps.fit(codes.len()));
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.run)(codes, steps, values) }
    }
}

/// Residuals in signed bytes to codes.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// The rung this entry comes from.
    pub isa: &'static str,
    offsets: unsafe fn(&[u8], i16, &mut [i16]),
    running: unsafe fn(&[u8], i16, &mut [i16]),
}

impl Sums {
    pub(super) const PORTABLE: Sums =
        Sums { isa: "portable", offsets: portable::offsets, running: portable::running };

    /// Adds `base` to each residual, modulo 2^16; one code a residual.
    pub fn offsets(&self, residuals: &[u8], base: i16, codes: &mut [i16]) {
        assert_eq!(residuals.len(), codes.len());
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.offsets)(residuals, base, codes) }
    }

    /// Adds `base` and all residuals so far, modulo 2^16; one code a residual.
    pub fn running(&self, residuals: &[u8], base: i16, codes: &mut [i16]) {
        assert_eq!(residuals.len(), codes.len());
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.running)(residuals, base, codes) }
    }
}
