//! Eviction to every level and back.

use crate::device::{MODES, greedy, open, platform};
use crate::models::oracle;
use mzcache::infer::Session;
use mzcache::infer::opencl::Accelerator;
use mzcache::policy::bytes_to_evict;
use mzcache::port::opencl::MemoryMode;
use mzcache::state::Stop;
use mzcache::units::{ByteCount, CodecId, LayerIndex, TokenCount};

pub fn evict_to(session: &Session, percent: u32, total: u64) {
    let resident = ByteCount::new(session.runtime().stats().tally.total_bytes());
    let bytes = bytes_to_evict(resident, ByteCount::new(total), percent).unwrap();
    let report = session.runtime().evict(bytes, None).unwrap();
    assert_eq!(report.booked.stop, Stop::Reached, "{report:?}");
}

/// Splits the oracle's prompt into a context and a question of 8 tokens, and asks it from every
/// level.
fn every_level(accelerator: &Accelerator, model: &str, threads: usize) {
    let oracle = oracle(&format!("{model}.json"));
    let mut session = open(accelerator, model, CodecId::Raw, threads);
    let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
    session.append(context, 0).unwrap();
    let kept = session.tokens();
    let total = session.runtime().stats().tally.total_bytes();
    for percent in [100, 75, 50, 25, 0, 60, 0] {
        evict_to(&session, percent, total);
        let tokens = greedy(&mut session, question, 12).unwrap();
        session.truncate(kept).unwrap();
        assert_eq!(tokens, oracle.greedy, "{model} {:?} {percent}", accelerator.mode());
    }
    session.runtime().check().unwrap();
}

fn in_mode(mode: MemoryMode) {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(Some(mode)) else { return };
    for model in ["llama", "llama3", "qwen3"] {
        every_level(&accelerator, model, 2);
    }
    every_level(&accelerator, "qwen3", 1);
}

#[test]
fn tokens_are_the_oracles_from_every_level_in_fine_grain_memory() {
    in_mode(MemoryMode::Fine);
}

#[test]
fn tokens_are_the_oracles_from_every_level_in_coarse_grain_memory() {
    in_mode(MemoryMode::Coarse);
}

#[test]
fn tokens_are_the_oracles_from_every_level_in_device_buffers() {
    in_mode(MemoryMode::Buffers);
}

/// Entries of a layer's table that point somewhere.
fn live_entries(session: &mut Session, layer: u16) -> Vec<u64> {
    let mut entries = vec![];
    let transformer = session.opencl().unwrap();
    transformer.table(LayerIndex::new(layer), |_, entry| entries.push(entry)).unwrap();
    let nowhere = *entries.last().unwrap();
    assert_eq!(nowhere, 0x7fff_ffff_ffff_fff0);
    let live = entries.iter().position(|entry| *entry == nowhere).unwrap();
    assert!(entries[live..].iter().all(|entry| *entry == nowhere));
    entries.truncate(live);
    entries
}

#[test]
fn entries_of_chunks_that_are_gone_point_nowhere() {
    let Some(platform) = platform() else { return };
    for mode in MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let oracle = oracle("llama.json");
        let mut session = open(&accelerator, "llama", CodecId::Raw, 1);
        session.append(&oracle.prompt, 0).unwrap();
        assert_eq!(live_entries(&mut session, 1).len(), 3);
        // All chunks go, and those that are left of the context come back somewhere.
        session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
        session.truncate(TokenCount::new(256)).unwrap();
        session.append(&[5], 1).unwrap();
        assert_eq!(live_entries(&mut session, 1).len(), 2);
        assert_eq!(session.runtime().stats().tally.missing, 0);
    }
}
