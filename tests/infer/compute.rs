//! What a forward pass promises beside right numbers.

use crate::support::{Bench, Threads, fixture, json, tokens};
use mzcache::Code;
use mzcache::infer::Memory;
use mzcache::infer::cpu::{ComputeConfig, ComputePorts};
use mzcache::kernel::CpuFlags;
use mzcache::kernel::math::MathKernels;
use mzcache::port::{Solo, Team};
use mzcache::units::{ChunkId, ChunkIndex, LayerIndex};

const CONFIG: ComputeConfig =
    ComputeConfig { batch_tokens_max: 256, logit_rows_max: 4, workers_max: 32 };

fn bench_with(name: &str, config: ComputeConfig) -> Bench {
    let kernels = MathKernels::select(CpuFlags::detect());
    Bench::open(&fixture(&format!("oracles/{name}.gguf")), 1024, kernels, config)
}

fn bench(name: &str) -> Bench {
    bench_with(name, CONFIG)
}

fn prompt(name: &str) -> Vec<u32> {
    tokens(&json(&format!("oracles/{name}.json"))["prompt"])
}

/// All keys and values of a layer's first chunks.
fn kv_bytes(bench: &Bench, layer: u16, chunks: u16) -> Vec<u8> {
    let chunk = |chunk| ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(chunk) };
    (0..chunks).flat_map(|index| bench.memory.kv(chunk(index)).unwrap().to_vec()).collect()
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for name in ["llama", "qwen3"] {
        let prompt = prompt(name);
        let mut expected = None;
        for width in [1, 2, 3, 5, 8, 32] {
            let mut bench = bench(name);
            let team = Threads(width);
            let mut logits = bench.forward_on(&team, &prompt[..290], 0, 2).unwrap();
            // A narrow batch, single tokens side by side, and one token.
            let mut position = 290;
            for count in [9, 3, 1] {
                let now = &prompt[position..position + count];
                logits.extend(bench.forward_on(&team, now, position, 1).unwrap());
                position += count;
            }
            let result = (logits, kv_bytes(&bench, 5, 2));
            assert!(*expected.get_or_insert(result.clone()) == result, "{name} {width}");
        }
    }
}

