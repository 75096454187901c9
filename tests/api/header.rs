//! `linker/mzcache.h` as rows: every constant with its value, every field with its place, every
//! function with its types. The compiler says the numbers, for 64-bit machines.
//!
//! Tables that begin with `struct_bytes` may grow at their ends, so their size is no promise; that
//! of others is.

use crate::tools::{Folder, command, run};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

const HEADER: &str = include_str!("../../linker/mzcache.h");

#[derive(Debug, Default, PartialEq)]
struct Declared {
    /// Rows that need no numbers.
    rows: BTreeSet<String>,
    constants: Vec<String>,
    structs: Vec<(String, Vec<Field>)>,
}

#[derive(Debug, PartialEq)]
struct Field {
    name: String,
    kind: String,
}

/// The text without comments, C++ and line ends, and its macros.
fn strip(text: &str) -> (String, Vec<&str>) {
    let (mut code, mut macros) = (String::new(), vec![]);
    for line in text.lines().filter(|line| !line.contains("extern \"C\"")) {
        match line.strip_prefix("#define ") {
            Some(definition) => macros.push(definition),
            None if line.starts_with('#') => {}
            None => {
                let line = line.split("//").next().unwrap_or_default().trim();
                code += line;
                code.push(' ');
            }
        }
    }
    (code, macros)
}

/// Words and signs of a declaration.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = vec![];
    let mut is_word = false;
    for letter in text.chars() {
        let continues = letter.is_ascii_alphanumeric() || letter == '_';
        match tokens.last_mut() {
            Some(word) if continues && is_word => word.push(letter),
            _ if letter.is_whitespace() => {}
            _ => tokens.push(letter.to_string()),
        }
        is_word = continues;
    }
    tokens
}

/// A type or a list of arguments without the names, which are nobody's promise.
fn types(text: &str) -> String {
    let tokens = tokens(text);
    let is_word = |token: &String| token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let mut out = String::new();
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|index| tokens.get(index));
        let names = before.is_some_and(|token| is_word(token) || token == "*");
        let ends = tokens.get(index + 1).is_none_or(|next| [",", ")", "["].contains(&&**next));
        if is_word(token) && names && ends {
            continue;
        }
        if is_word(token) && before.is_some_and(|token| is_word(token) || token == ",") {
            out.push(' ');
        }
        out += token;
    }
    out
}

/// `int64_t (*read)(void *context)` or `char what[64]`.
fn field(text: &str) -> Field {
    let end = text.find([')', '[']).filter(|_| text.contains("(*") || text.contains('['));
    let name = tokens(&text[..end.unwrap_or(text.len())]).pop().unwrap();
    Field { name, kind: types(text) }
}

