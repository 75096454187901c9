//! A context outlives its runtime: on real files, with every codec, in every state of residency.

#![cfg(feature = "host")]

mod manager;

use manager::*;
use mzcache::port::linux::{HostPorts, map_arena};
use mzcache::runtime::Recovered;
use mzcache::state::Stop;
use mzcache::units::{ByteCount, CodecId, Nanos, Tag, TokenCount};
use mzcache::{Code, Error};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// What a process holds; dropping it is the end of one that closes in order.
struct Process {
    fixture: ManuallyDrop<Fixture>,
    host: *mut HostPorts,
}

impl Process {
    /// In a folder with a model file; the swap file is what the last process left.
    fn start(folder: &Path, setup: &Setup) -> Process {
        let path = |name| c_path(&folder.join(name));
        let host = HostPorts::open_kept(&path("model"), Some(&path("swap"))).unwrap();
        let host = Box::into_raw(Box::new(host));
        // SAFETY: it came from a box that `drop` takes back, after the runtime.
        let ports = unsafe { &*host }.ports();
        let runtime = open_in(setup, ports, |bytes| map_arena(bytes).unwrap()).unwrap();
        let weights = std::fs::read(folder.join("model")).unwrap();
        // Nobody's, so that the end of the fixture removes nothing.
        let fixture = Fixture { runtime, weights, folder: folder.join("none") };
        Process { fixture: ManuallyDrop::new(fixture), host }
    }
}

