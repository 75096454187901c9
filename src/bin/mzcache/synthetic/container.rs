//! The head of a GGUF file (version 3, little-endian): metadata, then the table of tensors, then
//! padding up to the first tensor's bytes.

/// Tensor data starts at multiples of this, the format's default.
pub const ALIGN: u64 = 32;

const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;

const KIND_U32: u32 = 4;
const KIND_I32: u32 = 5;
const KIND_F32: u32 = 6;
const KIND_BOOL: u32 = 7;
const KIND_STRING: u32 = 8;
const KIND_ARRAY: u32 = 9;

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    F32,
    F16,
}

impl Storage {
    const fn number(self) -> u32 {
        match self {
            Storage::F32 => 0,
            Storage::F16 => 1,
        }
    }

    pub const fn value_bytes(self) -> u64 {
        match self {
            Storage::F32 => 4,
            Storage::F16 => 2,
        }
    }
}

/// Counts, metadata and tensor table, as they grow.
#[derive(Debug, Default)]
pub struct Head {
    keys: u64,
    metadata: Vec<u8>,
    tensors: u64,
    table: Vec<u8>,
    /// Bytes of all tensors so far, padded.
    data_bytes: u64,
}

impl Head {
    pub fn u32(&mut self, key: &str, value: u32) {
        self.key(key, KIND_U32);
        self.metadata.extend(value.to_le_bytes());
    }

    pub fn f32(&mut self, key: &str, value: f32) {
        self.key(key, KIND_F32);
        self.metadata.extend(value.to_le_bytes());
    }

    pub fn bool(&mut self, key: &str, value: bool) {
        self.key(key, KIND_BOOL);
        self.metadata.push(u8::from(value));
    }

    pub fn string(&mut self, key: &str, value: &str) {
        self.key(key, KIND_STRING);
        string(&mut self.metadata, value);
    }

    pub fn strings(&mut self, key: &str, values: &[String]) {
        self.array(key, KIND_STRING, values.len());
        for value in values {
            string(&mut self.metadata, value);
        }
    }

    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, KIND_I32, values.len());
        self.metadata.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Adds a tensor behind those before; `shape` begins with the fastest dimension.
    pub fn tensor(&mut self, name: &str, shape: &[u32], storage: Storage) {
        self.tensors += 1;
        string(&mut self.table, name);
        self.table.extend(length32(shape.len()).to_le_bytes());
        let mut bytes = storage.value_bytes();
        for side in shape {
            self.table.extend(u64::from(*side).to_le_bytes());
            bytes *= u64::from(*side);
        }
        self.table.extend(storage.number().to_le_bytes());
        self.table.extend(self.data_bytes.to_le_bytes());
        self.data_bytes += bytes.next_multiple_of(ALIGN);
    }

    /// The bytes before the first tensor, and the length of the whole file.
    pub fn finish(self) -> (Vec<u8>, u64) {
        let mut head = Vec::with_capacity(24 + self.metadata.len() + self.table.len() + 32);
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend(self.tensors.to_le_bytes());
        head.extend(self.keys.to_le_bytes());
        head.extend(self.metadata);
        head.extend(self.table);
        head.resize(head.len().next_multiple_of(ALIGN as usize), 0);
        let file_bytes = head.len() as u64 + self.data_bytes;
        (head, file_bytes)
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.keys += 1;
        string(&mut self.metadata, key);
        self.metadata.extend(kind.to_le_bytes());
    }

    fn array(&mut self, key: &str, kind: u32, count: usize) {
        self.key(key, KIND_ARRAY);
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend((count as u64).to_le_bytes());
    }
}

fn string(into: &mut Vec<u8>, value: &str) {
    into.extend((value.len() as u64).to_le_bytes());
    into.extend(value.as_bytes());
}

fn length32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or_else(|_| unreachable!("tensors have at most 2 dimensions"))
}
