//! A swap device made for one bench and removed with it, and the swapping to it.
//!
//! A device of its own, so that one that the system swaps to already is left alone, but preferred
//! to it while it is on. Turning it off brings back what is on it. Dropping it turns it off first;
//! whoever was swapped out should have ended by then.

use super::file::SwapFile;
use super::zram::Zram;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where swap programs are, whatever `PATH` says.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
const PROGRAMS: [&str; 3] = ["mkswap", "swapon", "swapoff"];
/// The kernel's highest priority.
const PRIORITY_MAX: i32 = 32767;
/// The capability to swap, as a bit.
const SYS_ADMIN: u64 = 1 << 21;

/// What pages are swapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Compressed memory.
    Zram,
    /// A file in the cache directory.
    Storage,
}

impl Home {
    /// Its name in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Home::Zram => "zram",
            Home::Storage => "storage",
        }
    }

    pub fn named(name: &str) -> Outcome<Home> {
        let mut all = [Home::Zram, Home::Storage].into_iter();
        let found = all.find(|home| home.name() == name);
        found.ok_or_else(|| Failure::new(format!("unknown swap device `{name}`")))
    }

    /// Whether such a device can be made here; the reason if not.
    pub fn check(self, cache: &CacheDir) -> Outcome<()> {
        match self {
            Home::Zram => Zram::check()?,
            Home::Storage => SwapFile::check(cache)?,
        }
        let status = Path::new("/proc/self/status");
        match may_swap(&read(status)?) {
            true => Programs::find().map(drop),
            false => Err(Failure::new("this process lacks the capability to swap (sys_admin)")),
        }
    }
}

/// The device.
#[derive(Debug)]
pub struct Swap {
    device: Device,
    programs: Programs,
    is_on: bool,
}

#[derive(Debug)]
enum Device {
    Zram(Zram),
    File(SwapFile),
}

impl Swap {
    /// Makes one for that many bytes, uncompressed.
    pub fn new(home: Home, bytes: u64, cache: &CacheDir) -> Outcome<Swap> {
        let programs = Programs::find()?;
        let device = match home {
            Home::Zram => Device::Zram(Zram::new(bytes)?),
            Home::Storage => Device::File(SwapFile::new(cache, bytes)?),
        };
        let swap = Swap { device, programs, is_on: false };
        swap.programs.make(swap.path())?;
        Ok(swap)
    }

    /// Has the system swap to it rather than to any other.
    pub fn start(&mut self) -> Outcome<()> {
        let priority = priority_above(&read(Path::new("/proc/swaps"))?)?;
        self.programs.start(self.path(), priority)?;
        self.is_on = true;
        Ok(())
    }

    /// Brings back what is there, and has the system swap to it no more.
    pub fn stop(&mut self) -> Outcome<()> {
        if self.is_on {
            self.programs.stop(self.path())?;
            self.is_on = false;
        }
        Ok(())
    }

    pub const fn home(&self) -> Home {
        match self.device {
            Device::Zram(_) => Home::Zram,
            Device::File(_) => Home::Storage,
        }
    }

    pub fn path(&self) -> &Path {
        match &self.device {
            Device::Zram(zram) => zram.path(),
            Device::File(file) => file.path(),
        }
    }

    /// Its path and how it holds pages.
    pub fn description(&self) -> Outcome<String> {
        let how = match &self.device {
            Device::Zram(zram) => zram.algorithm()?,
            Device::File(_) => "a swap file".to_owned(),
        };
        Ok(format!("{} ({how})", self.path().display()))
    }

    /// Bytes of memory that it takes now, its own bookkeeping included.
    pub fn used_bytes(&self) -> Outcome<u64> {
        match &self.device {
            Device::Zram(zram) => zram.used_bytes(),
            Device::File(_) => Ok(0),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // What fails here leaves it behind; that it is removed is tried all the same.
        let _ = self.stop();
    }
}

/// The programs that are needed.
#[derive(Clone, Debug)]
struct Programs {
    paths: [PathBuf; 3],
}

impl Programs {
    fn find() -> Outcome<Programs> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
        Programs::in_folders(&folders.collect::<Vec<_>>())
    }

