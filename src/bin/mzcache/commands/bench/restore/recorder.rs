//! What the runtime did when, as it tells whoever listens.

use mzcache::runtime::Trace;
use mzcache::state::{Action, Outcome};
use mzcache::units::{Kind, LayerIndex, Nanos};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An action that ended.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    pub worker: usize,
    pub action: Action,
    pub has_failed: bool,
    pub start: Nanos,
    pub end: Nanos,
}

impl Act {
    pub const fn took(&self) -> Nanos {
        self.end.since(self.start)
    }
}

/// A gate that opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub layer: LayerIndex,
    pub kind: Kind,
    pub now: Nanos,
}

/// What was heard.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub acts: Vec<Act>,
    pub openings: Vec<Opening>,
}

impl Record {
    /// From the first start to the last end of the actions that are meant.
    pub fn span(&self, mut is_meant: impl FnMut(&Action) -> bool) -> Option<(Nanos, Nanos)> {
        let meant = || self.acts.iter();
        let acts: Vec<&Act> = meant().filter(|act| is_meant(&act.action)).collect();
        let start = acts.iter().map(|act| act.start).min()?;
        let end = acts.iter().map(|act| act.end).max()?;
        Some((start, end))
    }

    /// What they took together.
    pub fn total(&self, mut is_meant: impl FnMut(&Action) -> bool) -> Nanos {
        let acts = self.acts.iter().filter(|act| is_meant(&act.action));
        Nanos::new(acts.map(|act| act.took().get()).sum())
    }
}

/// Keeps what it hears.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Record>);

impl Recorder {
    /// Room for a long restore, so that none is made while one is measured.
    pub fn new() -> Recorder {
        let (acts, openings) = (Vec::with_capacity(1 << 16), Vec::with_capacity(1 << 12));
        Recorder(Mutex::new(Record { acts, openings }))
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets.
    pub fn clear(&self) {
        let mut record = self.record();
        record.acts.clear();
        record.openings.clear();
    }

    /// What was heard since the last time it forgot.
    pub fn read(&self) -> Record {
        self.record().clone()
    }
}

impl Trace for Recorder {
    fn acted(&self, worker: usize, action: &Action, outcome: &Outcome, start: Nanos, end: Nanos) {
        let has_failed = matches!(outcome, Outcome::Failed(_));
        self.record().acts.push(Act { worker, action: *action, has_failed, start, end });
    }

    fn opened(&self, layer: LayerIndex, kind: Kind, now: Nanos) {
        self.record().openings.push(Opening { layer, kind, now });
    }
}

/// Whether an action takes a buffer.
pub const fn is_allocation(action: &Action) -> bool {
    matches!(action, Action::Allocate { .. })
}

/// Whether an action fills a buffer from the RAM swap.
pub const fn is_unpacking(action: &Action) -> bool {
    matches!(action, Action::Unpack { .. })
}

/// Whether an action fills a buffer from storage.
pub const fn is_reading(action: &Action) -> bool {
    matches!(action, Action::ReadWeights { .. } | Action::ReadChunk { .. })
}
