//! Picks the next token from logits: greedy, or by temperature, top-k and top-p with a seed.
//!
//! Deterministic: the same settings, seed and logits give the same tokens. Ties go to the lower
//! id. A logit that is not a number counts as impossible. The order is that of the common
//! libraries: temperature, then top-k, then top-p over what is left.

use crate::failure::{Failure, Outcome};
use crate::random::Random;
use std::cmp::Ordering;

/// How to pick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// 0 is greedy.
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: u32,
    /// Probability mass kept, above 0 and at most 1; 1 keeps all.
    pub top_p: f32,
    /// Where chance starts.
    pub seed: u64,
}

impl Settings {
    /// Always the most likely token.
    pub const GREEDY: Settings = Settings { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };

    fn check(&self) -> Outcome<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(Failure::usage("--temperature must be a number of at least 0"));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Failure::usage("--top-p must be above 0 and at most 1"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f64,
}

/// Settings, and the state of chance.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    random: Random,
    candidates: Vec<Candidate>,
}

impl Sampler {
    pub fn new(settings: Settings) -> Outcome<Self> {
        settings.check()?;
        Ok(Sampler { settings, random: Random::new(settings.seed), candidates: Vec::new() })
    }

    /// Whether the most likely token is always picked, so that nothing but that token is needed.
    pub fn is_greedy(&self) -> bool {
        self.settings.temperature == 0.0
    }

    /// The next token's id; fails if no logit is usable.
    pub fn pick(&mut self, logits: &[f32]) -> Outcome<u32> {
        let best = greedy(logits).ok_or_else(unusable)?;
        // An infinite logit leaves no probability to the others.
        if self.is_greedy() || best.logit == f32::INFINITY {
            return Ok(best.id);
        }
        self.gather(logits);
        self.keep_top_k();
        self.weigh(best.logit);
        self.keep_top_p();
        Ok(self.draw().unwrap_or(best.id))
    }

    fn gather(&mut self, logits: &[f32]) {
        let usable = |(id, logit): (u32, &f32)| {
            (*logit > f32::NEG_INFINITY).then_some(Candidate { id, logit: *logit, weight: 0.0 })
        };
        self.candidates.clear();
        self.candidates.extend((0u32..).zip(logits).filter_map(usable));
    }

    /// Leaves the k most likely, or all, sorted where a later step needs that.
    fn keep_top_k(&mut self) {
        let count = usize::try_from(self.settings.top_k).unwrap_or(usize::MAX);
        if count > 0 && count < self.candidates.len() {
            self.candidates.select_nth_unstable_by(count - 1, by_likelihood);
            self.candidates.truncate(count);
        }
        if self.settings.top_k > 0 || self.settings.top_p < 1.0 {
            self.candidates.sort_unstable_by(by_likelihood);
        }
    }

    fn weigh(&mut self, best: f32) {
        let temperature = f64::from(self.settings.temperature);
        for candidate in &mut self.candidates {
            let distance = f64::from(candidate.logit) - f64::from(best);
            candidate.weight = (distance / temperature).exp();
        }
    }

    /// Leaves the fewest most likely whose share reaches top-p; at least one.
    fn keep_top_p(&mut self) {
        if self.settings.top_p >= 1.0 {
            return;
        }
        let total: f64 = self.candidates.iter().map(|candidate| candidate.weight).sum();
        let enough = total * f64::from(self.settings.top_p);
        let mut sum = 0.0;
        let reached = self.candidates.iter().position(|candidate| {
            sum += candidate.weight;
            sum >= enough
        });
        if let Some(last) = reached {
            self.candidates.truncate(last + 1);
        }
    }

    fn draw(&mut self) -> Option<u32> {
        let total: f64 = self.candidates.iter().map(|candidate| candidate.weight).sum();
        let mut left = self.random.unit() * total;
        for candidate in &self.candidates {
            left -= candidate.weight;
            if left < 0.0 {
                return Some(candidate.id);
            }
        }
        // Rounding may leave a crumb at the end.
        self.candidates.last().map(|candidate| candidate.id)
    }
}

/// Why nothing can be picked.
pub fn unusable() -> Failure {
    Failure::new("the model gave no usable number for the next token")
        .hint("the model file is damaged, or of a kind that this build computes wrongly")
}

fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The most likely token, unless all are impossible.
fn greedy(logits: &[f32]) -> Option<Candidate> {
    let index = mzcache::infer::sample::arg_max(logits)?;
    let logit = *logits.get(index)?;
    let id = u32::try_from(index).ok()?;
    (logit > f32::NEG_INFINITY).then_some(Candidate { id, logit, weight: 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: Settings = Settings { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 7 };

    fn shares(settings: Settings, logits: &[f32], draws: usize) -> Vec<f64> {
        let mut sampler = Sampler::new(settings).unwrap();
        let mut counts = vec![0u32; logits.len()];
        for _ in 0..draws {
            counts[sampler.pick(logits).unwrap() as usize] += 1;
        }
        counts.iter().map(|count| f64::from(*count) / draws as f64).collect()
    }

    fn close(found: &[f64], expected: &[f64]) {
        // Three standard deviations of 40,000 draws are below 0.008.
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 0.01, "{found} is not {expected}");
        }
    }

    fn logits_of(shares: &[f32]) -> Vec<f32> {
        shares.iter().map(|share| share.ln()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_skips_what_is_no_number() {
        let mut sampler = Sampler::new(Settings::GREEDY).unwrap();
        assert_eq!(sampler.pick(&[0.0, 2.0, 2.0, 1.0]).unwrap(), 1);
        assert_eq!(sampler.pick(&[f32::NAN, -5.0, f32::NAN, -4.0]).unwrap(), 3);
        assert_eq!(sampler.pick(&[f32::NEG_INFINITY, f32::MIN]).unwrap(), 1);
        assert_eq!(sampler.pick(&[1.0, f32::INFINITY]).unwrap(), 1);
    }

    #[test]
    fn without_a_usable_logit_it_fails() {
        for settings in [Settings::GREEDY, WARM] {
            let mut sampler = Sampler::new(settings).unwrap();
            assert!(sampler.pick(&[]).is_err());
            assert!(sampler.pick(&[f32::NAN, f32::NEG_INFINITY]).is_err());
        }
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let expected = [0.1, 0.2, 0.3, 0.4];
        close(&shares(WARM, &logits_of(&[0.1, 0.2, 0.3, 0.4]), 40_000), &expected);
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        let logits = logits_of(&[0.2, 0.8]);
        let cold = shares(Settings { temperature: 0.5, ..WARM }, &logits, 40_000);
        close(&cold, &[0.04 / 0.68, 0.64 / 0.68]);
        let hot = shares(Settings { temperature: 2.0, ..WARM }, &logits, 40_000);
        close(&hot, &[1.0 / 3.0, 2.0 / 3.0]);
    }

    #[test]
    fn top_k_keeps_the_most_likely() {
        let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
        let two = shares(Settings { top_k: 2, ..WARM }, &logits, 40_000);
        close(&two, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        assert_eq!((two[0], two[2]), (0.0, 0.0));
        assert_eq!(shares(Settings { top_k: 1, ..WARM }, &logits, 100)[1], 1.0);
        close(&shares(Settings { top_k: 99, ..WARM }, &logits, 40_000), &[0.1, 0.4, 0.2, 0.3]);
        let ties = shares(Settings { top_k: 1, ..WARM }, &[1.0, 1.0, 1.0], 100);
        assert_eq!(ties[0], 1.0);
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_it() {
        let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
        let kept = shares(Settings { top_p: 0.65, ..WARM }, &logits, 40_000);
        close(&kept, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        assert_eq!((kept[0], kept[2]), (0.0, 0.0));
        assert_eq!(shares(Settings { top_p: 1e-9, ..WARM }, &logits, 100)[1], 1.0);
    }

    #[test]
    fn the_seed_decides() {
        let logits: Vec<f32> = (0..100u8).map(|id| f32::from(id % 7)).collect();
        let run = |seed| {
            let mut sampler = Sampler::new(Settings { seed, top_p: 0.9, ..WARM }).unwrap();
            (0..50).map(|_| sampler.pick(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn extreme_logits_and_temperatures_stay_in_range() {
        let logits = [f32::MAX, f32::MIN, f32::NAN, f32::NEG_INFINITY, 0.0];
        for temperature in [f32::MIN_POSITIVE, 1e-3, 1.0, f32::MAX] {
            let mut sampler = Sampler::new(Settings { temperature, ..WARM }).unwrap();
            for _ in 0..200 {
                let id = sampler.pick(&logits).unwrap();
                assert!([0, 1, 4].contains(&id), "{id} at {temperature}");
            }
        }
        let mut sampler = Sampler::new(WARM).unwrap();
        assert_eq!(sampler.pick(&[f32::INFINITY, 1.0]).unwrap(), 0);
    }

    #[test]
    fn settings_out_of_range_are_usage_errors() {
        let wrong = [
            Settings { temperature: -1.0, ..WARM },
            Settings { temperature: f32::NAN, ..WARM },
            Settings { temperature: f32::INFINITY, ..WARM },
            Settings { top_p: 0.0, ..WARM },
            Settings { top_p: 1.5, ..WARM },
            Settings { top_p: f32::NAN, ..WARM },
        ];
        for settings in wrong {
            let failure = Sampler::new(settings).unwrap_err();
            assert_eq!(failure.exit, crate::failure::Exit::Usage, "{settings:?}");
        }
    }
}
