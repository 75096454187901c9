//! What `mzcache bench` can be asked for.

use super::{Accelerator, Backend, tokens};
use crate::amount::Size;
use crate::shape::Shape;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Measures parts beside their own bounds.
#[derive(Debug, Subcommand)]
#[command(after_help = BENCH_EXAMPLES)]
pub enum Bench {
    Attention(BenchAttention),
    Codec(BenchCodec),
    Layer(BenchLayer),
    Memory(BenchMemory),
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
