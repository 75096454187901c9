//! Sixteen-bit floating point by bit arithmetic, for the places where speed does not matter. IEEE
//! halves are converted by the kernel table's portable code; this adds the other format.

pub use crate::kernel::portable::{f16_from_f32 as f16_of_f32, f32_from_f16 as f32_of_f16};

/// The value of the upper half of an IEEE single.
pub fn f32_of_bf16(upper: u16) -> f32 {
    f32::from_bits(u32::from(upper) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in double precision.
    fn slow(half: u16) -> f64 {
        let sign = if half & 0x8000 != 0 { -1.0 } else { 1.0 };
        let exponent = i32::from(half >> 10 & 0x1f);
        let mantissa = f64::from(half & 0x3ff);
        match exponent {
            0 => sign * mantissa * 2f64.powi(-24),
            0x1f if mantissa == 0.0 => sign * f64::INFINITY,
            0x1f => f64::NAN,
            _ => sign * (1024.0 + mantissa) * 2f64.powi(exponent - 25),
        }
    }

    #[test]
    fn every_half_has_its_value_and_survives_the_round_trip() {
        for half in 0..=u16::MAX {
            let value = f32_of_f16(half);
            if slow(half).is_nan() {
                assert!(value.is_nan());
                assert!(f32_of_f16(f16_of_f32(value)).is_nan());
            } else {
                assert_eq!(f64::from(value), slow(half));
                assert_eq!(f16_of_f32(value), half);
            }
        }
    }

    #[test]
    fn rounding_goes_to_the_nearest_half_and_ties_to_even() {
        for half in 0..0x7c00u16 {
            let here = f32_of_f16(half);
            let next = if half == 0x7bff { 65536.0 } else { f32_of_f16(half + 1) };
            let middle = (here + next) / 2.0;
            let below = f32::from_bits(middle.to_bits() - 1);
            let above = f32::from_bits(middle.to_bits() + 1);
            assert_eq!(f16_of_f32(below), half);
            assert_eq!(f16_of_f32(above), half + 1);
            assert_eq!(f16_of_f32(middle), half + half % 2);
            assert_eq!(f16_of_f32(-middle), 0x8000 | (half + half % 2));
        }
        assert_eq!(f16_of_f32(1e-30), 0);
        assert_eq!(f16_of_f32(-0.0), 0x8000);
    }
}
