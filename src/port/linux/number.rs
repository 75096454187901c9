//! Numbers in small files, as sysfs has them: one each, in decimal digits.

use super::open::open_file;
use super::transfer::read_available;
use core::ffi::CStr;
use core::fmt::{Arguments, Write};
use core::str::FromStr;

/// Bytes of the longest path that is looked at.
const PATH_BYTES_MAX: usize = 512;
/// More than the digits of any number that is believed.
const NUMBER_BYTES_MAX: usize = 24;

/// The number in the file whose path is `root` and then `rest`; none where there is no such file or
/// no such number.
pub(in crate::port) fn read_number<T: FromStr>(
    root: &CStr,
    rest: Arguments<'_>,
    what: &'static str,
) -> Option<T> {
    let mut path = Path { bytes: [0; PATH_BYTES_MAX], length: 0 };
    path.push(root.to_bytes()).ok()?;
    write!(path, "{rest}\0").ok()?;
    let fd = open_file(CStr::from_bytes_until_nul(&path.bytes).ok()?, libc::O_RDONLY, what).ok()?;
    let mut text = [0; NUMBER_BYTES_MAX];
    let length = read_available(&fd, &mut text).ok()?;
    let text = text[..length].trim_ascii();
    // Digits alone, as the kernel writes them: `parse` would take a sign, and zeros in front.
    let is_plain = text.len() == 1 || !text.starts_with(b"0");
    let is_number = is_plain && length < NUMBER_BYTES_MAX && text.iter().all(u8::is_ascii_digit);
    if is_number { core::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// A path in the making.
struct Path {
    bytes: [u8; PATH_BYTES_MAX],
    length: usize,
}

impl Path {
    fn push(&mut self, bytes: &[u8]) -> core::fmt::Result {
        let end = self.length + bytes.len();
        self.bytes.get_mut(self.length..end).ok_or(core::fmt::Error)?.copy_from_slice(bytes);
        self.length = end;
        Ok(())
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes())
    }
}
