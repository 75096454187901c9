//! The paper's baseline (6.1): whole layers out; back in order, one after the other, and only then
//! the prefill. The same reads, kernels and buffers as ours, without overlap.

use crate::engine::Engine;
use crate::failure::Outcome;
use std::time::{Duration, Instant};

/// Brings everything back on the caller's thread, one action after the other.
pub fn restore_by_layers(engine: &Engine) -> Outcome<Duration> {
    let runtime = engine.session.runtime();
    runtime.rest_workers(true);
    let start = Instant::now();
    let restored = runtime.restore();
    let took = start.elapsed();
    runtime.rest_workers(false);
    restored?;
    Ok(took)
}
