//! Who gives way when a pass and what takes memory or storage come at once. Waiting goes by a
//! script, so that they meet in one order always.

#![cfg(feature = "host")]

mod manager;

use manager::*;
use mzcache::port::Park;
use mzcache::port::linux::FutexPark;
use mzcache::runtime::{Runtime, Trace};
use mzcache::state::{Action, Outcome, Stop};
use mzcache::sync::Word;
use mzcache::units::{ByteCount, Kind, LayerIndex, Nanos, Tag};
use std::sync::{Condvar, Mutex};
use std::thread::{ThreadId, current, scope};

/// The first thing that another thread does has an action in hand.
const FIRST_ACTS: u32 = 1;
/// The pass waits for that.
const PASS_WAITS: u32 = 2;
/// That thing ended.
const FIRST_ENDED: u32 = 3;
/// The next one has an action in hand.
const SECOND_ACTS: u32 = 4;
/// The pass has seen that.
const PASS_SAW: u32 = 5;

/// Where the two threads are; each goes on when the other got there.
#[derive(Debug)]
struct Script {
    pass: ThreadId,
    place: Mutex<u32>,
    moved: Condvar,
}

impl Script {
    fn new() -> &'static Script {
        let (place, moved) = (Mutex::new(0), Condvar::new());
        leak(Script { pass: current().id(), place, moved })
    }

    fn reach(&self, place: u32) {
        let mut at = self.place.lock().unwrap();
        *at = place.max(*at);
        self.moved.notify_all();
    }

    fn wait_for(&self, place: u32) {
        drop(self.moved.wait_while(self.place.lock().unwrap(), |at| *at < place).unwrap());
    }

    /// The pass can see what is under way.
    fn look(&self) {
        if self.place() == SECOND_ACTS {
            self.reach(PASS_SAW);
        }
    }

    fn place(&self) -> u32 {
        *self.place.lock().unwrap()
    }
}

impl Park for Script {
    fn wait(&self, word: &Word, expected: u32, timeout: Option<Nanos>) {
        // Locks are waited for without a limit.
        if current().id() == self.pass && timeout.is_some() {
            if self.place() == FIRST_ACTS {
                self.reach(PASS_WAITS);
                // What ends and begins until then goes unseen.
                return self.wait_for(SECOND_ACTS);
            }
            self.look();
        }
        FutexPark.wait(word, expected, timeout);
    }

    fn wake_all(&self, word: &Word) {
        FutexPark.wake_all(word);
    }
}

impl Trace for Script {
    fn acted(&self, _worker: usize, _action: &Action, _outcome: &Outcome, _: Nanos, _: Nanos) {
        if current().id() == self.pass {
            return self.look();
        }
        if self.place() <= FIRST_ACTS {
            self.reach(FIRST_ACTS);
            self.wait_for(PASS_WAITS);
        } else if self.place() >= FIRST_ENDED {
            self.reach(SECOND_ACTS);
            self.wait_for(PASS_SAW);
        }
    }

    fn opened(&self, _layer: LayerIndex, _kind: Kind, _now: Nanos) {}
}

/// How what began while the pass waited for an eviction's end was stopped.
fn stops(name: &str, second: impl FnOnce(&Runtime, ByteCount) -> Stop + Send) {
    let script = Script::new();
    let setup = Setup { workers: vec![], ..Setup::default() };
    let fixture = open(name, &Setup { trace: Some(script), park: Some(script), ..setup });
    let runtime = &fixture.runtime;
    pass(&fixture, CONTEXT).unwrap();
    let total = total(runtime);
    let half = ByteCount::new(total / 2);
    let (first, second) = scope(|scope| {
        let other = scope.spawn(move || {
            let first = runtime.evict(half, None).unwrap().booked.stop;
            script.reach(FIRST_ENDED);
            (first, second(runtime, half))
        });
        script.wait_for(FIRST_ACTS);
        runtime.restore().unwrap();
        other.join().unwrap()
    });
    assert_eq!((first, second), (Stop::Cancelled, Stop::Cancelled), "{name}");
    assert_eq!(runtime.stats().tally.missing, 0);
    assert!(kv_values(runtime) == expected_values());
    // Nothing stops the next one.
    evict_to(runtime, 50, total);
}

#[test]
fn a_pass_stops_an_eviction_that_begins_while_it_waits() {
    stops("turns-evict", |runtime, bytes| runtime.evict(bytes, None).unwrap().booked.stop);
}

#[test]
fn a_pass_stops_a_checkpoint_that_begins_while_it_waits() {
    stops("turns-save", |runtime, _| runtime.checkpoint(Tag::EMPTY, None).unwrap().stop);
}
