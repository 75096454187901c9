//! What comes back, in which order, and what a failure costs.

use super::evicting::is_allocation;
use super::failing::settle_failing;
use super::*;
use crate::units::ChunkId;

const CLOSED: Paths = Paths { ram: false, flash: false };
const RAM: Paths = Paths { ram: true, flash: false };
const FLASH: Paths = Paths { ram: false, flash: true };

/// Evicts so many bytes that way.
fn leave(run: &mut Run, order: Order, paths: Paths, bytes: u64) {
    run.policy = EvictPolicy { order, paths, ..run.policy };
    run.evict(bytes);
}

/// The first two chunks that are to be unpacked.
fn first_packed(run: &Run) -> [Unit; 2] {
    let ids = (0..SHAPE.layers).flat_map(|layer| (0..8).map(move |column| chunk_id(layer, column)));
    let is_packed =
        |id: &ChunkId| run.machine.chunk(*id).is_some_and(|chunk| chunk.restores_from_ram());
    let mut packed = ids.filter(is_packed).map(Unit::Kv);
    [(); 2].map(|()| packed.next().unwrap())
}

/// The unit that gets the next buffer.
fn next_buffer(run: &mut Run) -> Unit {
    run.step(Event::Next(Roles::ALLOCATE)).unwrap();
    let action = run.world.in_flight.pop().unwrap();
    assert!(is_allocation(&action));
    let outcome = run.world.perform(action);
    run.step(Event::Done(action, outcome)).unwrap();
    action.unit()
}

#[test]
fn a_way_back_without_a_buffer_gets_one_before_the_frontmost_unit_does() {
    let weights = |layer| Unit::Weights(LayerIndex::new(layer));
    let packed = u64::from(PACKED_BYTES);

    // The first two layers are to be read, some of the last chunks to be unpacked.
    let mut run = full(Order::ForwardOut, Scheme::Hybrid);
    leave(&mut run, Order::BackwardOut, RAM, 2 * (CHUNK_BYTES - packed));
    leave(&mut run, Order::ForwardOut, CLOSED, WEIGHT_BYTES[0] + WEIGHT_BYTES[1]);
    let [first, second] = first_packed(&run);
    run.step(restore(run.machine.tokens())).unwrap();
    let order = [(); 4].map(|()| next_buffer(&mut run));
    assert_eq!(order, [weights(0), first, weights(1), second]);
    run.finish_restore().unwrap();

    // Some of the first chunks are to be unpacked, the last two units to be read.
    leave(&mut run, Order::ForwardOut, RAM, 2 * (CHUNK_BYTES - packed));
    leave(&mut run, Order::BackwardOut, CLOSED, WEIGHT_BYTES[3] + WEIGHT_BYTES[4]);
    let [first, second] = first_packed(&run);
    run.step(restore(run.machine.tokens())).unwrap();
    let order = [(); 4].map(|()| next_buffer(&mut run));
    assert_eq!(order, [first, weights(3), second, weights(4)]);
    run.finish_restore().unwrap();
}

/// Whether a worker of that role gets something to do, now that a chunk of each way has a buffer.
fn is_given_work(front: Paths, rear: Paths, role: Roles) -> bool {
    let mut run = full(Order::ForwardOut, Scheme::Hybrid);
    leave(&mut run, Order::ForwardOut, front, 1);
    leave(&mut run, Order::BackwardOut, rear, 1);
    run.step(restore(run.machine.tokens())).unwrap();
    for _ in 0..2 {
        next_buffer(&mut run);
    }
    run.step(Event::Next(role)).unwrap();
    let is_given = run.world.in_flight.len() == 1;
    run.finish_restore().unwrap();
    is_given
}

#[test]
fn neither_way_back_waits_for_what_the_other_brings_first() {
    assert!(is_given_work(FLASH, RAM, Roles::UNPACK));
    assert!(is_given_work(RAM, FLASH, Roles::READ));
}

#[test]
fn the_first_failure_is_what_everybody_is_told() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.evict(run.machine.tally().total_bytes());
    run.step(restore(run.machine.tokens())).unwrap();
    assert_eq!(next_buffer(&mut run), Unit::Weights(LayerIndex::new(0)));
    for _ in 0..3 {
        run.step(Event::Next(Roles::READ)).unwrap();
    }
    assert!(run.machine.is_restoring() && run.machine.restore_failure().is_none());
    for code in [Code::Io, Code::ShortRead] {
        let action = run.world.in_flight.pop().unwrap();
        run.step(Event::Done(action, Outcome::Failed(Error::new(code, "test")))).unwrap();
        assert_eq!(run.machine.restore_failure().map(|error| error.code), Some(Code::Io));
        assert!(!run.machine.is_restoring() && !run.machine.is_idle());
    }
    // Also when an eviction comes before its last action has ended.
    run.step(evict(run.policy, 0)).unwrap();
    assert_eq!(run.machine.take_restored().unwrap().unwrap_err().code, Code::Io);
    assert_eq!((run.machine.take_restored(), run.machine.restore_failure()), (None, None));
    run.settle();
    run.restore().unwrap();
}

