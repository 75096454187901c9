//! The commands of attention in one layer, and the scratch memory that its bodies share.

use super::Accelerator;
use super::flight::Chunks;
use super::launch::Call;
use super::layer::Stage;
use super::programs::{Attention, FewSizes, attention_shape, number};
use crate::error::Result;
use crate::infer::Part;
use crate::infer::cpu::ComputeConfig;
use crate::infer::model::{Architecture, Layer};
use crate::infer::names::Role;
use crate::kernel::opencl::{AttentionMatrix, AttentionStream, energy_launch, heads_launch};
use crate::port::DeviceRegion;
use crate::port::opencl::Block;
use crate::units::LayerIndex;

/// Work-groups of a stream for each compute unit: enough that one that ends early leaves no gap.
const STREAM_GROUPS_PER_UNIT: u32 = 8;

/// What splits write before they are added up.
pub(super) struct Scratch {
    /// Outputs and softmax state of the splits.
    partial: Block,
    state: Block,
    /// Splits of a head that are done; zero between commands.
    counters: Block,
}

impl Scratch {
    /// For batches and contexts of up to so many tokens and chunks.
    pub(super) fn new(
        accelerator: &Accelerator,
        attention: &Attention,
        config: &ComputeConfig,
        columns: usize,
    ) -> Result<Scratch> {
        let units = accelerator.device().compute_units;
        let (mut values, mut pairs, mut counters) = (1, 1, 1);
        for tokens in 1..=config.batch_tokens_max {
            let Some(sizes) = attention.sizes(tokens) else { break };
            let most = match sizes {
                FewSizes::Stream(sizes) => stream_scratch(sizes, number(columns), units),
                FewSizes::Matrix(sizes) => {
                    counters = counters.max(sizes.counters());
                    sizes.scratch(sizes.splits_max(units))
                }
            };
            (values, pairs) = (values.max(most.0), pairs.max(most.1));
        }
        let block = |bytes: usize| {
            Block::new(&accelerator.context, &accelerator.queue, accelerator.mode, bytes)
        };
        Ok(Scratch {
            partial: block(values.saturating_mul(size_of::<f32>()))?,
            state: block(pairs.saturating_mul(2 * size_of::<f32>()))?,
            counters: block(counters * size_of::<u32>())?,
        })
    }
}

/// Most that the splits of any number of chunks write. Splits are cut evenly, so that fewer chunks
/// may make more of them.
fn stream_scratch(sizes: AttentionStream, chunks_max: u32, units: u32) -> (usize, usize) {
    let of = |chunks: u32| {
        sizes.scratch(chunks.div_ceil(sizes.split_chunks(chunks, stream_groups(units))))
    };
    (1..=chunks_max).map(of).max().unwrap_or((1, 1))
}

fn stream_groups(units: u32) -> u32 {
    units.saturating_mul(STREAM_GROUPS_PER_UNIT).max(1)
}

impl Stage<'_> {
    /// Appends keys and values, then attends to all.
    pub(super) fn attend(
        &mut self,
        index: LayerIndex,
        layer: &Layer,
        unit: DeviceRegion,
        chunks: &Chunks<'_>,
        table: DeviceRegion,
    ) -> Result<()> {
        self.queue.part(Part::Heads);
        self.finish_heads(layer, unit, chunks, table)?;
        if self.wants_energy {
            self.sum_energy(index)?;
        }
        self.queue.part(Part::Attention);
        let q = self.work.q.region();
        match self.programs.attention.sizes(self.tokens) {
            Some(FewSizes::Stream(sizes)) => self.stream(sizes, q, chunks, table),
            Some(FewSizes::Matrix(sizes)) => self.matrix(sizes, q, chunks, table),
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
        let is_half = self.programs.attention.takes_halves(self.tokens);
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

    /// The squares of a layer's queries by channel of K.
    fn sum_energy(&mut self, index: LayerIndex) -> Result<()> {
        let (shape, channels) = (self.shape, self.shape.kv_values());
        let is_half = self.programs.attention.takes_halves(self.tokens);
        Call::new(&mut self.programs.energy)
            .memory(self.work.q.region())
            .memory(self.work.energy.region())
            .number(index.index() * channels)
            .number(shape.heads)
            .word(shape.kv_heads.into())
            .number(self.tokens)
            .float(shape.head_dim.into())
            .word(is_half.into())
            .launch(&self.queue, energy_launch(channels))
    }

    fn stream(
        &mut self,
        sizes: AttentionStream,
        q: DeviceRegion,
        chunks: &Chunks<'_>,
        table: DeviceRegion,
    ) -> Result<()> {
        let attention = &mut self.programs.attention;
        let all = number(chunks.entries.len());
        let split_chunks = sizes.split_chunks(all, stream_groups(self.units));
        let splits = all.div_ceil(split_chunks);
        let Scratch { partial, state, .. } = &self.work.scratch;
        let (partial, state) = (partial.region(), state.region());
        Call::new(attention.kernel(self.tokens))
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

    fn matrix(
        &mut self,
        sizes: AttentionMatrix,
        q: DeviceRegion,
        chunks: &Chunks<'_>,
        table: DeviceRegion,
    ) -> Result<()> {
        let end = self.position.saturating_add(number(self.tokens));
        let split = sizes.split(0, end, self.units);
        let Scratch { partial, state, counters } = &self.work.scratch;
        Call::new(self.programs.attention.kernel(self.tokens))
            .memory(q)
            .memory(table)
            .memory(partial.region())
            .memory(state.region())
            .memory(counters.region())
            .memory(self.work.a.region())
            .number(self.shape.heads)
            .word(self.shape.kv_heads.into())
            .number(self.tokens)
            .word(self.position)
            .word(0)
            .float(0.0)
            .word(split.splits)
            .word(split.warp_steps)
            .pool(chunks.pool)
            .listed(shared(chunks, chunks.entries))
            .launch(&self.queue, sizes.launch(split.splits))
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
}

/// Shared memory to name to a kernel with a table; none where the table holds offsets. No more than
/// the kernel reads: NVIDIA's driver (580, H200) takes 1.2 us for each name of each command.
fn shared<'a>(chunks: &Chunks<'_>, addresses: &'a [u64]) -> &'a [u64] {
    match chunks.pool {
        Some(_) => &[],
        None => addresses,
    }
}
