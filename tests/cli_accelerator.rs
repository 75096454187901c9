//! What the program says of accelerators that are missing, too small, broken or lost, and of those
//! that work.

#![cfg(feature = "cli")]

#[path = "planted/mod.rs"]
mod planted;
mod program;

use planted::{FAULTS, Planted, plant};
use program::{cache, command, json, model_text, text};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// The answer of a tiny model, out of a cache of its own.
fn run(cache: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let common = ["run", "-m", model_text(), "-p", "so", "-n", "2", "--json"];
    let mut command = command(cache, &[&common[..], &["--backend", "opencl"], arguments].concat());
    command.envs(environment.iter().copied()).output().unwrap()
}

/// Whether the loader and PoCL are there.
fn has_pocl() -> bool {
    let place = cache();
    let output = run(place.path(), &["--device", "portable computing"], &[]);
    let works = output.status.success();
    assert!(works || std::env::var_os("MZ_CI").is_none(), "{}", text(&output.stderr));
    if !works {
        eprintln!("NOT CHECKED: no PoCL: {}", text(&output.stderr));
    }
    works
}

/// Exit code 1, the message with its hint, and no panic.
#[track_caller]
fn expect_failure(output: &Output, message: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    let expected = format!("error: {message}");
    assert!(said.lines().any(|line| line == expected), "`{expected}` is missing in: {said}");
    assert!(said.contains("hint: "), "{said}");
}

/// PoCL behind a library that is not all that it should be.
fn run_on(library: &Planted) -> Output {
    let place = cache();
    let path = library.path.to_str().unwrap();
    run(place.path(), &["--library", path, "--device", "portable computing"], &[])
}

#[test]
fn a_missing_library_is_said() {
    let place = cache();
    let output = run(place.path(), &["--library", "/nonexistent/libOpenCL.so"], &[]);
    expect_failure(&output, "OpenCL library: no such accelerator");
}

#[test]
fn a_loader_without_drivers_is_no_device() {
    if !has_pocl() {
        return;
    }
    let place = cache();
    let output = run(place.path(), &[], &[("OCL_ICD_VENDORS", "/nonexistent")]);
    expect_failure(
        &output,
        "OpenCL platform: no such accelerator (CL_PLATFORM_NOT_FOUND_KHR, -1001)",
    );
}

#[test]
fn a_device_without_enough_memory_says_for_what() {
    if !has_pocl() {
        return;
    }
    // A device that says so, and one that finds out.
    let says = "#define _GNU_SOURCE\n#include <dlfcn.h>\n\
        int clGetDeviceInfo(void *d, unsigned n, unsigned long s, void *v, unsigned long *r) {\n\
            typeof(&clGetDeviceInfo) next = dlsym(RTLD_NEXT, \"clGetDeviceInfo\");\n\
            int e = next(d, n, s, v, r);\n\
            if (n == 0x101F && v) *(unsigned long *)v = 100000;\n\
            return e; }";
    let output = run_on(&plant("cli-small", says, true));
    let said = text(&output.stderr);
    let message = "error: weights in the device's memory: out of memory (";
    assert!(output.status.code() == Some(1) && said.contains(message), "{said}");
    let finds_out = format!("{FAULTS}int clSVMAlloc_fails = 1000000;");
    let output = run_on(&plant("cli-full", &finds_out, true));
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("error: clSVMAlloc: out of"),
        "{said}"
    );
}

#[test]
fn a_compiler_that_fails_is_named() {
    if !has_pocl() {
        return;
    }
    let fails = format!("{FAULTS}int clBuildProgram_fails = 1000000;");
    let fails = fails.replace("fail_status = -5", "fail_status = -11");
    let output = run_on(&plant("cli-build", &fails, true));
    expect_failure(
        &output,
        "clBuildProgram: accelerator's compiler failed (CL_BUILD_PROGRAM_FAILURE, -11)",
    );
}

#[test]
fn a_device_that_is_lost_ends_the_command() {
    if !has_pocl() {
        return;
    }
    let lost = format!("{FAULTS}int clEnqueueNDRangeKernel_spared = 9;");
    let lost = format!("{lost}int clEnqueueNDRangeKernel_fails = 1000000;");
    let lost = lost.replace("fail_status = -5", "fail_status = -36");
    let output = run_on(&plant("cli-lost", &lost, true));
    let said = text(&output.stderr);
    // The kernel's name stands before.
    let message = ": accelerator was lost (CL_INVALID_COMMAND_QUEUE, -36)\n";
    assert!(output.status.code() == Some(1) && said.contains(message), "{said}");
}

#[test]
fn kernels_that_spill_are_named() {
    if !has_pocl() {
        return;
    }
    // A processor whose kernels need memory instead of registers, posing as a GPU.
    let spills = "#define _GNU_SOURCE\n#include <dlfcn.h>\n\
        #define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))\n\
        int clGetDeviceInfo(void *d, unsigned n, unsigned long s, void *v, unsigned long *r) {\n\
            int e = NEXT(clGetDeviceInfo)(d, n, s, v, r);\n\
            if (n == 0x1000 && v) *(unsigned long *)v = 4;\n\
            return e; }\n\
        int clGetKernelWorkGroupInfo(void *k, void *d, unsigned n, unsigned long s, void *v,\n\
                unsigned long *r) {\n\
            int e = NEXT(clGetKernelWorkGroupInfo)(k, d, n, s, v, r);\n\
            if (n == 0x11B4 && v) *(unsigned long *)v = 96;\n\
            return e; }";
    let output = run_on(&plant("cli-spills", spills, true));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("in need of more registers than the device has ("), "{said}");
}

