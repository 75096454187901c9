//! The library's public items, as rustdoc's JSON has them.
//!
//! That format is not stable: rustc gives it to those who ask twice, and `public-api` reads the one
//! that it knows. Where the two do not fit, nothing is checked, and the output says so.

use crate::tools::{ROOT, command, run};
use std::collections::BTreeSet;
use std::path::Path;

/// `None` where this toolchain's format is another one.
pub fn rows() -> Option<BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("api");
    let arguments = ["rustdoc", "--quiet", "--locked", "--offline", "--lib", "--features"];
    let rest = ["infer,opencl", "--", "-Zunstable-options", "--output-format", "json"];
    let mut document = command(env!("CARGO"), &[&arguments[..], &rest].concat(), Path::new(ROOT));
    document.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &folder);
    run(document);
    let built = public_api::Builder::from_rustdoc_json(folder.join("doc/mzcache.json"))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    match built {
        Ok(api) => Some(api.items().map(ToString::to_string).collect()),
        Err(error) => {
            eprintln!("NOT CHECKED: the public Rust items: {error}");
            None
        }
    }
}
