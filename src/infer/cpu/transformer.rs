//! The forward pass.

use super::attention::{self, attend, write_kv};
use super::batch::Batch;
use super::linear::{self, Engine, Finish, Product, multiply};
use super::pointwise::{Rotation, add, rms_norm, rms_norm_in_place, scale};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::infer::model::{Layer, Model, Shape};
use crate::infer::names::Role;
use crate::infer::{Memory, Part, Watch};
use crate::kernel::math::MathKernels;
use crate::limits::{BATCH_TOKENS_MAX, WORKERS_MAX};
use crate::port::{RowReader, Team};
use crate::units::LayerIndex;

/// What fixes the size of the scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeConfig {
    /// Tokens computed at once, 1 to [`BATCH_TOKENS_MAX`].
    pub batch_tokens_max: usize,
    /// Most tokens of one call whose logits may be asked for, 1 to `batch_tokens_max`.
    pub logit_rows_max: usize,
    /// Threads that share the work, 1 to [`WORKERS_MAX`]; a narrower team uses fewer.
    pub workers_max: usize,
}

impl ComputeConfig {
    pub(in crate::infer) fn check(&self) -> Result<()> {
        let fail = |what| Err(Error::new(Code::InvalidArgument, what));
        if !(1..=BATCH_TOKENS_MAX).contains(&self.batch_tokens_max) {
            return fail("batch_tokens_max");
        }
        if !(1..=self.batch_tokens_max).contains(&self.logit_rows_max) {
            return fail("logit_rows_max");
        }
        if !(1..=WORKERS_MAX).contains(&self.workers_max) {
            return fail("workers_max");
        }
        Ok(())
    }

    /// Whether a model can be asked for this.
    pub(in crate::infer) fn check_pass(
        &self,
        shape: &Shape,
        tokens: &[u32],
        position: u32,
        logit_rows: usize,
    ) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::new(Code::InvalidArgument, "tokens"));
        }
        let unknown = |token: &&u32| usize::try_from(**token).is_ok_and(|t| t >= shape.vocabulary);
        if let Some(token) = tokens.iter().find(unknown) {
            return Err(Error::new(Code::InvalidArgument, "token").with(*token));
        }
        let end = u64::from(position).saturating_add(tokens.len() as u64);
        if end > u64::from(shape.context_tokens) {
            return Err(Error::new(Code::LimitExceeded, "context tokens").with(end));
        }
        if logit_rows > self.logit_rows_max.min(tokens.len()) {
            return Err(Error::new(Code::InvalidArgument, "logit rows").with(logit_rows));
        }
        Ok(())
    }

    /// Tokens of the next batch when `left` are left; the last batch holds all tokens whose logits
    /// are wanted.
    pub(in crate::infer) fn batch_tokens(&self, left: usize, logit_rows: usize) -> usize {
        match left > self.batch_tokens_max {
            true => self.batch_tokens_max.min(left - logit_rows.max(1)),
            false => left,
        }
    }
}

/// Where a forward pass gets everything from.
#[derive(Clone, Copy)]
pub struct ComputePorts<'a> {
    /// Weights and KV chunks.
    pub memory: &'a dyn Memory,
    /// The model file, for embedding rows.
    pub rows: &'a dyn RowReader,
    /// Threads.
    pub team: &'a dyn Team,
}

/// A model with the scratch memory to compute it.
pub struct Transformer {
    model: Model,
    kernels: MathKernels,
    config: ComputeConfig,
    work: Workspace,
    watch: Option<&'static dyn Watch>,
}