    fn in_folders(folders: &[PathBuf]) -> Outcome<Programs> {
        let find = |name: &str| {
            let mut paths = folders.iter().map(|folder| folder.join(name));
            let found = paths.find(|path| path.is_file());
            found.ok_or_else(|| Failure::new(format!("the program {name} is not installed")))
        };
        let [make, start, stop] = PROGRAMS.map(find);
        Ok(Programs { paths: [make?, start?, stop?] })
    }

    fn make(&self, device: &Path) -> Outcome<()> {
        run(&self.paths[0], &[], device)
    }

    fn start(&self, device: &Path, priority: i32) -> Outcome<()> {
        run(&self.paths[1], &["-p", &priority.to_string()], device)
    }

    fn stop(&self, device: &Path) -> Outcome<()> {
        run(&self.paths[2], &[], device)
    }
}

fn run(program: &Path, options: &[&str], device: &Path) -> Outcome<()> {
    let output = Command::new(program).args(options).arg(device).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::file("run", program, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let (program, device) = (program.display(), device.display());
    Err(Failure::new(format!("{program} {device}: {}", text.trim())))
}

/// A priority above those of `/proc/swaps`, whose last column they are.
fn priority_above(swaps: &str) -> Outcome<i32> {
    let used = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().last());
    let highest = used.filter_map(|number| number.parse::<i32>().ok()).max();
    // Negative ones are the kernel's own choice.
    match highest.unwrap_or(0).max(0) {
        highest if highest < PRIORITY_MAX => Ok(highest + 1),
        _ => Err(Failure::new("another swap device has the highest priority already")),
    }
}

/// Whether a process of that status may swap.
fn may_swap(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & SYS_ADMIN != 0)
}

pub fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [PathBuf::from("/missing"), folder.path().to_path_buf()];
        for name in PROGRAMS {
            let failure = Programs::in_folders(&folders).unwrap_err();
            assert!(failure.message.contains(name), "{failure}");
            fs::write(folder.path().join(name), "").unwrap();
        }
        let programs = Programs::in_folders(&folders).unwrap();
        assert_eq!(programs.paths[0], folder.path().join("mkswap"));
    }

    #[test]
    fn a_program_that_fails_is_named() {
        let failure = run(Path::new("/bin/false"), &[], Path::new("/dev/zram9")).unwrap_err();
        assert!(failure.message.contains("/bin/false /dev/zram9"), "{failure}");
        let failure = run(Path::new("/missing"), &[], Path::new("/dev/zram9")).unwrap_err();
        assert!(failure.message.contains("cannot run /missing"), "{failure}");
    }

    #[test]
    fn the_priority_is_above_all_others() {
        let swaps = |priorities: &[i32]| {
            let line = |priority| format!("/a\\040b file 16380\t\t0\t\t{priority}\n");
            let lines: String = priorities.iter().map(line).collect();
            priority_above(&format!("Filename Type Size Used Priority\n{lines}"))
        };
        assert_eq!(swaps(&[]).unwrap(), 1);
        assert_eq!(swaps(&[-2, -3]).unwrap(), 1);
        assert_eq!(swaps(&[-2, 100, 5]).unwrap(), 101);
        assert_eq!(swaps(&[32766]).unwrap(), 32767);
        assert!(swaps(&[1, 32767]).unwrap_err().message.contains("highest priority"));
    }

    #[test]
    fn swapping_takes_a_capability() {
        assert!(may_swap("Name:\tx\nCapEff:\t000001fffeffffff\n"));
        assert!(may_swap("CapEff:\t0000000000200000"));
        // A container's usual ones; nobody's; those of another set.
        assert!(!may_swap("CapEff:\t00000000a80425fb"));
        assert!(!may_swap("CapEff:\t0\nCapPrm:\t000001ffffffffff"));
        assert!(!may_swap("CapEff:\tx") && !may_swap(""));
    }

    #[test]
    fn homes_have_names() {
        for home in [Home::Zram, Home::Storage] {
            assert_eq!(Home::named(home.name()), Ok(home));
        }
        assert!(Home::named("").unwrap_err().message.contains("unknown swap device ``"));
    }
}
