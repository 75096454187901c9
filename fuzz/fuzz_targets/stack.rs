//! Bytes as reservations and frees of the RAM swap.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::stack(data);
});
