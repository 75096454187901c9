//! `mzcache demo`: eviction and restoration at several levels, beside the whole-layer baseline.

use super::run::fits;
use super::{Console, read_text};
use crate::amount::{Amount, Percent};
use crate::baseline;
use crate::choice::Expected;
use crate::cli::{Common, Demo as Options};
use crate::engine::{Answer, Engine};
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::report::{Level, Report};
use crate::sample::{Sampler, Settings};
use crate::synthetic;
use crate::text::Special;
use indicatif::ProgressBar;
use mzcache::policy::Scheme;
use mzcache::state::EvictPolicy;
use mzcache::units::{ByteCount, TokenCount};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A text that every copy of the program has.
const TEXT: &str = include_str!("../../../../LICENSE");
const PROMPT: &str = "In short, this licence says that";
/// Each figure is the median of so many rounds.
const ROUNDS: usize = 3;

/// Runs it.
pub fn demo(common: &Common, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    let path = match &options.model {
        Some(path) => path.clone(),
        None => {
            let bars = console.bars();
            let model = synthetic::Model::new(options.shape);
            synthetic::ensure(&model, &cache.models(), bars, &mut |text| console.note(text))?
        }
    };
    let mut demo = Demo::prepare(&cache, options, &path, console)?;
    let rounds = options.levels.len() * ROUNDS * 2;
    let bar = console.bars().steps("evicting, restoring", rounds as u64);
    let levels = options.levels.iter().map(|level| demo.level(*level, &bar));
    let levels = levels.collect::<Outcome<Vec<Level>>>()?;
    bar.finish_and_clear();
    let report = demo.report(&path, levels);
    match options.json {
        true => console.print_json(&report),
        false => console.print(&report.text()),
    }
}

/// Bytes that an eviction freed.
#[derive(Clone, Copy, Default)]
struct Freed {
    booked: u64,
    /// By how much the process shrank, where that can be seen.
    measured: Option<u64>,
}

struct Demo {
    engine: Engine,
    question: Vec<u32>,
    answer_tokens: u32,
    /// The context's length, to which every round returns.
    kept: TokenCount,
    /// Bytes in memory with nothing evicted, at the context's length.
    total: u64,
    kv_bytes: u64,
    in_memory: Duration,
    /// The answer without any eviction.
    expected: Vec<u32>,
}

impl Demo {
    /// Opens the model, reads the context, answers once with everything in memory.
    fn prepare(
        cache: &CacheDir,
        options: &Options,
        path: &Path,
        console: &mut Console<'_>,
    ) -> Outcome<Demo> {
        let least = options.levels.iter().copied().min_by(|a, b| a.get().total_cmp(&b.get()));
        let evict = least.map(|level| Amount::Share(level.rest()));
        let expected = Expected { tokens: options.context_tokens, evict };
        let mut engine = Engine::open(path, &options.engine, expected, cache, console)?;
        let prompt = options.prompt.as_deref().unwrap_or(PROMPT);
        let question = engine.tokenizer.encode(prompt, Special::AsText)?.ids;
        if question.is_empty() {
            return Err(Failure::usage("the prompt is empty"));
        }
        let text = options.context.as_deref().map(read_text).transpose()?;
        let tokens = context_tokens(&mut engine, options, text.as_deref().unwrap_or(TEXT))?;
        fits(&engine, tokens.len() + question.len() + options.max_tokens as usize)?;
        let bar = console.bars().steps("reading the context", tokens.len() as u64);
        engine.read(&tokens, &bar)?;
        let kept = engine.session.tokens();
        let tally = engine.session.runtime().stats().tally;
        let mut demo = Demo {
            engine,
            question,
            answer_tokens: options.max_tokens,
            kept,
            total: tally.total_bytes(),
            kv_bytes: tally.kv_bytes,
            in_memory: Duration::ZERO,
            expected: Vec::new(),
        };
        // The first round warms up; the rest are counted.
        let mut times = Vec::new();
        for _ in 0..=ROUNDS {
            let answer = demo.answer()?;
            times.push(answer.first_token);
            demo.expected = answer.tokens;
        }
        demo.in_memory = median(times.split_off(1));
        Ok(demo)
    }

