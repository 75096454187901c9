//! Rules about the package as a whole: names at the top, dependencies, files that nothing uses.

use crate::source::words;
use crate::tree::{File, Findings, Tree};
use std::collections::BTreeSet;

const TOP: [&str; 11] = [
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "src",
    "asm",
    "kernels",
    "linker",
    "tests",
    "fuzz",
    "README.md",
    "LICENSE",
];

pub fn stray_names(tree: &Tree) -> Findings {
    let tops = tree.files.iter().map(|file| file.path.split('/').next().unwrap_or_default());
    let stray = tops.filter(|name| !name.starts_with('.') && !TOP.contains(name));
    let stray: BTreeSet<_> = stray.collect();
    stray.into_iter().map(|name| format!("{name}: does not belong at the top level")).collect()
}

/// Assembly and OpenCL files that no source file names, and assembly whose function `mz_<file>` no
/// source file declares: the build script may take all files of a folder.
pub fn unused_kernels(tree: &Tree) -> Findings {
    let is_kernel = |file: &&File| file.is_under("asm") || file.is_under("kernels");
    let mut findings = vec![];
    for file in tree.files.iter().filter(is_kernel) {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let symbol = format!("mz_{}", name.trim_end_matches(".S"));
        let is_named = |user: &File| {
            let may_name = user.path == "build.rs" || user.is_under("src") || is_kernel(&user);
            may_name && user.path != file.path && user.text.contains(name)
        };
        let is_declared = |user: &File| {
            let code = &user.source.code;
            file.has_extension(&["S"]) && user.is_under("src") && words(code, &symbol).count() > 0
        };
        if !tree.files.iter().any(|user| is_named(user) || is_declared(user)) {
            findings.push(file.at(0, "no source file uses it"));
        }
    }
    findings
}

const LIBRARY: [&str; 5] = ["bitflags", "core_affinity", "libc", "memmap2", "static_assertions"];

pub fn stray_dependencies(tree: &Tree) -> Findings {
    let Some(manifest) = tree.file("Cargo.toml") else { return vec!["Cargo.toml: missing".into()] };
    let entries = entries(&manifest.text);
    let names = |section: &str| -> BTreeSet<&str> {
        let of_section = entries.iter().filter(|entry| entry.section == section);
        of_section.map(|entry| &*entry.key).collect()
    };
    let mut findings = vec![];
    for entry in &entries {
        let is_table = entry.section.contains("dependencies");
        if is_table && !DEPENDENCIES.contains(&&*entry.section) {
            findings.push(format!("Cargo.toml: [{}] is not read by this rule", entry.section));
        }
        let is_extra = entry.section == "dependencies" && !LIBRARY.contains(&&*entry.key);
        if is_extra && !belongs_to_cli(&entries, entry) {
            findings.push(format!("Cargo.toml: {} is no dependency of cli alone", entry.key));
        }
    }
    for missing in LIBRARY.iter().filter(|name| !names("dependencies").contains(*name)) {
        findings.push(format!("Cargo.toml: {missing} is missing"));
    }
    if names(LOOM) != BTreeSet::from(["loom"]) {
        findings.push(format!("Cargo.toml: [{LOOM}] is for the model checker alone"));
    }
    if names("build-dependencies") != BTreeSet::from(["cc"]) {
        findings.push("Cargo.toml: the build dependency is cc and nothing else".into());
    }
    findings
}

const DEPENDENCIES: [&str; 4] = ["dependencies", LOOM, "build-dependencies", "dev-dependencies"];

/// Not the product's: `src/sync.rs` as a model checker sees it.
const LOOM: &str = "target.'cfg(loom)'.dependencies";

fn belongs_to_cli(entries: &[Entry], dependency: &Entry) -> bool {
    let name = format!("\"dep:{}\"", dependency.key);
    let features = entries.iter().filter(|entry| entry.section == "features");
    let users: Vec<_> = features.filter(|entry| entry.value.contains(&name)).collect();
    let is_optional = dependency.value.replace(' ', "").contains("optional=true");
    is_optional && users.iter().map(|entry| &*entry.key).eq(["cli"])
}

struct Entry {
    section: String,
    key: String,
    value: String,
}

/// `key = value` lines of a manifest, with arrays that go over several lines.
fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = vec![];
    let mut section = String::new();
    let mut is_open = false;
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if is_open {
            let Some(entry) = entries.last_mut() else { break };
            entry.value.push_str(line);
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_matches(['[', ']']).to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            entries.push(Entry { section: section.clone(), key, value });
        }
        let value = entries.last().map(|entry| &*entry.value).unwrap_or_default();
        is_open = value.matches('[').count() > value.matches(']').count();
    }
    entries
}

