//! Query heads side by side in the lanes of one panel.
//!
//! ```text
//! of head a   t0 t1 t2  .  .  .  .  .      t0 t1 t2 t0 t1 t2  .  .
//! of head b   t0 t1 t2  .  .  .  .  .  ->
//! ```
//!
//! A few tokens leave most lanes of a panel empty, and the query heads of a group read the same
//! keys and values: so many of them share a panel as fit. Every lane is computed as it would be
//! alone, so results are the same to the bit.

use super::batch::Batch;
use crate::infer::model::Shape;

/// How the query heads of a batch share panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Heads in one panel, all of one group; 1 where panels are as they were.
    pub heads: usize,
    /// Lanes of each.
    pub lanes: usize,
    /// Lanes of the panel.
    width: usize,
    /// Features of a head.
    head_dim: usize,
}

impl Fold {
    /// As many heads as have room and are a whole share of their group.
    pub fn of(shape: &Shape, batch: &Batch) -> Fold {
        let (heads, width) = (heads_together(shape.group(), batch), batch.width);
        let lanes = if heads == 1 { width } else { batch.tokens };
        Fold { heads, lanes, width, head_dim: usize::from(shape.head_dim) }
    }

    /// Brings each panel's heads together; panels that are filled lie at the front afterwards.
    /// Lanes that stay empty hold zeros.
    pub fn fold(&self, panels: &mut [f32]) {
        let Fold { heads, lanes, width, head_dim } = *self;
        if heads == 1 {
            return;
        }
        // What is written lies in front of what is still to be read, or in the same row.
        for row in 0..panels.len() / width / heads {
            let (item, feature) = (row / head_dim, row % head_dim);
            for place in 0..heads {
                let from = ((item * heads + place) * head_dim + feature) * width;
                panels.copy_within(from..from + lanes, row * width + place * lanes);
            }
            panels[row * width + heads * lanes..(row + 1) * width].fill(0.0);
        }
    }

    /// Undoes [`Self::fold`].
    pub fn unfold(&self, panels: &mut [f32]) {
        let Fold { heads, lanes, width, head_dim } = *self;
        if heads == 1 {
            return;
        }
        for row in (0..panels.len() / width / heads).rev() {
            let (item, feature) = (row / head_dim, row % head_dim);
            // The first one last: its own row may be the one that is read.
            for place in (0..heads).rev() {
                let to = ((item * heads + place) * head_dim + feature) * width;
                let from = row * width + place * lanes;
                panels.copy_within(from..from + lanes, to);
                panels[to + lanes..to + width].fill(0.0);
            }
        }
    }
}

/// Heads of a group of so many that share a panel.
fn heads_together(group: usize, batch: &Batch) -> usize {
    let room = (batch.width / batch.tokens.max(1)).min(group);
    (1..=room).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn as_many_heads_share_a_panel_as_fit_and_divide_their_group() {
        // Group, tokens, heads in a panel.
        let cases = [
            (2, 8, 2),
            (2, 9, 1),
            (3, 5, 3),
            (3, 6, 1),
            (4, 4, 4),
            (4, 5, 2),
            (1, 4, 1),
            (8, 4, 4),
        ];
        for (group, tokens, heads) in cases {
            assert_eq!(heads_together(group, &Batch::new(tokens, 0)), heads, "{group} {tokens}");
        }
        for tokens in [1, 2, 3, 17, 32, 33, 256] {
            assert_eq!(heads_together(4, &Batch::new(tokens, 0)), 1, "{tokens}");
        }
    }

    fn fold(heads: usize, lanes: usize) -> Fold {
        Fold { heads, lanes, width: 16, head_dim: 32 }
    }

    #[test]
    fn folded_panels_hold_each_head_and_unfold_to_what_they_were() {
        for (heads, lanes) in [(1, 16), (2, 8), (2, 5), (3, 5), (4, 4)] {
            let fold = fold(heads, lanes);
            // Two items; lanes without tokens hold zeros, as they do after unfolding.
            let value = |index: usize| if index % 16 < lanes { 1.0 + index as f32 } else { 0.0 };
            let before: Vec<f32> = (0..2 * heads * 32 * 16).map(value).collect();
            let mut panels = before.clone();
            fold.fold(&mut panels);
            for item in 0..2 {
                for (feature, row) in panels[item * 512..][..512].chunks_exact(16).enumerate() {
                    for (lane, found) in row.iter().enumerate() {
                        let head = item * heads + lane / lanes;
                        let expected = match lane / lanes < heads {
                            true => value((head * 32 + feature) * 16 + lane % lanes),
                            false => 0.0,
                        };
                        assert_eq!(*found, expected, "{heads} {item} {feature} {lane}");
                    }
                }
            }
            fold.unfold(&mut panels);
            assert!(panels == before, "{heads} {lanes}");
        }
    }
}
