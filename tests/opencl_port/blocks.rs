//! Devices, programs, kernels, queues and blocks.

use crate::support::*;
use mzcache::port::opencl::{Block, MemoryMode, WorkSize};

const ADD: &str = "kernel void add(global const float *a, global const float *b, \
    global float *c, uint n, float bias) { size_t i = get_global_id(0); \
    if (i < n) c[i] = a[i] + b[i] + bias; }";

const MODES: [MemoryMode; 3] = [MemoryMode::Fine, MemoryMode::Coarse, MemoryMode::Buffers];

#[test]
fn vectors_are_added_in_every_mode_through_both_shapes_of_library() {
    for path in [LOADER, DRIVER] {
        let Some(opened) = open_by(path) else { return };
        let mut kernel = kernel(&opened.context, ADD, c"add");
        for mode in MODES.into_iter().filter(|mode| mode.is_offered(opened.context.device())) {
            const N: usize = 1000;
            let block = || Block::new(&opened.context, &opened.queue, mode, N * 4).unwrap();
            let (mut a, mut b, c) = (block(), block(), block());
            let values: Vec<f32> = (0..N).map(|i| i as f32).collect();
            a.write(0, &bytes(&values)).unwrap();
            b.write(4, &bytes(&values[1..])).unwrap();
            kernel.set_memory(0, a.memory()).unwrap();
            kernel.set_memory(1, b.memory()).unwrap();
            kernel.set_memory(2, c.memory()).unwrap();
            kernel.set_value(3, N as u32).unwrap();
            kernel.set_value(4, 0.5f32).unwrap();
            let event = opened.queue.run_after(&kernel, WorkSize::linear(1024, 64), &[]).unwrap();
            let mut sums = vec![0; N * 4];
            c.read(0, &mut sums).unwrap();
            let expected: Vec<f32> = values.iter().map(|value| 2.0 * value + 0.5).collect();
            assert_eq!(floats(&sums), expected, "{mode:?} {path:?}");
            event.wait().unwrap();
            let times = event.times().unwrap();
            assert!(times.queued <= times.submitted);
            assert!(times.started <= times.ended);
        }
    }
}
