//! The step profile of K: how coarse each channel may become, frozen for as long as a context
//! lives.
//!
//! A channel's base step is 0.55 times the root mean square of its layer's K, weighted by how
//! little query energy meets it: attention sums products of query and key, so that an error in a
//! channel which queries use weighs more. Query energy is a property of the model, not of the text.
//! Codecs multiply base steps by a constant of their own. (After KVQuant's sensitivity weights and
//! KIVI's channel-wise K.)
//!
//! Serialised, little-endian:
//!
//! ```text
//!  0  magic "mzST"     4  version u32     8  layers u16    10  kv_heads u16    12  head_dim u16
//! 14  zero, 14 bytes                     28  CRC-32C of the steps and of 0..28 u32
//! 32  base steps f32  [layer][kv_head][head_dim]
//! ```
//!
//! The checksum is also the id by which packed chunks name the steps; 0, which means no steps, is
//! replaced by 1. Invariant: every step is finite and within [`STEP_MIN`] and [`STEP_MAX`]. The
//! arithmetic is the four operations in F64 and one exact root, so that all machines agree.

use super::geometry::check_shape;
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::kernel::portable::f32_from_f16;
use crate::limits::LAYERS_MAX;
use crate::units::{KvShape, LayerIndex};

/// Bytes before the steps in the serialised form.
pub const STEPS_HEADER_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"mzST";
const VERSION: u32 = 1;
const ID_AT: usize = 28;

/// 2^-24, the least F16 magnitude.
const STEP_MIN: f32 = f32::from_bits((127 - 24) << 23);
/// The greatest F16.
const STEP_MAX: f32 = 65504.0;
/// Base step of a channel with average query energy, in parts of the layer's root mean square.
const BASE: f64 = 0.55;
/// Channels are taken to have at least this part of their layer's mean query energy: none becomes
/// more than 64 times as coarse as the average.
const ENERGY_MIN: f64 = 1.0 / 4096.0;

/// Which channels of a head rotary embedding turns together; they share one step, since the angle
/// moves energy between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// Channels `2 i` and `2 i + 1`, as Llama models have them.
    Adjacent,
    /// Channels `i` and `i + head_dim / 2`, as NeoX and Qwen models have them.
    Halves,
}

/// Base steps of all layers, in the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps<'a> {
    shape: KvShape,
    pub(super) k: &'a [f32],
    id: u32,
}

/// Base steps of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSteps<'a> {
    /// Names the whole profile; never 0.
    pub id: u32,
    /// One step a channel of K, `[kv_head][head_dim]`.
    pub k: &'a [f32],
}

impl<'a> Steps<'a> {
    /// Numbers of memory that a profile for this shape takes.
    pub const fn values(shape: &KvShape) -> usize {
        shape.layers as usize * shape.kv_heads as usize * shape.head_dim as usize
    }

    /// Bytes of the serialised form.
    pub const fn serialised_bytes(shape: &KvShape) -> usize {
        STEPS_HEADER_BYTES + 4 * Self::values(shape)
    }

    /// The same step for all channels of a layer, from the mean square of each layer's K.
    pub fn uniform(
        kernels: &Kernels,
        shape: KvShape,
        k_mean_squares: &[f64],
        memory: &'a mut [f32],
    ) -> Result<Self> {
        let k = own_memory(&shape, k_mean_squares, memory)?;
        k.fill(1.0);
        weigh(&shape, k_mean_squares, k);
        Ok(Steps::new(kernels, shape, k))
    }

    /// From query energies, which `memory` holds in the order of the steps that replace them: of
    /// each K channel the sum or the mean of squared query values, over the query heads that read
    /// it. Only their ratios within a layer count. After an error the memory holds nothing useful.
    pub fn from_energy(
        kernels: &Kernels,
        shape: KvShape,
        k_mean_squares: &[f64],
        pairs: RotaryPairs,
        memory: &'a mut [f32],
    ) -> Result<Self> {
        let k = own_memory(&shape, k_mean_squares, memory)?;
        if let Some(channel) = k.iter().position(|energy| !energy.is_finite() || *energy < 0.0) {
            return Err(Error::new(Code::InvalidArgument, "query energy").with(channel));
        }
        for head in k.chunks_exact_mut(usize::from(shape.head_dim)) {
            average_pairs(pairs, head);
        }
        weigh(&shape, k_mean_squares, k);
        Ok(Steps::new(kernels, shape, k))
    }

