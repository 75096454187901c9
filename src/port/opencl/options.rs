//! Options of the kernel compiler, and other C strings, put together without an allocator.

use super::device::DeviceInfo;
use crate::error::{Code, Error, Result};
use core::ffi::CStr;
use core::fmt::{self, Write};

/// Bytes of all options, with the zero at the end.
pub const OPTIONS_BYTES_MAX: usize = 1024;

/// A C string of fixed capacity; the zero at its end counts.
#[derive(Clone, Copy)]
pub(super) struct CText<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> CText<N> {
    pub(super) const fn new() -> Self {
        CText { bytes: [0; N], length: 0 }
    }

    /// Appends.
    pub(super) fn add(mut self, what: &'static str, text: fmt::Arguments<'_>) -> Result<Self> {
        let too_long = Error::new(Code::LimitExceeded, what).with(N);
        self.write_fmt(text).map_err(|_| too_long)?;
        Ok(self)
    }

    pub(super) fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }

    pub(super) fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl<const N: usize> Write for CText<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length.saturating_add(text.len());
        // The last byte stays zero.
        if end >= N || text.contains('\0') {
            return Err(fmt::Error);
        }
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// What one program is compiled with.
#[derive(Clone, Copy)]
pub struct BuildOptions(CText<OPTIONS_BYTES_MAX>);

impl Default for BuildOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildOptions {
    /// None.
    pub const fn new() -> Self {
        BuildOptions(CText::new())
    }

    pub(super) fn of_text(text: &str) -> Result<Self> {
        CText::new().add("build options", format_args!("{text}")).map(BuildOptions)
    }

    /// The language version that the device's compiler takes.
    pub fn for_device(device: &DeviceInfo) -> Result<Self> {
        Self::new().with(device.language.option())
    }

    /// One more option.
    pub fn with(self, option: &str) -> Result<Self> {
        self.add(format_args!("{option}"))
    }

    /// One more macro: `-D name=value`.
    pub fn define(self, name: &str, value: impl fmt::Display) -> Result<Self> {
        self.add(format_args!("-D {name}={value}"))
    }

    fn add(self, option: fmt::Arguments<'_>) -> Result<Self> {
        let space = if self.0.length > 0 { " " } else { "" };
        self.0.add("build options", format_args!("{space}{option}")).map(BuildOptions)
    }

    /// As text.
    pub fn text(&self) -> &str {
        self.0.text()
    }

    /// As the compiler takes it.
    pub(super) fn c_str(&self) -> &CStr {
        self.0.c_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_joined_and_bounded() {
        let options = BuildOptions::new().with("-cl-std=CL1.2").unwrap();
        let options = options.define("TILE", 16).unwrap();
        assert_eq!(options.text(), "-cl-std=CL1.2 -D TILE=16");
        assert_eq!(options.c_str().to_str(), Ok(options.text()));
        assert_eq!(BuildOptions::new().c_str(), c"");
        let long = std::vec![b'x'; OPTIONS_BYTES_MAX - 1];
        let long = core::str::from_utf8(&long).unwrap();
        let code = |text: &str| BuildOptions::new().with(text).map_err(|error| error.code).err();
        assert_eq!(code(long), None);
        assert_eq!(BuildOptions::new().with(long).unwrap().c_str().count_bytes(), long.len());
        let longer = std::format!("{long}x");
        assert_eq!(code(&longer), Some(Code::LimitExceeded));
        assert_eq!(code("a\0b"), Some(Code::LimitExceeded));
    }
}
