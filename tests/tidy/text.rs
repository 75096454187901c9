//! Rules about lines, functions, files and words.

use crate::modules;
use crate::source::{end_of_block, is_word, line_of, words};
use crate::tree::{File, Findings, Tree};

const COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;

const SCRIPTS: [&str; 3] = ["tests/run", "tests/mca", ".ci/run"];

fn is_fixture(file: &File) -> bool {
    file.is_under("tests/fixtures") || file.is_under("fuzz/corpus")
}

fn is_program_text(file: &File) -> bool {
    let extensions = ["rs", "c", "h", "cl", "S", "toml", "sh", "ld", "map"];
    let by_name = file.has_extension(&extensions) || SCRIPTS.contains(&&*file.path);
    by_name && !is_fixture(file)
}

/// Strings in TOML cannot be broken, so manifests are left out.
pub fn long_lines(tree: &Tree) -> Findings {
    let mut findings = vec![];
    let measured = |file: &&File| is_program_text(file) && !file.has_extension(&["toml"]);
    for file in tree.files.iter().filter(measured) {
        for (index, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                findings.push(file.at(index, format_args!("{columns} columns")));
            }
        }
    }
    findings
}

pub fn long_files(tree: &Tree) -> Findings {
    let measured = |file: &&File| file.has_extension(&["rs", "c", "cl"]) && !is_fixture(file);
    let lines = |file: &File| file.text.lines().count();
    let long = tree.files.iter().filter(measured).filter(|file| lines(file) > FILE_LINES_MAX);
    long.map(|file| file.at(0, format_args!("{} lines", lines(file)))).collect()
}

pub fn long_functions(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for file in tree.files.iter().filter(|file| !is_fixture(file)) {
        let functions = match () {
            () if file.is_rust() => rust_functions(&file.source.code),
            () if file.has_extension(&["c", "cl"]) => c_functions(&file.text),
            () => vec![],
        };
        for (line, lines) in functions {
            if lines > FUNCTION_LINES_MAX {
                findings.push(file.at(line, format_args!("a function of {lines} lines")));
            }
        }
    }
    findings
}

/// First line and number of lines of each function that has a body.
fn rust_functions(code: &str) -> Vec<(usize, usize)> {
    let mut functions = vec![];
    for at in words(code, "fn") {
        let name = code[at + 2..].trim_start();
        if !name.starts_with(|c: char| is_word(c)) {
            continue; // A function pointer's type.
        }
        let mut depth = 0;
        let is_body = |c: char| {
            depth += i32::from("([".contains(c)) - i32::from(")]".contains(c));
            depth == 0 && (c == '{' || c == ';')
        };
        let Some(body) = code[at..].find(is_body).map(|body| at + body) else { continue };
        if code[body..].starts_with('{') {
            let end = end_of_block(code, body, '{', '}');
            let (first, last) = (line_of(code, at), line_of(code, end));
            functions.push((first, last - first + 1));
        }
    }
    functions
}

/// The same for C, where a body begins and ends in a line of its own or behind the parameters.
fn c_functions(text: &str) -> Vec<(usize, usize)> {
    let mut functions = vec![];
    let mut start = None;
    for (index, line) in text.lines().enumerate() {
        let opens = line == "{" || (line.ends_with('{') && line.contains(')'));
        if opens && !line.starts_with([' ', '\t', '}']) {
            start.get_or_insert(index);
        }
        if line.starts_with('}')
            && let Some(first) = start.take()
        {
            functions.push((first, index - first + 1));
        }
    }
    functions
}

const LATER: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

pub fn leftovers(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for file in &tree.files {
        let prose = if file.is_rust() { &file.source.comments } else { &file.text };
        if is_program_text(file) || file.has_extension(&["md"]) {
            for word in LATER {
                let at = words(prose, word).map(|at| file.at(line_of(prose, at), word));
                findings.extend(at);
            }
        }
        let code = &file.source.code;
        for name in ["todo", "unimplemented", "dbg"] {
            let calls = words(code, name).filter(|at| code[at + name.len()..].starts_with('!'));
            findings.extend(calls.map(|at| file.at(line_of(code, at), format_args!("{name}!"))));
        }
        for (at, _) in code.match_indices("#[ignore") {
            // A child process that other tests start is run, only not by name.
            if file.text[at..].starts_with("#[ignore = \"started by") {
                continue;
            }
            findings.push(file.at(line_of(code, at), "an ignored test"));
        }
        for at in ["allow", "expect"].into_iter().flat_map(|name| words(code, name)) {
            let list = &code[at..end_of_block(code, at, '(', ')')];
            let opens = code[at..].trim_start_matches(is_word).starts_with('(');
            if opens && words(list, "dead_code").next().is_some() {
                findings.push(file.at(line_of(code, at), "dead code is allowed"));
            }
        }
    }
    findings
}

