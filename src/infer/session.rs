//! A model under memory management: what an application holds.
//!
//! Joins a [`Model`], a [`Runtime`] that owns its memory, and a [`Transformer`], or its twin on an
//! accelerator, that computes on it. Invariant: between calls the context's tokens, the runtime's
//! committed tokens and the KV in the chunks agree; a pass that fails leaves all as they were.
//! `restore_generate` of the paper (section 5) is [`Session::generate`]: it begins to restore
//! whatever is not in memory and computes layer by layer behind it.

use super::cpu::{ComputeConfig, ComputePorts, Transformer};
#[cfg(feature = "opencl")]
use super::opencl::{Accelerator, ClConfig, ClOptions, ClPorts, ClTransformer};
use super::{Model, Watch, sample};
use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::kernel::math::MathKernels;
#[cfg(feature = "opencl")]
use crate::port::opencl::{BuildLog, MemoryMode};
use crate::port::{Ports, RowReader, Team};
use crate::runtime::{self, CheckpointReport, Options, Recovered, Runtime};
use crate::units::{Nanos, Tag, TokenCount};
use core::mem::MaybeUninit;

/// What a session is made for.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig<'a> {
    /// Memory management.
    pub options: Options<'a>,
    /// Batches and threads of the transformer.
    pub compute: ComputeConfig,
}

/// The ports of a session.
#[derive(Clone, Copy)]
pub struct SessionPorts {
    /// Those of the runtime.
    pub runtime: Ports,
    /// The model file, for embedding rows.
    pub rows: &'static dyn RowReader,
    /// Threads that compute.
    pub team: &'static dyn Team,
}

/// What computes.
#[cfg_attr(feature = "opencl", expect(clippy::large_enum_variant, reason = "one a session"))]
enum Backend {
    Cpu(Transformer),
    #[cfg(feature = "opencl")]
    OpenCl(ClTransformer),
}

/// One model and one context.
pub struct Session {
    runtime: Runtime,
    backend: Backend,
    rows: &'static dyn RowReader,
    team: &'static dyn Team,
}

impl Session {
    fn runtime_config<'a>(model: &'a Model, config: &SessionConfig<'a>) -> runtime::Config<'a> {
        runtime::Config { shape: model.shape.kv(), weights: model.units, options: config.options }
    }

    /// Bytes of memory that [`Session::open`] needs, at any alignment.
    pub fn required_bytes(model: &Model, config: &SessionConfig<'_>) -> Result<usize> {
        Self::sizer(model, config)?.required()
    }

    fn sizer(model: &Model, config: &SessionConfig<'_>) -> Result<Sizer> {
        let mut sizer = Sizer::new();
        runtime::size(&mut sizer, &Self::runtime_config(model, config))?;
        Transformer::size(model, &config.compute, &mut sizer)?;
        Ok(sizer)
    }

    /// As [`Session::required_bytes`], for [`Session::open_on`].
    #[cfg(feature = "opencl")]
    pub fn required_bytes_on(model: &Model, config: &SessionConfig<'_>) -> Result<usize> {
        let mut sizer = Sizer::new();
        Accelerator::size_buffers(model, config.options.context_tokens_max, &mut sizer)?;
        runtime::size(&mut sizer, &Self::runtime_config(model, config))?;
        ClTransformer::size(model, &cl_config(config), &mut sizer)?;
        sizer.required()
    }

    /// Places everything in `memory` and starts the workers. The weights stay on storage until the
    /// first pass, which computes while they arrive.
    pub fn open(
        model: Model,
        config: &SessionConfig<'_>,
        memory: &'static mut [MaybeUninit<u8>],
        ports: SessionPorts,
    ) -> Result<Session> {
        check_context(&model, config)?;
        let mut arena = Arena::new(memory)?;
        let runtime_config = Self::runtime_config(&model, config);
        let runtime = Runtime::place(&runtime_config, &mut arena, ports.runtime)?;
        let kernels = MathKernels::select(config.options.cpu);
        let transformer = Transformer::open(model, kernels, config.compute, &mut arena)?;
        assert_eq!(arena.seal(), Self::sizer(&model, config)?.used(), "size query and placement");
        let backend = Backend::Cpu(transformer);
        Ok(Session { runtime, backend, rows: ports.rows, team: ports.team })
    }

