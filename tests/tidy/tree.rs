//! The files of the repository, or of a test's own making.

use crate::source::Source;
use std::fs;
use std::path::Path;
use std::process::Command;

/// `path:line: what is wrong`, one each.
pub type Findings = Vec<String>;

pub struct File {
    /// From the repository's root, with `/`.
    pub path: String,
    /// The whole text; empty for files that are not text.
    pub text: String,
    /// The same, taken apart; for Rust only.
    pub source: Source,
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let source = if path.ends_with(".rs") { Source::new(&text) } else { Source::default() };
        File { path: path.into(), text, source }
    }

    pub fn has_extension(&self, extensions: &[&str]) -> bool {
        let extension = Path::new(&self.path).extension().and_then(|name| name.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    }

    pub fn is_rust(&self) -> bool {
        self.has_extension(&["rs"])
    }

    pub fn is_under(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// A finding in a line that counts from 0.
    pub fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }
}

pub struct Tree {
    pub files: Vec<File>,
}

impl Tree {
    /// What git tracks or would track; without git, what lies in the folder.
    pub fn of_repository() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let paths = from_git(root).unwrap_or_else(|| from_folder(root));
        let files = paths.iter().filter_map(|path| {
            let bytes = fs::read(root.join(path)).ok()?;
            Some(File::new(path, String::from_utf8(bytes).unwrap_or_default()))
        });
        Tree { files: files.collect() }
    }

    /// A tree for a rule's own test.
    pub fn planted(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File::new(path, (*text).into()));
        Tree { files: files.collect() }
    }

    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }
}

fn from_git(root: &Path) -> Option<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let mut names: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names.dedup();
    (output.status.success() && !names.is_empty()).then_some(names)
}

fn from_folder(root: &Path) -> Vec<String> {
    let mut names = vec![];
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if [".git", "target", "models", "fuzz/target", "fuzz/artifacts"].contains(&&*name) {
                continue;
            }
            if path.is_dir() { folders.push(path) } else { names.push(name) }
        }
    }
    names.sort();
    names
}

/// That a rule finds exactly as many violations as were planted.
#[cfg(test)]
pub fn expect(findings: Findings, count: usize) {
    assert_eq!(findings.len(), count, "{findings:#?}");
}

#[test]
fn both_ways_to_list_the_tree_find_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_folder = from_folder(root);
    for path in from_git(root).unwrap_or_default() {
        let exists = root.join(&path).exists();
        assert!(!exists || in_folder.contains(&path), "{path} is missed without git");
    }
    assert!(in_folder.contains(&"src/lib.rs".into()));
}
