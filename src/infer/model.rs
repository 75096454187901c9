//! A checked model: its shape, its weight units and where each tensor lies in them.
//!
//! Made from a GGUF file at open; keeps nothing of the file's bytes but the rotary frequencies. The
//! embedding is in no unit of its own: rows are read one by one from the file. With tied weights it
//! is the output matrix too, and then part of the head unit.

use super::gguf::{Gguf, TensorInfo};
use super::layout::Layout;
pub use super::names::Role;
use super::names::{ROLES, split_layer_name};
pub use super::shape::{Architecture, Shape};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::kernel::math::WeightType;
use crate::units::{Extent, LayerIndex, WeightUnit};

/// Where a matrix or vector lies in its unit's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// First byte in the buffer.
    pub offset: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Its encoding.
    pub kind: WeightType,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs, or the values of a vector.
    pub cols: usize,
}

impl Tensor {
    /// Its bytes in a unit's buffer.
    pub fn in_unit<'a>(&self, unit: &'a [u8]) -> Result<&'a [u8]> {
        let range = self.offset..self.offset.saturating_add(self.bytes);
        unit.get(range).ok_or(Error::new(Code::Truncated, "weight unit").with(unit.len()))
    }
}

/// The tensors of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    tensors: [Option<Tensor>; ROLES],
}

impl Layer {
    /// A tensor that may be absent.
    pub fn optional(&self, role: Role) -> Option<&Tensor> {
        self.tensors[role.index()].as_ref()
    }

    /// Those that are there.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().flatten()
    }

    /// A tensor whose presence was checked at open.
    pub fn tensor(&self, role: Role) -> &Tensor {
        match self.optional(role) {
            Some(tensor) => tensor,
            None => unreachable!("checked when the model was opened"),
        }
    }
}

/// The tensors of the head unit.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The last RMS norm.
    pub norm: Tensor,
    /// From the residual stream to logits.
    pub output: Tensor,
}

/// Where embedding rows are in the file.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// First byte of the first row.
    pub file_offset: u64,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Its encoding.
    pub kind: WeightType,
}

/// A model that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Dimensions and constants.
    pub shape: Shape,
    /// Tensors of each layer.
    pub layers: &'static [Layer],
    /// Tensors of the head.
    pub head: Head,
    /// What each layer's unit is read from; the head's comes last.
    pub units: &'static [WeightUnit<'static>],
    /// Embedding rows.
    pub embedding: Embedding,
    /// Angle per position of each rotary pair.
    pub rope_frequencies: &'static [f32],
}

impl Model {
    /// Adds what [`Model::open`] places, and checks the file as it does.
    pub fn size(gguf: &Gguf<'_>, sizer: &mut Sizer) -> Result<()> {
        let shape = Shape::read(gguf)?;
        check_names(gguf, &shape)?;
        sizer.slice::<Layer>(shape.layers.into())?;
        for layer in 0..shape.layers {
            let (_, layout) = layer_plan(gguf, &shape, layer)?;
            sizer.slice::<Extent>(layout.extents().len())?;
        }
        let (_, layout) = head_plan(gguf, &shape)?;
        sizer.slice::<Extent>(layout.extents().len())?;
        sizer.slice::<WeightUnit<'static>>(usize::from(shape.layers) + 1)?;
        rope_frequencies(gguf, &shape)?;
        embedding(gguf, &shape)?;
        sizer.slice::<f32>(usize::from(shape.head_dim / 2))
    }

