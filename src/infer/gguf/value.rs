//! Metadata values: scalars, strings and flat arrays of them.

use super::cursor::Cursor;
use crate::error::{Code, Error, Result};

/// One number, boolean or string.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// A single- or double-precision number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string's bytes; usually, but not surely, UTF-8.
    String(&'a [u8]),
}

impl<'a> Scalar<'a> {
    /// As an unsigned integer, if it is one or a signed one that fits.
    pub fn unsigned(self) -> Option<u64> {
        match self {
            Scalar::Unsigned(value) => Some(value),
            Scalar::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// As a signed integer, if it is one or an unsigned one that fits.
    pub fn signed(self) -> Option<i64> {
        match self {
            Scalar::Unsigned(value) => i64::try_from(value).ok(),
            Scalar::Signed(value) => Some(value),
            _ => None,
        }
    }

    /// As a floating-point number, if it is one.
    pub fn float(self) -> Option<f64> {
        match self {
            Scalar::Float(value) => Some(value),
            _ => None,
        }
    }

    /// As bytes, if it is a string.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Scalar::String(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The value of a key.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A single one.
    Scalar(Scalar<'a>),
    /// Several of one type.
    Array(Array<'a>),
}

/// Several scalars of one type.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    kind: Kind,
    count: u64,
    start: Cursor<'a>,
}

impl<'a> Array<'a> {
    /// Number of items.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The items, from the first on.
    pub fn items(&self) -> Items<'a> {
        Items { kind: self.kind, left: self.count, cursor: self.start }
    }
}

/// Walks an array.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a> {
    kind: Kind,
    left: u64,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Items<'a> {
    type Item = Scalar<'a>;

    fn next(&mut self) -> Option<Scalar<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The whole array was walked when the file was parsed, so no item fails here.
        scalar(&mut self.cursor, self.kind).ok()
    }
}

/// The types of scalars, with the numbers that files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

const ARRAY: u32 = 9;

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::U8,
        Kind::I8,
        Kind::U16,
        Kind::I16,
        Kind::U32,
        Kind::I32,
        Kind::F32,
        Kind::Bool,
        Kind::String,
        Kind::U64,
        Kind::I64,
        Kind::F64,
    ];

    fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Bytes of one item; `None` for strings and booleans, whose items must be looked at.
    fn fixed_bytes(self) -> Option<u64> {
        match self {
            Kind::U8 | Kind::I8 => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::Bool | Kind::String => None,
        }
    }
}

const VALUE: &str = "gguf metadata value";
const VALUE_TYPE: &str = "gguf metadata value type";

/// Reads the value that follows a key and leaves the cursor behind it.
pub fn read<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>> {
    let number = cursor.u32(VALUE_TYPE)?;
    if number != ARRAY {
        return Ok(Value::Scalar(scalar(cursor, kind_of(number)?)?));
    }
    let array = array(cursor)?;
    if let Some(bytes) = array.kind.fixed_bytes() {
        let bytes = array.count.checked_mul(bytes);
        cursor.take(bytes.unwrap_or(u64::MAX), VALUE)?;
    } else {
        // Each item takes a byte at least, so a count that lies ends at the end of the file.
        for _ in 0..array.count {
            scalar(cursor, array.kind)?;
        }
    }
    Ok(Value::Array(array))
}

/// Reads a value without walking to the end of an array: for files that were checked before.
pub fn peek<'a>(cursor: &mut Cursor<'a>) -> Result<Value<'a>> {
    match cursor.u32(VALUE_TYPE)? {
        ARRAY => Ok(Value::Array(array(cursor)?)),
        number => Ok(Value::Scalar(scalar(cursor, kind_of(number)?)?)),
    }
}

/// Arrays of arrays are legal but nothing uses them; refusing them bounds the nesting.
fn array<'a>(cursor: &mut Cursor<'a>) -> Result<Array<'a>> {
    let kind = kind_of(cursor.u32("gguf array type")?)?;
    let count = cursor.u64("gguf array length")?;
    Ok(Array { kind, count, start: *cursor })
}

fn kind_of(number: u32) -> Result<Kind> {
    Kind::from_number(number).ok_or(Error::new(Code::Unsupported, VALUE_TYPE).with(number))
}

fn scalar<'a>(cursor: &mut Cursor<'a>, kind: Kind) -> Result<Scalar<'a>> {
    Ok(match kind {
        Kind::U8 => Scalar::Unsigned(cursor.u8(VALUE)?.into()),
        Kind::U16 => Scalar::Unsigned(cursor.u16(VALUE)?.into()),
        Kind::U32 => Scalar::Unsigned(cursor.u32(VALUE)?.into()),
        Kind::U64 => Scalar::Unsigned(cursor.u64(VALUE)?),
        Kind::I8 => Scalar::Signed(cursor.u8(VALUE)?.cast_signed().into()),
        Kind::I16 => Scalar::Signed(cursor.u16(VALUE)?.cast_signed().into()),
        Kind::I32 => Scalar::Signed(cursor.u32(VALUE)?.cast_signed().into()),
        Kind::I64 => Scalar::Signed(cursor.u64(VALUE)?.cast_signed()),
        Kind::F32 => Scalar::Float(f32::from_bits(cursor.u32(VALUE)?).into()),
        Kind::F64 => Scalar::Float(f64::from_bits(cursor.u64(VALUE)?)),
        Kind::Bool => match cursor.u8(VALUE)? {
            0 => Scalar::Bool(false),
            1 => Scalar::Bool(true),
            _ => return Err(Error::new(Code::Corrupt, "gguf boolean").with(cursor.at() - 1)),
        },
        Kind::String => Scalar::String(cursor.string(VALUE)?),
    })
}
