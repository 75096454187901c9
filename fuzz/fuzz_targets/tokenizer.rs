//! Bytes as a vocabulary and a text.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::tokenizer(data);
});
