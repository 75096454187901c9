//! What a runtime is made for, and how much memory that takes.

use super::open::place_sizes;
use super::trace::Trace;
use super::weights;
use crate::arena::Sizer;
use crate::codec::{self, ChunkLayout, Codec, Geometry, Steps, StepsUse};
use crate::error::{Code, Error, Result};
use crate::kernel::CpuFlags;
use crate::limits::{
    CHUNK_TOKENS, EXTENTS_PER_UNIT_MAX, HEAD_DIM_MAX, HEAD_DIM_MIN, IO_ALIGN, KV_HEADS_MAX,
    LAYERS_MAX, SEGMENTS_MAX, WORKERS_MAX,
};
use crate::policy::{self, Plan, Profile, Setup, Times};
use crate::state::{EvictPolicy, Roles};
use crate::swap::file::Slots;
use crate::swap::record::Layout;
use crate::units::{ByteCount, ChunkId, CodecId, KvShape, TokenCount, WeightUnit};

/// One worker thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// What it is there for.
    pub roles: Roles,
    /// What it does while there is none of that.
    pub helps: Roles,
    /// The core it runs on, or any. Where that cannot be had it runs anywhere, and
    /// [`super::Stats`] says so.
    pub core: Option<u16>,
}

impl Worker {
    /// One that does this alone, on any core.
    pub const fn new(roles: Roles) -> Worker {
        Worker { roles, helps: Roles::empty(), core: None }
    }

    /// All that it ever does.
    pub const fn all(&self) -> Roles {
        self.roles.union(self.helps)
    }
}

/// What the integrator chooses.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Longest context, in tokens.
    pub context_tokens_max: TokenCount,
    /// How chunks are packed.
    pub codec: CodecId,
    /// Measured rates of this device.
    pub profile: Profile,
    /// How evictions go about it.
    pub evict: EvictPolicy,
    /// Worker threads, as [`super::WorkerList`] makes them or of your own; none means inline.
    /// Together they must have all roles.
    pub workers: &'a [Worker],
    /// Stack of each worker thread, in bytes.
    pub stack_bytes: usize,
    /// Whether chunks may go to a swap file; the ports must then have one.
    pub swap_file: bool,
    /// Size of one segment of the RAM swap, in bytes; at least one packed chunk.
    pub segment_bytes: u32,
    /// Processor features that kernels may use.
    pub cpu: CpuFlags,
    /// The model's step profile as [`codec::Steps::write`] wrote it, for codecs that use one. What
    /// was packed with it unpacks only with the same. Without one the first eviction makes a
    /// profile, which [`super::Runtime::steps`] returns.
    pub steps: Option<&'a [u8]>,
    /// Who hears of what workers do.
    pub trace: Option<&'static dyn Trace>,
}

impl Default for Options<'_> {
    /// The paper's choices, 8,192 tokens, a swap file, no worker threads, portable kernels.
    fn default() -> Self {
        Options {
            context_tokens_max: TokenCount::new(8192),
            codec: CodecId::Q8,
            profile: Profile::DEFAULT,
            evict: EvictPolicy::default(),
            workers: &[],
            // Several times what the deepest codec needs.
            stack_bytes: 256 << 10,
            swap_file: true,
            // Small enough that the last one wastes little.
            segment_bytes: 4 << 20,
            cpu: CpuFlags::empty(),
            steps: None,
            trace: None,
        }
    }
}

/// What a runtime is made for.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// Shape of the KV cache.
    pub shape: KvShape,
    /// The weight units in order: transformer layers, then the output head.
    pub weights: &'a [WeightUnit<'a>],
    /// What the integrator chooses.
    pub options: Options<'a>,
}

