//! `mzcache chat`: a conversation that keeps its context through evictions.
//!
//! Each turn renders the whole conversation with the model's template and computes only what the
//! context does not hold yet. `keep` has it on disk.

mod keep;

use super::run::{evicted_line, fits, room, summary_line};
use super::{Console, read_text};
use crate::amount::{Amount, Percent, Size};
use crate::choice::Expected;
use crate::cli::{Chat as Options, Common};
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::paths::CacheDir;
use crate::sample::Sampler;
use crate::talk::{self, HELP, Line};
use crate::template::{ChatTemplate, Message, Role};
use crate::text::{Special, TextStream, Tokenizer};
use keep::Keep;
use mzcache::units::TokenCount;
use std::io::{BufRead, IsTerminal};

struct Conversation<'a, 'b> {
    console: &'a mut Console<'b>,
    engine: Engine,
    template: ChatTemplate,
    decoder: Tokenizer,
    sampler: Sampler,
    max_tokens: u32,
    messages: Vec<Message>,
    /// The tokens that the context holds.
    held: Vec<u32>,
    /// Where it is kept, if it is.
    keep: Option<Keep>,
}

/// Runs it.
pub fn chat(common: &Common, options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    let sampler = Sampler::new(options.sampling.settings())?;
    let path = &options.model.model;
    // Nobody knows yet what will be evicted.
    let expected = Expected { tokens: 2048, evict: Some(Amount::Share(Percent::HALF)) };
    let keep = options.keep.as_deref().map(Keep::new);
    let kept = keep.as_ref().map(Keep::read).transpose()?.flatten();
    let swap = keep.as_ref().map(Keep::swap);
    let engine_options = crate::cli::Engine { keeps: swap, ..options.engine.clone() };
    let mut engine = Engine::open(path, &engine_options, expected, &cache, console)?;
    let template = ChatTemplate::new(engine.tokenizer.vocabulary())?;
    let decoder = Tokenizer::new(engine.tokenizer.vocabulary().clone())?;
    let (messages, held) = match kept {
        Some(kept) => {
            let held = go_on(&mut engine, kept.tokens, console)?;
            (kept.messages, held)
        }
        None => (opening(options)?, Vec::new()),
    };
    let max_tokens = options.sampling.max_tokens;
    let mut conversation = Conversation {
        console,
        engine,
        template,
        decoder,
        sampler,
        max_tokens,
        messages,
        held,
        keep,
    };
    conversation.hold()
}

/// What is said before the first line.
fn opening(options: &Options) -> Outcome<Vec<Message>> {
    let mut messages = Vec::new();
    let mut say = |role, content: String| messages.push(Message { role, content });
    if let Some(system) = &options.system {
        say(Role::System, system.clone());
    }
    if let Some(file) = &options.model.context {
        say(Role::User, read_text(file)?);
        say(Role::Assistant, "I have read it.".to_owned());
    }
    Ok(messages)
}

/// The context of an earlier process, as far as it is there.
fn go_on(engine: &mut Engine, tokens: Vec<u32>, console: &mut Console<'_>) -> Outcome<Vec<u32>> {
    if tokens.is_empty() {
        return Ok(tokens);
    }
    let (count, why) = Keep::recover(engine, &tokens)?;
    let why = why.map(|why| format!("; the others are computed again: {why}"));
    let all = tokens.len();
    console.note(&format!("going on with {count} of {all} tokens{}", why.unwrap_or_default()));
    Ok(tokens.into_iter().take(count).collect())
}

