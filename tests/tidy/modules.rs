//! Which source files the compiler reaches, as which modules, and which of them only in tests.

use crate::source::{is_for_tests, is_word, line_of, words};
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
        let candidates = candidates(module.file, at, &name);
        if let Some(file) = candidates.iter().find_map(|path| tree.file(path)) {
            let path = module.path.iter().cloned().chain([name]).collect();
            let is_test = module.is_test || is_for_tests(code, at);
            children.push(Module { file, path, is_test });
        }
    }
    children
}

/// Where the compiler looks for `mod name;`.
fn candidates(file: &File, at: usize, name: &str) -> Vec<String> {
    let (folder, base) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    if let Some(path) = path_attribute(file, at) {
        return vec![format!("{folder}/{path}")];
    }
    let owns_folder = ["mod.rs", "lib.rs", "main.rs"].contains(&base) || is_root(&file.path);
    let folder = match owns_folder {
        true => folder.to_owned(),
        false => format!("{folder}/{}", base.trim_end_matches(".rs")),
    };
    vec![format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
}

/// The string of a `#[path = "..."]` in the line above a declaration, or two lines above.
fn path_attribute(file: &File, at: usize) -> Option<&str> {
    let line = line_of(&file.source.code, at);
    let above = file.text.lines().take(line).skip(line.saturating_sub(2));
    let attribute = above.filter_map(|line| line.trim().strip_prefix("#[path")).last()?;
    attribute.split('"').nth(1)
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
            ("src/b/mod.rs", "// mod gone;\n"),
            ("src/heap.rs", ""),
            ("src/bin/x/main.rs", "mod e;\n"),
            ("src/bin/x/e.rs", ""),
        ]);
        expect(dead_files(&tree), 0);
        let modules = of(&tree);
        let tests: Vec<_> =
            modules.iter().filter(|m| m.is_test).map(|m| m.path.join("::")).collect();
        assert_eq!(tests, ["heap", "a::tests", "a::tests::deep"]);
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
