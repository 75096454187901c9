//! The forward pass: waits for gates on the host, enqueues layer by layer.

use super::flight::Flight;
use super::launch::Commands;
use super::layer::{Activations, Stage};
use super::programs::Programs;
use super::tables::Tables;
use super::{Accelerator, ClOptions, ClReport};
use crate::arena::{Arena, Sizer, view};
use crate::codec::Steps;
use crate::error::{Code, Error, Result};
use crate::infer::cpu::ComputeConfig;
use crate::infer::{DeviceMemory, Model, Watch};
use crate::kernel::math::MathKernels;
use crate::kernel::opencl::ARGMAX_NONE;
use crate::limits::CHUNK_TOKENS;
use crate::port::RowReader;
use crate::port::opencl::{BuildLog, Queue};
use crate::units::{LayerIndex, TokenCount};

/// What fixes the sizes of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClConfig {
    /// Batches; the number of workers is not used.
    pub compute: ComputeConfig,
    /// Longest context, in tokens.
    pub context_tokens_max: TokenCount,
}

impl ClConfig {
    /// Chunks of a layer.
    fn columns(&self) -> usize {
        usize::try_from(self.context_tokens_max.chunks()).unwrap_or(usize::MAX)
    }
}

/// Where a forward pass gets everything from.
#[derive(Clone, Copy)]
pub struct ClPorts<'a> {
    /// Weights and KV chunks.
    pub memory: &'a dyn DeviceMemory,
    /// The model file, for embedding rows.
    pub rows: &'a dyn RowReader,
}

/// What the host keeps.
struct Host {
    /// One embedding row as it lies in the file.
    row_bytes: &'static mut [u8],
    /// Embedding rows of a batch.
    rows: &'static mut [f32],
    /// Bytes of logits, `[row][vocabulary]`.
    logits: &'static mut [u8],
    /// Bytes of query energies, `[layer][kv_head][head_dim]`.
    energy: &'static mut [u8],
}

/// A model with its kernels and the device memory to compute it.
pub struct ClTransformer {
    model: Model,
    kernels: MathKernels,
    config: ClConfig,
    flight: Flight,
    tables: Tables,
    programs: Programs,
    work: Activations,
    host: Host,
    queue: Queue,
    units: u32,
    watch: Option<&'static dyn Watch>,
}

/// What a pass leaves on the device, of its last tokens.
#[derive(Clone, Copy)]
enum Wanted {
    /// Logits of so many.
    Logits(usize),
    /// The most likely token after the last one.
    Best,
}

impl Wanted {
    /// Tokens whose logits are computed.
    const fn rows(self) -> usize {
        match self {
            Wanted::Logits(rows) => rows,
            Wanted::Best => 1,
        }
    }
}

impl ClTransformer {
    /// Adds what [`ClTransformer::open`] places.
    pub fn size(model: &Model, config: &ClConfig, sizer: &mut Sizer) -> Result<()> {
        config.compute.check()?;
        let (shape, columns) = (&model.shape, config.columns());
        Flight::size(sizer, columns)?;
        Tables::size(sizer, shape.layers.into(), columns)?;
        sizer.bytes(model.embedding.row_bytes, 1)?;
        sizer.slice::<f32>(shape.hidden * config.compute.batch_tokens_max)?;
        sizer.bytes(logits_bytes(model, config), align_of::<f32>())?;
        sizer.bytes(energy_bytes(model), align_of::<f32>())
    }

