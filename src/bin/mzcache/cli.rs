//! The command line: what may be asked for. Nothing here does anything.

mod bench;

pub use bench::{Bench, BenchAttention, BenchCodec, BenchLayer, BenchMemory};

use crate::amount::{Amount, Percent, Size};
use crate::cores::{self, Cores};
use crate::sample::Settings;
use crate::shape::Shape;
use clap::{Args, Parser, Subcommand, ValueEnum};
use mzcache::policy;
use mzcache::port::opencl::MemoryMode;
use mzcache::units::CodecId;
use std::path::PathBuf;

/// Runs language models in the memory that is left: evicts weights and KV cache piece by piece,
/// and answers while they are still coming back.
#[derive(Debug, Parser)]
#[command(name = "mzcache", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  mzcache demo                                    see what eviction costs; needs no model
  mzcache profile                                 measure this machine once
  mzcache run -m model.gguf -p 'Once upon a time'
  mzcache chat -m model.gguf                      then /evict 75%, /stats, /restore

Exit codes: 0 done, 1 something failed, 2 wrong command line.";

/// Options of every command.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Where synthetic models, swap files and the profile are kept
    /// [default: $XDG_CACHE_HOME/mzcache, else ~/.cache/mzcache].
    #[arg(long, global = true, env = "MZCACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Draw no progress bars and print no notes.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Run),
    Chat(Chat),
    Demo(Demo),
    Profile(Profile),
    #[command(subcommand)]
    Bench(Bench),
    /// Compiles kernels for another mzcache, which a crash of the compiler must not take down.
    #[command(hide = true)]
    CompileOpencl {
        /// What to compile.
        request: PathBuf,
    },
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
    /// How memory is shared with the device [default: what suits it best].
    #[arg(long, value_enum)]
    pub memory: Option<Memory>,
    /// Whether its commands know when they ran; for benches.
    #[arg(skip)]
    pub is_measured: bool,
}

/// How host and device share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// Both use it at any time.
    Fine,
    /// They take turns.
    Coarse,
    /// The device has memory of its own.
    Buffers,
}

impl Memory {
    /// As the library knows it.
    pub const fn mode(self) -> MemoryMode {
        match self {
            Memory::Fine => MemoryMode::Fine,
            Memory::Coarse => MemoryMode::Coarse,
            Memory::Buffers => MemoryMode::Buffers,
        }
    }
}

/// Answers one prompt, after an eviction if you ask for one.
#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    pub model: Model,
    /// What to answer; `-` reads it from the standard input.
    #[arg(long, short, value_name = "TEXT")]
    pub prompt: String,
    #[command(flatten)]
    pub eviction: Eviction,
    #[command(flatten)]
    pub engine: Engine,
    #[command(flatten)]
    pub sampling: Sampling,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const RUN_EXAMPLES: &str = "\
Examples:
  mzcache run -m model.gguf -p 'The capital of France is'
  mzcache run -m model.gguf -c report.txt -p 'In short:' --remaining 25%
  mzcache run -m model.gguf -c report.txt -p 'In short:' --evict 512MiB --codec q8 --json
  mzcache run -m model.gguf -p 'Once' --temperature 0.8 --top-p 0.95 --seed 7

The context is read first, then the eviction happens, then the prompt is answered while what was
evicted is restored.";

/// Holds a conversation.
#[derive(Args, Debug)]
#[command(after_help = CHAT_EXAMPLES)]
pub struct Chat {
    #[command(flatten)]
    pub model: Model,
    /// What the model is told about its part.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub engine: Engine,
    #[command(flatten)]
    pub sampling: Sampling,
}

const CHAT_EXAMPLES: &str = "\
Examples:
  mzcache chat -m model.gguf
  mzcache chat -m model.gguf --system 'You answer in one sentence.' --temperature 0.7

Lines that begin with / are commands:
  /evict 75%       evict three quarters of what is resident; or a size, as /evict 512MiB
  /stats           what is resident, packed and on storage
  /restore         bring everything back now
  /help, /quit";

/// Shows eviction and restoration at several levels, beside the whole-layer baseline.
#[derive(Args, Debug)]
#[command(after_help = DEMO_EXAMPLES)]
pub struct Demo {
    /// A GGUF model; without one a model with random weights is written once.
    #[arg(long, short, value_name = "FILE", conflicts_with = "shape")]
    pub model: Option<PathBuf>,
    /// The shape of the model with random weights.
    #[arg(long, value_enum, default_value_t = Shape::Smollm2_135m)]
    pub shape: Shape,
    /// A text to build the context from.
    #[arg(long, short, value_name = "FILE")]
    pub context: Option<PathBuf>,
    /// Tokens of context to build.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = tokens())]
    pub context_tokens: u32,
    /// What to answer at each level.
    #[arg(long, short, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Tokens to answer with at each level.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = tokens())]
    pub max_tokens: u32,
    /// Shares that remain, one row of the table each.
    #[arg(long, value_name = "PCT,...", value_delimiter = ',', default_value = "100,75,50,25,0")]
    pub levels: Vec<Percent>,
    #[command(flatten)]
    pub engine: Engine,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

const DEMO_EXAMPLES: &str = "\
Examples:
  mzcache demo
  mzcache demo --shape qwen3-0.6b --context-tokens 8192
  mzcache demo --model model.gguf --context book.txt --prompt 'The author says' --json

Without --model, a model of a well-known shape with random weights is written once into the cache
directory; nothing is downloaded.";

/// Measures how fast this machine reads storage and unpacks, and writes the profile file.
#[derive(Args, Debug)]
#[command(after_help = PROFILE_EXAMPLES)]
pub struct Profile {
    /// Bytes to read; more than the storage's own cache gives steadier numbers.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub read_bytes: Size,
    /// Where to write the profile [default: profile.txt in the cache directory].
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const PROFILE_EXAMPLES: &str = "\
Examples:
  mzcache profile
  mzcache profile --read-bytes 1GiB
  mzcache profile --cache-dir /data/mzcache       measures the storage under that directory";

/// The model, and what it has read.
#[derive(Args, Debug)]
pub struct Model {
    /// A GGUF model.
    #[arg(long, short, value_name = "FILE")]
    pub model: PathBuf,
    /// A text that the model reads first.
    #[arg(long, short, value_name = "FILE")]
    pub context: Option<PathBuf>,
}

/// How much to evict before answering.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub struct Eviction {
    /// Evict until this share remains resident.
    #[arg(long, value_name = "PCT")]
    pub remaining: Option<Percent>,
    /// Evict that much: a size, or a share of what is resident.
    #[arg(long, value_name = "BYTES")]
    pub evict: Option<Amount>,
}

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
}

