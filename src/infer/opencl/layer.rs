//! The commands of one layer, and the activations that they work on.

use super::Accelerator;
use super::attention::Scratch;
use super::launch::Call;
use super::programs::{Programs, class_of, lanes, weights_of};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::infer::cpu::ComputeConfig;
use crate::infer::model::{Architecture, Layer, Model, Shape, Tensor};
use crate::infer::names::Role;
use crate::kernel::opencl::{RmsNorm, few_launch, many_launch};
use crate::port::DeviceRegion;
use crate::port::opencl::{Block, Event, Kernel, Queue};

/// Device memory of one batch; the comments give single-precision values a token.
pub(super) struct Activations {
    /// Residual stream: hidden.
    pub(super) x: Block,
    /// Normalised input or output of a part: hidden.
    pub(super) h: Block,
    /// Queries: heads * head_dim.
    pub(super) q: Block,
    /// Attention output: heads * head_dim.
    pub(super) a: Block,
    /// Keys, values: kv_heads * head_dim.
    pub(super) k: Block,
    pub(super) v: Block,
    /// Gate, up: feed_forward.
    gate: Block,
    up: Block,
    /// `[row][vocabulary]`.
    pub(super) logits: Block,
    /// Queries as halves, for half arithmetic.
    pub(super) halves: Option<Block>,
    pub(super) scratch: Scratch,
    /// Radians a token of each rotary pair.
    frequencies: Block,
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
            q: block(shape.query_values() * lanes_max)?,
            a: block(shape.query_values() * lanes_max)?,
            k: block(shape.kv_values() * lanes_max)?,
            v: block(shape.kv_values() * lanes_max)?,
            gate: block(shape.feed_forward * lanes_max)?,
            up: block(shape.feed_forward * lanes_max)?,
            logits: block(shape.vocabulary * rows_max)?,
            halves: match programs.attention.to_half.is_some() {
                true => Some(block(shape.query_values() * lanes_max)?),
                false => None,
            },
            scratch: Scratch::new(accelerator, &programs.attention, config, columns)?,
            frequencies,
        })
    }
}

/// What the commands of a batch have in common.
pub(super) struct Stage<'a> {
    pub(super) queue: &'a Queue,
    pub(super) programs: &'a mut Programs,
    pub(super) work: &'a mut Activations,
    pub(super) shape: &'a Shape,
    pub(super) tokens: usize,
    /// Of the first token.
    pub(super) position: u32,
    /// Compute units of the device.
    pub(super) units: u32,
}

impl<'a> Stage<'a> {
    /// A command that changes nothing that is read later, so that a device that sleeps wakes up
    /// while the host waits for the first layer.
    pub(super) fn warm_up(&mut self) -> Result<()> {
        let h = self.work.h.region();
        Call::new(&mut self.programs.add).memory(h).memory(h).items(self.queue, [1, 1, 1])?;
        self.queue.flush()
    }

    /// What needs the weights alone: from the residual stream to rotated queries and keys.
    pub(super) fn project(&mut self, layer: &Layer, unit: DeviceRegion) -> Result<()> {
        let work = &self.work;
        let (x, h) = (work.x.region(), work.h.region());
        let (q, k, v) = (work.q.region(), work.k.region(), work.v.region());
        self.norm(layer.tensor(Role::AttnNorm), unit, (x, h), self.tokens)?;
        self.product((layer, Role::Q, Role::QBias), unit, h, q)?;
        self.product((layer, Role::K, Role::KBias), unit, h, k)?;
        self.product((layer, Role::V, Role::VBias), unit, h, v)?;
        let kv_heads = usize::from(self.shape.kv_heads);
        let scale = 1.0 / f32::from(self.shape.head_dim).sqrt();
        self.finish_heads((layer, Role::QNorm), unit, q, self.shape.heads, scale)?;
        self.finish_heads((layer, Role::KNorm), unit, k, kv_heads, 1.0)?;
        self.queue.flush()
    }

    /// Norms where the model has them, then rotation and scale.
    fn finish_heads(
        &mut self,
        (layer, role): (&Layer, Role),
        unit: DeviceRegion,
        values: DeviceRegion,
        heads: usize,
        scale: f32,
    ) -> Result<()> {
        let head_dim = usize::from(self.shape.head_dim);
        if let (Some(weight), Some((kernel, sizes))) =
            (layer.optional(role), &mut self.programs.head_norm)
        {
            let rows = self.tokens * heads;
            let norm = (kernel, *sizes);
            norm_rows(self.queue, norm, weight, unit, (values, values), rows, self.shape)?;
        }
        let is_adjacent = match self.shape.architecture {
            Architecture::Llama => 1,
            Architecture::Qwen3 => 0,
        };
        Call::new(&mut self.programs.rotary)
            .memory(values)
            .memory(self.work.frequencies.region())
            .number(heads)
            .number(head_dim / 2)
            .word(self.position)
            .word(is_adjacent)
            .float(scale)
            .items(self.queue, [head_dim / 2, heads, self.tokens])
    }

