//! Random weights that behave like trained ones.
//!
//! Each matrix is normal noise, scaled so that activations keep their size from layer to layer,
//! attention looks at a handful of places rather than at everything, and one token leads the
//! logits by more than a packed KV cache disturbs them. With that, greedy text does not repeat one
//! word for ever, and it changes when a chunk of the KV cache is wrong. Stronger attention, or more
//! unequal embeddings, were tried: 30 layers then settle on one word.

use super::container::{ALIGN, Storage};
use crate::random::Random;
use mzcache::kernel::Kernels;
use mzcache::port::linux::host_cpu;
use std::io::{self, Write};

/// Standard deviation of attention scores before softmax.
const SCORE_SPREAD: f64 = 2.0;
/// Size of what attention adds to the residual stream, relative to its mean of values.
const ATTENTION_GAIN: f64 = 0.35;
/// Size of an embedding; small, so that a token's own row does not dominate what comes out.
const EMBEDDING: f64 = 0.002;
/// How unequal the rows of the embedding are (log-normal): few tokens lead the logits.
const ROW_SPREAD: f64 = 0.5;
/// Scale of the last norm; lifts logits to a spread of a few units.
pub const OUTPUT_NORM: f32 = 32.0;
/// Norms on queries and keys, where they stand for the scale of the matrices.
pub const HEAD_NORM: f32 = std::f32::consts::SQRT_2;

/// What a tensor is filled with.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// The same F32 value everywhere.
    Constant(f32),
    /// These F32 values.
    Values(Vec<f32>),
    /// F16 noise of one size.
    Noise(f64),
    /// F16 noise whose rows differ in size: the embedding.
    Embedding,
}

impl Fill {
    /// A matrix that keeps the size of its input.
    pub fn keeping(inputs: u32) -> Self {
        Fill::Noise(f64::from(inputs).sqrt().recip())
    }

    /// The query or key matrix.
    pub fn scoring(inputs: u32) -> Self {
        Fill::Noise((SCORE_SPREAD / f64::from(inputs)).sqrt())
    }

    /// The matrix after attention.
    pub fn attending(inputs: u32) -> Self {
        Fill::Noise(ATTENTION_GAIN / f64::from(inputs).sqrt())
    }

    pub const fn storage(&self) -> Storage {
        match self {
            Fill::Constant(_) | Fill::Values(_) => Storage::F32,
            Fill::Noise(_) | Fill::Embedding => Storage::F16,
        }
    }
}

const TABLE: usize = 4096;
const BUFFER_BYTES: usize = 1 << 20;

/// Writes tensors one after the other.
pub struct Weights<'a> {
    out: &'a mut dyn Write,
    /// Hears of bytes as they go out.
    written: &'a dyn Fn(u64),
    /// The normal distribution at equally likely places.
    quantiles: Vec<f32>,
    kernels: Kernels,
    seed: u64,
    buffer: Vec<u8>,
    row: Vec<f32>,
    row_f16: Vec<u16>,
}

impl<'a> Weights<'a> {
    pub fn new(seed: u64, out: &'a mut dyn Write, written: &'a dyn Fn(u64)) -> Self {
        Weights {
            out,
            written,
            quantiles: quantiles(),
            kernels: Kernels::select(host_cpu()),
            seed,
            buffer: Vec::with_capacity(2 * BUFFER_BYTES),
            row: Vec::new(),
            row_f16: Vec::new(),
        }
    }

    /// Writes tensor number `index`, padded.
    pub fn tensor(&mut self, index: u64, columns: u32, rows: u32, fill: &Fill) -> io::Result<()> {
        let mut random = Random::stream(self.seed, index);
        let mut bytes = 0u64;
        for _ in 0..rows {
            let before = self.buffer.len();
            match fill {
                Fill::Constant(value) => self.put((0..columns).map(|_| *value)),
                Fill::Values(values) => self.put(values.iter().copied()),
                Fill::Noise(size) => self.put_noise(&mut random, columns, *size),
                Fill::Embedding => {
                    let size = EMBEDDING * (ROW_SPREAD * normal(&mut random)).exp();
                    self.put_noise(&mut random, columns, size);
                }
            }
            bytes += (self.buffer.len() - before) as u64;
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush()?;
            }
        }
        let padding = bytes.next_multiple_of(ALIGN) - bytes;
        self.buffer.extend((0..padding).map(|_| 0));
        self.flush()
    }

    fn put(&mut self, values: impl Iterator<Item = f32>) {
        self.buffer.extend(values.flat_map(f32::to_le_bytes));
    }

    /// A row of F16 noise: each draw of 64 bits gives five values.
    #[expect(clippy::cast_possible_truncation, reason = "sizes are exact enough as f32")]
    fn put_noise(&mut self, random: &mut Random, columns: u32, size: f64) {
        let columns = columns as usize;
        let size = size as f32;
        self.row.resize(columns, 0.0);
        self.row_f16.resize(columns, 0);
        for five in self.row.chunks_mut(5) {
            let mut bits = random.next();
            for value in five {
                *value = self.quantiles[bits as usize % TABLE] * size;
                bits >>= TABLE.ilog2();
            }
        }
        self.kernels.f32_to_f16.call(&self.row, &mut self.row_f16);
        let start = self.buffer.len();
        self.buffer.resize(start + columns * 2, 0);
        for (bytes, value) in self.buffer[start..].chunks_exact_mut(2).zip(&self.row_f16) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        (self.written)(self.buffer.len() as u64);
        self.buffer.clear();
        Ok(())
    }
}