/// A loader takes the list of drivers apart in place. The process that compiles finds the device
/// all the same.
#[test]
fn the_compiler_s_process_inherits_the_whole_list_of_drivers() {
    if !has_pocl() {
        return;
    }
    let loader = "#define _GNU_SOURCE\n\
        #include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>\n\
        int clGetPlatformIDs(unsigned n, void **p, unsigned *c) {\n\
            char *list = getenv(\"OCL_ICD_FILENAMES\");\n\
            int found = list && strstr(list, \"second\");\n\
            if (list && strchr(list, ':')) *strchr(list, ':') = 0;\n\
            if (!found) return -1001;\n\
            return ((typeof(&clGetPlatformIDs))dlsym(RTLD_NEXT, \"clGetPlatformIDs\"))(n, p, c); }";
    let library = plant("cli-list", loader, true);
    let place = cache();
    let output = run(
        place.path(),
        &["--library", library.path.to_str().unwrap(), "--device", "portable computing"],
        &[("OCL_ICD_FILENAMES", "first:second")],
    );
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("compiled in a child process"), "{said}");
    assert!(!said.contains("compiled here"), "{said}");
}

/// Two drivers behind one loader; the process that compiles takes the device that was chosen.
/// Oclgrind keeps its queues without a lock, against the standard's thread safety (appendix A.2),
/// so an answer on it may crash once workers upload: only what was opened counts there.
#[test]
fn the_compiler_s_process_chooses_the_same_of_two_drivers() {
    const OCLGRIND: &str = "/usr/lib/oclgrind/liboclgrind-rt-icd.so";
    if !has_pocl() || !Path::new(OCLGRIND).exists() {
        eprintln!("NOT CHECKED: there are no two drivers");
        return;
    }
    let vendors = cache();
    std::fs::write(vendors.path().join("a.icd"), "libpocl.so.2\n").unwrap();
    std::fs::write(vendors.path().join("b.icd"), format!("{OCLGRIND}\n")).unwrap();
    let place = cache();
    let drivers = [("OCL_ICD_VENDORS", vendors.path().to_str().unwrap())];
    for (device, name) in [("oclgrind", "Oclgrind"), ("portable computing", "pthread")] {
        let output = run(place.path(), &["--device", device], &drivers);
        let said = text(&output.stderr);
        assert!(output.status.success() || device == "oclgrind", "{said}");
        let chosen = format!("computing on {name}");
        assert!(said.contains(&chosen) && said.contains("compiled in a child process"), "{said}");
        assert!(!said.contains("compiled here"), "{said}");
    }
}

#[test]
fn memory_is_measured_in_every_mode() {
    if !has_pocl() {
        return;
    }
    let place = cache();
    let arguments = ["bench", "memory", "--device", "portable computing", "--json"];
    let sizes = ["--sizes", "64KiB,1MiB", "--units", "3"];
    let output = command(place.path(), &[&arguments[..], &sizes].concat()).output().unwrap();
    let report = json(&output);
    assert_eq!(report["bench"], "memory");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(row["allocate_ms"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["fill_gb_per_s"].as_f64().unwrap() > 0.0, "{row}");
        let is_copied = row["memory"] == "device buffers";
        assert_eq!(row["to_device_gb_per_s"].is_f64(), is_copied, "{row}");
    }
}

/// Commands by the device's own times, on the clock of all else: one after the other, each behind
/// the gates that it waited for, all between the question and its answer.
#[test]
fn a_restore_s_commands_are_traced_by_the_device_s_clock() {
    if !has_pocl() {
        return;
    }
    let place = cache();
    let trace = place.path().join("trace.json");
    let model = ["bench", "ttft", "-m", model_text(), "--contexts", "600", "--rounds", "1"];
    let device = ["--backend", "opencl", "--device", "portable computing", "--levels", "25"];
    let to = ["--systems", "mzcache", "--json", "--trace", trace.to_str().unwrap()];
    let output = command(place.path(), &[&model[..], &device, &to].concat()).output().unwrap();
    assert_eq!(json(&output)["bench"], "ttft");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let track = |name: &str| {
        let found = events.iter().find(|event| event["args"]["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {trace}"))["tid"].clone()
    };
    let queue = track("accelerator queue");
    // Of each slice its name, its start and its end.
    let slices = |tid: &Value| -> Vec<(String, f64, f64)> {
        let own = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == *tid);
        own.map(|event| {
            let start = event["ts"].as_f64().unwrap();
            let name = event["name"].as_str().unwrap().to_owned();
            (name, start, start + event["dur"].as_f64().unwrap())
        })
        .collect()
    };
    let answer = slices(&track("caller")).remove(0);
    let commands = slices(&queue);
    let layers: Vec<&str> =
        commands.iter().filter_map(|(name, ..)| name.strip_prefix("Attention ")).collect();
    assert_eq!(layers, ["0", "1", "2", "3"]);
    // Nanoseconds are printed as fractions of microseconds.
    const ROUNDING: f64 = 1e-3;
    for pair in commands.windows(2) {
        assert!(pair[0].2 <= pair[1].1 + ROUNDING, "{pair:?}");
    }
    let (first, last) = (&commands[0], &commands[commands.len() - 1]);
    assert!(first.1 >= answer.1 && last.2 <= answer.2 + ROUNDING, "{answer:?}: {commands:?}");
    assert!(commands.iter().all(|(_, start, end)| end > start), "{commands:?}");
    let mut gates = 0;
    for end in events.iter().filter(|event| event["ph"] == "f") {
        let start = events.iter().find(|event| event["ph"] == "s" && event["id"] == end["id"]);
        let opened = start.unwrap()["ts"].as_f64().unwrap();
        assert!(end["tid"] == queue && opened <= end["ts"].as_f64().unwrap(), "{end}");
        gates += 1;
    }
    assert!(gates > 0, "{trace}");
}
