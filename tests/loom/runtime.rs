//! The manager itself, as small as it can be: one weight unit, worker threads, waiters, guests.

use crate::check;
use crate::ports::{Constant, Memory, ModelThreads, Parking, Stopped, leak, spawn};
use mzcache::Code;
use mzcache::port::Ports;
use mzcache::runtime::{Config, Options, Runtime, Worker, required_bytes};
use mzcache::state::Roles;
use mzcache::units::{ByteCount, CodecId, Extent, KvShape, LayerIndex, TokenCount, WeightUnit};
use std::mem::MaybeUninit;
use std::sync::Arc;

const FIRST: LayerIndex = LayerIndex::new(0);
const BYTES: u64 = 4096;

/// Memory that every order of a model begins with anew.
fn memory_for(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    const ALL: usize = 1 << 20;
    const NOTHING: MaybeUninit<u8> = MaybeUninit::uninit();
    thread_local! {
        static START: *mut MaybeUninit<u8> = Vec::leak(vec![NOTHING; ALL]).as_mut_ptr();
    }
    assert!(bytes <= ALL);
    // SAFETY: all threads of a model run on this one, and its orders one after the other: what an
    // earlier order placed there is used by nobody any more.
    START.with(|start| unsafe { std::slice::from_raw_parts_mut(*start, bytes) })
}

/// A manager with workers of these roles.
fn open(roles: &[Roles]) -> Runtime {
    let workers: Vec<_> = roles.iter().map(|&roles| Worker::new(roles)).collect();
    let extents = [Extent { file_offset: 0, bytes: BYTES, buffer_offset: 0 }];
    let config = Config {
        shape: KvShape { layers: 1, kv_heads: 1, head_dim: 32 },
        weights: &[WeightUnit { extents: &extents }],
        options: Options {
            context_tokens_max: TokenCount::new(256),
            codec: CodecId::Raw,
            workers: &workers,
            swap_file: false,
            segment_bytes: 64 << 10,
            ..Options::default()
        },
    };
    let memory = leak(Memory::default());
    let ports = Ports {
        model: leak(Constant(7)),
        swap: None,
        memory,
        clock: leak(Stopped(memory.life.clone())),
        park: leak(Parking::default()),
        threads: Some(leak(ModelThreads::default())),
        meter: None,
    };
    Runtime::open(&config, memory_for(required_bytes(&config).unwrap()), ports).unwrap()
}

/// Runs a model on a thread with a stack that suffices.
fn check_runtime(preemptions: usize, model: impl Fn() + Copy + Send + Sync + 'static) {
    check(preemptions, move || spawn(model).join().unwrap());
}

/// The unit's bytes, if it is there; what is not there must have been evicted.
fn compute(runtime: &Runtime) -> bool {
    match runtime.weights(FIRST) {
        Ok(lease) => {
            assert!(lease.iter().all(|byte| *byte == 7));
            true
        }
        Err(error) => {
            assert_eq!(error.code, Code::Cancelled, "{error}");
            false
        }
    }
}

/// A runtime that threads share and that ends with the last of them.
fn shared(roles: &[Roles]) -> Arc<Runtime> {
    let runtime = Arc::new(open(roles));
    runtime.begin_pass(TokenCount::new(0)).unwrap();
    runtime
}

fn with_workers<const N: usize>(preemptions: usize, roles: [Roles; N]) {
    let model = move || {
        let runtime = open(&roles);
        runtime.begin_pass(TokenCount::new(0)).unwrap();
        assert!(compute(&runtime));
        runtime.check().unwrap();
    };
    check(preemptions, move || spawn(model).join().unwrap());
}

#[test]
fn workers_restore_what_a_caller_waits_for_and_go_when_told() {
    with_workers(2, [Roles::all()]);
    with_workers(1, [Roles::READ, Roles::ALLOCATE.union(Roles::UNPACK)]);
}

#[test]
fn everybody_who_waits_at_a_gate_hears_that_it_opens() {
    check_runtime(1, || {
        let runtime = shared(&[Roles::all()]);
        let other = runtime.clone();
        let other = spawn(move || assert!(compute(&other)));
        assert!(compute(&runtime));
        other.join().unwrap();
    });
}

