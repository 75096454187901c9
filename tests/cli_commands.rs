//! The commands that run models, as their users meet them, on a small model with random weights.

#![cfg(feature = "cli")]

mod program;

use mzcache::units::CodecId;
use program::*;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A failure says what is wrong and what to do, and is no panic.
fn expect_failure(output: &Output, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    assert!(message.contains("error: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

const DEMO: [&str; 6] = ["demo", "--shape", "tiny", "--context-tokens", "700", "--json"];

#[test]
fn a_demo_with_raw_gives_the_same_tokens_at_every_level() {
    let place = cache();
    let report = json(&program(place.path(), &[&DEMO[..], &["--codec", "raw"]].concat()));
    let levels = report["levels"].as_array().unwrap();
    let shares: Vec<f64> = levels.iter().map(|l| l["remaining_pct"].as_f64().unwrap()).collect();
    assert_eq!(shares, [100.0, 75.0, 50.0, 25.0, 0.0]);
    let total = report["weights_bytes"].as_u64().unwrap() + report["kv_bytes"].as_u64().unwrap();
    for level in levels {
        assert_eq!(level["tokens_match"], true, "{level}");
        let resident = level["bytes_resident"].as_u64().unwrap();
        let share = level["remaining_pct"].as_f64().unwrap();
        assert!(resident as f64 <= total as f64 * share / 100.0, "{level}");
        for time in ["ttft_ms", "partial_offload_ttft_ms", "in_memory_ttft_ms"] {
            assert!(level[time].as_f64().unwrap() > 0.0, "{level}");
        }
    }
    let freed = levels[4]["bytes_freed_measured"].as_u64().unwrap();
    assert!(freed.abs_diff(total) < total / 10, "{freed} of {total}");
    // The swap file has no name, and nothing else is left.
    let names = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["models"]);
}

#[test]
fn a_demo_with_q8_gives_the_same_tokens_in_every_cycle() {
    let place = cache();
    let report = json(&program(place.path(), &[&DEMO[..], &["--codec", "q8"]].concat()));
    for level in report["levels"].as_array().unwrap() {
        assert_eq!(level["tokens_repeat"], true, "{level}");
    }
}

#[test]
fn a_run_without_a_context_evicts_weights() {
    let place = cache();
    let arguments = ["run", "-m", model_text(), "-p", "so", "-n", "3", "--json", "--evict", "50%"];
    let answer = json(&program(place.path(), &arguments));
    assert!(answer["evicted"]["bytes_freed"].as_u64().unwrap() > 0);
}

#[test]
fn cores_that_cannot_be_had_are_noted_and_nothing_else_changes() {
    let place = cache();
    let run = ["run", "-m", model_text(), "-p", "so", "-n", "3", "--evict", "50%", "--cores"];
    let on = |cores| program(place.path(), &[&run[..], &[cores]].concat());
    let (there, absent) = (on("read=0"), on("read=1000;unpack=0"));
    assert_eq!((there.status.code(), absent.status.code()), (Some(0), Some(0)));
    assert_eq!(there.stdout, absent.stdout);
    assert!(!text(&there.stderr).contains("any core"), "{}", text(&there.stderr));
    // All that read; how many others there are is the machine's affair.
    let notes = text(&absent.stderr);
    assert!(notes.contains("4 of ") && notes.contains("worker threads run on any core"), "{notes}");
}

#[test]
fn a_run_answers_the_same_after_an_eviction() {
    let place = cache();
    let context = place.path().join("context.txt");
    fs::write(&context, &include_str!("../LICENSE")[..600]).unwrap();
    let run = |more: &[&str]| {
        let common = ["run", "-m", model_text(), "-p", "so", "-n", "6", "--json", "--codec", "raw"];
        let context = ["-c", context.to_str().unwrap()];
        json(&program(place.path(), &[&common[..], &context, more].concat()))
    };
    let expected = run(&[]);
    assert!(expected["context_tokens"].as_u64().unwrap() > 256);
    assert_eq!(expected["evicted"], Value::Null);
    for more in [["--remaining", "25%"], ["--evict", "100%"], ["--evict", "1MiB"]] {
        let answer = run(&more);
        assert_eq!(answer["tokens"], expected["tokens"]);
        assert_eq!(answer["text"], expected["text"]);
        assert_eq!(answer["evicted"]["stop"], "Reached");
        let left = answer["bytes_resident"].as_u64().unwrap();
        assert!(left < answer["bytes_before"].as_u64().unwrap());
    }
}

#[test]
fn the_steps_of_a_model_are_made_once_and_kept() {
    let place = cache();
    let context = place.path().join("context.txt");
    fs::write(&context, &include_str!("../LICENSE")[..600]).unwrap();
    let run = || {
        let common = ["run", "-m", model_text(), "-c", context.to_str().unwrap(), "-p", "so"];
        let more = ["-n", "2", "--json", "--codec", "kvh", "--remaining", "25%"];
        let output = program(place.path(), &[&common[..], &more].concat());
        assert_eq!(json(&output)["codec"], "kvh");
        text(&output.stderr).to_owned()
    };
    run();
    let mut files = fs::read_dir(place.path().join("steps")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    let made = fs::read(&file).unwrap();
    let time = fs::metadata(&file).unwrap().modified().unwrap();
    assert!(!run().contains("made anew"));
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), time);
    fs::write(&file, &made[..made.len() - 1]).unwrap();
    let notes = run();
    assert!(notes.contains("steps: data is truncated") && notes.contains("made anew"), "{notes}");
    assert_eq!(fs::read(&file).unwrap(), made);
}

#[test]
fn a_codec_is_chosen_for_the_eviction_and_the_choice_explained() {
    let place = cache();
    let run = |more: &[&str]| {
        let common = ["run", "-m", model_text(), "-p", "so", "-n", "2", "--json"];
        let output = program(place.path(), &[&common[..], &["--codec", "auto"], more].concat());
        (json(&output), text(&output.stderr).to_owned())
    };
    let (answer, notes) = run(&[]);
    assert_eq!(answer["codec"], "q8");
    assert!(notes.contains("codec q8: nothing is to be evicted"), "{notes}");
    let (answer, notes) = run(&["--remaining", "25%"]);
    let codec = answer["codec"].as_str().unwrap();
    assert!(notes.contains(&format!("codec {codec}: bringing ")), "{notes}");
    assert!(notes.contains(" is predicted to take "), "{notes}");
    assert!(notes.contains(", with "), "{notes}");
}

#[test]
fn a_seed_repeats_an_answer_and_the_prompt_may_come_from_standard_input() {
    let place = cache();
    let run = |seed: &str| {
        let arguments = ["run", "-m", model_text(), "-p", "-", "-n", "12", "--json"];
        let sampling = ["--temperature", "1.5", "--top-k", "50", "--top-p", "0.9", "--seed", seed];
        let mut command = command(place.path(), &[&arguments[..], &sampling].concat());
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        json(&say(child, "once upon a time"))["tokens"].clone()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn an_accelerator_that_is_not_there_is_an_error_or_a_note() {
    let place = cache();
    let run = |backend: &str| {
        let common = ["run", "-m", model_text(), "-p", "so", "-n", "3", "--backend", backend];
        program(place.path(), &[&common[..], &["--device", "no such device"]].concat())
    };
    expect_failure(&run("opencl"), &["hint: ", "--backend cpu"]);
    let output = run("auto");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("computing on the processor: "));
}

#[test]
fn a_demo_on_an_accelerator_gives_the_same_tokens_at_every_level() {
    let place = cache();
    let accelerator = ["--backend", "opencl", "--codec", "raw", "--levels", "100,50,0"];
    let output = program(place.path(), &[&DEMO[..], &accelerator].concat());
    if output.status.code() == Some(1) && std::env::var_os("MZ_CI").is_none() {
        eprintln!("NOT CHECKED: no accelerator: {}", text(&output.stderr));
        return;
    }
    let report = json(&output);
    for level in report["levels"].as_array().unwrap() {
        assert_eq!(level["tokens_match"], true, "{level}");
    }
    // The second time its programs come out of the cache.
    assert!(fs::read_dir(place.path().join("opencl")).unwrap().count() > 0);
    json(&program(place.path(), &[&DEMO[..], &accelerator].concat()));
}

/// Rows of one context, checked against each other.
fn check_layer_bench(report: &Value) {
    assert_eq!(report["bench"], "layer");
    let rows = report["rows"].as_array().unwrap();
    let parts: Vec<_> = rows.iter().map(|row| row["part"].as_str().unwrap()).collect();
    let layer = ["norm, qkv", "rotary, store", "attention", "output", "feed-forward"];
    assert_eq!(parts, [&layer[..], &["layer", "head"]].concat());
    let bytes = |row: &Value| row["bytes"].as_u64().unwrap();
    assert_eq!(bytes(&rows[5]), rows[..5].iter().map(bytes).sum::<u64>());
    // 128 by 128 halves; 4 tokens of 128 values in, of 128 in and out, as singles.
    assert_eq!(bytes(&rows[3]), 2 * 128 * 128 + 4 * 4 * 3 * 128);
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("us") > 0.0 && number("copy_gb_per_s") > 0.0, "{row}");
        assert!((number("ratio") - number("bound_us") / number("us")).abs() < 1e-9, "{row}");
    }
}