    /// Builds the kernels and places the memory. `Unsupported` names what the kernels do not
    /// compute; after `BuildFailed` the log says why.
    pub fn open(
        model: Model,
        kernels: MathKernels,
        config: ClConfig,
        accelerator: &Accelerator,
        options: &ClOptions<'_>,
        log: &mut BuildLog<'_>,
        arena: &mut Arena,
    ) -> Result<Self> {
        config.compute.check()?;
        let (layers, columns) = (usize::from(model.shape.layers), config.columns());
        let programs = Programs::build(accelerator, &model, &config.compute, options, log)?;
        let flight = Flight::new(arena, columns)?;
        let tables = Tables::new(arena, accelerator, layers, columns)?;
        let work = Activations::new(accelerator, &model, &config.compute, columns, &programs)?;
        let host = Host {
            row_bytes: arena.bytes(model.embedding.row_bytes, 1)?,
            rows: arena.slice(model.shape.hidden * config.compute.batch_tokens_max, |_| 0.0)?,
            logits: arena.bytes(logits_bytes(&model, &config), align_of::<f32>())?,
            energy: arena.bytes(energy_bytes(&model), align_of::<f32>())?,
        };
        Ok(ClTransformer {
            model,
            kernels,
            config,
            flight,
            tables,
            programs,
            work,
            host,
            queue: accelerator.queue.share()?,
            units: accelerator.device().compute_units,
            watch: None,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// What building the kernels came to.
    pub fn report(&self) -> &ClReport {
        &self.programs.report
    }

    /// Who hears of every command from now on.
    pub fn watch(&mut self, watch: Option<&'static dyn Watch>) {
        self.watch = watch;
    }

    /// Calls `see(chunk, entry)` for each entry of a layer's table as the device has it: an
    /// address, or an offset where there is no shared memory. For tests.
    pub fn table(&mut self, layer: LayerIndex, see: impl FnMut(usize, u64)) -> Result<()> {
        self.tables.read(layer.index(), see)
    }

    /// Computes `tokens`, the first of which has position `position` in the context: appends their
    /// keys and values to the chunks and returns the logits of the last `logit_rows` tokens,
    /// `[row][vocabulary]`. The chunks that they fall into exist; those before hold the context.
    ///
    /// After an error the chunks' rows from `position` on are undefined, those before are intact,
    /// and nothing is leased.
    pub fn forward(
        &mut self,
        ports: ClPorts<'_>,
        tokens: &[u32],
        position: u32,
        logit_rows: usize,
    ) -> Result<&[f32]> {
        self.pass(ports, tokens, position, Wanted::Logits(logit_rows))?;
        let bytes = &mut self.host.logits[..logit_rows * self.model.shape.vocabulary * 4];
        self.work.logits.read(0, bytes)?;
        match view::numbers(bytes) {
            Some(logits) => Ok(logits),
            None => unreachable!("placed as numbers"),
        }
    }

    /// As [`ClTransformer::forward`], but only the most likely token after the last one comes back
    /// from the device: the index of the largest logit, the first of equals, `None` where all are
    /// NaN.
    pub fn predict(
        &mut self,
        ports: ClPorts<'_>,
        tokens: &[u32],
        position: u32,
    ) -> Result<Option<u32>> {
        self.pass(ports, tokens, position, Wanted::Best)?;
        let mut bytes = [0; size_of::<u32>()];
        self.work.best.read(0, &mut bytes)?;
        Ok(Some(u32::from_ne_bytes(bytes)).filter(|index| *index != ARGMAX_NONE))
    }

    fn pass(
        &mut self,
        ports: ClPorts<'_>,
        tokens: &[u32],
        position: u32,
        wanted: Wanted,
    ) -> Result<()> {
        let config = self.config.compute;
        config.check_pass(&self.model.shape, tokens, position, wanted.rows())?;
        let end = u64::from(position).saturating_add(tokens.len() as u64);
        if end > u64::from(self.config.context_tokens_max.get()) {
            return Err(Error::new(Code::LimitExceeded, "context_tokens_max").with(end));
        }
        let (mut rest, mut position) = (tokens, position);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(config.batch_tokens(rest.len(), wanted.rows()));
            let wanted = if later.is_empty() { wanted } else { Wanted::Logits(0) };
            let wants_energy = ports.memory.wants_query_energy();
            let enqueued = self.batch(ports, now, position, wanted, wants_energy);
            // Whatever came of it, commands that use leased memory may be under way.
            let ran = self.queue.finish();
            self.flight.release_all();
            enqueued.and(ran)?;
            if wants_energy {
                self.offer_energy(ports.memory, now.len())?;
            }
            position = position.saturating_add(u32::try_from(now.len()).unwrap_or(u32::MAX));
            rest = later;
        }
        Ok(())
    }

    fn batch(
        &mut self,
        ports: ClPorts<'_>,
        tokens: &[u32],
        position: u32,
        wanted: Wanted,
        wants_energy: bool,
    ) -> Result<()> {
        self.embed(ports.rows, tokens)?;
        let model = &self.model;
        let end = position as usize + tokens.len();
        let chunk_tokens = usize::from(CHUNK_TOKENS);
        let tails = position as usize / chunk_tokens..end.div_ceil(chunk_tokens);
        let mut stage = Stage {
            queue: Commands::new(&self.queue, self.watch.map(|watch| watch as &dyn Watch)),
            programs: &mut self.programs,
            work: &mut self.work,
            shape: &model.shape,
            tokens: tokens.len(),
            position,
            units: self.units,
            wants_energy,
        };
        stage.warm_up()?;
        for (index, layer) in (0..model.shape.layers).zip(model.layers) {
            let index = LayerIndex::new(index);
            let unit = self.flight.weights(ports.memory, index)?;
            stage.project(layer, unit)?;
            let chunks = self.flight.chunks(ports.memory, index, tails.end, tails.clone())?;
            let table = self.tables.update(index.index(), chunks.entries)?;
            stage.attend(index, layer, unit, &chunks, table)?;
            let done = stage.feed_forward(layer, unit)?;
            self.flight.until(index, done);
        }
        if wanted.rows() > 0 {
            let unit = self.flight.weights(ports.memory, model.head_unit())?;
            stage.head(model, unit, wanted.rows())?;
        }
        match wanted {
            Wanted::Logits(_) => Ok(()),
            Wanted::Best => stage.pick(),
        }
    }

    /// Hands over what the queries of a batch came to. After each batch, because an eviction that
    /// makes steps of it may come from any thread, and cannot ask the device.
    fn offer_energy(&mut self, memory: &dyn DeviceMemory, tokens: usize) -> Result<()> {
        self.work.energy.read(0, self.host.energy)?;
        let Some(energies) = view::numbers::<f32>(self.host.energy) else {
            unreachable!("placed as numbers")
        };
        let shape = &self.model.shape;
        let pairs = shape.architecture.rotary_pairs();
        for (layer, energies) in (0..shape.layers).zip(energies.chunks_exact(shape.kv_values())) {
            let layer = LayerIndex::new(layer);
            memory.offer_query_energy(layer, pairs, tokens, &|channel| energies[channel]);
        }
        Ok(())
    }

    /// Embedding rows into the residual stream.
    fn embed(&mut self, rows: &dyn RowReader, tokens: &[u32]) -> Result<()> {
        let (embedding, hidden) = (&self.model.embedding, self.model.shape.hidden);
        let values = &mut self.host.rows[..hidden * tokens.len()];
        for (token, row) in tokens.iter().zip(values.chunks_exact_mut(hidden)) {
            // In range: the token was checked, and the table lies inside the file.
            let offset = embedding.file_offset + u64::from(*token) * embedding.row_bytes as u64;
            rows.read_exact_at(offset, self.host.row_bytes)?;
            self.kernels.dequantise(embedding.kind, self.host.row_bytes, row);
        }
        self.work.x.write(0, view::bytes_of(values))
    }
}

impl Drop for ClTransformer {
    fn drop(&mut self) {
        // A lost device runs nothing any more, so an error is as good an end.
        let _lost = self.queue.finish();
    }
}

fn energy_bytes(model: &Model) -> usize {
    Steps::values(&model.shape.kv()).saturating_mul(size_of::<f32>())
}

fn logits_bytes(model: &Model, config: &ClConfig) -> usize {
    let values = config.compute.logit_rows_max.saturating_mul(model.shape.vocabulary);
    values.saturating_mul(size_of::<f32>())
}
