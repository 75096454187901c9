//! Bytes as values and as payloads of the kvh codec.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::kvh(data);
});
