//! A swap file on storage, in the cache directory, where the model with random weights lies too.
//!
//! Its name is always the same and it is locked while it is used: one that a killed process left
//! is written over, one of another bench is not.

use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::place::require_space;
use rustix::fs::{FallocateFlags, fallocate, statfs};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const NAME: &str = "paging.swap";

/// File systems that the kernel does not swap to, by their number (`statfs(2)`).
const REFUSING: [(u32, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x794c_7630, "overlayfs")];

/// The file; removed when dropped.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
    /// Keeps the lock.
    _file: File,
}

impl SwapFile {
    /// Whether there can be one. What other file systems refuse, only swapping to it shows.
    pub fn check(cache: &CacheDir) -> Outcome<()> {
        cache.create()?;
        let root = cache.root();
        let about = |error: rustix::io::Errno| Failure::file("look at", root, &error.into());
        let kind = statfs(root).map_err(about)?.f_type;
        match refusing(u64::try_from(kind).unwrap_or(0)) {
            Some(name) => Err(Failure::new(format!(
                "{} is on {name}, which holds no swap file; choose another --cache-dir",
                root.display()
            ))),
            None => Ok(()),
        }
    }

    /// Makes one of that many bytes, each with its place on storage: the kernel writes to these
    /// places itself.
    pub fn new(cache: &CacheDir, bytes: u64) -> Outcome<SwapFile> {
        let path = cache.root().join(NAME);
        let about = |action: &str, error: io::Error| Failure::file(action, &path, &error);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|error| about("make", error))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                Failure::new(format!("another bench pages to {}", path.display()))
            }
            TryLockError::Error(error) => about("lock", error),
        })?;
        file.set_len(0).map_err(|error| match error.kind() {
            io::ErrorKind::ExecutableFileBusy => Failure::new(format!(
                "a bench that was killed left {0} in use; `swapoff {0}` ends that",
                path.display()
            )),
            _ => about("empty", error),
        })?;
        // From here on dropping it removes it.
        let made = SwapFile { path, _file: file };
        require_space(&made.path, bytes)?;
        let allocated = fallocate(&made._file, FallocateFlags::empty(), 0, bytes);
        allocated.map_err(|error| Failure::file("allocate", &made.path, &error.into()))?;
        Ok(made)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        // One that stays is written over by the next bench.
        let _ = fs::remove_file(&self.path);
    }
}

/// The name of a file system that holds no swap files.
fn refusing(kind: u64) -> Option<&'static str> {
    // A number of 32 bits, with its sign where that is the highest of them.
    let kind = kind & u64::from(u32::MAX);
    REFUSING.into_iter().find(|(number, _)| u64::from(*number) == kind).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn cache() -> (CacheDir, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (CacheDir::find(Some(folder.path().to_path_buf())).unwrap(), folder)
    }

    #[test]
    fn it_has_no_holes_is_private_and_goes() {
        let (cache, folder) = cache();
        let path = folder.path().join(NAME);
        // One that is left is written over, whatever its size.
        fs::write(&path, vec![1; 3 << 20]).unwrap();
        let made = SwapFile::new(&cache, 2 << 20).unwrap();
        assert_eq!(made.path(), path);
        let status = fs::metadata(&path).unwrap();
        assert_eq!(status.len(), 2 << 20);
        assert!(status.blocks() * 512 >= status.len(), "{status:?}");
        drop(made);
        assert!(!path.exists());
        let made = SwapFile::new(&cache, 4096).unwrap();
        assert_eq!(fs::metadata(made.path()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn one_that_is_used_stays() {
        let (cache, _folder) = cache();
        let made = SwapFile::new(&cache, 8192).unwrap();
        let failure = SwapFile::new(&cache, 4096).unwrap_err();
        assert!(failure.message.contains("another bench pages to"), "{failure}");
        assert_eq!(fs::metadata(made.path()).unwrap().len(), 8192);
    }

    #[test]
    fn what_does_not_fit_is_said_and_nothing_is_left() {
        let (cache, folder) = cache();
        let failure = SwapFile::new(&cache, 1 << 60).unwrap_err();
        assert!(failure.message.contains("paging.swap needs"), "{failure}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let nowhere = CacheDir::find(Some(folder.path().join("missing"))).unwrap();
        let failure = SwapFile::new(&nowhere, 4096).unwrap_err();
        assert!(failure.message.contains("missing/paging.swap"), "{failure}");
    }

    #[test]
    fn file_systems_that_hold_none_are_named() {
        assert_eq!(refusing(0x0102_1994), Some("tmpfs"));
        assert_eq!(refusing(0x794c_7630), Some("overlayfs"));
        assert_eq!([0x8584_58f6, 0xffff_ffff_8584_58f6].map(refusing), [Some("ramfs"); 2]);
        // ext4, f2fs.
        assert_eq!([0xef53, 0xf2f5_2010].map(refusing), [None, None]);
    }
}
