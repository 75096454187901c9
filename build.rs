//! Assembles `asm/<arch>/*.S` and sets `cfg(mz_asm)` when that worked. Without an assembler the
//! portable kernels remain, unless `MZ_CI=1`, which makes a missing assembler an error.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(mz_asm)");
    // Set by who checks models of `src/sync.rs`.
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rerun-if-changed=asm");
    println!("cargo::rerun-if-env-changed=MZ_CI");
    let Some(directory) = asm_directory() else { return };
    match assemble(&directory) {
        Ok(()) => println!("cargo::rustc-cfg=mz_asm"),
        Err(error) if env::var("MZ_CI").is_ok_and(|value| value == "1") => {
            println!("cargo::error=cannot assemble {}: {error}", directory.display());
        }
        Err(_) => {}
    }
}

/// The sources for this target: 64-bit ELF with the vector registers that the files use.
fn asm_directory() -> Option<PathBuf> {
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let arch = target("ARCH");
    let baseline = match arch.as_str() {
        "x86_64" => "sse2",
        "aarch64" => "neon",
        _ => return None,
    };
    let is_elf = matches!(target("OS").as_str(), "linux" | "android" | "none");
    let has_baseline = target("FEATURE").split(',').any(|feature| feature == baseline);
    (is_elf && has_baseline && target("POINTER_WIDTH") == "64").then(|| Path::new("asm").join(arch))
}

fn assemble(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut sources = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "S"));
    sources.sort();
    // A failed attempt is answered by the fallback, so the compiler's own warnings would be noise.
    let mut build = cc::Build::new();
    build.files(sources).include("asm").cargo_warnings(false).try_compile("mzcache_asm")?;
    Ok(())
}
