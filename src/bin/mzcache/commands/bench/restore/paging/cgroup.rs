//! A memory cgroup of one's own: what its processes hold, and how it is taken from them.
//!
//! Made below the one that this process is in, so that limits that hold for it hold for what is
//! put there too; removed when dropped. Works with both versions of the interface and prefers the
//! second, where its memory controller is there. Never touches another cgroup's settings.

use crate::failure::{Failure, Outcome};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Which interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where a cgroup can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
    version: Version,
}

/// What may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Clean pages of files alone.
    Files,
    /// Anonymous pages too.
    All,
}

/// One that was made.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    version: Version,
}

impl Place {
    /// The place for this process.
    pub fn find() -> Outcome<Place> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|error| Failure::file("read", Path::new(path), &error))
        };
        Place::of(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)
    }

    fn of(mounts: &str, own: &str) -> Outcome<Place> {
        let two = own_folder(mounts, own, Version::Two).and_then(|(mount, folder)| {
            // Version 2 keeps processes and controlled children apart: the nearest that lets its
            // children have a memory controller.
            let above = folder.ancestors().take_while(|above| above.starts_with(&mount));
            let mut above = above.map(Path::to_path_buf);
            above.find(|above| lists(&above.join("cgroup.subtree_control"), "memory"))
        });
        if let Some(folder) = two {
            return Place { folder, version: Version::Two }.usable();
        }
        match own_folder(mounts, own, Version::One) {
            Some((_, folder)) => Place { folder, version: Version::One }.usable(),
            None => Err(Failure::new("this system has no memory cgroups for this process")),
        }
    }

    fn usable(self) -> Outcome<Place> {
        let may = rustix::fs::access(&self.folder, rustix::fs::Access::WRITE_OK);
        may.map_err(|error| Failure::file("make a cgroup in", &self.folder, &error.into()))?;
        Ok(self)
    }
}

/// The mount of a version's memory controller and this process's folder in it.
fn own_folder(mounts: &str, own: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let (kind, controller) = match version {
        Version::One => ("cgroup", "memory"),
        Version::Two => ("cgroup2", ""),
    };
    let (root, mount) = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, mount) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let is_kind = right.next()? == kind;
        let has = controller.is_empty() || right.nth(1)?.split(',').any(|it| it == controller);
        (is_kind && has).then(|| (root.to_owned(), PathBuf::from(mount)))
    })?;
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let is_it = fields.next()?.split(',').any(|it| it == controller);
        fields.next().filter(|_| is_it)
    })?;
    let below = Path::new(path).strip_prefix(root).ok()?;
    let folder = if below.as_os_str().is_empty() { mount.clone() } else { mount.join(below) };
    Some((mount, folder))
}

fn lists(path: &Path, word: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.split_whitespace().any(|it| it == word))
}

