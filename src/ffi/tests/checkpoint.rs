//! A context that outlives its process, through C.

use super::super::checkpoint::*;
use super::super::raw::Table;
use super::super::types::*;
use super::world::*;
use crate::units::Tag;
use core::ffi::c_int;
use core::ptr;

const TAG: MzTag = MzTag { low: 3, high: 1 << 63 };

fn checkpoint(world: &World, tag: MzTag) -> (c_int, MzCheckpointReport) {
    let mut report = MzCheckpointReport {
        struct_bytes: MzCheckpointReport::own_bytes(),
        stop: 9,
        written_bytes: 0,
        elapsed_ns: 9,
        durable_tokens: 9,
        reserved: 9,
    };
    // SAFETY: the handle is open and the report lives.
    (unsafe { mz_checkpoint(world.handle, tag, 0, &mut report) }, report)
}

fn recover(world: &World, tag: MzTag) -> (c_int, MzRecovered) {
    let struct_bytes = MzRecovered::own_bytes();
    let mut recovered = MzRecovered { struct_bytes, tokens: 9, lost: 9, reserved: 9 };
    // SAFETY: the handle is open and the answer lives.
    (unsafe { mz_recover(world.handle, tag, &mut recovered) }, recovered)
}

/// The next process, on what the last one left.
fn next(last: &World) -> World {
    let next = World::open();
    next.swap.bytes.lock().unwrap().clone_from(&last.swap.bytes.lock().unwrap());
    next
}

#[test]
fn a_context_comes_back_in_the_next_process() {
    let world = World::filled();
    let (result, report) = checkpoint(&world, TAG);
    assert_eq!((result, report.stop), (MZ_OK, MzStop::Reached as u32));
    assert_eq!((report.durable_tokens, report.elapsed_ns, report.reserved), (TOKENS, 0, 0));
    assert!(report.written_bytes > 0);
    // SAFETY: the handle is open, and no report is wanted.
    assert_eq!(unsafe { mz_checkpoint(world.handle, TAG, 5, ptr::null_mut()) }, MZ_OK);
    let second = next(&world);
    let (result, recovered) = recover(&second, TAG);
    assert_eq!((result, recovered.tokens, recovered.lost), (MZ_OK, TOKENS, u32::MAX));
    assert_eq!(second.call_with(super::super::mz_restore_begin, TOKENS), MZ_OK);
    second.check_all();
    let (again, _) = recover(&second, TAG);
    assert_eq!(again, err(MzErr::BadState));
    let third = next(&world);
    // SAFETY: the handle is open, and no answer is wanted.
    assert_eq!(unsafe { mz_recover(third.handle, TAG, ptr::null_mut()) }, MZ_OK);
}

#[test]
fn refusals_say_what_is_wrong() {
    let world = World::open();
    assert_eq!(recover(&world, TAG).0, err(MzErr::BadMagic));
    world.fill();
    assert_eq!(checkpoint(&world, TAG).0, MZ_OK);
    let other = next(&world);
    assert_eq!(recover(&other, MzTag { low: 4, ..TAG }).0, err(MzErr::Mismatch));
    assert_eq!(what(&other.last()), "checkpoint tag 0");
    assert_eq!(recover(&other, TAG).0, MZ_OK);
    let damaged = next(&world);
    damaged.swap.bytes.lock().unwrap()[4096 + 50] ^= 1;
    assert_eq!(recover(&damaged, TAG).0, err(MzErr::Corrupt));
    let mut without = World::new();
    without.config.swap_file = 0;
    let ports = without.ports();
    assert_eq!(without.try_open(&ports).0, MZ_OK);
    assert_eq!(checkpoint(&without, TAG).0, err(MzErr::BadState));
    assert_eq!(recover(&without, TAG).0, err(MzErr::BadState));
    // Tables that are none have no effect.
    let mut report = checkpoint(&world, TAG).1;
    report.struct_bytes = 4;
    // SAFETY: the handle is open and the report lives.
    let result = unsafe { mz_checkpoint(world.handle, TAG, 0, &mut report) };
    assert_eq!(result, err(MzErr::InvalidArgument));
    let fresh = next(&world);
    let mut recovered = MzRecovered { struct_bytes: 5, tokens: 9, lost: 9, reserved: 9 };
    // SAFETY: as above.
    let result = unsafe { mz_recover(fresh.handle, TAG, &mut recovered) };
    assert_eq!((result, recovered.tokens), (err(MzErr::InvalidArgument), 9));
    assert_eq!(recover(&fresh, TAG).0, MZ_OK);
    // SAFETY: null is no handle.
    unsafe {
        let none = err(MzErr::InvalidArgument);
        assert_eq!(mz_checkpoint(ptr::null_mut(), TAG, 0, ptr::null_mut()), none);
        assert_eq!(mz_recover(ptr::null_mut(), TAG, ptr::null_mut()), none);
    }
}

#[test]
fn tags_are_those_of_the_library() {
    let mut tag = MzTag::default();
    let tokens = [5, 0, 7u32];
    // SAFETY: the tag and the tokens live.
    let mut add =
        |tokens: &[u32]| unsafe { mz_tag_tokens(&mut tag, tokens.as_ptr(), tokens.len()) };
    assert_eq!((add(&tokens[..1]), add(&tokens[1..])), (MZ_OK, MZ_OK));
    let expected = Tag::EMPTY.with(&tokens).get();
    assert_eq!(u128::from(tag.low) | u128::from(tag.high) << 64, expected);
    // SAFETY: null is refused.
    unsafe {
        let none = err(MzErr::InvalidArgument);
        assert_eq!(mz_tag_tokens(ptr::null_mut(), tokens.as_ptr(), 1), none);
        assert_eq!(mz_tag_tokens(&mut tag, ptr::null(), 1), none);
    }
}
