//! What a caller may choose call by call: the policy of an eviction, what a restore overlaps, which
//! roles work; and what whoever listens hears of it.

#![cfg(feature = "host")]

mod manager;

use manager::*;
use mzcache::policy::Order;
use mzcache::runtime::{Overlap, Runtime, Trace, Worker};
use mzcache::state::{Action, EvictPolicy, Outcome, Paths, Roles, Stop};
use mzcache::units::{ByteCount, CodecId, Kind, LayerIndex, Nanos, TokenCount, Unit};
use std::sync::Mutex;

/// Notes what was done when.
#[derive(Debug, Default)]
struct Log(Mutex<Vec<(Action, Nanos, Nanos)>>, Mutex<Vec<(LayerIndex, Kind, Nanos)>>);

impl Trace for Log {
    fn acted(&self, _worker: usize, action: &Action, outcome: &Outcome, start: Nanos, end: Nanos) {
        assert!(end >= start && !matches!(outcome, Outcome::Failed(_)));
        self.0.lock().unwrap().push((*action, start, end));
    }

    fn opened(&self, layer: LayerIndex, kind: Kind, now: Nanos) {
        self.1.lock().unwrap().push((layer, kind, now));
    }
}

#[test]
fn what_may_not_overlap_does_not() {
    let log: &'static Log = Box::leak(Box::default());
    let fixture = open("overlap", &Setup { trace: Some(log), ..Setup::default() });
    let runtime = &fixture.runtime;
    pass(&fixture, CONTEXT).unwrap();
    let total = total(runtime);
    for overlap in [Overlap::empty(), Overlap::ALLOCATE_RELOAD, Overlap::RELOAD_PREFILL] {
        runtime.set_overlap(overlap);
        evict_to(runtime, 25, total);
        log.0.lock().unwrap().clear();
        log.1.lock().unwrap().clear();
        runtime.begin_pass(TokenCount::new(CONTEXT)).unwrap();
        if !overlap.contains(Overlap::RELOAD_PREFILL) {
            assert_eq!(runtime.stats().tally.missing, 0, "{overlap:?}");
        }
        runtime.finish_restore().unwrap();
        let actions = log.0.lock().unwrap();
        let is_allocation = |action: &Action| matches!(action, Action::Allocate { .. });
        let allocated = actions.iter().filter(|(action, ..)| is_allocation(action));
        let allocated = allocated.map(|(.., end)| *end).max().unwrap();
        let filled = actions.iter().filter(|(action, ..)| !is_allocation(action));
        let filled = filled.map(|(_, start, _)| *start).min().unwrap();
        if !overlap.contains(Overlap::ALLOCATE_RELOAD) {
            assert!(allocated <= filled, "{overlap:?}");
        }
        // Every gate that was closed opened after the last thing that it waits for.
        let opened = log.1.lock().unwrap();
        assert!(!opened.is_empty());
        for (layer, kind, now) in opened.iter() {
            let unit = |action: &Action| match action.unit() {
                Unit::Weights(of) => (of, Kind::Weights),
                Unit::Kv(id) => (id.layer, Kind::Kv),
            };
            let ends = actions.iter().filter(|(action, ..)| unit(action) == (*layer, *kind));
            assert!(ends.map(|(.., end)| *end).max().is_some_and(|end| end <= *now));
        }
        drop((actions, opened));
        assert!(kv_values(runtime) == expected_values());
    }
}

/// Giving memory back makes everybody wait, so it comes last.
#[test]
fn what_a_restore_empties_is_given_back_when_it_is_over() {
    let setup = Setup { codec: CodecId::Q8, workers: vec![], ..Setup::default() };
    let fixture = open("vacant", &setup);
    let runtime = &fixture.runtime;
    pass(&fixture, CONTEXT).unwrap();
    evict_to(runtime, 40, total(runtime));
    let packed = runtime.stats().ram;
    assert!(packed.records > 0 && packed.segments > 0);
    runtime.begin_pass(TokenCount::new(CONTEXT)).unwrap();
    let mut emptied = 0;
    while runtime.stats().tally.missing > 0 {
        let ram = runtime.stats().ram;
        assert_eq!(ram.segments, packed.segments);
        emptied += u32::from(ram.records == 0);
        assert!(runtime.poll());
    }
    assert!(emptied > 0, "weights came last");
    // Nobody else would do it: the next pass does.
    assert_eq!(runtime.stats().ram.segments, packed.segments);
    runtime.begin_pass(TokenCount::new(CONTEXT)).unwrap();
    assert_eq!(runtime.stats().ram.segments, 0);
    runtime.finish_restore().unwrap();
    runtime.check().unwrap();
}

/// The only one there is does what it is there for, and what it helps with.
#[test]
fn a_helper_does_all_that_there_is() {
    let helper = Worker { helps: Roles::READ | Roles::UNPACK, ..Worker::new(Roles::ALLOCATE) };
    let setup = Setup { codec: CodecId::Q8, workers: vec![helper], ..Setup::default() };
    let fixture = open("helper", &setup);
    let runtime = &fixture.runtime;
    pass(&fixture, CONTEXT).unwrap();
    let total = total(runtime);
    evict_to(runtime, 0, total);
    runtime.restore().unwrap();
    let once = kv_values(runtime);
    evict_to(runtime, 30, total);
    runtime.restore().unwrap();
    assert_eq!(runtime.stats().tally.missing, 0);
    assert!(kv_values(runtime) == once);
}

#[test]
fn an_eviction_can_go_by_another_policy_than_the_runtime_s() {
    let fixture = open("policy", &Setup { codec: CodecId::Q8, ..Setup::default() });
    let runtime = &fixture.runtime;
    pass(&fixture, CONTEXT).unwrap();
    let front = |runtime: &Runtime| runtime.is_open(LayerIndex::new(0), Kind::Kv);
    for (order, keeps_the_front) in [(Order::ForwardOut, false), (Order::BackwardOut, true)] {
        let policy = EvictPolicy { order, ..EvictPolicy::default() };
        let report = runtime.evict_by(policy, ByteCount::new(1), None).unwrap();
        assert_eq!(report.booked.stop, Stop::Reached);
        assert_eq!(front(runtime), keeps_the_front, "{order:?}");
        runtime.restore().unwrap();
    }
    let paths = Paths { ram: false, flash: true };
    let policy = EvictPolicy { paths, ..EvictPolicy::default() };
    runtime.evict_by(policy, ByteCount::new(1), None).unwrap();
    let tally = runtime.stats().tally;
    assert!(tally.on_ram == 0 && tally.on_flash > 0);
}

#[test]
fn each_path_restores_its_own_when_only_its_roles_are_allowed() {
    let fixture = open("roles", &Setup { codec: CodecId::Q8, ..Setup::default() });
    let runtime = &fixture.runtime;
    pass(&fixture, CONTEXT).unwrap();
    evict_to(runtime, 40, total(runtime));
    let before = runtime.stats().tally;
    assert!(before.on_ram > 0 && before.weights_out.get() > 0);
    runtime.allow_roles(Roles::ALLOCATE | Roles::UNPACK);
    runtime.begin_pass(TokenCount::new(CONTEXT)).unwrap();
    while runtime.stats().tally.on_ram > 0 {
        std::thread::yield_now();
    }
    let after = runtime.stats().tally;
    assert_eq!((after.on_flash, after.weights_out), (before.on_flash, before.weights_out));
    runtime.allow_roles(Roles::all());
    runtime.finish_restore().unwrap();
    assert_eq!(runtime.stats().tally.missing, 0);
}
