//! Every atomic of the library, as small types that name their protocol. Nothing else uses
//! `core::sync::atomic`, so that under `--cfg loom` the model checker of that name puts its own
//! here; `tests/loom` holds the models.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A `const` constructor, except under loom, whose atomics belong to the model they are made in.
macro_rules! constant {
    ($(#[$doc:meta])* pub fn $($rest:tt)*) => {
        $(#[$doc])*
        #[cfg(not(loom))]
        pub const fn $($rest)*

        $(#[$doc])*
        #[cfg(loom)]
        pub fn $($rest)*
    };
}
pub(crate) use constant;

/// A 32-bit word that threads can wait on through [`crate::port::Park`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU32);

impl Word {
    constant! {
        /// A word with a first value.
        pub fn new(value: u32) -> Self {
            Word(AtomicU32::new(value))
        }
    }

    /// Acquire load.
    pub fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Release store.
    pub fn store(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }

    /// Swap, acquire and release.
    pub fn swap(&self, value: u32) -> u32 {
        self.0.swap(value, Ordering::AcqRel)
    }

    /// Adds one and returns the value before, acquire and release.
    pub fn increment(&self) -> u32 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    /// Subtracts one and returns the value before, acquire and release.
    pub fn decrement(&self) -> u32 {
        self.0.fetch_sub(1, Ordering::AcqRel)
    }

    /// Sets bits and returns the value before, acquire and release.
    pub fn set(&self, bits: u32) -> u32 {
        self.0.fetch_or(bits, Ordering::AcqRel)
    }

    /// Replaces `old` by `new`; true when it did. Acquire on success.
    pub fn replace(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Address for the kernel's futex call.
    pub fn as_ptr(&self) -> *mut u32 {
        core::ptr::from_ref(&self.0).cast_mut().cast()
    }
}

/// A flag that is raised at most once and never lowered. What was written before it was raised is
/// visible to whoever sees it raised.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    constant! {
        /// Not raised.
        pub fn new() -> Self {
            Flag(AtomicBool::new(false))
        }
    }

    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A statistics counter. Relaxed: it orders nothing.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    constant! {
        /// Zero.
        pub fn new() -> Self {
            Counter(AtomicU64::new(0))
        }
    }

    /// Adds.
    pub fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    /// Subtracts.
    pub fn sub(&self, value: u64) {
        self.0.fetch_sub(value, Ordering::Relaxed);
    }

    /// Reads.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who may touch a buffer, in one word:
///
/// ```text
/// absent -> exclusive -> prepared (+ parts being filled) -> resident (+ leases)
///    ^          |  ^____________________|________________________|
///    |__________|
/// ```
///
/// It is the lease counter of a unit and the borrow check of its memory. Bytes written by parts or
/// by an exclusive holder are visible to every lease taken after [`Access::publish`] or
/// [`Access::unlock`].
#[derive(Debug, Default)]
pub struct Access(AtomicU32);

impl Access {
    const ABSENT: u32 = 0;
    const RESIDENT: u32 = 1;
    const RESIDENT_MAX: u32 = PREPARED - 1;
    const PREPARED_MAX: u32 = u32::MAX - 1;
    const EXCLUSIVE: u32 = u32::MAX;

    constant! {
        /// Absent.
        pub fn new() -> Self {
            Access(AtomicU32::new(Self::ABSENT))
        }
    }

    fn replace(&self, old: u32, new: u32) -> bool {
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn count_up(&self, from: u32, below: u32) -> bool {
        let next = |n| (from..below).contains(&n).then(|| n + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).is_ok()
    }

    /// Absent to exclusive.
    pub fn claim(&self) -> bool {
        self.replace(Self::ABSENT, Self::EXCLUSIVE)
    }

    /// Exclusive to prepared: the buffer exists and waits to be filled.
    pub fn prepare(&self) -> bool {
        self.replace(Self::EXCLUSIVE, PREPARED)
    }

    /// Starts filling a part of a prepared buffer.
    pub fn begin_part(&self) -> bool {
        self.count_up(PREPARED, Self::PREPARED_MAX)
    }

    /// Ends filling a part.
    pub fn end_part(&self) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!((PREPARED + 1..=Self::PREPARED_MAX).contains(&before));
    }

    /// Prepared, with no part being filled, to resident.
    pub fn publish(&self) -> bool {
        self.replace(PREPARED, Self::RESIDENT)
    }

    /// Resident without leases to exclusive.
    pub fn lock(&self) -> bool {
        self.replace(Self::RESIDENT, Self::EXCLUSIVE)
    }

    /// Exclusive to resident.
    pub fn unlock(&self) -> bool {
        self.replace(Self::EXCLUSIVE, Self::RESIDENT)
    }

    /// Resident without leases, or prepared without parts, to exclusive: before a release.
    pub fn lock_to_release(&self) -> bool {
        self.lock() || self.replace(PREPARED, Self::EXCLUSIVE)
    }

    /// Exclusive to absent.
    pub fn vacate(&self) -> bool {
        self.replace(Self::EXCLUSIVE, Self::ABSENT)
    }

    /// Takes one lease on a resident buffer.
    pub fn lease(&self) -> bool {
        self.count_up(Self::RESIDENT, Self::RESIDENT_MAX)
    }

    /// Gives one lease back.
    pub fn unlease(&self) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!((Self::RESIDENT + 1..=Self::RESIDENT_MAX).contains(&before));
    }

    /// Whether it is absent at this moment.
    pub fn is_absent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::ABSENT
    }

    /// Whether one who was just refused may try again: it is resident, leased or not, or somebody
    /// uses it. One that is free by now was in use a moment ago, so this looks at the word once:
    /// of two looks, the first could find it free and the second taken by somebody else.
    pub fn may_be_had_later(&self) -> bool {
        !matches!(self.0.load(Ordering::Relaxed), Self::ABSENT | PREPARED)
    }

    /// Leases, or parts being filled, at this moment.
    pub fn users(&self) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            Self::ABSENT => 0,
            Self::EXCLUSIVE => 1,
            n if n >= PREPARED => n - PREPARED,
            n => n - Self::RESIDENT,
        }
    }
}

