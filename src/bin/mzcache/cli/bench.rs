//! What `mzcache bench` can be asked for.

use super::{Accelerator, Backend, Codec, Engine, tokens};
use crate::amount::{Percent, Size};
use crate::shape::Shape;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Measures parts beside their own bounds.
#[derive(Debug, Subcommand)]
#[command(after_help = BENCH_EXAMPLES)]
pub enum Bench {
    Attention(BenchAttention),
    Codec(BenchCodec),
    Layer(BenchLayer),
    Memory(BenchMemory),
    Ttft(BenchTtft),
    /// Allocation, reload and prefill one after the other (the paper's figure 10).
    Breakdown(BenchRestore),
    /// What overlapping them gains (figure 11a).
    Overlap(BenchRestore),
    /// What the order of eviction does to the first token (figure 11b).
    Order(BenchRestore),
    /// Both ways back at once and one after the other (figure 12).
    Paths(BenchRestore),
    /// How fast memory is given back.
    Evict(BenchRestore),
    Pressure(BenchPressure),
    /// Owns what paging needs of the system, for a bench that started it.
    #[command(hide = true)]
    PagingKeeper(PagedModel),
    /// The model that is paged, for a keeper that started it.
    #[command(hide = true)]
    PagedModel(PagedModel),
    /// Plays the device, for a bench that started it.
    #[command(hide = true)]
    PressureKeeper(PagedModel),
    /// Plays the apps, for a device that started it.
    #[command(hide = true)]
    MemoryHog,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  mzcache bench attention
  mzcache bench attention --device nvidia --memory coarse --json
  mzcache bench codec -m smollm2.gguf --text book.txt
  mzcache bench layer --shape qwen3-0.6b --contexts 2048 --queries 1
  mzcache bench layer --backend opencl --model model.gguf --json
  mzcache bench memory --sizes 1MiB,8MiB --json";

/// Attention over a long context on an accelerator, beside its copy bandwidth.
#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchAttention {
    #[command(flatten)]
    pub accelerator: Accelerator,
    /// Tokens of context.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "8192,16384,32768",
        value_parser = tokens()
    )]
    pub contexts: Vec<u32>,
    /// Queries at once.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=16))]
    pub queries: u32,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What each KV codec saves, what that does to the next tokens, and how fast it is.
///
/// The model reads the first part of a text; its cache is replaced by what a codec makes of it, and
/// the next part is scored against the untouched cache.
#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchCodec {
    /// The GGUF file.
    #[arg(long, short, value_name = "FILE")]
    pub model: PathBuf,
    /// A text of at least `--tokens` and `--score` tokens.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens whose cache is packed.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = tokens())]
    pub tokens: u32,
    /// Tokens that are scored then.
    #[arg(long, value_name = "N", default_value_t = 384,
        value_parser = clap::value_parser!(u32).range(2..=65536))]
    pub score: u32,
    /// Tokens that are generated greedily and compared.
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub greedy: u32,
    /// Compute threads [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A layer by parts, and the head, each beside the time that copying its bytes takes.
#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchLayer {
    /// A GGUF model; without one a model with random weights is written once, with no more layers
    /// than caches cannot hold.
    #[arg(long, short, value_name = "FILE", conflicts_with = "shape")]
    pub model: Option<PathBuf>,
    /// The shape of the model with random weights.
    #[arg(long, value_enum, default_value_t = Shape::Qwen3_0_6b)]
    pub shape: Shape,
    /// Tokens of context.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "2048",
        value_parser = tokens()
    )]
    pub contexts: Vec<u32>,
    /// Tokens that are computed at once.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub queries: u32,
    /// What computes.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub backend: Backend,
    #[command(flatten)]
    pub accelerator: Accelerator,
    /// Compute threads [default: all cores].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What shared buffers of an accelerator cost: allocated, filled, handed over, freed.
#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchMemory {
    #[command(flatten)]
    pub accelerator: Accelerator,
    /// Sizes of a unit.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', default_value = "1MiB,8MiB,32MiB")]
    pub sizes: Vec<Size>,
    /// Units of each size; times are their medians.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub units: u16,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What benches of restoration share.
