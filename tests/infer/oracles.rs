//! The transformer against independent single-precision implementations.

use crate::support::{Bench, fixture, json, tokens};
use mzcache::infer::cpu::ComputeConfig;
use mzcache::infer::sample::arg_max;
use mzcache::kernel::math::{Isa, MathKernels};

const CONFIG: ComputeConfig =
    ComputeConfig { batch_tokens_max: 256, logit_rows_max: 8, workers_max: 4 };

/// Half-precision keys and values move logits by this much at most.
const LOGIT_TOLERANCE: f32 = 2e-2;

fn check_oracle(name: &str, isa: Isa) -> f32 {
    let oracle = json(&format!("oracles/{name}.json"));
    let prompt = tokens(&oracle["prompt"]);
    let greedy = tokens(&oracle["greedy"]);
    let path = fixture(&format!("oracles/{name}.gguf"));
    let kernels = MathKernels::new(isa).unwrap();
    let mut bench = Bench::open(&path, prompt.len() + greedy.len(), kernels, CONFIG);
    let logits = bench.forward(&prompt, 0, 8).unwrap();
    let expected = oracle["last_logits"].as_array().unwrap();
    let vocabulary = logits.len() / 8;
    let mut worst = 0.0f32;
    for (row, expected) in logits.chunks_exact(vocabulary).zip(expected) {
        let expected = expected.as_array().unwrap();
        assert_eq!(row.len(), expected.len());
        for (logit, expected) in row.iter().zip(expected) {
            worst = worst.max((logit - expected.as_f64().unwrap() as f32).abs());
        }
    }
    let mut token = arg_max(&logits[7 * vocabulary..]).unwrap() as u32;
    let mut answer = vec![token];
    while answer.len() < greedy.len() {
        let position = prompt.len() + answer.len() - 1;
        let logits = bench.forward(&[token], position, 1).unwrap();
        token = arg_max(&logits).unwrap() as u32;
        answer.push(token);
    }
    println!("{name} {isa:?}: largest difference of a logit {worst:.6}");
    assert_eq!(answer, greedy);
    assert!(worst < LOGIT_TOLERANCE, "{worst}");
    worst
}

fn on_every_isa(name: &str) {
    for isa in Isa::ALL.iter().filter(|isa| isa.is_available()) {
        check_oracle(name, *isa);
    }
}

#[test]
fn llama_gives_the_oracles_tokens_and_logits() {
    on_every_isa("llama");
}

#[test]
fn llama_with_frequency_factors_and_its_own_head_gives_the_oracles_tokens_and_logits() {
    on_every_isa("llama3");
}

#[test]
fn qwen3_gives_the_oracles_tokens_and_logits() {
    on_every_isa("qwen3");
}
