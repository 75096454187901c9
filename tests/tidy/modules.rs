//! Which source files the compiler reaches, as which modules, and which of them only in tests.

use crate::source::{is_for_tests, is_word, line_of, start_of_item, words};
use crate::tree::{File, Findings, Tree};

pub struct Module<'a> {
    pub file: &'a File,
    /// Names from the crate's root, which has none.
    pub path: Vec<String>,
    /// Whether it is compiled for unit tests only.
    pub is_test: bool,
}

/// All modules under src that are reached from the library's root and the programs'.
pub fn of(tree: &Tree) -> Vec<Module<'_>> {
    let mut modules: Vec<Module<'_>> = vec![];
    for file in tree.files.iter().filter(|file| is_root(&file.path)) {
        modules.push(Module { file, path: vec![], is_test: false });
    }
    let mut at = 0;
    while at < modules.len() {
        let children = children(tree, &modules[at]);
        modules.extend(children);
        at += 1;
    }
    modules
}

fn is_root(path: &str) -> bool {
    let program = path.strip_prefix("src/bin/");
    let is_program = program.is_some_and(|rest| !rest.contains('/') || rest.ends_with("/main.rs"));
    path == "src/lib.rs" || path == "src/main.rs" || (is_program && path.ends_with(".rs"))
}

fn children<'a>(tree: &'a Tree, module: &Module<'a>) -> Vec<Module<'a>> {
    let mut children = vec![];
    let code = &module.file.source.code;
    for at in words(code, "mod") {
        let rest = code[at + 3..].trim_start();
        let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
        if name.is_empty() || !rest[name.len()..].trim_start().starts_with(';') {
            continue;
        }
        let path: Vec<_> = module.path.iter().cloned().chain([name.clone()]).collect();
        let is_test = module.is_test || is_for_tests(code, at);
        let candidates = candidates(module.file, at, &name);
        for file in candidates.iter().filter_map(|path| tree.file(path)) {
            children.push(Module { file, path: path.clone(), is_test });
        }
    }
    children
}

/// Where the compiler looks for `mod name;`.
fn candidates(file: &File, at: usize, name: &str) -> Vec<String> {
    let (folder, base) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let by_attribute = path_attributes(file, at);
    if !by_attribute.is_empty() {
        return by_attribute.iter().map(|path| joined(folder, path)).collect();
    }
    let owns_folder = ["mod.rs", "lib.rs", "main.rs"].contains(&base) || is_root(&file.path);
    let folder = match owns_folder {
        true => folder.to_owned(),
        false => format!("{folder}/{}", base.trim_end_matches(".rs")),
    };
    vec![format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
}

/// The strings of `path = "..."` in a declaration's attributes; conditions may choose among them.
fn path_attributes(file: &File, at: usize) -> Vec<&str> {
    let code = &file.source.code;
    let first = line_of(code, start_of_item(code, at));
    let lines = file.text.lines().take(line_of(code, at)).skip(first);
    lines.filter_map(|line| line.split_once("path = \"")?.1.split('"').next()).collect()
}

/// A path from a folder, without `..` in between.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<_> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Files under src that no `mod` declaration leads to.
pub fn dead_files(tree: &Tree) -> Findings {
    let reached = of(tree);
    let is_dead = |file: &&File| {
        let is_reached = reached.iter().any(|module| module.file.path == file.path);
        file.is_under("src") && !is_reached
    };
    tree.rust().filter(is_dead).map(|file| file.at(0, "no mod declaration leads here")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::expect;

    #[test]
    fn modules_are_found_where_the_compiler_finds_them() {
        let tree = Tree::planted(&[
            ("src/lib.rs", "pub mod a;\nmod b;\n#[cfg(test)]\npub mod heap;\n"),
            ("src/a.rs", "mod c;\n#[cfg(test)]\nmod tests;\n"),
            ("src/a/c.rs", "#[path = \"other.rs\"]\nmod d;\nmod inline {}\n"),
            ("src/a/other.rs", ""),
            ("src/a/tests.rs", "mod deep;\n"),
            ("src/a/tests/deep.rs", ""),
            (
                "src/b/mod.rs",
                "// mod gone;\n#[cfg_attr(x, path = \"x.rs\")]\n#[cfg_attr(\n    \
                any(y),\n    path = \"y.rs\"\n)]\nmod arch;\n",
            ),
            ("src/b/x.rs", ""),
            (
                "src/b/y.rs",
                "#[cfg(test)]\n#[path = \"../../tests/help.rs\"]\npub(crate) mod help;\n",
            ),
            ("tests/help.rs", ""),
            ("src/heap.rs", ""),
            ("src/bin/x/main.rs", "mod e;\n"),
            ("src/bin/x/e.rs", ""),
        ]);
        expect(dead_files(&tree), 0);
        let modules = of(&tree);
        let tests: Vec<_> =
            modules.iter().filter(|m| m.is_test).map(|m| m.path.join("::")).collect();
        assert_eq!(tests, ["heap", "a::tests", "a::tests::deep", "b::arch::help"]);
        assert!(modules.iter().any(|module| module.path == ["a", "c", "d"]));
    }

    #[test]
    fn planted_dead_files_are_found() {
        let tree = Tree::planted(&[
            ("src/lib.rs", "pub mod a;\n// mod b;\n"),
            ("src/a.rs", ""),
            ("src/b.rs", ""),
            ("src/a/c.rs", ""),
            ("src/bin/x/e.rs", ""),
            ("tests/c.rs", ""),
        ]);
        expect(dead_files(&tree), 3);
    }
}
