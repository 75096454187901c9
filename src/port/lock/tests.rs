use super::*;
use crate::units::Nanos;
use core::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Every wait returns for no reason, as the contract allows.
struct Yield {
    wakes: AtomicUsize,
}

impl Park for Yield {
    fn wait(&self, word: &Word, expected: u32, _: Option<Nanos>) {
        if word.load() == expected {
            std::thread::yield_now();
        }
    }

    fn wake_all(&self, _: &Word) {
        self.wakes.fetch_add(1, SeqCst);
    }
}

static_assertions::assert_impl_all!(Lock<Cell<u32>>: Sync, Send);
static_assertions::assert_not_impl_any!(Lock<*const u32>: Sync);
// Sharing a guard shares the value.
static_assertions::assert_not_impl_any!(Guard<'static, Cell<u32>>: Sync);
static_assertions::assert_impl_all!(Guard<'static, u32>: Sync);

#[test]
fn one_thread_at_a_time_sees_the_value() {
    static PARK: Yield = Yield { wakes: AtomicUsize::new(0) };
    // Two halves that only ever change together.
    static LOCK: Lock<(u64, u64)> = Lock::new((0, 0), &PARK);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let mut guard = LOCK.lock();
                    assert_eq!(guard.0, guard.1);
                    guard.0 += 1;
                    guard.1 += 1;
                }
            });
        }
    });
    assert_eq!(*LOCK.lock(), (80_000, 80_000));
    assert_eq!(LOCK.word.load(), FREE);
}

#[test]
fn only_a_contended_lock_wakes() {
    static PARK: Yield = Yield { wakes: AtomicUsize::new(0) };
    static LOCK: Lock<u32> = Lock::new(0, &PARK);
    for _ in 0..10 {
        *LOCK.lock() += 1;
    }
    assert_eq!(PARK.wakes.load(SeqCst), 0);
    let guard = LOCK.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| *LOCK.lock() += 1);
        while LOCK.word.load() != CONTENDED {
            std::thread::yield_now();
        }
        drop(guard);
    });
    assert!(PARK.wakes.load(SeqCst) > 0);
    assert_eq!(*LOCK.lock(), 11);
}
