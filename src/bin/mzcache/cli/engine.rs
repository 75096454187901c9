//! How models are kept, moved and computed: options that several commands take.

use crate::cores::{self, Cores};
use crate::failure::{Failure, Outcome};
use clap::{Args, ValueEnum};
use mzcache::port::linux::MemoryKind;
use mzcache::port::opencl::MemoryMode;
use mzcache::units::CodecId;
use mzcache::{policy, runtime, state};
use std::path::PathBuf;

/// A codec, or the one that suits the eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Auto,
    One(CodecId),
}

/// How weights and KV cache are kept, moved and computed.
#[derive(Args, Clone, Debug)]
pub struct Engine {
    /// How KV chunks are packed; `auto` takes the codec that is predicted to restore soonest.
    #[arg(long, value_name = "CODEC", default_value = "q8", value_parser = codec)]
    pub codec: Codec,
    /// What is evicted first.
    #[arg(long, value_enum, default_value_t = Order::BackwardOut)]
    pub order: Order,
    /// Where evicted KV chunks may go.
    #[arg(long, value_enum, default_value_t = Paths::Both)]
    pub paths: Paths,
    /// What a restore does at once: a allocates, r reloads, p prefills.
    #[arg(long, value_enum, default_value_t = Overlap::Arp)]
    pub overlap: Overlap,
    /// What computes.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub backend: Backend,
    #[command(flatten)]
    pub accelerator: Accelerator,
    /// Compute threads [default: all cores].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Cores of the worker threads: `auto` for the big ones to unpack and read and the middle ones
    /// to allocate, where a machine has such; `none` for any; `sm8750` or `sm8650` for these chips;
    /// or your own, such as read=6,7;unpack=6,7;allocate=2-5.
    #[arg(long, value_name = "CORES", default_value = "auto", value_parser = cores::parse)]
    pub cores: Cores,
    /// The profile to plan by [default: profile.txt in the cache directory].
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Who hears of what workers do; for benches.
    #[arg(skip)]
    pub trace: Option<&'static dyn runtime::Trace>,
    /// Whether weights are mapped pages of the file, as a baseline has them.
    #[arg(skip)]
    pub maps_weights: bool,
    /// The swap file, where it is to outlive the process.
    #[arg(skip)]
    pub keeps: Option<PathBuf>,
}

impl Codec {
    /// As the options name it.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Auto => "auto",
            Codec::One(codec) => codec.name(),
        }
    }
}

impl Engine {
    /// Where shared buffers come from while no device has them.
    pub fn memory_kind(&self) -> Outcome<MemoryKind> {
        match (self.accelerator.memory.map(Memory::place), self.backend) {
            (Some(Place::Host(kind, _)), Backend::Cpu) => Ok(kind),
            (Some(Place::Host(_, name)), _) => Err(not_shared(name)),
            _ => Ok(MemoryKind::Anonymous),
        }
    }

    /// How evictions go about it.
    pub const fn evict_policy(&self) -> state::EvictPolicy {
        state::EvictPolicy {
            scheme: policy::Scheme::Hybrid,
            order: self.order.policy(),
            paths: self.paths.policy(),
        }
    }

    /// On the processor, with the cache as it is computed.
    pub fn to_measure(threads: Option<u16>) -> Engine {
        Engine {
            codec: Codec::One(CodecId::Raw),
            order: Order::BackwardOut,
            paths: Paths::Both,
            overlap: Overlap::Arp,
            backend: Backend::Cpu,
            accelerator: Accelerator {
                device: None,
                library: None,
                memory: None,
                is_measured: false,
            },
            threads,
            cores: Cores::anywhere(),
            profile: None,
            trace: None,
            maps_weights: false,
            keeps: None,
        }
    }
}

/// Which accelerator.
#[derive(Args, Clone, Debug)]
pub struct Accelerator {
    /// Part of the device's, platform's or vendor's name [default: the best one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// The OpenCL library [default: looked for where systems keep it].
    #[arg(long, value_name = "FILE", env = "MZCACHE_OPENCL")]
    pub library: Option<PathBuf>,
    /// How memory is shared with the device, or where the processor's buffers come from [default:
    /// what suits the device best; ordinary memory].
    #[arg(long, value_enum)]
    pub memory: Option<Memory>,
    /// Whether its commands know when they ran; for benches.
    #[arg(skip)]
    pub is_measured: bool,
}

