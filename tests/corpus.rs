//! The committed inputs of the fuzz targets, replayed without a fuzzer.

#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

use mzcache::codec::HEADER_BYTES;
use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// A committed input stays small, and so does what git holds.
const INPUT_BYTES_MAX: usize = 4096;

/// Changed inputs for each committed one.
const VARIANTS: usize = 20;

type Body = fn(&[u8]) -> bool;

/// Name and bytes of every input of a target, in a fixed order.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.collect();
    paths.sort();
    assert!(!paths.is_empty(), "{target} has no inputs");
    paths.iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

/// Runs a body; a panic names the input.
fn run(body: Body, name: &str, data: &[u8]) -> bool {
    match catch_unwind(|| body(data)) {
        Ok(accepted) => accepted,
        Err(_) => panic!("{name}: {data:?}"),
    }
}

fn replay(target: &str, body: Body) {
    let mut accepted = 0;
    let inputs = inputs(target);
    for (name, data) in &inputs {
        assert!(data.len() < INPUT_BYTES_MAX, "{name} has {} bytes", data.len());
        accepted += usize::from(run(body, name, data));
    }
    assert!(accepted > 0, "no input of {target} is accepted");
    assert!(accepted < inputs.len(), "no input of {target} is refused");
    for (name, data) in &inputs {
        vary(body, name, data);
    }
    println!("{target}: {} executions", inputs.len() * (1 + VARIANTS));
}

/// A few small changes of an input: an end, a bit, a byte.
fn vary(body: Body, name: &str, data: &[u8]) {
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % (bound as u64)).unwrap()
    };
    for _ in 0..VARIANTS {
        let mut data = data.to_vec();
        if data.is_empty() {
            return;
        }
        let at = below(data.len());
        match below(3) {
            0 => data.truncate(at),
            1 => data[at] ^= 1 << below(8),
            _ => data[at] = u8::try_from(below(256)).unwrap(),
        }
        run(body, name, &data);
    }
}

/// Every byte of a packed chunk's header is something else, under checksums that are made anew.
fn forge_headers(body: Body, name: &str, data: &[u8]) {
    for at in bodies::PACKED_AT..bodies::PACKED_AT + HEADER_BYTES {
        for change in [1, 64, 128, 192, 255] {
            let mut data = data.to_vec();
            data[at] = data[at].wrapping_add(change);
            run(body, &format!("{name} with {change} added at {at}"), &data);
        }
    }
}

#[test]
#[cfg(feature = "infer")]
fn model_files() {
    replay("gguf", bodies::gguf);
}

#[test]
fn profiles() {
    replay("profile", bodies::profile);
}

#[test]
fn chunks_of_the_smallest_format() {
    replay("kvh", bodies::kvh);
}

#[test]
fn packed_chunks() {
    replay("packed", bodies::packed);
}

/// Committed chunks may be refused at the header one day; these are what codecs pack now. With
/// `MZ_SEED_FOLDER=folder` they are left there for fuzzing, a folder for each target.
#[test]
fn packed_chunks_of_every_codec_are_accepted() {
    let folder = std::env::var_os("MZ_SEED_FOLDER");
    for (target, name, data) in bodies::seeds() {
        let body = if target == "kvh" { bodies::kvh } else { bodies::packed };
        assert!(run(body, &name, &data), "{name} is refused");
        vary(body, &name, &data);
        if name.ends_with("_sealed") {
            forge_headers(body, &name, &data);
        }
        if let Some(folder) = &folder {
            let folder = Path::new(folder).join(target);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), &data).unwrap();
        }
    }
}

#[test]
fn step_profiles() {
    replay("steps", bodies::steps);
}

#[test]
fn kernels_of_every_rung() {
    replay("kernels", bodies::kernels);
}

#[test]
fn records_of_the_ram_swap() {
    replay("stack", bodies::stack);
}

#[test]
fn swap_files_that_lie() {
    replay("swapfile", bodies::swapfile);
}

#[test]
fn heads_of_swap_files() {
    replay("record", bodies::record);
}

#[test]
fn programs_of_c_calls() {
    replay("ffi", bodies::ffi);
}

#[test]
fn lives_of_the_state_machine() {
    replay("state", bodies::state);
}

#[test]
#[cfg(feature = "cli")]
fn vocabularies_and_texts() {
    replay("tokenizer", bodies::tokenizer);
}

#[test]
#[cfg(feature = "cli")]
fn chat_templates() {
    replay("template", bodies::template);
}

#[test]
fn the_canary_fails() {
    let inputs = inputs("canary");
    assert!(inputs.iter().all(|(_, data)| catch_unwind(|| bodies::canary(data)).is_err()));
    assert!(!bodies::canary(b"") && bodies::canary(b"mzK"));
}
