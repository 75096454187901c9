//! `mzcache bench memory`: what the shared buffers of an accelerator cost, in each of its memory
//! modes, step by step as an eviction and a restore take them.
//!
//! A unit is allocated (zeroed, as the runtime gets it), filled by the host, handed to the device,
//! handed back, and freed. Times are medians over the units, each waited for.

use super::Report;
use super::device::Device;
use crate::amount::Size;
use crate::cli::BenchMemory as Options;
use crate::commands::Console;
use crate::failure::{Failure, Outcome};
use mzcache::port::Use;
use mzcache::port::buffers::Buffers;
use mzcache::port::opencl::MemoryMode;
use serde::Serialize;
use std::time::Instant;

const STEPS: usize = 5;
/// What the steps are called, in the order in which they are made.
const NAMES: [&str; STEPS] = ["allocate", "fill", "to device", "to host", "free"];

#[derive(Serialize)]
struct Row {
    memory: &'static str,
    unit_bytes: u64,
    allocate_ms: f64,
    fill_ms: f64,
    to_device_ms: f64,
    to_host_ms: f64,
    free_ms: f64,
    fill_gb_per_s: f64,
    /// Only where bytes are copied.
    to_device_gb_per_s: Option<f64>,
    to_host_gb_per_s: Option<f64>,
}

pub fn run(options: &Options, console: &mut Console<'_>) -> Outcome<()> {
    let device = Device::open(&options.accelerator)?;
    console.note(&format!("measuring on {}", device.name()));
    let wanted = options.accelerator.mode()?;
    let mut rows = Vec::new();
    for mode in MemoryMode::ALL {
        if !mode.is_offered(device.info()) || wanted.is_some_and(|wanted| wanted != mode) {
            continue;
        }
        for size in &options.sizes {
            rows.push(measure(&device, mode, *size, usize::from(options.units))?);
        }
    }
    if options.json {
        return console.print_json(&Report { bench: "memory", machine: device.name(), rows });
    }
    console.print(&table(&device.name(), &rows))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for display")]
fn measure(device: &Device, mode: MemoryMode, size: Size, units: usize) -> Outcome<Row> {
    let too_large = |_| Failure::usage(format!("a unit of {size} is too large"));
    let bytes = usize::try_from(size.0).map_err(too_large)?;
    let buffers = device.buffers(mode, units)?;
    let mut times = [const { Vec::new() }; STEPS];
    // The first round warms up.
    for round in 0..2 {
        for slot in 0..units {
            let steps = unit(device, &buffers, slot, bytes)?;
            if round > 0 {
                times.iter_mut().zip(steps).for_each(|(times, step)| times.push(step));
            }
        }
        // All are freed together, as an eviction frees them.
        for slot in 0..units {
            let start = Instant::now();
            buffers.release(slot)?;
            if round > 0 {
                times[STEPS - 1].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let [allocate_ms, fill_ms, to_device_ms, to_host_ms, free_ms] = times.map(median);
    let rate = |ms: f64| bytes as f64 / ms.max(1e-6) / 1e6;
    let is_copied = mode == MemoryMode::Buffers;
    Ok(Row {
        memory: mode.name(),
        unit_bytes: size.0,
        allocate_ms,
        fill_ms,
        to_device_ms,
        to_host_ms,
        free_ms,
        fill_gb_per_s: rate(fill_ms),
        to_device_gb_per_s: is_copied.then(|| rate(to_device_ms)),
        to_host_gb_per_s: is_copied.then(|| rate(to_host_ms)),
    })
}

/// All steps of one unit but the last, in ms.
fn unit(
    device: &Device,
    buffers: &Buffers,
    slot: usize,
    bytes: usize,
) -> Outcome<[f64; STEPS - 1]> {
    let mut last = Instant::now();
    let mut step = || {
        let start = std::mem::replace(&mut last, Instant::now());
        (last - start).as_secs_f64() * 1e3
    };
    buffers.allocate(slot, Use::Weights, bytes, bytes)?;
    let allocated = step();
    let mut part = buffers.part(slot, 0)?;
    part.bytes().fill(1);
    part.finish()?;
    let filled = step();
    buffers.publish(slot)?;
    drop(buffers.lease_device(slot)?);
    device.finish()?;
    let to_device = step();
    drop(buffers.lease(slot)?);
    Ok([allocated, filled, to_device, step()])
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn table(machine: &str, rows: &[Row]) -> String {
    let mut text = format!("{machine}\n{:<28} {:>10}", "ms (and GB/s)", "unit");
    for name in NAMES {
        text.push_str(&format!(" {name:>15}"));
    }
    text.push('\n');
    let timed = |ms: f64, rate: Option<f64>| match rate {
        Some(rate) => format!("{ms:.3} ({rate:.1})"),
        None => format!("{ms:.3}"),
    };
    for row in rows {
        text.push_str(&format!(
            "{:<28} {:>10} {:>15.3} {:>15} {:>15} {:>15} {:>15.3}\n",
            row.memory,
            Size(row.unit_bytes).to_string(),
            row.allocate_ms,
            timed(row.fill_ms, Some(row.fill_gb_per_s)),
            timed(row.to_device_ms, row.to_device_gb_per_s),
            timed(row.to_host_ms, row.to_host_gb_per_s),
            row.free_ms,
        ));
    }
    text
}
