//! Attention on NVIDIA's matrix units.

use super::attention::{
    Case, Data, ERROR_HALF_MAX, NUMBERS, Numbers, check, chunks, query_block, wanted,
};
use super::device::{Device, read_floats};
use mzcache::kernel::opencl::{ATTENTION_MATRIX, AttentionMatrix};

/// What `stream` does on matrix units, which round queries and weights to half precision. Twice,
/// since the counters of the first launch must be good for the second.
fn matrix(device: &Device, case: Case) {
    let build = AttentionMatrix::new(case.shape()).unwrap();
    let mut data = Data::of(&case);
    let q = query_block(device, &mut data, true);
    let chunks = device.chunks(&chunks(&case, &data));
    let shape = case.shape();
    let first_seen = match case.window {
        0 => 0,
        window => (case.context - case.queries + 1).saturating_sub(window),
    };
    let [first_seen, end] = [first_seen, case.context].map(|value| u32::try_from(value).unwrap());
    let split = build.split(first_seen, end, case.groups);
    let (values, pairs) = build.scratch(split.splits);
    let counters = device.floats(&vec![0.0; build.counters()]);
    for _ in 0..2 {
        let partial = device.floats(&vec![f32::NAN; values]);
        let state = device.floats(&vec![f32::NAN; 2 * pairs]);
        let y = device.floats(&vec![f32::NAN; data.q.len()]);
        device
            .call(ATTENTION_MATRIX, &build.macros())
            .memory(&q)
            .table(&chunks)
            .memory(&partial)
            .memory(&state)
            .memory(&counters)
            .memory(&y)
            .u32(shape.heads)
            .u32(shape.kv_heads)
            .u32(shape.queries)
            .u32(case.context - case.queries)
            .u32(case.window)
            .f32(case.softcap)
            .u32(split.splits)
            .u32(split.warp_steps)
            .pool(&chunks)
            .launch(build.launch(split.splits));
        check(&case, &read_floats(&y), &wanted(&case, &data), ERROR_HALF_MAX);
    }
}

fn matrix_cases(device: &Device) {
    for head_dim in [64, 128] {
        let case = Case::new(4, 2, head_dim);
        for (queries, context) in
            [(1, 1), (1, 300), (8, 257), (8, 3000), (16, 1024), (3, 130 * 256)]
        {
            for groups in [1, 8, 40, 132] {
                matrix(device, Case { groups, ..case.at(queries, context) });
            }
        }
        for (queries, context, window) in [(5, 900, 300), (1, 2000, 1), (16, 700, 256)] {
            matrix(device, Case { window, softcap: 5.0, ..case.at(queries, context) });
        }
        // One row, whole blocks of 16, and more blocks than a work-group takes.
        for group in [1, 4, 8] {
            for queries in [1, 4, 16] {
                matrix(device, Case::new(2 * group, 2, head_dim).at(queries, 700));
            }
        }
        for numbers in NUMBERS {
            matrix(device, Case { numbers, ..case.at(8, 700) });
        }
    }
    for numbers in [Numbers::Real, Numbers::RealSharp] {
        matrix(device, Case { numbers, ..Case::new(9, 3, 64).at(4, 512) });
    }
}

#[test]
fn matrix_units_are_as_good() {
    let Some(device) = Device::any() else { return };
    if device.is_nvidia() {
        matrix_cases(&device);
    } else {
        eprintln!("NOT CHECKED: the device has no matrix units");
    }
}
