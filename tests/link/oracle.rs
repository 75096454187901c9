//! What the small model of the fixtures should answer.

use crate::tools::{Folder, ROOT, run};
use std::fs::{self, File};
use std::process::{Command, Stdio};

pub struct Oracle {
    pub model: String,
    pub prompt: String,
    pub greedy: String,
}

fn text(json: &serde_json::Value, key: &str) -> String {
    let tokens = json[key].as_array().unwrap().iter().map(ToString::to_string);
    tokens.collect::<Vec<_>>().join(" ")
}

pub fn oracle(name: &str) -> Oracle {
    let path = format!("{ROOT}/tests/fixtures/oracles/{name}");
    let json = std::fs::read_to_string(format!("{path}.json")).unwrap();
    let json = serde_json::from_str(&json).unwrap();
    Oracle {
        model: format!("{path}.gguf"),
        prompt: text(&json, "prompt"),
        greedy: text(&json, "greedy"),
    }
}

/// Tokens that are asked for.
pub const COUNT: &str = "12";

/// Runs a program that reads the prompt; what it printed.
pub fn answer(mut command: Command, prompt: &str) -> String {
    let folder = Folder::new();
    let path = folder.0.join("input");
    fs::write(&path, prompt).unwrap();
    command.stdin(Stdio::from(File::open(path).unwrap()));
    run(command)
}