impl Engine {
    /// On the processor, with the cache as it is computed.
    pub fn to_measure(threads: Option<u16>) -> Engine {
        Engine {
            codec: Codec::One(CodecId::Raw),
            order: Order::BackwardOut,
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
        }
    }
}

/// How tokens are picked.
#[derive(Args, Clone, Debug)]
pub struct Sampling {
    /// Tokens to answer with at most.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 256, value_parser = tokens())]
    pub max_tokens: u32,
    /// 0 always takes the most likely token; higher is bolder.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Only the K most likely tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
    /// Only the most likely tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Where chance starts: the same seed gives the same answer.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub seed: u64,
}

impl Sampling {
    pub const fn settings(&self) -> Settings {
        Settings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
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

fn tokens() -> clap::builder::RangedI64ValueParser<u32> {
    // A context has at most 1024 chunks of 256 tokens.
    clap::value_parser!(u32).range(1..=262_144)
}

fn codec(name: &str) -> Result<Codec, String> {
    if name == "auto" {
        return Ok(Codec::Auto);
    }
    CodecId::from_name(name).map(Codec::One).ok_or_else(|| {
        let known = CodecId::ALL.map(CodecId::name).join(", ");
        format!("the codecs are {known}; auto chooses one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_takes_model_context_prompt_and_eviction() {
        let cli =
            parse("mzcache run -m m.gguf -c c.txt -p hi --remaining 25% --codec raw").unwrap();
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.eviction.remaining.map(Percent::get), Some(25.0));
        assert_eq!(run.engine.codec, Codec::One(CodecId::Raw));
        assert_eq!(run.sampling.settings(), Settings::GREEDY);
        let cli = parse("mzcache run -m m -p hi --evict 512MiB --order lru --seed 7").unwrap();
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.eviction.evict, Some(Amount::Bytes(Size(512 << 20))));
        assert_eq!((run.engine.order, run.sampling.seed), (Order::Lru, 7));
    }

    #[test]
    fn a_demo_needs_nothing() {
        let Command::Demo(demo) = parse("mzcache demo").unwrap().command else {
            panic!("not a demo")
        };
        let levels: Vec<f64> = demo.levels.iter().map(|level| level.get()).collect();
        assert_eq!(levels, [100.0, 75.0, 50.0, 25.0, 0.0]);
        assert_eq!(demo.shape, Shape::Smollm2_135m);
    }

    #[test]
    fn what_cannot_be_is_a_usage_error() {
        let wrong = [
            ("mzcache run -m m -p hi --remaining 101%", ErrorKind::ValueValidation),
            ("mzcache run -m m -p hi --remaining -5%", ErrorKind::UnknownArgument),
            ("mzcache run -m m -p hi --evict lots", ErrorKind::ValueValidation),
            ("mzcache run -m m -p hi --codec zip", ErrorKind::ValueValidation),
            ("mzcache run -m m -p hi --remaining 5 --evict 5", ErrorKind::ArgumentConflict),
            ("mzcache run -m m", ErrorKind::MissingRequiredArgument),
            ("mzcache run -p hi", ErrorKind::MissingRequiredArgument),
            ("mzcache run -m m -p hi --threads 0", ErrorKind::ValueValidation),
            ("mzcache run -m m -p hi -n 0", ErrorKind::ValueValidation),
            ("mzcache run -m m -p hi --cores 6,7", ErrorKind::ValueValidation),
            ("mzcache demo -m m --shape qwen3-0.6b", ErrorKind::ArgumentConflict),
            ("mzcache demo --shape gpt5", ErrorKind::InvalidValue),
            ("mzcache demo --levels 50,200", ErrorKind::ValueValidation),
            ("mzcache bench memory --units 0", ErrorKind::ValueValidation),
            ("mzcache bench memory --memory own", ErrorKind::InvalidValue),
            ("mzcache profile --read-bytes -1", ErrorKind::UnknownArgument),
            ("mzcache bench layer -m m --shape tiny", ErrorKind::ArgumentConflict),
            ("mzcache bench layer --queries 300", ErrorKind::ValueValidation),
            ("mzcache fly", ErrorKind::InvalidSubcommand),
        ];
        for (line, kind) in wrong {
            assert_eq!(parse(line).unwrap_err().kind(), kind, "{line}");
        }
    }

    #[test]
    fn orders_have_the_library_s_names() {
        for order in Order::value_variants() {
            let value = order.to_possible_value().unwrap();
            assert_eq!(value.get_name(), order.policy().name());
        }
    }

    #[test]
    fn every_command_s_help_has_examples() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }
}
