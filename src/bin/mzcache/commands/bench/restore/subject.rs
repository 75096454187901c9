//! The model that is measured: a context of any length, evictions to any level, and the time that
//! an answer's first token takes.

use super::super::context::Patterns;
use super::bound::{Bound, Work};
use super::cores::CoreTime;
use super::rates::{MeasureRates, Rates, codec_rate_of};
use super::reading::Reading;
use super::recorder::{Recorder, is_allocation, is_reading};
use super::settle::settle;
use super::trial;
use crate::amount::{Amount, Percent};
use crate::baseline;
use crate::choice::Expected;
use crate::cli::{self, BenchRestore as Options};
use crate::commands::{Console, run::fits};
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::synthetic;
use mzcache::policy::Scheme;
use mzcache::runtime::{Overlap, Report};
use mzcache::state::{Action, EvictPolicy, part_bytes};
use mzcache::units::{ByteCount, LayerIndex, TokenCount, Unit};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Restores that measure how fast buffers are taken; the best counts.
const ROUNDS: usize = 2;

/// One model in one process.
pub struct Subject {
    pub engine: Engine,
    pub recorder: &'static Recorder,
    pub rates: Rates,
    reading: Reading,
    path: PathBuf,
    question: Vec<u32>,
    patterns: Patterns,
    context: TokenCount,
    /// With everything in memory.
    total: u64,
    weights: u64,
    /// What an answer took before the last eviction, and what it had of cores meanwhile.
    in_memory: Duration,
    computing: Duration,
    /// When the last eviction ended.
    evicted: CoreTime,
}

/// The model file: the one that is named, or one of that shape, written first if it is not there.
pub fn model_path(
    options: &Options,
    cache: &CacheDir,
    console: &mut Console<'_>,
) -> Outcome<PathBuf> {
    if let Some(path) = &options.model {
        return Ok(path.clone());
    }
    let model = synthetic::Model::new(options.shape);
    let bars = console.bars();
    synthetic::ensure(&model, &cache.models(), bars, &mut |text| console.note(text))
}

