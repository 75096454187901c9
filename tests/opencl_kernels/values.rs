//! Numbers to compute with.

use mzcache::kernel::Kernels;

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// About normal: mean 0, deviation 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64).sum();
        (sum - 6.0) as f32
    }

    pub fn normals(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| self.normal() * deviation).collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits().to_be_bytes()[0]).collect()
    }
}

pub fn halves(values: &[f32]) -> Vec<u16> {
    let mut halves = vec![0; values.len()];
    Kernels::portable().f32_to_f16.call(values, &mut halves);
    halves
}

pub fn wide(halves: &[u16]) -> Vec<f32> {
    let mut values = vec![0.0; halves.len()];
    Kernels::portable().f16_to_f32.call(halves, &mut values);
    values
}

/// The largest difference, as a part of the largest value that is wanted. Zeros are wanted exactly.
pub fn error(have: &[f32], want: &[f64]) -> f64 {
    assert_eq!(have.len(), want.len());
    let largest = want.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let mut error = 0.0f64;
    for (have, want) in have.iter().zip(want) {
        let difference = (f64::from(*have) - want).abs();
        // Not a number must not pass for a small one.
        if difference > 0.0 || difference.is_nan() {
            error =
                error.max(difference / largest).max(if difference.is_nan() { 9e9 } else { 0.0 });
        }
    }
    error
}

#[test]
fn errors_are_seen() {
    assert_eq!(error(&[1.0, -2.0], &[1.0, -2.0]), 0.0);
    assert_eq!(error(&[1.0, -2.0], &[1.5, -2.0]), 0.25);
    assert!(error(&[f32::NAN, 1.0], &[1.0, 1.0]) > 1.0);
    assert!(error(&[0.0, 1e-30], &[0.0, 0.0]) > 1.0);
    assert_eq!(error(&[0.0, -0.0], &[-0.0, 0.0]), 0.0);
}