impl Cgroup {
    /// Makes one that no other process has.
    pub fn new(place: &Place) -> Outcome<Cgroup> {
        let folder = place.folder.join(format!("mzcache-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| Failure::file("make", &folder, &error))?;
        Ok(Cgroup { folder, version: place.version })
    }

    /// Makes one inside it, which counts against both; it must be dropped first.
    pub fn part(&self, name: &str) -> Outcome<Cgroup> {
        if self.version == Version::Two {
            self.set("cgroup.subtree_control", "+memory")?;
        }
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(|error| Failure::file("make", &folder, &error))?;
        Ok(Cgroup { folder, version: self.version })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Moves a process here. What it already holds stays charged to where it was.
    pub fn admit(&self, process: u32) -> Outcome<()> {
        self.set("cgroup.procs", &process.to_string())
    }

    /// Bytes that its processes hold in memory, pages of files included.
    pub fn used_bytes(&self) -> Outcome<u64> {
        let path = self.folder.join(match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        });
        let text = fs::read_to_string(&path);
        let text = text.map_err(|error| Failure::file("read", &path, &error))?;
        let number = text.trim().parse();
        number.map_err(|_| Failure::new(format!("{} holds no number", path.display())))
    }

    /// Says what the next [`Cgroup::shrink`] may take.
    pub fn take(&self, takes: Takes) -> Outcome<()> {
        match (self.version, takes) {
            (Version::One, Takes::Files) => self.set("memory.swappiness", "0"),
            (Version::One, Takes::All) => self.set("memory.swappiness", "100"),
            (Version::Two, Takes::Files) => self.set("memory.swap.max", "0"),
            (Version::Two, Takes::All) => self.set("memory.swap.max", "max"),
        }
    }

    /// Lets its processes have no more than that: the system takes from them what they do not need
    /// now, and kills one of them where that is not enough.
    pub fn limit(&self, bytes: u64) -> Outcome<()> {
        self.try_limit("memory.limit_in_bytes", "memory.max", bytes)
    }

    /// Has the system take memory until no more than that is used, or as far as that goes.
    pub fn shrink(&self, bytes: u64) -> Outcome<()> {
        self.count()?;
        // The second version's hard limit would call the out-of-memory killer.
        self.try_limit("memory.limit_in_bytes", "memory.high", bytes)
    }

    /// Has the system count its pages now. By counts that are seconds old it may find that enough
    /// of them wait to be taken when none do, and give up.
    fn count(&self) -> Outcome<()> {
        let path = self.folder.join("memory.stat");
        let counted = fs::read_to_string(&path).map(drop);
        counted.map_err(|error| Failure::file("read", &path, &error))
    }

    fn try_limit(&self, one: &str, two: &str, bytes: u64) -> Outcome<()> {
        let limit = match self.version {
            Version::One => one,
            Version::Two => two,
        };
        // Version 1 refuses a limit that cannot be reached, after it took as much as could be.
        match self.write(limit, &bytes.to_string()) {
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => {
                Err(Failure::file("write", &self.folder.join(limit), &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Lets its processes have what they want again.
    pub fn lift(&self) -> Outcome<()> {
        match self.version {
            Version::One => self.set("memory.limit_in_bytes", "-1"),
            Version::Two => self.set("memory.high", "max"),
        }
    }

    fn set(&self, name: &str, value: &str) -> Outcome<()> {
        self.write(name, value)
            .map_err(|error| Failure::file("write", &self.folder.join(name), &error))
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        // An interface's files are there; making one would hide that it is another interface.
        let mut file = fs::OpenOptions::new().write(true).open(self.folder.join(name))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that just ended may count for a moment more.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
33 30 0:31 / MOUNT/memory rw,relatime shared:9 - cgroup cgroup rw,memory
34 30 0:32 / MOUNT/cpu rw - cgroup cgroup rw,cpu,cpuacct
35 30 0:33 / MOUNT/unified rw - cgroup2 cgroup2 rw
";
    const OWN: &str = "9:cpu,cpuacct:/\n8:memory:/a/b\n0::/c/d\n";

    /// The place below a folder, with such mounts and such files there.
    fn place(mounts: &str, files: &[(&str, &str)]) -> (Outcome<Place>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        for below in ["memory/a/b", "unified/c/d"] {
            fs::create_dir_all(folder.path().join(below)).unwrap();
        }
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mounts = mounts.replace("MOUNT", folder.path().to_str().unwrap());
        (Place::of(&mounts, OWN), folder)
    }

    #[test]
    fn the_second_interface_is_preferred_where_it_has_memory() {
        let (found, folder) = place(HYBRID, &[]);
        let expected = Place { folder: folder.path().join("memory/a/b"), version: Version::One };
        assert_eq!(found.unwrap(), expected);
        for (controlling, expected) in [("c/d", "c/d"), ("c", "c"), (".", "")] {
            let file = format!("unified/{controlling}/cgroup.subtree_control");
            let (found, folder) = place(HYBRID, &[(&file, "cpu memory\n")]);
            let found = found.unwrap();
            assert_eq!(found.version, Version::Two);
            assert_eq!(found.folder, folder.path().join("unified").join(expected));
        }
        // "memory" as a part of another word is none.
        let none = [("unified/c/cgroup.subtree_control", "nomemory hugetlb")];
        assert_eq!(place(HYBRID, &none).0.unwrap().version, Version::One);
    }

    #[test]
    fn where_there_is_no_memory_controller_the_reason_is_said() {
        let without = HYBRID.replace("rw,memory", "rw,pids");
        assert!(place(&without, &[]).0.unwrap_err().message.contains("no memory cgroups"));
        assert!(place("", &[]).0.is_err());
        let gone = HYBRID.replace("MOUNT", "/does/not/exist");
        let failure = place(&gone, &[]).0.unwrap_err();
        assert!(failure.message.contains("make a cgroup in"), "{failure}");
    }

    #[test]
    fn a_mount_of_a_part_shows_what_is_below_it() {
        let mounts = "33 30 0:31 /a /m rw - cgroup cgroup rw,memory";
        let (_, folder) = own_folder(mounts, "8:memory:/a/b", Version::One).unwrap();
        assert_eq!(folder, Path::new("/m/b"));
        assert_eq!(own_folder(mounts, "8:memory:/other", Version::One), None);
    }

    #[test]
    fn each_interface_has_its_own_files() {
        let limit = "memory.limit_in_bytes";
        for (version, files) in [
            (Version::One, ["memory.usage_in_bytes", "memory.swappiness", limit, limit]),
            (Version::Two, ["memory.current", "memory.swap.max", "memory.high", "memory.max"]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let cgroup = Cgroup { folder: folder.path().join("x"), version };
            fs::create_dir(cgroup.folder()).unwrap();
            let failure = cgroup.used_bytes().unwrap_err();
            assert!(failure.message.contains(files[0]), "{failure}");
            assert!(cgroup.take(Takes::Files).is_err() && cgroup.shrink(1).is_err());
            for name in files.into_iter().chain(["memory.stat"]) {
                fs::write(cgroup.folder().join(name), "123456789012\n").unwrap();
            }
            assert_eq!(cgroup.used_bytes().unwrap(), 123_456_789_012);
            cgroup.take(Takes::Files).unwrap();
            cgroup.shrink(4096).unwrap();
            let read = |name| fs::read_to_string(cgroup.folder().join(name)).unwrap();
            assert!(read(files[1]).starts_with('0'));
            assert!(read(files[2]).starts_with("4096"));
            cgroup.lift().unwrap();
            assert!(["-1", "max"].iter().any(|text| read(files[2]).starts_with(text)));
            cgroup.limit(8192).unwrap();
            assert!(read(files[3]).starts_with("8192"));
            let controllers = cgroup.folder().join("cgroup.subtree_control");
            fs::write(&controllers, "").unwrap();
            let part = cgroup.part("part").unwrap();
            assert_eq!(part.folder(), cgroup.folder().join("part"));
            assert_eq!(lists(&controllers, "+memory"), version == Version::Two);
            fs::remove_dir_all(cgroup.folder()).unwrap();
        }
    }
}
