//! Measured memory, from `/proc/self/smaps_rollup`.
//!
//! The kernel walks the page tables for it, so the numbers are exact, unlike the batched counters
//! in `/proc/self/status`; a call costs about a millisecond for each gigabyte of small pages.

use super::errno;
use super::open::open_file;
use super::transfer::read_available;
use crate::error::{Code, Error, Result};
use crate::port::Meter;

/// What the process holds, in bytes, by the kernel's field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentBytes {
    /// `Rss`: everything resident, mapped files and program text included.
    pub rss: u64,
    /// `Anonymous`: resident private memory, the buffers of [`AnonymousMemory`] among it.
    ///
    /// [`AnonymousMemory`]: super::AnonymousMemory
    pub anonymous: u64,
    /// `AnonHugePages`: the part of `anonymous` in huge pages.
    pub anonymous_huge: u64,
    /// `Pss_Shmem`: resident shared memory, this process's share. 0 before Linux 5.4.
    pub shared: u64,
    /// `Swap`: what the system has swapped out (to zram, on a phone).
    pub swap: u64,
}

impl ResidentBytes {
    /// What an eviction must reduce: private and shared memory, resident or swapped out. Clean
    /// file pages do not count, since the system takes them without a penalty; zram does, so that
    /// memory which the system compressed is not mistaken for memory given back. Android budgets
    /// processes by the same sum.
    pub const fn charged(&self) -> u64 {
        self.anonymous.saturating_add(self.shared).saturating_add(self.swap)
    }

    /// The same with memory of a device's driver that the process has mapped. `is_counted` where
    /// the driver takes it from shared memory: what the process has touched of it then counts as
    /// `shared` already, and the rest is still memory that nobody else can have.
    pub const fn charged_with(&self, device_bytes: u64, is_counted: bool) -> u64 {
        let missing = if is_counted { self.shared } else { 0 };
        self.charged().saturating_add(device_bytes.saturating_sub(missing))
    }
}

/// Measures this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessMeter;

const WHAT: &str = "/proc/self/smaps_rollup";

impl ProcessMeter {
    /// All fields.
    pub fn fields(&self) -> Result<ResidentBytes> {
        let fd = open_file(c"/proc/self/smaps_rollup", libc::O_RDONLY, WHAT)?;
        // About 700 bytes on today's kernels.
        let mut text = [0; 4096];
        let length = read_available(&fd, &mut text).map_err(|errno| errno::error(WHAT, errno))?;
        parse(&text[..length])
    }
}

impl Meter for ProcessMeter {
    fn resident_bytes(&self) -> Result<u64> {
        Ok(self.fields()?.charged())
    }
}

fn parse(text: &[u8]) -> Result<ResidentBytes> {
    Ok(ResidentBytes {
        rss: required(text, "Rss")?,
        anonymous: required(text, "Anonymous")?,
        anonymous_huge: field(text, "AnonHugePages")?.unwrap_or(0),
        shared: field(text, "Pss_Shmem")?.unwrap_or(0),
        swap: required(text, "Swap")?,
    })
}

fn required(text: &[u8], name: &'static str) -> Result<u64> {
    field(text, name)?.ok_or(Error::new(Code::Unsupported, name))
}

/// The value of a line `Name:    123 kB`, in bytes.
fn field(text: &[u8], name: &'static str) -> Result<Option<u64>> {
    for line in text.split(|byte| *byte == b'\n') {
        let value = line.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
        let Some(value) = value else { continue };
        let kib = value.trim_ascii().strip_suffix(b" kB").and_then(|digits| {
            core::str::from_utf8(digits.trim_ascii()).ok()?.parse::<u64>().ok()?.checked_mul(1024)
        });
        return kib.map(Some).ok_or(Error::new(Code::Corrupt, name));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "55bc-7fff ---p 00000000 00:00 0    [rollup]\n\
        Rss:                1772 kB\n\
        Pss:                 398 kB\n\
        Pss_Shmem:             8 kB\n\
        Anonymous:           116 kB\n\
        AnonHugePages:        64 kB\n\
        Swap:                 12 kB\n\
        SwapPss:              11 kB\n";

    #[test]
    fn fields_are_found_by_their_whole_name_and_come_in_bytes() {
        let fields = parse(TEXT.as_bytes()).unwrap();
        assert_eq!(fields.rss, 1772 << 10);
        assert_eq!(fields.anonymous, 116 << 10);
        assert_eq!(fields.anonymous_huge, 64 << 10);
        assert_eq!(fields.shared, 8 << 10);
        assert_eq!(fields.swap, 12 << 10);
        assert_eq!(fields.charged(), 136 << 10);
        assert_eq!(fields.charged_with(100 << 10, false), 236 << 10);
        assert_eq!(fields.charged_with(100 << 10, true), 228 << 10);
        assert_eq!(fields.charged_with(5 << 10, true), 136 << 10);
        assert_eq!(fields.charged_with(u64::MAX, false), u64::MAX);
    }

    #[test]
    fn a_missing_field_is_unsupported_and_a_strange_one_corrupt() {
        let without = TEXT.replace("Anonymous:", "Other:");
        assert_eq!(parse(without.as_bytes()), Err(Error::new(Code::Unsupported, "Anonymous")));
        for strange in ["x kB", "-1 kB", "12", "", "18446744073709551615 kB", "1 MB"] {
            let text = TEXT.replace("            12 kB", strange);
            assert_eq!(parse(text.as_bytes()), Err(Error::new(Code::Corrupt, "Swap")), "{strange}");
        }
        // Older kernels have no shared-memory line.
        assert_eq!(parse(TEXT.replace("Pss_Shmem", "X").as_bytes()).unwrap().shared, 0);
    }

    #[test]
    fn the_real_file_parses() {
        let fields = ProcessMeter.fields().unwrap();
        assert!(fields.rss >= fields.anonymous);
        assert!(fields.anonymous > 0);
        assert!(ProcessMeter.resident_bytes().unwrap() > 0);
    }
}
