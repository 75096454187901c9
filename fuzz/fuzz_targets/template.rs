//! Bytes as a chat template.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::template(data);
});
