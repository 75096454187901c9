//! The eviction state machine against a small model of the world.
//!
//! The first byte makes the machine, the others are events: legal ones, illegal ones, and workers
//! that succeed, fail or answer nonsense. After each the machine's invariants must hold and agree
//! with what the world holds. At the end the faults stop, and everything must come back.

mod event;
mod run;
mod setup;
mod world;

use super::memory::with_memory;
use super::reader::Reader;
use run::Run;

/// Reads the bytes as a machine's life; whether tokens were ever committed.
pub fn state(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let setup = reader.byte();
    // SAFETY: the machine, which alone refers to the memory, ends with the closure.
    unsafe {
        with_memory(setup::memory_bytes(), |memory| {
            let mut run = Run::new(setup, memory);
            while let Some(byte) = reader.next() {
                event::happen(&mut run, byte, &mut reader);
            }
            let has_grown = run.has_grown;
            run.end();
            has_grown
        })
    }
}
