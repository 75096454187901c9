//! The whole manager over an accelerator's buffers: units are evicted and restored between passes
//! of the device, which sees what the host sees.

use crate::manager::{
    CONTEXT, Fixture, SHAPE, Setup, UNIT_BYTES, evict_to, expected_values, id, kv_values, leak,
    pass, total,
};
use crate::regions::memory;
use crate::support::{Opened, kernel, modes, open};
use mzcache::Code;
use mzcache::arena::Sizer;
use mzcache::port::DeviceRegion;
use mzcache::port::opencl::{Block, DeviceBuffers, Kernel, MemoryMode, WorkSize};
use mzcache::units::{CodecId, Kind, LayerIndex, TokenCount};

const SUM: &str = "kernel void sum(global const uchar *base, ulong offset, uint words, \
    global uint *out) { global const uint *unit = (global const uint *)(base + offset); \
    uint sum = 0; for (uint i = get_global_id(0); i < words; i += get_global_size(0)) \
    sum += unit[i]; atomic_add(out, sum); }";

struct Device {
    opened: Opened,
    kernel: Kernel,
    out: Block,
}

impl Device {
    fn new(opened: Opened, mode: MemoryMode) -> Device {
        let kernel = kernel(&opened.context, SUM, c"sum");
        let out = Block::new(&opened.context, &opened.queue, mode, 4).unwrap();
        Device { opened, kernel, out }
    }

    fn sum(&mut self, region: DeviceRegion, bytes: usize) -> u32 {
        self.out.write(0, &[0; 4]).unwrap();
        self.kernel.set_memory(0, region).unwrap();
        self.kernel.set_value(1, region.offset).unwrap();
        self.kernel.set_value(2, (bytes / 4) as u32).unwrap();
        self.kernel.set_memory(3, self.out.region()).unwrap();
        self.opened.queue.run(&self.kernel, WorkSize::linear(256, 64)).unwrap();
        let mut sum = [0; 4];
        self.out.read(0, &mut sum).unwrap();
        u32::from_ne_bytes(sum)
    }

    /// Looks at all units as compute does, at their gates, and compares with what the host sees.
    fn pass(&mut self, fixture: &Fixture) {
        let runtime = &fixture.runtime;
        runtime.begin_pass(runtime.tokens()).unwrap();
        let chunks = runtime.tokens().chunks();
        for layer in 0..SHAPE.layers {
            let weights = runtime.weights_on_device(LayerIndex::new(layer)).unwrap();
            let mut expected = vec![0; UNIT_BYTES as usize];
            expected_weights(fixture, layer, &mut expected);
            assert_eq!(self.sum(weights.region(), weights.bytes()), sum_of(&expected), "{layer}");
            drop(weights);
            runtime.wait(LayerIndex::new(layer), Kind::Kv).unwrap();
            for chunk in 0..chunks {
                let lease = runtime.kv_on_device(id(layer, chunk)).unwrap();
                let seen = self.sum(lease.region(), lease.bytes());
                drop(lease);
                let host = sum_of(&runtime.kv(id(layer, chunk)).unwrap());
                assert_eq!(seen, host, "{layer} {chunk}");
            }
        }
        runtime.finish_restore().unwrap();
    }
}

fn sum_of(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap()));
    words.fold(0, u32::wrapping_add)
}

/// A weight unit as the manager's fixture lays it out: the second half of its file's window first.
fn expected_weights(fixture: &Fixture, layer: u16, unit: &mut [u8]) {
    let start = usize::from(layer) * unit.len();
    let half = unit.len() / 2 / 4096 * 4096;
    unit[..UNIT_BYTES as usize - half]
        .copy_from_slice(&fixture.weights[start + half..start + UNIT_BYTES as usize]);
    unit[UNIT_BYTES as usize - half..].copy_from_slice(&fixture.weights[start..start + half]);
}

#[test]
fn the_device_sees_what_was_evicted_and_restored() {
    let Some(opened) = open() else { return };
    for mode in modes(&opened) {
        for codec in [CodecId::Raw, CodecId::Q8] {
            evict_and_restore(mode, codec);
        }
    }
}

fn evict_and_restore(mode: MemoryMode, codec: CodecId) {
    const REGIONS: usize = 7 + 6 * 16;
    let opened = open().unwrap();
    let mut sizer = Sizer::new();
    DeviceBuffers::size(&mut sizer, REGIONS).unwrap();
    let (context, queue) = (&opened.context, &opened.queue);
    let pool_bytes = 6 * 16 * SHAPE.chunk_bytes();
    let port =
        DeviceBuffers::new(&mut memory(&sizer), REGIONS, context, queue, mode, pool_bytes).unwrap();
    let setup = Setup { codec, memory: Some(leak(port)), ..Setup::default() };
    let fixture = crate::manager::open(&format!("opencl-{mode:?}-{codec:?}"), &setup);
    let mut device = Device::new(opened, mode);
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    device.pass(&fixture);
    for percent in [60, 0, 100, 30] {
        evict_to(runtime, percent, total);
        device.pass(&fixture);
        // The next tokens come from the host, as if the device had not been there.
        pass(&fixture, 3).unwrap();
        runtime.truncate(TokenCount::new(CONTEXT)).unwrap();
        if codec == CodecId::Raw {
            assert!(kv_values(runtime) == expected_values(), "{mode:?} {percent}");
        }
    }
    // A unit that the device uses stays.
    let weights = runtime.weights_on_device(LayerIndex::new(2)).unwrap();
    let chunk = runtime.kv_on_device_mut(id(1, 0)).unwrap();
    let report = runtime.evict(mzcache::units::ByteCount::new(total), None).unwrap();
    assert_eq!(report.booked.leased, 2);
    drop((weights, chunk));
    evict_to(runtime, 0, total);
    assert_eq!(runtime.stats().allocated_bytes, 0, "{mode:?}");
    for refused in [
        runtime.kv_on_device(id(1, 0)).err().unwrap(),
        runtime.kv_on_device_mut(id(1, 0)).err().unwrap(),
    ] {
        assert_eq!(refused.code, Code::Cancelled);
    }
}
