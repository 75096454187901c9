//! Against independent implementations, and against the CPU.

use crate::device::{MODES, greedy, open, platform};
use crate::models::{self, fixture, oracle};
use mzcache::infer::{Session, sample};
use mzcache::port::opencl::MemoryMode;
use mzcache::units::CodecId;

/// By which the logarithm of a probability may differ between the CPU and the device.
const TOLERANCE: f32 = 2e-2;

/// Log-probabilities after the prompt and after each greedy token but the last.
fn probabilities(session: &mut Session, prompt: &[u32], greedy: &[u32]) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    let mut input = prompt.to_vec();
    for token in greedy {
        let mut logits = session.append(&input, 1).unwrap().to_vec();
        sample::log_softmax(&mut logits);
        all.push(logits);
        input = vec![*token];
    }
    all
}

fn check(model: &str, mode: MemoryMode) {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(mode) else { return };
    let oracle = oracle(&format!("{model}.json"));
    let mut session = open(&accelerator, model, CodecId::Raw, 2);
    assert_eq!(greedy(&mut session, &oracle.prompt, oracle.greedy.len()).unwrap(), oracle.greedy);
    session.truncate(mzcache::units::TokenCount::new(0)).unwrap();
    let name = format!("cl-cpu-{model}");
    let path = fixture(&format!("{model}.gguf"));
    let mut cpu = models::open(&name, &path, CodecId::Raw, 1);
    let ours = probabilities(&mut session, &oracle.prompt, &oracle.greedy);
    let theirs = probabilities(&mut cpu, &oracle.prompt, &oracle.greedy);
    let both = ours.iter().flatten().zip(theirs.iter().flatten());
    let worst = both.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{model}, {}: largest difference of a log-probability {worst:.6}", mode.name());
    assert!(worst < TOLERANCE, "{worst}");
}

#[test]
fn llama_gives_the_oracles_tokens_and_the_cpus_probabilities() {
    check("llama", MemoryMode::Fine);
}

#[test]
fn llama_with_frequency_factors_gives_the_oracles_tokens_and_the_cpus_probabilities() {
    check("llama3", MemoryMode::Fine);
}

#[test]
fn qwen3_gives_the_oracles_tokens_and_the_cpus_probabilities_in_every_mode() {
    for mode in MODES {
        check("qwen3", mode);
    }
}
