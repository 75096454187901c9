//! Bytes as a model file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::gguf(data);
});
