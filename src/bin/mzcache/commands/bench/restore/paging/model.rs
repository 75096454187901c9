//! The process whose memory is paged: weights as mapped pages of the model file, a KV cache in
//! anonymous memory, and nothing that it would evict by itself.

use super::super::super::context;
use super::super::subject;
use super::partner::serve;
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
        (ASK, Some(model)) => Ok(model.answer()?.as_nanos().to_string()),
        _ => Err(Failure::new(format!("unknown request `{request}`"))),
    })
}

struct Model {
    engine: Engine,
    question: Vec<u32>,
    context: TokenCount,
}

impl Model {
    fn open(cache: &CacheDir, options: &Options, console: &mut Console<'_>) -> Outcome<Model> {
        let engine_options =
            cli::Engine { maps_weights: true, ..cli::Engine::to_measure(options.threads) };
        let engine =
            Engine::open(&options.model, &engine_options, Expected::NOTHING, cache, console)?;
        let question = subject::question(&engine, options.queries);
        fits(&engine, options.context_tokens as usize + question.len())?;
        context::fill(&engine.session, options.context_tokens)?;
        let context = TokenCount::new(options.context_tokens);
        let mut model = Model { engine, question, context };
        for _ in 0..WARM_UPS {
            model.answer()?;
        }
        Ok(model)
    }

    fn weight_bytes(&self) -> u64 {
        self.engine.session.runtime().stats().tally.weight_bytes
    }

    fn answer(&mut self) -> Outcome<std::time::Duration> {
        subject::time_answer(&mut self.engine, &self.question, self.context)
    }
}