#[test]
fn a_chunk_whose_packed_copy_is_damaged_comes_from_the_file() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let total = run.machine.tally().total_bytes();
    for paths in [FLASH, RAM] {
        leave(&mut run, Order::BackwardOut, paths, total);
        if paths == FLASH {
            run.restore().unwrap();
        }
    }
    run.step(restore(run.machine.tokens())).unwrap();
    let is_unpack = |action: &Action| matches!(action, Action::Unpack { .. });
    let failures = settle_failing(&mut run, Error::new(Code::Corrupt, "test"), is_unpack);
    assert_eq!(failures, 8 * usize::from(SHAPE.layers));
    assert!(run.world.records.is_empty());
    assert_eq!((run.machine.take_restored(), run.machine.lost()), (Some(Ok(())), None));
}

#[test]
fn what_is_lost_is_named_by_its_first_token() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    leave(&mut run, Order::BackwardOut, FLASH, u64::MAX);
    run.step(restore(run.machine.tokens())).unwrap();
    // The lowest of several layers' chunks counts.
    let is_hit = |action: &Action| {
        let hit = [chunk_id(1, 5), chunk_id(2, 3), chunk_id(3, 4)].map(Unit::Kv);
        matches!(action, Action::ReadChunk { .. }) && hit.contains(&action.unit())
    };
    settle_failing(&mut run, Error::new(Code::Corrupt, "test"), is_hit);
    let tokens = [3, 4, 5].map(|column| column * u32::from(CHUNK_TOKENS));
    let error = run.machine.take_restored().unwrap().unwrap_err();
    assert!(error.code == Code::Corrupt && tokens.map(i64::from).contains(&error.value));
    let token = run.machine.lost().unwrap();
    assert!(tokens.contains(&token));
    run.truncate(token);
    run.restore().unwrap();
}

#[test]
fn a_copy_in_the_file_is_good_as_long_as_it_is_what_came_back() {
    // Whether the file's copy is packed, whether tokens are cut before it is packed in RAM too,
    // whether the codec is lossless; whether it is still good after unpacking from RAM.
    for (packed, cut, lossless, good) in [
        (false, false, false, false),
        (true, false, false, true),
        (true, true, false, false),
        (false, false, true, true),
        (true, true, true, true),
    ] {
        let mut run = full(Order::BackwardOut, Scheme::Hybrid);
        run.machine = machine(Scheme::Hybrid, true, lossless);
        run.world = world::World::default();
        run.append(256 + 200);
        leave(&mut run, Order::BackwardOut, if packed { RAM } else { FLASH }, u64::MAX);
        leave(&mut run, Order::BackwardOut, Paths::BOTH, u64::MAX);
        run.restore().unwrap();
        if cut {
            run.truncate(256 + 100);
        }
        let id = chunk_id(2, 1);
        let has_file = |run: &Run| run.machine.chunk(id).unwrap().copies.contains(Copies::FLASH);
        assert!(has_file(&run));
        leave(&mut run, Order::BackwardOut, RAM, u64::MAX);
        run.restore().unwrap();
        assert_eq!(has_file(&run), good, "{packed} {cut} {lossless}");
    }
}

#[test]
fn what_another_action_would_say_is_refused() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    leave(&mut run, Order::BackwardOut, Paths::BOTH, u64::MAX);
    run.step(restore(run.machine.tokens())).unwrap();
    let mut fills = 0;
    while !run.machine.is_idle() {
        for action in run.world.in_flight.clone() {
            let wrong = Event::Done(action, Outcome::Written(FlashRecord::default()));
            assert_eq!(run.machine.step(wrong).unwrap_err().code, Code::BadState, "{action:?}");
            fills += u32::from(matches!(action, Action::ReadChunk { .. }));
        }
        run.work();
    }
    assert!(fills > 0);
}

#[test]
fn a_cancelled_restore_is_none_any_more() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.evict(run.machine.tally().total_bytes());
    run.step(restore(run.machine.tokens())).unwrap();
    next_buffer(&mut run);
    run.step(Event::Cancel).unwrap();
    assert!(!run.machine.is_restoring());
    run.settle();
    assert_eq!(run.machine.take_restored().unwrap().unwrap_err().code, Code::Cancelled);
    assert_eq!(run.machine.tally().total_bytes(), 0);
}
