//! What users of C and C++ do: install the library under a prefix, build a program from an empty
//! folder, by pkg-config or CMake, with gcc or clang, and run it.
//!
//! Tests whose name begins with `cross` need the toolchain that `tests/run` unpacks and says so in
//! `MZ_CROSS`; they build for aarch64 and run under qemu.

#![cfg(target_os = "linux")]

mod cross;
mod functions;
mod install;
mod native;
mod oracle;
mod sizes;
mod tools;