impl Subject {
    /// Opens the model and measures the rates that bound it, and those that it plans evictions by
    /// unless a profile was named: the balance of the two ways back is no better than these.
    pub fn open(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<Self> {
        let path = model_path(options, cache, console)?;
        let recorder: &'static Recorder = Box::leak(Box::new(Recorder::new()));
        let least = options.levels.iter().copied().min_by(|a, b| a.get().total_cmp(&b.get()));
        let expected = Expected {
            tokens: options.contexts.iter().copied().max().unwrap_or(0),
            evict: least.map(|level| Amount::Share(level.rest())),
        };
        let engine_options = cli::Engine { trace: Some(recorder), ..options.engine.clone() };
        let engine = Engine::open(&path, &engine_options, expected, cache, console)?;
        console.note("measuring rates of this machine");
        let accelerator = &options.engine.accelerator;
        let measure = MeasureRates { path: &path, engine: &engine, accelerator, cache };
        let (rates, reading) = measure.all()?;
        let mut subject = Subject {
            question: question(&engine, options.queries),
            patterns: Patterns::draw(&engine.session),
            engine,
            recorder,
            rates,
            reading,
            path,
            context: TokenCount::new(0),
            total: 0,
            weights: 0,
            in_memory: Duration::ZERO,
            computing: Duration::ZERO,
            evicted: CoreTime::now(),
        };
        if options.engine.profile.is_some() {
            return Ok(subject);
        }
        let profile = trial::profile(&mut subject, expected.tokens)?;
        console.note(&trial::describe(&profile, &subject.engine));
        // The model's memory goes back before it is taken anew.
        let Subject { engine, path, question, .. } = subject;
        let codec = cli::Codec::One(engine.codec);
        drop(engine);
        let engine_options = cli::Engine { codec, ..engine_options };
        let quiet = &mut console.quiet();
        let engine = Engine::open_by(profile, &path, &engine_options, expected, cache, quiet)?;
        Ok(Subject { engine, path, question, ..subject })
    }

    /// The model file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's name, for reports.
    pub fn name(&self) -> String {
        let name = self.path.file_stem().map(Path::new).unwrap_or(Path::new("model"));
        name.display().to_string()
    }

    /// Machine, accelerator, codec: what the numbers depend on.
    pub fn machine(&self) -> String {
        let Engine { codec, threads, .. } = &self.engine;
        format!("{}, codec {}", super::super::processor(usize::from(*threads)), codec.name())
    }

    /// Makes the context one of that many tokens.
    pub fn fill(&mut self, tokens: u32, console: &mut Console<'_>) -> Outcome<()> {
        console.note(&format!("filling a context of {tokens} tokens"));
        self.renew(tokens)
    }

    /// A context of that many tokens in place of the one before, all of it where an answer left it
    /// and nothing of it on flash yet.
    pub fn renew(&mut self, tokens: u32) -> Outcome<()> {
        self.engine.session.truncate(TokenCount::new(0))?;
        fits(&self.engine, tokens as usize + self.question.len())?;
        self.patterns.fill(&self.engine.session, tokens)?;
        self.context = TokenCount::new(tokens);
        let tally = self.engine.session.runtime().stats().tally;
        self.total = tally.total_bytes();
        self.weights = tally.weight_bytes;
        if self.engine.is_accelerated {
            // The first answer hands over what was just written.
            self.ask()?;
        }
        let start = CoreTime::now();
        self.in_memory = self.ask()?;
        let cores = if self.engine.is_accelerated { 0 } else { u32::from(self.engine.threads) };
        self.computing = (self.in_memory * cores).mul_f64(CoreTime::now().left_since(start));
        Ok(())
    }

    /// How fast one worker takes a device's buffers: by a restore of everything that does nothing
    /// else meanwhile.
    fn calibrate(&mut self) -> Outcome<()> {
        self.evict_bytes(self.total, EvictPolicy::default())?;
        let runtime = self.engine.session.runtime();
        runtime.set_overlap(Overlap::empty());
        runtime.begin_pass(self.context)?;
        runtime.set_overlap(Overlap::all());
        let record = self.recorder.read();
        let allocations = record.acts.iter().filter(|act| is_allocation(&act.action));
        let bytes = allocations.map(|act| self.unit_bytes(act.action.unit())).sum();
        let took = record.total(is_allocation);
        let found = rate(bytes, Duration::from_nanos(took.get()));
        self.rates.allocate = self.rates.allocate.max(found);
        Ok(runtime.finish_restore()?)
    }

    /// Measures anew what changes from one minute to the next on a machine with neighbours, for
    /// the bounds of what is measured next. Storage and fresh memory change from one second to the
    /// next, and so they are watched beside each restore as well.
    pub fn watch(&mut self) -> Outcome<()> {
        self.rates.set_codec(&codec_rate_of(&self.engine, self.rates.cores)?);
        if self.engine.is_accelerated {
            self.rates.allocate = 0.0;
            (0..ROUNDS).try_for_each(|_| self.calibrate())?;
        }
        self.recorder.clear();
        self.watch_storage()
    }

    /// Measures storage now, behind a restore that was heard: no rate is below what was seen; and
    /// what was left of the cores meanwhile.
    #[expect(clippy::cast_precision_loss, reason = "sizes for a rate")]
    pub fn watch_storage(&mut self) -> Outcome<()> {
        self.rates.cores_left = CoreTime::now().left_since(self.evicted);
        (self.rates.read, self.rates.read_core_seconds_per_byte) = self.reading.now()?;
        let record = self.recorder.read();
        let reads = record.acts.iter().filter(|act| is_reading(&act.action));
        let bytes: u64 = reads.map(|act| self.stored_bytes(&act.action)).sum();
        if let Some((start, end)) = record.span(is_reading) {
            let seconds = Duration::from_nanos(end.since(start).get()).as_secs_f64();
            self.rates.read = self.rates.read.max(bytes as f64 / seconds.max(1e-9));
        }
        Ok(())
    }

    /// Bytes that an action of a restore reads from storage.
    fn stored_bytes(&self, action: &Action) -> u64 {
        match *action {
            Action::ReadWeights { layer, part } => self.part_bytes(layer, part),
            Action::ReadChunk { record, .. } => record.bytes.into(),
            _ => 0,
        }
    }

    /// Bytes of a part of a layer's weights.
    pub fn part_bytes(&self, layer: LayerIndex, part: u32) -> u64 {
        let unit = self.unit_bytes(Unit::Weights(layer));
        let whole = part_bytes(unit);
        whole.min(unit.saturating_sub(u64::from(part) * whole))
    }

    /// Bytes of a unit's buffer.
    pub fn unit_bytes(&self, unit: Unit) -> u64 {
        let model = self.engine.session.model();
        match unit {
            Unit::Weights(layer) => model.units.get(layer.index()).map_or(0, |unit| unit.bytes()),
            Unit::Kv(_) => model.shape.kv().chunk_bytes() as u64,
        }
    }

    /// Bytes with everything in memory.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// How the engine was told to evict.
    pub const fn policy(&self) -> EvictPolicy {
        self.engine.evict_policy
    }

    /// Evicts until that share is left, a little more rather than less, of a context of which
    /// nothing was on flash yet: what lies there from before, packed or not, would be dropped and
    /// not written again, and another policy's restore would read it.
    pub fn evict_to(&mut self, level: Percent, policy: EvictPolicy) -> Outcome<Report> {
        self.renew(self.context.get())?;
        let bytes = self.engine.resident_bytes().saturating_sub(level.of(self.total));
        self.evict_bytes(bytes, policy)
    }

    pub fn evict_bytes(&mut self, bytes: u64, policy: EvictPolicy) -> Outcome<Report> {
        let report = self.engine.session.runtime().evict_by(policy, ByteCount::new(bytes), None)?;
        if let Some(error) = report.booked.error {
            return Err(Failure::from(error).about("while evicting"));
        }
        self.chill()?;
        let freed = report.booked.freed.get();
        let taking = settle(freed);
        if !self.engine.is_accelerated && freed > 0 {
            // A device has memory of another kind, see `watch`.
            self.rates.allocate = rate(freed, taking);
        }
        // What is heard next is the restore.
        self.recorder.clear();
        self.evicted = CoreTime::now();
        Ok(report)
    }

    /// Where files are read through the page cache, drops the model's pages.
    fn chill(&self) -> Outcome<()> {
        if self.engine.session.runtime().stats().model_is_direct {
            return Ok(());
        }
        drop_pages(&self.path)
    }

    /// From a question to its first token; the context is as before it then.
    pub fn ask(&mut self) -> Outcome<Duration> {
        time_answer(&mut self.engine, &self.question, self.context)
    }

    /// Everything back without a question.
    pub fn restore(&self) -> Outcome<Duration> {
        let start = Instant::now();
        self.engine.session.runtime().restore()?;
        Ok(start.elapsed())
    }

    /// The paper's baseline (6.1) from that level: restoration, and then the first token.
    pub fn partial_offload(&mut self, level: Percent) -> Outcome<(Duration, Duration)> {
        let policy = EvictPolicy { scheme: Scheme::PartialOffload, ..EvictPolicy::default() };
        self.evict_to(level, policy)?;
        let restoring = baseline::restore_by_layers(&self.engine)?;
        Ok((restoring, self.ask()?))
    }

    /// The least time that some work could take.
    pub fn bound_of(&self, work: &Work) -> Bound {
        Bound::new(&self.rates, work)
    }

    /// The least time in which what was just evicted could go.
    #[expect(clippy::cast_precision_loss, reason = "sizes for a ratio")]
    pub fn evict_bound_ms(&self) -> f64 {
        let tally = self.engine.session.runtime().stats().tally;
        let chunk = self.engine.session.model().shape.kv().chunk_bytes() as u64;
        let packed = (u64::from(tally.on_ram + tally.on_flash_packed) * chunk) as f64;
        let written = tally.on_flash_bytes as f64;
        let cores = packed / self.rates.pack / self.rates.cores as f64;
        1e3 * cores.max(written / self.rates.write)
    }

    /// What bringing everything back that is evicted now, and answering, asks for.
    pub fn work(&self, with_answer: bool) -> Work {
        let tally = self.engine.session.runtime().stats().tally;
        let chunk = self.engine.session.model().shape.kv().chunk_bytes() as u64;
        let raw = |chunks: u32| u64::from(chunks) * chunk;
        let weights_out = self.weights - tally.weight_bytes;
        let (prefill, computing) = match with_answer {
            true => (self.in_memory, self.computing),
            false => (Duration::ZERO, Duration::ZERO),
        };
        Work {
            read: weights_out + tally.on_flash_bytes,
            packed: tally.ram_bytes,
            unpack: raw(tally.on_ram) + raw(tally.on_flash_packed),
            allocate: weights_out + raw(tally.on_flash) + raw(tally.on_ram),
            prefill,
            computing,
            touched: if computing.is_zero() { 0 } else { self.total },
        }
    }
}

/// New tokens whose first answer is waited for.
pub fn question(engine: &Engine, tokens: u32) -> Vec<u32> {
    let vocabulary = u32::try_from(engine.session.model().shape.vocabulary).unwrap_or(u32::MAX);
    (0..tokens).map(|token| token % vocabulary).collect()
}

/// From a question to its first token, after which the context is as before it.
pub fn time_answer(
    engine: &mut Engine,
    question: &[u32],
    context: TokenCount,
) -> Outcome<Duration> {
    let start = Instant::now();
    let best = engine.session.predict(question)?;
    let took = start.elapsed();
    best.ok_or_else(crate::sample::unusable)?;
    engine.session.truncate(context)?;
    Ok(took)
}

/// Drops a file's clean pages that nobody has mapped from the page cache.
pub fn drop_pages(path: &Path) -> Outcome<()> {
    let about = |error: std::io::Error| Failure::file("drop the pages of", path, &error);
    let file = std::fs::File::open(path).map_err(about)?;
    let advice = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&file, 0, None, advice).map_err(|error| about(error.into()))
}

/// Bytes a second.
#[expect(clippy::cast_precision_loss, reason = "a rate for a comparison")]
pub fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}