    /// As [`Session::open`], computing on an accelerator. Shared buffers are the accelerator's, in
    /// place of the memory port that was given; the team is not used. After `BuildFailed` the log
    /// says why.
    #[cfg(feature = "opencl")]
    pub fn open_on(
        accelerator: &Accelerator,
        model: Model,
        config: &SessionConfig<'_>,
        options: &ClOptions<'_>,
        log: &mut BuildLog<'_>,
        memory: &'static mut [MaybeUninit<u8>],
        mut ports: SessionPorts,
    ) -> Result<Session> {
        check_context(&model, config)?;
        let mut arena = Arena::new(memory)?;
        let context_tokens_max = config.options.context_tokens_max;
        ports.runtime.memory = accelerator.buffers(&model, context_tokens_max, &mut arena)?;
        if accelerator.mode() == MemoryMode::Buffers {
            // What the device frees does not show in the process.
            ports.runtime.meter = None;
        }
        let runtime_config = Self::runtime_config(&model, config);
        let runtime = Runtime::place(&runtime_config, &mut arena, ports.runtime)?;
        let kernels = MathKernels::select(config.options.cpu);
        let cl = cl_config(config);
        let transformer =
            ClTransformer::open(model, kernels, cl, accelerator, options, log, &mut arena)?;
        let backend = Backend::OpenCl(transformer);
        Ok(Session { runtime, backend, rows: ports.rows, team: ports.team })
    }

    /// The transformer on the accelerator, if that is where this session computes.
    #[cfg(feature = "opencl")]
    pub fn opencl(&mut self) -> Option<&mut ClTransformer> {
        match &mut self.backend {
            Backend::Cpu(_) => None,
            Backend::OpenCl(transformer) => Some(transformer),
        }
    }

    /// The memory manager: evict, stats, check.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The model.
    pub fn model(&self) -> &Model {
        match &self.backend {
            Backend::Cpu(transformer) => transformer.model(),
            #[cfg(feature = "opencl")]
            Backend::OpenCl(transformer) => transformer.model(),
        }
    }

    /// Who hears of every part of a pass from now on.
    pub fn watch(&mut self, watch: Option<&'static dyn Watch>) {
        match &mut self.backend {
            Backend::Cpu(transformer) => transformer.watch(watch),
            #[cfg(feature = "opencl")]
            Backend::OpenCl(transformer) => transformer.watch(watch),
        }
    }

    /// Tokens in the context.
    pub fn tokens(&self) -> TokenCount {
        self.runtime.tokens()
    }

    /// Appends tokens to the context and returns the logits of the last `logit_rows` of them,
    /// `[row][vocabulary]`. Restores what is not in memory meanwhile; a layer is computed as soon
    /// as its gates open. After an error the context is as before; `Cancelled` means that an
    /// eviction came first and the call may be repeated.
    pub fn append(&mut self, tokens: &[u32], logit_rows: usize) -> Result<&[f32]> {
        let (position, end) = self.begin(tokens)?;
        let (memory, rows, team) = (&self.runtime, self.rows, self.team);
        let logits = match &mut self.backend {
            Backend::Cpu(transformer) => {
                let ports = ComputePorts { memory, rows, team };
                transformer.forward(ports, tokens, position, logit_rows)?
            }
            #[cfg(feature = "opencl")]
            Backend::OpenCl(transformer) => {
                let ports = ClPorts { memory, rows };
                transformer.forward(ports, tokens, position, logit_rows)?
            }
        };
        self.runtime.commit(end)?;
        Ok(logits)
    }

