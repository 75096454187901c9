//! Branch coverage of what decides and of what reads foreign bytes: `src/policy`, `src/state`,
//! `src/swap`, `src/codec`, under their own unit tests. What these do not take is named in
//! `tests/fixtures/uncovered.txt`, each with the reason why it cannot be taken. Every run of the
//! tests looks whether the list fits the source. With `MZ_COVERAGE=1` it is measured, which takes
//! minutes and the LLVM tools of rustc's own version (Debian's package `llvm-22`, say); what is not
//! taken and not listed fails, and so does what is listed and taken:
//!
//! ```text
//! MZ_COVERAGE=1 cargo test --test coverage -- --nocapture
//! ```
//!
//! What counts: each side of every condition of `if`, `while`, `let ... else`, guards and the
//! operands of `&&` and `||`, and every piece of code that never runs: arms, closures, functions.
//! What does not:
//!
//! - An error that `?` hands on: the place where it arose counts instead.
//! - Code that never runs on the line below one that is listed: the one is why the other does not.
//!   Likewise the closing brace where an `if` without `else` ends, whose condition counts.
//! - Tests: files `tests.rs`, folders `tests`, and what follows `#[cfg(test)]` in a file.
//! - Anything for one instruction set alone. There is none of that here: it is all in `src/kernel`
//!   and `asm`, whose rungs give the same results, so the list is the same on every processor.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MODULES: [&str; 4] = ["policy", "state", "swap", "codec"];

/// Tests that take most of the time by far and, as measured once, no side of a branch that others
/// do not: cases by the ten thousand, and random lives.
const SKIPPED: [&str; 6] = [
    "cachegen::every_token_count",
    "cycles::every_token_count",
    "cachegen::random_payloads",
    "real_chunks_do_not_change",
    "tests::random_lives_with_faults",
    "tests::random_lives_without_faults",
];

/// Where something is not taken. Lines have no numbers here, since these move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: String,
    function: String,
    line: String,
    /// `never true`, `never false` or `never runs`, and of what.
    what: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}\n{}\n{}", self.file, self.function, self.line, self.what)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The list: four lines and more an entry, with empty lines between them.
fn listed() -> BTreeMap<Place, String> {
    let text = std::fs::read_to_string(root().join("tests/fixtures/uncovered.txt")).unwrap();
    let entries = text.split("\n\n").map(|entry| entry.trim_matches('\n'));
    let mut places = BTreeMap::new();
    for entry in entries.filter(|entry| !entry.starts_with('#')) {
        let parts: Vec<&str> = entry.splitn(4, '\n').collect();
        let [place, line, what, why] = parts[..] else {
            panic!("an entry has four parts: {entry}")
        };
        let (file, function) = place.split_once(", ").expect("a place has a function");
        let [file, function, line, what] = [file, function, line, what].map(String::from);
        let place = Place { file, function, line, what };
        assert_eq!(places.insert(place, why.into()), None, "twice: {entry}");
    }
    places
}

/// A source file of those modules.
struct Source {
    name: String,
    lines: Vec<String>,
    /// Where its tests begin.
    end: usize,
}

impl Source {
    fn read(name: &str) -> Source {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        let lines: Vec<String> = text.lines().map(String::from).collect();
        let end = lines.iter().position(|line| line == "#[cfg(test)]").unwrap_or(lines.len());
        Source { name: name.into(), lines, end }
    }

    /// The function around a line, by its indices.
    fn function(&self, line: usize) -> &str {
        let name = |line: &'_ str| {
            let at = line.starts_with("fn ").then_some(0).or(line.find(" fn ").map(|at| at + 1))?;
            let rest = line.get(at + 3..)?;
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            (!line.trim_start().starts_with("//")).then_some(at + 3..at + 3 + length)
        };
        let found = self.lines[..=line].iter().rev().find_map(|line| Some(&line[name(line)?]));
        found.unwrap_or("no function")
    }

    fn place(&self, line: usize, what: String) -> Place {
        let function = self.function(line).into();
        Place { file: self.name.clone(), function, line: self.lines[line].trim().into(), what }
    }

    /// What stands between two positions; of more lines than one only the first.
    fn text(&self, span: &Span) -> &str {
        let line = &self.lines[span.line - 1];
        let end = if span.line == span.end_line { span.end_column - 1 } else { line.len() };
        line.get(span.column - 1..end).unwrap_or(line).trim()
    }
}

/// Lines and columns from 1 on, as the tools count them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
}

