//! A model file opened under memory management, with its tokenizer: what every command works on.

use crate::accelerator;
use crate::choice::{self, Expected};
use crate::cli;
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use crate::paths::{self, CacheDir};
use crate::sample::{Sampler, unusable};
use crate::steps::StepsFile;
use crate::text::{Tokenizer, Vocabulary};
use indicatif::ProgressBar;
use mzcache::arena::{Arena, Sizer};
use mzcache::infer::cpu::ComputeConfig;
use mzcache::infer::gguf::Gguf;
use mzcache::infer::{Model, Session, SessionConfig, SessionPorts};
use mzcache::policy::Profile;
use mzcache::port::affinity::CoreMap;
use mzcache::port::kgsl::{GpuBytes, KgslMemory};
use mzcache::port::linux::{
    FutexPark, HostPorts, MappedFile, MemoryKind, ThreadTeam, host_cpu, map_arena,
};
use mzcache::runtime::{Options, Report, WorkerCounts, WorkerList};
use mzcache::state::{EvictPolicy, Roles};
use mzcache::units::{ByteCount, CodecId, TokenCount};
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Tokens of one batch of a long prefill: as many as a chunk has.
const BATCH_TOKENS: usize = 256;

/// A session, its tokenizer, and what reports say of them.
pub struct Engine {
    pub session: Session,
    pub tokenizer: Tokenizer,
    pub threads: u16,
    pub codec: CodecId,
    /// How it evicts.
    pub evict_policy: EvictPolicy,
    /// The rates that it plans by, and the workers that unpack.
    pub profile: Profile,
    pub unpackers: u16,
    /// Whether an accelerator computes.
    pub is_accelerated: bool,
    steps: RefCell<StepsFile>,
}

/// What an engine is opened for, besides the options.
struct Needs {
    profile: Profile,
    logit_rows_max: usize,
    expected: Expected,
}

/// An answer that was generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub tokens: Vec<u32>,
    /// From the question to the first token.
    pub first_token: Duration,
    /// All of it.
    pub elapsed: Duration,
}

impl Engine {
    /// Opens a model file; `expected` is what `--codec auto` goes by.
    pub fn open(
        model_path: &Path,
        options: &cli::Engine,
        expected: Expected,
        cache: &CacheDir,
        console: &mut Console<'_>,
    ) -> Outcome<Engine> {
        let profile = read_profile(options.profile.as_deref(), cache, console)?;
        Engine::open_by(profile, model_path, options, expected, cache, console)
    }

    /// The same, planning by a profile that was just measured.
    pub fn open_by(
        profile: Profile,
        model_path: &Path,
        options: &cli::Engine,
        expected: Expected,
        cache: &CacheDir,
        console: &mut Console<'_>,
    ) -> Outcome<Engine> {
        let needs = Needs { profile, logit_rows_max: 1, expected };
        Engine::open_with(model_path, options, &needs, cache, console)
    }

    /// Opens one to compute on the processor and see the logits of up to `logit_rows_max` tokens of
    /// a batch; nothing is meant to be evicted.
    pub fn open_to_score(
        model_path: &Path,
        threads: Option<u16>,
        logit_rows_max: usize,
        cache: &CacheDir,
        console: &mut Console<'_>,
    ) -> Outcome<Engine> {
        // One that makes steps for all that use some.
        let codec = cli::Codec::One(CodecId::Kvh);
        let options = cli::Engine { codec, ..cli::Engine::to_measure(threads) };
        let expected = Expected::NOTHING;
        let needs = Needs { profile: Profile::DEFAULT, logit_rows_max, expected };
        Engine::open_with(model_path, &options, &needs, cache, console)
    }

    fn open_with(
        model_path: &Path,
        options: &cli::Engine,
        needs: &Needs,
        cache: &CacheDir,
        console: &mut Console<'_>,
    ) -> Outcome<Engine> {
        let about = |failure: Failure| failure.about(model_path.display());
        let (model, vocabulary) = read_model(model_path).map_err(about)?;
        let tokenizer = Tokenizer::new(vocabulary).map_err(about)?;
        if let Some(warning) = tokenizer.warning() {
            console.note(warning);
        }
        let threads = match options.threads {
            Some(threads) => threads,
            None => default_threads(),
        };
        let host = open_ports(model_path, options, cache, console)?;
        let workers = workers(threads, &options.cores.map())?;
        let unpackers = workers.iter().filter(|w| w.all().contains(Roles::UNPACK)).count();
        let unpackers = u16::try_from(unpackers).unwrap_or(u16::MAX);
        let codec = match options.codec {
            cli::Codec::One(codec) => codec,
            cli::Codec::Auto => {
                let Needs { profile, expected, .. } = needs;
                let (codec, why) = choice::choose(&model, profile, unpackers, *expected)?;
                console.note(&why);
                codec
            }
        };
        let steps = StepsFile::read(cache, model_path, &model, codec, console);
        let config = SessionConfig {
            options: Options {
                steps: steps.bytes(),
                context_tokens_max: TokenCount::new(model.shape.context_tokens),
                codec,
                profile: needs.profile,
                evict: options.evict_policy(),
                trace: options.trace,
                workers: &workers,
                cpu: host_cpu(),
                ..Options::default()
            },
            compute: ComputeConfig {
                batch_tokens_max: BATCH_TOKENS,
                logit_rows_max: needs.logit_rows_max,
                workers_max: usize::from(threads),
            },
        };
        let team: &'static ThreadTeam = leak(ThreadTeam::new(host.threads(), &FutexPark));
        team.open(usize::from(threads))?;
        let ports = SessionPorts { runtime: host.ports(), rows: host.rows(), team };
        let mut session = open_session(model, &config, ports, options, cache, console)?;
        note_stats(&session, workers.len(), options.maps_weights, console);
        let is_accelerated = session.opencl().is_some();
        session.runtime().set_overlap(options.overlap.runtime());
        Ok(Engine {
            session,
            tokenizer,
            threads,
            codec,
            evict_policy: options.evict_policy(),
            profile: needs.profile,
            unpackers,
            is_accelerated,
            steps: RefCell::new(steps),
        })
    }

