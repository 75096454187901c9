//! `linker/sizes.txt`: what the archive costs on each target.
//!
//! Measured as a program pays it: one object of all that the header's functions reach, without what
//! the linker drops. Compilers of two versions differ by some percent, so a number may be off by a
//! tenth, or half a KiB, before its row has to be made again, by the toolchain that compares it:
//!
//!   MZ_SIZES=write cargo test --test link sizes

use crate::cross;
use crate::functions::functions;
use crate::install::{Kind, USUAL, installed};
use crate::tools::{Folder, ROOT, command, run};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

const TABLE: &str = "linker/sizes.txt";
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

/// Whether a line of the table is about what a row is about.
fn is_same_row(line: &str, row: &str) -> bool {
    let key = |row: &str| {
        let words = row.split_whitespace().take_while(|word| word.parse::<u64>().is_err());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    key(line) == key(row)
}

/// The table with these rows in the place of those that say the same of other builds.
fn with_rows(table: &str, rows: &str) -> String {
    let fresh = |line: &str| rows.lines().find(|row| is_same_row(line, row));
    let kept: Vec<&str> = table.lines().map(|line| fresh(line).unwrap_or(line)).collect();
    let new = rows.lines().filter(|row| !kept.contains(row));
    let lines = kept.iter().copied().chain(new);
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// Compares rows with those of the table, or puts them there.
fn compare(made: &str, what: &str) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    let path = format!("{ROOT}/{TABLE}");
    let kept = fs::read_to_string(&path).unwrap();
    if std::env::var("MZ_SIZES").is_ok_and(|value| value == "write") {
        return fs::write(path, with_rows(&kept, made)).unwrap();
    }
    for row in made.lines() {
        let old = kept.lines().find(|line| is_same_row(line, row)).unwrap_or_default();
        assert!(is_near(row, old), "{what}\nnow {row}\nwas {old}\n\nmake {TABLE} anew");
    }
}

/// Of the machine that has these rows; the others need the toolchain for aarch64.
#[test]
fn sizes_are_those_of_the_table() {
    if cfg!(target_arch = "x86_64") {
        compare(&rows(&NATIVE), "native");
    }
}

#[test]
fn cross_sizes_are_those_of_the_table() {
    if cross::is_possible() {
        compare(&(rows(&CROSS) + &stacks()), "aarch64");
    }
}

#[test]
fn rows_are_replaced_or_added() {
    let table = "# head\na b 1 2\nstack raw 3\n";
    assert_eq!(with_rows(table, "a b 5 6\n"), "# head\na b 5 6\nstack raw 3\n");
    assert_eq!(with_rows(table, "a c 5 6\n"), table.to_owned() + "a c 5 6\n");
}

#[test]
fn numbers_a_tenth_apart_are_near() {
    assert!(is_near("x86 bare 1099 10", "x86 bare  1000 500"));
    assert!(is_near("x 109999", "x 100000") && !is_near("x 111000", "x 100000"));
    assert!(!is_near("x 1600", "x 1000") && !is_near("y 1", "x 1") && !is_near("x 1 2", "x 1"));
}
