//! Answers that no worker gives and events that come when they should not: each is refused, and
//! the work goes on as if nothing had come.

use super::failing::settle_failing;
use super::*;
use crate::units::RamRecord;

/// Refuses answers to actions that nobody has, and changes nothing.
fn refuse(run: &mut Run, actions: &[Action]) {
    for action in actions {
        let before = *run.machine.tally();
        let error = run.machine.step(Event::Done(*action, Outcome::Done)).unwrap_err();
        assert_eq!((error.code, error.what), (Code::BadState, "action was not given out"));
        assert_eq!(*run.machine.tally(), before, "{action:?}");
    }
}

/// Refuses an outcome that is none of this action's.
fn refuse_outcome(run: &mut Run, action: Action, outcome: Outcome, what: &str) {
    let error = run.machine.step(Event::Done(action, outcome)).unwrap_err();
    assert_eq!((error.code, error.what), (Code::BadState, what));
    run.machine.check().unwrap();
}

/// Hands out work until an action fits, which is taken; all others are done.
fn work_up_to(run: &mut Run, is_it: impl Fn(&Action) -> bool) -> Action {
    for _ in 0..1000 {
        run.step(Event::Next(Roles::all())).unwrap();
        match run.world.in_flight.pop() {
            Some(action) if is_it(&action) => return action,
            Some(action) => {
                let outcome = run.world.perform(action);
                run.step(Event::Done(action, outcome)).unwrap();
            }
            None => {}
        }
    }
    panic!("no such action: {:?}", run.machine.tally());
}

fn is_pack(action: &Action) -> bool {
    matches!(action, Action::Pack { .. })
}

fn is_write(action: &Action) -> bool {
    matches!(action, Action::Write { .. })
}

fn is_spill(action: &Action) -> bool {
    matches!(action, Action::Spill { .. })
}

fn only_ram(run: &mut Run) -> EvictPolicy {
    EvictPolicy { paths: Paths { ram: true, flash: false }, ..run.policy }
}

/// A context of which everything is packed in RAM.
fn packed() -> Run {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let policy = only_ram(&mut run);
    run.step(evict(policy, u64::MAX)).unwrap();
    run.settle();
    assert!(run.machine.tally().ram_bytes > 0 && run.machine.tally().kv_bytes == 0);
    run
}

#[test]
fn answers_to_actions_that_were_not_given_out_are_refused() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let id = chunk_id(0, 0);
    let chunk = *run.machine.chunk(id).unwrap();
    let unit = Unit::Kv(id);
    let fills = |chunk: &Chunk| {
        [
            Action::ReadChunk { id, record: chunk.flash, tokens: chunk.flash_tokens },
            Action::Unpack { id, record: chunk.ram, tokens: chunk.ram_tokens },
        ]
    };
    let idle = [
        Action::Pack { id, tokens: chunk.tokens },
        Action::Write { id },
        Action::Spill { id, record: chunk.ram },
        Action::Release { unit },
        Action::Allocate { unit, is_new: false },
    ];
    refuse(&mut run, &idle);
    refuse(&mut run, &fills(&chunk));
    // Of the right kind, with other numbers than what is under way.
    let policy = only_ram(&mut run);
    run.step(evict(policy, 1)).unwrap();
    let pack = work_up_to(&mut run, is_pack);
    let Action::Pack { id: packing, tokens } = pack else { panic!("{pack:?}") };
    refuse(&mut run, &[Action::Pack { id: packing, tokens: tokens - 1 }]);
    run.world.in_flight.push(pack);
    run.settle();

    let mut run = packed();
    let restored = restore(run.machine.tokens());
    run.step(restored).unwrap();
    let chunk_allocation =
        |action: &Action| matches!(action, Action::Allocate { unit: Unit::Kv(_), .. });
    let allocation = work_up_to(&mut run, chunk_allocation);
    let unit = allocation.unit();
    refuse(&mut run, &[Action::Allocate { unit, is_new: true }]);
    run.world.in_flight.push(allocation);
    let unpack = work_up_to(&mut run, |action| matches!(action, Action::Unpack { .. }));
    let Action::Unpack { id, record, tokens } = unpack else { panic!("{unpack:?}") };
    let other = RamRecord { offset: record.offset + 1, ..record };
    let flash = run.machine.chunk(id).unwrap().flash;
    refuse(
        &mut run,
        &[
            Action::Unpack { id, record: other, tokens },
            Action::Unpack { id, record, tokens: tokens - 1 },
            Action::ReadChunk { id, record: flash, tokens },
        ],
    );
    run.world.in_flight.push(unpack);
    run.finish_restore().unwrap();
}

