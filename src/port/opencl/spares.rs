//! Shared memory that was released and is kept for the next allocation of its size.
//!
//! Invariant: never more bytes than the bound, which is 0 unless the caller sets one. Nobody uses
//! or has mapped what is kept. Gives nothing back by itself and calls no driver: what it returns
//! is dropped by the caller, outside of locks.

use super::memory::Shared;

/// Allocations that are kept at most.
const SPARES_MAX: usize = 64;

pub(super) struct Spares {
    kept: [Option<Shared>; SPARES_MAX],
    bytes: usize,
    bytes_max: usize,
}

impl Spares {
    pub(super) const fn new(bytes_max: usize) -> Self {
        Spares { kept: [const { None }; SPARES_MAX], bytes: 0, bytes_max }
    }

    /// One of exactly that size.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Shared> {
        self.take_if(|shared| shared.bytes() == bytes)
    }

    /// Any.
    pub(super) fn take_any(&mut self) -> Option<Shared> {
        self.take_if(|_| true)
    }

    fn take_if(&mut self, fits: impl Fn(&Shared) -> bool) -> Option<Shared> {
        let place = self.kept.iter_mut().find(|place| place.as_ref().is_some_and(&fits))?;
        let shared = place.take()?;
        self.bytes -= shared.bytes();
        Some(shared)
    }

    /// Keeps one, or hands it back where there is no room.
    pub(super) fn keep(&mut self, shared: Shared) -> Option<Shared> {
        let bytes = self.bytes.saturating_add(shared.bytes());
        let place = self.kept.iter_mut().find(|place| place.is_none());
        match place {
            Some(place) if bytes <= self.bytes_max => {
                self.bytes = bytes;
                *place = Some(shared);
                None
            }
            _ => Some(shared),
        }
    }
}
