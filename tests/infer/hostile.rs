//! Model files with bytes changed or missing: an error, or a model that is consistent in itself.

use crate::support::fixture;
use mzcache::arena::{Arena, Sizer};
use mzcache::infer::Model;
use mzcache::infer::gguf::Gguf;
use mzcache::infer::model::Tensor;
use mzcache::limits::IO_ALIGN;
use mzcache::units::WeightUnit;
use mzcache::{Code, Error, Result};
use std::mem::MaybeUninit;

/// Arena memory that is used again for each model.
struct Memory(*mut [MaybeUninit<u8>]);

impl Memory {
    fn new() -> Memory {
        Memory(Box::leak(vec![MaybeUninit::uninit(); 1 << 20].into_boxed_slice()))
    }

    /// Opens a model, checks it and forgets it; says how many layers it has.
    fn open(&mut self, bytes: &[u8]) -> Result<u16> {
        let gguf = Gguf::parse(bytes)?;
        let mut sizer = Sizer::new();
        let sized = Model::size(&gguf, &mut sizer);
        // SAFETY: the memory was leaked, and what borrowed it in the call before is gone: nothing
        // of the model leaves this function.
        let mut arena = Arena::new(unsafe { &mut *self.0 })?;
        let model = Model::open(&gguf, &mut arena);
        assert_eq!(sized.err(), model.as_ref().err().copied());
        let model = model?;
        assert_eq!(arena.seal(), sizer.used());
        assert_consistent(&model, bytes.len() as u64);
        Ok(model.shape.layers)
    }
}

fn assert_consistent(model: &Model, file_bytes: u64) {
    let shape = &model.shape;
    assert_eq!(model.layers.len(), usize::from(shape.layers));
    assert_eq!(model.units.len(), usize::from(shape.layers) + 1);
    assert_eq!(model.rope_frequencies.len() * 2, usize::from(shape.head_dim));
    assert_eq!(shape.heads % usize::from(shape.kv_heads), 0);
    for unit in model.units {
        let mut end = 0;
        for extent in unit.extents {
            assert_eq!(extent.buffer_offset, end);
            assert!(extent.bytes > 0);
            for number in [extent.file_offset, extent.bytes, extent.buffer_offset] {
                assert_eq!(number % IO_ALIGN as u64, 0);
            }
            end += extent.bytes;
            let file_end = file_bytes.next_multiple_of(IO_ALIGN as u64);
            assert!(extent.file_offset + extent.bytes <= file_end);
        }
        assert_eq!(unit.bytes(), end);
    }
    for (layer, unit) in model.layers.iter().zip(model.units) {
        layer.tensors().for_each(|tensor| assert_inside(tensor, unit));
    }
    let head = model.units.last().unwrap();
    assert_inside(&model.head.norm, head);
    assert_inside(&model.head.output, head);
    let rows = model.embedding.row_bytes as u64 * shape.vocabulary as u64;
    assert!(model.embedding.file_offset + rows <= file_bytes);
}

fn assert_inside(tensor: &Tensor, unit: &WeightUnit<'_>) {
    assert!((tensor.offset + tensor.bytes) as u64 <= unit.bytes());
    assert_eq!(tensor.kind.bytes(tensor.cols).unwrap() * tensor.rows, tensor.bytes);
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture(&format!("oracles/{name}.gguf"))).unwrap()
}

/// Where the descriptions end and padding begins.
fn header_bytes(file: &[u8]) -> usize {
    let gguf = Gguf::parse(file).unwrap();
    gguf.tensors().map(|tensor| tensor.file_offset as usize).min().unwrap()
}

const MODELS: [&str; 3] = ["llama", "llama3", "qwen3"];

#[test]
fn a_file_cut_anywhere_in_its_header_is_refused() {
    let mut memory = Memory::new();
    for name in MODELS {
        let file = read(name);
        assert_eq!(memory.open(&file), Ok(6));
        let header = header_bytes(&file);
        for end in 0..=header {
            let error = memory.open(&file[..end]).unwrap_err();
            assert_eq!(error.code, Code::Truncated, "{end} {error}");
        }
        // The last tensor lacks its last byte.
        assert_eq!(memory.open(&file[..file.len() - 1]).unwrap_err().code, Code::Truncated);
    }
}