/// Hosts that packages come from, and folders that only exist where the code was written. They
/// are put together here, so that this file does not contain them.
const PLACES: [&str; 10] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("deb", ".debian.org"),
    concat!("debian", ".org/debian"),
    concat!("rust-lang", ".org/dist"),
    concat!("proxy", ".golang.org"),
    concat!("registry", ".npmjs"),
    concat!("..", "/shared"),
    concat!("/work", "/"),
];

const LOCK_SOURCE: &str = concat!("registry+https://github.com/rust-lang/crates", ".io-index");

pub fn stray_places(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(source) = line.strip_prefix("source = ").filter(|_| is_lock(file)) {
                if source.trim_matches('"') != LOCK_SOURCE {
                    findings.push(file.at(index, "a package from elsewhere"));
                }
            } else if let Some(place) = PLACES.iter().find(|place| line.contains(*place)) {
                findings.push(file.at(index, format_args!("names {place}")));
            }
        }
    }
    findings
}

fn is_lock(file: &File) -> bool {
    file.path == "Cargo.lock" || file.path.ends_with("/Cargo.lock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::expect;

    #[test]
    fn planted_names_are_found() {
        let names = ["docs/a.md", "docs/b.md", "Makefile", "src/a.rs", ".ci/run", "README.md"];
        expect(stray_names(&Tree::planted(&names.map(|name| (name, "")))), 2);
    }

    #[test]
    fn planted_kernels_that_nothing_uses_are_found() {
        let tree = Tree::planted(&[
            ("build.rs", "build(\"asm/x86_64/a.S\", read_dir(\"asm/x86_64\"));\n"),
            ("asm/x86_64/a.S", "#include \"common.h\"\n"),
            ("asm/x86_64/b_avx2.S", ""),
            ("asm/x86_64/gone.S", "// gone.S\nmz_gone:\n"),
            ("asm/common.h", ""),
            ("kernels/c.cl", ""),
            ("kernels/gone.cl", ""),
            ("src/kernel/x86_64.rs", "extern { fn mz_b_avx2(); } // mz_gone, \n"),
            ("src/port/opencl.rs", "include_str!(\"../../kernels/c.cl\");\n"),
            ("README.md", "gone.S and gone.cl\n"),
        ]);
        expect(unused_kernels(&tree), 2);
    }

    const MANIFEST: &str = "[features]\ncli = [\n  \"dep:clap\", # why\n]\nhost = [\"dep:libc\"]\n\
        [dependencies]\nbitflags = \"2\"\nstatic_assertions = \"1\"\nlibc = { optional = true }\n\
        memmap2 = \"0\"\ncore_affinity = \"0\"\nclap = { version = \"4\", optional = true }\n\
        [target.'cfg(loom)'.dependencies]\nloom = \"0.7\"\n\
        [build-dependencies]\ncc = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n";

    #[test]
    fn planted_dependencies_are_found() {
        let findings =
            |text: &str| stray_dependencies(&Tree::planted(&[("Cargo.toml", text)])).len();
        assert_eq!(findings(MANIFEST), 0);
        for (from, to) in [
            ("bitflags = \"2\"\n", "bitflags = \"2\"\nrand = \"1\"\n"),
            ("bitflags = \"2\"\n", ""),
            ("clap = { version = \"4\", optional = true }", "clap = \"4\""),
            ("\"dep:clap\"", "\"infer\""),
            ("[\"dep:libc\"]", "[\"dep:libc\", \"dep:clap\"]"),
            ("cc = \"1\"\n", "cc = \"1\"\nbindgen = \"1\"\n"),
            ("loom = \"0.7\"\n", "loom = \"0.7\"\nrand = \"1\"\n"),
            ("[dev-dependencies]", "[target.x.dependencies]\nrand = \"1\"\n[dev-dependencies]"),
            ("[dev-dependencies]", "[dependencies.rand]\nversion = \"1\"\n[dev-dependencies]"),
        ] {
            assert!(MANIFEST.contains(from));
            assert_eq!(findings(&MANIFEST.replace(from, to)), 1, "{from} -> {to}");
        }
        expect(stray_dependencies(&Tree::planted(&[])), 1);
    }

    #[test]
    fn planted_places_are_found() {
        for place in PLACES {
            let text = format!("first\nsee {place}x\n");
            expect(stray_places(&Tree::planted(&[("tests/run", &text)])), 1);
        }
        let lock = format!("source = \"{LOCK_SOURCE}\"\nsource = \"registry+https://elsewhere\"\n");
        expect(stray_places(&Tree::planted(&[("Cargo.lock", &lock)])), 1);
    }
}
