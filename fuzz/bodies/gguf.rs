//! Model files: reading them never panics, and what was accepted lies inside the file.

use super::memory::with_memory;
use mzcache::arena::{Arena, Sizer};
use mzcache::infer::Model;
use mzcache::infer::gguf::{Gguf, Scalar, Value};
use mzcache::limits::IO_ALIGN;
use mzcache::{Code, Result};

/// More than the tables of the largest model take.
const MODEL_BYTES_MAX: usize = 1 << 20;

/// Reads the bytes as a whole model file; whether it holds a model that this build computes.
pub fn gguf(data: &[u8]) -> bool {
    let Ok(gguf) = Gguf::parse(data) else { return false };
    let mut items = 0;
    for key in gguf.keys() {
        items += match gguf.get(key) {
            Some(Value::Scalar(scalar)) => look_at(scalar),
            Some(Value::Array(array)) => {
                let count = array.items().map(look_at).sum();
                assert_eq!(array.count(), count);
                count
            }
            None => unreachable!("a key that was listed has a value"),
        };
    }
    // Each takes a byte of its own, so that the loops above end.
    assert!(items <= data.len() as u64);
    for (index, tensor) in gguf.tensors().enumerate() {
        // A search for each of thousands takes its time.
        if index < 64 {
            assert_eq!(gguf.tensor(tensor.name), Some(tensor));
        }
        let bytes = gguf.tensor_bytes(&tensor).unwrap();
        assert_eq!(bytes.len() as u64, tensor.bytes);
        assert!(!bytes.is_empty());
    }
    let mut sizer = Sizer::new();
    let sized = Model::size(&gguf, &mut sizer);
    let bytes = sizer.required().unwrap();
    assert!(bytes <= MODEL_BYTES_MAX);
    let opened = open(&gguf, bytes, sizer.used(), data.len() as u64);
    assert!(sized.is_ok() || opened.is_err());
    if opened.is_ok() {
        assert_eq!(open(&gguf, 0, 0, 0).unwrap_err().code, Code::MemoryTooSmall);
    }
    opened.is_ok()
}

/// Converts it in every way; 1, to be summed.
fn look_at(scalar: Scalar<'_>) -> u64 {
    let ways = [
        scalar.unsigned().is_some() || scalar.signed().is_some(),
        scalar.float().is_some(),
        scalar.bytes().is_some(),
        matches!(scalar, Scalar::Bool(_)),
    ];
    assert_eq!(ways.into_iter().filter(|is_it| *is_it).count(), 1);
    1
}

fn open(gguf: &Gguf<'_>, memory_bytes: usize, used: usize, file_bytes: u64) -> Result<()> {
    let run = |memory| {
        let mut arena = Arena::new(memory)?;
        let model = Model::open(gguf, &mut arena)?;
        assert_eq!(arena.seal(), used);
        check(&model, file_bytes);
        Ok(())
    };
    // SAFETY: the arena and the model, which alone refer to the memory, end with the closure.
    unsafe { with_memory(memory_bytes, run) }
}

/// Every tensor lies in its unit, every unit in the file's pages.
fn check(model: &Model, file_bytes: u64) {
    let file_end = file_bytes.next_multiple_of(IO_ALIGN as u64);
    for unit in model.units {
        let mut buffer_end = 0;
        let mut end = 0;
        for extent in unit.extents {
            assert_eq!(extent.buffer_offset, buffer_end);
            assert!(extent.file_offset.is_multiple_of(IO_ALIGN as u64));
            assert!(extent.file_offset >= end);
            buffer_end += extent.bytes;
            end = extent.file_offset + extent.bytes;
            assert!(end <= file_end);
        }
        assert!(buffer_end > 0);
    }
    assert_eq!(model.units.len(), model.layers.len() + 1);
    let unit = model.units[model.layers.len()];
    for tensor in [&model.head.norm, &model.head.output] {
        assert!((tensor.offset + tensor.bytes) as u64 <= unit.bytes());
        assert_eq!(tensor.kind.bytes(tensor.cols).map(|row| row * tensor.rows), Some(tensor.bytes));
    }
    let rows = (model.embedding.row_bytes * model.shape.vocabulary) as u64;
    assert!(model.embedding.file_offset + rows <= file_bytes);
    assert_eq!(model.rope_frequencies.len(), usize::from(model.shape.head_dim / 2));
}
