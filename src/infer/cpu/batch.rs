//! How the tokens of one batch lie in panels.

use crate::limits::BATCH_TOKENS_MAX;

/// Panels of equal width; lanes beyond the last token hold zeros at first and are computed along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Tokens in it.
    pub tokens: usize,
    /// Position of the first one.
    pub position: u32,
    /// Lanes of a panel: 1, 16 or 32.
    pub width: usize,
    /// Panels.
    pub panels: usize,
}

/// Up to so many tokens, each is a panel of its own: a padded panel of 16 would cost more.
const SINGLES_MAX: usize = 3;
const NARROW: usize = 16;
const WIDE: usize = 32;

impl Batch {
    /// Panels for `tokens` tokens.
    pub fn new(tokens: usize, position: u32) -> Self {
        let width = match tokens {
            0..=SINGLES_MAX => 1,
            _ if tokens <= NARROW => NARROW,
            _ => WIDE,
        };
        Batch { tokens, position, width, panels: tokens.div_ceil(width) }
    }

    /// Each token a panel of its own.
    pub fn singles(tokens: usize) -> Self {
        Batch { tokens, position: 0, width: 1, panels: tokens }
    }

    /// Lanes of all panels.
    pub fn lanes(&self) -> usize {
        self.panels * self.width
    }

    /// Lanes that a batch of at most `tokens` tokens may have.
    pub fn lanes_max(tokens: usize) -> usize {
        match tokens {
            0..=SINGLES_MAX => tokens,
            _ => tokens.next_multiple_of(if tokens <= NARROW { NARROW } else { WIDE }),
        }
    }

    /// Where value `feature` of token `token` lies, in panels of `features` features.
    pub fn index(&self, features: usize, feature: usize, token: usize) -> usize {
        let (panel, lane) = (token / self.width, token % self.width);
        (panel * features + feature) * self.width + lane
    }

    /// Position of the first lane of a panel.
    pub fn panel_position(&self, panel: usize) -> usize {
        self.position as usize + panel * self.width
    }
}

const _: () = assert!(BATCH_TOKENS_MAX.is_multiple_of(WIDE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_its_own_place_and_lanes_stay_below_the_maximum() {
        for most in 1..=BATCH_TOKENS_MAX {
            for tokens in 1..=most {
                assert!(Batch::new(tokens, 0).lanes() <= Batch::lanes_max(most));
            }
        }
        for tokens in 1..=BATCH_TOKENS_MAX {
            let batch = Batch::new(tokens, 7);
            assert!(batch.lanes() >= tokens);
            let mut taken = std::vec![false; batch.lanes() * 3];
            for token in 0..tokens {
                for feature in 0..3 {
                    let index = batch.index(3, feature, token);
                    assert!(!std::mem::replace(&mut taken[index], true));
                }
            }
        }
    }
}