    /// Appends tokens in batches, with a bar.
    pub fn read(&mut self, tokens: &[u32], bar: &ProgressBar) -> Outcome<()> {
        for batch in tokens.chunks(BATCH_TOKENS) {
            self.session.append(batch, 0)?;
            bar.inc(batch.len() as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Answers `question` with at most `count` tokens; `heard` is told each token as it is chosen.
    pub fn answer(
        &mut self,
        question: &[u32],
        count: u32,
        sampler: &mut Sampler,
        heard: &mut dyn FnMut(u32) -> Outcome<()>,
    ) -> Outcome<Answer> {
        let stops = self.tokenizer.stop_tokens();
        let start = Instant::now();
        let mut answer = Answer::default();
        let mut failure = None;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut take = |picked: Outcome<u32>| {
            if answer.tokens.is_empty() {
                answer.first_token = start.elapsed();
            }
            let taken = picked.and_then(|token| {
                if stops.contains(&token) {
                    return Ok(None);
                }
                heard(token)?;
                answer.tokens.push(token);
                Ok(Some(token))
            });
            taken.unwrap_or_else(|error| {
                failure = Some(error);
                None
            })
        };
        let session = &mut self.session;
        let generated = match sampler.is_greedy() {
            true => {
                session.generate_greedy(question, count, |best| take(best.ok_or_else(unusable)))
            }
            false => session.generate(question, count, |logits| take(sampler.pick(logits))),
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        generated?;
        answer.elapsed = start.elapsed();
        Ok(answer)
    }

    /// Bytes in shared buffers and the RAM swap.
    pub fn resident_bytes(&self) -> u64 {
        self.session.runtime().stats().tally.total_bytes()
    }

    /// Evicts `bytes`; less is a note, not a failure.
    pub fn evict(&self, bytes: u64) -> Outcome<Report> {
        let report = self.session.runtime().evict(ByteCount::new(bytes), None)?;
        self.keep_steps()?;
        Ok(report)
    }

    /// After an eviction: the steps that it made.
    pub fn keep_steps(&self) -> Outcome<()> {
        self.steps.borrow_mut().keep(&self.session)
    }
}

/// On what the options ask for; `auto` says where it fell back.
fn open_session(
    model: Model,
    config: &SessionConfig<'_>,
    ports: SessionPorts,
    options: &cli::Engine,
    cache: &CacheDir,
    console: &mut Console<'_>,
) -> Outcome<Session> {
    if options.backend != cli::Backend::Cpu {
        match accelerator::open(model, config, ports, &options.accelerator, cache) {
            Ok((session, device)) => {
                console.note(&format!("computing on {device}"));
                return Ok(session);
            }
            Err(failure) if options.backend == cli::Backend::Opencl => {
                return Err(failure.hint("choose another with --device, or use --backend cpu"));
            }
            Err(failure) => console.note(&format!("computing on the processor: {failure}")),
        }
    }
    let memory = map_arena(Session::required_bytes(&model, config)?)?;
    Ok(Session::open(model, config, memory, ports)?)
}

/// Says what is not as one would expect.
fn note_stats(session: &Session, workers: usize, maps: bool, console: &mut Console<'_>) {
    let stats = session.runtime().stats();
    if !stats.model_is_direct && !maps {
        console.note("this file system refuses O_DIRECT; the model is read through the page cache");
    }
    if stats.workers_unpinned > 0 {
        console.note(&format!(
            "{} of {workers} worker threads run on any core: theirs are offline, absent or not \
             this process's to use",
            stats.workers_unpinned,
        ));
    }
}

fn leak<T>(value: T) -> &'static T {
    // A session lives as long as the program.
    Box::leak(Box::new(value))
}

fn default_threads() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cores.min(mzcache::limits::WORKERS_MAX)).unwrap_or(1)
}

/// Two readers that only wait keep storage busy, but these also unpack what was stored packed:
/// there are twice as many, and more on many cores. Unpackers share the cores, as far as the map
/// has some for them. Page faults of fresh buffers take about as long as all else: the cores that a
/// map has for them are all used, up to a bound, and a quarter of them where it has none. Workers
/// that have a core each help where they can.
fn workers(threads: u16, map: &CoreMap) -> Outcome<WorkerList> {
    const WORKERS_OF_A_ROLE: usize = 6;
    let counts = WorkerCounts {
        allocate: match map.allocate.len() {
            0 => usize::from(threads.div_ceil(4)),
            cores => cores,
        }
        .min(WORKERS_OF_A_ROLE),
        read: usize::from(threads / 4).clamp(4, WORKERS_OF_A_ROLE),
        unpack: usize::from(threads.div_ceil(2)).min(WORKERS_OF_A_ROLE),
    };
    let list = WorkerList::new(map, counts)?;
    Ok(if list.len() <= usize::from(threads) { list.helping() } else { list })
}

fn read_model(path: &Path) -> Outcome<(Model, Vocabulary)> {
    let file = MappedFile::open(&paths::c_path(path)?)?;
    let gguf = Gguf::parse(&file)?;
    let vocabulary = Vocabulary::read(&gguf)?;
    let mut sizer = Sizer::new();
    Model::size(&gguf, &mut sizer)?;
    let mut arena = Arena::new(map_arena(sizer.required()?)?)?;
    Ok((Model::open(&gguf, &mut arena)?, vocabulary))
}

/// With a swap file without a name, which goes with the process.
fn open_passing(model: &Path, maps: bool, cache: &CacheDir) -> Outcome<HostPorts> {
    cache.create()?;
    let swap = cache.root().join(format!("swap-{}", std::process::id()));
    let open = if maps { HostPorts::open_mapping } else { HostPorts::open };
    let ports = open(&paths::c_path(model)?, Some(&paths::c_path(&swap)?));
    let removed = fs::remove_file(&swap);
    let ports = ports.map_err(|error| Failure::from(error).about(swap.display()))?;
    removed.map_err(|error| Failure::file("remove", &swap, &error))?;
    Ok(ports)
}

/// Opens the model file, a swap file, and where shared buffers come from.
fn open_ports(
    model: &Path,
    options: &cli::Engine,
    cache: &CacheDir,
    console: &mut Console<'_>,
) -> Outcome<&'static HostPorts> {
    let kind = options.memory_kind()?;
    let ports = match &options.keeps {
        Some(swap) => HostPorts::open_kept(&paths::c_path(model)?, Some(&paths::c_path(swap)?))
            .map_err(|error| Failure::from(error).about(swap.display()))?,
        None => open_passing(model, options.maps_weights, cache)?,
    };
    let ports = ports.with_memory(kind).map_err(memory_failure)?;
    match (kind, ports.kgsl()) {
        (MemoryKind::DmaHeap, _) => {
            console.note("shared buffers are dma-bufs; files are copied in")
        }
        (_, Some(memory)) => console.note(&kgsl_note(memory)),
        _ => {}
    }
    Ok(leak(ports))
}

