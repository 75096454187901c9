//! A swap file that failed to sync is gone as a whole: its copies are struck out before one of them
//! is taken for a good one, and nothing is written to it any more. It decides nothing else.

use super::machine::{Machine, Outcome};
use super::table::chunk_id;
use super::unit::Copies;
use crate::error::{Code, Error};
use crate::units::TokenCount;

impl Machine {
    /// A write that ended well before the file was gone, and is booked after it, went nowhere.
    pub(super) fn believed(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Written(_) if self.flash_is_gone => {
                Outcome::Failed(Error::new(Code::Poisoned, "swap file"))
            }
            outcome => outcome,
        }
    }

    /// Looks at a failure of the swap file for what it says about the rest of it.
    pub(super) fn heed(&mut self, error: Error) {
        let is_gone = matches!(error.code, Code::SyncFailed | Code::Poisoned);
        if !is_gone || self.flash_is_gone {
            return;
        }
        self.flash_is_gone = true;
        self.plan.times.read_chunk = None;
        self.durable = TokenCount::default();
        for column in 0..self.table.columns {
            for layer in 0..self.table.kv_layers {
                let id = chunk_id(layer, column);
                self.table.update_chunk(id, |chunk| chunk.copies.remove(Copies::FLASH));
            }
        }
        if let Some(token) = self.lost() {
            let error = Error::new(Code::Corrupt, "KV chunk; recompute from token").with(token);
            self.fail_restore(error);
        }
    }
}
