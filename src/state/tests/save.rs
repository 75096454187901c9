//! What a save writes, when it counts, and what comes in its way.

use super::*;
use std::vec::Vec;

impl Run {
    /// Begins a save and works until it ends.
    fn save(&mut self) -> SaveReport {
        self.step(Event::Save).unwrap();
        self.settle();
        self.machine.take_saved().expect("a save ends with a report")
    }

    fn seal(&mut self, report: &SaveReport) {
        if report.to_seal {
            self.step(Event::Sealed(Ok(()))).unwrap();
            assert_eq!(self.machine.durable(), report.on_flash);
        }
    }

    /// Works for as long as the next action is no transfer to the swap file, then hands it out.
    fn work_up_to_write(&mut self) -> Action {
        loop {
            self.step(Event::Next(Roles::all())).unwrap();
            match self.world.in_flight.pop().expect("there is something to write") {
                write @ (Action::Write { .. } | Action::Spill { .. }) => return write,
                other => self.finish(other),
            }
        }
    }

    fn finish(&mut self, action: Action) {
        let outcome = self.world.perform(action);
        self.step(Event::Done(action, outcome)).unwrap();
    }

    /// All chunks of the context.
    fn chunks(&self) -> Vec<(crate::units::ChunkId, Chunk)> {
        let columns = self.machine.columns();
        let ids = (0..columns)
            .flat_map(|column| (0..SHAPE.layers).map(move |layer| chunk_id(layer, column)));
        ids.map(|id| (id, *self.machine.chunk(id).unwrap())).collect()
    }
}

fn saved(tokens: u32, stop: Stop) -> SaveReport {
    let tokens = TokenCount::new(tokens);
    SaveReport { tokens, on_flash: tokens, stop, error: None, to_seal: true }
}

const TOKENS: u32 = 8 * CHUNK_TOKENS as u32 - 100;

#[test]
fn a_save_copies_what_is_in_memory_and_what_is_packed_and_moves_nothing() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.policy.paths.flash = false;
    run.evict(120 << 10);
    let before = *run.machine.tally();
    let places: Vec<_> = run.chunks();
    assert!(before.ram_bytes > 0 && before.kv_bytes > 0 && before.flash_chunks == 0);
    let report = run.save();
    assert_eq!(report, saved(TOKENS, Stop::Reached));
    let after = *run.machine.tally();
    assert_eq!(after.flash_chunks, 32);
    assert_eq!((after.total_bytes(), after.missing), (before.total_bytes(), before.missing));
    for ((_, before), (_, after)) in places.iter().zip(run.chunks()) {
        assert_eq!(after.copies, before.copies | Copies::FLASH);
        assert_eq!(after.flash.packed, before.copies.contains(Copies::RAM));
    }
    run.seal(&report);
    // A second one has nothing to do, and what is clean leaves without being written.
    run.step(Event::Save).unwrap();
    assert!(run.machine.is_saving());
    run.step(Event::Next(Roles::READ)).unwrap();
    assert!(run.world.in_flight.is_empty() && run.machine.is_idle());
    let report = run.machine.take_saved().unwrap();
    assert_eq!(report, saved(TOKENS, Stop::Reached));
    run.seal(&report);
    run.policy = EvictPolicy { scheme: Scheme::PartialOffload, ..EvictPolicy::default() };
    run.step(evict(run.policy, u64::MAX)).unwrap();
    while !run.machine.is_idle() {
        run.step(Event::Next(Roles::all())).unwrap();
        if let Some(action) = run.world.in_flight.pop() {
            assert!(matches!(action, Action::Release { .. }), "{action:?}");
            run.finish(action);
        }
    }
    assert_eq!(run.machine.tally().total_bytes(), 0);
    run.restore().unwrap();
}