    /// Checks a file and lays its units out.
    pub fn open(gguf: &Gguf<'_>, arena: &mut Arena) -> Result<Self> {
        let shape = Shape::read(gguf)?;
        check_names(gguf, &shape)?;
        let layers = arena.slice(shape.layers.into(), |_| Layer { tensors: [None; ROLES] })?;
        let nothing = WeightUnit { extents: &[] };
        let mut plans = [nothing; crate::limits::LAYERS_MAX as usize];
        for (index, layer) in (0..shape.layers).zip(layers.iter_mut()) {
            let (tensors, layout) = layer_plan(gguf, &shape, index)?;
            layer.tensors = tensors;
            plans[usize::from(index)] = unit(&layout, arena)?;
        }
        let (head, layout) = head_plan(gguf, &shape)?;
        plans[usize::from(shape.layers)] = unit(&layout, arena)?;
        let units = arena.slice(usize::from(shape.layers) + 1, |index| plans[index])?;
        let frequencies = rope_frequencies(gguf, &shape)?;
        let pairs = usize::from(shape.head_dim / 2);
        let rope_frequencies = arena.slice(pairs, |pair| frequencies[pair])?;
        let embedding = embedding(gguf, &shape)?;
        Ok(Model { shape, layers, head, units, embedding, rope_frequencies })
    }

    /// The index of the head's unit.
    pub fn head_unit(&self) -> LayerIndex {
        LayerIndex::new(self.shape.layers)
    }
}

fn unit(layout: &Layout, arena: &mut Arena) -> Result<WeightUnit<'static>> {
    let extents = arena.slice(layout.extents().len(), |index| layout.extents()[index])?;
    Ok(WeightUnit { extents })
}

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";
const OUTPUT_NORM: &str = "output_norm.weight";
const ROPE: &str = "rope_freqs.weight";

/// A tensor that would be left out of the computation means that the file holds another model.
fn check_names(gguf: &Gguf<'_>, shape: &Shape) -> Result<()> {
    for (index, tensor) in gguf.tensors().enumerate() {
        let known = match split_layer_name(tensor.name) {
            Some((layer, rest)) => layer < shape.layers && role_of(shape, rest).is_some(),
            None => [EMBEDDING, OUTPUT, OUTPUT_NORM, ROPE].contains(&tensor.name),
        };
        if !known {
            let error = Error::new(Code::Unsupported, "tensor unknown to the architecture");
            return Err(error.with(index));
        }
    }
    Ok(())
}

fn role_of(shape: &Shape, name: &str) -> Option<Role> {
    Role::from_name(name).filter(|role| !role.is_head_norm() || shape.architecture.has_head_norms())
}

/// Rows and columns that a role's tensor must have; one row means a vector.
fn dims_of(shape: &Shape, role: Role) -> (usize, usize) {
    let (hidden, feed_forward) = (shape.hidden, shape.feed_forward);
    let (query, kv) = (shape.query_values(), shape.kv_values());
    match role {
        Role::AttnNorm | Role::FfnNorm | Role::AttnOutputBias | Role::DownBias => (1, hidden),
        Role::Q => (query, hidden),
        Role::K | Role::V => (kv, hidden),
        Role::AttnOutput => (hidden, query),
        Role::QNorm | Role::KNorm => (1, shape.head_dim.into()),
        Role::Gate | Role::Up => (feed_forward, hidden),
        Role::Down => (hidden, feed_forward),
        Role::QBias => (1, query),
        Role::KBias | Role::VBias => (1, kv),
        Role::GateBias | Role::UpBias => (1, feed_forward),
    }
}

/// Checks dimensions and encoding; the offset is filled in by the layout.
fn tensor(info: &TensorInfo<'_>, what: &'static str, dims: (usize, usize)) -> Result<Tensor> {
    let (rows, cols) = dims;
    if info.dims != [cols as u64, rows as u64, 1, 1] {
        return Err(Error::new(Code::Mismatch, what).with(info.dims[1]));
    }
    let kind = info.weight_type()?;
    // Norms and biases are read in place, one value at a time.
    if rows == 1 && kind != WeightType::F32 {
        return Err(Error::new(Code::Unsupported, what));
    }
    let bytes = usize::try_from(info.bytes).map_err(|_| Error::new(Code::LimitExceeded, what))?;
    let expected = kind.bytes(cols).and_then(|bytes| bytes.checked_mul(rows));
    assert_eq!(expected, Some(bytes));
    Ok(Tensor { offset: 0, bytes, kind, rows, cols })
}