/// Activations; the comments give features, all times the batch's lanes.
struct Workspace {
    /// Residual stream: hidden.
    x: &'static mut [f32],
    /// Normalised input or output of a part: hidden.
    h: &'static mut [f32],
    /// Queries: heads * head_dim.
    q: &'static mut [f32],
    /// Attention output: heads * head_dim.
    a: &'static mut [f32],
    /// Keys: kv_heads * head_dim.
    k: &'static mut [f32],
    /// Values: kv_heads * head_dim.
    v: &'static mut [f32],
    /// Gate: feed_forward.
    gate: &'static mut [f32],
    /// Up: feed_forward.
    up: &'static mut [f32],
    /// Rotations: head_dim / 2 each.
    cos: &'static mut [f32],
    sin: &'static mut [f32],
    /// Softmax state: two for each head.
    state: &'static mut [f32],
    /// Of all workers, in equal shares.
    scratch: &'static mut [f32],
    /// One embedding row as it lies in the file, and decoded.
    row_bytes: &'static mut [u8],
    row: &'static mut [f32],
    /// `[row][vocabulary]`.
    logits: &'static mut [f32],
}

/// Number of single-precision slices of a workspace.
const SLICES: usize = 14;

/// Their lengths, in the order of the fields.
fn lengths(model: &Model, config: &ComputeConfig) -> [usize; SLICES] {
    let shape = &model.shape;
    let lanes = Batch::lanes_max(config.batch_tokens_max);
    let logit_lanes = lanes.max(config.logit_rows_max);
    let pairs = usize::from(shape.head_dim / 2);
    let cols_max = shape.hidden.max(shape.feed_forward).max(shape.query_values());
    let scratch = linear::scratch_values(cols_max).max(attention::scratch_values(shape));
    [
        shape.hidden * logit_lanes,
        shape.hidden * logit_lanes,
        shape.query_values() * lanes,
        shape.query_values() * lanes,
        shape.kv_values() * lanes,
        shape.kv_values() * lanes,
        shape.feed_forward * lanes,
        shape.feed_forward * lanes,
        pairs * lanes,
        pairs * lanes,
        attention::STATE_VALUES * shape.heads * lanes,
        scratch * config.workers_max,
        shape.hidden,
        config.logit_rows_max * shape.vocabulary,
    ]
}

impl Transformer {
    /// Adds what [`Transformer::open`] places.
    pub fn size(model: &Model, config: &ComputeConfig, sizer: &mut Sizer) -> Result<()> {
        config.check()?;
        for length in lengths(model, config) {
            sizer.slice::<f32>(length)?;
        }
        sizer.bytes(model.embedding.row_bytes, 1)
    }