#[test]
fn compute_goes_on_while_its_chunks_are_saved() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let more = TokenCount::new(TOKENS + 10);
    run.step(restore(more)).unwrap();
    run.finish_restore().unwrap();
    run.step(Event::Save).unwrap();
    let mut writes = Vec::new();
    for _ in 0..32 {
        writes.push(run.work_up_to_write());
    }
    let is_ready = |layer| run.machine.is_ready(LayerIndex::new(layer), Kind::Kv);
    assert!((0..SHAPE.layers).all(is_ready) && run.machine.tally().kv_left == 0);
    // What is on its way lacks the tokens that come now.
    for action in &writes[28..] {
        let Unit::Kv(id) = action.unit() else { panic!("{action:?}") };
        assert_eq!(id.chunk.get(), 7);
        *run.world.truth.get_mut(&id).unwrap() += 1;
        run.world.buffers.insert(id, run.world.truth[&id]);
    }
    run.machine.step(Event::Commit(more)).unwrap();
    for action in writes {
        run.finish(action);
    }
    let report = run.machine.take_saved().unwrap();
    let on_flash = TokenCount::new(7 * 256);
    assert_eq!(report, SaveReport { on_flash, ..saved(TOKENS, Stop::Reached) });
    run.seal(&report);
    assert_eq!(run.save(), saved(TOKENS + 10, Stop::Reached));
}

#[test]
fn what_is_there_for_tokens_to_come_is_not_saved() {
    let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
    run.append(256);
    run.step(restore(TokenCount::new(300))).unwrap();
    run.finish_restore().unwrap();
    assert_eq!(run.machine.columns(), 2);
    assert_eq!(run.save(), saved(256, Stop::Reached));
    assert_eq!(run.machine.tally().flash_chunks, u32::from(SHAPE.layers));
}

/// What was written names tokens that are no longer the context's.
#[test]
fn a_context_that_is_cut_before_the_report_is_taken_is_not_sealed() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    run.settle();
    run.truncate(300);
    let report = run.machine.take_saved().unwrap();
    assert_eq!((report.stop, report.to_seal), (Stop::Cancelled, false));
    assert_eq!(run.machine.step(Event::Sealed(Ok(()))).unwrap_err().code, Code::BadState);
    assert_eq!(run.save(), saved(300, Stop::Reached));
}

#[test]
fn a_save_that_is_stopped_is_sealed_where_that_is_a_gain() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    for (writes, stop, on_flash, to_seal) in [
        (0, Stop::Deadline, 0, false),
        (7, Stop::Deadline, 256, true),
        (4, Stop::Cancelled, 512, false),
        (0, Stop::Deadline, 512, true),
        (0, Stop::Deadline, 512, false),
    ] {
        run.step(Event::Save).unwrap();
        for _ in 0..writes {
            let action = run.work_up_to_write();
            run.finish(action);
        }
        run.step(Event::StopSave(stop)).unwrap();
        let report = run.machine.take_saved().unwrap();
        let on_flash = TokenCount::new(on_flash);
        assert_eq!(report, SaveReport { on_flash, to_seal, ..saved(TOKENS, stop) });
        run.seal(&report);
        assert_eq!(run.machine.step(Event::StopSave(stop)).unwrap_err().code, Code::BadState);
        let again = run.machine.step(Event::Sealed(Ok(())));
        assert_eq!(again.unwrap_err().code, Code::BadState);
    }
    // Cutting the context cuts what is durable.
    run.truncate(300);
    assert_eq!(run.machine.durable().get(), 300);
    run.append(100);
    assert_eq!(run.machine.durable().get(), 300);
}

#[test]
fn an_eviction_ends_a_save_and_finds_all_that_it_had() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(Event::Save).unwrap();
    let writes = [run.work_up_to_write(), run.work_up_to_write()];
    run.world.in_flight.extend(writes);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let report = run.machine.take_saved().unwrap();
    assert_eq!((report.stop, report.to_seal), (Stop::Cancelled, false));
    run.settle();
    run.machine.take_evicted().unwrap();
    assert_eq!(run.machine.tally().total_bytes(), 0);
    assert_eq!(run.machine.step(Event::Sealed(Ok(()))).unwrap_err().code, Code::BadState);
    run.restore().unwrap();
    // The same, and the writes fail: for the eviction that is a closed path.
    run.append(300);
    run.step(Event::Save).unwrap();
    let write = run.work_up_to_write();
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let error = Error::new(Code::NoSpace, "test");
    run.step(Event::Done(write, Outcome::Failed(error))).unwrap();
    run.settle();
    assert_eq!(run.machine.take_evicted().unwrap().error, Some(error));
    run.restore().unwrap();
}