#[test]
fn a_save_takes_the_answer_to_its_own_kind_of_copy_alone() {
    // From memory it writes.
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    let write = work_up_to(&mut run, is_write);
    let Unit::Kv(id) = write.unit() else { panic!("{write:?}") };
    let record = run.machine.chunk(id).unwrap().ram;
    refuse(&mut run, &[Action::Spill { id, record }]);
    run.world.in_flight.push(write);
    run.settle();
    // From RAM it spills.
    let mut run = packed();
    run.step(Event::Save).unwrap();
    let spill = work_up_to(&mut run, is_spill);
    let Action::Spill { id, record } = spill else { panic!("{spill:?}") };
    let other = RamRecord { offset: record.offset + 1, ..record };
    refuse(&mut run, &[Action::Write { id }, Action::Spill { id, record: other }]);
    run.world.in_flight.push(spill);
    run.settle();
}

#[test]
fn outcomes_of_other_actions_are_refused() {
    let mut run = full(Order::BackwardOut, Scheme::PartialOffload);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let write = work_up_to(&mut run, is_write);
    refuse_outcome(&mut run, write, Outcome::Done, "outcome of write");
    run.world.in_flight.push(write);
    let release = work_up_to(&mut run, |action| matches!(action, Action::Release { .. }));
    let written = Outcome::Written(FlashRecord { bytes: 1, crc: 0, packed: false });
    refuse_outcome(&mut run, release, written, "outcome of release");
    run.world.in_flight.push(release);
    run.settle();

    let mut run = packed();
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let spill = work_up_to(&mut run, is_spill);
    refuse_outcome(&mut run, spill, Outcome::Done, "outcome of spill");
    run.world.in_flight.push(spill);
    run.settle();
    run.restore().unwrap();
}

#[test]
fn a_buffer_that_nobody_can_lease_is_released() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.evict(run.machine.tally().total_bytes());
    for is_chunk in [false, true] {
        let allocates = |action: &Action| {
            let is_unit = matches!(action.unit(), Unit::Kv(_)) == is_chunk;
            is_unit && matches!(action, Action::Allocate { .. })
        };
        run.step(restore(run.machine.tokens())).unwrap();
        let allocation = work_up_to(&mut run, allocates);
        run.step(Event::Cancel).unwrap();
        let outcome = run.world.perform(allocation);
        run.step(Event::Done(allocation, outcome)).unwrap();
        let is_it = |action: &Action| *action == Action::Release { unit: allocation.unit() };
        let release = work_up_to(&mut run, is_it);
        let failed = Outcome::Failed(Error::new(Code::Leased, "test"));
        refuse_outcome(&mut run, release, failed, "release of a buffer nobody can lease");
        run.world.in_flight.push(release);
        run.settle();
        assert_eq!(run.machine.take_restored().unwrap().unwrap_err().code, Code::Cancelled);
    }
    run.restore().unwrap();
}

#[test]
fn a_commit_is_refused_below_the_context_and_before_its_chunks_are_there() {
    let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
    run.append(300);
    let commit = |run: &mut Run, tokens| {
        let error = run.machine.step(Event::Commit(TokenCount::new(tokens))).unwrap_err();
        (error.code, error.what)
    };
    assert_eq!(commit(&mut run, 299), (Code::InvalidArgument, "committed tokens"));
    run.step(restore(TokenCount::new(600))).unwrap();
    let absent = (Code::BadState, "committed chunk is not in memory");
    assert_eq!(commit(&mut run, 600), absent);
    assert_eq!(run.machine.tokens().get(), 300);
    run.finish_restore().unwrap();
    run.step(Event::Commit(TokenCount::new(600))).unwrap();
}

#[test]
fn a_restore_of_a_context_that_lost_a_chunk_says_from_where_to_recompute() {
    let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
    let record = FlashRecord { bytes: 1, crc: 0, packed: false };
    let saved = |id: crate::units::ChunkId| {
        (id != chunk_id(2, 1)).then_some(SavedChunk { record, tokens: 256 })
    };
    run.machine.recover(TokenCount::new(3 * 256), saved).unwrap();
    let error = run.machine.step(restore(TokenCount::new(3 * 256))).unwrap_err();
    assert_eq!((error.code, error.value), (Code::Corrupt, 256));
    assert!(run.machine.is_idle());
}

