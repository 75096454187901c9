//! Nothing allocates or starts threads after open: evictions, restores and passes where both are
//! refused.

#![cfg(feature = "host")]

mod manager;
mod refusing;

use manager::*;
use mzcache::units::{ByteCount, CodecId, Tag, TokenCount};
use refusing::{THREADS, armed, sees_one_call};

fn evict_and_restore(name: &str, setup: &Setup) {
    let fixture = open(name, setup);
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let calls = armed(|| {
        for percent in [60, 0, 30] {
            evict_to(runtime, percent, total);
            // New chunks are added on the way: the context passes a chunk's end.
            pass(&fixture, 100).unwrap();
        }
        runtime.truncate(TokenCount::new(CONTEXT)).unwrap();
        runtime.evict(ByteCount::new(total / 2), None).unwrap();
        runtime.restore().unwrap();
        runtime.repin();
        runtime.restore().unwrap();
        runtime.checkpoint(Tag::EMPTY, None).unwrap();
        runtime.stats();
    });
    assert_eq!(calls, 0);
    if setup.codec == CodecId::Raw {
        assert!(kv_values(runtime) == expected_values());
    }
}

/// One test, since the allocator is the whole process's.
#[test]
fn evict_restore_and_pass_allocate_nothing_and_start_no_thread() {
    sees_one_call();
    for codec in CodecId::ALL {
        let setup = || Setup { codec, threads: Some(&THREADS), ..Setup::default() };
        let mut workers = setup().workers;
        workers[0].core = Some(0);
        // There is none of that number.
        workers[1].core = Some(1000);
        evict_and_restore("no-alloc-threads", &Setup { workers, ..setup() });
        let workers = Vec::new();
        evict_and_restore("no-alloc-inline", &Setup { workers, ..setup() });
    }
}
