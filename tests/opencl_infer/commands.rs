//! How many commands a pass costs: on some drivers each takes longer than what it computes.

use crate::device::{open, open_parts, platform, programs};
use crate::models::{fixture, oracle, parts};
use mzcache::infer::gguf::Gguf;
use mzcache::infer::{Part, Session, Watch};
use mzcache::kernel::Kernels;
use mzcache::port::opencl::Event;
use mzcache::units::{ByteCount, CodecId, TokenCount};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Counts commands by part.
#[derive(Default)]
struct Counter(Mutex<Vec<Part>>);

impl Watch for Counter {
    fn computed(&self, part: Part) {
        panic!("{part:?} on the processor");
    }

    fn enqueued(&self, part: Part, _kernel: &'static str, _event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }
}

const LAYER: [Part; 5] =
    [Part::Project, Part::Heads, Part::Attention, Part::Output, Part::FeedForward];

/// Commands of each part of a layer of a pass over `tokens`, and those of the head.
fn count(session: &mut Session, tokens: &[u32], is_greedy: bool) -> ([usize; 5], usize) {
    let counter: &'static Counter = Box::leak(Box::default());
    session.watch(Some(counter));
    if is_greedy {
        session.predict(tokens).unwrap();
    } else {
        session.append(tokens, 1).unwrap();
    }
    session.watch(None);
    let parts = counter.0.lock().unwrap();
    let of = |part: Part| parts.iter().filter(|seen| **seen == part).count();
    let layers = usize::from(session.model().shape.layers);
    assert_eq!(of(Part::Start), 1);
    let each = LAYER.map(|part| {
        assert_eq!(of(part) % layers, 0, "{part:?}");
        of(part) / layers
    });
    assert_eq!(parts.len(), 1 + each.iter().sum::<usize>() * layers + of(Part::Head));
    println!(
        "{} tokens: {} commands a layer, {} in all",
        tokens.len(),
        each.iter().sum::<usize>(),
        parts.len()
    );
    (each, of(Part::Head))
}

/// Splits of attention are added up by a command of their own where there are no matrix units.
fn attention_commands(session: &mut Session) -> usize {
    match session.opencl().unwrap().report().has_matrix_units {
        true => 1,
        false => 2,
    }
}

#[test]
fn a_layer_of_one_format_is_seven_commands() {
    let Some(platform) = platform() else { return };
    let accelerator = platform.accelerator(None).unwrap();
    for model in ["llama", "qwen3"] {
        let prompt = oracle(&format!("{model}.json")).prompt;
        let mut session = open(&accelerator, model, CodecId::Raw, 1);
        let few = [1, 1, attention_commands(&mut session), 1, 2];
        assert_eq!(count(&mut session, &prompt[..1], false), (few, 1));
        assert_eq!(count(&mut session, &prompt[1..9], false), (few, 1));
        assert_eq!(count(&mut session, &prompt[9..10], true), (few, 2));
        // Many tokens are normalised once for all work-groups, and attend in one command.
        let many = [2, 1, 1, 1, 3];
        assert_eq!(count(&mut session, &prompt[10..40], false), (many, 1));
    }
}

#[test]
fn queries_are_summed_for_the_first_thousand_tokens_before_the_first_eviction() {
    let Some(platform) = platform() else { return };
    let accelerator = platform.accelerator(None).unwrap();
    let prompt = oracle("llama.json").prompt;
    let mut session = open(&accelerator, "llama", CodecId::Kv4, 1);
    let attention = attention_commands(&mut session);
    let [with, without] = [2, 1].map(|heads| ([1, heads, attention, 1, 2], 1));
    assert_eq!(count(&mut session, &prompt[..1], false), with);
    session.runtime().evict(ByteCount::new(1), None).unwrap();
    assert_eq!(count(&mut session, &prompt[1..2], false), without);
    let mut session = open(&accelerator, "llama", CodecId::Kv4, 2);
    for _ in 0..4 {
        session.truncate(TokenCount::new(0)).unwrap();
        assert_eq!(count(&mut session, &prompt[..1], false), with);
        session.append(&prompt[1..256], 0).unwrap();
    }
    session.truncate(TokenCount::new(0)).unwrap();
    assert_eq!(count(&mut session, &prompt[..1], false), without);
}

/// Makes a tensor of halves one of singles with the same values.
fn widen(file: &mut Vec<u8>, name: &str) {
    const F32: u32 = 0;
    let (offset, bytes) = {
        let gguf = Gguf::parse(file).unwrap();
        let info = gguf.tensor(name).unwrap();
        (usize::try_from(info.file_offset).unwrap(), usize::try_from(info.bytes).unwrap())
    };
    let halves: Vec<u16> = file[offset..offset + bytes]
        .chunks_exact(2)
        .map(|two| u16::from_le_bytes(two.try_into().unwrap()))
        .collect();
    let mut singles = vec![0.0; halves.len()];
    Kernels::portable().f16_to_f32.call(&halves, &mut singles);
    // Behind a tensor's name: the number of dimensions, those, its type, its offset.
    let field = [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
    let found = file.windows(field.len()).position(|window| window == field).unwrap();
    let at = found + field.len();
    let dims = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let kind = at + 4 + 8 * dims;
    let relative = u64::from_le_bytes(file[kind + 4..kind + 12].try_into().unwrap());
    let data = offset - usize::try_from(relative).unwrap();
    let end = data + (file.len() - data).next_multiple_of(32);
    file.resize(end, 0);
    file.extend(singles.iter().flat_map(|value| value.to_le_bytes()));
    file[kind..kind + 4].copy_from_slice(&F32.to_le_bytes());
    file[kind + 4..kind + 12].copy_from_slice(&((end - data) as u64).to_le_bytes());
}

#[test]
fn layers_that_mix_formats_cost_more_commands_and_give_the_same_tokens() {
    let Some(platform) = platform() else { return };
    let accelerator = platform.accelerator(None).unwrap();
    let oracle = oracle("qwen3.json");
    let mut file = std::fs::read(fixture("qwen3.gguf")).unwrap();
    let layers = (0..).take_while(|layer| {
        let name = format!("blk.{layer}.attn_v.weight");
        Gguf::parse(&file).unwrap().tensor(&name).is_some()
    });
    for layer in layers.collect::<Vec<u16>>() {
        widen(&mut file, &format!("blk.{layer}.attn_v.weight"));
        widen(&mut file, &format!("blk.{layer}.ffn_up.weight"));
    }
    let directory = programs().into_string().unwrap();
    let path = Path::new(&directory).join(format!("mixed-{}.gguf", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let parts = parts("cl-mixed", &path, CodecId::Raw, 1);
    let mut session = open_parts(&accelerator, parts).unwrap();
    std::fs::remove_file(&path).unwrap();
    let tokens = crate::device::greedy(&mut session, &oracle.prompt, oracle.greedy.len());
    assert_eq!(tokens.unwrap(), oracle.greedy);
    session.truncate(TokenCount::new(0)).unwrap();
    let few = [2, 1, attention_commands(&mut session), 1, 3];
    assert_eq!(count(&mut session, &oracle.prompt[..1], false), (few, 1));
}
