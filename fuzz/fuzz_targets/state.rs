//! Bytes as events of the eviction state machine.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::state(data);
});