    /// Reads the serialised form of a profile for this shape; bytes behind it are ignored.
    ///
    /// # Errors
    ///
    /// [`Code::Truncated`], [`Code::BadMagic`], [`Code::Unsupported`] (version), [`Code::Corrupt`]
    /// (checksum, reserved bytes, a step that is not in range), [`Code::Mismatch`] (shape).
    pub fn parse(
        kernels: &Kernels,
        shape: KvShape,
        bytes: &[u8],
        memory: &'a mut [f32],
    ) -> Result<Self> {
        let Some((header, rest)) = bytes.split_first_chunk::<STEPS_HEADER_BYTES>() else {
            return Err(Error::new(Code::Truncated, "steps header").with(bytes.len()));
        };
        let expected = header_of(&shape);
        if header[..4] != MAGIC {
            return Err(Error::new(Code::BadMagic, "steps"));
        }
        if header[4..8] != expected[4..8] {
            return Err(Error::new(Code::Unsupported, "steps version").with(header[4]));
        }
        for (at, what) in [(8, "steps layers"), (10, "steps kv_heads"), (12, "steps head_dim")] {
            if header[at..at + 2] != expected[at..at + 2] {
                let value = u16::from_le_bytes([header[at], header[at + 1]]);
                return Err(Error::new(Code::Mismatch, what).with(value));
            }
        }
        if header[14..ID_AT] != expected[14..ID_AT] {
            return Err(Error::new(Code::Corrupt, "steps reserved bytes"));
        }
        let k = take(&shape, memory)?;
        let Some(stored) = rest.get(..4 * k.len()) else {
            return Err(Error::new(Code::Truncated, "steps").with(rest.len()));
        };
        let id = u32::from_le_bytes([header[28], header[29], header[30], header[31]]);
        if id_of(kernels, &expected, stored) != id {
            return Err(Error::new(Code::Corrupt, "steps checksum").with(id));
        }
        let (stored, _) = stored.as_chunks::<4>();
        for (step, &bytes) in k.iter_mut().zip(stored) {
            *step = f32::from_le_bytes(bytes);
        }
        // Numbers that are no numbers lie in no range.
        match k.iter().position(|step| !(STEP_MIN..=STEP_MAX).contains(step)) {
            Some(channel) => Err(Error::new(Code::Corrupt, "step").with(channel)),
            None => Ok(Steps { shape, k, id }),
        }
    }

    /// Writes the serialised form into the first [`Steps::serialised_bytes`] of `out`.
    pub fn write(&self, out: &mut [u8]) -> Result<()> {
        let bytes = Self::serialised_bytes(&self.shape);
        let Some(out) = out.get_mut(..bytes) else {
            return Err(Error::new(Code::MemoryTooSmall, "steps").with(bytes));
        };
        let (header, rest) = out.split_at_mut(STEPS_HEADER_BYTES);
        header.copy_from_slice(&header_of(&self.shape));
        header[ID_AT..].copy_from_slice(&self.id.to_le_bytes());
        rest.copy_from_slice(view::bytes_of(self.k));
        Ok(())
    }

    /// The name by which packed chunks refer to these steps; never 0.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The steps of one layer; `None` past the last.
    pub fn layer(&self, layer: LayerIndex) -> Option<LayerSteps<'a>> {
        let channels = self.k.len() / usize::from(self.shape.layers);
        let k = self.k.chunks_exact(channels).nth(layer.index())?;
        Some(LayerSteps { id: self.id, k })
    }

    fn new(kernels: &Kernels, shape: KvShape, k: &'a [f32]) -> Self {
        let id = id_of(kernels, &header_of(&shape), view::bytes_of(k));
        Steps { shape, k, id }
    }
}

/// The mean square of K values in F16, for [`Steps::uniform`] and [`Steps::from_energy`]. What is
/// not finite is left out.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub fn mean_square<'v>(runs: impl Iterator<Item = &'v [u16]>) -> f64 {
    let (mut sum, mut count) = (0.0, 0u64);
    for value in runs.flatten().map(|&half| f64::from(f32_from_f16(half))) {
        if value.is_finite() {
            sum += value * value;
            count += 1;
        }
    }
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// The header without the checksum.
fn header_of(shape: &KvShape) -> [u8; STEPS_HEADER_BYTES] {
    let mut header = [0; STEPS_HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..10].copy_from_slice(&shape.layers.to_le_bytes());
    header[10..12].copy_from_slice(&shape.kv_heads.to_le_bytes());
    header[12..14].copy_from_slice(&shape.head_dim.to_le_bytes());
    header
}

