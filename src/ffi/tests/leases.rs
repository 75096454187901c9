//! Leases that end twice, not at all, or in the way of others; and calls from several threads.

use super::super::leases::*;
use super::super::types::*;
use super::super::*;
use super::world::*;
use crate::units::{ChunkId, ChunkIndex, LayerIndex};
use std::thread;

const BAD_STATE: c_int = MzErr::BadState as c_int;
const LEASED: c_int = MzErr::Leased as c_int;

#[test]
fn a_lease_ends_once() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    assert_eq!(world.call_with(mz_release_weights, 1), BAD_STATE);
    let first = world.weights(1).unwrap();
    let second = world.weights(1).unwrap();
    assert_eq!((first.data, first.bytes), (second.data, second.bytes));
    assert_eq!((first.index, first.bytes as u64), (1, UNIT_BYTES));
    assert_eq!(first.token, first.data.addr() as u64);
    assert_eq!(world.call_with(mz_release_weights, 1), MZ_OK);
    assert_eq!(world.call_with(mz_release_weights, 1), MZ_OK);
    assert_eq!(world.call_with(mz_release_weights, 1), BAD_STATE);

    assert_eq!(world.release_tail(0, TOKENS), BAD_STATE);
    world.tail(0, TOKENS).unwrap();
    // Another kind of lease, or another chunk's.
    assert_eq!(world.release_kv(0, CHUNKS), BAD_STATE);
    assert_eq!(world.release_tail(1, TOKENS), BAD_STATE);
    assert_eq!(world.release_tail(0, TOKENS), MZ_OK);
    assert_eq!(world.release_tail(0, TOKENS), BAD_STATE);
    assert_eq!(world.evict().leased, 0);
}

#[test]
fn a_lease_for_writing_is_not_ended_as_one_for_reading() {
    let world = World::open();
    assert_eq!(world.call_with(mz_restore_begin, 10), MZ_OK);
    world.tail(0, 9).unwrap();
    assert_eq!(world.release_kv(0, 1), BAD_STATE);
    world.kv(0, 1).unwrap();
    assert_eq!(world.release_kv(0, 1), MZ_OK);
    assert_eq!(world.release_kv(0, 1), BAD_STATE);
    assert_eq!(world.release_tail(0, 9), MZ_OK);
}

#[test]
fn chunks_that_cannot_all_be_leased_are_not_leased_at_all() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    // SAFETY: the handle is open.
    let call = unsafe { Call::enter(world.handle.cast()) }.unwrap();
    let (layer, chunk) = (LayerIndex::new(0), ChunkIndex::new(1));
    let taken = call.object().runtime().kv_mut(ChunkId { layer, chunk }).unwrap();
    assert_eq!(world.kv(0, CHUNKS).unwrap_err(), (err(MzErr::Cancelled), CHUNKS));
    drop(taken);
    drop(call);
    assert_eq!(world.evict().leased, 0);
    world.check_all();
}

#[test]
fn chunks_are_released_all_or_none() {
    let world = World::filled();
    world.kv(0, CHUNKS).unwrap();
    assert_eq!(world.release_kv(0, 4), BAD_STATE);
    assert_eq!(world.release_kv(1, 1), BAD_STATE);
    assert_eq!(world.release_kv(0, 1), MZ_OK);
    assert_eq!(world.release_kv(0, CHUNKS), BAD_STATE);
    assert_eq!(world.evict().leased, 2);
    assert_eq!(world.call(mz_release_all), MZ_OK);
    assert_eq!(world.evict().leased, 0);
    assert_eq!(world.live_regions(), 0);
    world.check_all();
}

#[test]
fn too_little_room_for_spans_says_how_much_is_needed_and_leases_nothing() {
    let world = World::filled();
    let too_small = err(MzErr::MemoryTooSmall);
    for room in 0..CHUNKS {
        assert_eq!(world.kv(0, room).unwrap_err(), (too_small, CHUNKS));
    }
    assert_eq!(world.evict().leased, 0);
    assert_eq!(world.call_with(mz_truncate, 0), MZ_OK);
    assert!(world.kv(0, 0).unwrap().is_empty());
    assert_eq!(world.release_kv(0, 0), MZ_OK);
}

#[test]
fn a_chunk_taken_for_writing_is_read_at_the_same_place() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    let tail = world.tail(0, TOKENS).unwrap();
    let spans = world.kv(0, 8).unwrap();
    assert_eq!(spans.len() as u32, CHUNKS);
    let indices: std::vec::Vec<u32> = spans.iter().map(|span| span.index).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert!(spans.iter().all(|span| span.bytes == CHUNK_BYTES));
    assert_eq!(spans[2].data, tail.data);
    // The chunk stays taken until both have ended.
    assert_eq!(world.release_tail(0, TOKENS), MZ_OK);
    assert_eq!(world.tail(0, TOKENS).unwrap().data, tail.data);
    assert_eq!(world.release_kv(0, CHUNKS), MZ_OK);
    assert_eq!(world.release_tail(0, TOKENS), MZ_OK);
    // Reading first: others may read too, so nobody writes.
    world.kv(0, 8).unwrap();
    assert_eq!(world.tail(0, TOKENS).unwrap_err(), LEASED);
    assert_eq!(world.release_kv(0, CHUNKS), MZ_OK);
    world.check_all();
}