/// The pieces between semicolons that are in no braces.
fn items(code: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (vec![], 0, 0);
    for (at, letter) in code.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ';' if depth == 0 => {
                items.push(code[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    assert!(code[start..].trim().is_empty(), "{}", &code[start..]);
    items
}

fn parse(text: &str) -> Declared {
    let (code, macros) = strip(text);
    let mut declared = Declared::default();
    for definition in macros {
        match definition.split_once(' ') {
            Some((name, _)) if name.contains('(') => {
                declared.rows.insert(format!("macro {definition}"));
            }
            Some((name, _)) => declared.constants.push(name.to_owned()),
            None => {}
        }
    }
    for item in items(&code) {
        let braced = item.split_once('{').map(|(head, body)| {
            let (body, name) = body.rsplit_once('}').unwrap();
            (head.trim(), body, name.trim().to_owned())
        });
        match (braced, item.strip_prefix("typedef ")) {
            (Some((head, body, _)), _) if head.starts_with("typedef enum") => {
                let names = body.split(',').filter_map(|line| line.split_once('='));
                declared.constants.extend(names.map(|(name, _)| name.trim().to_owned()));
            }
            (Some((_, body, name)), _) => {
                let fields = body.split(';').map(str::trim).filter(|line| !line.is_empty());
                declared.structs.push((name, fields.map(field).collect()));
            }
            (None, Some(typedef)) if typedef.starts_with("struct") => {
                declared.rows.insert(format!("type {}", tokens(typedef).pop().unwrap()));
            }
            (None, Some(typedef)) => {
                let callback = field(typedef);
                declared.rows.insert(format!("type {}: {}", callback.name, callback.kind));
            }
            (None, None) => {
                declared.rows.insert(format!("function {}", types(item)));
            }
        }
    }
    declared
}

/// A program that prints the rows that need numbers.
fn program(declared: &Declared) -> String {
    let mut out = "#include \"mzcache.h\"\n#include <stdio.h>\nint main(void)\n{\n".to_owned();
    for name in &declared.constants {
        writeln!(out, "printf(\"constant {name} %lld\\n\", (long long)({name}));").unwrap();
    }
    for (name, fields) in &declared.structs {
        match fields[0].name == "struct_bytes" {
            true => writeln!(out, "printf(\"struct {name} grows\\n\");").unwrap(),
            false => {
                let size = format!("sizeof(struct {name})");
                writeln!(out, "printf(\"struct {name} of %zu bytes\\n\", {size});").unwrap();
            }
        }
        for Field { name: field, kind } in fields {
            let place = format!("offsetof(struct {name}, {field})");
            writeln!(out, "printf(\"field {name}.{field} at %zu: {kind}\\n\", {place});").unwrap();
        }
    }
    out + "return 0;\n}\n"
}

pub fn rows() -> BTreeSet<String> {
    let declared = parse(HEADER);
    let folder = Folder::new();
    fs::write(folder.0.join("mzcache.h"), HEADER).unwrap();
    fs::write(folder.0.join("rows.c"), program(&declared)).unwrap();
    let program = folder.path("rows");
    run(command("gcc", &["-std=c11", "-Wall", "-Werror", "rows.c", "-o", &program], &folder.0));
    let printed = run(command(&program, &[], &folder.0));
    declared.rows.into_iter().chain(printed.lines().map(str::to_owned)).collect()
}

#[test]
fn names_are_no_part_of_a_type() {
    let function = "int mz_open(const struct mz_config *config, void *memory, size_t bytes)";
    assert_eq!(types(function), "int mz_open(const struct mz_config*, void*, size_t)");
    assert_eq!(types("void **table"), "void**");
    let callback =
        field("int64_t (*spawn)(void *context, void (*run)(void *argument), uint64_t id)");
    assert_eq!(callback.name, "spawn");
    assert_eq!(callback.kind, "int64_t(*)(void*, void(*)(void*), uint64_t)");
    let text = field("char what[64]");
    assert_eq!((&*text.name, &*text.kind), ("what", "char[64]"));
    assert_eq!(types("const char *mz_version(void)"), "const char*mz_version(void)");
}

#[test]
fn all_kinds_of_items_are_found() {
    let text = "#define MZ_H\n#define MZ_OK 0\n#define MZ_P(n) (-(n))\n// A comment; with {.\n\
        typedef enum mz_e {\n    MZ_A = -1, // one\n} mz_e;\ntypedef struct mz_o mz_o;\n\
        typedef struct mz_s {\n    uint32_t struct_bytes;\n    char what[64];\n} mz_s;\n\
        typedef int (*mz_f)(void *context);\nint mz_g(struct mz_s *s,\n         int n);\n";
    let declared = parse(text);
    assert_eq!(declared.constants, ["MZ_OK", "MZ_A"]);
    assert_eq!(declared.structs.len(), 1);
    assert_eq!(declared.structs[0].1.len(), 2);
    let rows = [
        "function int mz_g(struct mz_s*, int)",
        "macro MZ_P(n) (-(n))",
        "type mz_f: int(*)(void*)",
        "type mz_o",
    ];
    assert!(declared.rows.iter().eq(rows), "{:?}", declared.rows);
}
