//! From "so much may remain" to "so many bytes must go".

use crate::error::{Code, Error, Result};
use crate::units::ByteCount;

/// Bytes to evict so that at most `remaining_percent` of `total` stay, when `resident` are there
/// now. 0 when no more than that is resident.
///
/// # Errors
///
/// [`Code::InvalidArgument`] with the percentage when it is beyond 100.
pub fn bytes_to_evict(
    resident: ByteCount,
    total: ByteCount,
    remaining_percent: u32,
) -> Result<ByteCount> {
    if remaining_percent > 100 {
        return Err(Error::new(Code::InvalidArgument, "remaining").with(remaining_percent));
    }
    let allowed = u128::from(total.get()) * u128::from(remaining_percent) / 100;
    let excess = u128::from(resident.get()).saturating_sub(allowed);
    // No more than `resident`, so it fits.
    Ok(ByteCount::new(u64::try_from(excess).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(resident: u64, total: u64, percent: u32) -> u64 {
        bytes_to_evict(ByteCount::new(resident), ByteCount::new(total), percent).unwrap().get()
    }

    #[test]
    fn what_remains_is_at_most_the_percentage_and_at_most_a_byte_below_it() {
        for total in [0, 1, 7, 99, 100, 101, 12_345, u64::MAX] {
            for percent in 0..=100 {
                for resident in [total, total / 2, total / 3] {
                    let left = resident - of(resident, total, percent);
                    let wide = |n: u64| u128::from(n) * 100;
                    let allowed = u128::from(total) * u128::from(percent);
                    assert!(wide(left) <= allowed);
                    assert!(left == resident || wide(left) + 100 > allowed);
                }
            }
        }
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(of(1000, 1000, 100), 0);
        assert_eq!(of(1000, 1000, 0), 1000);
        assert_eq!(of(200, 1000, 50), 0);
    }

    #[test]
    fn more_than_everything_is_refused() {
        for percent in [101, u32::MAX] {
            let error = bytes_to_evict(ByteCount::new(1), ByteCount::new(1), percent).unwrap_err();
            assert_eq!(error, Error::new(Code::InvalidArgument, "remaining").with(percent));
        }
    }
}
