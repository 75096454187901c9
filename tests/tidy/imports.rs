//! Rules about who may use what.

use crate::modules;
use crate::source::{end_of_block, is_word, line_of, words};
use crate::tree::{File, Findings, Tree};
use std::collections::BTreeSet;

/// A module may use those of earlier rows, and of its own.
const RANKS: [&[&str]; 9] = [
    &["units", "error", "limits", "sync"],
    &["arena", "kernel"],
    &["policy", "state"],
    &["codec"],
    &["port"],
    &["swap"],
    &["runtime"],
    &["infer"],
    &["ffi"],
];

/// What the crate's root re-exports from `error`.
const ROOT_NAMES: [&str; 3] = ["Code", "Error", "Result"];

/// Modules that get their ports as traits and must not name a body.
const PORTABLE: [&str; 2] = ["swap", "runtime"];

fn rank(module: &str) -> Option<usize> {
    RANKS.iter().position(|row| row.contains(&module))
}

struct Edge<'a> {
    file: &'a File,
    line: usize,
    from: String,
    /// Names behind the crate's root.
    to: Vec<String>,
}

/// Every path from the library's modules to the crate's root and on, outside of tests.
fn edges(tree: &Tree) -> Vec<Edge<'_>> {
    let mut edges = vec![];
    for module in modules::of(tree) {
        let Some(from) = module.path.first() else { continue };
        if module.is_test || module.file.is_under("src/bin") {
            continue;
        }
        let code = &module.file.source.product;
        let mut add = |at: usize, behind: usize| {
            for to in paths(&code[behind..]) {
                let line = line_of(code, at);
                edges.push(Edge { file: module.file, line, from: from.clone(), to });
            }
        };
        for at in words(code, "crate") {
            if let Some(rest) = code[at + 5..].strip_prefix("::") {
                add(at, code.len() - rest.len());
            }
        }
        for at in words(code, "super").filter(|at| !code[..*at].ends_with("super::")) {
            let supers = code[at..].split("::").take_while(|part| *part == "super").count();
            if supers == module.path.len() {
                add(at, at + supers * "super::".len());
            }
        }
    }
    edges
}

/// `a::b` or `{a::b, c::{d, e}}`, each as far as its names go: braces are opened once.
fn paths(text: &str) -> Vec<Vec<String>> {
    let names = |text: &str| -> Vec<String> {
        let end = text.find(|c: char| !is_word(c) && c != ':').unwrap_or(text.len());
        let parts = text[..end].split("::").filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    };
    if !text.starts_with('{') {
        return vec![names(text)];
    }
    let group = &text[1..end_of_block(text, 0, '{', '}') - 1];
    let mut depth = 0;
    let split = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    group.split(split).map(str::trim).filter(|part| !part.is_empty()).map(names).collect()
}

pub fn wrong_edges(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for Edge { file, line, from, to } in edges(tree) {
        let Some(name) = to.first() else { continue };
        let target = if ROOT_NAMES.contains(&&**name) { "error" } else { name };
        match (rank(&from), rank(target)) {
            (None, _) => findings.push(file.at(line, format_args!("{from} has no rank"))),
            (_, None) => findings.push(file.at(line, format_args!("{target} has no rank"))),
            (Some(own), Some(other)) if own < other => {
                findings.push(file.at(line, format_args!("{from} must not use {target}")));
            }
            _ => {}
        }
        if PORTABLE.contains(&&*from) && to.starts_with(&["port".into(), "linux".into()]) {
            findings.push(file.at(line, format_args!("{from} must not use a port's body")));
        }
    }
    findings
}

pub fn circles(tree: &Tree) -> Findings {
    let direct: BTreeSet<(String, String)> = edges(tree)
        .into_iter()
        .filter_map(|edge| Some((edge.from, edge.to.into_iter().next()?)))
        .filter(|(from, to)| from != to)
        .collect();
    let mut reach = direct.clone();
    loop {
        let longer = reach.iter().flat_map(|(from, middle)| {
            let next = direct.iter().filter(move |(start, _)| start == middle);
            next.map(move |(_, to)| (from.clone(), to.clone()))
        });
        let more: BTreeSet<_> = longer.filter(|edge| !reach.contains(edge)).collect();
        if more.is_empty() {
            break;
        }
        reach.extend(more);
    }
    let circles = reach.iter().filter(|(from, to)| from == to);
    circles.map(|(from, _)| format!("src/{from}: its imports lead back to it")).collect()
}

/// Tests may use them wherever they stand.
pub fn foreign_crates(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for module in modules::of(tree).into_iter().filter(|module| !module.is_test) {
        let file = module.file;
        if file.is_under("src/port") || file.path == "src/port.rs" {
            continue;
        }
        let code = &file.source.product;
        for name in ["libc", "memmap2", "core_affinity"] {
            findings.extend(words(code, name).map(|at| file.at(line_of(code, at), name)));
        }
    }
    findings
}