fn id_of(kernels: &Kernels, header: &[u8; STEPS_HEADER_BYTES], steps: &[u8]) -> u32 {
    let crc = kernels.crc32c.call(kernels.crc32c.call(0, steps), &header[..ID_AT]);
    crc.max(1)
}

/// The memory that a profile of this shape takes.
fn take<'a>(shape: &KvShape, memory: &'a mut [f32]) -> Result<&'a mut [f32]> {
    check_shape(shape)?;
    if !(1..=LAYERS_MAX).contains(&shape.layers) {
        return Err(Error::new(Code::InvalidArgument, "layers").with(shape.layers));
    }
    let values = Steps::values(shape);
    memory.get_mut(..values).ok_or(Error::new(Code::MemoryTooSmall, "steps memory").with(values))
}

/// The same, with one mean square a layer.
fn own_memory<'a>(
    shape: &KvShape,
    k_mean_squares: &[f64],
    memory: &'a mut [f32],
) -> Result<&'a mut [f32]> {
    let k = take(shape, memory)?;
    if k_mean_squares.len() != usize::from(shape.layers) {
        return Err(Error::new(Code::InvalidArgument, "mean squares").with(k_mean_squares.len()));
    }
    match k_mean_squares.iter().position(|square| !square.is_finite() || *square < 0.0) {
        Some(layer) => Err(Error::new(Code::InvalidArgument, "mean square of K").with(layer)),
        None => Ok(k),
    }
}

/// Gives both channels of a pair their mean.
fn average_pairs(pairs: RotaryPairs, head: &mut [f32]) {
    let average = |a: &mut f32, b: &mut f32| {
        let mean = *a / 2.0 + *b / 2.0;
        (*a, *b) = (mean, mean);
    };
    match pairs {
        RotaryPairs::Adjacent => {
            let (pairs, _) = head.as_chunks_mut::<2>();
            pairs.iter_mut().for_each(|[a, b]| average(a, b));
        }
        RotaryPairs::Halves => {
            let (first, second) = head.split_at_mut(head.len() / 2);
            first.iter_mut().zip(second).for_each(|(a, b)| average(a, b));
        }
    }
}

/// Turns energies into steps, layer by layer.
#[expect(clippy::cast_precision_loss, reason = "channels stay far below 2^53")]
fn weigh(shape: &KvShape, k_mean_squares: &[f64], k: &mut [f32]) {
    let channels = k.len() / usize::from(shape.layers);
    for (layer, mean_square) in k.chunks_exact_mut(channels).zip(k_mean_squares) {
        let sum: f64 = layer.iter().map(|&energy| f64::from(energy)).sum();
        let mean = sum / channels as f64;
        for step in layer {
            // Without any energy all channels count alike.
            let part = if mean > 0.0 { f64::from(*step) / mean } else { 1.0 };
            let square = BASE * BASE * mean_square / part.max(ENERGY_MIN);
            *step = root(square);
        }
    }
}

/// The square root, rounded to nearest, of what lies within the range of steps; the end of the
/// range for others.
#[expect(clippy::cast_precision_loss, reason = "this is the rounding")]
pub(super) fn root(square: f64) -> f32 {
    const SQUARE_MIN: f64 = STEP_MIN as f64 * STEP_MIN as f64;
    const SQUARE_MAX: f64 = STEP_MAX as f64 * STEP_MAX as f64;
    let bits = square.clamp(SQUARE_MIN, SQUARE_MAX).to_bits();
    let exponent = (bits >> 52) as u32;
    // Positive and normal: the square is an integer of 61 or 62 bits over 4^down.
    let down = (1084 - exponent) / 2;
    let fraction = 1 << 52 | bits & ((1 << 52) - 1);
    let integer: u64 = fraction << if exponent.is_multiple_of(2) { 9 } else { 8 };
    let root = integer.isqrt();
    // One more bit says whether the root is a little greater; then one conversion rounds.
    let root = root << 1 | u64::from(root * root != integer);
    root as f32 * f32::from_bits((126 - down) << 23)
}
