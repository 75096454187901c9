//! What cannot be opened says why.

use crate::device::{open_parts, platform};
use crate::models::{fixture, parts};
use mzcache::Code;
use mzcache::port::opencl::{Api, MemoryMode};
use mzcache::units::{CodecId, TokenCount};

#[test]
fn a_missing_library_and_an_unknown_device_are_named() {
    let missing = Api::load(Some(c"/nonexistent/libOpenCL.so")).map(|_| ()).unwrap_err();
    assert_eq!((missing.code, missing.what), (Code::NoDevice, "OpenCL library"));
    let Some(platform) = platform() else { return };
    let unknown = platform.named("no such device").map(|_| ()).unwrap_err();
    assert_eq!((unknown.code, unknown.what), (Code::NoDevice, "OpenCL device of that name"));
}

#[test]
fn a_context_longer_than_the_models_is_refused() {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(MemoryMode::Buffers) else { return };
    let mut parts = parts("cl-long", &fixture("llama.gguf"), CodecId::Raw, 1);
    parts.config.options.context_tokens_max = TokenCount::new(1 << 17);
    let error = open_parts(&accelerator, parts).map(|_| ()).unwrap_err();
    assert_eq!((error.code, error.what), (Code::LimitExceeded, "context_tokens_max"));
}