/// How often both sides of a condition, or a piece of code, ran. The same place occurs once for
/// every type that its function is made for.
#[derive(Default)]
struct Counts {
    sides: BTreeMap<(String, Span), [u64; 2]>,
    pieces: BTreeMap<(String, Span), u64>,
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn span(record: &[Value]) -> Span {
    let at = |index: usize| usize::try_from(number(&record[index])).unwrap();
    Span { line: at(0), column: at(1), end_line: at(2), end_column: at(3) }
}

impl Counts {
    fn add(&mut self, function: &Value) {
        const CODE: u64 = 0;
        let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let files = array(&function["filenames"]);
        let name = |file: &Value| {
            let path = files[usize::try_from(number(file)).unwrap()].as_str().unwrap();
            let path = path.strip_prefix(root().to_str().unwrap()).unwrap_or(path);
            path.trim_start_matches('/').to_string()
        };
        for branch in array(&function["branches"]) {
            let branch = branch.as_array().unwrap();
            let sides = self.sides.entry((name(&branch[6]), span(branch))).or_default();
            sides[0] += number(&branch[4]);
            sides[1] += number(&branch[5]);
        }
        for region in array(&function["regions"]) {
            let region = region.as_array().unwrap();
            if number(&region[7]) == CODE {
                *self.pieces.entry((name(&region[5]), span(region))).or_default() +=
                    number(&region[4]);
            }
        }
    }

    /// Leaves what is in those modules and no test.
    fn retain(&mut self, sources: &BTreeMap<String, Source>) {
        let is_in = |file: &String, span: &Span| {
            sources.get(file).is_some_and(|source| span.line <= source.end)
        };
        self.sides.retain(|(file, span), _| is_in(file, span));
        self.pieces.retain(|(file, span), _| is_in(file, span));
    }

    /// Everything that was not taken.
    fn missed(&self, sources: &BTreeMap<String, Source>) -> BTreeSet<Place> {
        let mut missed = BTreeSet::new();
        // By file and line.
        let mut lines = BTreeSet::new();
        for ((file, span), counts) in &self.sides {
            let source = &sources[file];
            for (count, what) in counts.iter().zip(["never true", "never false"]) {
                if *count == 0 {
                    let what = format!("{what}: {}", source.text(span));
                    missed.insert(source.place(span.line - 1, what));
                    lines.insert((file, span.line));
                }
            }
        }
        for ((file, span), count) in &self.pieces {
            let source = &sources[file];
            if *count > 0 || ["?", "}"].contains(&source.text(span)) {
                continue;
            }
            let is_known = lines.contains(&(file, span.line));
            if !is_known && !lines.contains(&(file, span.line - 1)) {
                missed.insert(source.place(span.line - 1, "never runs".into()));
            }
            lines.insert((file, span.line));
        }
        missed
    }

    fn print(&self) {
        for module in MODULES {
            let folder = format!("src/{module}/");
            let sides = self.sides.iter().filter(|((file, _), _)| file.starts_with(&folder));
            let sides: Vec<u64> = sides.flat_map(|(_, counts)| *counts).collect();
            let pieces = self.pieces.iter().filter(|((file, _), _)| file.starts_with(&folder));
            let pieces: Vec<u64> = pieces.map(|(_, count)| *count).collect();
            let taken = |counts: &[u64]| counts.iter().filter(|count| **count > 0).count();
            let (sides_taken, pieces_taken) = (taken(&sides), taken(&pieces));
            println!(
                "{module}: {sides_taken} of {} sides of branches, {pieces_taken} of {} pieces of \
                 code",
                sides.len(),
                pieces.len()
            );
        }
    }
}

/// All source files of those modules that are no tests.
fn sources() -> BTreeMap<String, Source> {
    let mut folders: Vec<PathBuf> =
        MODULES.iter().map(|module| PathBuf::from("src").join(module)).collect();
    let mut sources = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            let name = path.to_str().unwrap();
            match entry.file_type().unwrap().is_dir() {
                true if !name.ends_with("/tests") => folders.push(path),
                false if name.ends_with(".rs") && !name.ends_with("/tests.rs") => {
                    sources.insert(name.into(), Source::read(name));
                }
                _ => {}
            }
        }
    }
    sources
}

/// What a command prints, which must succeed.
fn output(command: &mut Command) -> Vec<u8> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {text}");
    output.stdout
}

/// The folder with the tools of the LLVM that rustc has; others do not know its format.
fn tools() -> PathBuf {
    let version = output(Command::new("rustc").arg("-vV"));
    let version = String::from_utf8(version).unwrap();
    let major = version.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let major = major.and_then(|version| version.split('.').next()).expect("rustc has an LLVM");
    let folder = PathBuf::from(format!("/usr/lib/llvm-{major}/bin"));
    assert!(folder.join("llvm-cov").exists(), "install llvm-{major}");
    folder
}

/// Builds the unit tests with counters in them; optimised as usual, since these are added before.
fn build(folder: &Path) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["test", "--locked", "--no-default-features", "--lib"]);
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    cargo.env("CARGO_TARGET_DIR", folder.join("target")).env("CARGO_PROFILE_TEST_DEBUG", "0");
    // Conditions are counted behind a switch of the compiler that is not stable.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo.env("RUSTFLAGS", "-Cinstrument-coverage -Zcoverage-options=condition");
    cargo.env("LLVM_PROFILE_FILE", folder.join("build/%p.profraw"));
    let messages = output(&mut cargo);
    let messages = String::from_utf8(messages).unwrap();
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut programs = messages.filter_map(|message: Value| {
        let is_test = message["profile"]["test"] == Value::Bool(true);
        message["executable"].as_str().filter(|_| is_test).map(PathBuf::from)
    });
    programs.next().expect("cargo built the tests")
}

