//! Evicting and restoring a session on an accelerator leaves the process's memory where it was.
//!
//! The other tests wait for the device meanwhile, so that nothing else changes the numbers.

use crate::device::{MODES, greedy, open, platform};
use crate::models::oracle;
use mzcache::port::Meter;
use mzcache::port::linux::ProcessMeter;
use mzcache::units::{ByteCount, CodecId};

const CYCLES: usize = 200;
/// Drivers keep some memory for their own books.
const TOLERANCE: u64 = 4 << 20;

#[test]
fn two_hundred_cycles_leave_the_memory_where_it_was() {
    let Some(platform) = platform() else { return };
    for mode in MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let oracle = oracle("llama.json");
        let mut session = open(&accelerator, "llama", CodecId::Raw, 2);
        let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
        session.append(context, 0).unwrap();
        let kept = session.tokens();
        let mut before = 0;
        for cycle in 0..CYCLES {
            session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
            let tokens = greedy(&mut session, question, 2).unwrap();
            assert_eq!(tokens, oracle.greedy[..2]);
            session.truncate(kept).unwrap();
            // The first ones touch memory of the driver's own.
            if cycle == 10 {
                before = ProcessMeter.resident_bytes().unwrap();
            }
        }
        let after = ProcessMeter.resident_bytes().unwrap();
        println!("{}: {before} bytes, then {after}", mode.name());
        assert!(after <= before + TOLERANCE, "{mode:?} went from {before} to {after}");
        session.runtime().check().unwrap();
    }
}
