//! A block device of compressed memory, made for one bench and removed with it.

use super::swap::read;
use crate::failure::{Failure, Outcome};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CONTROL: &str = "/sys/class/zram-control";
/// What phones use; where it is not built in, the system's own choice.
const ALGORITHM: &str = "lz4";

/// The device.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    path: PathBuf,
}

impl Zram {
    /// Whether there can be one.
    pub fn check() -> Outcome<()> {
        // To write it is what a read-only view of the system refuses, where reading would work.
        let control = Path::new(CONTROL).join("hot_remove");
        let may = rustix::fs::access(&control, rustix::fs::Access::WRITE_OK);
        may.map_err(|error| Failure::file("make a zram device by", &control, &error.into()))
    }

    /// Makes one of that many bytes before compression.
    pub fn new(bytes: u64) -> Outcome<Zram> {
        let text = read(&Path::new(CONTROL).join("hot_add"))?;
        let number: Result<u32, _> = text.trim().parse();
        let number = number.map_err(|_| Failure::new("the new zram device has no number"))?;
        // From here on dropping it removes it.
        let zram = Zram { number, path: PathBuf::from(format!("/dev/zram{number}")) };
        let algorithms = zram.attribute("comp_algorithm");
        if read(&algorithms)?.split_whitespace().any(|name| name == ALGORITHM) {
            write(&algorithms, ALGORITHM)?;
        }
        write(&zram.attribute("disksize"), &bytes.to_string())?;
        wait_for(&zram.path)?;
        Ok(zram)
    }

    pub fn path(&self) -> &Path {
        &self.path
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
    fn a_device_that_does_not_come_is_named() {
        let failure = wait_for(Path::new("/dev/null")).unwrap_err();
        assert!(failure.message.contains("/dev/null is no device"), "{failure}");
    }
}
