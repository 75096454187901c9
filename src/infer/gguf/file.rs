//! The file as a whole: header, keys, tensors.

use super::cursor::Cursor;
use super::tensor::{self, DataArea, TensorInfo, Tensors};
use super::value::{self, Array, Scalar, Value};
use crate::error::{Code, Error, Result};
use crate::limits::{GGUF_KEYS_MAX, GGUF_TENSORS_MAX};
use crate::units::align_up;

const MAGIC: &[u8] = b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
/// Longest key, as the format has it.
const KEY_BYTES_MAX: usize = 65_535;
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 1 << 16;

/// A checked GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf<'a> {
    bytes: &'a [u8],
    /// Where each key starts.
    keys: [usize; GGUF_KEYS_MAX],
    key_count: usize,
    tensors: Tensors<'a>,
}

impl<'a> Gguf<'a> {
    /// Checks a whole file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, 0);
        if cursor.take(4, "gguf magic")? != MAGIC {
            return Err(Error::new(Code::BadMagic, "gguf magic"));
        }
        let version = cursor.u32("gguf version")?;
        if !VERSIONS.contains(&version) {
            return Err(Error::new(Code::Unsupported, "gguf version").with(version));
        }
        let tensor_count = cursor.u64("gguf tensor count")?;
        let key_count = cursor.u64("gguf key count")?;
        if tensor_count > GGUF_TENSORS_MAX {
            return Err(Error::new(Code::LimitExceeded, "gguf tensor count").with(tensor_count));
        }
        let limit = Error::new(Code::LimitExceeded, "gguf key count").with(key_count);
        let key_count = usize::try_from(key_count).map_err(|_| limit)?;
        if key_count > GGUF_KEYS_MAX {
            return Err(limit);
        }
        let empty = DataArea { start: 0, end: 0, alignment: 1 };
        let tensors = Tensors::new(cursor, 0, empty);
        let mut file = Gguf { bytes, keys: [0; GGUF_KEYS_MAX], key_count: 0, tensors };
        file.read_keys(&mut cursor, key_count)?;
        file.read_tensors(cursor, tensor_count)?;
        Ok(file)
    }

    fn read_keys(&mut self, cursor: &mut Cursor<'a>, count: usize) -> Result<()> {
        for index in 0..count {
            let start = cursor.at();
            let key = cursor.text("gguf key")?;
            if key.len() > KEY_BYTES_MAX {
                return Err(Error::new(Code::LimitExceeded, "gguf key").with(start));
            }
            value::read(cursor)?;
            if self.get(key).is_some() {
                return Err(Error::new(Code::Corrupt, "gguf key occurs twice").with(start));
            }
            self.keys[index] = start;
            self.key_count = index + 1;
        }
        Ok(())
    }

    fn read_tensors(&mut self, first: Cursor<'a>, count: u64) -> Result<()> {
        let mut cursor = first;
        for _ in 0..count {
            tensor::skip(&mut cursor)?;
        }
        let alignment = match self.get("general.alignment") {
            None => ALIGNMENT_DEFAULT,
            Some(value) => alignment_of(value)?,
        };
        let end = self.bytes.len() as u64;
        let start = align_up(cursor.at() as u64, alignment).unwrap_or(u64::MAX);
        let area = DataArea { start, end, alignment };
        let mut cursor = first;
        for index in 0..count {
            let offset = cursor.at();
            let info = tensor::read(&mut cursor, &area)?;
            // Names alone are compared: there are as many pairs as the square of the count.
            let mut before = first;
            let mut is_same = |_| tensor::skip_to_next(&mut before) == Ok(info.name.as_bytes());
            if (0..index).any(&mut is_same) {
                return Err(Error::new(Code::Corrupt, "gguf tensor occurs twice").with(offset));
            }
        }
        self.tensors = Tensors::new(first, count, area);
        Ok(())
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.entries().map(|(key, _)| key)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.entries().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// The value of `prefix.suffix`.
    fn get_in(&self, prefix: &str, suffix: &str) -> Option<Value<'a>> {
        let is_it = |key: &str| {
            key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.')) == Some(suffix)
        };
        self.entries().find(|(key, _)| is_it(key)).map(|(_, value)| value)
    }

    fn entries(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + '_ {
        self.keys[..self.key_count].iter().filter_map(|start| {
            let mut cursor = Cursor::new(self.bytes, *start);
            let key = cursor.text("gguf key").ok()?;
            Some((key, value::peek(&mut cursor).ok()?))
        })
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> Result<&'a str> {
        self.text("general.architecture")?
            .ok_or(Error::new(Code::Corrupt, "general.architecture is missing"))
    }

    /// A string.
    pub fn text(&self, key: &'static str) -> Result<Option<&'a str>> {
        typed(self.get(key), key, |scalar| core::str::from_utf8(scalar.bytes()?).ok())
    }

    /// A truth value.
    pub fn bool(&self, key: &'static str) -> Result<Option<bool>> {
        typed(self.get(key), key, |scalar| match scalar {
            Scalar::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// An unsigned integer of at most 32 bits.
    pub fn u32(&self, key: &'static str) -> Result<Option<u32>> {
        typed(self.get(key), key, |scalar| u32::try_from(scalar.unsigned()?).ok())
    }

    /// An array.
    pub fn array(&self, key: &'static str) -> Result<Option<Array<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(Value::Scalar(_)) => Err(Error::new(Code::Corrupt, key)),
        }
    }

    /// An unsigned integer of at most 32 bits under the architecture's name.
    pub fn arch_u32(&self, arch: &str, key: &'static str) -> Result<Option<u32>> {
        typed(self.get_in(arch, key), key, |scalar| u32::try_from(scalar.unsigned()?).ok())
    }

    /// A floating-point number under the architecture's name.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
    pub fn arch_f32(&self, arch: &str, key: &'static str) -> Result<Option<f32>> {
        typed(self.get_in(arch, key), key, |scalar| Some(scalar.float()? as f32))
    }

    /// A string under the architecture's name.
    pub fn arch_text(&self, arch: &str, key: &'static str) -> Result<Option<&'a str>> {
        typed(self.get_in(arch, key), key, |scalar| core::str::from_utf8(scalar.bytes()?).ok())
    }

    /// The tensors in order.
    pub fn tensors(&self) -> Tensors<'a> {
        self.tensors.clone()
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'a>> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// A tensor's bytes.
    pub fn tensor_bytes(&self, tensor: &TensorInfo<'_>) -> Result<&'a [u8]> {
        let start = usize::try_from(tensor.file_offset).unwrap_or(usize::MAX);
        Cursor::new(self.bytes, start).take(tensor.bytes, "gguf tensor data")
    }
}

/// A scalar of the right type; arrays and other types are errors, absence is not.
fn typed<'a, T>(
    value: Option<Value<'a>>,
    what: &'static str,
    convert: impl Fn(Scalar<'a>) -> Option<T>,
) -> Result<Option<T>> {
    match value {
        None => Ok(None),
        Some(Value::Array(_)) => Err(Error::new(Code::Unsupported, what)),
        Some(Value::Scalar(scalar)) => match convert(scalar) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::new(Code::Corrupt, what)),
        },
    }
}

fn alignment_of(value: Value<'_>) -> Result<u64> {
    let number = match value {
        Value::Scalar(scalar) => scalar.unsigned(),
        Value::Array(_) => None,
    };
    match number {
        Some(number) if number.is_power_of_two() && number <= ALIGNMENT_MAX => Ok(number),
        _ => Err(Error::new(Code::Corrupt, "general.alignment")),
    }
}