#[test]
fn between_report_and_seal_no_slot_is_written() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let report = run.save();
    // The table's copy of one chunk is gone, so it would be written.
    run.append(20);
    assert_eq!(run.machine.step(Event::Save).unwrap_err().code, Code::BadState);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    for _ in 0..500 {
        run.step(Event::Next(Roles::all())).unwrap();
        while let Some(action) = run.world.in_flight.pop() {
            assert!(!matches!(action, Action::Write { .. } | Action::Spill { .. }), "{action:?}");
            run.finish(action);
        }
    }
    assert!(run.machine.is_evicting(), "it waits for slots");
    run.step(Event::Sealed(Err(Error::new(Code::Io, "test")))).unwrap();
    assert!(report.to_seal && run.machine.durable().get() == 0);
    run.settle();
    assert_eq!(run.machine.tally().total_bytes(), 0);
    run.restore().unwrap();
}

#[test]
fn failures_of_a_save_end_it_and_leave_chunks_as_they_were() {
    for code in [Code::Io, Code::NoSpace, Code::Leased, Code::SyncFailed] {
        let mut run = full(Order::BackwardOut, Scheme::Hybrid);
        run.step(Event::Save).unwrap();
        let first = run.work_up_to_write();
        let second = run.work_up_to_write();
        assert_eq!(
            run.machine.step(Event::Done(first, Outcome::Done)).unwrap_err().code,
            Code::BadState
        );
        let error = Error::new(code, "test");
        run.step(Event::Done(first, Outcome::Failed(error))).unwrap();
        assert_eq!(run.machine.step(Event::Next(Roles::all())).unwrap(), Step::default());
        run.finish(second);
        let report = run.machine.take_saved().unwrap();
        assert_eq!((report.error, report.to_seal), (Some(error), false));
        let flash = if code == Code::SyncFailed { 0 } else { 1 };
        assert_eq!(run.machine.tally().flash_chunks, flash);
        match code {
            Code::SyncFailed => {
                assert_eq!(run.machine.step(Event::Save).unwrap_err().code, Code::Poisoned);
            }
            _ => assert_eq!(run.save(), saved(TOKENS, Stop::Reached)),
        }
    }
}

#[test]
fn a_failed_seal_that_was_a_failed_sync_takes_the_file_with_it() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let report = run.save();
    run.seal(&report);
    run.append(10);
    run.save();
    run.step(Event::Sealed(Err(Error::new(Code::SyncFailed, "test")))).unwrap();
    assert_eq!((run.machine.durable().get(), run.machine.tally().flash_chunks), (0, 0));
    assert_eq!(run.machine.lost(), None);
}

#[test]
fn a_save_is_refused_when_it_cannot_be_made() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.evict(run.machine.tally().total_bytes());
    run.step(restore(run.machine.tokens())).unwrap();
    assert_eq!(run.machine.step(Event::Save).unwrap_err().code, Code::BadState);
    run.finish_restore().unwrap();
    run.step(Event::Save).unwrap();
    let running = [Event::Save, restore(run.machine.tokens()), Event::Truncate(TokenCount::new(0))];
    for event in running {
        assert_eq!(run.machine.step(event).unwrap_err().code, Code::BadState, "{event:?}");
    }
    let fresh =
        |machine| Run { machine, world: World::default(), ..idle(Order::Lru, run.policy.scheme) };
    let mut without = fresh(machine(Scheme::Hybrid, false, true));
    assert_eq!(without.machine.step(Event::Save).unwrap_err().code, Code::BadState);
    let mut lost = fresh(machine(Scheme::Hybrid, true, true));
    lost.machine.recover(TokenCount::new(10), |_| None).unwrap();
    let error = lost.machine.step(Event::Save).unwrap_err();
    assert_eq!((error.code, error.value), (Code::Corrupt, 0));
}

