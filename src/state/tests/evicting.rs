//! What leaves, in which order, and when it is enough.

use super::failing::{is_transfer, settle_failing};
use super::*;
use std::vec::Vec;

const CLOSED: Paths = Paths { ram: false, flash: false };

#[test]
fn the_layers_that_were_used_longest_ago_leave_first() {
    let mut run = full(Order::Lru, Scheme::Hybrid);
    for layer in [3, 1, 3] {
        run.step(Event::Used(LayerIndex::new(layer))).unwrap();
    }
    run.policy.paths = CLOSED;
    run.step(evict(run.policy, u64::MAX)).unwrap();
    for _ in 0..WEIGHT_BYTES.len() {
        run.step(Event::Next(Roles::ALLOCATE)).unwrap();
    }
    let left: Vec<Unit> = run.world.in_flight.iter().map(Action::unit).collect();
    // Those that nobody used are as old as can be, and leave in their order.
    assert_eq!(left, [0, 2, 4, 1, 3].map(|layer| Unit::Weights(LayerIndex::new(layer))));
    run.settle();
}

#[test]
fn the_first_layer_can_be_the_one_that_was_used_last() {
    let mut run = full(Order::Lru, Scheme::Hybrid);
    run.step(Event::Used(LayerIndex::new(0))).unwrap();
    run.step(evict(run.policy, 1)).unwrap();
    assert_eq!(run.machine.by_age, [1, 2, 3, 4, 0].map(LayerIndex::new));
    run.settle();
}

#[test]
fn nothing_more_leaves_once_enough_is_on_its_way() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.policy.paths.ram = false;
    run.step(evict(run.policy, 2 * CHUNK_BYTES)).unwrap();
    for _ in 0..5 {
        run.step(Event::Next(Roles::all())).unwrap();
    }
    assert_eq!(run.world.in_flight.len(), 2);
    run.settle();
    let report = run.machine.take_evicted().unwrap();
    assert_eq!((report.freed.get(), report.stop), (2 * CHUNK_BYTES, Stop::Reached));
}

#[test]
fn nothing_more_leaves_once_somebody_stopped_it() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    run.step(Event::Next(Roles::all())).unwrap();
    for stop in [Stop::Cancelled, Stop::Deadline] {
        run.step(Event::StopEvict(stop)).unwrap();
        run.step(Event::Next(Roles::all())).unwrap();
    }
    assert_eq!(run.world.in_flight.len(), 1);
    run.settle();
    // Who came first is who stopped it.
    assert_eq!(run.machine.take_evicted().unwrap().stop, Stop::Cancelled);
}

#[test]
fn an_eviction_of_full_chunks_does_not_cost_the_pass() {
    let mut run = idle(Order::ForwardOut, Scheme::Hybrid);
    run.append(2 * u32::from(CHUNK_TOKENS));
    let tokens = TokenCount::new(run.machine.tokens().get() + 5);
    run.step(restore(tokens)).unwrap();
    run.finish_restore().unwrap();
    run.evict(1);
    assert!(!run.machine.chunk(chunk_id(0, 0)).unwrap().is_ready());
    run.machine.step(Event::Commit(tokens)).unwrap();
    assert_eq!(run.machine.tokens(), tokens);
}

#[test]
fn a_way_out_that_failed_is_closed_for_the_rest_of_the_eviction() {
    let is_pack = |action: &Action| matches!(action, Action::Pack { .. });
    for code in [Code::OutOfMemory, Code::NoSpace] {
        let is_hit = |action: &Action| {
            if code == Code::NoSpace { is_transfer(action) } else { is_pack(action) }
        };
        let mut run = full(Order::BackwardOut, Scheme::Hybrid);
        for _ in 0..2 {
            run.step(evict(run.policy, 10 * CHUNK_BYTES)).unwrap();
            // Those that are under way already may fail too.
            assert!((1..=4).contains(&settle_failing(&mut run, Error::new(code, "test"), is_hit)));
            let report = run.machine.take_evicted().unwrap();
            assert_eq!(report.error.map(|error| error.code), Some(code));
            assert_eq!((report.stop, report.leased), (Stop::Reached, 0));
        }
        // The next one tries again.
        assert_eq!(run.evict(CHUNK_BYTES).error, None);
    }
}

#[test]
fn leased_chunks_are_left_alone_and_counted() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let is_pack = |action: &Action| matches!(action, Action::Pack { .. });
    let failures = settle_failing(&mut run, Error::new(Code::Leased, "test"), is_pack);
    let report = run.machine.take_evicted().unwrap();
    assert!(failures > 1);
    assert_eq!((report.leased as usize, report.error), (failures, None));
    assert_eq!(run.machine.tally().kv_bytes, CHUNK_BYTES * failures as u64);
}

#[test]
fn a_chunk_that_is_packed_late_is_spilled_after_all() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    run.step(evict(run.policy, u64::MAX)).unwrap();
    let mut late = None;
    loop {
        run.step(Event::Next(Roles::all())).unwrap();
        let Some(action) = run.world.in_flight.pop() else { break };
        if late.is_none() && matches!(action, Action::Pack { .. }) {
            late = Some(action);
            continue;
        }
        let outcome = run.world.perform(action);
        run.step(Event::Done(action, outcome)).unwrap();
    }
    assert_eq!(run.machine.tally().total_bytes(), CHUNK_BYTES);
    run.world.in_flight.extend(late);
    run.settle();
    assert_eq!(run.machine.tally().total_bytes(), 0);
}

#[test]
fn an_eviction_takes_what_a_restore_brings_in_meanwhile() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    let total = run.machine.tally().total_bytes();
    run.evict(total);
    run.step(restore(run.machine.tokens())).unwrap();
    // Every unit that can be is on its way when the eviction begins and looks for victims.
    for _ in 0..500 {
        match run.machine.step(Event::Next(Roles::all())).unwrap() {
            step if step.action.is_some() => run.world.take(step),
            _ => {
                let Some(at) = run.world.in_flight.iter().position(is_allocation) else { break };
                let action = run.world.in_flight.remove(at);
                let outcome = run.world.perform(action);
                run.step(Event::Done(action, outcome)).unwrap();
            }
        }
    }
    run.step(evict(run.policy, u64::MAX)).unwrap();
    while let Some(action) = run.world.in_flight.pop() {
        run.step(Event::Next(Roles::all())).unwrap();
        let outcome = run.world.perform(action);
        run.step(Event::Done(action, outcome)).unwrap();
    }
    run.settle();
    assert_eq!(run.machine.take_evicted().unwrap().stop, Stop::Exhausted);
    assert_eq!(run.machine.tally().total_bytes(), 0);
}

pub(super) fn is_allocation(action: &Action) -> bool {
    matches!(action, Action::Allocate { .. })
}
