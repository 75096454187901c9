//! Copies of one chunk that differ, and copies that are gone all at once.

use super::failing::{is_transfer, settle_failing};
use super::*;

#[test]
fn a_chunk_that_was_cut_between_two_packings_unpacks_from_either_copy() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let total = run.machine.tally().total_bytes();
    // To the swap file, packed with all tokens, and back.
    run.evict(total);
    run.restore().unwrap();
    run.truncate(7 * u32::from(CHUNK_TOKENS) + 50);
    // Packed again with fewer, then dropped in favour of the older copy.
    run.policy.paths.flash = false;
    run.evict(total);
    run.policy.paths.flash = true;
    run.evict(total);
    assert_eq!(run.machine.tally().ram_bytes, 0);
    run.restore().unwrap();
}

#[test]
fn nothing_is_dropped_in_favour_of_a_file_that_failed_to_sync() {
    for code in [Code::SyncFailed, Code::Poisoned] {
        let mut run = full(Order::BackwardOut, Scheme::PartialOffload);
        let total = run.machine.tally().total_bytes();
        run.evict(total);
        run.restore().unwrap();
        // The last chunks alone are not clean, and leave first.
        run.append(5);
        run.step(evict(run.policy, total)).unwrap();
        settle_failing(&mut run, Error::new(code, "test"), is_transfer);
        let report = run.machine.take_evicted().unwrap();
        assert_eq!(report.error.map(|error| error.code), Some(code));
        assert_eq!((report.stop, run.machine.lost()), (Stop::Exhausted, None));
        assert_eq!(run.machine.tally().flash_chunks, 0);
        // It stays so: nothing is written to that file any more.
        run.step(evict(run.policy, total)).unwrap();
        settle_failing(&mut run, Error::new(Code::Io, "never asked for"), is_transfer);
        assert_eq!(run.machine.take_evicted().unwrap().error, None);
        run.restore().unwrap();
    }
}

#[test]
fn what_was_only_in_a_file_that_failed_to_sync_is_said_to_be_lost() {
    let mut run = full(Order::BackwardOut, Scheme::PartialOffload);
    run.evict(run.machine.tally().total_bytes());
    run.step(restore(run.machine.tokens())).unwrap();
    settle_failing(&mut run, Error::new(Code::Poisoned, "test"), is_transfer);
    let error = run.machine.take_restored().unwrap().unwrap_err();
    assert_eq!((error.code, error.value), (Code::Corrupt, 0));
    assert_eq!(run.machine.lost(), Some(0));
    run.truncate(0);
    run.restore().unwrap();
}

#[test]
fn a_write_that_is_booked_after_the_file_was_lost_does_not_count() {
    let mut run = full(Order::BackwardOut, Scheme::PartialOffload);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    for _ in 0..3 {
        run.step(Event::Next(Roles::all())).unwrap();
    }
    let [head, first, second] = run.world.in_flight[..] else { panic!("three units leave") };
    assert!(matches!((first, second), (Action::Write { .. }, Action::Write { .. })));
    let outcome = run.world.perform(head);
    run.step(Event::Done(head, outcome)).unwrap();
    let error = Error::new(Code::SyncFailed, "test");
    run.step(Event::Done(first, Outcome::Failed(error))).unwrap();
    let outcome = run.world.perform(second);
    run.step(Event::Done(second, outcome)).unwrap();
    run.world.in_flight.retain(|action| ![head, first, second].contains(action));
    run.settle();
    assert_eq!(run.machine.tally().flash_chunks, 0);
    assert_eq!(run.machine.lost(), None);
    run.restore().unwrap();
}
