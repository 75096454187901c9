//! Bytes as a profile's text.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::profile(data);
});
