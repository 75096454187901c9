//! Reading numbers and strings one after the other, each checked against the end.

use crate::error::{Code, Error, Result};

/// A position in the file.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! number {
    ($name:ident, $type:ty) => {
        /// The next number.
        pub fn $name(&mut self, what: &'static str) -> Result<$type> {
            Ok(<$type>::from_le_bytes(self.array(what)?))
        }
    };
}

impl<'a> Cursor<'a> {
    /// At an offset, which may be the end.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    /// Offset of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or(&[]);
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let taken = taken.ok_or(Error::new(Code::Truncated, what).with(self.at))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    number!(u8, u8);
    number!(u16, u16);
    number!(u32, u32);
    number!(u64, u64);

    /// The next string's bytes.
    pub fn string(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// The next string, which must be UTF-8.
    pub fn text(&mut self, what: &'static str) -> Result<&'a str> {
        let start = self.at;
        let bytes = self.string(what)?;
        core::str::from_utf8(bytes).map_err(|_| Error::new(Code::Corrupt, what).with(start))
    }
}
