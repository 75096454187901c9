//! Bytes as a step profile.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::steps(data);
});
