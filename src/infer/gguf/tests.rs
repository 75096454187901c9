//! Files made by hand, each with one thing wrong, and what the reader says about it.

use super::{Gguf, Scalar, Value};
use crate::error::{Code, Error};
use crate::limits::{GGUF_KEYS_MAX, GGUF_TENSORS_MAX};
use std::string::String;
use std::vec::Vec;

/// Writes a file piece by piece.
#[derive(Clone)]
struct Writer {
    version: u32,
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data_bytes: usize,
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(name.as_bytes()), &kind.to_le_bytes()[..], value].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name.as_bytes());
    bytes.extend((dims.len() as u32).to_le_bytes());
    bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

impl Writer {
    /// One key, one tensor of 64 bytes.
    fn small() -> Writer {
        Writer {
            version: 3,
            keys: Vec::from([key("general.architecture", 8, &string(b"llama"))]),
            tensors: Vec::from([tensor("x", &[8, 2], 0, 0)]),
            data_bytes: 64,
        }
    }

    fn with_key(mut self, name: &str, kind: u32, value: &[u8]) -> Writer {
        self.keys.push(key(name, kind, value));
        self
    }

    fn with_tensor(mut self, tensor: Vec<u8>) -> Writer {
        self.tensors.push(tensor);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_with_counts(self.tensors.len() as u64, self.keys.len() as u64)
    }

    fn bytes_with_counts(&self, tensors: u64, keys: u64) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes.extend(self.keys.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32) + self.data_bytes, 7);
        bytes
    }

    fn error(&self) -> Error {
        Gguf::parse(&self.bytes()).unwrap_err()
    }
}

fn check(error: Error, code: Code, what: &str) {
    assert_eq!((error.code, error.what), (code, what), "{error}");
}

#[test]
fn a_small_file_is_read_in_both_versions() {
    for version in [2, 3] {
        let bytes = Writer { version, ..Writer::small() }.bytes();
        let file = Gguf::parse(&bytes).unwrap();
        assert_eq!(file.architecture().unwrap(), "llama");
        assert_eq!(file.tensors().count(), 1);
        let tensor = file.tensor("x").unwrap();
        assert_eq!((tensor.dims, tensor.bytes), ([8, 2, 1, 1], 64));
        assert_eq!(tensor.file_offset % 32, 0);
        assert_eq!(file.tensor_bytes(&tensor).unwrap(), [7; 64]);
        assert!(file.tensor("y").is_none());
        assert_eq!(file.bytes().len(), bytes.len());
    }
}

