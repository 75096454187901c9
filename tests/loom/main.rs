//! Models of everything in which threads meet, for loom: it runs them in every order and lets every
//! load see every value that its memory order allows. Not the code's copies but its own types take
//! part, since `src/sync.rs` takes its atomics from loom here. Models end in one of three ways:
//! well, by an assertion or an access that races with another, or by a deadlock, which is a lost
//! wake-up. Outside of `--cfg loom` there is nothing here.
//!
//! Shuttle would add nothing: it takes every memory order for the strongest, and orders of threads
//! by chance in models too large for loom are what `tests/sim` draws from seeds, among faults.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release --no-default-features --test loom
//! ```

#![cfg(loom)]

mod access;
mod buffers;
mod ports;
mod runtime;
mod turns;
mod waiting;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use std::sync::Arc;

/// Runs a model in every order with at most that many preemptions, and as many more as the
/// environment asks for.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let more = std::env::var("MZ_LOOM_MORE").map_or(0, |more| more.parse().unwrap());
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions + more);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Something that loom sees being read and written, in place of a buffer's bytes.
#[derive(Clone, Default)]
struct Bytes(Arc<UnsafeCell<u32>>);

// SAFETY: loom ends the model when an access is not ordered after one that it conflicts with.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn read(&self) -> u32 {
        // SAFETY: nobody writes meanwhile, or the model ends.
        self.0.with(|value| unsafe { *value })
    }

    fn write(&self, value: u32) {
        // SAFETY: nobody else is here, or the model ends.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn add_one(&self) {
        // SAFETY: as above.
        self.0.with_mut(|place| unsafe { *place += 1 });
    }
}