    /// As [`Session::append`], but says only which token is the most likely next: what
    /// [`sample::arg_max`] says of the last token's logits. An accelerator then hands over one
    /// number instead of the whole vocabulary's.
    pub fn predict(&mut self, tokens: &[u32]) -> Result<Option<u32>> {
        let (position, end) = self.begin(tokens)?;
        let (memory, rows, team) = (&self.runtime, self.rows, self.team);
        let best = match &mut self.backend {
            Backend::Cpu(transformer) => {
                let ports = ComputePorts { memory, rows, team };
                let best = sample::arg_max(transformer.forward(ports, tokens, position, 1)?);
                best.and_then(|index| u32::try_from(index).ok())
            }
            #[cfg(feature = "opencl")]
            Backend::OpenCl(transformer) => {
                let ports = ClPorts { memory, rows };
                transformer.predict(ports, tokens, position)?
            }
        };
        self.runtime.commit(end)?;
        Ok(best)
    }

    /// Begins a pass that appends `tokens`: the first one's position, and the context's end.
    fn begin(&self, tokens: &[u32]) -> Result<(u32, TokenCount)> {
        let position = self.runtime.tokens().get();
        let added = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let end = TokenCount::new(position.saturating_add(added));
        self.runtime.begin_pass(end)?;
        Ok((position, end))
    }

    /// Appends `input` and then generates up to `count` tokens, each chosen by `choose` from the
    /// logits over the vocabulary; `choose` ends the generation with `None`. Every chosen token is
    /// appended to the context but the last one. Returns how many were chosen.
    pub fn generate(
        &mut self,
        input: &[u32],
        count: usize,
        mut choose: impl FnMut(&[f32]) -> Option<u32>,
    ) -> Result<usize> {
        self.generate_by(input, count, |session, tokens| Ok(choose(session.append(tokens, 1)?)))
    }

    /// As [`Session::generate`], but `choose` hears only which token is the most likely, or `None`
    /// where no logit is a number.
    pub fn generate_greedy(
        &mut self,
        input: &[u32],
        count: usize,
        mut choose: impl FnMut(Option<u32>) -> Option<u32>,
    ) -> Result<usize> {
        self.generate_by(input, count, |session, tokens| Ok(choose(session.predict(tokens)?)))
    }

    fn generate_by(
        &mut self,
        input: &[u32],
        count: usize,
        mut next_after: impl FnMut(&mut Session, &[u32]) -> Result<Option<u32>>,
    ) -> Result<usize> {
        let mut chosen = 0;
        let mut next = match count {
            0 => {
                self.append(input, 0)?;
                None
            }
            _ => next_after(self, input)?,
        };
        while let Some(token) = next {
            chosen += 1;
            if chosen == count {
                break;
            }
            next = next_after(self, &[token])?;
        }
        Ok(chosen)
    }

    /// Makes the context outlive the process under the caller's name for its tokens, as
    /// [`Runtime::checkpoint`] does. [`Tag::with`] makes such names.
    pub fn checkpoint(&self, tag: Tag, deadline: Option<Nanos>) -> Result<CheckpointReport> {
        self.runtime.checkpoint(tag, deadline)
    }

    /// Takes over the context that an earlier process left under that name, as
    /// [`Runtime::recover`] does: before the first token. The next pass brings it back.
    pub fn recover(&mut self, tag: Tag) -> Result<Recovered> {
        self.runtime.recover(tag)
    }

    /// Cuts the context.
    pub fn truncate(&mut self, tokens: TokenCount) -> Result<()> {
        self.runtime.truncate(tokens)
    }
}

/// No context may be longer than the model was made for.
fn check_context(model: &Model, config: &SessionConfig<'_>) -> Result<()> {
    let context_tokens_max = config.options.context_tokens_max.get();
    if context_tokens_max > model.shape.context_tokens {
        let error = Error::new(Code::LimitExceeded, "context_tokens_max");
        return Err(error.with(context_tokens_max));
    }
    Ok(())
}

#[cfg(feature = "opencl")]
fn cl_config(config: &SessionConfig<'_>) -> ClConfig {
    let context_tokens_max = config.options.context_tokens_max;
    ClConfig { compute: config.compute, context_tokens_max }
}