#[test]
fn every_type_of_value_is_read() {
    let file = Writer::small()
        .with_key("u8", 0, &[200])
        .with_key("i8", 1, &[0xff])
        .with_key("u16", 2, &60000u16.to_le_bytes())
        .with_key("i16", 3, &(-2i16).to_le_bytes())
        .with_key("u32", 4, &7u32.to_le_bytes())
        .with_key("i32", 5, &(-7i32).to_le_bytes())
        .with_key("f32", 6, &1.5f32.to_le_bytes())
        .with_key("yes", 7, &[1])
        .with_key("text", 8, &string("né".as_bytes()))
        .with_key("u64", 10, &u64::MAX.to_le_bytes())
        .with_key("i64", 11, &i64::MIN.to_le_bytes())
        .with_key("f64", 12, &(-0.5f64).to_le_bytes())
        .bytes();
    let file = Gguf::parse(&file).unwrap();
    let scalar = |key: &str| match file.get(key) {
        Some(Value::Scalar(scalar)) => scalar,
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(scalar("u8"), Scalar::Unsigned(200));
    assert_eq!(scalar("i8"), Scalar::Signed(-1));
    assert_eq!(scalar("u16"), Scalar::Unsigned(60000));
    assert_eq!(scalar("i16"), Scalar::Signed(-2));
    assert_eq!(scalar("i32"), Scalar::Signed(-7));
    assert_eq!(scalar("u64"), Scalar::Unsigned(u64::MAX));
    assert_eq!(scalar("i64"), Scalar::Signed(i64::MIN));
    assert_eq!(scalar("f64"), Scalar::Float(-0.5));
    assert_eq!(scalar("f32").float(), Some(1.5));
    assert_eq!(file.u32("u32").unwrap(), Some(7));
    assert_eq!(file.bool("yes").unwrap(), Some(true));
    assert_eq!(file.text("text").unwrap(), Some("né"));
    assert_eq!(file.text("absent").unwrap(), None);
    assert_eq!(file.keys().count(), 13);
    assert_eq!(Scalar::Signed(-1).unsigned(), None);
    assert_eq!(Scalar::Signed(5).unsigned(), Some(5));
    assert_eq!(Scalar::Unsigned(u64::MAX).signed(), None);
    assert_eq!(Scalar::Unsigned(5).signed(), Some(5));
    assert_eq!((Scalar::Bool(true).signed(), Scalar::Bool(true).float()), (None, None));
}

#[test]
fn the_wrong_type_is_an_error_that_names_the_key() {
    let array = [&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &9u32.to_le_bytes()].concat();
    let file = Writer::small()
        .with_key("number", 4, &7u32.to_le_bytes())
        .with_key("negative", 5, &(-7i32).to_le_bytes())
        .with_key("bytes", 8, &string(&[0xff]))
        .with_key("list", 9, &array)
        .bytes();
    let file = Gguf::parse(&file).unwrap();
    check(file.text("number").unwrap_err(), Code::Corrupt, "number");
    check(file.bool("number").unwrap_err(), Code::Corrupt, "number");
    check(file.array("number").unwrap_err(), Code::Corrupt, "number");
    check(file.u32("negative").unwrap_err(), Code::Corrupt, "negative");
    check(file.text("bytes").unwrap_err(), Code::Corrupt, "bytes");
    check(file.u32("list").unwrap_err(), Code::Unsupported, "list");
    assert!(file.array("absent").unwrap().is_none());
    let no_name = Writer { keys: Vec::new(), ..Writer::small() }.bytes();
    let error = Gguf::parse(&no_name).unwrap().architecture().unwrap_err();
    check(error, Code::Corrupt, "general.architecture is missing");
}

#[test]
fn arrays_give_their_items() {
    let strings = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &string(b"a"), &string(b"")];
    let floats = [&6u32.to_le_bytes()[..], &1u64.to_le_bytes(), &0.25f32.to_le_bytes()];
    let flags = [&7u32.to_le_bytes()[..], &3u64.to_le_bytes(), &[1, 0, 1]];
    let file = Writer::small()
        .with_key("strings", 9, &strings.concat())
        .with_key("floats", 9, &floats.concat())
        .with_key("flags", 9, &flags.concat())
        .bytes();
    let file = Gguf::parse(&file).unwrap();
    let strings = file.array("strings").unwrap().unwrap();
    assert_eq!(strings.count(), 2);
    let items: Vec<_> = strings.items().map(|item| item.bytes().unwrap()).collect();
    assert_eq!(items, [&b"a"[..], b""]);
    let floats = file.array("floats").unwrap().unwrap();
    assert_eq!(floats.items().next().unwrap().float(), Some(0.25));
    let flags = file.array("flags").unwrap().unwrap();
    assert_eq!(flags.items().filter(|flag| *flag == Scalar::Bool(true)).count(), 2);
}

#[test]
fn another_kind_or_version_of_file_is_refused() {
    check(Gguf::parse(b"GGML....").unwrap_err(), Code::BadMagic, "gguf magic");
    check(Gguf::parse(b"GG").unwrap_err(), Code::Truncated, "gguf magic");
    for version in [0, 1, 4, 3u32.swap_bytes()] {
        let error = Writer { version, ..Writer::small() }.error();
        check(error, Code::Unsupported, "gguf version");
        assert_eq!(error.value, i64::from(version));
    }
}

