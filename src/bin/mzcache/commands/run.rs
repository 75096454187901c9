//! `mzcache run`: a context is read, something is evicted, a prompt is answered.

use super::{Console, read_standard_input, read_text};
use crate::amount::{Amount, Size, time};
use crate::choice::Expected;
use crate::cli::{Common, Run as Options};
use crate::engine::{Answer, Engine};
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::sample::Sampler;
use crate::text::{Special, TextStream, Tokenizer};
use mzcache::runtime::Report;
use serde::Serialize;

/// Everything about one run, as JSON.
#[derive(Serialize)]
struct Summary {
    model: String,
    codec: &'static str,
    context_tokens: u32,
    prompt_tokens: usize,
    bytes_before: u64,
    bytes_resident: u64,
    evicted: Option<Evicted>,
    ttft_ms: f64,
    tokens_per_s: Option<f64>,
    tokens: Vec<u32>,
    text: String,
}

#[derive(Serialize)]
struct Evicted {
    bytes_asked: u64,
    bytes_freed: u64,
    bytes_freed_measured: Option<i64>,
    ms: f64,
    stage: String,
    stop: String,
}

/// Runs it.
pub fn run(common: &Common, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    let mut sampler = Sampler::new(options.sampling.settings())?;
    let prompt = match options.prompt.as_str() {
        "-" => read_standard_input()?,
        text => text.to_owned(),
    };
    let text = options.model.context.as_deref().map(read_text).transpose()?;
    let path = &options.model.model;
    let expected = expected(options, text.as_deref().unwrap_or_default());
    let mut engine = Engine::open(path, &options.engine, expected, &cache, console)?;
    let question = match text {
        Some(text) => {
            let tokens = engine.tokenizer.encode_start(&text, Special::AsText)?;
            lost(console, tokens.bytes_lost);
            fits(&engine, tokens.ids.len())?;
            let bar = console.bars().steps("reading the context", tokens.ids.len() as u64);
            engine.read(&tokens.ids, &bar)?;
            engine.tokenizer.encode(&prompt, Special::AsText)?
        }
        None => engine.tokenizer.encode_start(&prompt, Special::AsText)?,
    };
    lost(console, question.bytes_lost);
    if question.ids.is_empty() {
        return Err(Failure::usage("the prompt is empty"));
    }
    fits(&engine, question.ids.len())?;
    let bytes_before = engine.resident_bytes();
    let report = evict(console, &engine, options)?;
    let bytes_resident = engine.resident_bytes();
    let context_tokens = engine.session.tokens().get();
    let count = options.sampling.max_tokens.min(room(&engine, question.ids.len()));
    let decoder = Tokenizer::new(engine.tokenizer.vocabulary().clone())?;
    let mut stream = TextStream::from_middle(&decoder);
    let mut text = String::new();
    let answer = engine.answer(&question.ids, count, &mut sampler, &mut |token| {
        let piece = stream.push(token);
        text.push_str(&piece);
        if options.json { Ok(()) } else { console.print(&piece) }
    })?;
    let rest = stream.finish();
    if !options.json {
        console.print(&format!("{rest}\n"))?;
        console.note(&summary_line(&answer));
        return Ok(());
    }
    let summary = Summary {
        model: path.display().to_string(),
        codec: engine.codec.name(),
        context_tokens,
        prompt_tokens: question.ids.len(),
        bytes_before,
        bytes_resident,
        evicted: report.map(Evicted::from),
        ttft_ms: answer.first_token.as_secs_f64() * 1e3,
        tokens_per_s: tokens_per_second(&answer),
        tokens: answer.tokens,
        text: text + &rest,
    };
    console.print_json(&summary)
}

/// A token of text is about four bytes long.
fn expected(options: &Options, text: &str) -> Expected {
    let tokens = (text.len() + options.prompt.len()) / 4;
    let rest = options.eviction.remaining.map(|share| Amount::Share(share.rest()));
    Expected {
        tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
        evict: rest.or(options.eviction.evict),
    }
}

fn evict(console: &mut Console<'_>, engine: &Engine, options: &Options) -> Outcome<Option<Report>> {
    if options.eviction.remaining.is_none() && options.eviction.evict.is_none() {
        return Ok(None);
    }
    // Without a context nothing was needed yet; shares are of what an answer needs.
    engine.session.runtime().restore()?;
    let resident = engine.resident_bytes();
    let bytes = match (&options.eviction.remaining, &options.eviction.evict) {
        (Some(share), _) => resident - share.of(resident),
        (None, Some(amount)) => amount.bytes(resident),
        (None, None) => return Ok(None),
    };
    let report = engine.evict(bytes)?;
    console.note(&evicted_line(&report));
    Ok(Some(report))
}

/// What an eviction did, in a line.
pub fn evicted_line(report: &Report) -> String {
    let booked = &report.booked;
    let mut text = format!(
        "evicted {} of {} asked in {} ({:?}, now in stage {:?})",
        Size(booked.freed.get()),
        Size(booked.asked.get()),
        time(std::time::Duration::from_nanos(report.elapsed.get())),
        booked.stop,
        booked.stage,
    );
    if let Some(measured) = report.measured.and_then(|bytes| u64::try_from(bytes).ok()) {
        text.push_str(&format!("; the process shrank by {}", Size(measured)));
    }
    if let Some(error) = booked.error {
        text.push_str(&format!("; on the way: {error}"));
    }
    text
}

impl From<Report> for Evicted {
    fn from(report: Report) -> Self {
        Evicted {
            bytes_asked: report.booked.asked.get(),
            bytes_freed: report.booked.freed.get(),
            bytes_freed_measured: report.measured,
            ms: report.elapsed.as_millis_f64(),
            stage: format!("{:?}", report.booked.stage),
            stop: format!("{:?}", report.booked.stop),
        }
    }
}

fn lost(console: &mut Console<'_>, bytes: usize) {
    if bytes > 0 {
        console.note(&format!("{bytes} bytes have no token in this vocabulary and are left out"));
    }
}

/// Tokens that fit behind the context and a question.
pub fn room(engine: &Engine, question: usize) -> u32 {
    let used = u64::from(engine.session.tokens().get()) + question as u64;
    let limit = u64::from(engine.session.model().shape.context_tokens);
    // The last token chosen is not appended, so one more fits.
    u32::try_from(limit.saturating_sub(used).saturating_add(1)).unwrap_or(u32::MAX)
}

/// Refuses tokens that do not fit into what is left of the context.
pub fn fits(engine: &Engine, tokens: usize) -> Outcome<()> {
    let used = u64::from(engine.session.tokens().get()) + tokens as u64;
    let limit = u64::from(engine.session.model().shape.context_tokens);
    if used <= limit {
        return Ok(());
    }
    Err(Failure::new(format!("{used} tokens do not fit: the model's context has {limit}"))
        .hint("shorten the text"))
}

fn tokens_per_second(answer: &Answer) -> Option<f64> {
    let rest = answer.elapsed.saturating_sub(answer.first_token).as_secs_f64();
    let count = u32::try_from(answer.tokens.len().checked_sub(1)?).ok()?;
    (count > 0 && rest > 0.0).then(|| f64::from(count) / rest)
}

/// Times of an answer, in a line.
pub fn summary_line(answer: &Answer) -> String {
    let rate = match tokens_per_second(answer) {
        Some(rate) => format!(", then {rate:.1} tokens/s"),
        None => String::new(),
    };
    format!("first token after {}{rate}", time(answer.first_token))
}
