use super::*;
use std::vec::Vec;

/// What a word of [`Access`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Absent,
    Exclusive,
    Prepared(u32),
    Resident(u32),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Claim,
    Prepare,
    BeginPart,
    EndPart,
    Publish,
    Lock,
    Unlock,
    LockToRelease,
    Vacate,
    Lease,
    Unlease,
}

use Step::*;

const STEPS: [Step; 11] = [
    Claim,
    Prepare,
    BeginPart,
    EndPart,
    Publish,
    Lock,
    Unlock,
    LockToRelease,
    Vacate,
    Lease,
    Unlease,
];

impl Model {
    /// The state after a step; `None` where the step is refused.
    fn after(self, step: Step) -> Option<Model> {
        use Model::*;
        match (step, self) {
            (Step::Claim, Absent) => Some(Exclusive),
            (Step::Prepare, Exclusive) => Some(Prepared(0)),
            (Step::BeginPart, Prepared(n)) => Some(Prepared(n + 1)),
            (Step::EndPart, Prepared(n)) if n > 0 => Some(Prepared(n - 1)),
            (Step::Publish, Prepared(0)) => Some(Resident(0)),
            (Step::Lock, Resident(0)) => Some(Exclusive),
            (Step::Unlock, Exclusive) => Some(Resident(0)),
            (Step::LockToRelease, Resident(0) | Prepared(0)) => Some(Exclusive),
            (Step::Vacate, Exclusive) => Some(Absent),
            (Step::Lease, Resident(n)) => Some(Resident(n + 1)),
            (Step::Unlease, Resident(n)) if n > 0 => Some(Resident(n - 1)),
            _ => None,
        }
    }

    fn word(self) -> u32 {
        match self {
            Model::Absent => Access::ABSENT,
            Model::Exclusive => Access::EXCLUSIVE,
            Model::Prepared(n) => PREPARED + n,
            Model::Resident(n) => Access::RESIDENT + n,
        }
    }

    fn users(self) -> u32 {
        match self {
            Model::Absent => 0,
            Model::Exclusive => 1,
            Model::Prepared(n) | Model::Resident(n) => n,
        }
    }
}

/// Takes the step; false where it was refused. The two that end something have no refusal: their
/// caller holds what they end, so they are tried only where that can be.
fn take(access: &Access, step: Step, legal: bool) -> bool {
    match step {
        Claim => access.claim(),
        Prepare => access.prepare(),
        BeginPart => access.begin_part(),
        Publish => access.publish(),
        Lock => access.lock(),
        Unlock => access.unlock(),
        LockToRelease => access.lock_to_release(),
        Vacate => access.vacate(),
        Lease => access.lease(),
        EndPart if legal => {
            access.end_part();
            true
        }
        Unlease if legal => {
            access.unlease();
            true
        }
        EndPart | Unlease => false,
    }
}

#[test]
fn access_allows_exactly_the_transitions_of_its_diagram() {
    let mut frontier = Vec::from([Model::Absent]);
    let mut seen = frontier.clone();
    let mut refused = 0;
    while let Some(model) = frontier.pop() {
        for step in STEPS {
            let access = Access(AtomicU32::new(model.word()));
            assert_eq!(access.users(), model.users());
            let after = model.after(step);
            assert_eq!(take(&access, step, after.is_some()), after.is_some(), "{model:?} {step:?}");
            refused += u32::from(after.is_none());
            let after = after.unwrap_or(model);
            assert_eq!(access.0.into_inner(), after.word(), "{model:?} {step:?}");
            if after.users() <= 3 && !seen.contains(&after) {
                seen.push(after);
                frontier.push(after);
            }
        }
    }
    // Absent, exclusive, and 0 to 3 parts and leases.
    assert_eq!(seen.len(), 10);
    assert!(refused > 50);
}

#[test]
fn counts_stop_before_they_would_mean_another_state() {
    for full in [Access::RESIDENT_MAX, Access::PREPARED_MAX] {
        let access = Access(AtomicU32::new(full));
        for step in [Lease, BeginPart, Claim, Publish, Lock, LockToRelease] {
            assert!(!take(&access, step, false), "{step:?} at {full:#x}");
        }
        assert_eq!(access.0.load(Ordering::Relaxed), full);
    }
    let access = Access(AtomicU32::new(Access::RESIDENT_MAX - 1));
    assert!(access.lease());
    assert!(!access.lease());
    let access = Access(AtomicU32::new(Access::PREPARED_MAX - 1));
    assert!(access.begin_part());
    assert!(!access.begin_part());
}

