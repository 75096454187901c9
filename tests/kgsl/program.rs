//! The program on memory of these drivers, and what it says where they are not.

use crate::driver::{World, supervised};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

#[path = "../program/mod.rs"]
mod shared;

use shared::{cache, command, json, model_text, text};

const EVICT: [&str; 8] = ["-n", "6", "--evict", "70%", "--codec", "raw", "--threads", "2"];

/// More than a chunk of context, most of which is evicted.
fn chat(cache: &Path, memory: &[&str]) -> Command {
    let context = cache.join("context");
    std::fs::write(&context, "all that was said before is still here ".repeat(40)).unwrap();
    let context = ["-c", context.to_str().unwrap()];
    let common = ["run", "-m", model_text(), "-p", "The memory of a phone is", "--json"];
    command(cache, &[&common[..], &context, &EVICT, memory].concat())
}

fn answer(output: &Output) -> Value {
    let answer = json(output);
    assert!(answer["context_tokens"].as_u64().unwrap() > 256, "{answer}");
    assert!(answer["evicted"]["bytes_freed"].as_u64().unwrap() > 0, "{answer}");
    assert!(!answer["tokens"].as_array().unwrap().is_empty());
    answer["tokens"].clone()
}

#[test]
fn answers_are_the_same_on_every_memory() {
    let place = cache();
    let expected = answer(&chat(place.path(), &[]).output().unwrap());
    let both = World { has_dma_heap: true, ..World::kgsl() };
    for memory in ["kgsl", "dma-heap"] {
        let command = chat(place.path(), &["--memory", memory]);
        let (output, report) = supervised(both.clone(), command, |mut run| run.output().unwrap());
        assert_eq!(answer(&output), expected, "{memory}");
        let note = match memory {
            "kgsl" => "KGSL's on Adreno830v2, caches coherent, counted by mzcache",
            _ => "shared buffers are dma-bufs; files are copied in",
        };
        assert!(text(&output.stderr).contains(note), "{}", text(&output.stderr));
        let (made, freed) = match memory {
            "kgsl" => ("GPUOBJ_ALLOC", "GPUOBJ_FREE"),
            _ => ("to host", "to device"),
        };
        assert!(report.count(made) > 10, "{report:?}");
        // Some were evicted; what is left goes with the process.
        assert!(report.count(freed) > 3, "{report:?}");
        let is_left = |what: &String| what.starts_with("objects") || what.starts_with("windows");
        assert!(report.complaints.iter().all(is_left), "{:?}", report.complaints);
    }
}

/// Exit code, and what was said on the way out.
#[track_caller]
fn refused(output: &Output, code: i32, message: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(message), "{said}");
}

#[test]
fn a_missing_device_is_named_and_what_to_do_said() {
    let place = cache();
    for (memory, node) in [("kgsl", "/dev/kgsl-3d0"), ("dma-heap", "/dev/dma_heap/system")] {
        let command = chat(place.path(), &["--memory", memory]);
        let (output, _) = supervised(World::default(), command, |mut run| run.output().unwrap());
        let message = format!("error: cannot open {node}: No such file or directory");
        refused(&output, 1, &message);
        refused(&output, 1, "leave --memory out");
    }
    let command = chat(place.path(), &["--memory", "kgsl"]);
    let world = World { is_apart: true, ..World::kgsl() };
    let (output, _) = supervised(world, command, |mut run| run.output().unwrap());
    refused(&output, 1, "error: KGSL memory at one address: not supported");
}

#[test]
fn memory_of_the_processor_is_not_an_accelerator_s() {
    let place = cache();
    for backend in ["opencl", "auto"] {
        let asked = ["--memory", "dma-heap", "--backend", backend];
        let output = chat(place.path(), &asked).output().unwrap();
        refused(&output, 2, "--memory dma-heap is for --backend cpu");
    }
}
