//! Fails soon, or the fuzzer does not work.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::canary(data);
});