const BENCH: [&str; 8] =
    ["bench", "layer", "--shape", "tiny", "--contexts", "300", "--queries", "4"];

#[test]
fn a_layer_is_measured_by_parts() {
    let place = cache();
    let report = json(&program(place.path(), &[&BENCH[..], &["--json"]].concat()));
    check_layer_bench(&report);
    assert_eq!(report["rows"][0]["clock"], "wall");
    let table = program(place.path(), &[&BENCH[..], &["--threads", "1"]].concat());
    assert!(text(&table.stdout).contains(", 1 threads; "), "{}", text(&table.stdout));
    assert_eq!(text(&table.stdout).lines().count(), 9);
    let context = ["bench", "layer", "--shape", "tiny", "--contexts", "8190"];
    expect_failure(&program(place.path(), &context), &["do not fit"]);
}

#[test]
fn a_layer_is_measured_on_an_accelerator_by_its_clock() {
    let place = cache();
    let accelerator = ["--backend", "opencl", "--json"];
    let output = program(place.path(), &[&BENCH[..], &accelerator].concat());
    if output.status.code() == Some(1) && std::env::var_os("MZ_CI").is_none() {
        eprintln!("NOT CHECKED: no accelerator: {}", text(&output.stderr));
        return;
    }
    let report = json(&output);
    check_layer_bench(&report);
    let rows = report["rows"].as_array().unwrap();
    let commands: Vec<_> = rows.iter().map(|row| row["commands"].as_u64().unwrap()).collect();
    assert_eq!(commands, [1, 1, 2, 1, 2, 7, 2]);
}

