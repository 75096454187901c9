//! The program's one source of chance: SplitMix64 (Steele, Lea and Flood, 2014).
//!
//! The same seed gives the same numbers on every machine and in every version: sampled text and
//! synthetic weights are reproducible. Not for secrets.

/// A stream of numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// A stream of its own for one part of a whole.
    pub fn stream(seed: u64, part: u64) -> Self {
        let mut first = Random::new(seed);
        let mut second = Random::new(first.next() ^ part);
        Random::new(second.next())
    }

    /// 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number from 0 (included) to 1 (excluded), a multiple of 2^-53.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit an f64 exactly")]
    pub const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([random.next(), random.next()], expected);
    }

    #[test]
    fn unit_is_below_one_and_streams_differ() {
        let mut random = Random::new(0);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&random.unit())));
        assert_ne!(Random::stream(1, 0).next(), Random::stream(1, 1).next());
        assert_ne!(Random::stream(1, 0).next(), Random::stream(2, 0).next());
    }
}