impl Config<'_> {
    pub(super) fn columns_max(&self) -> Result<u16> {
        u16::try_from(self.options.context_tokens_max.chunks()).map_err(|_| {
            Error::new(Code::LimitExceeded, "context tokens")
                .with(self.options.context_tokens_max.get())
        })
    }

    /// Geometry of a full chunk, for sizes.
    fn full_chunk(&self) -> Geometry {
        Geometry {
            shape: self.shape,
            id: ChunkId::default(),
            tokens: CHUNK_TOKENS,
            layout: ChunkLayout::TokenMajor,
        }
    }

    pub(super) fn codec(&self) -> &'static dyn Codec {
        codec::codec(self.options.codec)
    }

    /// Bytes that a worker's codec needs besides the packed chunk.
    pub(super) fn codec_scratch_bytes(&self) -> usize {
        self.codec().scratch_bytes(&self.full_chunk())
    }

    pub(super) fn packed_bytes_max(&self) -> usize {
        self.codec().packed_bytes_max(&self.full_chunk())
    }

    /// Bytes of a slot in the swap file, and of a worker's buffer: a chunk, raw or packed.
    pub(super) fn slot_bytes(&self) -> usize {
        self.shape.chunk_bytes().max(self.packed_bytes_max()).next_multiple_of(IO_ALIGN)
    }

    pub(super) fn slots(&self) -> Result<Slots> {
        let bytes = self.slot_bytes();
        let slot_bytes = u32::try_from(bytes)
            .map_err(|_| Error::new(Code::LimitExceeded, "chunk bytes").with(bytes))?;
        Ok(Slots { layers: self.shape.layers, chunks: self.columns_max()?, slot_bytes })
    }

    /// Bytes of a step profile in a checkpoint; 0 where the codec uses none.
    pub(super) fn steps_bytes(&self) -> usize {
        match self.codec().properties().steps {
            StepsUse::Ignored => 0,
            StepsUse::Welcome | StepsUse::Needed => Steps::serialised_bytes(&self.shape),
        }
    }

    /// The RAM swap behind the units' buffers: room for every chunk packed, and for one open
    /// segment per worker.
    pub(super) fn layout(&self) -> Result<Layout> {
        let per_segment = (self.options.segment_bytes as usize / self.packed_bytes_max()).max(1);
        let chunks = usize::from(self.shape.layers) * usize::from(self.columns_max()?);
        let segments = chunks.div_ceil(per_segment) + self.options.workers.len() + 1;
        Ok(Layout {
            first_slot: self.weights.len() + chunks,
            segments: u16::try_from(segments).unwrap_or(SEGMENTS_MAX).min(SEGMENTS_MAX),
            segment_bytes: self.options.segment_bytes,
        })
    }

    /// Per-unit times and threshold of this configuration.
    pub(super) fn plan(&self) -> Result<Plan> {
        let unpackers =
            self.options.workers.iter().filter(|worker| worker.all().contains(Roles::UNPACK));
        let chunk_bytes = ByteCount::new(self.shape.chunk_bytes() as u64);
        let times = Times::new(
            &self.options.profile,
            &Setup {
                codec: self.options.codec,
                chunk_bytes,
                packed_bytes: ByteCount::new(self.packed_bytes_usual() as u64),
                stored_bytes: chunk_bytes,
                unpackers: u16::try_from(unpackers.count()).unwrap_or(u16::MAX),
                ram_is_open: true,
                flash_is_open: self.options.swap_file,
            },
        )?;
        let sizes = self.weights.iter().map(|unit| ByteCount::new(unit.bytes()));
        let threshold = policy::threshold(&times, sizes);
        Ok(Plan { scheme: self.options.evict.scheme, threshold, times })
    }

    /// What a full chunk of ordinary values packs to.
    fn packed_bytes_usual(&self) -> usize {
        self.codec().packed_bytes_usual(&self.full_chunk())
    }

    pub(super) fn validate(&self) -> Result<()> {
        let limit = |what, value: usize| Err(Error::new(Code::LimitExceeded, what).with(value));
        let KvShape { layers, kv_heads, head_dim } = self.shape;
        if !(HEAD_DIM_MIN..=HEAD_DIM_MAX).contains(&head_dim) || !head_dim.is_multiple_of(8) {
            return limit("head size", usize::from(head_dim));
        }
        if kv_heads == 0 || kv_heads > KV_HEADS_MAX {
            return limit("KV heads", usize::from(kv_heads));
        }
        if layers == 0 || layers > LAYERS_MAX {
            return limit("KV layers", usize::from(layers));
        }
        if self.options.workers.len() > WORKERS_MAX {
            return limit("workers", self.options.workers.len());
        }
        let roles =
            self.options.workers.iter().fold(Roles::empty(), |all, worker| all | worker.all());
        if !self.options.workers.is_empty() && roles != Roles::all() {
            return Err(Error::new(Code::InvalidArgument, "workers: a role is missing"));
        }
        if (self.options.segment_bytes as usize) < self.packed_bytes_max() {
            return Err(
                Error::new(Code::InvalidArgument, "segment_bytes").with(self.options.segment_bytes)
            );
        }
        self.options.profile.rates(self.options.codec)?;
        for unit in self.weights {
            if unit.extents.len() > EXTENTS_PER_UNIT_MAX {
                return limit("extents of a weight unit", unit.extents.len());
            }
            weights::validate(unit)?;
        }
        Ok(())
    }
}

/// Adds what [`super::Runtime::place`] places.
pub fn size(sizer: &mut Sizer, config: &Config<'_>) -> Result<()> {
    config.validate()?;
    place_sizes(sizer, config)
}

/// Bytes of memory that [`super::Runtime::open`] needs for this configuration, at any alignment.
pub fn required_bytes(config: &Config<'_>) -> Result<usize> {
    let mut sizer = Sizer::new();
    size(&mut sizer, config)?;
    sizer.required()
}
