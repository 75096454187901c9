//! The program as its users meet it: exit codes, messages, streams.

#![cfg(feature = "cli")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn program(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mzcache"));
    command.args(arguments).env("MZCACHE_DIR", cache).env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A failure says what and what to do, on the error stream only, without a panic.
fn expect_failure(output: &Output, code: i32, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(text(&output.stdout), "");
    assert!(!message.contains("panicked"), "{message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

#[test]
fn help_shows_examples_and_exits_well() {
    let cache = tempfile::tempdir().unwrap();
    for command in ["run", "chat", "demo", "profile", "bench"] {
        let output = program(cache.path(), &[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("Examples:"), "{command}");
    }
    let output = program(cache.path(), &["--version"]);
    assert!(text(&output.stdout).starts_with("mzcache "));
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let cache = tempfile::tempdir().unwrap();
    let run = ["run", "-m", "m", "-p", "p"];
    let with = |more: &[&'static str]| [&run[..], more].concat();
    expect_failure(&program(cache.path(), &[]), 2, &["Usage:"]);
    expect_failure(&program(cache.path(), &["fly"]), 2, &["fly"]);
    expect_failure(&program(cache.path(), &with(&["--remaining", "101%"])), 2, &["outside 0 %"]);
    expect_failure(
        &program(cache.path(), &with(&["--codec", "zip"])),
        2,
        &["raw, q8, kv4, kvh, cachegen"],
    );
    let cores = program(cache.path(), &with(&["--cores", "read=7-6"]));
    expect_failure(&cores, 2, &["`7-6` ends before it begins"]);
    expect_failure(&program(cache.path(), &with(&["--evict", "all"])), 2, &["512MiB"]);
    let few = program(cache.path(), &["profile", "--read-bytes", "1MiB"]);
    expect_failure(&few, 2, &["error: --read-bytes must be at least 32.0 MiB"]);
}

#[test]
fn a_profile_is_written_and_printed() {
    let cache = tempfile::tempdir().unwrap();
    let output = program(cache.path(), &["profile", "--read-bytes", "32MiB", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(printed["read_bytes_per_s"].as_u64().is_some_and(|rate| rate > 0));
    let file = std::fs::read(cache.path().join("profile.txt")).unwrap();
    mzcache::policy::Profile::parse(&file).unwrap();
    let output = program(cache.path(), &["profile", "--read-bytes", "32MiB", "-q"]);
    assert!(text(&output.stdout).contains("written: "));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_cache_directory_that_cannot_be_written_is_explained() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for cache in [file.as_path(), &file.join("below"), Path::new("/sys/mzcache")] {
        let output = program(cache, &["profile", "-q", "--read-bytes", "32MiB"]);
        expect_failure(&output, 1, &["error: cannot make the directory", "hint: ", "--cache-dir"]);
    }
    let output = place.path().join("missing/profile.txt");
    let arguments = ["profile", "-q", "--read-bytes", "32MiB", "-o", output.to_str().unwrap()];
    expect_failure(&program(place.path(), &arguments), 1, &["missing/profile.txt", "hint: "]);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mzcache"));
    command.args(["profile", "-q", "--read-bytes", "32MiB"]).env("MZCACHE_DIR", cache.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stderr), "");
}
