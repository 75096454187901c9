//! The program as a child process, a cache directory for it, and a tiny model.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

pub fn command(cache: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mzcache"));
    command.args(arguments).env("MZCACHE_DIR", cache).env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn program(cache: &Path, arguments: &[&str]) -> Output {
    command(cache, arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A cache directory on a real file system.
pub fn cache() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The model file, written once by the program itself.
pub fn model() -> &'static Path {
    static MODEL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MODEL.get_or_init(|| {
        let place = cache();
        let demo = ["demo", "--shape", "tiny", "--context-tokens", "300", "--levels", "100"];
        assert!(program(place.path(), &demo).status.success());
        let mut models = fs::read_dir(place.path().join("models")).unwrap();
        let path = models.next().unwrap().unwrap().path();
        (place, path)
    });
    path
}

pub fn model_text() -> &'static str {
    model().to_str().unwrap()
}