impl std::ops::Deref for Process {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.fixture) };
        // SAFETY: the runtime that used it is gone.
        drop(unsafe { Box::from_raw(self.host) });
    }
}

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let first = open(&format!("checkpoint-{name}"), &Setup::default());
        let folder = folder(&format!("checkpoint-{name}-kept"));
        std::fs::rename(first.folder.join("model"), folder.join("model")).unwrap();
        Place(folder)
    }

    fn start(&self, setup: &Setup) -> Process {
        Process::start(&self.0, setup)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TAG: Tag = Tag::EMPTY;
const ALL: Recovered = Recovered { tokens: TokenCount::new(CONTEXT), lost: None };

fn checkpoint(process: &Process, tag: Tag) -> u64 {
    let report = process.runtime.checkpoint(tag, None).unwrap();
    assert_eq!((report.stop, report.durable), (Stop::Reached, process.runtime.tokens()));
    assert_eq!(process.runtime.stats().durable, report.durable);
    process.runtime.check().unwrap();
    report.written.get()
}

#[test]
fn every_codec_comes_back_from_every_level_with_every_byte() {
    let place = Place::new("codecs");
    for codec in CodecId::ALL {
        for percent in [100, 40, 0] {
            let setup = Setup { codec, ..Setup::default() };
            let first = place.start(&setup);
            pass(&first, CONTEXT).unwrap();
            evict_to(&first.runtime, percent, total(&first.runtime));
            checkpoint(&first, TAG);
            first.runtime.restore().unwrap();
            let expected = kv_values(&first.runtime);
            drop(first);
            let second = place.start(&setup);
            assert_eq!(second.runtime.recover(TAG), Ok(ALL), "{codec:?} {percent}");
            second.runtime.check().unwrap();
            assert_eq!(second.runtime.stats().tally.total_bytes(), 0);
            second.runtime.restore().unwrap();
            assert!(kv_values(&second.runtime) == expected, "{codec:?} {percent}");
            pass(&second, 40).unwrap();
        }
    }
}

#[test]
fn what_did_not_change_is_not_written_again_and_leaves_for_nothing() {
    let place = Place::new("clean");
    let setup = Setup { scheme: mzcache::policy::Scheme::PartialOffload, ..Setup::default() };
    let first = place.start(&setup);
    pass(&first, CONTEXT).unwrap();
    let chunk = SHAPE.chunk_bytes() as u64;
    let head = 4096 + 4096;
    assert_eq!(checkpoint(&first, TAG), 36 * chunk + head);
    assert_eq!(checkpoint(&first, TAG), head);
    let before = first.runtime.stats().flash.unwrap().written_bytes;
    evict_to(&first.runtime, 0, total(&first.runtime));
    assert_eq!(first.runtime.stats().flash.unwrap().written_bytes, before, "a drop");
    // A tail that grows takes turns between its two slots.
    for _ in 0..4 {
        pass(&first, 5).unwrap();
        assert_eq!(checkpoint(&first, TAG), 6 * chunk + head);
    }
    assert_eq!(first.runtime.stats().flash.unwrap().slots_used, 36 + 6);
    drop(first);
    // So it goes on in the next process.
    let second = place.start(&setup);
    second.runtime.recover(TAG).unwrap();
    pass(&second, 5).unwrap();
    assert_eq!(checkpoint(&second, TAG), 6 * chunk + head);
    assert_eq!(second.runtime.stats().flash.unwrap().slots_used, 36 + 6);
}

#[test]
fn what_happens_after_a_checkpoint_does_not_harm_it() {
    let place = Place::new("later");
    let setup = Setup { codec: CodecId::Q8, ..Setup::default() };
    let first = place.start(&setup);
    pass(&first, CONTEXT).unwrap();
    checkpoint(&first, TAG);
    let expected = expected_values();
    // Packed and restored, what is in memory is no longer what is on flash.
    for percent in [0, 100, 30, 0] {
        evict_to(&first.runtime, percent, total(&first.runtime).max(1));
        pass(&first, 3).unwrap();
    }
    first.runtime.truncate(TokenCount::new(700)).unwrap();
    pass(&first, 500).unwrap();
    let all = total(&first.runtime);
    evict_to(&first.runtime, 0, all);
    drop(first);
    let second = place.start(&setup);
    assert_eq!(second.runtime.recover(TAG), Ok(ALL));
    second.runtime.restore().unwrap();
    assert!(kv_values(&second.runtime) == expected);
}

#[test]
fn another_context_model_or_configuration_is_refused_by_name() {
    let place = Place::new("other");
    let q8 = Setup { codec: CodecId::Q8, ..Setup::default() };
    let first = place.start(&q8);
    assert_eq!(first.runtime.recover(TAG), Err(Error::new(Code::BadMagic, "checkpoint")));
    pass(&first, CONTEXT).unwrap();
    // Whether there is a checkpoint or not.
    for _ in 0..2 {
        let error = first.runtime.recover(TAG).unwrap_err();
        assert_eq!((error.code, error.what), (Code::BadState, "recover: there is a context"));
        checkpoint(&first, TAG);
    }
    drop(first);
    let refused = |setup: &Setup, tag| {
        let process = place.start(setup);
        let error = process.runtime.recover(tag).unwrap_err();
        process.runtime.check().unwrap();
        assert_eq!((process.runtime.tokens().get(), process.runtime.chunks()), (0, 0));
        pass(&process, 10).unwrap();
        (error.code, error.what)
    };
    assert_eq!(refused(&q8, TAG.with(&[1])), (Code::Mismatch, "checkpoint tag"));
    let raw = Setup::default();
    assert_eq!(refused(&raw, TAG), (Code::Mismatch, "checkpoint codec"));
    // The same sizes, other weights.
    let model = place.0.join("model");
    let mut weights = std::fs::read(&model).unwrap();
    let middle = (2 * UNIT_BYTES + UNIT_BYTES / 4 * 3) as usize / 4096 * 4096;
    weights[middle..middle + 8192].fill(1);
    std::fs::write(&model, &weights).unwrap();
    assert_eq!(refused(&q8, TAG), (Code::Mismatch, "checkpoint model"));
}

#[test]
fn steps_are_recovered_or_must_be_the_same() {
    let place = Place::new("steps");
    let kv4 = || Setup { codec: CodecId::Kv4, ..Setup::default() };
    let first = place.start(&kv4());
    pass(&first, CONTEXT).unwrap();
    evict_to(&first.runtime, 0, total(&first.runtime));
    checkpoint(&first, TAG);
    let steps = first.runtime.steps().unwrap();
    let mut bytes = vec![0; mzcache::codec::Steps::serialised_bytes(&SHAPE)];
    steps.write(&mut bytes).unwrap();
    drop(first);
    let second = place.start(&kv4());
    second.runtime.recover(TAG).unwrap();
    let recovered = second.runtime.steps().unwrap();
    let mut again = vec![0; bytes.len()];
    recovered.write(&mut again).unwrap();
    assert!(again == bytes);
    drop(second);
    let given = Setup { steps: Some(bytes.clone()), ..kv4() };
    assert_eq!(place.start(&given).runtime.recover(TAG), Ok(ALL));
    let other = place.start(&kv4());
    pass(&other, 20).unwrap();
    other.runtime.evict(ByteCount::new(u64::MAX), None).unwrap();
    other.runtime.truncate(TokenCount::new(0)).unwrap();
    let error = other.runtime.recover(TAG).unwrap_err();
    assert_eq!((error.code, error.what), (Code::Mismatch, "checkpoint steps"));
}

#[test]
fn damaged_chunks_are_computed_again_from_their_first_token() {
    let place = Place::new("damage");
    let setup = Setup::default();
    let first = place.start(&setup);
    pass(&first, CONTEXT).unwrap();
    checkpoint(&first, TAG);
    drop(first);
    // Half of the slots are holes, so look for something.
    let path = place.0.join("swap");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    let at = bytes[middle..].iter().position(|byte| *byte != 0).unwrap();
    bytes[middle + at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let second = place.start(&setup);
    assert_eq!(second.runtime.recover(TAG), Ok(ALL));
    let error = second.runtime.restore().unwrap_err();
    assert_eq!((error.code, error.what), (Code::Corrupt, "KV chunk; recompute from token"));
    let from = second.runtime.lost().unwrap();
    assert_eq!(i64::from(from.get()), error.value);
    assert_eq!(second.runtime.checkpoint(TAG, None).map(drop), Err(error));
    second.runtime.truncate(from).unwrap();
    pass(&second, CONTEXT - from.get()).unwrap();
    second.runtime.restore().unwrap();
    assert!(kv_values(&second.runtime) == expected_values());
    checkpoint(&second, TAG);
}

#[test]
fn a_deadline_leaves_what_is_sound_and_the_next_call_goes_on() {
    let place = Place::new("deadline");
    for workers in [Setup::default().workers, Vec::new()] {
        let setup = Setup { workers, ..Setup::default() };
        let first = place.start(&setup);
        pass(&first, CONTEXT).unwrap();
        let mut report = first.runtime.checkpoint(TAG, Some(Nanos::new(0))).unwrap();
        if setup.workers.is_empty() {
            assert_eq!((report.stop, report.durable.get()), (Stop::Deadline, 0), "nobody worked");
        }
        let mut calls = 1;
        while report.stop != Stop::Reached {
            assert_eq!(report.stop, Stop::Deadline);
            assert_eq!(report.durable, first.runtime.stats().durable);
            first.runtime.check().unwrap();
            let deadline = Some(Nanos::new(100_000 << calls));
            report = first.runtime.checkpoint(TAG, deadline).unwrap();
            calls += 1;
        }
        assert_eq!(report.durable.get(), CONTEXT);
        drop(first);
        let second = place.start(&setup);
        assert_eq!(second.runtime.recover(TAG), Ok(ALL));
        second.runtime.restore().unwrap();
        assert!(kv_values(&second.runtime) == expected_values());
    }
}

#[test]
fn checkpoints_evictions_and_passes_meet() {
    let place = Place::new("meet");
    let setup = Setup { codec: CodecId::Q8, ..Setup::default() };
    let first = place.start(&setup);
    pass(&first, CONTEXT).unwrap();
    let fixture: &Fixture = &first;
    let evictor = first.runtime.evictor();
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    let stops = std::thread::scope(|scope| {
        let saver = scope.spawn(|| {
            let mut stops = Vec::new();
            while !is_over() {
                match fixture.runtime.checkpoint(TAG, None) {
                    Ok(report) => stops.push(report.stop),
                    Err(error) => assert_eq!(error.code, Code::Leased, "{error}"),
                }
            }
            stops
        });
        for round in 0..60u64 {
            let bytes = total(&first.runtime) / 60 * round;
            evictor.evict(ByteCount::new(bytes), None).unwrap();
            match pass(fixture, 1) {
                Err(error) => assert_eq!(error.code, Code::Cancelled, "{error}"),
                Ok(()) => first.runtime.finish_restore().unwrap(),
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        saver.join().unwrap()
    });
    assert!(!stops.is_empty());
    first.runtime.check().unwrap();
    checkpoint(&first, TAG);
    first.runtime.restore().unwrap();
    let expected = kv_values(&first.runtime);
    drop(first);
    let second = place.start(&setup);
    second.runtime.recover(TAG).unwrap();
    second.runtime.restore().unwrap();
    assert!(kv_values(&second.runtime) == expected);
}

#[test]
fn without_a_swap_file_there_is_nothing_to_keep() {
    let fixture = open("checkpoint-none", &Setup { swap_file: false, ..Setup::default() });
    let none = Error::new(Code::BadState, "there is no swap file");
    assert_eq!(fixture.runtime.checkpoint(TAG, None).map(drop), Err(none));
    assert_eq!(fixture.runtime.recover(TAG), Err(none));
}

#[test]
fn an_empty_context_is_one_too() {
    let place = Place::new("empty");
    let first = place.start(&Setup::default());
    checkpoint(&first, TAG);
    drop(first);
    let second = place.start(&Setup::default());
    let nothing = Recovered { tokens: TokenCount::new(0), lost: None };
    assert_eq!(second.runtime.recover(TAG), Ok(nothing));
    pass(&second, 10).unwrap();
}

#[test]
fn tags_tell_token_lists_apart() {
    let tags = [
        Tag::EMPTY,
        Tag::EMPTY.with(&[0]),
        Tag::EMPTY.with(&[0, 0]),
        Tag::EMPTY.with(&[1, 2]),
        Tag::EMPTY.with(&[2, 1]),
        Tag::EMPTY.with(&[u32::MAX]),
    ];
    for (at, tag) in tags.iter().enumerate() {
        assert!(!tags[..at].contains(tag));
        assert_eq!(Tag::new(tag.get()), *tag);
    }
    assert_eq!(Tag::EMPTY.with(&[1]).with(&[2]), Tag::EMPTY.with(&[1, 2]));
}