#[test]
fn a_prompt_in_pieces_gives_nearly_the_same_logits() {
    for name in ["llama", "llama3", "qwen3"] {
        let prompt = prompt(name);
        let whole = bench(name).forward(&prompt[..600], 0, 1).unwrap();
        for pieces in [&[600][..], &[599, 1], &[1, 2, 3, 4, 16, 17, 32, 33, 255, 237], &[255, 345]]
        {
            let mut bench = bench(name);
            let (mut position, mut logits) = (0, Vec::new());
            for count in pieces {
                logits = bench.forward(&prompt[position..position + count], position, 1).unwrap();
                position += count;
            }
            let worst = whole.iter().zip(&logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Sums in another order round keys and values to other halves now and then.
            assert!(worst < 1e-2, "{name} {pieces:?} {worst}");
        }
    }
}

#[test]
fn query_heads_that_share_a_panel_give_what_they_give_alone() {
    for name in ["llama", "llama3", "qwen3"] {
        let prompt = prompt(name);
        let context_and = |pieces: &[usize]| {
            let mut bench = bench(name);
            let mut position = 0;
            for count in [&[250], pieces].concat() {
                bench.forward(&prompt[position..position + count], position, 1).unwrap();
                position += count;
            }
            (0..bench.transformer.model().shape.layers)
                .map(|layer| kv_bytes(&bench, layer, 2))
                .collect::<Vec<_>>()
        };
        // Of 16 tokens each head has a panel; fewer leave room for others of their group.
        let alone = context_and(&[16]);
        for pieces in [&[8, 8][..], &[4, 4, 4, 4], &[5, 11], &[11, 5], &[10, 6]] {
            assert!(context_and(pieces) == alone, "{name} {pieces:?}");
        }
    }
}

#[test]
fn the_last_batch_holds_all_rows_that_are_asked_for() {
    let prompt = prompt("llama");
    let config = ComputeConfig { batch_tokens_max: 16, logit_rows_max: 4, workers_max: 1 };
    // 33 tokens would leave one for the last batch.
    let logits = bench_with("llama", config).forward(&prompt[..33], 0, 4).unwrap();
    let mut bench = bench("llama");
    let expected = bench.forward(&prompt[..33], 0, 4).unwrap();
    assert_eq!(logits.len(), 4 * 320);
    for (a, b) in logits.iter().zip(&expected) {
        assert!((a - b).abs() < 1e-2);
    }
    assert!(bench.forward(&prompt[33..40], 33, 0).unwrap().is_empty());
}

#[test]
fn tokens_before_the_position_stay_as_they_are() {
    let prompt = prompt("llama");
    let mut bench = bench("llama");
    bench.forward(&prompt[..300], 0, 0).unwrap();
    let before = kv_bytes(&bench, 3, 1);
    bench.forward(&prompt[300..310], 300, 0).unwrap();
    assert!(before == kv_bytes(&bench, 3, 1));
    // The same tokens again at the same place give the same bytes.
    let after = kv_bytes(&bench, 3, 2);
    bench.forward(&prompt[300..310], 300, 0).unwrap();
    assert!(after == kv_bytes(&bench, 3, 2));
}

#[test]
fn calls_outside_the_documented_ranges_are_refused() {
    let mut bench = bench("llama");
    let mut code = |tokens: &[u32], position, rows| {
        let error = bench.forward(tokens, position, rows).unwrap_err();
        (error.code, error.what)
    };
    assert_eq!(code(&[], 0, 0), (Code::InvalidArgument, "tokens"));
    assert_eq!(code(&[1, 320], 0, 0), (Code::InvalidArgument, "token"));
    assert_eq!(code(&[u32::MAX], 0, 0), (Code::InvalidArgument, "token"));
    assert_eq!(code(&[1, 2], 0, 3), (Code::InvalidArgument, "logit rows"));
    assert_eq!(code(&[1; 9], 0, 5), (Code::InvalidArgument, "logit rows"));
    assert_eq!(code(&[1, 2], 4095, 1), (Code::LimitExceeded, "context tokens"));
    assert_eq!(code(&[1], u32::MAX as usize, 1), (Code::LimitExceeded, "context tokens"));
}

#[test]
fn configurations_outside_the_limits_are_refused() {
    use mzcache::arena::Sizer;
    use mzcache::infer::cpu::Transformer;
    let bench = bench("llama");
    for (config, what) in [
        (ComputeConfig { batch_tokens_max: 0, ..CONFIG }, "batch_tokens_max"),
        (ComputeConfig { batch_tokens_max: 257, ..CONFIG }, "batch_tokens_max"),
        (ComputeConfig { logit_rows_max: 0, ..CONFIG }, "logit_rows_max"),
        (ComputeConfig { logit_rows_max: 257, ..CONFIG }, "logit_rows_max"),
        (ComputeConfig { workers_max: 0, ..CONFIG }, "workers_max"),
        (ComputeConfig { workers_max: 33, ..CONFIG }, "workers_max"),
    ] {
        let model = bench.transformer.model();
        let error = Transformer::size(model, &config, &mut Sizer::new()).unwrap_err();
        assert_eq!((error.code, error.what), (Code::InvalidArgument, what));
    }
}

#[test]
fn errors_of_memory_and_file_come_out_and_the_next_call_works() {
    let prompt = prompt("llama");
    let mut bench = bench("llama");
    let expected = bench.forward(&prompt[..20], 0, 1).unwrap();
    // A layer, the head and the chunk, one after the other, are held by somebody else or gone.
    let chunk = ChunkId { layer: LayerIndex::new(2), chunk: ChunkIndex::new(0) };
    let lease = bench.memory.kv(chunk).unwrap();
    let ports = ComputePorts { memory: &bench.memory, rows: &bench.file, team: &Solo };
    let error = bench.transformer.forward(ports, &prompt[..20], 0, 1).unwrap_err();
    assert_eq!(error.code, Code::Leased);
    drop(lease);
    for layer in [0, 5, 6] {
        let away = bench.memory.buffers().lock(layer).unwrap();
        let ports = ComputePorts { memory: &bench.memory, rows: &bench.file, team: &Solo };
        assert!(bench.transformer.forward(ports, &prompt[..20], 0, 1).is_err(), "{layer}");
        drop(away);
    }
    let whole = std::mem::take(&mut bench.file.0);
    assert_eq!(bench.forward(&prompt[..20], 0, 1).unwrap_err().code, Code::ShortRead);
    bench.file.0 = whole;
    assert_eq!(bench.forward(&prompt[..20], 0, 1).unwrap(), expected);
    // Past the last chunk that exists.
    assert_eq!(bench.forward(&prompt[..2], 1023, 1).unwrap_err().code, Code::BadState);
}

/// A team whose members find a chunk gone.
struct Robbing<'a>(&'a Bench);

impl Team for Robbing<'_> {
    fn width(&self) -> usize {
        2
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let slot = 7 + 4 * 2;
        let held = self.0.memory.buffers().lock(slot);
        work(0);
        drop(held);
        work(1);
    }
}

#[test]
fn an_error_of_one_thread_of_a_team_comes_out() {
    let prompt = prompt("llama");
    let donor = bench("llama");
    let mut bench = bench("llama");
    let robbing = Robbing(&donor);
    // The chunk is taken in the donor's memory only, which is what the pass computes with.
    let ports = ComputePorts { memory: &donor.memory, rows: &donor.file, team: &robbing };
    let error = bench.transformer.forward(ports, &prompt[..20], 0, 1).unwrap_err();
    assert_eq!(error.code, Code::Leased);
}

#[test]
fn units_and_chunks_of_another_size_are_refused() {
    let llama = bench("llama");
    let mut qwen3 = bench("qwen3");
    let ports = ComputePorts { memory: &llama.memory, rows: &qwen3.file, team: &Solo };
    let error = qwen3.transformer.forward(ports, &[1, 2, 3], 0, 1).unwrap_err();
    assert_eq!((error.code, error.what), (Code::Truncated, "weight unit"));
    let mut llama = bench("llama");
    let qwen3 = bench("qwen3");
    let ports = ComputePorts { memory: &qwen3.memory, rows: &llama.file, team: &Solo };
    let error = llama.transformer.forward(ports, &[1, 2, 3], 0, 1).unwrap_err();
    assert_eq!((error.code, error.what), (Code::Mismatch, "kv chunk size"));
}
