//! A small GGUF reader for tests: just enough to see what was written, and to get at a vocabulary.

use crate::text::Vocabulary;
use std::collections::HashMap;

#[derive(Clone, Debug)]
pub enum Value {
    Number(f64),
    Text(String),
    List(Vec<Value>),
}

#[derive(Debug)]
pub struct TensorEntry {
    pub name: String,
    pub shape: Vec<u64>,
    pub kind: u64,
    pub offset: u64,
}

#[derive(Debug)]
pub struct Gguf {
    pub metadata: HashMap<String, Value>,
    pub tensors: Vec<TensorEntry>,
    pub data_start: u64,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }

    fn int(&mut self, count: usize) -> Option<u64> {
        let mut value = [0; 8];
        value[..count].copy_from_slice(self.take(count)?);
        Some(u64::from_le_bytes(value))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.int(8)? as usize;
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }

    fn value(&mut self, kind: u64) -> Option<Value> {
        Some(match kind {
            0 | 1 | 7 => Value::Number(self.int(1)? as f64),
            2 | 3 => Value::Number(self.int(2)? as f64),
            4 => Value::Number(self.int(4)? as f64),
            5 => Value::Number(f64::from(self.int(4)? as u32 as i32)),
            6 => Value::Number(f64::from(f32::from_bits(self.int(4)? as u32))),
            8 => Value::Text(self.text()?),
            9 => {
                let kind = self.int(4)?;
                let count = self.int(8)?;
                Value::List((0..count).map(|_| self.value(kind)).collect::<Option<_>>()?)
            }
            10 | 11 => Value::Number(self.int(8)? as f64),
            12 => Value::Number(f64::from_bits(self.int(8)?)),
            _ => return None,
        })
    }
}

impl Gguf {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor { bytes, at: 0 };
        assert_eq!(cursor.take(4)?, b"GGUF");
        assert_eq!(cursor.int(4)?, 3);
        let (tensors, keys) = (cursor.int(8)?, cursor.int(8)?);
        let mut metadata = HashMap::new();
        for _ in 0..keys {
            let key = cursor.text()?;
            let kind = cursor.int(4)?;
            let value = cursor.value(kind)?;
            assert!(metadata.insert(key.clone(), value).is_none(), "{key} twice");
        }
        let mut table = Vec::new();
        for _ in 0..tensors {
            let name = cursor.text()?;
            let sides = cursor.int(4)?;
            let shape = (0..sides).map(|_| cursor.int(8)).collect::<Option<_>>()?;
            table.push(TensorEntry { name, shape, kind: cursor.int(4)?, offset: cursor.int(8)? });
        }
        let data_start = (cursor.at as u64).next_multiple_of(32);
        Some(Gguf { metadata, tensors: table, data_start })
    }

    pub fn string(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn number(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn list<T>(&self, key: &str, each: impl Fn(&Value) -> T) -> Vec<T> {
        match self.metadata.get(key) {
            Some(Value::List(values)) => values.iter().map(each).collect(),
            _ => Vec::new(),
        }
    }

    pub fn vocabulary(&self) -> Vocabulary {
        let text = |value: &Value| match value {
            Value::Text(text) => text.clone(),
            other => panic!("{other:?} is no text"),
        };
        let number = |value: &Value| match value {
            Value::Number(number) => *number,
            other => panic!("{other:?} is no number"),
        };
        let id = |key: &str| self.number(key).map(|id| id as u32);
        let flag = |key: &str| self.number(key).map(|flag| flag != 0.0);
        Vocabulary {
            model: self.string("tokenizer.ggml.model").unwrap_or_default().to_owned(),
            pre: self.string("tokenizer.ggml.pre").map(str::to_owned),
            tokens: self.list("tokenizer.ggml.tokens", text),
            scores: self.list("tokenizer.ggml.scores", |value| number(value) as f32),
            token_types: self.list("tokenizer.ggml.token_type", |value| number(value) as i32),
            merges: self.list("tokenizer.ggml.merges", text),
            bos: id("tokenizer.ggml.bos_token_id"),
            eos: id("tokenizer.ggml.eos_token_id"),
            unk: id("tokenizer.ggml.unknown_token_id"),
            add_bos: flag("tokenizer.ggml.add_bos_token"),
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix"),
            chat_template: self.string("tokenizer.chat_template").map(str::to_owned),
        }
    }
}
