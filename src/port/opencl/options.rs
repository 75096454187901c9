//! Options of the kernel compiler, put together without an allocator.

use super::device::DeviceInfo;
use crate::error::{Code, Error, Result};
use core::ffi::CStr;
use core::fmt::{self, Write};

/// Bytes of all options, with the zero at the end.
pub const OPTIONS_BYTES_MAX: usize = 1024;

/// What one program is compiled with.
#[derive(Clone, Copy)]
pub struct BuildOptions {
    bytes: [u8; OPTIONS_BYTES_MAX],
    length: usize,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildOptions {
    /// None.
    pub const fn new() -> Self {
        BuildOptions { bytes: [0; OPTIONS_BYTES_MAX], length: 0 }
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

    fn add(mut self, option: fmt::Arguments<'_>) -> Result<Self> {
        let too_long = Error::new(Code::LimitExceeded, "build options");
        let space = if self.length > 0 { " " } else { "" };
        write!(self, "{space}{option}").map_err(|_| too_long.with(OPTIONS_BYTES_MAX))?;
        Ok(self)
    }

    /// As text.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }

    /// As the compiler takes it.
    pub(super) fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Write for BuildOptions {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // The last byte stays zero.
        if end >= OPTIONS_BYTES_MAX || text.contains('\0') {
            return Err(fmt::Error);
        }
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
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
        let code = |text| BuildOptions::new().with(text).map_err(|error| error.code).err();
        assert_eq!(code(long), None);
        assert_eq!(BuildOptions::new().with(long).unwrap().c_str().count_bytes(), long.len());
        assert_eq!(code(std::format!("{long}x").as_str()), Some(Code::LimitExceeded));
        assert_eq!(code("a\0b"), Some(Code::LimitExceeded));
    }
}
