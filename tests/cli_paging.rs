//! The baseline that leaves memory to the system: what it measures, and that it leaves nothing.
//!
//! Where the system lets this user page a process (root, a memory cgroup, zram or a file system
//! that holds a swap file) it is run; where not, and as another user, the reason is said before
//! anything is measured.

#![cfg(feature = "cli")]

mod program;

use program::*;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

const PAGED: [&str; 2] = ["os_paging", "os_paging_storage"];

fn bench(place: &Path, systems: &str, rounds: &str) -> Command {
    let common = ["bench", "ttft", "-m", model_text(), "--contexts", "1500", "--rounds", rounds];
    let ours = ["--systems", systems, "--levels", "50,0", "--json"];
    command(place, &[&common[..], &ours].concat())
}

/// Held by tests that page: what one process swaps goes to the device that another made.
fn alone() -> File {
    let file = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("paging.lock")).unwrap();
    file.lock().unwrap();
    file
}

/// Whether this user may make a swap device.
fn may_page() -> bool {
    let control = "/sys/class/zram-control/hot_remove";
    // Opening it to write changes nothing.
    fs::OpenOptions::new().write(true).open(control).is_ok()
}

/// Asserts that nothing was measured, for a reason that was said. The system may lack something
/// that even root cannot install.
fn assert_refused(output: &Output) {
    let text = text(&output.stderr);
    eprintln!("NOT CHECKED: {text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: paging: ") && text.contains("needs root"), "{text}");
    assert!(!text.contains("measuring"), "{text}");
}

/// The swap device and the cgroup that a bench said it used.
fn used(line: &str) -> Option<(String, PathBuf)> {
    let (device, cgroup) = line.strip_prefix("paging to ")?.split_once(" in ")?;
    Some((device.split_once(' ')?.0.to_owned(), cgroup.into()))
}

fn is_swapped_to(device: &str) -> bool {
    fs::read_to_string("/proc/swaps").unwrap().contains(device)
}

