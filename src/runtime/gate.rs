//! Gates: "layer l's weights (or KV) are ready".

use super::Runtime;
use super::open::Shared;
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::port::Park;
use crate::sync::Word;
use crate::units::{Kind, LayerIndex};

/// Being brought back: wait.
const CLOSED: u32 = 0;
/// Ready.
const OPEN: u32 = 1;
/// Not in memory, and nobody is bringing it back.
const OFF: u32 = 2;

/// All gates.
pub(super) struct Gates {
    words: &'static [[Word; 2]],
}

impl Gates {
    pub(super) fn size(sizer: &mut Sizer, layers: usize) -> Result<()> {
        sizer.slice::<[Word; 2]>(layers)
    }

    pub(super) fn new(arena: &mut Arena, layers: usize) -> Result<Self> {
        Ok(Gates { words: arena.slice(layers, |_| [Word::new(OFF), Word::new(OFF)])? })
    }

    fn word(&self, layer: LayerIndex, kind: Kind) -> Option<&Word> {
        let pair = self.words.get(layer.index())?;
        Some(match kind {
            Kind::Weights => &pair[0],
            Kind::Kv => &pair[1],
        })
    }

    /// Sets a gate and wakes those who wait at it. True when it changed.
    pub(super) fn set(
        &self,
        layer: LayerIndex,
        kind: Kind,
        ready: bool,
        restoring: bool,
        park: &dyn Park,
    ) -> bool {
        let value = match (ready, restoring) {
            (true, _) => OPEN,
            (false, true) => CLOSED,
            (false, false) => OFF,
        };
        let Some(word) = self.word(layer, kind) else { return false };
        let changed = word.swap(value) != value;
        if changed && value != CLOSED {
            park.wake_all(word);
        }
        changed
    }
}

impl Runtime {
    /// Whether a gate is open now.
    pub fn is_open(&self, layer: LayerIndex, kind: Kind) -> bool {
        self.shared.gates.word(layer, kind).is_some_and(|word| word.load() == OPEN)
    }

    /// Waits until a gate opens. An error says why it will not: the restore failed, was cancelled,
    /// or was never begun. Inline, the caller executes the restore's actions meanwhile.
    pub fn wait(&self, layer: LayerIndex, kind: Kind) -> Result<()> {
        let shared: &Shared = self.shared;
        let Some(word) = shared.gates.word(layer, kind) else {
            return Err(Error::new(Code::InvalidArgument, "layer").with(layer.get()));
        };
        loop {
            match word.load() {
                OPEN => return Ok(()),
                OFF => return Err(self.why_off(layer)),
                _ if self.is_inline() => self.help(word)?,
                _ => shared.ports.park.wait(word, CLOSED, None),
            }
        }
    }

    /// Executes an action on the way to a closed gate. When other callers have them all, waits
    /// until something changed.
    fn help(&self, gate: &Word) -> Result<()> {
        let shared = self.shared;
        let seen = shared.work.load();
        // Whoever set the gate changes `work` afterwards: it was set before, or parking will end.
        if gate.load() != CLOSED {
            return Ok(());
        }
        let others_before = self.others_work();
        if self.poll() {
            return Ok(());
        }
        // Whoever takes or ends an action changes `work`; with nobody at work before and after,
        // and no change in between, the gate can only stay closed.
        let is_stuck = !others_before && !self.others_work() && shared.work.load() == seen;
        if is_stuck && gate.load() == CLOSED {
            return Err(Error::new(Code::BadState, "gate: no action leads there"));
        }
        shared.ports.park.wait(&shared.work, seen, None);
        Ok(())
    }

    fn others_work(&self) -> bool {
        self.shared.core.lock().machine.tally().busy > 0
    }

    fn why_off(&self, layer: LayerIndex) -> Error {
        let core = self.shared.core.lock();
        let evicted = Error::new(Code::Cancelled, "layer was evicted").with(layer.get());
        core.machine.restore_failure().or(core.restore_error).unwrap_or(evicted)
    }
}
