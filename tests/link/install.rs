//! The library under a prefix, as `linker/install` puts it there.

use crate::tools::{ROOT, command, run};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    pub features: &'static str,
    /// Empty: the host's.
    pub target: &'static str,
    pub profile: &'static str,
}

/// What `linker/install` builds unless it is told otherwise.
pub const USUAL: Kind = Kind { features: "infer,opencl", target: "", profile: "release" };

/// The same as a shared object.
pub const SHARED: Kind = Kind { features: "shared,infer,opencl", ..USUAL };

/// A prefix with the library, made once for each kind; builds share a folder that later runs reuse.
pub fn installed(kind: Kind) -> PathBuf {
    static DONE: Mutex<Vec<(Kind, PathBuf)>> = Mutex::new(Vec::new());
    let mut done = DONE.lock().unwrap();
    if let Some((_, prefix)) = done.iter().find(|(known, _)| *known == kind) {
        return prefix.clone();
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("link");
    let Kind { features, target, profile } = kind;
    // No commas, which mean something in flags for the linker.
    let prefix = scratch.join(format!("{}-{target}-{profile}", features.replace(',', "-")));
    let arguments = [prefix.to_str().unwrap(), features, target, profile];
    let mut build = command("linker/install", &arguments, Path::new(ROOT));
    build.env("CARGO_TARGET_DIR", scratch.join("target"));
    build.env("CARGO", env!("CARGO"));
    build.env("MZ_CARGO_FLAGS", flags(kind));
    run(build);
    done.push((kind, prefix.clone()));
    prefix
}

/// Targets without a standard library of their own get it from source.
fn flags(kind: Kind) -> &'static str {
    match (kind.target, kind.features) {
        ("aarch64-unknown-none", _) => {
            "--quiet --offline -Z build-std=core -Z build-std-features=compiler-builtins-mem"
        }
        ("aarch64-linux-android", "bare") => "--quiet --offline -Z build-std=core",
        ("aarch64-linux-android", _) => "--quiet --offline -Z build-std=std,panic_abort",
        _ => "--quiet --offline",
    }
}