#[derive(Args, Clone, Debug)]
#[command(after_help = RESTORE_EXAMPLES)]
pub struct BenchRestore {
    /// A GGUF model; without one a model with random weights is written once.
    #[arg(long, short, value_name = "FILE", conflicts_with = "shape")]
    pub model: Option<PathBuf>,
    /// The shape of the model with random weights.
    #[arg(long, value_enum, default_value_t = Shape::Qwen3_0_6b)]
    pub shape: Shape,
    /// Tokens of context; their keys and values are drawn by the statistics of real ones.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "16384",
        value_parser = tokens()
    )]
    pub contexts: Vec<u32>,
    /// Shares that remain in memory [default: those of the paper's figure].
    #[arg(long, value_name = "PCT,...", value_delimiter = ',')]
    pub levels: Vec<Percent>,
    /// New tokens, whose first answer is waited for.
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub queries: u32,
    /// Repetitions of each measurement; medians are reported, and how far they spread.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    #[command(flatten)]
    pub engine: Engine,
    /// Also write the table, JSON and a plot as files into this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  mzcache bench ttft --shape qwen3-0.6b --contexts 16384,32768 --out figures
  mzcache bench ttft --levels 50,0 --trace restore.json     open it with ui.perfetto.dev
  mzcache bench overlap --shape smollm2-135m --contexts 8000
  mzcache bench evict --model model.gguf --contexts 4096 --codec kv4

Beside every time stands its bound: for each resource (storage, cores, compute, memory) the work
that is asked of it divided by its rate as measured in the same run; the largest of these.
Evictions are planned by what trial restores of the same run reach, unless --profile is given.";

impl BenchRestore {
    /// With these levels, unless some were asked for.
    pub fn with_levels(&self, default: &[Percent]) -> BenchRestore {
        let mut options = self.clone();
        if options.levels.is_empty() {
            options.levels = default.to_vec();
        }
        options
    }
}

/// Time to the first token by what remained in memory (the paper's figure 9), ours and baselines.
#[derive(Args, Debug)]
pub struct BenchTtft {
    #[command(flatten)]
    pub restore: BenchRestore,
    /// What is compared.
    #[arg(
        long,
        value_enum,
        value_name = "SYSTEM,...",
        value_delimiter = ',',
        default_value = "mzcache,partial_offload"
    )]
    pub systems: Vec<System>,
    /// Write the last level's restore as a trace for Perfetto; an accelerator's commands then carry
    /// the device's own times, in all measurements.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// A model in the background while apps take the device's memory (the paper's figure 15).
///
/// The device has twice the memory that the model holds. In each round 6 to 9 apps start, each as
/// large as a fifth of the model; then they end, and the user asks the model. It is compared how
/// the model fares that the system pages to zram, and that this library keeps, evicting 15 or 25
/// hundredths of its memory when an app has started and less than 30 hundredths are free. All
/// compute on the processor; of the options, `--codec` and `--threads` count.
#[derive(Args, Debug)]
#[command(
    mut_arg("rounds", |rounds| rounds.default_value("10")),
    mut_arg("levels", |levels| levels.hide(true))
)]
pub struct BenchPressure {
    #[command(flatten)]
    pub restore: BenchRestore,
}

/// A model whose memory the system pages.
#[derive(Args, Clone, Debug)]
pub struct PagedModel {
    #[arg(long)]
    pub model: PathBuf,
    #[arg(long, value_parser = tokens())]
    pub context_tokens: u32,
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub queries: u32,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Evict by this library, with that codec.
    #[arg(long, value_parser = super::engine::codec)]
    pub codec: Option<Codec>,
}

impl PagedModel {
    /// The command line that asks `bench` for this.
    pub fn arguments(&self, bench: &str, cache: &Path) -> Vec<OsString> {
        let mut line = vec![
            OsString::from("--cache-dir"),
            cache.into(),
            "--quiet".into(),
            "bench".into(),
            bench.into(),
            "--model".into(),
            self.model.clone().into(),
            "--context-tokens".into(),
            self.context_tokens.to_string().into(),
            "--queries".into(),
            self.queries.to_string().into(),
        ];
        if let Some(codec) = self.codec {
            line.extend(["--codec".into(), codec.name().into()]);
        }
        if let Some(threads) = self.threads {
            line.extend(["--threads".into(), threads.to_string().into()]);
        }
        line
    }
}

/// Ways of giving memory back and getting it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum System {
    /// This library.
    Mzcache,
    /// Whole layers to storage and back, one step after the other.
    PartialOffload,
    /// The system's own paging: mapped weights, a KV cache in zram.
    OsPaging,
    /// The same with a swap file in the cache directory.
    OsPagingStorage,
}

impl System {
    /// As reports write it.
    pub const fn name(self) -> &'static str {
        match self {
            System::Mzcache => "mzcache",
            System::PartialOffload => "partial_offload",
            System::OsPaging => "os_paging",
            System::OsPagingStorage => "os_paging_storage",
        }
    }
}
