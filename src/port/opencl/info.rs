//! Properties of OpenCL objects as numbers and texts of fixed size.

use super::api::{GetInfo, Handle};
use super::status::check;
use crate::error::{Code, Error, Result};
use core::ffi::c_void;
use core::fmt;
use core::ops::Deref;

/// Longest text that a driver may return: lists of extensions run to a few thousand bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// A driver's text, cut after `N` bytes. What is not printable ASCII shows as `?`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    /// From a driver's bytes, which end at a zero if there is one.
    pub fn new(bytes: &[u8]) -> Self {
        let mut text = Text { bytes: [0; N], length: 0 };
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        for (to, from) in text.bytes.iter_mut().zip(bytes[..end].trim_ascii()) {
            *to = if matches!(from, b' '..=b'~') { *from } else { b'?' };
            text.length += 1;
        }
        text
    }
}

impl<const N: usize> Deref for Text<N> {
    type Target = str;

    fn deref(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// An OpenCL version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Before the dot.
    pub major: u16,
    /// Behind it.
    pub minor: u16,
}

impl Version {
    /// A version.
    pub const fn new(major: u16, minor: u16) -> Self {
        Version { major, minor }
    }

    /// From `OpenCL 3.0 more text` or `OpenCL C 1.2 more text`.
    pub fn of_opencl(text: &str) -> Option<Version> {
        let rest = text.strip_prefix("OpenCL ")?;
        let rest = rest.strip_prefix("C ").unwrap_or(rest);
        let (major, minor) = rest.split(' ').next()?.split_once('.')?;
        Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Numbers that properties come as; every bit pattern is a value.
pub(super) trait Number: Copy + Default {}
impl Number for u32 {}
impl Number for u64 {}
impl Number for usize {}

/// A property that is a number.
pub(super) fn number<T: Number>(
    get: GetInfo,
    object: Handle,
    name: u32,
    what: &'static str,
) -> Result<T> {
    number_by(what, |bytes, into, written| {
        // SAFETY: the object is alive (its owner calls), `into` is writable for `bytes`.
        unsafe { get(object, name, bytes, into, written) }
    })
}

/// The same by any call that takes size, place, and where to say the true size.
pub(super) fn number_by<T: Number>(
    what: &'static str,
    call: impl FnOnce(usize, *mut c_void, *mut usize) -> i32,
) -> Result<T> {
    let mut value = T::default();
    let mut written = 0;
    check(what, call(size_of::<T>(), (&raw mut value).cast(), &raw mut written))?;
    match written == size_of::<T>() {
        true => Ok(value),
        false => Err(Error::new(Code::DeviceFailed, what).with(written)),
    }
}

/// A property that is a text, cut after `N` bytes.
pub(super) fn text<const N: usize>(
    get: GetInfo,
    object: Handle,
    name: u32,
    what: &'static str,
) -> Result<Text<N>> {
    with_bytes(get, object, name, what, Text::new)
}

/// A property of any length that fits on the stack.
pub(super) fn with_bytes<T>(
    get: GetInfo,
    object: Handle,
    name: u32,
    what: &'static str,
    use_bytes: impl FnOnce(&[u8]) -> T,
) -> Result<T> {
    let mut bytes = 0;
    // SAFETY: the object is alive (its owner calls); a null place only asks for the size.
    check(what, unsafe { get(object, name, 0, core::ptr::null_mut(), &raw mut bytes) })?;
    let mut scratch = [0u8; TEXT_BYTES_MAX];
    let place =
        scratch.get_mut(..bytes).ok_or(Error::new(Code::LimitExceeded, what).with(bytes))?;
    let mut written = 0;
    let target = place.as_mut_ptr().cast();
    // SAFETY: as above, and `place` is writable for `bytes`.
    check(what, unsafe { get(object, name, bytes, target, &raw mut written) })?;
    Ok(use_bytes(&place[..written.min(bytes)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn texts_are_cut_trimmed_and_printable() {
        assert_eq!(&*Text::<8>::new(b"  Adreno 830\0rest"), "Adreno 8");
        assert_eq!(&*Text::<16>::new(b"a\tb\xFF\n\0"), "a?b?");
        assert_eq!(&*Text::<4>::new(b""), "");
        assert_eq!(Text::<4>::new(b"ab").to_string(), "ab");
    }

    #[test]
    fn versions_are_read() {
        let read = Version::of_opencl;
        assert_eq!(read("OpenCL 3.0 PoCL HSTR: x"), Some(Version::new(3, 0)));
        assert_eq!(read("OpenCL C 1.2"), Some(Version::new(1, 2)));
        assert_eq!(read("OpenCL C 1.2 pocl"), Some(Version::new(1, 2)));
        for wrong in ["", "OpenCL", "OpenCL ", "OpenCL 3", "OpenCL x.y", "opencl 1.2", "1.2"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert!(Version::new(2, 1) < Version::new(3, 0));
        assert_eq!(Version::new(1, 2).to_string(), "1.2");
    }
}
