//! A worker: asks for work, does it, books it; parks when there is none.

use super::open::Shared;
use super::pin::Pin;
use super::{Runtime, config};
use crate::port::Body;
use crate::state::{Action, Roles};
use crate::units::Nanos;

/// One worker thread's body.
pub(super) struct Worker {
    shared: &'static Shared,
    index: usize,
    worker: config::Worker,
    pub(super) pin: Pin,
}

impl Worker {
    pub(super) fn new(shared: &'static Shared, index: usize, worker: &config::Worker) -> Self {
        Worker { shared, index, worker: *worker, pin: Pin::new(worker.core) }
    }

    /// As /proc shows it: what the worker does, and which one it is.
    pub(super) fn name(&self) -> Name {
        let role = match self.worker.roles {
            Roles::ALLOCATE => "alloc",
            Roles::READ => "read",
            Roles::UNPACK => "unpack",
            _ => "work",
        };
        Name::new(role, self.index)
    }
}

impl Worker {
    fn next(&self) -> Option<Action> {
        let config::Worker { roles, helps, .. } = self.worker;
        self.shared.next(roles).or_else(|| match helps.is_empty() {
            true => None,
            false => self.shared.next(helps),
        })
    }
}

impl Body for Worker {
    fn run(&self) {
        let mut asked = None;
        loop {
            let seen = self.shared.work.load();
            if self.shared.closing.load() != 0 {
                return;
            }
            self.shared.pin(&self.pin, &mut asked);
            let work = match self.shared.is_inline() {
                true => None,
                false => self.next(),
            };
            match work {
                Some(action) => self.shared.work_off(self.index, action),
                None => self.shared.ports.park.wait(&self.shared.work, seen, None),
            }
        }
    }
}

impl Shared {
    /// Does an action and what follows from it.
    fn work_off(&self, worker: usize, action: Action) {
        let mut next = Some(action);
        while let Some(action) = next {
            let outcome = self.perform(worker, &action);
            next = self.done(action, outcome);
        }
    }
}

impl Shared {
    /// Executes one action on the caller. False when there is nothing to do now.
    fn poll(&self, roles: Roles) -> bool {
        let Some(action) = self.next(roles) else { return false };
        self.work_off(self.caller(), action);
        true
    }

    /// Lets time pass until something may have changed: executes an action, or parks.
    pub(super) fn pass_time(&self, seen: u32, timeout: Option<Nanos>) {
        if !self.is_inline() {
            self.ports.park.wait(&self.work, seen, timeout);
        } else if !self.poll(Roles::all()) {
            // Another caller has the last action in hand.
            self.ports.park.wait(&self.work, seen, Some(Nanos::new(1_000_000)));
        }
    }
}

impl Runtime {
    /// Executes one action on the caller, whether there are worker threads or not. False when
    /// there is nothing to do now.
    pub fn poll(&self) -> bool {
        self.poll_roles(Roles::all())
    }

    /// As [`Runtime::poll`], an action that one of the roles allows: for threads that are kept on
    /// cores which suit only those.
    pub fn poll_roles(&self, roles: Roles) -> bool {
        self.shared.poll(roles)
    }
}

/// A thread name, at most 15 bytes.
pub(super) struct Name {
    bytes: [u8; 15],
    length: usize,
}

impl Name {
    fn new(role: &str, index: usize) -> Self {
        use core::fmt::Write;
        let mut name = Name { bytes: [0; 15], length: 0 };
        // At most "mz-unpack-" and two digits; a longer name would only be cut.
        let _ = write!(name, "mz-{role}-{index}");
        name
    }

    pub(super) fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or("mz")
    }
}

impl core::fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            *self.bytes.get_mut(self.length).ok_or(core::fmt::Error)? = byte;
            self.length += 1;
        }
        Ok(())
    }
}
