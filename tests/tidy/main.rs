//! Style is a test: the tree is read as text and checked against the house rules.
//!
//! Each rule is a function from a [`Tree`](tree::Tree) to findings. Here the rules meet the real
//! tree; beside each rule a test plants a violation and expects it to be found, so that a rule that
//! went blind does not pass for a clean tree.

mod imports;
mod modules;
mod package;
mod safety;
mod source;
mod text;
mod tree;

use tree::{Findings, Tree};

fn none(rule: fn(&Tree) -> Findings) {
    let findings = rule(&Tree::of_repository());
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn the_tree_is_read() {
    let tree = Tree::of_repository();
    for path in ["Cargo.toml", "src/lib.rs", "src/sync.rs", "tests/tidy/main.rs"] {
        assert!(tree.file(path).is_some(), "{path} is not in the tree");
    }
    assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
}

#[test]
fn lines_have_at_most_100_columns() {
    none(text::long_lines);
}

#[test]
fn functions_have_at_most_70_lines() {
    none(text::long_functions);
}

#[test]
fn files_have_at_most_500_lines() {
    none(text::long_files);
}

#[test]
fn nothing_is_left_to_do() {
    none(text::leftovers);
}

#[test]
fn white_space_is_plain() {
    none(text::stray_white_space);
}

#[test]
fn modules_say_what_they_are() {
    none(text::undocumented_modules);
}

#[test]
fn imports_go_one_way() {
    none(imports::wrong_edges);
}

#[test]
fn modules_of_one_rank_do_not_import_each_other_in_circles() {
    none(imports::circles);
}

#[test]
fn foreign_crates_stay_in_the_ports() {
    none(imports::foreign_crates);
}

#[test]
fn atomics_stay_in_one_file() {
    none(imports::stray_atomics);
}

#[test]
fn unsafe_code_stays_in_its_seams() {
    none(safety::stray_unsafe);
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    none(safety::unexplained_unsafe);
}

#[test]
fn every_source_file_is_compiled() {
    none(modules::dead_files);
}

#[test]
fn every_kernel_file_is_used() {
    none(package::unused_kernels);
}

#[test]
fn the_top_level_holds_what_it_may() {
    none(package::stray_names);
}

#[test]
fn the_library_has_its_six_dependencies_and_no_more() {
    none(package::stray_dependencies);
}

#[test]
fn no_text_names_a_host_or_a_workplace() {
    none(package::stray_places);
}
