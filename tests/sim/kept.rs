//! What a world leaves to the next one.

use crate::reference::Snapshot;
use crate::world::World;
use mzcache::Result;
use mzcache::runtime::{CheckpointReport, Recovered};
use mzcache::units::{Nanos, Tag, TokenCount};

/// A context as a later world may find it.
#[derive(Clone, Debug)]
pub struct Kept {
    pub tag: Tag,
    pub tokens: u32,
    content: Snapshot,
}

impl World {
    /// Makes the context durable; the name and content of what may be found later.
    pub fn checkpoint(
        &self,
        tag: Tag,
        deadline: Option<Nanos>,
    ) -> (Result<CheckpointReport>, Kept) {
        let result = self.runtime.checkpoint(tag, deadline);
        (result, self.kept(tag))
    }

    /// What a checkpoint of now may be found as.
    pub fn kept(&self, tag: Tag) -> Kept {
        Kept { tag, tokens: self.tokens, content: self.reference.get().snapshot() }
    }

    /// Takes over what an earlier world kept, if it is there. What is known to be gone is cut off;
    /// the first token of that.
    pub fn recover(&mut self, kept: &Kept) -> Result<Option<u32>> {
        let Recovered { tokens, lost } = self.runtime.recover(kept.tag)?;
        assert_eq!(tokens.get(), kept.tokens);
        self.reference.get().recover(&kept.content);
        self.tokens = tokens.get();
        let lost = lost.map(TokenCount::get);
        if let Some(token) = lost {
            self.truncate(token)?;
        }
        Ok(lost)
    }
}
