//! What users of one version rely on stays until the next one that may break it.
//!
//! Two committed listings say what there is: `linker/abi.txt` of the C interface, with the place of
//! every field, and `tests/fixtures/api.txt` of the public Rust items. What was added is named, and
//! the listings are made anew:
//!
//!   MZ_API=write cargo test --test api
//!
//! What went or changed is refused, there too, unless the version in `Cargo.toml` has risen: before
//! 1.0 the minor one. Of a version that nobody has got yet, delete the listing first.

#![cfg(target_os = "linux")]

mod header;
mod listing;
mod rust;
#[path = "../link/tools.rs"]
mod tools;

use listing::Listing;

#[test]
fn the_c_interface_is_that_of_the_listing() {
    Listing::of_now(header::rows()).check("linker/abi.txt");
}

#[test]
fn the_rust_interface_is_that_of_the_listing() {
    if let Some(rows) = rust::rows() {
        Listing::of_now(rows).check("tests/fixtures/api.txt");
    }
}
