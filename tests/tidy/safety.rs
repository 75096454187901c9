//! Rules about unsafe code.

use crate::source::{line_of, words};
use crate::tree::{File, Findings, Tree};

const SEAMS: [&str; 4] = ["src/arena", "src/kernel", "src/ffi", "src/port"];

/// Lines of code that may stand between a reason and what it is the reason for.
const CODE_LINES_BETWEEN: usize = 3;

fn is_seam(file: &File) -> bool {
    let in_file = |seam: &str| file.path.strip_suffix(".rs") == Some(seam);
    SEAMS.iter().any(|seam| file.is_under(seam) || in_file(seam))
}

/// Offsets of the word as code; attributes such as `unsafe(no_mangle)` do not count.
fn unsafe_words(file: &File) -> impl Iterator<Item = usize> + '_ {
    let code = &*file.source.code;
    words(code, "unsafe").filter(|at| !code[at + "unsafe".len()..].starts_with('('))
}

pub fn stray_unsafe(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for file in tree.rust().filter(|file| file.is_under("src") && !is_seam(file)) {
        let lines = unsafe_words(file).map(|at| line_of(&file.source.code, at));
        findings.extend(lines.map(|line| file.at(line, "unsafe outside of its seams")));
    }
    findings
}

pub fn unexplained_unsafe(tree: &Tree) -> Findings {
    let mut findings = vec![];
    for file in tree.rust() {
        for at in unsafe_words(file) {
            let line = line_of(&file.source.code, at);
            let is_explained = match form(&file.source.code[at..]) {
                Form::Here => is_commented(file, line),
                Form::Declared => is_documented(file, line) || is_in_trait_impl(file, line),
                Form::Elsewhere => true,
            };
            if !is_explained {
                findings.push(file.at(line, "unsafe without a SAFETY comment or # Safety doc"));
            }
        }
    }
    findings
}

enum Form {
    /// A block or an impl: somebody vouches for it here.
    Here,
    /// A function or trait: callers or implementers must vouch.
    Declared,
    /// The type of a function pointer, or foreign declarations: the calls give the reasons.
    Elsewhere,
}

fn form(code: &str) -> Form {
    let mut rest = code["unsafe".len()..].trim_start();
    if let Some(foreign) = rest.strip_prefix("extern") {
        rest = foreign.trim_start();
        if !rest.starts_with("fn") {
            return Form::Elsewhere;
        }
    }
    match rest.strip_prefix("fn") {
        Some(behind) if behind.starts_with('(') => Form::Elsewhere,
        Some(_) => Form::Declared,
        None if rest.starts_with("trait") => Form::Declared,
        None => Form::Here,
    }
}

/// A SAFETY comment in the same line or above, with few lines of code in between.
fn is_commented(file: &File, line: usize) -> bool {
    let comments: Vec<_> = file.source.comments.lines().collect();
    let code: Vec<_> = file.source.code.lines().collect();
    let mut code_lines = 0;
    for at in (0..=line).rev() {
        if comments[at].contains("SAFETY:") {
            return true;
        }
        code_lines += usize::from(at < line && !code[at].trim().is_empty());
        if code_lines > CODE_LINES_BETWEEN {
            return false;
        }
    }
    false
}

/// A `# Safety` section, or a SAFETY comment, in the comments and attributes directly above.
fn is_documented(file: &File, line: usize) -> bool {
    let lines: Vec<_> = file.text.lines().collect();
    let above = lines[..line].iter().rev().map(|line| line.trim());
    let mut attached = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
    attached.any(|line| line.contains("# Safety") || line.contains("SAFETY:"))
}

/// Whether a function implements a trait's, whose doc then holds.
fn is_in_trait_impl(file: &File, line: usize) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<_> = file.source.code.lines().collect();
    let outer = |above: &&&str| !above.trim().is_empty() && indent(above) < indent(lines[line]);
    let Some(outer) = lines[..line].iter().rev().find(outer) else { return false };
    words(outer, "impl").next().is_some() && words(outer, "for").next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::expect;

    #[test]
    fn planted_unsafe_code_outside_of_the_seams_is_found() {
        let text = "// SAFETY: none.\nunsafe { a() }\n";
        for path in ["src/swap/file.rs", "src/portable.rs", "src/bin/a/main.rs", "src/lib.rs"] {
            expect(stray_unsafe(&Tree::planted(&[(path, text)])), 1);
        }
        for path in ["src/port/linux.rs", "src/kernel.rs", "tests/kernels.rs"] {
            expect(stray_unsafe(&Tree::planted(&[(path, text)])), 0);
        }
        let harmless = "#![deny(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";\n";
        expect(stray_unsafe(&Tree::planted(&[("src/lib.rs", harmless)])), 0);
    }

    #[test]
    fn planted_unsafe_code_without_a_reason_is_found() {
        for text in [
            "fn a() {\n    unsafe { b() }\n}\n",
            "// SAFETY: too far away.\n1;\n2;\n3;\n4;\nunsafe { b() }\n",
            "unsafe impl Send for A {}\n",
            "/// Doc.\npub unsafe fn a() {}\n",
            "/// # Safety\n\npub unsafe fn a() {}\n",
            "/// Doc.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn a() {}\n",
            "/// Doc.\npub unsafe trait A {}\n",
            "impl A {\n    unsafe fn a() {}\n}\n",
        ] {
            expect(unexplained_unsafe(&Tree::planted(&[("src/port/a.rs", text)])), 1);
        }
    }

    #[test]
    fn reasons_are_seen() {
        for text in [
            "// SAFETY: checked.\nlet a =\n    unsafe { b() };\n",
            "// SAFETY: a long\n// story\n// of\n// five\n// lines.\nunsafe impl Send for A {}\n",
            "/// # Safety\n///\n/// Call it once.\n#[inline]\npub unsafe fn a() {}\n",
            "unsafe extern \"C\" {\n    fn a();\n}\n",
            "// SAFETY: yes.\nunsafe impl A for B {\n\n    unsafe fn a() {}\n}\n",
            "struct A { a: unsafe extern \"C\" fn(u8), b: unsafe fn(u8) }\n",
        ] {
            expect(unexplained_unsafe(&Tree::planted(&[("src/port/a.rs", text)])), 0);
        }
    }
}
