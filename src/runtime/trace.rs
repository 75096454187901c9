//! What is done when: for traces and reports.
//!
//! Nothing is kept here and the clock is not read unless somebody listens.

use super::open::Shared;
use crate::state::{Action, Outcome};
use crate::units::{Kind, LayerIndex, Nanos};

/// Hears of what workers do, as it ends.
///
/// Called by whoever did it, from several threads at once, and of gates under the handle's lock:
/// note it down and return.
pub trait Trace: core::fmt::Debug + Sync {
    /// A worker has done an action. Callers who work themselves are all the last worker.
    fn acted(&self, worker: usize, action: &Action, outcome: &Outcome, start: Nanos, end: Nanos);

    /// A gate opened.
    fn opened(&self, layer: LayerIndex, kind: Kind, now: Nanos);
}

impl Shared {
    /// Executes an action, telling who listens.
    pub(super) fn perform(&self, worker: usize, action: &Action) -> Outcome {
        let Some(trace) = self.trace else { return self.execute(worker, action) };
        let start = self.ports.clock.now();
        let outcome = self.execute(worker, action);
        trace.acted(worker, action, &outcome, start, self.ports.clock.now());
        outcome
    }

    pub(super) fn note_open(&self, layer: LayerIndex, kind: Kind) {
        if let Some(trace) = self.trace {
            trace.opened(layer, kind, self.ports.clock.now());
        }
    }
}
