//! The whole road on real models: build a context, evict to any level, restore while the prompt is
//! computed, and give the same tokens.

#![cfg(feature = "infer")]

#[path = "models/broken.rs"]
mod broken;
mod models;

use broken::model_of_nan;
use models::{fixture, oracle, parts};
use mzcache::infer::{Session, sample};
use mzcache::policy::bytes_to_evict;
use mzcache::state::Stop;
use mzcache::units::{ByteCount, CodecId, LayerIndex, TokenCount};
use mzcache::{Code, Error};
use std::path::Path;

fn open(name: &str, path: &Path, codec: CodecId, threads: usize) -> Session {
    models::open(parts(name, path, codec, threads))
}

fn greedy(session: &mut Session, input: &[u32], count: usize) -> Result<Vec<u32>, Error> {
    let mut tokens = Vec::new();
    session.generate(input, count, |logits| {
        let token = u32::try_from(sample::arg_max(logits)?).ok()?;
        tokens.push(token);
        Some(token)
    })?;
    Ok(tokens)
}

fn evict_to(session: &Session, percent: u32, total: u64) {
    let resident = ByteCount::new(session.runtime().stats().tally.total_bytes());
    let bytes = bytes_to_evict(resident, ByteCount::new(total), percent).unwrap();
    let report = session.runtime().evict(bytes, None).unwrap();
    assert_eq!(report.booked.stop, Stop::Reached, "{report:?}");
}

/// Splits the oracle's prompt into a context and a question of 8 tokens, and asks it from every
/// level.
fn every_level(model: &str, codec: CodecId, threads: usize) {
    let oracle = oracle(&format!("{model}.json"));
    let name = format!("{model}-{}-{threads}", codec.name());
    let mut session = open(&name, &fixture(&format!("{model}.gguf")), codec, threads);
    let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
    session.append(context, 0).unwrap();
    let kept = session.tokens();
    let total = session.runtime().stats().tally.total_bytes();
    let mut after_first = Vec::new();
    for cycle in 0..2 {
        for percent in [100, 75, 50, 25, 0] {
            evict_to(&session, percent, total);
            let tokens = greedy(&mut session, question, 12).unwrap();
            session.truncate(kept).unwrap();
            match (codec, cycle) {
                (CodecId::Raw, _) => assert_eq!(tokens, oracle.greedy, "{name} {percent}"),
                (_, 0) => after_first = tokens,
                _ => assert_eq!(tokens, after_first, "{name} {percent}"),
            }
        }
    }
    session.runtime().check().unwrap();
}

/// Steps follow the queries that compute reported, and rotary pairs share theirs.
#[test]
fn steps_are_made_from_the_queries_of_the_prompt() {
    for (model, apart) in [("llama", false), ("qwen3", true)] {
        let prompt = oracle(&format!("{model}.json")).prompt;
        let profiles = [1, 2].map(|threads| {
            let name = format!("{model}-steps-{threads}");
            let mut session =
                open(&name, &fixture(&format!("{model}.gguf")), CodecId::Kv4, threads);
            session.append(&prompt, 0).unwrap();
            assert_eq!(session.runtime().steps(), None);
            session.runtime().evict(ByteCount::new(1), None).unwrap();
            let steps = session.runtime().steps().unwrap();
            session.runtime().restore().unwrap();
            session.append(&prompt[..64], 0).unwrap();
            session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
            assert_eq!(session.runtime().steps(), Some(steps), "frozen");
            (steps, session.model().shape.kv())
        });
        assert_eq!(profiles[0], profiles[1], "{model}");
        let (steps, shape) = profiles[0];
        let dim = usize::from(shape.head_dim);
        for layer in (0..shape.layers).map(LayerIndex::new) {
            let steps = steps.layer(layer).unwrap().k;
            assert_eq!(steps.len(), usize::from(shape.kv_heads) * dim);
            assert!(steps.iter().any(|&step| step != steps[0]), "{model}");
            for head in steps.chunks_exact(dim) {
                for channel in 0..dim {
                    let twin = if apart { (channel + dim / 2) % dim } else { channel ^ 1 };
                    assert_eq!(head[channel], head[twin], "{model}");
                }
            }
        }
    }
}

