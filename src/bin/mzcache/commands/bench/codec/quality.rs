//! What a changed cache does to the next tokens.

use crate::failure::{Failure, Outcome};
use mzcache::infer::{Session, sample};
use serde::Serialize;

/// Tokens that are scored at once.
pub const SCORE_BATCH: usize = 64;

/// How far the next tokens are from those of the untouched cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quality {
    /// Mean Kullback-Leibler divergence of the next token's distribution, in nats.
    pub kld: f64,
    /// Part of the tokens after which the likeliest next token is the same.
    pub top1: f64,
    /// Relative change of the text's perplexity.
    pub ppl_change: f64,
    /// Part of greedily generated tokens before the first that differs.
    pub greedy: f64,
}

/// What the untouched cache gives.
pub struct Reference {
    scored: Vec<u32>,
    /// `[token][vocabulary]`, natural logarithms.
    log_probs: Vec<f32>,
    vocabulary: usize,
    nll: f64,
    greedy: Vec<u32>,
}

impl Reference {
    /// Scores the tokens behind the context, and generates some instead of them.
    pub fn new(session: &mut Session, scored: &[u32], greedy: usize) -> Outcome<Reference> {
        let (mut log_probs, mut vocabulary, mut nll) = (Vec::new(), 0, 0.0);
        score(session, scored, |row, logits| {
            vocabulary = logits.len();
            let start = log_probs.len();
            log_probs.extend_from_slice(logits);
            log_softmax(&mut log_probs[start..]);
            nll -= next(scored, row, &log_probs[start..]);
        })?;
        let greedy = generate(session, scored, greedy)?;
        Ok(Reference { scored: scored.to_vec(), log_probs, vocabulary, nll, greedy })
    }

    /// The same with what the cache holds now.
    pub fn compare(&self, session: &mut Session) -> Outcome<Quality> {
        let (mut kld, mut same, mut nll) = (0.0, 0usize, 0.0);
        let mut log_probs = Vec::new();
        score(session, &self.scored, |row, logits| {
            log_probs.clear();
            log_probs.extend_from_slice(logits);
            log_softmax(&mut log_probs);
            let wanted = &self.log_probs[row * self.vocabulary..][..self.vocabulary];
            kld += divergence(wanted, &log_probs);
            same += usize::from(sample::arg_max(wanted) == sample::arg_max(&log_probs));
            nll -= next(&self.scored, row, &log_probs);
        })?;
        let greedy = generate(session, &self.scored, self.greedy.len())?;
        let equal = self.greedy.iter().zip(&greedy).take_while(|(one, other)| one == other);
        // The last token has no successor in the text.
        let change = (nll - self.nll) / count(self.scored.len() - 1);
        Ok(Quality {
            kld: kld / count(self.scored.len()),
            top1: count(same) / count(self.scored.len()),
            ppl_change: change.exp_m1(),
            greedy: count(equal.count()) / count(self.greedy.len()),
        })
    }
}

/// Hands out the logits after each token, and leaves the context as it was.
fn score(session: &mut Session, tokens: &[u32], mut see: impl FnMut(usize, &[f32])) -> Outcome<()> {
    let context = session.tokens();
    for (batch, tokens) in tokens.chunks(SCORE_BATCH).enumerate() {
        let logits = session.append(tokens, tokens.len())?;
        for (row, logits) in logits.chunks_exact(logits.len() / tokens.len()).enumerate() {
            see(batch * SCORE_BATCH + row, logits);
        }
    }
    Ok(session.truncate(context)?)
}

/// Greedy tokens behind the first of the text.
fn generate(session: &mut Session, text: &[u32], count: usize) -> Outcome<Vec<u32>> {
    let context = session.tokens();
    let mut tokens = Vec::new();
    let first = text.first().ok_or_else(|| Failure::usage("--score must be at least 2"))?;
    session.generate(&[*first], count, |logits| {
        let token = sample::arg_max(logits).and_then(|token| u32::try_from(token).ok())?;
        tokens.push(token);
        Some(token)
    })?;
    session.truncate(context)?;
    Ok(tokens)
}

/// The log-probability of the token that follows in the text; 0 after the last.
fn next(text: &[u32], row: usize, log_probs: &[f32]) -> f64 {
    let token = text.get(row + 1).and_then(|&token| usize::try_from(token).ok());
    token.and_then(|token| log_probs.get(token)).map_or(0.0, |&value| value.into())
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
fn log_softmax(logits: &mut [f32]) {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - top).exp()).sum();
    let shift = f64::from(top) + sum.ln();
    logits.iter_mut().for_each(|logit| *logit = (f64::from(*logit) - shift) as f32);
}

fn divergence(wanted: &[f32], have: &[f32]) -> f64 {
    let term = |(&wanted, &have): (&f32, &f32)| {
        f64::from(wanted).exp() * (f64::from(wanted) - f64::from(have))
    };
    wanted.iter().zip(have).map(term).sum()
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn count(value: usize) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_no_distance_from_itself_and_some_from_others() {
        // 3/4 and 1/4 against 1/2 and 1/2: 3/4 ln 3/2 + 1/4 ln 1/2.
        let mut one = [3.0f32.ln() + 7.0, 7.0];
        let mut other = [-2.0f32, -2.0];
        log_softmax(&mut one);
        log_softmax(&mut other);
        assert!((f64::from(one[0]).exp() - 0.75).abs() < 1e-6);
        assert!(divergence(&one, &one).abs() < 1e-12);
        assert!((divergence(&one, &other) - 0.130_812).abs() < 1e-5);
    }

    #[test]
    fn the_last_token_has_no_successor() {
        assert_eq!(next(&[0, 1], 0, &[-1.0, -2.0]), -2.0);
        assert_eq!(next(&[0, 1], 1, &[-1.0, -2.0]), 0.0);
    }
}
