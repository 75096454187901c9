//! A runtime whose shared buffers are all a driver's: evicted and restored, every byte as it was.

use crate::driver::{World, under};
use crate::manager::*;
use crate::scenario::say;
use mzcache::port::dma_heap::DmaHeapMemory;
use mzcache::port::{Meter, SharedMemory};
use mzcache::units::{ByteCount, CodecId};

fn life(name: &str, memory: &'static (impl SharedMemory + Meter)) {
    for codec in [CodecId::Raw, CodecId::Q8] {
        let setup = Setup { codec, memory: Some(memory), meter: Some(memory), ..Setup::default() };
        let fixture = open(name, &setup);
        pass(&fixture, CONTEXT).unwrap();
        let runtime = &fixture.runtime;
        let total = total(runtime);
        for percent in [100, 60, 30, 0, 80, 0] {
            evict_to(runtime, percent, total);
            runtime.restore().unwrap();
            runtime.check().unwrap();
            // The other one rounds.
            assert!(codec != CodecId::Raw || kv_values(runtime) == expected_values());
        }
        let report = runtime.evict(ByteCount::new(total), None).unwrap();
        let (measured, freed) = (report.measured.unwrap(), report.booked.freed.get());
        let freed = i64::try_from(freed).unwrap();
        assert!((measured - freed).abs() < freed / 20, "{measured} {freed}");
        runtime.restore().unwrap();
        pass(&fixture, 1).unwrap();
        runtime.evict(ByteCount::new(total), None).unwrap();
        say(format!("{codec:?}"));
        drop(fixture);
    }
}

pub fn on_kgsl() {
    life("kgsl-life", leak(crate::objects::open().unwrap()));
}

pub fn on_dma_bufs() {
    life("dma-buf-life", leak(DmaHeapMemory::open().unwrap()));
}

#[test]
fn a_runtime_lives_on_kgsl() {
    for is_coherent in [true, false] {
        let (outcome, report) = under(World { is_coherent, ..World::kgsl() }, "life");
        outcome.assert_said(&["Raw", "Q8"]);
        assert!(report.count("GPUOBJ_ALLOC") > 200);
        assert_eq!(report.count("GPUOBJ_ALLOC"), report.count("GPUOBJ_FREE"));
        // No device was there.
        assert_eq!(report.count("GPUOBJ_SYNC"), 0);
    }
}

#[test]
fn a_runtime_lives_on_dma_bufs() {
    let (outcome, report) = under(World::dma_heap(), "dma-buf life");
    outcome.assert_said(&["Raw", "Q8"]);
    assert!(report.count("direct transfer") > 100);
    assert_eq!(report.count("to host"), report.count("to device"));
}
