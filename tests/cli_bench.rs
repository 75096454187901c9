//! The paper's figures, on a small model with random weights: what is printed, what is written.

#![cfg(feature = "cli")]

mod program;

use program::*;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

/// Runs a bench on the tiny model; its rows, and the folder with its files.
fn bench(name: &str, arguments: &[&str]) -> (Vec<Value>, TempDir) {
    let out = cache();
    let common = ["bench", name, "-m", model_text(), "--contexts", "1500", "--rounds", "2"];
    let files = ["--json", "--out", out.path().to_str().unwrap()];
    let report = json(&program(out.path(), &[&common[..], &files, arguments].concat()));
    assert_eq!(report["bench"], name);
    let file =
        |ending: &str| fs::read_to_string(out.path().join(format!("{name}.{ending}"))).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&file("json")).unwrap(), report);
    assert!(file("svg").starts_with("<svg"));
    assert!(file("txt").contains("| context |"));
    let rows = report["rows"].as_array().unwrap().clone();
    for row in &rows {
        assert_eq!(row["context_tokens"], 1500);
    }
    (rows, out)
}

/// The numbers of a column.
fn numbers(rows: &[Value], key: &str) -> Vec<f64> {
    rows.iter().map(|row| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"))).collect()
}

fn texts<'a>(rows: &'a [Value], key: &str) -> Vec<&'a str> {
    rows.iter().map(|row| row[key].as_str().unwrap()).collect()
}

fn all_positive(rows: &[Value], keys: &[&str]) {
    for key in keys {
        assert!(numbers(rows, key).iter().all(|number| *number > 0.0), "{key}: {rows:?}");
    }
}

#[test]
fn first_tokens_are_timed_by_level_and_system_and_traced() {
    let place = cache();
    let trace = place.path().join("trace.json");
    let (rows, _) = bench("ttft", &["--levels", "50,0", "--trace", trace.to_str().unwrap()]);
    assert_eq!(numbers(&rows, "remaining_pct"), [50.0, 50.0, 0.0, 0.0]);
    assert_eq!(texts(&rows, "system")[..2], ["mzcache", "partial_offload"]);
    all_positive(&rows, &["ttft_ms", "bound_ms"]);
    let trace: Value = serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |start: &str| {
        let has = |event: &&Value| event["name"].as_str().unwrap().starts_with(start);
        events.iter().filter(has).count()
    };
    // Four layers and the head come back from nothing; each gate is a flow with two ends.
    assert!(named("allocate weights") == 5 && named("read weights") >= 5);
    assert_eq!(named("Attention"), 4);
    assert_eq!(named("gate"), 2 * 8);
}

#[test]
fn phases_are_told_apart() {
    let (rows, _) = bench("breakdown", &[]);
    assert_eq!(texts(&rows, "system"), ["mzcache, no overlap", "partial offload"]);
    all_positive(&rows, &["allocation_ms", "reload_ms", "prefill_ms", "bound_ms"]);
}

#[test]
fn overlaps_and_orders_are_compared() {
    let (rows, _) = bench("overlap", &[]);
    assert_eq!(texts(&rows, "mode"), ["none", "ar", "rp", "arp"]);
    all_positive(&rows, &["ttft_ms", "bound_ms"]);
    let (rows, _) = bench("order", &[]);
    assert_eq!(texts(&rows, "order"), ["backward-out", "forward-out", "random", "lru"]);
    all_positive(&rows, &["ttft_ms", "bound_ms"]);
}

#[test]
fn each_path_is_timed_alone_and_both_together() {
    // Rates that are measured on so small a model may leave a path without work.
    let place = cache();
    let profile = place.path().join("profile.txt");
    let rates = "mzcache-profile 1\nread_bytes_per_s = 2000000000\n\
        write_bytes_per_s = 500000000\npack_bytes_per_s.q8 = 3000000000\n\
        unpack_bytes_per_s.q8 = 5000000000\n";
    fs::write(&profile, rates).unwrap();
    let profile = ["--profile", profile.to_str().unwrap()];
    let (rows, _) = bench("paths", &[&["--levels", "75"][..], &profile].concat());
    all_positive(&rows, &["ram_ms", "flash_ms", "parallel_ms", "sequential_ms"]);
    let row = &rows[0];
    let [ram, flash] =
        [&row["ram_alone_ms"], &row["flash_alone_ms"]].map(|ms| ms.as_f64().unwrap());
    assert!((ram + flash - row["sequential_ms"].as_f64().unwrap()).abs() < 1e-6);
    assert!((0.0..=100.0).contains(&row["apart_pct"].as_f64().unwrap()), "{row}");
    // Nothing is packed, so nothing is unpacked.
    let (rows, _) = bench("paths", &["--levels", "50", "--paths", "flash"]);
    assert_eq!(numbers(&rows, "ram_ms"), [0.0]);
    assert!(rows[0]["apart_pct"].is_null(), "{rows:?}");
}

#[test]
fn evictions_are_timed_and_free_what_they_say() {
    let (rows, _) = bench("evict", &["--levels", "60,0"]);
    all_positive(&rows, &["ms", "mb_per_s", "bytes_measured"]);
    for (asked, freed) in numbers(&rows, "bytes_asked").iter().zip(numbers(&rows, "bytes_freed")) {
        assert!(freed >= *asked);
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let place = cache();
    let long = ["bench", "ttft", "-m", model_text(), "--contexts", "9000"];
    let output = program(place.path(), &long);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("do not fit"), "{}", text(&output.stderr));
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let out = ["bench", "order", "-m", model_text(), "--contexts", "300", "--rounds", "1", "--out"];
    let output = program(place.path(), &[&out[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("create"), "{}", text(&output.stderr));
}
