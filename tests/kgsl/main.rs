//! Shared buffers from KGSL, dma-heaps and ION, on drivers that another process plays.
#![cfg(feature = "host")]

#[path = "../manager/mod.rs"]
mod manager;
#[path = "../refusing/mod.rs"]
mod refusing;
#[path = "../support/scenario.rs"]
mod scenario;
#[path = "../support/mod.rs"]
mod support;

mod dma_bufs;
mod driver;
mod faults;
mod life;
mod objects;
#[cfg(feature = "cli")]
mod program;
mod tables;

use scenario::SCENARIO;

#[test]
#[ignore = "started by the other tests, under their driver"]
fn scenario() {
    // A scenario that never ends is a failure.
    // SAFETY: an alarm only ends the process.
    unsafe { libc::alarm(300) };
    match std::env::var(SCENARIO).expect("started by the other tests").as_str() {
        "objects" => objects::lives(),
        "turns" => objects::turns(),
        "meter" => objects::meter(),
        "faults" => faults::attempts(),
        "quiet" => objects::quiet(),
        "quiet dma-bufs" => dma_bufs::quiet(),
        "life" => life::on_kgsl(),
        "dma-bufs" => dma_bufs::lives(),
        "dma-buf turns" => dma_bufs::turns(),
        "imported" => dma_bufs::imported(),
        "dma-buf faults" => faults::attempts_on_dma_bufs(),
        "import faults" => faults::attempts_to_import(),
        "kgsl tables" => tables::on_kgsl(),
        "dma-buf tables" => tables::on_dma_bufs(),
        "dma-buf life" => life::on_dma_bufs(),
        other => panic!("no scenario {other}"),
    }
}
