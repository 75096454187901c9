//! Values to symbols.

use crate::kernel::portable::f32_from_f16;

/// How values with one greatest magnitude are coded.
#[derive(Clone, Copy, Debug)]
pub struct CodeSteps {
    /// The value of code 1.
    pub step: f32,
    /// One over it, about.
    per_one: f32,
    /// The greatest code, which is the symbol of zero.
    code_max: f32,
}

impl CodeSteps {
    /// For codes up to `code_max`, 7 or 15, and a finite F16 `absmax`.
    ///
    /// The value with the greatest magnitude gets the greatest code, and this becomes the same
    /// value again: `a / c * c` in F32 is nearer to the F16 value `a` than F16 values are to each
    /// other. Hence the step is the same the next time, and all codes are. Below 2^-24, the least
    /// F16 magnitude, steps would make unstable codes.
    pub fn new(absmax: u16, code_max: u8) -> CodeSteps {
        /// 2^24.
        const PER_ONE_MAX: f32 = 16_777_216.0;
        let (absmax, code_max) = (f32_from_f16(absmax), f32::from(code_max));
        let step = (absmax * (1.0 / code_max)).max(1.0 / PER_ONE_MAX);
        CodeSteps { step, per_one: (code_max / absmax).min(PER_ONE_MAX), code_max }
    }
}

/// F16 values to symbols.
#[derive(Clone, Copy, Debug)]
pub struct CacheGenQuantize {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &CodeSteps, &mut [u8]),
}

impl CacheGenQuantize {
    pub(in crate::kernel) const PORTABLE: CacheGenQuantize =
        CacheGenQuantize { isa: "portable", run };

    /// One symbol a value: the greatest code, and as many steps as the value has, rounded to an
    /// integer together, ties to even. No value is greater than that which the steps are for.
    pub fn call(&self, values: &[u16], steps: &CodeSteps, symbols: &mut [u8]) {
        assert_eq!(values.len(), symbols.len());
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.run)(values, steps, symbols) }
    }
}

#[inline(always)]
pub(super) fn run(values: &[u16], steps: &CodeSteps, symbols: &mut [u8]) {
    /// Added to it, a small number is rounded to an integer, which the low bits then hold.
    const ROUNDER: f32 = 12_582_912.0;
    for (symbol, &half) in symbols.iter_mut().zip(values) {
        let number = f32_from_f16(half) * steps.per_one + steps.code_max;
        [*symbol, ..] = (number + ROUNDER).to_bits().to_le_bytes();
    }
}
