//! Small cases under Oclgrind, which watches every access. It runs in a child process, because its
//! settings are read from the environment and its findings go to a file.

use super::attention::{Case, stream, tile};
use super::device::Device;
use super::layer;
use super::products::{Case as Product, multiply};
use super::values::Random;
use mzcache::kernel::opencl::{Finish, Source, Weights};
use std::process::Command;

/// Runs a test of this file under Oclgrind; `None` where that is not installed.
fn findings(test: &str) -> Option<String> {
    if Device::oclgrind().is_none() {
        assert!(std::env::var_os("MZ_CI").is_none(), "oclgrind is not installed");
        eprintln!("NOT CHECKED: oclgrind is not installed");
        return None;
    }
    let name = format!("{test}-{}.txt", std::process::id());
    let log = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let name = format!("checked::{test}");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--test-threads=1"])
        .env("OCLGRIND_DATA_RACES", "1")
        .env("OCLGRIND_LOG", &log)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    let found = std::fs::read_to_string(&log).unwrap_or_default();
    let _absent = std::fs::remove_file(&log);
    Some(found)
}

#[test]
fn kernels_touch_only_their_memory_and_have_no_races() {
    let Some(found) = findings("all_kernels") else { return };
    assert_eq!(found, "");
}

#[test]
fn the_checker_sees_planted_faults() {
    let Some(found) = findings("planted_faults") else { return };
    assert!(found.contains("Invalid write"), "{found}");
    assert!(found.contains("data race"), "{found}");
}

#[test]
#[ignore = "started by kernels_touch_only_their_memory_and_have_no_races"]
fn all_kernels() {
    let device = Device::oclgrind().unwrap();
    stream(&device, Case { groups: 2, ..Case::new(2, 1, 32).at(2, 259) });
    stream(&device, Case { window: 20, softcap: 4.0, ..Case::new(3, 1, 32).at(1, 300) });
    stream(&device, Case { groups: 2, ..Case::new(2, 2, 40).at(1, 20) });
    tile(&device, Case::new(2, 2, 32).at(17, 40));
    tile(&device, Case { window: 9, ..Case::new(1, 1, 80).at(18, 270) });
    for format in Weights::ALL {
        let columns = 64usize.next_multiple_of(format.block_values());
        multiply(&device, Product::new(format, 17, columns, 3));
        multiply(&device, Product::new(format, 5, columns, 17));
    }
    let case = Product { has_bias: true, ..Product::new(Weights::Q8_0, 0, 64, 3) };
    for (tokens, has_norm) in [(3, true), (18, false)] {
        let case = Product { tokens, has_norm, ..case };
        multiply(&device, Product { rows: [9, 3, 3], ..case });
        multiply(&device, Product { rows: [5, 5, 0], finish: Finish::Pair, ..case });
        multiply(&device, Product { rows: [5, 0, 0], finish: Finish::Gate, ..case });
        multiply(&device, Product { rows: [5, 0, 0], finish: Finish::Add, ..case });
    }
    layer::rms_norm(&device, 2, 300);
    let heads = layer::Heads::new(32, 250);
    layer::heads(&device, heads);
    layer::heads(&device, layer::Heads { is_half: true, has_norms: false, ..heads });
    let queries = layer::Energy { heads: 6, kv_heads: 2, head_dim: 40, tokens: 9, is_half: false };
    layer::energy(&device, queries);
    layer::energy(&device, layer::Energy { tokens: 1, is_half: true, ..queries });
    layer::argmax(&device);
}

#[test]
#[ignore = "started by the_checker_sees_planted_faults"]
fn planted_faults() {
    let device = Device::oclgrind().unwrap();
    const FAULTS: Source = Source {
        name: c"faults",
        pieces: &["__kernel void faults(__global float *x) {\n\
            x[get_global_id(0) + 1] = 1.0f; x[0] = get_global_id(0); }"],
    };
    let block = device.floats(&Random::new(1).normals(8, 1.0));
    device.call(FAULTS, &[]).memory(&block).items([8, 1, 1]);
}
