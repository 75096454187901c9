//! The step profile that a device's queries make: that of the CPU, and tokens that stay the same
//! once chunks were packed by it.

use crate::device::{MODES, greedy, open, platform};
use crate::levels::evict_to;
use crate::models::{self, fixture, oracle};
use mzcache::infer::Session;
use mzcache::units::{ByteCount, CodecId, LayerIndex};

/// By what part of itself a step may differ: K lies in the chunks as halves, rounded apart.
const TOLERANCE: f32 = 1e-3;

/// The steps of all layers, after a prompt in two calls and an eviction.
fn steps(session: &mut Session, prompt: &[u32]) -> Vec<Vec<f32>> {
    let (first, rest) = prompt.split_at(20);
    session.append(first, 0).unwrap();
    session.append(rest, 0).unwrap();
    assert_eq!(session.runtime().steps(), None);
    session.runtime().evict(ByteCount::new(1), None).unwrap();
    let steps = session.runtime().steps().unwrap();
    let layers = 0..session.model().shape.layers;
    layers.map(|layer| steps.layer(LayerIndex::new(layer)).unwrap().k.to_vec()).collect()
}

#[test]
fn steps_are_the_cpus_in_every_mode() {
    let Some(platform) = platform() else { return };
    for model in ["llama", "qwen3"] {
        let path = fixture(&format!("{model}.gguf"));
        let prompt = oracle(&format!("{model}.json")).prompt;
        let name = format!("cl-steps-{model}");
        let mut cpu = models::open(models::parts(&name, &path, CodecId::Kv4, 1));
        let want = steps(&mut cpu, &prompt);
        // More than by chance, so that steps without the queries would be seen.
        for layer in &want {
            let (least, most) = layer
                .iter()
                .fold((f32::MAX, 0f32), |(least, most), step| (least.min(*step), most.max(*step)));
            assert!(most > least * (1.0 + 20.0 * TOLERANCE), "{model}: {least} to {most}");
        }
        for mode in MODES {
            let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
            let mut session = open(&accelerator, model, CodecId::Kv4, 1);
            let have = steps(&mut session, &prompt);
            let pairs = have.iter().flatten().zip(want.iter().flatten());
            let worst = pairs.map(|(have, want)| (have / want - 1.0).abs()).fold(0.0, f32::max);
            println!("{model}, {}: steps differ by up to {worst:e}", mode.name());
            assert!(worst < TOLERANCE, "{model} {mode:?}: {worst:e}");
            assert_eq!(have.len(), want.len());
        }
    }
}

#[test]
fn tokens_stay_the_same_from_cycle_to_cycle_with_a_lossy_codec() {
    let Some(platform) = platform() else { return };
    let accelerator = platform.accelerator(None).unwrap();
    for model in ["llama", "llama3", "qwen3"] {
        let oracle = oracle(&format!("{model}.json"));
        let mut session = open(&accelerator, model, CodecId::Kv4, 2);
        let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
        session.append(context, 0).unwrap();
        let kept = session.tokens();
        let total = session.runtime().stats().tally.total_bytes();
        let mut after_first = Vec::new();
        for cycle in 0..2 {
            for percent in [75, 50, 25, 0] {
                evict_to(&session, percent, total);
                let tokens = greedy(&mut session, question, 12).unwrap();
                session.truncate(kept).unwrap();
                match cycle {
                    0 => after_first = tokens,
                    _ => assert_eq!(tokens, after_first, "{model} {percent}"),
                }
            }
        }
        session.runtime().check().unwrap();
    }
}
