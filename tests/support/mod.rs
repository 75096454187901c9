//! What several test files need: scratch files, aligned memory, known bytes.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

/// A path in cargo's scratch directory for tests, which lies on a real file system.
pub fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    directory.join(format!("{}-{name}", std::process::id()))
}

/// A file in the scratch directory, removed at the end.
pub struct ScratchFile(pub PathBuf);

impl ScratchFile {
    pub fn absent(name: &str) -> Self {
        let path = scratch(name);
        let _absent = std::fs::remove_file(&path);
        ScratchFile(path)
    }

    pub fn with(name: &str, bytes: &[u8]) -> Self {
        let file = Self::absent(name);
        std::fs::write(&file.0, bytes).unwrap();
        file
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Bytes at an address that is a multiple of 4096.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    pub fn filled(bytes: usize, value: u8) -> Self {
        let memory = vec![value; bytes + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Aligned { memory, start, bytes }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

/// Bytes that differ from block to block; none is zero, so that what was not read shows.
pub fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes().map(|byte| byte.max(1)));
    }
    out.truncate(bytes);
    out
}