    /// From attention's output to the layer's; the answer is the last command's completion.
    pub(super) fn feed_forward(&mut self, layer: &Layer, unit: DeviceRegion) -> Result<Event> {
        let work = &self.work;
        let (x, h, a) = (work.x.region(), work.h.region(), work.a.region());
        let (gate, up) = (work.gate.region(), work.up.region());
        self.product((layer, Role::AttnOutput, Role::AttnOutputBias), unit, a, h)?;
        self.add()?;
        self.norm(layer.tensor(Role::FfnNorm), unit, (x, h), self.tokens)?;
        self.product((layer, Role::Gate, Role::GateBias), unit, h, gate)?;
        self.product((layer, Role::Up, Role::UpBias), unit, h, up)?;
        let count = self.tokens * self.shape.feed_forward;
        Call::new(&mut self.programs.swiglu)
            .memory(gate)
            .memory(up)
            .memory(gate)
            .items(self.queue, [count, 1, 1])?;
        self.product((layer, Role::Down, Role::DownBias), unit, gate, h)?;
        let done = self.add()?;
        self.queue.flush()?;
        Ok(done)
    }

    /// Logits of the last `rows` tokens.
    pub(super) fn head(&mut self, model: &Model, unit: DeviceRegion, rows: usize) -> Result<()> {
        let row_bytes = self.shape.hidden * size_of::<f32>();
        let Activations { x, h, .. } = &mut *self.work;
        x.copy_part_to((self.tokens - rows) * row_bytes, h, rows * row_bytes)?;
        let (h, logits) = (h.region(), self.work.logits.region());
        self.norm(&model.head.norm, unit, (h, h), rows)?;
        self.multiply(&model.head.output, unit, (h, logits), rows)?;
        self.queue.flush()
    }

    fn add(&mut self) -> Result<Event> {
        let (x, h) = (self.work.x.region(), self.work.h.region());
        let count = self.tokens * self.shape.hidden;
        Call::new(&mut self.programs.add).memory(x).memory(h).items_event(self.queue, [count, 1, 1])
    }

    fn norm(
        &mut self,
        weight: &Tensor,
        unit: DeviceRegion,
        values: (DeviceRegion, DeviceRegion),
        rows: usize,
    ) -> Result<()> {
        let (kernel, sizes) = &mut self.programs.norm;
        norm_rows(self.queue, (kernel, *sizes), weight, unit, values, rows, self.shape)
    }

    fn product(
        &mut self,
        (layer, weight, bias): (&Layer, Role, Role),
        unit: DeviceRegion,
        x: DeviceRegion,
        y: DeviceRegion,
    ) -> Result<()> {
        self.multiply(layer.tensor(weight), unit, (x, y), self.tokens)?;
        let (Some(bias), Some(kernel)) = (layer.optional(bias), &mut self.programs.add_bias) else {
            return Ok(());
        };
        let items = [bias.cols, self.tokens, 1];
        Call::new(kernel).memory(y).tensor(unit, bias.offset).items(self.queue, items)
    }

    fn multiply(
        &mut self,
        weight: &Tensor,
        unit: DeviceRegion,
        (x, y): (DeviceRegion, DeviceRegion),
        tokens: usize,
    ) -> Result<()> {
        let products = &mut self.programs.products[weights_of(weight)? as usize];
        let class = class_of(tokens);
        let kernel = match class {
            Some(class) => products.few[class].as_mut(),
            None => products.many.as_mut(),
        };
        let Some(kernel) = kernel else {
            unreachable!("built for every batch that the configuration allows")
        };
        let call = Call::new(kernel)
            .memory(x)
            .tensor(unit, weight.offset)
            .memory(y)
            .number(weight.rows)
            .number(weight.cols);
        match class {
            Some(_) => call.launch(self.queue, few_launch(weight.rows)),
            None => call.number(tokens).launch(self.queue, many_launch(weight.rows, tokens)),
        }
    }
}

fn norm_rows(
    queue: &Queue,
    (kernel, sizes): (&mut Kernel, RmsNorm),
    weight: &Tensor,
    unit: DeviceRegion,
    (x, y): (DeviceRegion, DeviceRegion),
    rows: usize,
    shape: &Shape,
) -> Result<()> {
    Call::new(kernel)
        .memory(x)
        .tensor(unit, weight.offset)
        .memory(y)
        .number(weight.cols)
        .float(shape.norm_epsilon)
        .launch(queue, sizes.launch(rows))
}
