//! The commands of one layer, and the activations that they work on.

use super::Accelerator;
use super::flight::Chunks;
use super::launch::{Call, Commands};
use super::product::{Matrix, Product};
use super::programs::{Programs, attention_shape, class_of, lanes, number};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::infer::Part;
use crate::infer::cpu::ComputeConfig;
use crate::infer::model::{Architecture, Layer, Model, Shape};
use crate::infer::names::Role;
use crate::kernel::opencl::{AttentionStream, Finish, argmax_launch, heads_launch};
use crate::port::DeviceRegion;
use crate::port::opencl::{Block, Event};

/// Work-groups of attention for each compute unit: enough that one that ends early leaves no gap.
const GROUPS_PER_UNIT: u32 = 8;

/// Device memory of one batch; the comments give single-precision values a token.
pub(super) struct Activations {
    /// Residual stream: hidden.
    pub(super) x: Block,
    /// Normalised input of a part, where that is kept: hidden.
    pub(super) h: Block,
    /// Queries, keys and values as they are projected: (heads + 2 kv_heads) * head_dim.
    qkv: Block,
    /// Queries as attention takes them: heads * head_dim.
    q: Block,
    /// Attention output: heads * head_dim.
    a: Block,
    /// Gated values: feed_forward.
    gated: Block,
    /// `[row][vocabulary]`.
    pub(super) logits: Block,
    /// Index of the largest logit of the last token.
    pub(super) best: Block,
    /// Outputs and softmax state of the splits.
    partial: Block,
    state: Block,
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
        let (partial, state) = scratch(accelerator, programs, config, columns);
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
            partial: block(partial)?,
            state: block(2 * state)?,
            frequencies,
        })
    }
}

fn groups(accelerator: &Accelerator) -> u32 {
    accelerator.device().compute_units.saturating_mul(GROUPS_PER_UNIT).max(1)
}

/// Most values and pairs of state that the splits of any pass write.
fn scratch(
    accelerator: &Accelerator,
    programs: &Programs,
    config: &ComputeConfig,
    columns: usize,
) -> (usize, usize) {
    let mut most = (1, 1);
    let chunks_max = number(columns);
    for tokens in 1..=config.batch_tokens_max {
        let Some(sizes) = stream_sizes(programs, tokens) else { break };
        // Splits are cut evenly, so that fewer chunks may make more of them.
        for chunks in 1..=chunks_max {
            let each = sizes.split_chunks(chunks, groups(accelerator));
            let (partial, state) = sizes.scratch(chunks.div_ceil(each));
            most = (partial.max(most.0), state.max(most.1));
        }
    }
    most
}

/// The body for few queries, for so many; `None` for many.
fn stream_sizes(programs: &Programs, tokens: usize) -> Option<AttentionStream> {
    let (_, sizes) = match (tokens, &programs.attention.few) {
        (1, _) => &programs.attention.one,
        (_, Some(few)) if class_of(tokens).is_some() => few,
        _ => return None,
    };
    Some(sizes.with_queries(number(tokens)))
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
    /// Work-groups that fill the device.
    pub(super) groups: u32,
}

impl<'a> Stage<'a> {
    pub(super) fn groups_of(accelerator: &Accelerator) -> u32 {
        groups(accelerator)
    }

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

    /// Appends keys and values, then attends to all.
    pub(super) fn attend(
        &mut self,
        layer: &Layer,
        unit: DeviceRegion,
        chunks: &Chunks<'_>,
        table: DeviceRegion,
    ) -> Result<()> {
        self.queue.part(Part::Heads);
        self.finish_heads(layer, unit, chunks, table)?;
        self.queue.part(Part::Attention);
        let q = self.work.q.region();
        match stream_sizes(self.programs, self.tokens) {
            Some(sizes) => self.stream(sizes, q, chunks, table),
            None => self.tile(q, chunks, table),
        }
    }

