//! The command line: what may be asked for. Nothing here does anything.

mod bench;
mod engine;

pub use bench::{
    Bench, BenchAttention, BenchCodec, BenchLayer, BenchMemory, BenchPressure, BenchRestore,
    BenchTtft, PagedModel, System,
};
pub use engine::{Accelerator, Backend, Codec, Engine, Overlap};

use crate::amount::{Amount, Percent, Size};
use crate::sample::Settings;
use crate::shape::Shape;
use clap::{Args, Parser, Subcommand};
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
    /// Keeps the conversation in this file and its context in FILE.kv, after each answer, and goes
    /// on with it where the file is there: after a crash, too. Both hold what was said.
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    #[command(flatten)]
    pub engine: Engine,
    #[command(flatten)]
    pub sampling: Sampling,
}

const CHAT_EXAMPLES: &str = "\
Examples:
  mzcache chat -m model.gguf
  mzcache chat -m model.gguf --system 'You answer in one sentence.' --temperature 0.7
  mzcache chat -m model.gguf --keep talk

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

fn tokens() -> clap::builder::RangedI64ValueParser<u32> {
    // A context has at most 1024 chunks of 256 tokens.
    clap::value_parser!(u32).range(1..=262_144)
}

#[cfg(test)]
mod tests {
    use super::engine::Order;
    use super::*;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, ValueEnum};
    use mzcache::units::CodecId;

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
