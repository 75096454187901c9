//! `linker/sizes.txt`: what the archive costs on each target.
//!
//! Measured as a program pays it: one object of all that the header's functions reach, without what
//! the linker drops. Compilers of two versions differ by some percent, so a number may be off by a
//! tenth, or half a KiB, before the table has to be made again:
//!
//!   MZ_SIZES=write cargo test --test link sizes

use crate::cross;
use crate::functions::functions;
use crate::install::{Kind, USUAL, installed};
use crate::tools::{Folder, ROOT, command, run};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const TABLE: &str = "linker/sizes.txt";
const HEAD: &str = "\
# What libmzcache.a costs a program that reaches all functions of its header, in bytes: code, tables
# (constants), data and bss (memory), and the archive's own size. Made and compared by
# tests/link/sizes.rs, which says how. Stack: the deepest that tests/c/bare.c saw, with each codec.
#
# target                      features      profile     code   tables    data     bss    archive
";

const fn kind(target: &'static str, features: &'static str, profile: &'static str) -> Kind {
    Kind { features, target, profile }
}

const NATIVE: [Kind; 4] = [
    kind("", "bare", "release"),
    kind("", "bare", "small"),
    USUAL,
    kind("", "infer,opencl", "small"),
];
const CROSS: [Kind; 5] = [
    cross::FIRMWARE,
    kind("aarch64-unknown-none", "bare", "small"),
    kind("aarch64-linux-android", "infer,opencl", "release"),
    kind("aarch64-linux-android", "infer,opencl", "small"),
    kind("aarch64-unknown-linux-gnu", "infer", "release"),
];

/// Code, tables, data, bss of one linked object, and the archive's size.
fn measure(kind: Kind) -> [u64; 5] {
    let archive = installed(kind).join("lib/libmzcache.a");
    let folder = Folder::new();
    let object = folder.path("all.o");
    let tool = |name: &str| match kind.target {
        "" => name.to_owned(),
        _ => format!("aarch64-linux-gnu-{name}"),
    };
    let functions = functions(kind.features);
    let mut arguments = vec!["-r", "--gc-sections", "-o", &object];
    arguments.extend(functions.iter().flat_map(|name| ["-u", name]));
    let path = archive.to_str().unwrap();
    arguments.push(path);
    run(command(&tool("ld"), &arguments, Path::new(ROOT)));
    let sections = run(command(&tool("size"), &["-A", "-d", &object], Path::new(ROOT)));
    let mut sizes = [0, 0, 0, 0, fs::metadata(&archive).unwrap().len()];
    for line in sections.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(Ok(bytes))) = (words.next(), words.next().map(str::parse::<u64>))
        else {
            continue;
        };
        let starts = |start: &str| name.starts_with(start);
        if starts(".text") {
            sizes[0] += bytes;
        } else if starts(".rodata") || starts(".data.rel.ro") {
            sizes[1] += bytes;
        } else if starts(".data") || starts(".tdata") {
            sizes[2] += bytes;
        } else if starts(".bss") || starts(".tbss") {
            sizes[3] += bytes;
        }
    }
    sizes
}

fn target(kind: Kind) -> &'static str {
    if kind.target.is_empty() { "x86_64-unknown-linux-gnu" } else { kind.target }
}

fn rows(kinds: &[Kind]) -> String {
    let mut rows = String::new();
    for kind in kinds {
        let [code, tables, data, bss, archive] = measure(*kind);
        let (target, features, profile) = (target(*kind), kind.features, kind.profile);
        writeln!(
            rows,
            "{target:<29} {features:<13} {profile:<8} {code:>7} {tables:>8} {data:>7} {bss:>7} \
             {archive:>10}"
        )
        .unwrap();
    }
    rows
}

fn stacks() -> String {
    let lines = cross::firmware().lines().filter(|line| line.starts_with("stack "));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// Whether two tables say the same, but for a tenth.
fn is_near(made: &str, kept: &str) -> bool {
    let near = |made: &str, kept: &str| match (made.parse::<u64>(), kept.parse::<u64>()) {
        (Ok(made), Ok(kept)) => made.abs_diff(kept) <= (kept / 10).max(512),
        _ => made == kept,
    };
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (made, kept) = (words(made), words(kept));
    made.len() == kept.len() && made.iter().zip(&kept).all(|(made, kept)| near(made, kept))
}

/// Compares rows with those of the table that begin with the same words.
fn compare(made: &str, what: &str) {
    let kept = fs::read_to_string(format!("{ROOT}/{TABLE}")).unwrap();
    for row in made.lines() {
        let key = row.split_whitespace().take_while(|word| word.parse::<u64>().is_err());
        let key: Vec<_> = key.collect();
        let old = kept.lines().find(|line| {
            let words = line.split_whitespace().take(key.len());
            words.eq(key.iter().copied())
        });
        let old = old.unwrap_or_default();
        assert!(is_near(row, old), "{what}\nnow {row}\nwas {old}\n\nmake {TABLE} anew");
    }
}

fn writes() -> bool {
    std::env::var("MZ_SIZES").is_ok_and(|value| value == "write")
}

/// One row in reach of every machine; the others need the toolchain for aarch64.
#[test]
fn sizes_are_those_of_the_table() {
    if cfg!(target_arch = "x86_64") && !writes() {
        compare(&rows(&NATIVE), "native");
    }
}

#[test]
fn cross_sizes_are_those_of_the_table() {
    if !cross::is_possible() {
        return;
    }
    if writes() {
        let table = format!("{HEAD}{}{}{}", rows(&NATIVE), rows(&CROSS), stacks());
        fs::write(format!("{ROOT}/{TABLE}"), table).unwrap();
    }
    compare(&(rows(&CROSS) + &stacks()), "aarch64");
}

#[test]
fn numbers_a_tenth_apart_are_near() {
    assert!(is_near("x86 bare 1099 10", "x86 bare  1000 500"));
    assert!(is_near("x 109999", "x 100000") && !is_near("x 111000", "x 100000"));
    assert!(!is_near("x 1600", "x 1000") && !is_near("y 1", "x 1") && !is_near("x 1 2", "x 1"));
}