    /// Norms where the model has them, rotation and scale; queries in the type that attention
    /// takes, keys and values into the chunks.
    fn finish_heads(
        &mut self,
        layer: &Layer,
        unit: DeviceRegion,
        chunks: &Chunks<'_>,
        table: DeviceRegion,
    ) -> Result<()> {
        let shape = self.shape;
        let attention = &self.programs.attention;
        let is_few = self.tokens > 1 && class_of(self.tokens).is_some();
        let is_half = attention.all_take_halves || (attention.few_takes_halves && is_few);
        let is_adjacent = shape.architecture == Architecture::Llama;
        let kv_heads = usize::from(shape.kv_heads);
        Call::new(&mut self.programs.heads)
            .memory(self.work.qkv.region())
            .memory(self.work.q.region())
            .memory(table)
            .memory(self.work.frequencies.region())
            .memory(unit)
            .place(unit, layer.optional(Role::QNorm))
            .place(unit, layer.optional(Role::KNorm))
            .float(shape.norm_epsilon)
            .number(shape.heads)
            .number(kv_heads)
            .word(self.position)
            .word(is_adjacent.into())
            .float(1.0 / f32::from(shape.head_dim).sqrt())
            .word(is_half.into())
            .pool(chunks.pool)
            .listed(shared(chunks, chunks.tails))
            .launch(&self.queue, heads_launch(shape.heads, kv_heads, self.tokens))
    }

    fn stream(
        &mut self,
        sizes: AttentionStream,
        q: DeviceRegion,
        chunks: &Chunks<'_>,
        table: DeviceRegion,
    ) -> Result<()> {
        let attention = &mut self.programs.attention;
        let kernel = match &mut attention.few {
            Some((kernel, _)) if self.tokens > 1 => kernel,
            _ => &mut attention.one.0,
        };
        let all = number(chunks.entries.len());
        let split_chunks = sizes.split_chunks(all, self.groups);
        let splits = all.div_ceil(split_chunks);
        let (partial, state) = (self.work.partial.region(), self.work.state.region());
        Call::new(kernel)
            .memory(q)
            .memory(table)
            .memory(partial)
            .memory(state)
            .number(self.shape.heads)
            .word(self.shape.kv_heads.into())
            .number(self.tokens)
            .word(self.position)
            .word(0)
            .float(0.0)
            .word(0)
            .word(split_chunks)
            .pool(chunks.pool)
            .listed(shared(chunks, chunks.entries))
            .launch(&self.queue, sizes.launch(splits))?;
        Call::new(&mut attention.combine)
            .memory(partial)
            .memory(state)
            .memory(self.work.a.region())
            .word(attention_shape(self.shape, self.tokens).rows_all())
            .word(splits)
            .launch(&self.queue, sizes.combine_launch())
    }

    fn tile(&mut self, q: DeviceRegion, chunks: &Chunks<'_>, table: DeviceRegion) -> Result<()> {
        let Some((kernel, sizes)) = &mut self.programs.attention.many else {
            unreachable!("built for every batch that the configuration allows")
        };
        let launch = sizes.with_queries(number(self.tokens)).launch();
        Call::new(kernel)
            .memory(q)
            .memory(table)
            .memory(self.work.a.region())
            .number(self.shape.heads)
            .word(self.shape.kv_heads.into())
            .number(self.tokens)
            .word(self.position)
            .word(0)
            .float(0.0)
            .pool(chunks.pool)
            .listed(shared(chunks, chunks.entries))
            .launch(&self.queue, launch)
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

/// Shared memory to name to a kernel with a table; none where the table holds offsets. No more than
/// the kernel reads: NVIDIA's driver (580, H200) takes 1.2 us for each name of each command.
fn shared<'a>(chunks: &Chunks<'_>, addresses: &'a [u64]) -> &'a [u64] {
    match chunks.pool {
        Some(_) => &[],
        None => addresses,
    }
}
