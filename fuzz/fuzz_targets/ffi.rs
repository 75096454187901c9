//! Bytes as a program of C calls.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::ffi(data);
});
