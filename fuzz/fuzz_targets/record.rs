//! Bytes as the head of a swap file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::record(data);
});