#[test]
fn codecs_are_scored_on_a_text_beside_general_compressors() {
    let place = cache();
    let book = place.path().join("book.txt");
    fs::write(&book, include_str!("../LICENSE")).unwrap();
    let common = ["bench", "codec", "-m", model_text(), "--text", book.to_str().unwrap()];
    let sizes = ["--tokens", "300", "--score", "9", "--greedy", "4"];
    let report = json(&program(place.path(), &[&common[..], &sizes, &["--json"]].concat()));
    assert_eq!(report["bench"], "codec");
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["codec"].as_str().unwrap()).collect();
    let known = CodecId::ALL.map(CodecId::name);
    assert_eq!(names, [&known[..], &["lz4", "zstd-3"]].concat());
    let saving = |name: &str| {
        let row = rows.iter().find(|row| row["codec"] == name).unwrap();
        for rate in ["pack", "unpack", "unpack_all_cores", "memcpy"] {
            assert!(row[format!("{rate}_gb_per_s")].as_f64().unwrap() > 0.0, "{row}");
        }
        for part in ["kld", "top1", "greedy", "ppl_change", "bits"] {
            assert!(row[part].is_number(), "{row}");
        }
        row["saving"].as_f64().unwrap()
    };
    assert!(saving("kv4") > saving("q8") && saving("q8") > 0.45);
    // What loses nothing changes nothing.
    for row in rows.iter().filter(|row| ["raw", "lz4", "zstd-3"].iter().any(|n| row["codec"] == *n))
    {
        assert!(row["kld"].as_f64().unwrap().abs() < 1e-9, "{row}");
        assert_eq!(row["top1"], 1.0);
    }
    assert!(rows[1]["kld"].as_f64().unwrap() > 0.0);
    let long = [&common[..], &["--tokens", "200000"]].concat();
    expect_failure(&program(place.path(), &long), &["are needed", "hint: give a longer one"]);
}