pub fn stray_atomics(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for module in modules::of(tree).into_iter().filter(|module| !module.is_test) {
        let file = module.file;
        let code = &file.source.product;
        if file.path != "src/sync.rs" {
            let uses = words(code, "atomic").filter(|at| code[..*at].ends_with("::"));
            let types = ["AtomicU32", "AtomicU64", "AtomicUsize", "AtomicBool", "AtomicPtr"];
            let types = types.into_iter().flat_map(|name| words(code, name));
            let lines: BTreeSet<_> = uses.chain(types).map(|at| line_of(code, at)).collect();
            findings.extend(lines.into_iter().map(|line| file.at(line, "an atomic")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::expect;

    const LIB: &str = "mod error;\nmod policy;\nmod state;\nmod port;\nmod swap;\nmod runtime;\n";

    /// A library whose module has that text.
    fn library(path: &str, text: &str) -> Tree {
        Tree::planted(&[("src/lib.rs", LIB), (path, text)])
    }

    #[test]
    fn planted_edges_are_found() {
        for (path, text) in [
            ("src/policy.rs", "use crate::port::Clock;\n"),
            ("src/policy.rs", "fn a(_: &crate::runtime::Runtime) {}\n"),
            ("src/state.rs", "use crate::{error::Error, port::{Clock, Storage}};\n"),
            ("src/state/mod.rs", "use super::swap::file;\n"),
            ("src/error.rs", "use crate::limits::A;\nuse crate::arena::B;\n"),
            ("src/port.rs", "macro_rules! a { () => { $crate::swap::b() } }\n"),
            ("src/swap.rs", "use crate::port::linux::File;\n"),
            ("src/runtime.rs", "use crate::unheard_of::A;\n"),
        ] {
            expect(wrong_edges(&library(path, text)), 1);
        }
        let tree = Tree::planted(&[
            ("src/lib.rs", "mod state;\n"),
            ("src/state.rs", "mod table;\n"),
            ("src/state/table.rs", "use super::super::port::Clock;\nuse super::port;\n"),
        ]);
        expect(wrong_edges(&tree), 1);
        expect(
            wrong_edges(&Tree::planted(&[
                ("src/lib.rs", "mod a;\n"),
                ("src/a.rs", "use crate::a;\n"),
            ])),
            1,
        );
    }

    #[test]
    fn edges_that_are_allowed_are_not_found() {
        for (path, text) in [
            ("src/runtime.rs", "use crate::{Error, Result, port::Clock, state};\n"),
            (
                "src/policy.rs",
                "//! See crate::port.\n#[cfg(test)]\nmod a { use crate::port::B; }\n",
            ),
            (
                "src/policy.rs",
                "#[cfg(test)]\nuse crate::port::B;\nfn a() -> &'static str { \"crate::port\" }\n",
            ),
            ("src/port.rs", "use crate::port::linux::File;\n"),
            ("src/runtime.rs", "use crate::port::{self, Clock};\n"),
        ] {
            expect(wrong_edges(&library(path, text)), 0);
        }
        let tree = Tree::planted(&[
            ("src/lib.rs", LIB),
            ("src/policy.rs", "#[cfg(test)]\nmod tests;\n"),
            ("src/policy/tests.rs", "use crate::port::Clock;\n"),
            ("src/bin/a/main.rs", "mod cli;\n"),
            ("src/bin/a/cli.rs", "use crate::args::A;\n"),
        ]);
        expect(wrong_edges(&tree), 0);
    }

    #[test]
    fn planted_circles_are_found() {
        let tree = |state| {
            Tree::planted(&[
                ("src/lib.rs", LIB),
                ("src/policy.rs", "use crate::error::Error;\nuse crate::policy::A;\n"),
                ("src/state.rs", "use crate::policy::A;\n"),
                ("src/error.rs", state),
            ])
        };
        expect(circles(&tree("")), 0);
        expect(circles(&tree("use crate::state::B;\n")), 3);
    }

    #[test]
    fn planted_foreign_crates_are_found() {
        let text = "use libc::c_int;\nfn a() { memmap2::b(); \"libc\"; } // libc\n";
        expect(foreign_crates(&library("src/runtime.rs", text)), 2);
        expect(foreign_crates(&library("src/port.rs", text)), 0);
        let test = format!("#[cfg(test)]\nmod tests {{ {text} }}\n");
        expect(foreign_crates(&library("src/runtime.rs", &test)), 0);
        expect(foreign_crates(&Tree::planted(&[("src/bin/a/main.rs", text)])), 2);
    }

    #[test]
    fn planted_atomics_are_found() {
        let text = "use core::sync::atomic::Ordering;\nstatic A: AtomicU32 = AtomicU32::new(0);\n";
        expect(stray_atomics(&library("src/port.rs", text)), 2);
        let tree = Tree::planted(&[("src/lib.rs", "mod sync;\n"), ("src/sync.rs", text)]);
        expect(stray_atomics(&tree), 0);
        let test = format!("#[cfg(test)]\nmod tests {{ {text} }}\n");
        expect(stray_atomics(&library("src/port.rs", &test)), 0);
    }
}
