//! From logits to a token, and to log-probabilities.

/// The index of the largest value, the first of equals; `None` for an empty slice or only NaN.
pub fn arg_max(logits: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (index, logit) in logits.iter().enumerate() {
        if best.map_or(!logit.is_nan(), |(_, largest)| *logit > largest) {
            best = Some((index, *logit));
        }
    }
    best.map(|(index, _)| index)
}

/// Logits to natural logarithms of probabilities, in place.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
pub fn log_softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Vocabularies are large, so the sum is kept in double precision.
    let total: f64 = logits.iter().map(|logit| f64::from((logit - largest).exp())).sum();
    let log_total = total.ln() as f32;
    for logit in logits {
        // In this order, so that a large offset of all logits costs no precision.
        *logit = (*logit - largest) - log_total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arg_max_takes_the_first_of_equals_and_passes_over_nan() {
        assert_eq!(arg_max(&[]), None);
        assert_eq!(arg_max(&[f32::NAN]), None);
        assert_eq!(arg_max(&[f32::NAN, -3.0, -1.0, f32::NAN, -1.0]), Some(2));
    }

    #[test]
    fn log_softmax_gives_probabilities_that_sum_to_one_at_any_offset() {
        for offset in [0.0, 1000.0, -1000.0] {
            let mut values = [offset, offset + 1.0, offset - 2.0];
            log_softmax(&mut values);
            let sum: f32 = values.iter().map(|value| value.exp()).sum();
            assert!((sum - 1.0).abs() < 1e-6);
            assert!((values[1] - values[0] - 1.0).abs() < 1e-4);
        }
    }
}