    /// Places the scratch memory.
    pub fn open(
        model: Model,
        kernels: MathKernels,
        config: ComputeConfig,
        arena: &mut Arena,
    ) -> Result<Self> {
        config.check()?;
        let mut slices: [&'static mut [f32]; SLICES] = Default::default();
        for (slice, length) in slices.iter_mut().zip(lengths(&model, &config)) {
            *slice = arena.slice(length, |_| 0.0)?;
        }
        let row_bytes = arena.bytes(model.embedding.row_bytes, 1)?;
        let [x, h, q, a, k, v, gate, up, cos, sin, state, scratch, row, logits] = slices;
        let work = Workspace {
            x,
            h,
            q,
            a,
            k,
            v,
            gate,
            up,
            cos,
            sin,
            state,
            scratch,
            row_bytes,
            row,
            logits,
        };
        Ok(Transformer { model, kernels, config, work, watch: None })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Who hears of every part from now on.
    pub fn watch(&mut self, watch: Option<&'static dyn Watch>) {
        self.watch = watch;
    }

    /// Computes `tokens`, the first of which has position `position` in the context: appends their
    /// keys and values to the chunks and returns the logits of the last `logit_rows` tokens,
    /// `[row][vocabulary]`. The chunks that they fall into exist; those before hold the context.
    ///
    /// After an error the chunks' rows from `position` on are undefined, those before are intact.
    pub fn forward(
        &mut self,
        ports: ComputePorts<'_>,
        tokens: &[u32],
        position: u32,
        logit_rows: usize,
    ) -> Result<&[f32]> {
        self.config.check_pass(&self.model.shape, tokens, position, logit_rows)?;
        let mut rest = tokens;
        let mut position = position;
        while !rest.is_empty() {
            let count = self.config.batch_tokens(rest.len(), logit_rows);
            let (now, later) = rest.split_at(count);
            let batch = Batch::new(count, position);
            let logit_rows = if later.is_empty() { logit_rows } else { 0 };
            self.batch(ports, now, &batch, logit_rows)?;
            position = position.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
            rest = later;
        }
        Ok(&self.work.logits[..logit_rows * self.model.shape.vocabulary])
    }

    fn batch(
        &mut self,
        ports: ComputePorts<'_>,
        tokens: &[u32],
        batch: &Batch,
        logit_rows: usize,
    ) -> Result<()> {
        let workers = self.config.workers_max.min(ports.team.width()).max(1);
        let engine = Engine { kernels: &self.kernels, team: ports.team, workers };
        let watch = self.watch;
        let computed = |part| watch.iter().for_each(|watch| watch.computed(part));
        self.work.embed(&self.model, &self.kernels, ports.rows, tokens, batch)?;
        let Workspace { cos, sin, .. } = &mut self.work;
        Rotation { cos, sin }.prepare(self.model.rope_frequencies, batch);
        computed(Part::Start);
        for (index, layer) in (0..self.model.shape.layers).zip(self.model.layers) {
            let index = LayerIndex::new(index);
            let unit = ports.memory.weights(index)?;
            self.work.attention_block(
                engine,
                ports,
                &self.model.shape,
                layer,
                index,
                &unit,
                batch,
                computed,
            )?;
            self.work.feed_forward_block(engine, &self.model.shape, layer, &unit, batch)?;
            computed(Part::FeedForward);
        }
        if logit_rows > 0 {
            self.work.head(engine, ports, &self.model, batch, logit_rows)?;
            computed(Part::Head);
        }
        Ok(())
    }
}

impl Workspace {
    /// Embedding rows into the lanes of the residual stream.
    fn embed(
        &mut self,
        model: &Model,
        kernels: &MathKernels,
        rows: &dyn RowReader,
        tokens: &[u32],
        batch: &Batch,
    ) -> Result<()> {
        let (embedding, hidden) = (&model.embedding, model.shape.hidden);
        let x = &mut self.x[..hidden * batch.lanes()];
        x.fill(0.0);
        for (index, token) in tokens.iter().enumerate() {
            // In range: the token was checked, and the table lies inside the file.
            let offset = embedding.file_offset + u64::from(*token) * embedding.row_bytes as u64;
            rows.read_exact_at(offset, self.row_bytes)?;
            kernels.dequantise(embedding.kind, self.row_bytes, self.row);
            let first = batch.index(hidden, 0, index);
            for (to, value) in x[first..].iter_mut().step_by(batch.width).zip(self.row.iter()) {
                *to = *value;
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the surroundings of one layer")]
    fn attention_block(
        &mut self,
        engine: Engine<'_>,
        ports: ComputePorts<'_>,
        shape: &Shape,
        layer: &Layer,
        index: LayerIndex,
        unit: &[u8],
        batch: &Batch,
        computed: impl Fn(Part),
    ) -> Result<()> {
        let (lanes, width, epsilon) = (batch.lanes(), batch.width, shape.norm_epsilon);
        let x = &mut self.x[..shape.hidden * lanes];
        let h = &mut self.h[..shape.hidden * lanes];
        let q = &mut self.q[..shape.query_values() * lanes];
        let k = &mut self.k[..shape.kv_values() * lanes];
        let v = &mut self.v[..shape.kv_values() * lanes];
        let norm = layer.tensor(Role::AttnNorm);
        rms_norm(engine.kernels, x, h, unit, norm, epsilon, width)?;
        let products = [
            product(layer, Role::Q, Role::QBias, q),
            product(layer, Role::K, Role::KBias, k),
            product(layer, Role::V, Role::VBias, v),
        ];
        multiply(engine, unit, products, h, batch, self.scratch, Finish::Plain)?;
        computed(Part::Project);
        for (role, values) in [(Role::QNorm, &mut *q), (Role::KNorm, &mut *k)] {
            if let Some(norm) = layer.optional(role) {
                rms_norm_in_place(engine.kernels, values, unit, norm, epsilon, width)?;
            }
        }
        let rotation = Rotation { cos: self.cos, sin: self.sin };
        rotation.apply(q, shape, batch);
        rotation.apply(k, shape, batch);
        let pairs = shape.architecture.rotary_pairs();
        ports.memory.offer_query_energy(index, pairs, batch.tokens, &|channel| {
            query_energy(q, shape, batch, channel)
        });
        scale(q, 1.0 / f32::from(shape.head_dim).sqrt());
        ports.memory.wait_kv(index)?;
        write_kv(ports.memory, index, shape, batch, k, v)?;
        computed(Part::Heads);
        let a = &mut self.a[..shape.query_values() * lanes];
        attend(engine, ports.memory, index, shape, batch, q, a, self.state, self.scratch)?;
        computed(Part::Attention);
        let products = [product(layer, Role::AttnOutput, Role::AttnOutputBias, h)];
        multiply(engine, unit, products, a, batch, self.scratch, Finish::Plain)?;
        add(x, h);
        computed(Part::Output);
        Ok(())
    }

    fn feed_forward_block(
        &mut self,
        engine: Engine<'_>,
        shape: &Shape,
        layer: &Layer,
        unit: &[u8],
        batch: &Batch,
    ) -> Result<()> {
        let lanes = batch.lanes();
        let x = &mut self.x[..shape.hidden * lanes];
        let h = &mut self.h[..shape.hidden * lanes];
        let gate = &mut self.gate[..shape.feed_forward * lanes];
        let up = &mut self.up[..shape.feed_forward * lanes];
        let norm = layer.tensor(Role::FfnNorm);
        rms_norm(engine.kernels, x, h, unit, norm, shape.norm_epsilon, batch.width)?;
        let products = [
            product(layer, Role::Gate, Role::GateBias, gate),
            product(layer, Role::Up, Role::UpBias, up),
        ];
        multiply(engine, unit, products, h, batch, self.scratch, Finish::Swiglu)?;
        let products = [product(layer, Role::Down, Role::DownBias, h)];
        multiply(engine, unit, products, gate, batch, self.scratch, Finish::Plain)?;
        add(x, h);
        Ok(())
    }

    /// Logits of the last tokens, each a panel of its own so that its logits lie side by side.
    fn head(
        &mut self,
        engine: Engine<'_>,
        ports: ComputePorts<'_>,
        model: &Model,
        batch: &Batch,
        logit_rows: usize,
    ) -> Result<()> {
        let hidden = model.shape.hidden;
        let unit = ports.memory.weights(model.head_unit())?;
        let rows = Batch::singles(logit_rows);
        let h = &mut self.h[..hidden * logit_rows];
        for (row, to) in h.chunks_exact_mut(hidden).enumerate() {
            let first = batch.index(hidden, 0, batch.tokens - logit_rows + row);
            for (to, value) in to.iter_mut().zip(self.x[first..].iter().step_by(batch.width)) {
                *to = *value;
            }
        }
        let norm = &model.head.norm;
        rms_norm_in_place(engine.kernels, h, &unit, norm, model.shape.norm_epsilon, 1)?;
        let y = &mut self.logits[..logit_rows * model.shape.vocabulary];
        let products = [Product { weight: &model.head.output, bias: None, y }];
        multiply(engine, &unit, products, h, &rows, self.scratch, Finish::Plain)
    }
}

/// Sum of squared query values that meet one K channel, over the tokens of a batch.
fn query_energy(q: &[f32], shape: &Shape, batch: &Batch, channel: usize) -> f32 {
    let head_dim = usize::from(shape.head_dim);
    let group = shape.heads / usize::from(shape.kv_heads);
    let (kv_head, channel) = (channel / head_dim, channel % head_dim);
    let mut sum = 0.0;
    for head in kv_head * group..(kv_head + 1) * group {
        let row = head * head_dim + channel;
        for token in 0..batch.tokens {
            let value = q[batch.index(shape.query_values(), row, token)];
            sum += value * value;
        }
    }
    sum
}

fn product<'a>(layer: &'a Layer, weight: Role, bias: Role, y: &'a mut [f32]) -> Product<'a> {
    Product { weight: layer.tensor(weight), bias: layer.optional(bias), y }
}
