//! The process under pressure. Paged, it has its weights as mapped pages of the model file, its KV
//! cache in anonymous memory, and evicts nothing by itself; with a codec, it is ours.

use super::super::super::context::Patterns;
use super::super::subject;
use super::partner::{number, serve};
use crate::amount::Percent;
use crate::choice::Expected;
use crate::cli::{self, Common, PagedModel as Options};
use crate::commands::{Console, run::fits};
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use mzcache::units::TokenCount;

/// What it is asked for.
pub const OPEN: &str = "open";
pub const ASK: &str = "ask";
/// With a share of all that it holds at most, in percent.
pub const EVICT: &str = "evict";

/// Answers that only bring in what no eviction has touched yet.
const WARM_UPS: usize = 2;

/// Notes would be said twice: the bench has the same model.
const QUIET: Common = Common { cache_dir: None, quiet: true };

/// Serves whoever started it.
pub fn run(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let mut model = None;
    let (mut out, mut notes) = (std::io::sink(), std::io::sink());
    serve(console, &mut |request| match (request, &mut model) {
        (OPEN, None) => {
            let mut silent = Console::new(&QUIET, &mut out, &mut notes);
            let opened = model.insert(Model::open(cache, options, &mut silent)?);
            Ok(opened.weight_bytes().to_string())
        }
        (request, Some(model)) if request.starts_with(EVICT) => {
            let points: f64 = number(request.trim_start_matches(EVICT))?;
            model.evict(Percent::nearest(points))
        }
        (ASK, Some(model)) => Ok(model.answer()?.as_nanos().to_string()),
        _ => Err(Failure::new(format!("unknown request `{request}`"))),
    })
}

struct Model {
    engine: Engine,
    question: Vec<u32>,
    context: TokenCount,
    /// Bytes that it could evict with everything in memory.
    total: u64,
}

impl Model {
    fn open(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<Model> {
        let measured = cli::Engine::to_measure(options.threads);
        let engine_options = match options.codec {
            Some(codec) => cli::Engine { codec, ..measured },
            None => cli::Engine { maps_weights: true, ..measured },
        };
        let engine =
            Engine::open(&options.model, &engine_options, Expected::NOTHING, cache, console)?;
        let question = subject::question(&engine, options.queries);
        fits(&engine, options.context_tokens as usize + question.len())?;
        Patterns::draw(&engine.session).fill(&engine.session, options.context_tokens)?;
        let context = TokenCount::new(options.context_tokens);
        let total = engine.resident_bytes();
        let mut model = Model { engine, question, context, total };
        for _ in 0..WARM_UPS {
            model.answer()?;
        }
        Ok(model)
    }

    fn weight_bytes(&self) -> u64 {
        self.engine.session.runtime().stats().tally.weight_bytes
    }

    fn evict(&self, share: Percent) -> Outcome<String> {
        let report = self.engine.evict(share.of(self.total))?;
        match report.booked.error {
            Some(error) => Err(Failure::from(error).about("while evicting")),
            None => Ok(report.booked.freed.get().to_string()),
        }
    }

    fn answer(&mut self) -> Outcome<std::time::Duration> {
        subject::time_answer(&mut self.engine, &self.question, self.context)
    }
}