#[test]
fn everybody_who_waits_at_a_gate_hears_that_it_will_not_open() {
    check_runtime(1, || {
        let runtime = shared(&[Roles::all()]);
        let waiter = runtime.clone();
        let waiter = spawn(move || compute(&waiter));
        let is_cancelled = runtime.cancel_restore().is_ok();
        assert!(waiter.join().unwrap() || is_cancelled);
        runtime.check().unwrap();
    });
}

#[test]
fn callers_without_workers_do_the_work_between_them() {
    check_runtime(1, || {
        let runtime = shared(&[]);
        let other = runtime.clone();
        let other = spawn(move || assert!(compute(&other)));
        assert!(compute(&runtime));
        other.join().unwrap();
        runtime.check().unwrap();
    });
}

#[test]
fn an_eviction_takes_a_unit_that_nobody_leases() {
    check_runtime(1, || {
        let runtime = shared(&[Roles::all()]);
        let evictor = runtime.evictor();
        let evicting = spawn(move || evictor.evict(ByteCount::new(BYTES), None).unwrap());
        compute(&runtime);
        let report = evicting.join().unwrap();
        runtime.check().unwrap();
        assert!(report.booked.freed.get() <= BYTES);
        runtime.restore().unwrap();
        assert!(compute(&runtime));
    });
}

fn begin_beside_an_eviction(preemptions: usize, roles: &'static [Roles]) {
    check_runtime(preemptions, move || {
        let runtime = shared(roles);
        let evictor = runtime.evictor();
        let guest = spawn(move || evictor.evict(ByteCount::new(BYTES), None).unwrap());
        // Behind the restore that runs, before the eviction, or once that gave way.
        runtime.begin_pass(TokenCount::new(0)).unwrap();
        compute(&runtime);
        assert!(guest.join().unwrap().booked.freed.get() <= BYTES);
        runtime.restore().unwrap();
        assert!(compute(&runtime));
        runtime.check().unwrap();
    });
}

#[test]
fn a_pass_begins_whatever_comes_before_it() {
    begin_beside_an_eviction(1, const { &[Roles::all()] });
    begin_beside_an_eviction(2, &[]);
}

#[test]
fn one_of_two_evictions_is_told_to_come_again() {
    check_runtime(2, || {
        let runtime = shared(&[]);
        runtime.finish_restore().unwrap();
        let evictor = runtime.evictor();
        let other = spawn(move || evictor.evict(ByteCount::new(BYTES), None));
        let answers = [runtime.evict(ByteCount::new(BYTES), None), other.join().unwrap()];
        let mut freed = 0;
        for answer in answers {
            match answer {
                Ok(report) => freed += report.booked.freed.get(),
                Err(error) => assert_eq!(error.code, Code::BadState),
            }
        }
        assert_eq!(freed, BYTES);
        runtime.check().unwrap();
    });
}

#[test]
fn a_runtime_outlives_its_guests() {
    check_runtime(3, || {
        let runtime = open(&[]);
        let evictor = runtime.evictor();
        let guest = spawn(move || match evictor.evict(ByteCount::new(BYTES), None) {
            Ok(report) => assert_eq!(report.booked.freed.get(), 0),
            Err(error) => assert_eq!(error.code, Code::BadState),
        });
        drop(runtime);
        guest.join().unwrap();
    });
}

#[test]
fn a_guest_s_eviction_ends_when_the_runtime_goes() {
    check_runtime(2, || {
        let runtime = open(&[Roles::all()]);
        runtime.begin_pass(TokenCount::new(0)).unwrap();
        let evictor = runtime.evictor();
        let guest = spawn(move || match evictor.evict(ByteCount::new(BYTES), None) {
            Ok(report) => assert!(report.booked.freed.get() <= BYTES),
            Err(error) => assert_eq!(error.code, Code::BadState),
        });
        drop(runtime);
        guest.join().unwrap();
    });
}
