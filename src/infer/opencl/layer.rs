//! The commands of one layer, and the activations that they work on.

use super::Accelerator;
use super::attention::Scratch;
use super::launch::{Call, Commands};
use super::product::{Matrix, Product};
use super::programs::{Programs, lanes};
use crate::arena::view;
use crate::codec::Steps;
use crate::error::{Code, Error, Result};
use crate::infer::Part;
use crate::infer::cpu::ComputeConfig;
use crate::infer::model::{Layer, Model, Shape};
use crate::infer::names::Role;
use crate::kernel::opencl::{Finish, argmax_launch};
use crate::port::DeviceRegion;
use crate::port::opencl::{Block, Event};

/// Device memory of one batch; the comments give single-precision values a token.
pub(super) struct Activations {
    /// Residual stream: hidden.
    pub(super) x: Block,
    /// Normalised input of a part, where that is kept: hidden.
    pub(super) h: Block,
    /// Queries, keys and values as they are projected: (heads + 2 kv_heads) * head_dim.
    pub(super) qkv: Block,
    /// Queries as attention takes them: heads * head_dim.
    pub(super) q: Block,
    /// Attention output: heads * head_dim.
    pub(super) a: Block,
    /// Gated values: feed_forward.
    gated: Block,
    /// `[row][vocabulary]`.
    pub(super) logits: Block,
    /// Index of the largest logit of the last token.
    pub(super) best: Block,
    /// What the last batch whose queries were of use adds up to: `[layer][kv_head][head_dim]`.
    pub(super) energy: Block,
    pub(super) scratch: Scratch,
    /// Radians a token of each rotary pair.
    pub(super) frequencies: Block,
}

impl Activations {
    pub(super) fn new(
        accelerator: &Accelerator,
        model: &Model,
        config: &ComputeConfig,
        columns: usize,
        programs: &Programs,
    ) -> Result<Activations> {
        let (shape, lanes_max) = (&model.shape, lanes(config.batch_tokens_max));
        let rows_max = lanes(config.logit_rows_max);
        let block = |values: usize| {
            let (context, queue) = (&accelerator.context, &accelerator.queue);
            let too_many = Error::new(Code::LimitExceeded, "activations").with(values);
            let bytes = values.checked_mul(size_of::<f32>()).ok_or(too_many)?;
            Block::new(context, queue, accelerator.mode, bytes)
        };
        let mut frequencies = block(model.rope_frequencies.len())?;
        frequencies.write(0, view::bytes_of(model.rope_frequencies))?;
        Ok(Activations {
            x: block(shape.hidden * lanes_max)?,
            h: block(shape.hidden * lanes_max.max(rows_max))?,
            qkv: block((shape.query_values() + 2 * shape.kv_values()) * lanes_max)?,
            q: block(shape.query_values() * lanes_max)?,
            a: block(shape.query_values() * lanes_max)?,
            gated: block(shape.feed_forward * lanes_max)?,
            logits: block(shape.vocabulary * rows_max)?,
            best: block(1)?,
            energy: block(Steps::values(&shape.kv()))?,
            scratch: Scratch::new(accelerator, &programs.attention, config, columns)?,
            frequencies,
        })
    }
}

/// What the commands of a batch have in common.
pub(super) struct Stage<'a> {
    pub(super) queue: Commands<'a>,
    pub(super) programs: &'a mut Programs,
    pub(super) work: &'a mut Activations,
    pub(super) shape: &'a Shape,
    pub(super) tokens: usize,
    /// Of the first token.
    pub(super) position: u32,
    /// Compute units of the device.
    pub(super) units: u32,
    /// Whether the energy of queries is of use.
    pub(super) wants_energy: bool,
}

impl<'a> Stage<'a> {
    /// A command that changes nothing that is read later, so that a device that sleeps wakes up
    /// while the host waits for the first layer.
    pub(super) fn warm_up(&mut self) -> Result<()> {
        let (h, best) = (self.work.h.region(), self.work.best.region());
        self.arg_max(h, best, 1)?;
        self.queue.flush()
    }

    fn arg_max(&mut self, x: DeviceRegion, best: DeviceRegion, values: usize) -> Result<()> {
        let call = Call::new(&mut self.programs.argmax).memory(x).memory(best).number(values);
        call.launch(&self.queue, argmax_launch(1))
    }

    /// What needs the weights alone: queries, keys and values as they are projected.
    pub(super) fn project(&mut self, layer: &Layer, unit: DeviceRegion) -> Result<()> {
        self.queue.part(Part::Project);
        let matrices = [
            Matrix::new(layer, Role::Q, Role::QBias),
            Matrix::new(layer, Role::K, Role::KBias),
            Matrix::new(layer, Role::V, Role::VBias),
        ];
        self.multiply(Product {
            unit,
            matrices: &matrices,
            x: self.work.x.region(),
            norm: Some(layer.tensor(Role::AttnNorm)),
            y: self.work.qkv.region(),
            finish: Finish::Store,
            tokens: self.tokens,
        })?;
        self.queue.flush()
    }

    /// From attention's output to the layer's; the answer is the last command's completion.
    pub(super) fn feed_forward(
        &mut self,
        layer: &Layer,
        unit: DeviceRegion,
    ) -> Result<Option<Event>> {
        let work = &self.work;
        let (x, a, gated) = (work.x.region(), work.a.region(), work.gated.region());
        let tokens = self.tokens;
        self.queue.part(Part::Output);
        let matrices = [Matrix::new(layer, Role::AttnOutput, Role::AttnOutputBias)];
        let finish = Finish::Add;
        let output = Product { unit, matrices: &matrices, x: a, norm: None, y: x, finish, tokens };
        self.multiply(output)?;
        self.queue.part(Part::FeedForward);
        let matrices = [
            Matrix::new(layer, Role::Gate, Role::GateBias),
            Matrix::new(layer, Role::Up, Role::UpBias),
        ];
        let norm = Some(layer.tensor(Role::FfnNorm));
        let finish = Finish::Pair;
        self.multiply(Product { unit, matrices: &matrices, x, norm, y: gated, finish, tokens })?;
        let matrices = [Matrix::new(layer, Role::Down, Role::DownBias)];
        let down = Product { matrices: &matrices, x: gated, ..output };
        let done = self.multiply_last(down)?;
        self.queue.flush()?;
        Ok(done)
    }

    /// Logits of the last `rows` tokens.
    pub(super) fn head(&mut self, model: &Model, unit: DeviceRegion, rows: usize) -> Result<()> {
        self.queue.part(Part::Head);
        let row_bytes = self.shape.hidden * size_of::<f32>();
        let Activations { x, h, .. } = &mut *self.work;
        let x = match self.tokens - rows {
            0 => x.region(),
            others => {
                x.copy_part_to(others * row_bytes, h, rows * row_bytes)?;
                h.region()
            }
        };
        self.multiply(Product {
            unit,
            matrices: &[Matrix { weight: &model.head.output, bias: None }],
            x,
            norm: Some(&model.head.norm),
            y: self.work.logits.region(),
            finish: Finish::Store,
            tokens: rows,
        })?;
        self.queue.flush()
    }

    /// The index of the largest logit of the one token whose logits there are.
    pub(super) fn pick(&mut self) -> Result<()> {
        let (logits, best) = (self.work.logits.region(), self.work.best.region());
        self.arg_max(logits, best, self.shape.vocabulary)?;
        self.queue.flush()
    }
}