/// Waits until the swap device and the cgroup are gone. Another test may have a device of the same
/// name meanwhile.
fn assert_tidied(device: &str, cgroup: &Path) {
    let start = Instant::now();
    while cgroup.exists() || is_swapped_to(device) || Path::new(device).exists() {
        assert!(start.elapsed() < Duration::from_secs(120), "{device} or {cgroup:?} is left");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_paged_model_answers_and_leaves_nothing() {
    let (place, _lock) = (cache(), alone());
    let output = bench(place.path(), "mzcache,os_paging,os_paging_storage", "2").output().unwrap();
    if output.status.code() == Some(1) {
        return assert_refused(&output);
    }
    let report = json(&output);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        for key in ["ttft_ms", "bound_ms"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let remaining = PAGED.map(|system| {
        let paged: Vec<&Value> = rows.iter().filter(|row| row["system"] == system).collect();
        for row in &paged {
            let goal = row["level_pct"].as_f64().map(|level| level + 3.0);
            assert_eq!(row["is_reached"], row["remaining_pct"].as_f64() <= goal, "{row}");
        }
        let remaining = |row: &&Value| row["remaining_pct"].as_f64().unwrap();
        let remaining: [f64; 2] =
            paged.iter().map(remaining).collect::<Vec<_>>().try_into().unwrap();
        assert!(remaining.iter().all(|pct| (0.0..=100.0).contains(pct)), "{remaining:?}");
        // A little of every process stays: its stack, tables of its pages, what does not compress.
        // Where both levels are out of reach, they are as far as it goes, give or take.
        assert!(remaining[1] > 0.0 && remaining[1] <= remaining[0] + 10.0, "{remaining:?}");
        remaining
    });
    // What is on storage takes no memory.
    assert!(remaining[1][1] < remaining[0][1], "{remaining:?}");
    let used: Vec<_> = text(&output.stderr).lines().filter_map(used).collect();
    assert_eq!(used.len(), 2);
    for (device, cgroup) in used {
        assert!(!cgroup.exists(), "{cgroup:?}");
        assert_tidied(&device, &cgroup);
    }
}

#[test]
fn a_bench_that_is_killed_leaves_nothing() {
    let _lock = alone();
    for system in PAGED {
        let place = cache();
        let mut bench = bench(place.path(), system, "1000");
        let mut child = bench.stdout(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let found = lines.map(Result::unwrap).find_map(|line| used(&line));
        let Some((device, cgroup)) = found else {
            assert_eq!(child.wait().unwrap().code(), Some(1));
            continue;
        };
        let in_cgroup = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        let model = in_cgroup.lines().next().unwrap();
        // It is on now and then.
        while !is_swapped_to(&device) {
            assert!(child.try_wait().unwrap().is_none(), "it never swapped");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_tidied(&device, &cgroup);
        assert!(!Path::new("/proc").join(model).exists(), "{model}");
    }
}

#[test]
fn who_may_not_page_is_told_at_once() {
    for system in PAGED {
        let place = cache();
        let mut bench = bench(place.path(), system, "1");
        if may_page() {
            bench.uid(NOBODY).gid(NOBODY);
        }
        match bench.output() {
            Ok(output) => assert_refused(&output),
            // The program lies where another user may not go.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
        }
    }
}

#[test]
fn a_file_system_in_memory_holds_no_swap_file() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let output = bench(place.path(), "os_paging_storage", "1").output().unwrap();
    assert_refused(&output);
    if may_page() {
        assert!(text(&output.stderr).contains("is on tmpfs, which holds no swap file"));
    }
}

#[test]
fn rounds_of_pressure_say_who_survived() {
    let (place, _lock) = (cache(), alone());
    let arguments = ["bench", "pressure", "-m", model_text(), "--contexts", "1500"];
    let out = ["--json", "--rounds", "4", "--out", place.path().to_str().unwrap()];
    let output = program(place.path(), &[&arguments[..], &out].concat());
    if output.status.code() == Some(1) {
        return assert_refused(&output);
    }
    let report = json(&output);
    let rows = report["rows"].as_array().unwrap();
    let systems = ["os_paging", "mzcache_15pp", "mzcache_25pp"];
    let expected = systems.iter().flat_map(|system| (1..=4).map(move |round| (*system, round)));
    for (row, (system, round)) in rows.iter().zip(expected) {
        assert_eq!((&row["system"], &row["round"]), (&system.into(), &round.into()));
        assert_eq!(row["killed"].as_bool().unwrap(), row["ttft_ms"].is_null(), "{row}");
        let memory = row["memory"].as_array().unwrap();
        let seconds: Vec<f64> =
            memory.iter().map(|sample| sample["seconds"].as_f64().unwrap()).collect();
        assert!(seconds.len() > 2 && seconds.is_sorted(), "{seconds:?}");
        // It is in memory when a round begins, and again when it ends.
        for sample in [&memory[0], &memory[memory.len() - 1]] {
            assert!(sample["bytes"].as_u64().unwrap() > 0, "{row}");
        }
    }
    assert_eq!(rows.len(), 12);
    assert!(fs::read_to_string(place.path().join("pressure.svg")).unwrap().starts_with("<svg"));
    let groups = text(&output.stderr).lines().filter_map(|line| line.split_once("is that of "));
    let groups: Vec<&str> = groups.map(|(_, cgroup)| cgroup).collect();
    assert_eq!(groups.len(), 3);
    assert!(groups.iter().all(|cgroup| !Path::new(cgroup).exists()), "{groups:?}");
}

#[test]
fn keepers_and_models_say_what_they_do_not_know() {
    let place = cache();
    let options = ["--model", "/missing", "--context-tokens", "10", "--queries", "1"];
    for (bench, request, answer) in [
        ("paging-keeper", "evict zram 50", "failed unknown request `evict zram 50`"),
        ("paging-keeper", "open nowhere", "failed unknown swap device `nowhere`"),
        ("paged-model", "ask", "failed unknown request `ask`"),
        ("paged-model", "open", "failed /missing: "),
        ("pressure-keeper", "round 1", "failed unknown request `round 1`"),
    ] {
        let mut command = command(place.path(), &[&["bench", bench], &options[..]].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut requests = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut requests, format!("{request}\n").as_bytes()).unwrap();
        drop(requests);
        let output = child.wait_with_output().unwrap();
        assert!(text(&output.stdout).starts_with(answer), "{output:?}");
        assert!(output.status.success());
    }
}
