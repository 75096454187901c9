//! Bytes as a kernel, its operands, and where they lie.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bodies::kernels(data);
});