#[test]
fn nothing_is_recovered_from_a_file_that_failed_to_sync() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    run.settle();
    assert!(run.machine.take_saved().unwrap().to_seal);
    run.step(Event::Sealed(Err(Error::new(Code::SyncFailed, "test")))).unwrap();
    run.truncate(0);
    let recovered = run.machine.recover(TokenCount::new(10), |_| None).unwrap_err();
    assert_eq!((recovered.code, run.machine.columns()), (Code::Poisoned, 0));
}

#[test]
fn a_context_that_is_cut_while_it_is_sealed_is_durable_up_to_the_cut() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    run.settle();
    assert!(run.machine.take_saved().unwrap().to_seal);
    run.truncate(100);
    run.step(Event::Sealed(Ok(()))).unwrap();
    assert_eq!(run.machine.durable().get(), 100);
}

#[test]
fn packed_chunks_wait_for_slots_while_a_save_is_sealed() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    run.settle();
    assert!(run.machine.take_saved().unwrap().to_seal);
    // The last column's copies lack these.
    run.append(20);
    let policy = only_ram(&mut run);
    run.step(evict(policy, u64::MAX)).unwrap();
    run.settle();
    run.step(evict(run.policy, u64::MAX)).unwrap();
    for _ in 0..200 {
        run.step(Event::Next(Roles::all())).unwrap();
        assert!(run.world.in_flight.is_empty(), "{:?}", run.world.in_flight);
    }
    assert!(run.machine.is_evicting() && run.machine.tally().ram_bytes > 0, "it waits");
    run.step(Event::Sealed(Ok(()))).unwrap();
    run.settle();
    assert_eq!(run.machine.tally().total_bytes(), 0);
    run.restore().unwrap();
}

#[test]
fn a_packed_chunk_whose_spill_was_refused_is_left_alone_and_the_next_one_leaves() {
    let mut run = packed();
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let spill = work_up_to(&mut run, is_spill);
    let leased = Error::new(Code::Leased, "test");
    run.step(Event::Done(spill, Outcome::Failed(leased))).unwrap();
    run.settle();
    let report = run.machine.take_evicted().unwrap();
    assert_eq!((report.stop, report.leased, report.error), (Stop::Exhausted, 1, None));
    assert_eq!(run.machine.tally().total_bytes(), u64::from(PACKED_BYTES));
    run.restore().unwrap();
}

#[test]
fn a_save_that_finds_a_chunk_leased_costs_the_eviction_behind_it_nothing() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    let write = work_up_to(&mut run, is_write);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    run.world.in_flight.push(write);
    let leased = Error::new(Code::Leased, "test");
    assert_eq!(settle_failing(&mut run, leased, |action| *action == write), 1);
    let report = run.machine.take_evicted().unwrap();
    assert_eq!((report.leased, report.error), (0, None));
    assert_eq!(run.machine.tally().total_bytes(), 0);
}

#[test]
fn a_restore_that_fails_when_an_eviction_came_first_costs_that_one_nothing() {
    let mut run = packed();
    run.step(restore(run.machine.tokens())).unwrap();
    let fill = work_up_to(&mut run, |action| matches!(action, Action::Unpack { .. }));
    run.step(evict(run.policy, u64::MAX)).unwrap();
    assert_eq!(run.machine.take_restored().unwrap().unwrap_err().code, Code::Cancelled);
    let failed = Outcome::Failed(Error::new(Code::Io, "test"));
    run.step(Event::Done(fill, failed)).unwrap();
    run.settle();
    let report = run.machine.take_evicted().unwrap();
    assert_eq!((report.leased, report.error), (0, None));
    assert_eq!((run.machine.tally().total_bytes(), run.machine.lost()), (0, None));
}

#[test]
fn evictions_and_saves_are_to_be_stopped_once_and_nothing_else_is() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    assert_eq!(run.machine.to_stop(), None, "nothing runs");
    for (goal, stop) in [
        (Event::Save, Event::StopSave(Stop::Cancelled)),
        (evict(run.policy, u64::MAX), Event::StopEvict(Stop::Cancelled)),
    ] {
        run.step(goal).unwrap();
        run.step(Event::Next(Roles::all())).unwrap();
        assert_eq!(run.machine.to_stop(), Some(stop));
        run.step(stop).unwrap();
        assert!(!run.machine.is_idle(), "an action is under way");
        assert_eq!(run.machine.to_stop(), None);
        run.settle();
    }
    assert!(run.machine.tally().missing > 0);
    run.step(restore(run.machine.tokens())).unwrap();
    assert!(run.machine.is_restoring() && run.machine.to_stop().is_none());
    run.finish_restore().unwrap();
}
