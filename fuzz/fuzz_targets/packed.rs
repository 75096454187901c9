//! Bytes as a packed chunk.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::packed(data);
});