fn kgsl_note(memory: &KgslMemory) -> String {
    // Drivers before 2022 do not tell the name.
    let model = memory.device().model().unwrap_or_default();
    let name = match model.text() {
        "" => "a GPU without a name",
        name => name,
    };
    let caches = if memory.is_coherent() { "coherent" } else { "synced" };
    let counted = match memory.gpu_bytes() {
        GpuBytes::Driver(_) => "the driver",
        GpuBytes::Own(_) => "mzcache",
    };
    format!("shared buffers are KGSL's on {name}, caches {caches}, counted by {counted}")
}

/// Memory that was asked for and cannot be had.
fn memory_failure(error: mzcache::Error) -> Failure {
    let number = i32::try_from(error.value).unwrap_or(0);
    let message = match error.code {
        mzcache::Code::NoDevice => {
            format!("cannot open {}: {}", error.what, io::Error::from_raw_os_error(number))
        }
        _ => error.to_string(),
    };
    Failure::new(message).hint(
        "this machine has no such memory, or not for this program; leave --memory out for \
         ordinary memory",
    )
}

/// The profile named, or the one in the cache directory, or the built-in one.
fn read_profile(
    option: Option<&Path>,
    cache: &CacheDir,
    console: &mut Console<'_>,
) -> Outcome<Profile> {
    let path = option.map_or_else(|| cache.profile(), Path::to_path_buf);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && option.is_none() => {
            console.note("planning by default rates; mzcache profile measures this machine");
            return Ok(Profile::DEFAULT);
        }
        Err(error) => {
            let failure = Failure::file("read", &path, &error);
            return Err(failure.hint("write one with mzcache profile"));
        }
    };
    Profile::parse(&bytes).map_err(|error| {
        Failure::new(format!("{}: {error}", path.display()))
            .hint("write it anew with mzcache profile")
    })
}
