//! Where the program keeps its files: one cache directory, `--cache-dir` or `MZCACHE_DIR`, else
//! `mzcache` in the user's cache directory (`XDG_CACHE_HOME`, else `~/.cache`).

use crate::failure::{Failure, Outcome};
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The cache directory; it need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDir {
    root: PathBuf,
}

impl CacheDir {
    /// From the option (or `MZCACHE_DIR`, which the option parser reads), else the environment.
    pub fn find(option: Option<PathBuf>) -> Outcome<Self> {
        Self::choose(option, |name| std::env::var_os(name))
    }

    fn choose(
        option: Option<PathBuf>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Outcome<Self> {
        if let Some(root) = option.filter(|path| !path.as_os_str().is_empty()) {
            return Ok(CacheDir { root });
        }
        // The XDG specification says to ignore relative paths.
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .ok_or_else(|| {
                Failure::new("no cache directory: neither XDG_CACHE_HOME nor HOME is set")
                    .hint("give one with --cache-dir DIR or MZCACHE_DIR")
            })?;
        Ok(CacheDir { root: base.join("mzcache") })
    }

    /// Makes it, readable by its owner only: it will hold contexts.
    pub fn create(&self) -> Outcome<()> {
        create(&self.root)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Synthetic models.
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// The measured rates of this machine.
    pub fn profile(&self) -> PathBuf {
        self.root.join("profile.txt")
    }
}

/// A path as the library's ports take it.
pub fn c_path(path: &Path) -> Outcome<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Failure::new(format!("{}: a path cannot hold a zero byte", path.display())))
}

/// Makes a directory with everything above it.
pub fn create(path: &Path) -> Outcome<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| Failure::file("make the directory", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn choose(option: Option<&str>, variables: &[(&str, &str)]) -> Outcome<CacheDir> {
        let value = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        CacheDir::choose(option.map(PathBuf::from), value)
    }

    #[test]
    fn the_nearest_setting_wins() {
        let all = [("XDG_CACHE_HOME", "/xdg"), ("HOME", "/home/u")];
        assert_eq!(choose(Some("here"), &all).unwrap().root(), Path::new("here"));
        assert_eq!(choose(None, &all).unwrap().root(), Path::new("/xdg/mzcache"));
        assert_eq!(choose(Some(""), &all).unwrap().root(), Path::new("/xdg/mzcache"));
        let root = choose(None, &all[1..]).unwrap();
        assert_eq!(root.root(), Path::new("/home/u/.cache/mzcache"));
        assert_eq!(root.profile(), Path::new("/home/u/.cache/mzcache/profile.txt"));
        assert_eq!(root.models(), Path::new("/home/u/.cache/mzcache/models"));
    }

    #[test]
    fn relative_variables_are_ignored() {
        let relative = [("XDG_CACHE_HOME", "xdg"), ("HOME", "/home/u")];
        assert_eq!(choose(None, &relative).unwrap().root(), Path::new("/home/u/.cache/mzcache"));
        let failure = choose(None, &[("HOME", "home")]).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("--cache-dir")));
    }

    #[test]
    fn paths_without_zero_bytes_pass() {
        assert_eq!(c_path(Path::new("/a b")).unwrap().as_c_str(), c"/a b");
        assert!(c_path(Path::new("a\0b")).is_err());
    }

    #[test]
    fn it_is_made_for_its_owner_only() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        create(&path).unwrap();
        create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, b"x").unwrap();
        let failure = create(&file.join("below")).unwrap_err();
        assert!(failure.message.contains("file/below"), "{failure}");
        assert!(failure.hint.is_some_and(|hint| hint.contains("--cache-dir")));
    }
}