impl Conversation<'_, '_> {
    fn hold(&mut self) -> Outcome<()> {
        let input = std::io::stdin();
        let prompts = input.is_terminal();
        if prompts {
            self.console.note("type a message; /help lists commands, /quit ends");
        }
        loop {
            if prompts {
                self.console.print("> ")?;
            }
            let mut line = String::new();
            match input.lock().read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    return Err(Failure::new(format!("cannot read the standard input: {error}")));
                }
            }
            match talk::read(&line) {
                Ok(Line::Quit) => return Ok(()),
                Ok(line) => self.obey(line)?,
                Err(advice) => self.console.print(&format!("{advice}\n"))?,
            }
        }
    }

    fn obey(&mut self, line: Line) -> Outcome<()> {
        match line {
            Line::Say(text) => self.say(text),
            Line::Evict(amount) => {
                let bytes = amount.bytes(self.engine.resident_bytes());
                let report = self.engine.evict(bytes)?;
                self.console.print(&format!("{}\n", evicted_line(&report)))
            }
            Line::Restore => {
                self.engine.session.runtime().restore()?;
                self.console
                    .print(&format!("{} are in memory\n", Size(self.engine.resident_bytes())))
            }
            Line::Stats => self.console.print(&self.stats()),
            Line::Help => self.console.print(HELP),
            Line::Empty | Line::Quit => Ok(()),
        }
    }

    /// One turn. If it does not fit or fails, the conversation is as before.
    fn say(&mut self, text: String) -> Outcome<()> {
        self.messages.push(Message { role: Role::User, content: text });
        let turn = self.turn();
        match turn {
            Ok(answer) => {
                self.messages.push(Message { role: Role::Assistant, content: answer });
                match &self.keep {
                    Some(keep) => keep.write(&self.engine, &self.messages, &self.held),
                    None => Ok(()),
                }
            }
            Err(failure) => {
                self.messages.pop();
                Err(failure)
            }
        }
    }

    fn turn(&mut self) -> Outcome<String> {
        let text = self.template.render(&self.messages, true)?;
        let tokens = self.engine.tokenizer.encode_start(&text, Special::AsTokens)?.ids;
        let known = self.held.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        // At least one token is computed, for its logits.
        let known = known.min(tokens.len().saturating_sub(1));
        self.cut(known)?;
        let (early, last) = tokens[known..].split_at(tokens.len().saturating_sub(known + 32));
        fits(&self.engine, tokens.len() - known)?;
        if !early.is_empty() {
            let bar = self.console.bars().steps("reading", early.len() as u64);
            self.engine.read(early, &bar)?;
            self.held.extend_from_slice(early);
        }
        let count = self.max_tokens.min(room(&self.engine, last.len()));
        let mut stream = TextStream::from_middle(&self.decoder);
        let mut answer = String::new();
        let given = self.engine.answer(last, count, &mut self.sampler, &mut |token| {
            let piece = stream.push(token);
            answer.push_str(&piece);
            self.console.print(&piece)
        })?;
        let rest = stream.finish();
        answer.push_str(&rest);
        self.console.print(&format!("{rest}\n"))?;
        self.held.extend_from_slice(last);
        self.held.extend_from_slice(&given.tokens);
        // The last token chosen may not have been appended.
        let committed = usize::try_from(self.engine.session.tokens().get()).unwrap_or(usize::MAX);
        self.held.truncate(committed);
        self.console.note(&summary_line(&given));
        Ok(answer)
    }

    fn cut(&mut self, tokens: usize) -> Outcome<()> {
        if tokens < self.held.len() {
            let count = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.engine.session.truncate(TokenCount::new(count))?;
            self.held.truncate(tokens);
        }
        Ok(())
    }

    fn stats(&self) -> String {
        let stats = self.engine.session.runtime().stats();
        let tally = &stats.tally;
        format!(
            "context     {} tokens\n\
             in memory   weights {}, KV {}; packed {} in {} segments\n\
             on flash    {} chunks; {} written, {} read\n\
             missing     {} units\n\
             threads     {} workers on their cores, {} that did not get theirs\n",
            stats.tokens,
            Size(tally.weight_bytes),
            Size(tally.kv_bytes),
            Size(tally.ram_bytes),
            stats.ram.segments,
            tally.flash_chunks,
            Size(stats.flash.map_or(0, |flash| flash.written_bytes)),
            Size(stats.flash.map_or(0, |flash| flash.read_bytes)),
            tally.missing,
            stats.workers_pinned,
            stats.workers_unpinned,
        )
    }
}
