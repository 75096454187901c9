//! The archive that firmware links, as firmware builds it: no features but the panic handler.
//!
//! How "no allocator, no std" is proved: the linker is told to make one object out of the archive,
//! keeping what any function of `linker/mzcache.h` reaches and nothing else (`ld -r --gc-sections`
//! with each function as a root; the archive holds all of core, most of which is unreachable). What
//! that object leaves undefined is what the library needs from others, and it must stand in
//! `linker/symbols.allow`. `readelf` reads the symbols, because it loads no compiler plugins.

#![cfg(target_os = "linux")]

#[path = "link/functions.rs"]
mod header;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SCRATCH: &str = env!("CARGO_TARGET_TMPDIR");

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(ROOT).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}:\n{out}{err}");
    out.into_owned()
}

fn scratch(name: &str) -> String {
    format!("{SCRATCH}/{}-{name}", std::process::id())
}

/// Builds the archive once, in a build folder that later runs reuse.
fn archive() -> &'static str {
    static ARCHIVE: OnceLock<String> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let folder = Path::new(SCRATCH).join("archive");
        let output = Command::new(env!("CARGO"))
            .args(["rustc", "--quiet", "--locked", "--offline", "--lib", "--release"])
            .args(["--no-default-features", "--features", "panic-handler"])
            .args(["--crate-type", "staticlib", "--target-dir"])
            .arg(&folder)
            .current_dir(ROOT)
            // Flags for this test program, such as a sanitizer's, are not for firmware.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path: PathBuf = folder.join("release/libmzcache.a");
        path.to_str().unwrap().to_owned()
    })
}

/// The functions that the header declares for an archive without features.
fn functions() -> BTreeSet<String> {
    header::functions("bare").into_iter().collect()
}

#[derive(Clone, Debug, PartialEq)]
struct Symbol {
    name: String,
    is_defined: bool,
    is_visible: bool,
}

/// Global symbols of an object, as `readelf --symbols --wide` prints them:
/// `Num: Value Size Type Bind Vis Ndx Name`.
fn symbols(text: &str) -> Vec<Symbol> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row.len() >= 8 && ["GLOBAL", "WEAK"].contains(&row[4]));
    rows.map(|row| Symbol {
        name: row[7].split('@').next().unwrap_or_default().to_owned(),
        is_defined: row[6] != "UND",
        is_visible: row[5] == "DEFAULT",
    })
    .collect()
}

/// Links everything that the header's functions reach, and `more`, into one object.
fn reachable(name: &str, more: &[&str], roots: &[&str]) -> Vec<Symbol> {
    let object = scratch(name);
    let functions = functions();
    let mut arguments = vec!["-r", "--gc-sections", "-o", &object];
    let roots = functions.iter().map(String::as_str).chain(roots.iter().copied());
    arguments.extend(roots.flat_map(|root| ["-u", root]));
    arguments.extend(more);
    arguments.push(archive());
    run("ld", &arguments);
    let symbols = symbols(&run("readelf", &["--symbols", "--wide", &object]));
    std::fs::remove_file(&object).unwrap();
    assert!(functions.iter().all(|name| symbols.iter().any(|symbol| symbol.name == *name)));
    symbols
}

fn stray_imports(symbols: &[Symbol]) -> BTreeSet<&str> {
    let text = std::fs::read_to_string(format!("{ROOT}/linker/symbols.allow")).unwrap();
    let allowed: BTreeSet<&str> =
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let imports = symbols.iter().filter(|symbol| !symbol.is_defined);
    imports.map(|symbol| &*symbol.name).filter(|name| !allowed.contains(name)).collect()
}

#[test]
fn the_archive_imports_nothing_but_what_is_allowed() {
    let symbols = reachable("bare.o", &[], &[]);
    assert!(symbols.iter().any(|symbol| symbol.name == "abort" && !symbol.is_defined));
    assert_eq!(stray_imports(&symbols), BTreeSet::new());
}

#[test]
fn an_allocator_would_be_found() {
    let (source, object) = (scratch("leak.c"), scratch("leak.o"));
    std::fs::write(&source, "#include <stdlib.h>\nvoid *mz_leak(void) { return malloc(9); }\n")
        .unwrap();
    run("gcc", &["-c", "-O1", "-ffunction-sections", &source, "-o", &object]);
    let symbols = reachable("leaky.o", &[&object], &["mz_leak"]);
    assert_eq!(stray_imports(&symbols), BTreeSet::from(["malloc"]));
    std::fs::remove_file(source).unwrap();
    std::fs::remove_file(object).unwrap();
}

/// Names that Rust made contain its crates' names and cannot meet a C name.
fn is_rust_name(name: &str) -> bool {
    name.starts_with("_R") || name.starts_with("_ZN") || name.starts_with("anon.")
}

#[test]
fn the_archive_takes_no_c_name_but_its_own() {
    let functions = functions();
    let symbols = reachable("names.o", &[], &[]);
    let visible = symbols.iter().filter(|symbol| symbol.is_defined && symbol.is_visible);
    let c_names: BTreeSet<String> =
        visible.map(|symbol| symbol.name.clone()).filter(|name| !is_rust_name(name)).collect();
    assert_eq!(c_names, functions);
}

#[test]
fn a_shared_object_exports_the_functions_of_the_header_and_nothing_else() {
    let object = scratch("libmzcache.so");
    let mut arguments = vec!["-shared", "-nostdlib", "--gc-sections", "-o", &object];
    let functions = functions();
    arguments.extend(functions.iter().flat_map(|name| ["-u", name]));
    arguments.extend(["--version-script", "linker/mzcache.map", archive()]);
    run("ld", &arguments);
    let symbols = symbols(&run("readelf", &["--dyn-syms", "--wide", &object]));
    let exported = symbols.iter().filter(|symbol| symbol.is_defined);
    let exported: BTreeSet<_> = exported.map(|symbol| symbol.name.clone()).collect();
    let version = "MZCACHE_0".to_owned();
    assert_eq!(exported, functions.into_iter().chain([version]).collect());
    std::fs::remove_file(object).unwrap();
}

#[test]
fn a_service_in_c_writes_evicts_restores_and_checks() {
    let (program, folder) = (scratch("service"), scratch("service-files"));
    let warnings = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"];
    let sources = ["-Ilinker", "tests/c/service.c", archive(), "-Wl,--gc-sections"];
    run("gcc", &[&warnings[..], &sources, &["-o", &program]].concat());
    std::fs::create_dir_all(&folder).unwrap();
    let printed = run(&program, &[&folder]);
    assert_eq!(printed, format!("ok {}\n", env!("CARGO_PKG_VERSION")));
    std::fs::remove_file(program).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn symbols_are_read() {
    let text = "Symbol table '.symtab' contains 3 entries:\n   Num:    Value          Size Type\
        \n     1: 0000000000000000     0 NOTYPE  GLOBAL DEFAULT  UND abort@GLIBC_2.2.5 (2)\
        \n     2: 0000000000000010    36 FUNC    LOCAL  DEFAULT    5 hidden_in_file\
        \n     3: 0000000000000010    36 FUNC    GLOBAL HIDDEN     5 mz_crc32c\n";
    let symbol = |name: &str, is_defined, is_visible| Symbol {
        name: name.to_owned(),
        is_defined,
        is_visible,
    };
    let expected = [symbol("abort", false, true), symbol("mz_crc32c", true, false)];
    assert_eq!(symbols(text), expected);
}