pub fn stray_white_space(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for file in tree.files.iter().filter(|file| is_program_text(file)) {
        for (index, line) in file.text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                findings.push(file.at(index, "white space at the end"));
            }
            if file.is_rust() && line.contains('\t') {
                findings.push(file.at(index, "a tab"));
            }
        }
        if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
            findings.push(file.at(file.text.lines().count(), "no single newline at the end"));
        }
    }
    findings
}

/// Modules begin with their doc; test modules may do without.
pub fn undocumented_modules(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for module in modules::of(tree).into_iter().filter(|module| !module.is_test) {
        if !module.file.text.starts_with("//! ") {
            findings.push(module.file.at(0, "does not begin with a //! doc"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::expect;

    #[test]
    fn planted_long_lines_are_found() {
        let line = |columns| format!("{}\n", "é".repeat(columns));
        let files = [("src/a.rs", &*line(101)), ("asm/b.S", &line(100)), ("README.md", &line(500))];
        expect(long_lines(&Tree::planted(&files)), 1);
        expect(long_lines(&Tree::planted(&[("tests/run", &line(101))])), 1);
    }

    #[test]
    fn planted_long_files_are_found() {
        let text = "\n".repeat(501);
        let files = [("kernels/a.cl", &*text), ("src/b.rs", &text[1..]), ("asm/c.S", &text)];
        expect(long_files(&Tree::planted(&files)), 1);
        expect(long_files(&Tree::planted(&[("tests/fixtures/a.c", &text)])), 0);
    }

    #[test]
    fn planted_long_functions_are_found() {
        let body = |lines: usize| "    a();\n".repeat(lines - 2);
        let rust =
            |lines| format!("impl A {{\n    fn b(&self) -> [u8; 3] {{\n{}}}}}\n", body(lines));
        let c = |lines: usize| format!("int a(\n    int b)\n{{\n{}}}\n", body(lines));
        for (lines, count) in [(70, 0), (71, 1)] {
            let tree = Tree::planted(&[("src/a.rs", &rust(lines)), ("tests/c/b.c", &c(lines))]);
            expect(long_functions(&tree), 2 * count);
        }
        let declared =
            format!("trait A {{\n    fn a();\n    type B: fn(u8);\n{}}}\n", "\n".repeat(90));
        expect(long_functions(&Tree::planted(&[("src/a.rs", &declared)])), 0);
    }

    #[test]
    fn planted_leftovers_are_found() {
        for text in [
            format!("// {} later\n", LATER[0]),
            format!("/* {}: later */\n", LATER[1]),
            format!("/// {}\n", LATER[2]),
            "fn a() { todo!() }\n".into(),
            "fn a() { unimplemented!(\"b\") }\n".into(),
            "fn a() { dbg!(1); }\n".into(),
            "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n".into(),
            "#[allow(unused, dead_code)]\nfn a() {}\n".into(),
            "#![expect(dead_code)]\n".into(),
        ] {
            expect(leftovers(&Tree::planted(&[("src/a.rs", &text)])), 1);
        }
        let word = format!("# {}\n", LATER[0]);
        expect(leftovers(&Tree::planted(&[("tests/run", &word), ("README.md", &word)])), 2);
        let harmless = "fn a() { b(\"todo!\").expect(\"dead_code\"); mktemp(XXXXXX) } // to do\n";
        expect(leftovers(&Tree::planted(&[("src/a.rs", harmless)])), 0);
    }

    #[test]
    fn planted_white_space_is_found() {
        for text in ["a \n", "a\r\n", "\ta\n", "a", "a\n\n"] {
            expect(stray_white_space(&Tree::planted(&[("src/a.rs", text)])), 1);
        }
        expect(stray_white_space(&Tree::planted(&[("asm/a.S", "\tret\n"), ("src/a.rs", "")])), 0);
    }

    #[test]
    fn planted_modules_without_a_doc_are_found() {
        let lib = "//! Map.\npub mod a;\nmod b;\n#[cfg(test)]\nmod c;\n";
        let tree = Tree::planted(&[
            ("src/lib.rs", lib),
            ("src/a.rs", "// A.\n"),
            ("src/b/mod.rs", "\n//! B.\n"),
            ("src/c.rs", "fn c() {}\n"),
        ]);
        expect(undocumented_modules(&tree), 2);
    }
}