#[test]
fn counts_that_lie_end_at_the_end_of_the_file_or_at_a_limit() {
    let parse = |tensors, keys| {
        let bytes = Writer { data_bytes: 0, ..Writer::small() }.bytes_with_counts(tensors, keys);
        Gguf::parse(&bytes).unwrap_err()
    };
    assert_eq!(parse(1, GGUF_KEYS_MAX as u64).code, Code::Truncated);
    check(parse(1, GGUF_KEYS_MAX as u64 + 1), Code::LimitExceeded, "gguf key count");
    check(parse(1, u64::MAX), Code::LimitExceeded, "gguf key count");
    assert_eq!(parse(GGUF_TENSORS_MAX, 1).code, Code::Truncated);
    check(parse(GGUF_TENSORS_MAX + 1, 1), Code::LimitExceeded, "gguf tensor count");
    for kind in [0u32, 7, 8, 12] {
        for count in [1 << 20, u64::MAX / 8 + 1, u64::MAX] {
            let array = [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
            let error = Writer::small().with_key("list", 9, &array).error();
            assert!([Code::Truncated, Code::Corrupt].contains(&error.code), "{kind} {error}");
        }
    }
    for length in [100_000, u64::MAX] {
        let error = Writer::small().with_key("text", 8, &length.to_le_bytes()).error();
        check(error, Code::Truncated, "gguf metadata value");
    }
}

#[test]
fn bad_keys_and_values_are_refused() {
    let small = Writer::small;
    let again = small().with_key("general.architecture", 0, &[1]);
    check(again.error(), Code::Corrupt, "gguf key occurs twice");
    check(small().with_key("flag", 7, &[2]).error(), Code::Corrupt, "gguf boolean");
    let unknown = small().with_key("what", 13, &[0]).error();
    check(unknown, Code::Unsupported, "gguf metadata value type");
    assert_eq!(unknown.value, 13);
    let nested = [&9u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    let nested = small().with_key("lists", 9, &nested).error();
    check(nested, Code::Unsupported, "gguf metadata value type");
    let mut not_text = small();
    not_text.keys.push([&string(&[0xc3, 0x28]), &0u32.to_le_bytes()[..], &[0]].concat());
    check(not_text.error(), Code::Corrupt, "gguf key");
    let long: String = "k".repeat(65_536);
    check(small().with_key(&long, 0, &[0]).error(), Code::LimitExceeded, "gguf key");
    for alignment in [0u32, 3, 1 << 17] {
        let error = small().with_key("general.alignment", 4, &alignment.to_le_bytes()).error();
        check(error, Code::Corrupt, "general.alignment");
    }
    let text = small().with_key("general.alignment", 8, &string(b"32")).error();
    check(text, Code::Corrupt, "general.alignment");
}

#[test]
fn bad_tensors_are_refused() {
    let dims = "gguf tensor dimensions";
    let cases = [
        (tensor("x", &[8], 0, 0), Code::Corrupt, "gguf tensor occurs twice"),
        (tensor("y", &[], 0, 0), Code::Corrupt, dims),
        (tensor("y", &[1, 1, 1, 1, 1], 0, 0), Code::Corrupt, dims),
        (tensor("y", &[0], 0, 0), Code::Corrupt, dims),
        (tensor("y", &[4, 0], 0, 0), Code::Corrupt, dims),
        (tensor("y", &[33], 8, 0), Code::Corrupt, dims),
        (tensor("y", &[1 << 40, 1 << 40], 0, 0), Code::Corrupt, dims),
        (tensor("y", &[1 << 62], 0, 0), Code::Corrupt, dims),
        (tensor("y", &[4], 99, 0), Code::Unsupported, "tensor type"),
        (tensor("y", &[4], 0, 4), Code::Corrupt, "gguf tensor offset"),
        (tensor("y", &[17], 0, 0), Code::Truncated, "gguf tensor data"),
        (tensor("y", &[4], 0, 64), Code::Truncated, "gguf tensor data"),
        (tensor("y", &[4], 0, u64::MAX - 31), Code::Truncated, "gguf tensor data"),
        (tensor(&"n".repeat(65), &[4], 0, 0), Code::LimitExceeded, "gguf tensor name"),
    ];
    for (tensor, code, what) in cases {
        check(Writer::small().with_tensor(tensor).error(), code, what);
    }
    let mut not_text = tensor("y", &[4], 0, 0);
    not_text[8] = 0xff;
    check(Writer::small().with_tensor(not_text).error(), Code::Corrupt, "gguf tensor name");
}

#[test]
fn types_that_the_kernels_lack_are_read_but_not_decoded() {
    let file = Writer::small().with_tensor(tensor("y", &[32], 6, 0)).bytes();
    let file = Gguf::parse(&file).unwrap();
    let tensor = file.tensor("y").unwrap();
    assert_eq!(tensor.bytes, 22);
    let error = tensor.weight_type().unwrap_err();
    check(error, Code::Unsupported, "tensor type");
    assert_eq!(error.value, 6);
}

#[test]
fn a_stated_alignment_moves_the_data() {
    let small = Writer { data_bytes: 4096, ..Writer::small() };
    let bytes = small.with_key("general.alignment", 4, &1024u32.to_le_bytes()).bytes();
    assert_eq!(Gguf::parse(&bytes).unwrap().tensor("x").unwrap().file_offset, 1024);
}

#[test]
fn a_file_cut_anywhere_is_refused_unless_only_padding_is_gone() {
    let strings = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &string(b"ab"), &string(b"c")];
    let bytes = Writer::small().with_key("strings", 9, &strings.concat()).bytes();
    for end in 0..bytes.len() {
        let error = Gguf::parse(&bytes[..end]).unwrap_err();
        assert_eq!(error.code, Code::Truncated, "{end} {error}");
    }
}
