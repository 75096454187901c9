//! The threshold T of Algorithm 1: how many KV chunks are set aside so that the unpack path has
//! work while all weights are read.

use super::times::Times;
use crate::units::ByteCount;

/// T = the sum over all weight units of floor(t_rW / t_dKV).
///
/// For layers of one size this is the paper's N_W * floor(t_rW / t_dKV); the output head is one
/// more unit, of its own size. `weights` are the sizes of every unit that may ever be dropped,
/// whether it is resident now or not: T does not change during an eviction. It is 0 when nothing is
/// unpacked.
pub fn threshold(times: &Times, weights: impl IntoIterator<Item = ByteCount>) -> u64 {
    let Some(unpack_chunk) = times.unpack_chunk else {
        return 0;
    };
    let unpack_chunk = unpack_chunk.get().max(1);
    let chunks_of = |bytes| times.read_weights(bytes).get() / unpack_chunk;
    weights.into_iter().map(chunks_of).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    /// One byte takes one nanosecond to read.
    fn times(unpack_chunk: Option<u64>) -> Times {
        Times {
            unpack_chunk: unpack_chunk.map(Nanos::new),
            read_chunk: None,
            read_bytes_per_s: 1_000_000_000,
        }
    }

    fn of(unpack_chunk: Option<u64>, weights: &[u64]) -> u64 {
        threshold(&times(unpack_chunk), weights.iter().copied().map(ByteCount::new))
    }

    #[test]
    fn equal_layers_give_the_formula_of_the_paper() {
        assert_eq!(of(Some(100), &[299; 28]), 28 * 2);
        assert_eq!(of(Some(100), &[300; 28]), 28 * 3);
        assert_eq!(of(Some(100), &[99; 28]), 0);
    }

    #[test]
    fn a_head_counts_by_its_own_size() {
        assert_eq!(of(Some(100), &[299, 299, 3050]), 2 + 2 + 30);
    }

    #[test]
    fn nothing_to_unpack_or_to_read_gives_zero() {
        assert_eq!(of(None, &[299; 28]), 0);
        assert_eq!(of(Some(100), &[]), 0);
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(of(Some(1), &[u64::MAX; 3]), u64::MAX);
        assert_eq!(of(Some(0), &[7]), 7);
    }
}