#[test]
fn leases_keep_units_and_the_handle() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    world.weights(2).unwrap();
    world.tail(1, TOKENS).unwrap();
    let report = world.evict();
    assert_eq!((report.stop, report.leased), (MzStop::Exhausted as u32, 2));
    assert_eq!(report.error, MZ_OK);
    assert_eq!(world.live_regions(), 2);
    assert_eq!(world.close(), LEASED);
    assert_eq!(world.last().code, LEASED);
    assert_eq!(world.call_with(mz_truncate, 0), LEASED);
    assert_eq!(world.call_with(mz_truncate, 513), MZ_OK);
    assert_eq!(world.call(mz_release_all), MZ_OK);
    assert_eq!(world.close(), MZ_OK);
    assert_eq!(world.close(), BAD_STATE);
    assert_eq!(world.live_regions(), 0);
}

#[test]
fn an_eviction_between_lease_and_commit_cancels_the_pass() {
    let world = World::filled();
    assert_eq!(world.call_with(mz_restore_begin, TOKENS + 300), MZ_OK);
    assert_eq!(world.weights(0).unwrap().index, 0);
    assert_eq!(world.call(mz_release_all), MZ_OK);
    world.evict();
    assert_eq!(world.call_with(mz_restore_end, TOKENS + 300), err(MzErr::Cancelled));
    world.check_all();
}

/// A handle that may go to other threads, as it may in C.
#[derive(Clone, Copy)]
struct Shared(*mut MzHandle);
// SAFETY: the functions may be called from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn poll(&self) -> c_int {
        // SAFETY: the world outlives its threads.
        unsafe { mz_restore_poll(self.0) }
    }

    fn evict(&self, bytes: u64) -> c_int {
        // SAFETY: as above; a null report is allowed.
        unsafe { mz_evict(self.0, bytes, 0, core::ptr::null_mut()) }
    }
}

#[test]
fn spare_threads_do_what_their_roles_allow_and_no_more() {
    const ALLOCATE: u32 = MzRole::Allocate as u32;
    const OTHERS: u32 = MzRole::Read as u32 | MzRole::Unpack as u32;
    let world = World::filled();
    world.evict();
    for unknown in [8, 15, 256, u32::MAX] {
        assert_eq!(world.call_with(mz_restore_poll_roles, unknown), err(MzErr::Unsupported));
    }
    assert_eq!(world.last().code, err(MzErr::Unsupported));
    assert_eq!(world.call_with(mz_restore_begin, TOKENS), MZ_OK);
    let poll = |roles| {
        let mut count = 0;
        while world.call_with(mz_restore_poll_roles, roles) == 1 {
            count += 1;
        }
        count
    };
    assert_eq!(poll(0), 0);
    assert_eq!((poll(OTHERS), world.live_regions()), (0, 0), "there is nothing to fill yet");
    assert!(poll(ALLOCATE) > 0 && world.live_regions() > 0);
    assert!(poll(OTHERS) > 0);
    while poll(ALLOCATE) + poll(OTHERS) > 0 {}
    assert_eq!(world.call(mz_restore), MZ_OK);
    world.check_all();
}

#[test]
fn spare_threads_poll_while_one_computes_and_one_evicts() {
    let world = World::filled();
    let shared = Shared(world.handle);
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Acquire);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done() {
                    assert!(shared.poll() >= 0);
                }
            });
        }
        scope.spawn(|| {
            let mut bytes = 1u64;
            while !is_done() {
                bytes = bytes.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                assert_eq!(shared.evict((bytes >> 40) % 200_000), MZ_OK);
                thread::yield_now();
            }
        });
        let (mut passes, mut cancelled) = (0, 0);
        while passes + cancelled < 200 || passes == 0 {
            match one_pass(&world) {
                Ok(()) => passes += 1,
                Err(error) => {
                    assert_eq!(error, err(MzErr::Cancelled), "{}", what(&world.last()));
                    assert_eq!(world.call(mz_release_all), MZ_OK);
                    cancelled += 1;
                }
            }
        }
        done.store(true, std::sync::atomic::Ordering::Release);
    });
    world.check_all();
}

fn one_pass(world: &World) -> Result<(), c_int> {
    let ok = |result| if result == MZ_OK { Ok(()) } else { Err(result) };
    ok(world.call_with(mz_restore_begin, TOKENS))?;
    for layer in 0..LAYERS {
        world.weights(layer)?;
        world.kv(layer, 8).map_err(|(error, _)| error)?;
        ok(world.release_kv(layer, CHUNKS))?;
        ok(world.call_with(mz_release_weights, layer))?;
    }
    ok(world.call_with(mz_restore_end, TOKENS))
}

#[test]
fn a_handle_is_not_closed_under_a_running_call() {
    let world = World::filled();
    world.evict();
    let shared = Shared(world.handle);
    assert_eq!(world.call_with(mz_restore_begin, TOKENS), MZ_OK);
    thread::scope(|scope| {
        let door = world.model.door.lock().unwrap();
        let before = *world.model.readers.lock().unwrap();
        scope.spawn(move || while shared.poll() > 0 {});
        while *world.model.readers.lock().unwrap() == before {
            thread::yield_now();
        }
        assert_eq!(world.close(), BAD_STATE);
        drop(door);
    });
    world.check_all();
    assert_eq!(world.close(), MZ_OK);
}