#[test]
fn a_part_is_claimed_once_and_only_below_64() {
    let parts = PartSet::new();
    for part in 0..64 {
        assert!(parts.claim(part));
        assert!(!parts.claim(part));
    }
    for part in [64, 65, 127, 128, u32::MAX] {
        assert!(!parts.claim(part));
    }
    parts.clear();
    for part in [64, 128, u32::MAX] {
        assert!(!parts.claim(part), "{part}");
    }
    assert!(parts.claim(0));
    assert!(parts.claim(63));
}

#[test]
fn parts_are_claimed_once_among_threads() {
    let parts = PartSet::new();
    for _ in 0..200 {
        let claimed: u32 = std::thread::scope(|scope| {
            let claim_all = || (0..64).map(|part| u32::from(parts.claim(part))).sum::<u32>();
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(claim_all)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(claimed, 64);
        parts.clear();
    }
}

#[test]
fn words_counters_and_flags_do_what_they_say() {
    let word = Word::new(5);
    assert_eq!(word.increment(), 5);
    assert_eq!(word.decrement(), 6);
    assert!(!word.replace(6, 9));
    assert!(word.replace(5, 9));
    assert_eq!(word.swap(1), 9);
    assert_eq!(word.set(6), 1);
    assert_eq!(word.load(), 7);
    word.store(u32::MAX);
    assert_eq!(word.load(), u32::MAX);
    assert_eq!(word.as_ptr().addr(), core::ptr::from_ref(&word).addr());
    let counter = Counter::new();
    counter.add(7);
    counter.sub(3);
    assert_eq!(counter.get(), 4);
    let flag = Flag::new();
    assert!(!flag.is_raised());
    flag.raise();
    flag.raise();
    assert!(flag.is_raised());
}

#[test]
fn parties_take_turns() {
    use Party::{Device, Host};
    let turn = Turn::new();
    assert_eq!(turn.party(), Host);
    assert_eq!(turn.enter(Host), Entry::Joined);
    assert_eq!(turn.enter(Host), Entry::Joined);
    assert_eq!(turn.enter(Device), Entry::Busy);
    turn.leave();
    assert_eq!(turn.enter(Device), Entry::Busy);
    turn.leave();
    assert_eq!(turn.enter(Device), Entry::HandOver);
    assert_eq!(turn.enter(Host), Entry::Busy);
    assert_eq!(turn.enter(Device), Entry::Busy);
    turn.settle(Device, true);
    assert_eq!((turn.party(), turn.enter(Host)), (Device, Entry::Busy));
    assert_eq!(turn.enter(Device), Entry::Joined);
    turn.leave();
    turn.leave();
    assert_eq!(turn.enter(Host), Entry::HandOver);
    // It failed: it stays with whoever had it, and nobody is in.
    turn.settle(Device, false);
    assert_eq!(turn.enter(Device), Entry::Joined);
    turn.leave();
    assert_eq!(turn.enter(Host), Entry::HandOver);
    turn.settle(Host, true);
    turn.leave();
    assert_eq!(turn.party(), Host);
    turn.settle(Device, false);
    assert_eq!(turn.party(), Device);
}

#[test]
fn a_turn_is_one_party_s_at_a_time() {
    use Party::{Device, Host};
    let turn = Turn::new();
    // The host's users in the lower half, the device's in the upper.
    let inside = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (party, one) in [(Host, 1u64), (Host, 1), (Device, 1 << 32), (Device, 1 << 32)] {
            let (turn, inside) = (&turn, &inside);
            scope.spawn(move || {
                let mut entered = 0;
                while entered < 2000 {
                    match turn.enter(party) {
                        Entry::Busy => {
                            std::thread::yield_now();
                            continue;
                        }
                        Entry::HandOver => {
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                            turn.settle(party, true);
                        }
                        Entry::Joined => {}
                    }
                    let now = inside.fetch_add(one, Ordering::SeqCst) + one;
                    assert!((now as u32 == 0) != (now >> 32 == 0), "both parties are in");
                    inside.fetch_sub(one, Ordering::SeqCst);
                    turn.leave();
                    entered += 1;
                }
            });
        }
    });
    assert_eq!(turn.enter(turn.party()), Entry::Joined);
}
