//! For aarch64: programs under qemu's user mode, firmware on an emulated machine.

use crate::install::{Kind, installed};
use crate::oracle::{COUNT, Oracle, answer, oracle};
use crate::tools::{Folder, ROOT, command, run};
use std::path::Path;
use std::sync::OnceLock;

const GNU: &str = "aarch64-unknown-linux-gnu";
pub const FIRMWARE: Kind =
    Kind { features: "bare", target: "aarch64-unknown-none", profile: "release" };

/// Whether the toolchain is there, as `tests/run` says.
pub fn is_possible() -> bool {
    let is_possible = std::env::var_os("MZ_CROSS").is_some();
    if !is_possible {
        eprintln!("not checked: MZ_CROSS is not set");
    }
    is_possible
}

#[test]
fn cross_programs_run_under_qemu() {
    if !is_possible() {
        return;
    }
    let prefix = installed(Kind { features: "infer", target: GNU, profile: "release" });
    let folder = Folder::new();
    let (include, library) = (
        format!("-I{}/include", prefix.display()),
        format!("{}/lib/libmzcache.a", prefix.display()),
    );
    let Oracle { model, prompt, greedy } = oracle("llama");
    let compilers: [&[&str]; 2] =
        [&["aarch64-linux-gnu-gcc"], &["clang", "--target=aarch64-linux-gnu"]];
    for compiler in compilers {
        for source in ["engine.c", "model.c"] {
            let (from, program) = (format!("{ROOT}/tests/c/{source}"), folder.path(source));
            let mut arguments = compiler[1..].to_vec();
            arguments.extend(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
            arguments.extend([&*include, &from, "-o", &program, &library]);
            arguments.extend(["-Wl,--gc-sections", "-lpthread", "-ldl", "-lm"]);
            run(command(compiler[0], &arguments, &folder.0));
        }
        let qemu = |program: &str, more: &[&str]| {
            let program = folder.path(program);
            let mut arguments = vec!["-L", "/usr/aarch64-linux-gnu", &program];
            arguments.extend(more);
            command("qemu-aarch64-static", &arguments, &folder.0)
        };
        assert!(run(qemu("engine.c", &["."])).starts_with("ok "));
        let answered = answer(qemu("model.c", &[&model, "swap", COUNT]), &prompt);
        assert_eq!(answered, format!("{greedy}\n{greedy}\n"));
    }
}

/// What the firmware printed, once for all tests.
pub fn firmware() -> &'static str {
    static PRINTED: OnceLock<String> = OnceLock::new();
    PRINTED.get_or_init(|| {
        let prefix = installed(FIRMWARE);
        let folder = Folder::new();
        let (include, libraries) =
            (format!("-I{}/include", prefix.display()), format!("-L{}/lib", prefix.display()));
        let (c, image) = (format!("{ROOT}/tests/c"), folder.path("image"));
        let (script, start, source) =
            (format!("-T{c}/bare.ld"), format!("{c}/start.S"), format!("{c}/bare.c"));
        let arguments = [
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-ffreestanding",
            "-mgeneral-regs-only",
            "-nostartfiles",
            "-nostdlib",
            "-static",
            &include,
            &start,
            &source,
            "-o",
            &image,
            &libraries,
            "-lmzcache",
            &script,
            "-Wl,--gc-sections",
            "-Wl,--build-id=none",
            "-Wl,--fatal-warnings",
        ];
        run(command("aarch64-linux-gnu-gcc", &arguments, Path::new(ROOT)));
        let machine = ["-M", "virt", "-cpu", "cortex-a72", "-m", "256M", "-nographic"];
        let rest = ["-nic", "none", "-semihosting", "-kernel", &image];
        let emulate = ["60", "qemu-system-aarch64"].into_iter().chain(machine).chain(rest);
        run(command("timeout", &emulate.collect::<Vec<_>>(), Path::new(ROOT)))
    })
}

#[test]
fn cross_firmware_evicts_and_restores_on_an_emulated_machine() {
    if !is_possible() {
        return;
    }
    let last = format!("ok {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(firmware().lines().last(), Some(&*last), "{}", firmware());
}