/// Runs the tests of each module in a process of its own, with one thread: counters that threads
/// share are slow.
fn run(program: &Path, folder: &Path) -> Vec<PathBuf> {
    let start = |module: &&str| {
        let profile = folder.join(format!("{module}.profraw"));
        let mut tests = Command::new(program);
        tests.current_dir(root()).arg(format!("{module}::")).args(["-q", "--test-threads=1"]);
        tests.args(SKIPPED.iter().flat_map(|name| ["--skip", name]));
        tests.env("LLVM_PROFILE_FILE", &profile).stdout(Stdio::null());
        (module.to_string(), tests.spawn().unwrap(), profile)
    };
    let running: Vec<_> = MODULES.iter().map(start).collect();
    let wait = |(module, mut child, profile): (String, std::process::Child, PathBuf)| {
        assert!(child.wait().unwrap().success(), "tests of {module} fail");
        profile
    };
    running.into_iter().map(wait).collect()
}

fn measure() -> Counts {
    let tools = tools();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("coverage");
    std::fs::create_dir_all(&folder).unwrap();
    let program = build(&folder);
    let profiles = run(&program, &folder);
    let merged = folder.join("merged.profdata");
    let mut merge = Command::new(tools.join("llvm-profdata"));
    output(merge.args(["merge", "-sparse", "-o"]).arg(&merged).args(profiles));
    let mut export = Command::new(tools.join("llvm-cov"));
    export.arg("export").arg(&program).arg("-format=text").arg("-instr-profile").arg(&merged);
    let export = output(export.args(MODULES.map(|module| root().join("src").join(module))));
    let export: Value = serde_json::from_slice(&export).unwrap();
    let functions = export["data"][0]["functions"].as_array().expect("functions");
    let mut counts = Counts::default();
    functions.iter().for_each(|function| counts.add(function));
    counts
}

#[test]
fn the_list_fits_the_source_and_gives_reasons() {
    let sources = sources();
    for (place, why) in listed() {
        assert!(why.len() > 20, "no reason: {place}");
        let source = sources.get(&place.file).unwrap_or_else(|| panic!("no such file: {place}"));
        let lines = 0..source.end;
        let is_it = |line: &usize| source.place(*line, place.what.clone()) == place;
        assert!(lines.into_iter().any(|line| is_it(&line)), "no such line: {place}");
    }
}

#[test]
fn planted_places_are_found_and_what_does_not_count_is_not() {
    let lines =
        ["fn first() {", "    a(b?)", "}", "fn second() {", "    if a && b {", "        c()"];
    let lines = lines.into_iter().chain(["    }", "}", "#[cfg(test)]", "mod tests {}"]);
    let lines = lines.map(String::from).collect();
    let source = Source { name: "src/a.rs".into(), lines, end: 8 };
    let sources = BTreeMap::from([("src/a.rs".into(), source)]);
    let span = |line, column, end_column| {
        ("src/a.rs".into(), Span { line, column, end_line: line, end_column })
    };
    let mut counts = Counts::default();
    counts.sides.insert(span(5, 8, 9), [3, 1]);
    counts.sides.insert(span(5, 13, 14), [0, 3]);
    // A `?`, the call behind the condition, a closing brace, and a test.
    for piece in [span(2, 8, 9), span(6, 9, 12), span(7, 5, 6), span(10, 1, 10)] {
        counts.pieces.insert(piece, 0);
    }
    counts.pieces.insert(span(2, 5, 10), 4);
    counts.retain(&sources);
    let found = |counts: &Counts| {
        let missed = counts.missed(&sources).into_iter();
        missed.map(|place| format!("{} | {} | {}", place.function, place.line, place.what))
    };
    let condition = "second | if a && b { | never true: b";
    assert_eq!(found(&counts).collect::<Vec<_>>(), [condition]);
    counts.pieces.insert(span(2, 5, 10), 0);
    assert_eq!(found(&counts).collect::<Vec<_>>(), ["first | a(b?) | never runs", condition]);
}

#[test]
fn what_is_not_taken_is_listed_and_what_is_listed_is_not_taken() {
    if std::env::var_os("MZ_COVERAGE").is_none() {
        return;
    }
    let sources = sources();
    let mut counts = measure();
    counts.retain(&sources);
    counts.print();
    for module in MODULES {
        let folder = format!("src/{module}/");
        assert!(counts.sides.keys().any(|(file, _)| file.starts_with(&folder)), "{module}");
    }
    let missed = counts.missed(&sources);
    let listed = listed();
    let new: Vec<_> = missed.iter().filter(|place| !listed.contains_key(place)).collect();
    let stale: Vec<_> = listed.keys().filter(|place| !missed.contains(place)).collect();
    for place in &new {
        println!("\nnot taken by any test, and not listed:\n{place}");
    }
    for place in &stale {
        println!("\nlisted, and taken or gone:\n{place}");
    }
    assert!(new.is_empty() && stale.is_empty(), "{} new, {} stale", new.len(), stale.len());
}