const PREPARED: u32 = 1 << 31;

/// Who takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The CPU.
    Host,
    /// The accelerator.
    Device,
}

/// The answer to [`Turn::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// In; leave once.
    Joined,
    /// The other party had it and nobody used it: hand it over, then [`Turn::settle`].
    HandOver,
    /// The other party uses it, or somebody hands it over at this moment.
    Busy,
}

/// Which of two parties has something, and how many of its users are in, in one word. What one
/// party wrote before its last user left is visible to whoever hands it over.
#[derive(Debug, Default)]
pub struct Turn(AtomicU32);

impl Turn {
    const DEVICE: u32 = 1 << 31;
    const HANDED_OVER: u32 = u32::MAX;
    const USERS_MAX: u32 = Self::DEVICE - 2;

    constant! {
        /// The host's, and nobody in.
        pub fn new() -> Self {
            Turn(AtomicU32::new(0))
        }
    }

    const fn bits(party: Party) -> u32 {
        match party {
            Party::Host => 0,
            Party::Device => Self::DEVICE,
        }
    }

    /// Asks for it.
    pub fn enter(&self, party: Party) -> Entry {
        let own = Self::bits(party);
        let mut answer = Entry::Busy;
        let next = |now: u32| {
            let users = now & !Self::DEVICE;
            let (word, said) = match (now & Self::DEVICE == own, users) {
                _ if now == Self::HANDED_OVER => (None, Entry::Busy),
                (true, 0..Self::USERS_MAX) => (Some(now + 1), Entry::Joined),
                (false, 0) => (Some(Self::HANDED_OVER), Entry::HandOver),
                _ => (None, Entry::Busy),
            };
            answer = said;
            word
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        answer
    }

    /// Ends a hand-over: whose it is now, and whether whoever asked is in.
    pub fn settle(&self, party: Party, is_in: bool) {
        self.0.store(Self::bits(party) | u32::from(is_in), Ordering::Release);
    }

    /// One user goes.
    pub fn leave(&self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before != Self::HANDED_OVER && before & !Self::DEVICE != 0);
    }

    /// Whose it is, once nobody can be in any more.
    pub fn party(&self) -> Party {
        match self.0.load(Ordering::Acquire) & Self::DEVICE {
            0 => Party::Host,
            _ => Party::Device,
        }
    }
}

/// A set of up to 64 parts, each claimed at most once.
#[derive(Debug, Default)]
pub struct PartSet(AtomicU64);

impl PartSet {
    constant! {
        /// Empty.
        pub fn new() -> Self {
            PartSet(AtomicU64::new(0))
        }
    }

    /// Forgets all claims.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Claims a part below 64; false when it was claimed before.
    pub fn claim(&self, part: u32) -> bool {
        let bit = 1u64 << (part & 63);
        part < u64::BITS && self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Whether a part is claimed.
    pub fn contains(&self, part: u32) -> bool {
        let bit = 1u64 << (part & 63);
        part < u64::BITS && self.0.load(Ordering::Acquire) & bit != 0
    }

    /// Gives a claim back; false when there was none.
    pub fn unclaim(&self, part: u32) -> bool {
        let bit = 1u64 << (part & 63);
        part < u64::BITS && self.0.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }
}

#[cfg(test)]
mod tests;