/// Where the normal distribution reaches the middle of each of 4,096 equal shares, by adding up
/// its density in small steps.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a table of f32 from small integers"
)]
fn quantiles() -> Vec<f32> {
    const STEP: f64 = 1.0 / 8192.0;
    let root = (2.0 * std::f64::consts::PI).sqrt();
    let mut table = Vec::with_capacity(TABLE);
    let mut sum = 0.0;
    let mut place: f64 = -6.0;
    while table.len() < TABLE {
        sum += (-place * place / 2.0).exp() / root * STEP;
        place += STEP;
        let share = (table.len() as f64 + 0.5) / TABLE as f64;
        if sum >= share {
            table.push(place as f32);
        }
    }
    table
}

/// One normal number (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (2.0 * std::f64::consts::PI * random.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(columns: u32, rows: u32, fill: &Fill) -> Vec<u8> {
        let mut out = Vec::new();
        Weights::new(1, &mut out, &|_| ()).tensor(0, columns, rows, fill).unwrap();
        out
    }

    fn values(bytes: &[u8]) -> Vec<f64> {
        let bits: Vec<u16> =
            bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let mut singles = vec![0.0; bits.len()];
        Kernels::portable().f16_to_f32.call(&bits, &mut singles);
        singles.into_iter().map(f64::from).collect()
    }

    fn spread(values: &[f64]) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
        (squares / values.len() as f64).sqrt()
    }

    #[test]
    fn the_table_is_the_normal_distribution() {
        let table: Vec<f64> = quantiles().into_iter().map(f64::from).collect();
        assert_eq!(table.len(), TABLE);
        assert!((spread(&table) - 1.0).abs() < 0.01);
        assert!(table.windows(2).all(|pair| pair[0] < pair[1]));
        assert!((table[0] + table[TABLE - 1]).abs() < 0.01);
        // One in 40 lies above 1.96.
        let above = table.iter().filter(|value| **value > 1.96).count();
        assert!((100..=105).contains(&above), "{above}");
    }

    #[test]
    fn matrices_have_the_size_asked_for() {
        let found = spread(&values(&written(576, 100, &Fill::keeping(576))));
        assert!((found * 24.0 - 1.0).abs() < 0.02, "{found}");
        let found = spread(&values(&written(576, 100, &Fill::scoring(576))));
        assert!((found * 24.0 - 2f64.sqrt()).abs() < 0.03, "{found}");
    }

    #[test]
    fn rows_of_the_embedding_differ_in_size() {
        let all = values(&written(64, 4000, &Fill::Embedding));
        let logs: Vec<f64> = all.chunks_exact(64).map(|row| spread(row).ln()).collect();
        assert!((spread(&logs) - ROW_SPREAD).abs() < 0.05, "{}", spread(&logs));
        assert!(all.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn tensors_are_padded_reproducible_and_different() {
        assert_eq!(written(3, 1, &Fill::Constant(1.5)).len(), 32);
        let values = written(2, 1, &Fill::Values(vec![1.0, 2.0]));
        assert_eq!(values[..8], [0, 0, 128, 63, 0, 0, 0, 64]);
        let noise = Fill::keeping(7);
        assert_eq!(written(7, 3, &noise).len(), 64);
        assert_eq!(written(7, 3, &noise), written(7, 3, &noise));
        let mut out = Vec::new();
        Weights::new(1, &mut out, &|_| ()).tensor(1, 7, 3, &noise).unwrap();
        assert_ne!(out, written(7, 3, &noise));
    }
}
