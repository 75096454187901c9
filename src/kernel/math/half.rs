//! Half precision by bit arithmetic, for the places where speed does not matter.

/// The value of an IEEE half.
pub fn f32_of_f16(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 0x1f;
    let mantissa = u32::from(half & 0x3ff);
    let magnitude = match exponent {
        // Subnormals are multiples of 2^-24; the product is exact.
        0 => (mantissa as f32 * (1.0 / 16_777_216.0)).to_bits(),
        0x1f => 0x7f80_0000 | mantissa << 13,
        _ => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest IEEE half, ties to even; too large becomes infinity, NaN stays NaN.
pub fn f16_of_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = low(bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // 65520 is half way between the largest half and the next power of two.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Adding 0.5 puts the half's subnormal mantissa into the low bits, rounded by the adder.
        return sign | low((f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000);
    }
    let odd = magnitude >> 13 & 1;
    let rounded = magnitude - 0x3800_0000 + 0xfff + odd;
    sign | low(rounded >> 13)
}

/// The value of the upper half of an IEEE single.
pub fn f32_of_bf16(upper: u16) -> f32 {
    f32::from_bits(u32::from(upper) << 16)
}

fn low(bits: u32) -> u16 {
    let [a, b, _, _] = bits.to_le_bytes();
    u16::from_le_bytes([a, b])
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
