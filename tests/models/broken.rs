//! Models that compute nothing of use.

use crate::models::fixture;
use mzcache::infer::gguf::Gguf;
use std::path::{Path, PathBuf};

/// A model whose last norm makes every logit a NaN.
pub fn model_of_nan(name: &str) -> PathBuf {
    let mut file = std::fs::read(fixture("llama.gguf")).unwrap();
    let range = {
        let gguf = Gguf::parse(&file).unwrap();
        let norm = gguf.tensor("output_norm.weight").unwrap();
        let start = usize::try_from(norm.file_offset).unwrap();
        start..start + usize::try_from(norm.bytes).unwrap()
    };
    for value in file[range].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("nan-{name}-{}.gguf", std::process::id()));
    std::fs::write(&path, file).unwrap();
    path
}