#[test]
fn a_fresh_machine_takes_over_what_was_saved() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.evict(run.machine.tally().total_bytes() / 2);
    let report = run.save();
    run.seal(&report);
    let mut next = idle(Order::BackwardOut, Scheme::Hybrid);
    next.world.slots = run.world.slots.clone();
    next.world.truth = run.world.truth.clone();
    next.machine.recover(report.tokens, |id| run.machine.saved_chunk(id)).unwrap();
    next.machine.check().unwrap();
    next.world.compare(&next.machine);
    assert_eq!((next.machine.lost(), next.machine.durable()), (None, report.tokens));
    next.restore().unwrap();
    next.append(60);
    let again = next.save();
    assert_eq!(again, saved(TOKENS + 60, Stop::Reached));
    next.seal(&again);
    next.evict(next.machine.tally().total_bytes());
    next.restore().unwrap();
}

#[test]
fn records_that_lack_or_are_none_are_lost_chunks() {
    let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
    let record = FlashRecord { bytes: 1, crc: 0, packed: false };
    let tokens = TokenCount::new(3 * 256 + 20);
    let saved = |id: crate::units::ChunkId| match (id.layer.get(), id.chunk.get()) {
        (1, 1) => None,
        (2, 2) => Some(SavedChunk { record, tokens: 255 }),
        (_, 3) => Some(SavedChunk { record, tokens: 20 }),
        _ => Some(SavedChunk { record, tokens: 256 }),
    };
    run.machine.recover(tokens, saved).unwrap();
    run.world.slots = run.chunks().into_iter().map(|(id, _)| (id, (0, 256))).collect();
    run.machine.check().unwrap();
    assert_eq!((run.machine.lost(), run.machine.durable().get()), (Some(256), 256));
    assert_eq!(run.machine.tally().lost, 2);
    let again = run.machine.recover(tokens, saved).unwrap_err();
    assert_eq!(again.code, Code::BadState);
    run.truncate(256);
    assert_eq!(run.machine.lost(), None);
    run.truncate(0);
    let long = run.machine.recover(TokenCount::new(8 * 256 + 1), saved).unwrap_err();
    assert_eq!(long.code, Code::LimitExceeded);
    run.machine.check().unwrap();
}

/// Saves among everything else; what was sealed is compared with what the slots hold.
#[test]
fn random_lives_with_saves() {
    let mut sealed = 0;
    for seed in 0..400 {
        let mut run = run(seed, 6 * (seed % 2));
        for _ in 0..40 {
            match run.random.below(8) {
                0..2 => {
                    let tokens = u32::try_from(1 + run.random.below(600)).unwrap();
                    run.append(tokens);
                }
                2 => {
                    let bytes = run.random.below(run.machine.tally().total_bytes() + 1);
                    run.evict(bytes);
                }
                3 => drop(run.restore()),
                4 => {
                    let tokens = u64::from(run.machine.tokens().get()) + 1;
                    let tokens = u32::try_from(run.random.below(tokens)).unwrap();
                    run.truncate(tokens);
                }
                _ => sealed += u32::from(interrupted_save(&mut run)),
            }
            if let Some(token) = run.machine.lost() {
                run.truncate(token);
            }
        }
        run.failures_percent = 0;
        run.restore().unwrap();
    }
    assert!(sealed > 500, "{sealed}");
}

/// A save, perhaps stopped, perhaps cut short by an eviction; whether it was sealed.
fn interrupted_save(run: &mut Run) -> bool {
    if run.step(Event::Save).is_err() {
        return false;
    }
    for _ in 0..run.random.below(60) {
        run.work();
    }
    let evicts = run.random.chance(20);
    if evicts && run.machine.is_saving() {
        let bytes = run.random.below(run.machine.tally().total_bytes() + 1);
        run.step(evict(run.policy, bytes)).unwrap();
    } else if run.random.chance(20) && run.machine.is_saving() {
        run.step(Event::StopSave(Stop::Deadline)).unwrap();
    }
    run.settle();
    let report = run.machine.take_saved().unwrap();
    if report.to_seal {
        for (id, chunk) in run.chunks() {
            let end = u32::from(id.chunk.get()) * 256 + u32::from(chunk.tokens);
            let is_durable = chunk.tokens > 0 && end <= report.on_flash.get();
            assert!(!is_durable || chunk.copies.contains(Copies::FLASH), "{id:?} {chunk:?}");
        }
        run.step(Event::Sealed(Ok(()))).unwrap();
        assert_eq!(run.machine.durable(), report.on_flash);
    }
    report.to_seal
}