fn say(mut child: Child, lines: &str) -> Output {
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn chat(place: &Path, lines: &str) -> Output {
    let arguments = ["chat", "-m", model_text(), "-n", "5", "--codec", "raw"];
    say(command(place, &arguments).stdin(Stdio::piped()).spawn().unwrap(), lines)
}

#[test]
fn a_conversation_goes_on_through_evictions() {
    let place = cache();
    let plain = chat(place.path(), "hello\nand then\n");
    assert_eq!(plain.status.code(), Some(0), "{}", text(&plain.stderr));
    let script =
        "hello\n/evict 75%\n/stats\nand then\n/evict 100%\n/restore\n/what\n/quit\nnever\n";
    let output = chat(place.path(), script);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for answer in text(&plain.stdout).lines() {
        assert!(said.contains(answer), "`{answer}` is missing in: {said}");
    }
    for part in ["evicted ", "context ", "in memory", "are in memory", "unknown command `/what`"] {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
}

/// Answers of a conversation that is kept, and what was noted.
fn keep_talking(place: &Path, lines: &str) -> (String, String) {
    let talk = place.join("talk");
    let arguments =
        ["chat", "-m", model_text(), "-n", "5", "--codec", "raw", "--keep", talk.to_str().unwrap()];
    let output = say(command(place, &arguments).stdin(Stdio::piped()).spawn().unwrap(), lines);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

#[test]
fn a_conversation_that_is_kept_goes_on_in_another_process() {
    let place = cache();
    let plain = chat(place.path(), "hello\nand then\nso\n").stdout;
    let answers: Vec<&str> = text(&plain).lines().collect();
    let (first, _) = keep_talking(place.path(), "hello\n/evict 75%\n");
    assert!(first.starts_with(answers[0]), "{first}");

    // This one is killed once its answer is there, and perhaps on its way to storage.
    let talk = place.path().join("talk");
    let arguments =
        ["chat", "-m", model_text(), "-n", "5", "--codec", "raw", "--keep", talk.to_str().unwrap()];
    let mut child = command(place.path(), &arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.as_ref().unwrap().write_all(b"and then\n/stats\n").unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"missing") {
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        seen.push(byte[0]);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text(&seen).starts_with(answers[1]), "{}", text(&seen));

    let (third, notes) = keep_talking(place.path(), "so\n");
    assert_eq!(third.trim_end(), answers[2]);
    assert!(notes.contains("going on with "), "{notes}");
    assert!(!notes.contains("computed again"), "{notes}");

    // Without its context it is computed again, from what was said.
    fs::write(place.path().join("talk.kv"), [7; 100_000]).unwrap();
    let (_, notes) = keep_talking(place.path(), "on\n");
    assert!(notes.contains("going on with 0 of ") && notes.contains("computed again"), "{notes}");
    fs::write(&talk, "hello").unwrap();
    let refused = program(place.path(), &arguments);
    expect_failure(&refused, &["talk holds no conversation", "hint: name another file"]);
}

#[test]
fn a_model_file_that_shrinks_during_a_conversation_is_a_clear_error() {
    let place = cache();
    let copy = place.path().join("model.gguf");
    fs::copy(model(), &copy).unwrap();
    let arguments = ["chat", "-m", copy.to_str().unwrap(), "-n", "3"];
    let mut child = command(place.path(), &arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"hello\n/evict 100%\n/stats\n").unwrap();
    // The statistics come after the eviction; then nothing of the model is in memory.
    let mut output = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    while !text(&seen).contains("missing") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut output, &mut byte).unwrap();
        seen.push(byte[0]);
    }
    let file = OpenOptions::new().write(true).open(&copy).unwrap();
    file.set_len(fs::metadata(&copy).unwrap().len() / 2).unwrap();
    input.write_all(b"again\n").unwrap();
    drop(input);
    drop(output);
    expect_failure(&child.wait_with_output().unwrap(), &["model file: file ends early"]);
}

#[test]
fn damaged_model_files_are_refused_or_computed_but_never_a_panic() {
    let place = cache();
    let whole = fs::read(model()).unwrap();
    let damaged = place.path().join("damaged.gguf");
    let run =
        || program(place.path(), &["run", "-m", damaged.to_str().unwrap(), "-p", "a", "-n", "1"]);
    for length in [0, 3, 4, 7, 8, 23, 24, 60, 500, 5000, whole.len() / 2, whole.len() - 1] {
        fs::write(&damaged, &whole[..length]).unwrap();
        expect_failure(&run(), &["damaged.gguf"]);
    }
    // Counts, lengths and types of the header; the parser's own tests flip every byte.
    for offset in (0..64).chain((64..400).step_by(7)) {
        fs::write(&damaged, &whole).unwrap();
        let file = OpenOptions::new().write(true).open(&damaged).unwrap();
        file.write_all_at(&[!whole[offset]], offset as u64).unwrap();
        let output = run();
        assert!(!text(&output.stderr).contains("panicked"), "{offset}: {}", text(&output.stderr));
        assert!([Some(0), Some(1)].contains(&output.status.code()), "{offset}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let place = cache();
    let run = |more: &[&str]| {
        let common = ["run", "-p", "a", "-n", "1"];
        program(place.path(), &[&common[..], more].concat())
    };
    expect_failure(&run(&["-m", "/nonexistent.gguf"]), &["/nonexistent.gguf", "No such file"]);
    let profile = place.path().join("bad.txt");
    fs::write(&profile, "mzcache-profile 1\nread_bytes_per_s = fast\n").unwrap();
    let named = ["-m", model_text(), "--profile", profile.to_str().unwrap()];
    expect_failure(&run(&named), &["bad.txt: read_bytes_per_s", "mzcache profile"]);
    let absent = ["-m", model_text(), "--profile", "/nonexistent.txt"];
    expect_failure(&run(&absent), &["/nonexistent.txt", "check the path"]);
    fs::write(place.path().join("profile.txt"), [0xFF, 0xFE]).unwrap();
    expect_failure(&run(&["-m", model_text()]), &["profile.txt"]);
    fs::remove_file(place.path().join("profile.txt")).unwrap();
    let binary = place.path().join("binary");
    fs::write(&binary, [b'a', 0xFF]).unwrap();
    let context = ["-m", model_text(), "-c", binary.to_str().unwrap()];
    expect_failure(&run(&context), &["is not UTF-8 at byte 1"]);
    expect_failure(&run(&["-m", place.path().to_str().unwrap()]), &["error: "]);
}

/// A file system of one mebibyte, or one that is read-only; needs root, as the test script has it.
struct Mounted(PathBuf);

impl Mounted {
    fn new(place: &Path, options: &str) -> Mounted {
        let path = place.join("mounted");
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs", path.to_str().unwrap()])
            .status();
        assert!(mount.unwrap().success(), "mounting a tmpfs needs root");
        Mounted(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_or_a_read_only_cache_leaves_no_half_written_file() {
    let place = cache();
    let small = Mounted::new(place.path(), "size=1m");
    let output = program(&small.0, &DEMO);
    expect_failure(&output, &["are free", "--cache-dir"]);
    for directory in [small.0.clone(), small.0.join("models")] {
        let files = fs::read_dir(directory).into_iter().flatten();
        assert!(files.map(|entry| entry.unwrap()).all(|entry| entry.path().is_dir()));
    }
    drop(small);
    fs::remove_dir(place.path().join("mounted")).unwrap();
    let read_only = Mounted::new(place.path(), "ro");
    expect_failure(&program(&read_only.0, &DEMO), &["--cache-dir"]);
    expect_failure(&program(&read_only.0, &["profile"]), &["--cache-dir"]);
}

/// The swap file outgrows its file system: evictions go to RAM, the answer is the same.
#[test]
fn a_swap_file_without_room_costs_memory_and_no_context() {
    let place = cache();
    let small = Mounted::new(place.path(), "size=300k");
    let context = place.path().join("context.txt");
    fs::write(&context, &include_str!("../LICENSE")[..600]).unwrap();
    let run = |cache: &Path, more: &[&str]| {
        let common = ["run", "-m", model_text(), "-p", "so", "-n", "6", "--json", "--codec", "raw"];
        let context = ["-c", context.to_str().unwrap()];
        json(&program(cache, &[&common[..], &context, more].concat()))
    };
    let expected = run(place.path(), &[]);
    let answer = run(&small.0, &["--evict", "100%"]);
    assert_eq!(answer["tokens"], expected["tokens"]);
    assert_eq!(answer["evicted"]["stop"], "Exhausted");
}
