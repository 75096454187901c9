//! Taking turns with regions: what ports share that hand them over between host and device.
//!
//! Invariant of [`enter`]: a region is handed over with nobody in, and stays with the party that
//! had it when that fails. [`Turns`] are for ports whose regions have small numbers of the kernel's
//! own.

use super::pages::{map, unmap, whole_pages};
use crate::error::{Code, Error, Result};
use crate::sync::{Entry, Party, Turn};
use core::ptr::NonNull;

/// Lets a party in; `hand_over` is called, with nobody in, where the other one had it.
pub(in crate::port) fn enter(
    turn: &Turn,
    party: Party,
    what: &'static str,
    hand_over: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match turn.enter(party) {
        Entry::Joined => Ok(()),
        Entry::Busy => Err(Error::new(Code::Leased, what)),
        Entry::HandOver => {
            let other = match party {
                Party::Device => Party::Host,
                Party::Host => Party::Device,
            };
            let result = hand_over();
            match result {
                Ok(()) => turn.settle(party, true),
                Err(_) => turn.settle(other, false),
            }
            result
        }
    }
}

/// Numbers below this can take turns: far more than a process may have files or buffers.
const NUMBERS: u32 = 1 << 20;

/// One turn a number. They lie in memory of their own, of which those pages are resident that were
/// written to: a page for each thousand numbers in use.
pub(in crate::port) struct Turns {
    start: NonNull<Turn>,
    bytes: usize,
}

// SAFETY: turns are shared between threads as they are.
unsafe impl Send for Turns {}
// SAFETY: as above.
unsafe impl Sync for Turns {}

const _: () = assert!(size_of::<Turn>() == size_of::<u32>());

impl Turns {
    /// All the host's.
    pub(in crate::port) fn new() -> Result<Turns> {
        const WHAT: &str = "turns of buffers";
        let bytes = whole_pages(WHAT, NUMBERS as usize * size_of::<Turn>())?;
        Ok(Turns { start: map(WHAT, bytes, 0)?.cast(), bytes })
    }

    /// The turn of a number; `LimitExceeded` for one that is too large.
    pub(in crate::port) fn of(&self, number: u32) -> Result<&Turn> {
        if number >= NUMBERS {
            return Err(Error::new(Code::LimitExceeded, "number of a buffer").with(number));
        }
        // SAFETY: below the number of turns that the mapping holds, checked above.
        let turn = unsafe { self.start.add(number as usize) };
        // SAFETY: mapped until this is dropped; an atomic integer of zero bytes is one that is 0,
        // which is what a new turn is.
        Ok(unsafe { turn.as_ref() })
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; turns were lent for as long as this lived.
        unsafe { unmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_the_end_has_a_turn_of_its_own() {
        let turns = Turns::new().unwrap();
        for number in [0, 1, 4095, NUMBERS - 1] {
            let turn = turns.of(number).unwrap();
            assert_eq!((turn.party(), turn.enter(Party::Host)), (Party::Host, Entry::Joined));
        }
        assert_eq!(turns.of(2).unwrap().enter(Party::Device), Entry::HandOver);
        let error = turns.of(NUMBERS).err().unwrap();
        assert_eq!((error.code, error.value), (Code::LimitExceeded, 1 << 20));
    }

    #[test]
    fn a_failed_hand_over_leaves_it_where_it_was() {
        let (turn, refused) = (Turn::new(), Error::new(Code::DeviceFailed, "cache"));
        assert_eq!(enter(&turn, Party::Device, "region", || Err(refused)), Err(refused));
        assert_eq!(turn.party(), Party::Host);
        assert_eq!(enter(&turn, Party::Host, "region", || unreachable!()), Ok(()));
        let busy = enter(&turn, Party::Device, "region", || unreachable!());
        assert_eq!(busy, Err(Error::new(Code::Leased, "region")));
        turn.leave();
        assert_eq!(enter(&turn, Party::Device, "region", || Ok(())), Ok(()));
        assert_eq!(turn.party(), Party::Device);
    }
}