    /// Answers the question and cuts the context back.
    fn answer(&mut self) -> Outcome<Answer> {
        let mut sampler = Sampler::new(Settings::GREEDY)?;
        let answer = self.engine.answer(
            &self.question,
            self.answer_tokens,
            &mut sampler,
            &mut |_| Ok(()),
        )?;
        self.engine.session.truncate(self.kept)?;
        Ok(answer)
    }

    fn level(&mut self, level: Percent, bar: &ProgressBar) -> Outcome<Level> {
        let mut ours = Vec::new();
        let mut offload = Vec::new();
        let (mut resident, mut freed, mut same) = (0, Freed::default(), true);
        let mut cycle: Option<Vec<u32>> = None;
        let mut repeats = true;
        for _ in 0..ROUNDS {
            freed = self.evict(level, Scheme::Hybrid)?;
            resident = self.engine.resident_bytes();
            let answer = self.answer()?;
            ours.push(answer.first_token);
            same &= answer.tokens == self.expected;
            repeats &= cycle.as_ref().is_none_or(|tokens| *tokens == answer.tokens);
            cycle = Some(answer.tokens);
            bar.inc(1);
            offload.push(self.partial_offload(level)?);
            bar.inc(1);
        }
        Ok(Level {
            remaining_pct: level.get(),
            bytes_resident: resident,
            bytes_freed: freed.booked,
            bytes_freed_measured: freed.measured,
            ttft_ms: millis(median(ours)),
            partial_offload_ttft_ms: millis(median(offload)),
            in_memory_ttft_ms: millis(self.in_memory),
            tokens_match: same,
            tokens_repeat: repeats,
        })
    }

    /// Evicts down to a level.
    fn evict(&self, level: Percent, scheme: Scheme) -> Outcome<Freed> {
        let allowed = level.of(self.total);
        let bytes = self.engine.resident_bytes().saturating_sub(allowed);
        let runtime = self.engine.session.runtime();
        let policy = EvictPolicy { scheme, ..self.engine.evict_policy };
        let report = runtime.evict_by(policy, ByteCount::new(bytes), None)?;
        if let Some(error) = report.booked.error {
            return Err(Failure::from(error).about("while evicting"));
        }
        self.engine.keep_steps()?;
        Ok(Freed {
            booked: report.booked.freed.get(),
            measured: report.measured.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
        })
    }

    /// The baseline: restoration, and then the first token.
    fn partial_offload(&mut self, level: Percent) -> Outcome<Duration> {
        self.evict(level, Scheme::PartialOffload)?;
        let restoring = baseline::restore_by_layers(&self.engine)?;
        Ok(restoring + self.answer()?.first_token)
    }

    fn report(&self, path: &Path, levels: Vec<Level>) -> Report {
        let name = path.file_name().map(PathBuf::from).unwrap_or_default();
        Report {
            model: name.display().to_string(),
            weights_bytes: self.total - self.kv_bytes,
            kv_bytes: self.kv_bytes,
            context_tokens: self.kept.get(),
            prompt_tokens: u32::try_from(self.question.len()).unwrap_or(u32::MAX),
            answer_tokens: self.answer_tokens,
            codec: self.engine.codec.name(),
            threads: self.engine.threads,
            is_direct: self.engine.session.runtime().stats().model_is_direct,
            levels,
        }
    }
}

/// The text's tokens, repeated until there are enough, then cut.
fn context_tokens(engine: &mut Engine, options: &Options, text: &str) -> Outcome<Vec<u32>> {
    let wanted = options.context_tokens as usize;
    let once = engine.tokenizer.encode_start(text, Special::AsText)?.ids;
    if once.is_empty() {
        return Err(Failure::new("the context text is empty"));
    }
    Ok(once.iter().copied().cycle().take(wanted).collect())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
