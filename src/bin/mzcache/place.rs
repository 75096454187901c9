//! Writes a file whole or not at all.
//!
//! The bytes go to `NAME.part` beside the target, are synced, and only then take the target's
//! name. `NAME.part` is locked while it is written: a second process waits, and one left behind by
//! a kill is found unlocked and written anew. On any error it is removed.

use crate::amount::Size;
use crate::failure::{Failure, Outcome};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    Written,
    /// Another process finished the same file while this one waited for it.
    AlreadyThere,
}

/// Writes `target` by `fill`. `bytes` is what it will take (checked against free space first);
/// `is_done` says, once this process holds the lock, whether the target is there already.
pub fn place(
    target: &Path,
    bytes: u64,
    is_done: impl Fn() -> bool,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Outcome<Placed> {
    // A device, a link or a directory of that name must not be replaced by a file.
    if fs::symlink_metadata(target).is_ok_and(|known| !known.is_file()) {
        return Err(Failure::new(format!("{} is not a regular file", target.display()))
            .hint("give the path of a file that mzcache may write"));
    }
    let mut part = Part::open(target)?;
    if is_done() {
        return Ok(Placed::AlreadyThere);
    }
    part.file.set_len(0).map_err(|error| Failure::file("write", &part.path, &error))?;
    require_space(&part.path, bytes)?;
    let written = fill(&mut part.file).and_then(|()| part.file.sync_all());
    written.map_err(|error| Failure::file("write", target, &error))?;
    fs::rename(&part.path, target).map_err(|error| Failure::file("write", target, &error))?;
    part.is_placed = true;
    sync_directory(target)?;
    Ok(Placed::Written)
}

struct Part {
    path: PathBuf,
    file: File,
    is_placed: bool,
}

impl Part {
    /// Opens and locks the part file; waits for whoever has it.
    fn open(target: &Path) -> Outcome<Self> {
        let mut name = target.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        let failed = |error: io::Error| Failure::file("write", &path, &error);
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path).map_err(failed)?;
            file.lock().map_err(failed)?;
            // Whoever held it before may have renamed or removed it: then it is not ours to write.
            let held = file.metadata().map_err(failed)?;
            match fs::symlink_metadata(&path) {
                Ok(named) if named.ino() == held.ino() && named.dev() == held.dev() => {
                    return Ok(Part { path, file, is_placed: false });
                }
                Ok(named) if named.is_symlink() => {
                    return Err(Failure::new(format!("{} is a link", path.display()))
                        .hint("remove it; mzcache does not write through links"));
                }
                _ => continue,
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_placed {
            // It is only a left-over; the next run would write it anew.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Fails where the file system of that file or directory has fewer bytes free.
pub fn require_space(path: &Path, bytes: u64) -> Outcome<()> {
    let usage = rustix::fs::statvfs(path)
        .map_err(|error| Failure::file("read the free space of", path, &error.into()))?;
    check_space(path, usage.f_bavail.saturating_mul(usage.f_frsize), bytes)
}

fn check_space(path: &Path, free: u64, needed: u64) -> Outcome<()> {
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (Size(needed), Size(free));
    Err(Failure::new(format!("{} needs {needed}, and {free} are free", path.display()))
        .hint("free some space, or choose another file system with --cache-dir DIR"))
}

fn sync_directory(target: &Path) -> Outcome<()> {
    let Some(parent) = target.parent() else { return Ok(()) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Failure::file("sync", parent, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(target: &Path, bytes: &[u8]) -> Outcome<Placed> {
        place(target, bytes.len() as u64, || false, |out| out.write_all(bytes))
    }

    #[test]
    fn a_file_appears_whole_and_replaces_the_old_one() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("file");
        assert_eq!(write(&target, b"a longer first text").unwrap(), Placed::Written);
        assert_eq!(write(&target, b"second").unwrap(), Placed::Written);
        assert_eq!(fs::read(&target).unwrap(), b"second");
        assert_eq!(names(place.path()), ["file"]);
    }

    #[test]
    fn a_full_disk_leaves_nothing_and_keeps_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        let full = |out: &mut dyn Write| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let failure = place(&target, 4, || false, full).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("free some space")));
        assert!(names(directory.path()).is_empty());
        write(&target, b"old").unwrap();
        place(&target, 4, || false, full).unwrap_err();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn space_is_checked_before_the_first_byte() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        let failure = place(&target, u64::MAX, || false, |_| unreachable!()).unwrap_err();
        assert!(failure.message.contains("are free"), "{failure}");
        assert!(names(directory.path()).is_empty());
        assert!(check_space(&target, 10, 10).is_ok());
        assert!(check_space(&target, 10, 11).is_err());
    }

    #[test]
    fn a_left_over_part_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        fs::write(directory.path().join("file.part"), b"left by a kill, and longer").unwrap();
        write(&target, b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn who_waited_finds_the_file_and_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        write(&target, b"theirs").unwrap();
        let done = || target.exists();
        let placed = place(&target, 4, done, |_| unreachable!()).unwrap();
        assert_eq!(placed, Placed::AlreadyThere);
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn two_writers_at_once_take_turns() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        let writers: Vec<_> = (0..4u8)
            .map(|writer| {
                let target = target.clone();
                std::thread::spawn(move || write(&target, &[writer; 100_000]).unwrap())
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        let bytes = fs::read(&target).unwrap();
        assert_eq!(bytes.len(), 100_000);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(names(directory.path()), ["file"]);
    }

    #[test]
    fn a_link_in_place_of_the_part_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::write(&other, b"precious").unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join("file.part")).unwrap();
        let failure = write(&directory.path().join("file"), b"x").unwrap_err();
        assert!(failure.message.contains("is a link"), "{failure}");
        assert_eq!(fs::read(&other).unwrap(), b"precious");
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (link, below) = (directory.path().join("link"), directory.path().join("below"));
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        fs::create_dir(&below).unwrap();
        for target in [&link, &below] {
            let failure = write(target, b"x").unwrap_err();
            assert!(failure.message.contains("not a regular file"), "{failure}");
        }
        assert_eq!(names(directory.path()), ["below", "link"]);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let failure = write(Path::new("/nonexistent-directory/file"), b"x").unwrap_err();
        assert!(failure.message.contains("/nonexistent-directory/file.part"), "{failure}");
    }
}
