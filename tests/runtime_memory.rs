//! Memory as the kernel counts it. A program of its own: the figures are those of the whole
//! process.

#![cfg(feature = "host")]

mod manager;

use manager::*;
use mzcache::port::Meter;
use mzcache::port::linux::ProcessMeter;
use mzcache::units::{ByteCount, CodecId, TokenCount};

fn resident_bytes() -> i64 {
    i64::try_from(ProcessMeter.resident_bytes().unwrap()).unwrap()
}

#[test]
fn memory_falls_by_what_the_report_says_and_a_hundred_cycles_leave_it_where_it_was() {
    for codec in [CodecId::Q8, CodecId::Raw] {
        cycles(codec);
    }
}

fn cycles(codec: CodecId) {
    let fixture = open("cycles", &Setup { codec, ..Setup::default() });
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let before = resident_bytes();
    let report = runtime.evict(ByteCount::new(total / 2), None).unwrap();
    let fell = before - resident_bytes();
    let freed = i64::try_from(report.booked.freed.get()).unwrap();
    assert!((fell - freed).abs() < freed / 50, "{fell} {report:?}");
    runtime.restore().unwrap();
    let settled = resident_bytes();
    let mut seed = 1u64;
    for _ in 0..100 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        evict_to(runtime, (seed >> 33) % 101, total);
        runtime.restore().unwrap();
        runtime.check().unwrap();
        if codec == CodecId::Raw {
            assert!(kv_values(runtime) == expected_values());
        }
    }
    assert!(runtime.tokens() == TokenCount::new(CONTEXT));
    let drift = resident_bytes() - settled;
    assert!(drift.abs() * 100 < settled, "{drift} of {settled}");
}
