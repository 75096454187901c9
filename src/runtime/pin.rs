//! Workers on their cores: who asks for one, and who got it.
//!
//! A thread can only pin itself, so a worker asks for its core before it first looks for work, and
//! again before it next does after [`Runtime::repin`]. One that is refused runs anywhere, and
//! [`super::Stats`] counts it.

use super::Runtime;
use super::open::Shared;
use crate::port::{Park, Threads};
use crate::sync::Word;

/// It has not asked yet.
const OPEN: u32 = 0;
const PINNED: u32 = 1;
const REFUSED: u32 = 2;

/// One worker's core.
pub(super) struct Pin {
    core: Option<u16>,
    answer: Word,
}

impl Pin {
    pub(super) fn new(core: Option<u16>) -> Self {
        Pin { core, answer: Word::new(OPEN) }
    }

    /// Asks for the core, on the worker's own thread.
    fn ask(&self, threads: &dyn Threads, park: &dyn Park) {
        let Some(core) = self.core else { return };
        self.answer.store(if threads.pin(core).is_ok() { PINNED } else { REFUSED });
        park.wake_all(&self.answer);
    }

    /// Waits until a worker that wants a core has asked for it.
    pub(super) fn wait(&self, park: &dyn Park) {
        while self.core.is_some() && self.answer.load() == OPEN {
            park.wait(&self.answer, OPEN, None);
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.answer.load() == PINNED
    }

    pub(super) fn is_refused(&self) -> bool {
        self.answer.load() == REFUSED
    }
}

impl Shared {
    /// Asks for a worker's core if that is due. `asked` is when it did last.
    pub(super) fn pin(&self, pin: &Pin, asked: &mut Option<u32>) {
        let due = self.repins.load();
        if *asked == Some(due) {
            return;
        }
        *asked = Some(due);
        if let Some(threads) = self.ports.threads {
            pin.ask(threads, self.ports.park);
        }
    }
}

impl Runtime {
    /// Lets every worker ask for its core again: for an app that is back in the foreground, whose
    /// threads the system had confined to fewer cores. Parked workers do so at once, busy ones
    /// before they next look for work; [`Runtime::stats`] then says who got it.
    pub fn repin(&self) {
        self.shared.repins.increment();
        // Workers look at it after `work`, so none parks without having seen it.
        self.shared.announce();
    }
}