fn layer_plan(
    gguf: &Gguf<'_>,
    shape: &Shape,
    layer: u16,
) -> Result<([Option<Tensor>; ROLES], Layout)> {
    let mut infos = [None; ROLES];
    for info in gguf.tensors() {
        if let Some((number, rest)) = split_layer_name(info.name)
            && number == layer
            && let Some(role) = role_of(shape, rest)
        {
            infos[role.index()] = Some(info);
        }
    }
    let layout = Layout::new(infos.iter().flatten().copied())?;
    let mut tensors = [None; ROLES];
    for role in Role::ALL {
        let needed = match role {
            _ if role.is_bias() => false,
            _ if role.is_head_norm() => shape.architecture.has_head_norms(),
            _ => true,
        };
        match &infos[role.index()] {
            Some(info) => {
                let found = tensor(info, role.name(), dims_of(shape, role))?;
                let offset = layout.buffer_offset(info)?;
                tensors[role.index()] = Some(Tensor { offset, ..found });
            }
            None if needed => return Err(Error::new(Code::Corrupt, role.name()).with(layer)),
            None => {}
        }
    }
    Ok((tensors, layout))
}

fn required<'a>(gguf: &Gguf<'a>, name: &'static str) -> Result<TensorInfo<'a>> {
    gguf.tensor(name).ok_or(Error::new(Code::Corrupt, name))
}

fn head_plan(gguf: &Gguf<'_>, shape: &Shape) -> Result<(Head, Layout)> {
    let norm_info = required(gguf, OUTPUT_NORM)?;
    let output_info = match gguf.tensor(OUTPUT) {
        Some(output) => output,
        None => required(gguf, EMBEDDING)?,
    };
    let layout = Layout::new([norm_info, output_info].into_iter())?;
    let norm = tensor(&norm_info, OUTPUT_NORM, (1, shape.hidden))?;
    let output = tensor(&output_info, OUTPUT, (shape.vocabulary, shape.hidden))?;
    let head = Head {
        norm: Tensor { offset: layout.buffer_offset(&norm_info)?, ..norm },
        output: Tensor { offset: layout.buffer_offset(&output_info)?, ..output },
    };
    Ok((head, layout))
}

fn embedding(gguf: &Gguf<'_>, shape: &Shape) -> Result<Embedding> {
    let info = required(gguf, EMBEDDING)?;
    let table = tensor(&info, EMBEDDING, (shape.vocabulary, shape.hidden))?;
    Ok(Embedding {
        file_offset: info.file_offset,
        row_bytes: table.bytes / table.rows,
        kind: table.kind,
    })
}

const PAIRS_MAX: usize = crate::limits::HEAD_DIM_MAX as usize / 2;

/// `base^(-2 pair / head_dim)`, divided by the file's factors where it has some.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
fn rope_frequencies(gguf: &Gguf<'_>, shape: &Shape) -> Result<[f32; PAIRS_MAX]> {
    let pairs = usize::from(shape.head_dim / 2);
    let mut frequencies = [0.0; PAIRS_MAX];
    for (pair, frequency) in frequencies[..pairs].iter_mut().enumerate() {
        let exponent = -(pair as f64) / pairs as f64;
        *frequency = f64::from(shape.rope_base).powf(exponent) as f32;
    }
    let Some(info) = gguf.tensor(ROPE) else { return Ok(frequencies) };
    tensor(&info, ROPE, (1, pairs))?;
    let bytes = gguf.tensor_bytes(&info)?;
    for (pair, (frequency, factor)) in frequencies.iter_mut().zip(bytes.chunks_exact(4)).enumerate()
    {
        let factor = f32::from_le_bytes([factor[0], factor[1], factor[2], factor[3]]);
        if !factor.is_finite() || factor <= 0.0 {
            return Err(Error::new(Code::Corrupt, ROPE).with(pair));
        }
        *frequency /= factor;
    }
    Ok(frequencies)
}