impl Accelerator {
    /// How it is to share memory; `None` where nothing was asked for.
    pub fn mode(&self) -> Outcome<Option<MemoryMode>> {
        match self.memory.map(Memory::place) {
            None => Ok(None),
            Some(Place::Shared(mode)) => Ok(Some(mode)),
            Some(Place::Host(_, name)) => Err(not_shared(name)),
        }
    }
}

/// That such memory is for computing on the processor.
pub fn not_shared(name: &str) -> Failure {
    Failure::usage(format!("--memory {name} is for --backend cpu"))
}

/// How host and device share memory, or where the processor's buffers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// Both use it at any time.
    Fine,
    /// They take turns.
    Coarse,
    /// The device has memory of its own.
    Buffers,
    /// Buffers of Adreno's kernel driver, for the processor.
    Kgsl,
    /// Dma-bufs from the system's heap, for the processor.
    DmaHeap,
}

/// As the library knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Shared with a device of OpenCL.
    Shared(MemoryMode),
    /// The processor's, by the option's name.
    Host(MemoryKind, &'static str),
}

impl Memory {
    /// As the library knows it.
    pub const fn place(self) -> Place {
        match self {
            Memory::Fine => Place::Shared(MemoryMode::Fine),
            Memory::Coarse => Place::Shared(MemoryMode::Coarse),
            Memory::Buffers => Place::Shared(MemoryMode::Buffers),
            Memory::Kgsl => Place::Host(MemoryKind::Kgsl, "kgsl"),
            Memory::DmaHeap => Place::Host(MemoryKind::DmaHeap, "dma-heap"),
        }
    }
}

/// Which units are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Last layers first: what is left is what the next answer needs first.
    BackwardOut,
    /// First layers first.
    ForwardOut,
    /// By chance.
    Random,
    /// The least recently used first.
    Lru,
}

impl Order {
    /// As the library knows it; the order by chance is the same in every run.
    pub const fn policy(self) -> policy::Order {
        match self {
            Order::BackwardOut => policy::Order::BackwardOut,
            Order::ForwardOut => policy::Order::ForwardOut,
            Order::Random => policy::Order::Random(0),
            Order::Lru => policy::Order::Lru,
        }
    }
}

/// Ways out of memory for KV chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Paths {
    /// Packed in RAM, and on flash.
    Both,
    /// Packed in RAM only.
    Ram,
    /// On flash only.
    Flash,
}

impl Paths {
    /// As the library knows it.
    pub const fn policy(self) -> state::Paths {
        match self {
            Paths::Both => state::Paths::BOTH,
            Paths::Ram => state::Paths { ram: true, flash: false },
            Paths::Flash => state::Paths { ram: false, flash: true },
        }
    }
}

/// What a restore does at once, as the ablations of the paper's figure 11 name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Overlap {
    /// One after the other.
    None,
    /// Allocation and reload, then prefill.
    Ar,
    /// Allocation, then reload and prefill.
    Rp,
    /// All three.
    Arp,
}

impl Overlap {
    /// As reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            Overlap::None => "none",
            Overlap::Ar => "ar",
            Overlap::Rp => "rp",
            Overlap::Arp => "arp",
        }
    }

    /// As the library knows it.
    pub const fn runtime(self) -> runtime::Overlap {
        match self {
            Overlap::None => runtime::Overlap::empty(),
            Overlap::Ar => runtime::Overlap::ALLOCATE_RELOAD,
            Overlap::Rp => runtime::Overlap::RELOAD_PREFILL,
            Overlap::Arp => runtime::Overlap::all(),
        }
    }
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The processor.
    Cpu,
    /// An accelerator, through OpenCL.
    Opencl,
    /// An accelerator if there is one that can, else the processor.
    Auto,
}

pub fn codec(name: &str) -> Result<Codec, String> {
    if name == "auto" {
        return Ok(Codec::Auto);
    }
    CodecId::from_name(name).map(Codec::One).ok_or_else(|| {
        let known = CodecId::ALL.map(CodecId::name).join(", ");
        format!("the codecs are {known}; auto chooses one")
    })
}
