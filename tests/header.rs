//! `linker/mzcache.h` is what `src/ffi` says, and compiles as C and as C++ without a warning.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const HEADER: &str = "linker/mzcache.h";

fn scratch(name: &str) -> String {
    format!("{}/{}-{name}", env!("CARGO_TARGET_TMPDIR"), std::process::id())
}

fn cbindgen() -> Command {
    let mut command = Command::new("cbindgen");
    command.current_dir(ROOT);
    command
}

#[test]
fn the_header_is_up_to_date() {
    if cbindgen().arg("--version").output().is_err() {
        let is_ci = std::env::var("MZ_CI").is_ok_and(|value| value == "1");
        assert!(!is_ci, "cbindgen is missing");
        eprintln!("not checked: cbindgen is missing");
        return;
    }
    // Into a file of its own: with --verify it would write over the one that it compares.
    let fresh = scratch("fresh.h");
    let status = cbindgen()
        .args(["--quiet", "--config", "linker/cbindgen.toml", "--output", &fresh, "src/ffi/mod.rs"])
        .status()
        .unwrap();
    assert!(status.success());
    let made = std::fs::read_to_string(&fresh).unwrap();
    std::fs::remove_file(fresh).unwrap();
    let committed = std::fs::read_to_string(Path::new(ROOT).join(HEADER)).unwrap();
    let is_same = made == committed;
    assert!(is_same, "make {HEADER} anew, as linker/cbindgen.toml says");
}

/// Compiles a program that does nothing but include the header, as a user's compiler would.
fn compile(compiler: &str, language: &str, standard: &str) {
    let object = scratch(&format!("{language}.o"));
    let output = Command::new(compiler)
        .args(["-x", language, standard, "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(["-Wstrict-prototypes"].iter().filter(|_| language == "c"))
        .args(["-include", HEADER, "-c", "/dev/null", "-o", &object])
        .current_dir(ROOT)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(object).unwrap();
}

#[test]
fn the_header_is_c() {
    compile("gcc", "c", "-std=c11");
}

#[test]
fn the_header_is_c_plus_plus() {
    compile("g++", "c++", "-std=c++17");
}
