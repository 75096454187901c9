//! Tensor descriptions: name, shape, encoding and where the bytes are.

use super::cursor::Cursor;
use crate::error::{Code, Error, Result};
use crate::kernel::math::WeightType;

/// Most dimensions of a tensor, as ggml has it.
const DIMS_MAX: usize = 4;

/// Longest name, as ggml has it.
const NAME_BYTES_MAX: usize = 64;

/// One tensor of a file; its range was checked against the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// Values along each dimension, fastest first; 1 beyond the file's own count.
    pub dims: [u64; DIMS_MAX],
    /// Where its bytes start in the file.
    pub file_offset: u64,
    /// How many there are.
    pub bytes: u64,
    /// ggml's number of its encoding.
    type_number: u32,
}

impl TensorInfo<'_> {
    /// Its encoding; `Unsupported` when the file may hold it but the kernels do not know it.
    pub fn weight_type(&self) -> Result<WeightType> {
        Ok(match self.type_number {
            0 => WeightType::F32,
            1 => WeightType::F16,
            2 => WeightType::Q4_0,
            3 => WeightType::Q4_1,
            8 => WeightType::Q8_0,
            12 => WeightType::Q4K,
            14 => WeightType::Q6K,
            30 => WeightType::Bf16,
            number => return Err(Error::new(Code::Unsupported, "tensor type").with(number)),
        })
    }
}

/// Values and bytes of one block of ggml's type `number`.
fn block_of(number: u32) -> Option<(u64, u64)> {
    Some(match number {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        9 => (32, 36),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        15 => (256, 292),
        _ => return None,
    })
}

/// Where the data lies and what offsets must be multiples of.
#[derive(Clone, Copy, Debug)]
pub struct DataArea {
    /// Start of the data in the file.
    pub start: u64,
    /// End of the file.
    pub end: u64,
    /// A power of two.
    pub alignment: u64,
}

/// Moves past one description; its name and type number.
pub fn skip(cursor: &mut Cursor<'_>) -> Result<()> {
    parse(cursor, None).map(|_| ())
}

/// Moves past a description that was read before; its name.
pub fn skip_to_next<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let name = cursor.string("gguf tensor name")?;
    let count = cursor.u32("gguf tensor dimensions")?;
    // Behind the dimensions come the type and the offset.
    cursor.take(8 * u64::from(count) + 12, "gguf tensor offset")?;
    Ok(name)
}

/// Reads one description and checks its range.
pub fn read<'a>(cursor: &mut Cursor<'a>, area: &DataArea) -> Result<TensorInfo<'a>> {
    parse(cursor, Some(area))
}

/// Where the data starts is known only behind the last description, so a first walk goes without.
fn parse<'a>(cursor: &mut Cursor<'a>, area: Option<&DataArea>) -> Result<TensorInfo<'a>> {
    let start = cursor.at();
    let fail = |code, what| Err(Error::new(code, what).with(start));
    let name = cursor.text("gguf tensor name")?;
    if name.len() > NAME_BYTES_MAX {
        return fail(Code::LimitExceeded, "gguf tensor name");
    }
    let count = cursor.u32("gguf tensor dimensions")? as usize;
    if !(1..=DIMS_MAX).contains(&count) {
        return fail(Code::Corrupt, "gguf tensor dimensions");
    }
    let mut dims = [1; DIMS_MAX];
    for dim in &mut dims[..count] {
        *dim = cursor.u64("gguf tensor dimensions")?;
    }
    let type_number = cursor.u32("gguf tensor type")?;
    let offset = cursor.u64("gguf tensor offset")?;
    let Some((block_values, block_bytes)) = block_of(type_number) else {
        return Err(Error::new(Code::Unsupported, "tensor type").with(type_number));
    };
    if dims.contains(&0) || !dims[0].is_multiple_of(block_values) {
        return fail(Code::Corrupt, "gguf tensor dimensions");
    }
    let blocks = dims[1..].iter().try_fold(dims[0] / block_values, |n, dim| n.checked_mul(*dim));
    let Some(bytes) = blocks.and_then(|blocks| blocks.checked_mul(block_bytes)) else {
        return fail(Code::Corrupt, "gguf tensor dimensions");
    };
    let mut file_offset = 0;
    if let Some(area) = area {
        if !offset.is_multiple_of(area.alignment) {
            return fail(Code::Corrupt, "gguf tensor offset");
        }
        file_offset = area.start.saturating_add(offset);
        if file_offset.checked_add(bytes).is_none_or(|end| end > area.end) {
            return fail(Code::Truncated, "gguf tensor data");
        }
    }
    Ok(TensorInfo { name, dims, file_offset, bytes, type_number })
}

/// Walks a file's tensors in the order of their descriptions.
#[derive(Clone, Debug)]
pub struct Tensors<'a> {
    cursor: Cursor<'a>,
    left: u64,
    area: DataArea,
}

impl<'a> Tensors<'a> {
    /// `left` descriptions from the cursor on.
    pub(super) fn new(cursor: Cursor<'a>, left: u64, area: DataArea) -> Self {
        Tensors { cursor, left, area }
    }
}

impl<'a> Iterator for Tensors<'a> {
    type Item = TensorInfo<'a>;

    fn next(&mut self) -> Option<TensorInfo<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Every description was read when the file was parsed, so none fails here.
        read(&mut self.cursor, &self.area).ok()
    }
}
