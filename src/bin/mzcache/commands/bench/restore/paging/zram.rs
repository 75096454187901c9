//! A swap device of compressed memory, made for one bench and removed with it.
//!
//! A device of its own, so that one that the system swaps to already is left alone. Dropping it
//! ends the swapping first; whoever was swapped out should have ended by then.

use crate::failure::{Failure, Outcome};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CONTROL: &str = "/sys/class/zram-control";
/// Where swap programs are, whatever `PATH` says.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
const PROGRAMS: [&str; 3] = ["mkswap", "swapon", "swapoff"];
/// What phones use; where it is not built in, the system's own choice.
const ALGORITHM: &str = "lz4";

/// What is needed to make one.
#[derive(Clone, Debug)]
pub struct Tools {
    programs: [PathBuf; 3],
}

impl Tools {
    /// Looks for it.
    pub fn find() -> Outcome<Tools> {
        // To write it is what a read-only view of the system refuses, where reading would work.
        let control = Path::new(CONTROL).join("hot_remove");
        let may = rustix::fs::access(&control, rustix::fs::Access::WRITE_OK);
        may.map_err(|error| Failure::file("make a zram device by", &control, &error.into()))?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
        Tools::in_folders(&folders.collect::<Vec<_>>())
    }

    fn in_folders(folders: &[PathBuf]) -> Outcome<Tools> {
        let find = |name: &str| {
            let mut paths = folders.iter().map(|folder| folder.join(name));
            let found = paths.find(|path| path.is_file());
            found.ok_or_else(|| Failure::new(format!("the program {name} is not installed")))
        };
        let [make, start, stop] = PROGRAMS.map(find);
        Ok(Tools { programs: [make?, start?, stop?] })
    }
}

/// The device.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    tools: Tools,
    is_swap: bool,
}

impl Zram {
    /// Makes one of that many bytes before compression and swaps to it.
    pub fn new(tools: &Tools, bytes: u64) -> Outcome<Zram> {
        let text = read(&Path::new(CONTROL).join("hot_add"))?;
        let number = text.trim().parse();
        let number = number.map_err(|_| Failure::new("the new zram device has no number"))?;
        // From here on dropping it removes it.
        let mut zram = Zram { number, tools: tools.clone(), is_swap: false };
        let algorithms = zram.attribute("comp_algorithm");
        if read(&algorithms)?.split_whitespace().any(|name| name == ALGORITHM) {
            write(&algorithms, ALGORITHM)?;
        }
        write(&zram.attribute("disksize"), &bytes.to_string())?;
        wait_for(&zram.device())?;
        let [make, start, _] = &tools.programs;
        run(make, &zram.device())?;
        run(start, &zram.device())?;
        zram.is_swap = true;
        Ok(zram)
    }

    /// The block device.
    pub fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    /// How it compresses.
    pub fn algorithm(&self) -> Outcome<String> {
        let text = read(&self.attribute("comp_algorithm"))?;
        Ok(chosen(&text).to_owned())
    }

    /// Bytes of memory that it takes now, its own bookkeeping included.
    pub fn used_bytes(&self) -> Outcome<u64> {
        let path = self.attribute("mm_stat");
        let text = read(&path)?;
        let used = text.split_whitespace().nth(2).and_then(|number| number.parse().ok());
        used.ok_or_else(|| Failure::new(format!("{} lacks its third number", path.display())))
    }

    fn attribute(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // What fails here leaves a device behind; the rest is tried all the same.
        if self.is_swap {
            let _ = run(&self.tools.programs[2], &self.device());
        }
        for _ in 0..100 {
            let gone = write(&self.attribute("reset"), "1").and_then(|()| {
                write(&Path::new(CONTROL).join("hot_remove"), &self.number.to_string())
            });
            if gone.is_ok() {
                return;
            }
            // Somebody who watches for new devices may be looking at it.
            sleep(Duration::from_millis(10));
        }
    }
}

/// The name in brackets.
fn chosen(algorithms: &str) -> &str {
    let inside = algorithms.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("unknown", |(name, _)| name)
}

/// Whoever makes device files may need a moment.
fn wait_for(device: &Path) -> Outcome<()> {
    let start = Instant::now();
    loop {
        match fs::metadata(device) {
            Ok(status) if status.file_type().is_block_device() => return Ok(()),
            _ if start.elapsed() < Duration::from_secs(5) => sleep(Duration::from_millis(10)),
            Ok(_) => return Err(Failure::new(format!("{} is no device", device.display()))),
            Err(error) => return Err(Failure::file("find", device, &error)),
        }
    }
}

fn run(program: &Path, device: &Path) -> Outcome<()> {
    let output = Command::new(program).arg(device).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::file("run", program, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let (program, device) = (program.display(), device.display());
    Err(Failure::new(format!("{program} {device}: {}", text.trim())))
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))
}

fn write(path: &Path, text: &str) -> Outcome<()> {
    fs::write(path, text).map_err(|error| Failure::file("write", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_algorithm_in_use_is_the_one_in_brackets() {
        assert_eq!(chosen("lzo-rle lzo [lz4] \n"), "lz4");
        assert_eq!(chosen("lz4"), "unknown");
    }

    #[test]
    fn the_program_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [PathBuf::from("/missing"), folder.path().to_path_buf()];
        for name in PROGRAMS {
            let failure = Tools::in_folders(&folders).unwrap_err();
            assert!(failure.message.contains(name), "{failure}");
            fs::write(folder.path().join(name), "").unwrap();
        }
        let tools = Tools::in_folders(&folders).unwrap();
        assert_eq!(tools.programs[0], folder.path().join("mkswap"));
    }

    #[test]
    fn a_device_that_does_not_come_and_a_program_that_fails_are_named() {
        let failure = run(Path::new("/bin/false"), Path::new("/dev/zram9")).unwrap_err();
        assert!(failure.message.contains("/bin/false /dev/zram9"), "{failure}");
        let failure = run(Path::new("/missing"), Path::new("/dev/zram9")).unwrap_err();
        assert!(failure.message.contains("cannot run /missing"), "{failure}");
    }
}