#[test]
fn greedy_generation_chooses_by_the_largest_logit() {
    let oracle = oracle("llama.json");
    let mut session = open("greedy", &fixture("llama.gguf"), CodecId::Raw, 1);
    let mut heard = Vec::new();
    let chosen = session.generate_greedy(&oracle.prompt, 12, |best| {
        heard.extend(best);
        best.filter(|_| heard.len() < 5)
    });
    // The fifth is heard, and not taken.
    assert_eq!((chosen.unwrap(), &heard[..]), (4, &oracle.greedy[..5]));
    let last = oracle.greedy[3];
    assert_eq!(session.tokens().get() as usize, oracle.prompt.len() + 4);
    session.truncate(TokenCount::new(session.tokens().get() - 1)).unwrap();
    let logits = session.append(&[last], 1).unwrap();
    assert_eq!(sample::arg_max(logits), Some(oracle.greedy[4] as usize));
}

#[test]
fn without_a_number_among_the_logits_nothing_is_predicted() {
    let path = model_of_nan("cpu");
    let mut session = open("nan", &path, CodecId::Raw, 1);
    std::fs::remove_file(&path).unwrap();
    assert!(session.append(&[1, 2], 1).unwrap().iter().all(|logit| logit.is_nan()));
    assert_eq!(session.predict(&[3]).unwrap(), None);
}

#[test]
fn tokens_are_the_oracles_from_every_level_with_raw() {
    for model in ["llama", "llama3", "qwen3"] {
        every_level(model, CodecId::Raw, 2);
        every_level(model, CodecId::Raw, 1);
    }
}

#[test]
fn tokens_stay_the_same_from_cycle_to_cycle_with_a_lossy_codec() {
    for model in ["llama", "llama3", "qwen3"] {
        every_level(model, CodecId::Q8, 2);
        every_level(model, CodecId::Kv4, 2);
    }
}

#[test]
fn evictions_during_generation_delay_it_and_change_nothing() {
    let oracle = oracle("qwen3.json");
    let mut session = open("storm", &fixture("qwen3.gguf"), CodecId::Raw, 2);
    let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
    session.append(context, 0).unwrap();
    let total = session.runtime().stats().tally.total_bytes();
    let mut tokens: Vec<u32> = Vec::new();
    let mut input = question.to_vec();
    let (mut cancelled, mut attempts) = (0, 0);
    while tokens.len() < oracle.greedy.len() {
        let before = session.tokens();
        let evictor = session.runtime().evictor();
        // Every other pass is left alone, so that there is an end on the slowest machine too.
        let storms = attempts % 2 == 0;
        attempts += 1;
        let storm = std::thread::spawn(move || {
            for quarter in (1..4).filter(|_| storms) {
                // `BadState` when the pass has just begun to restore: an eviction later does it.
                let _ = evictor.evict(ByteCount::new(total / 4 * quarter), None);
            }
        });
        let result = session.append(&input, 1).map(sample::arg_max);
        storm.join().unwrap();
        match result {
            Ok(token) => {
                tokens.push(u32::try_from(token.unwrap()).unwrap());
                input = vec![*tokens.last().unwrap()];
            }
            Err(error) => {
                assert_eq!(error.code, Code::Cancelled, "{error}");
                assert_eq!(session.tokens(), before);
                cancelled += 1;
            }
        }
    }
    assert_eq!(tokens, oracle.greedy, "{cancelled} passes were cancelled");
    session.runtime().check().unwrap();
}

#[test]
fn a_pass_that_fails_leaves_the_context_as_it_was() {
    let oracle = oracle("llama.json");
    let mut session = open("fails", &fixture("llama.gguf"), CodecId::Raw, 2);
    let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
    session.append(context, 0).unwrap();
    for (tokens, code) in [
        (vec![9999], Code::InvalidArgument),
        (vec![], Code::InvalidArgument),
        (vec![1; 2000], Code::LimitExceeded),
    ] {
        assert_eq!(session.append(&tokens, 1).unwrap_err().code, code);
        assert_eq!(session.tokens().get() as usize, context.len());
    }
    assert_eq!(session.append(question, 2).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(greedy(&mut session, question, 12).unwrap(), oracle.greedy);
}

#[test]
fn the_head_and_the_layers_are_units_and_zero_percent_is_zero() {
    let mut session = open("zero", &fixture("llama3.gguf"), CodecId::Q8, 2);
    session.append(&[1, 2, 3], 1).unwrap();
    let head = session.model().head_unit();
    assert_eq!(head, LayerIndex::new(session.model().shape.layers));
    drop(session.runtime().weights(head).unwrap());
    let report = session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
    assert_eq!(report.booked.stop, Stop::Exhausted);
    assert_eq!(session.runtime().stats().allocated_bytes, 0);
    session.append(&[4], 1).unwrap();
}
