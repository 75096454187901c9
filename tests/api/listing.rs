//! Rows of which each is a promise, and the version that made it.

use crate::tools::ROOT;
use std::collections::BTreeSet;
use std::fs;

#[derive(Debug, PartialEq)]
pub struct Listing {
    version: String,
    rows: BTreeSet<String>,
}

/// The part of a version that must rise when something breaks.
fn breaking_part(version: &str) -> String {
    let parts = if version.starts_with("0.") { 2 } else { 1 };
    version.split('.').take(parts).collect::<Vec<_>>().join(".")
}

impl Listing {
    pub fn of_now(rows: BTreeSet<String>) -> Listing {
        Listing { version: breaking_part(env!("CARGO_PKG_VERSION")), rows }
    }

    fn read(text: &str) -> Listing {
        // Attributes of Rust's items begin so too, without the space.
        let mut lines = text.lines().filter(|line| !line.starts_with("# "));
        let version = lines.next().and_then(|line| line.strip_prefix("version "));
        Listing { version: version.unwrap().to_owned(), rows: lines.map(str::to_owned).collect() }
    }

    fn text(&self) -> String {
        let head = "# Made and compared by tests/api, which says how.";
        let rows: Vec<&str> = self.rows.iter().map(String::as_str).collect();
        format!("{head}\nversion {}\n{}\n", self.version, rows.join("\n"))
    }

    /// What went since `kept`, if that is not allowed; else what came.
    fn since<'a>(&'a self, kept: &'a Listing) -> Result<Vec<&'a str>, Vec<String>> {
        let gone: Vec<String> = kept.rows.difference(&self.rows).cloned().collect();
        match gone.is_empty() || self.version != kept.version {
            true => Ok(self.rows.difference(&kept.rows).map(String::as_str).collect()),
            false => Err(gone),
        }
    }

    /// Compares with the committed one, or makes that anew.
    pub fn check(&self, path: &str) {
        let place = format!("{ROOT}/{path}");
        let writes = std::env::var("MZ_API").is_ok_and(|value| value == "write");
        match fs::read_to_string(&place).map(|text| Listing::read(&text)) {
            Err(_) => assert!(writes, "{path} is missing"),
            Ok(kept) => match self.since(&kept) {
                Err(gone) => panic!(
                    "{path}: gone or changed without a new version, {} being that of the listing:\
                     \n{}",
                    kept.version,
                    gone.join("\n")
                ),
                Ok(new) => assert!(
                    writes || (new.is_empty() && *self == kept),
                    "{path}: make it anew, as tests/api/main.rs says; new:\n{}",
                    new.join("\n")
                ),
            },
        }
        if writes {
            fs::write(place, self.text()).unwrap();
        }
    }
}

fn listing(version: &str, rows: &[&str]) -> Listing {
    Listing { version: version.to_owned(), rows: rows.iter().map(|row| row.to_string()).collect() }
}

#[test]
fn what_came_is_allowed_and_what_went_is_not() {
    let kept = listing("0.1", &["#[repr(C)] a 1", "b 2"]);
    assert_eq!(listing("0.1", &["#[repr(C)] a 1", "b 2", "c 3"]).since(&kept), Ok(vec!["c 3"]));
    assert_eq!(listing("0.1", &["#[repr(C)] a 1"]).since(&kept), Err(vec!["b 2".to_owned()]));
    assert_eq!(
        listing("0.1", &["#[repr(C)] a 1", "b 3"]).since(&kept),
        Err(vec!["b 2".to_owned()])
    );
    assert_eq!(listing("0.2", &["b 2"]).since(&kept), Ok(vec![]));
    assert_eq!(Listing::read(&kept.text()), kept);
}

#[test]
fn before_the_first_version_minor_ones_may_break() {
    assert_eq!(
        ["0.1.0", "0.10.2", "1.2.3", "12.0.0"].map(breaking_part),
        ["0.1", "0.10", "1", "12"]
    );
}