#[test]
fn every_flipped_bit_in_a_header_gives_an_error_or_a_consistent_model() {
    let mut memory = Memory::new();
    for name in MODELS {
        let mut file = read(name);
        let mut refused = 0;
        let bits = 8 * header_bytes(&file);
        for bit in 0..bits {
            file[bit / 8] ^= 1 << (bit % 8);
            refused += usize::from(memory.open(&file).is_err());
            file[bit / 8] ^= 1 << (bit % 8);
        }
        // Token texts, names and the like may change freely; what matters may not.
        println!("{name}: {refused} of {bits} flipped bits were refused");
        assert!(refused > bits / 10);
        assert!(refused < bits);
    }
}

/// Replaces a text that occurs in the header by another of the same length.
fn replaced(name: &str, old: &str, new: &str) -> Result<u16> {
    assert_eq!(old.len(), new.len());
    let mut file = read(name);
    let header = header_bytes(&file);
    let places: Vec<usize> =
        (0..header).filter(|at| file[*at..].starts_with(old.as_bytes())).collect();
    assert!(!places.is_empty(), "{old}");
    for at in places {
        file[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
    Memory::new().open(&file)
}

/// Changes the four bytes of a number that follows a key.
fn with_number(name: &str, key: &str, value: [u8; 4]) -> Result<u16> {
    let mut file = read(name);
    let header = header_bytes(&file);
    let at = (0..header).find(|at| file[*at..].starts_with(key.as_bytes())).unwrap();
    let number = at + key.len() + 4;
    file[number..number + 4].copy_from_slice(&value);
    Memory::new().open(&file)
}

fn check(result: Result<u16>, code: Code, what: &str) {
    let Error { code: got, what: named, .. } = result.unwrap_err();
    assert_eq!((got, named), (code, what));
}

#[test]
fn architectures_that_are_not_computed_are_refused_by_name() {
    check(replaced("llama", "llama", "gemma"), Code::Unsupported, "architecture gemma");
    check(replaced("llama", "llama", "qwen2"), Code::Unsupported, "architecture qwen2");
    check(replaced("llama", "llama", "other"), Code::Unsupported, "general.architecture");
    check(replaced("llama3", "general.arch", "general.Arch"), Code::Corrupt, MISSING);
    for name in ["exaone4", "gemma2", "gemma3", "qwen2moe", "qwen3moe", "phi3"] {
        let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        for text in ["general.architecture", name] {
            file.extend((text.len() as u64).to_le_bytes());
            file.extend(text.as_bytes());
            if text != name {
                file.extend(8u32.to_le_bytes());
            }
        }
        let error = Memory::new().open(&file).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
        assert_eq!(error.what, format!("architecture {name}"));
    }
}

const MISSING: &str = "general.architecture is missing";

#[test]
fn numbers_that_make_no_model_are_refused_by_name() {
    let (corrupt, too_large) = (Code::Corrupt, Code::LimitExceeded);
    let cases = [
        ("block_count", 0, corrupt),
        ("block_count", 256, too_large),
        ("embedding_length", 0, corrupt),
        ("embedding_length", u32::MAX, too_large),
        ("feed_forward_length", 0, corrupt),
        ("attention.head_count", 0, corrupt),
        ("attention.head_count_kv", 0, corrupt),
        ("attention.head_count_kv", 3, Code::Unsupported),
        ("attention.key_length", 33, Code::Unsupported),
        ("attention.key_length", 1024, Code::Unsupported),
        ("attention.value_length", 64, Code::Unsupported),
        ("rope.dimension_count", 16, Code::Unsupported),
        ("context_length", 0, corrupt),
        ("vocab_size", 321, Code::Mismatch),
        ("rope.freq_base", f32::NAN.to_bits(), corrupt),
        ("rope.freq_base", (-1f32).to_bits(), corrupt),
        ("attention.layer_norm_rms_epsilon", 0, corrupt),
        ("attention.layer_norm_rms_epsilon", f32::INFINITY.to_bits(), corrupt),
    ];
    for (key, value, code) in cases {
        let result = with_number("llama", &format!("llama.{key}"), value.to_le_bytes());
        check(result, code, key);
    }
    let wider = with_number("llama", "llama.embedding_length", 128u32.to_le_bytes());
    assert_eq!(wider.unwrap_err().code, Code::Mismatch);
    let fewer = with_number("llama", "llama.block_count", 5u32.to_le_bytes());
    check(fewer, Code::Unsupported, "tensor unknown to the architecture");
    let more = with_number("llama", "llama.block_count", 7u32.to_le_bytes());
    check(more, corrupt, "attn_norm.weight");
}

/// Adds a key under the architecture's name.
fn with_key(key: &str, kind: u32, value: &[u8]) -> Result<u16> {
    let mut file = read("llama");
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut keys = [&string(&format!("llama.{key}")), &kind.to_le_bytes()[..], value].concat();
    // A second key fills up to the alignment, so that the data need not move against it.
    keys.extend([&string("filler"), &8u32.to_le_bytes()[..]].concat());
    let filled = (keys.len() + 8).next_multiple_of(32) - keys.len() - 8;
    keys.extend(string(&" ".repeat(filled)));
    file[16] += 2;
    file.splice(24..24, keys);
    Memory::new().open(&file)
}

#[test]
fn variants_that_compute_something_else_are_refused_by_name() {
    let one = 1u32.to_le_bytes();
    let yarn = [&4u64.to_le_bytes()[..], b"yarn"].concat();
    let none = [&4u64.to_le_bytes()[..], b"none"].concat();
    for (key, kind, value) in [
        ("expert_count", 4, &one[..]),
        ("attention.sliding_window", 4, &one),
        ("rope.scaling.type", 8, &yarn),
        ("attention.scale", 6, &1f32.to_le_bytes()),
    ] {
        check(with_key(key, kind, value), Code::Unsupported, key);
    }
    assert_eq!(with_key("expert_count", 4, &[0; 4]), Ok(6));
    assert_eq!(with_key("rope.scaling.type", 8, &none), Ok(6));
}

#[test]
fn tensors_that_are_missing_or_unknown_are_refused_by_name() {
    let swap = |old: &str, new: &str| replaced("llama", old, new);
    let unknown = "tensor unknown to the architecture";
    check(swap("blk.3.attn_k.weight", "blk.3.attn_x.weight"), Code::Unsupported, unknown);
    check(swap("output_norm.weight", "output_morn.weight"), Code::Unsupported, unknown);
    check(swap("blk.3.ffn_up.weight", "blk.4.ffn_up.weight"), Code::Corrupt, TWICE);
    check(swap("blk.3.attn_norm.weight", "blk.3.attn_morn.weight"), Code::Unsupported, unknown);
    check(swap("token_embd.weight", "token_ebmd.weight"), Code::Corrupt, NO_EMBEDDING);
    // A norm of heads means nothing to llama.
    check(replaced("qwen3", "qwen3", "llama"), Code::Unsupported, unknown);
    // A bias in the place of a matrix leaves the matrix missing.
    check(swap("blk.3.ffn_gate.weight", "blk.3.ffn_gate.biases"), Code::Unsupported, unknown);
}

const TWICE: &str = "gguf tensor occurs twice";
const NO_EMBEDDING: &str = "token_embd.weight is missing";

#[test]
fn frequency_factors_must_be_positive_numbers() {
    let file = read("llama3");
    let gguf = Gguf::parse(&file).unwrap();
    let offset = gguf.tensor("rope_freqs.weight").unwrap().file_offset as usize;
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let mut file = file.clone();
        file[offset + 8..offset + 12].copy_from_slice(&f32::to_le_bytes(value));
        let error = Memory::new().open(&file).unwrap_err();
        assert_eq!((error.code, error.what, error.value), (Code::Corrupt, "rope_freqs.weight", 2));
    }
}
