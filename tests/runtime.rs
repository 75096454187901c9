//! The whole manager without a transformer: contexts are written, evicted to every level, restored,
//! and compared byte for byte.

#![cfg(feature = "host")]

mod manager;

use manager::*;
use mzcache::codec::{STEPS_HEADER_BYTES, Steps};
use mzcache::kernel::Kernels;
use mzcache::policy::{Order, Scheme};
use mzcache::port::linux::{HostPorts, map_arena};
use mzcache::port::{Body, Ports, Region, SharedMemory, ThreadId, ThreadSpec, Threads, Use};
use mzcache::runtime::{Config, Options, required_bytes};
use mzcache::state::Stop;
use mzcache::swap::file::{Side, Slots};
use mzcache::units::{ByteCount, CodecId, KvShape, LayerIndex, TokenCount};
use mzcache::{Code, Error};
use std::path::Path;
use std::ptr::NonNull;

#[test]
fn raw_comes_back_byte_for_byte_from_every_level() {
    for (name, workers) in [("threads", Setup::default().workers), ("inline", Vec::new())] {
        let fixture = open(&format!("levels-{name}"), &Setup { workers, ..Setup::default() });
        pass(&fixture, CONTEXT).unwrap();
        let runtime = &fixture.runtime;
        let total = total(runtime);
        let expected = expected_values();
        assert!(kv_values(runtime) == expected);
        for percent in [75, 50, 25, 0, 100, 60, 0] {
            evict_to(runtime, percent, total);
            pass(&fixture, 3).unwrap();
            runtime.finish_restore().unwrap();
            runtime.truncate(TokenCount::new(CONTEXT)).unwrap();
            assert!(kv_values(runtime) == expected, "{name} {percent}");
        }
    }
}

#[test]
fn q8_changes_nothing_after_the_first_cycle_and_uses_both_paths() {
    let setup = Setup { codec: CodecId::Q8, ..Setup::default() };
    let fixture = open("q8", &setup);
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let mut first = None;
    for cycle in 0..4 {
        evict_to(runtime, 50, total);
        assert!(runtime.stats().tally.ram_bytes > 0, "the RAM path was used");
        runtime.restore().unwrap();
        let values = kv_values(runtime);
        match &first {
            None => first = Some(values),
            Some(first) => assert!(*first == values, "cycle {cycle}"),
        }
        assert_eq!(runtime.stats().tally.ram_bytes, 0);
        assert_eq!(runtime.stats().ram.segments, 0, "the stack is given back after a restore");
    }
    // To zero and back: packed chunks go to the swap file too.
    evict_to(runtime, 0, total);
    assert_eq!(runtime.stats().allocated_bytes, 0);
    runtime.restore().unwrap();
    let again = kv_values(runtime);
    evict_to(runtime, 0, total);
    runtime.restore().unwrap();
    assert!(kv_values(runtime) == again);
}

#[test]
fn an_eviction_cancels_a_restore_and_nothing_is_lost() {
    let setup = Setup { codec: CodecId::Raw, ..Setup::default() };
    let fixture = open("interleave", &setup);
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let expected = expected_values();
    std::thread::scope(|scope| {
        let compute = scope.spawn(|| {
            let mut answers = (0, 0);
            for _ in 0..40 {
                match pass(&fixture, 1) {
                    Ok(()) => answers.0 += 1,
                    Err(error) if error.code == Code::Cancelled => answers.1 += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            answers
        });
        let mut seed = 7u64;
        while !compute.is_finished() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match runtime.evict(ByteCount::new(total / 100 * ((seed >> 33) % 100)), None) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.code, Code::BadState, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let (finished, cancelled) = compute.join().unwrap();
        assert_eq!(finished + cancelled, 40);
    });
    runtime.restore().unwrap();
    runtime.truncate(TokenCount::new(CONTEXT)).unwrap();
    assert!(kv_values(runtime) == expected);
    runtime.check().unwrap();
}

#[test]
fn leased_units_stay_and_are_reported() {
    let fixture = open("leases", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let weights = runtime.weights(LayerIndex::new(3)).unwrap();
    let chunk = runtime.kv(id(5, 0)).unwrap();
    let report = runtime.evict(ByteCount::new(total), None).unwrap();
    assert_eq!(report.booked.stop, Stop::Exhausted);
    assert_eq!(report.booked.leased, 2);
    check_weights(&fixture, 3, &weights);
    drop(weights);
    drop(chunk);
    let report = runtime.evict(ByteCount::new(u64::MAX), None).unwrap();
    assert_eq!(report.booked.leased, 0);
    assert_eq!(runtime.stats().allocated_bytes, 0);
    runtime.restore().unwrap();
    assert!(kv_values(runtime) == expected_values());
}

#[test]
fn a_passed_deadline_stops_in_a_consistent_state() {
    let fixture = open("deadline", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let deadline = Some(mzcache::units::Nanos::new(1));
    let report = runtime.evict(ByteCount::new(total), deadline).unwrap();
    assert_eq!(report.booked.stop, Stop::Deadline);
    assert!(report.booked.freed.get() < total);
    runtime.check().unwrap();
    runtime.restore().unwrap();
    assert!(kv_values(runtime) == expected_values());
}

#[test]
fn a_model_file_that_shrinks_is_a_clear_error_and_the_context_survives() {
    let fixture = open("shrinks", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    evict_to(runtime, 0, total);
    let file = std::fs::OpenOptions::new().write(true).open(fixture.folder.join("model")).unwrap();
    file.set_len(3 * UNIT_BYTES).unwrap();
    let error = runtime.restore().unwrap_err();
    assert_eq!((error.code, error.what), (Code::ShortRead, "model file"));
    assert_eq!(pass(&fixture, 1).unwrap_err().code, Code::ShortRead);
    runtime.check().unwrap();
    std::fs::write(fixture.folder.join("model"), &fixture.weights).unwrap();
    runtime.restore().unwrap();
    assert!(kv_values(runtime) == expected_values());
}

#[test]
fn a_damaged_swap_file_names_the_token_to_recompute_from() {
    let fixture = open("damage", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    evict_to(runtime, 0, total);
    // One bit of chunk 2 of layer 1.
    let slot_bytes = u32::try_from((SHAPE.chunk_bytes() + 64).next_multiple_of(4096)).unwrap();
    let slots = Slots { layers: SHAPE.layers, chunks: 16, slot_bytes };
    let offset = slots.offset(id(1, 2), Side::First).unwrap();
    flip_bit(&fixture.folder.join("swap"), offset + 12345);
    let error = runtime.restore().unwrap_err();
    assert_eq!((error.code, error.value), (Code::Corrupt, 512));
    assert_eq!(runtime.lost(), Some(TokenCount::new(512)));
    assert_eq!(runtime.restore().unwrap_err().code, Code::Corrupt);
    runtime.truncate(TokenCount::new(512)).unwrap();
    runtime.restore().unwrap();
    let per_token = places(0).count();
    let kept: Vec<u16> = expected_values()
        .chunks(per_token * CONTEXT as usize)
        .flat_map(|layer| &layer[..per_token * 512])
        .copied()
        .collect();
    assert!(kv_values(runtime) == kept);
}

#[test]
fn without_a_swap_file_chunks_go_to_ram_only() {
    let setup = Setup { codec: CodecId::Q8, swap_file: false, ..Setup::default() };
    let fixture = open("ram-only", &setup);
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let report = runtime.evict(ByteCount::new(u64::MAX), None).unwrap();
    assert_eq!(report.booked.stop, Stop::Exhausted);
    let tally = runtime.stats().tally;
    assert_eq!((tally.weight_bytes, tally.kv_bytes), (0, 0));
    assert!(tally.ram_bytes > 0);
    runtime.restore().unwrap();
    assert_eq!(runtime.tokens(), TokenCount::new(CONTEXT));
}

#[test]
fn evictors_take_turns_and_outlive_their_runtime() {
    let fixture = open("evictors", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let total = total(&fixture.runtime);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let evictor = fixture.runtime.evictor();
            std::thread::spawn(move || {
                let mut reports = 0;
                for _ in 0..20 {
                    match evictor.evict(ByteCount::new(total / 50), None) {
                        Ok(_) => reports += 1,
                        Err(error) => assert_eq!(error.code, Code::BadState),
                    }
                }
                reports
            })
        })
        .collect();
    let reports: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(reports > 0);
    let evictor = fixture.runtime.evictor();
    let late = std::thread::spawn(move || {
        // Ends by itself, whenever the runtime goes.
        while evictor.evict(ByteCount::new(1), None).is_ok() {}
    });
    drop(fixture);
    late.join().unwrap();
    assert_eq!(evictor.evict(ByteCount::new(1), None).unwrap_err().code, Code::BadState);
}

#[test]
fn cancel_leaves_units_as_they_were_or_restored() {
    let fixture = open("cancel", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    for _ in 0..10 {
        evict_to(runtime, 0, total);
        runtime.begin_pass(TokenCount::new(CONTEXT)).unwrap();
        match runtime.cancel_restore() {
            Ok(()) => assert!(runtime.stats().tally.prepared == 0),
            // It was already complete.
            Err(error) => assert_eq!(error.code, Code::BadState),
        }
        runtime.check().unwrap();
    }
    runtime.restore().unwrap();
    assert!(kv_values(runtime) == expected_values());
}

#[test]
fn workers_are_named_and_can_rest() {
    let fixture = open("rest", &Setup::default());
    pass(&fixture, CONTEXT).unwrap();
    let runtime = &fixture.runtime;
    let total = total(runtime);
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names: Vec<String> = tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .collect();
    for name in ["mz-read-0\n", "mz-unpack-1\n", "mz-alloc-2\n"] {
        assert!(names.iter().any(|comm| comm == name), "{name} of {names:?}");
    }
    runtime.rest_workers(true);
    assert!(runtime.is_inline());
    evict_to(runtime, 30, total);
    runtime.begin_pass(TokenCount::new(CONTEXT)).unwrap();
    // Nothing happens unless the caller does it.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let last = LayerIndex::new(SHAPE.layers);
    assert!(!runtime.is_open(last, mzcache::units::Kind::Weights));
    runtime.finish_restore().unwrap();
    runtime.rest_workers(false);
    assert!(!runtime.is_inline());
    evict_to(runtime, 0, total);
    runtime.restore().unwrap();
    assert!(kv_values(runtime) == expected_values());
}

#[test]
fn every_order_and_scheme_restores() {
    for order in [Order::ForwardOut, Order::Random(3), Order::Lru, Order::BackwardOut] {
        for scheme in [Scheme::Hybrid, Scheme::PartialOffload] {
            let setup = Setup { order, scheme, ..Setup::default() };
            let fixture = open("orders", &setup);
            pass(&fixture, CONTEXT).unwrap();
            let runtime = &fixture.runtime;
            let total = total(runtime);
            for percent in [70, 20] {
                evict_to(runtime, percent, total);
                pass(&fixture, 1).unwrap();
            }
            runtime.truncate(TokenCount::new(CONTEXT)).unwrap();
            assert!(kv_values(runtime) == expected_values());
        }
    }
}

/// Everything out and back in; the values of K and V after it.
fn cycle(fixture: &Fixture) -> Vec<Vec<u8>> {
    let runtime = &fixture.runtime;
    runtime.evict(ByteCount::new(u64::MAX), None).unwrap();
    assert!(runtime.stats().tally.missing > 0);
    runtime.restore().unwrap();
    let ids = (0..SHAPE.layers).flat_map(|layer| (0..3).map(move |chunk| id(layer, chunk)));
    ids.map(|id| runtime.kv(id).unwrap().to_vec()).collect()
}

#[test]
fn kv4_freezes_its_steps_at_the_first_eviction_and_changes_nothing_after_it() {
    for workers in [Setup::default().workers, vec![]] {
        let setup = Setup { codec: CodecId::Kv4, swap_file: false, workers, ..Setup::default() };
        let fixture = open("kv4", &setup);
        assert_eq!(fixture.runtime.steps(), None);
        fixture.runtime.evict(ByteCount::new(1), None).unwrap();
        assert_eq!(fixture.runtime.steps(), None, "there was nothing to look at");
        pass(&fixture, 700).unwrap();
        let first = cycle(&fixture);
        let steps = fixture.runtime.steps().unwrap();
        let first_layer = steps.layer(LayerIndex::new(0)).unwrap();
        assert!(first_layer.k.iter().all(|&step| step == first_layer.k[0] && step > 0.1));
        for _ in 0..3 {
            assert!(cycle(&fixture) == first);
            assert_eq!(fixture.runtime.steps(), Some(steps));
        }
        fixture.runtime.check().unwrap();

        // Another runtime that is given the profile keeps it, whatever its K is like.
        let mut bytes = vec![0; Steps::serialised_bytes(&SHAPE)];
        steps.write(&mut bytes).unwrap();
        let other = open("kv4-given", &Setup { steps: Some(bytes), ..setup });
        assert_eq!(other.runtime.steps(), Some(steps));
        pass(&other, 600).unwrap();
        cycle(&other);
        assert_eq!(other.runtime.steps(), Some(steps));
    }
}

/// Ports of which a refused open must take nothing.
struct Forbidden;

// SAFETY: there is no region that it ever returned.
unsafe impl SharedMemory for Forbidden {
    fn allocate(&self, _: Use, _: usize) -> Result<Region, Error> {
        panic!("memory was allocated");
    }

    unsafe fn release(&self, _: Use, _: Region) {
        panic!("memory was released");
    }
}

impl Threads for Forbidden {
    fn spawn(&self, _: ThreadSpec<'_>, _: &'static dyn Body) -> Result<ThreadId, Error> {
        panic!("a thread was started");
    }

    fn pin(&self, _core: u16) -> Result<(), Error> {
        panic!("a thread was pinned");
    }

    fn join(&self, _: ThreadId) {
        panic!("a thread was awaited");
    }
}

/// A saved profile for that shape.
fn profile(shape: KvShape) -> Vec<u8> {
    let mut memory = vec![0.0; Steps::values(&shape)];
    let squares = vec![1.0; usize::from(shape.layers)];
    let steps = Steps::uniform(&Kernels::portable(), shape, &squares, &mut memory).unwrap();
    let mut bytes = vec![0; Steps::serialised_bytes(&shape)];
    steps.write(&mut bytes).unwrap();
    bytes
}

/// Step profiles that a runtime must refuse: a name, the profile, the error.
fn refused_profiles() -> Vec<(&'static str, Vec<u8>, Code, &'static str)> {
    let good = profile(SHAPE);
    let changed = |at: usize, bytes: &[u8]| {
        let mut profile = good.clone();
        profile[at..at + bytes.len()].copy_from_slice(bytes);
        profile
    };
    // Under a checksum that is right.
    let sealed = |at: usize, step: f32| {
        let mut profile = changed(at, &step.to_le_bytes());
        let crc32c = Kernels::portable().crc32c;
        let crc = crc32c.call(crc32c.call(0, &profile[STEPS_HEADER_BYTES..]), &profile[..28]);
        profile[28..32].copy_from_slice(&crc.to_le_bytes());
        profile
    };
    let last = good.len() - 4;
    let layers = profile(KvShape { layers: SHAPE.layers + 1, ..SHAPE });
    let heads = profile(KvShape { kv_heads: 1, ..SHAPE });
    let dim = profile(KvShape { head_dim: 128, ..SHAPE });
    let header = STEPS_HEADER_BYTES;
    vec![
        ("nothing", vec![], Code::Truncated, "steps header"),
        ("half a header", good[..header - 1].to_vec(), Code::Truncated, "steps header"),
        ("a header", good[..header].to_vec(), Code::Truncated, "steps"),
        ("a byte less", good[..good.len() - 1].to_vec(), Code::Truncated, "steps"),
        ("another file", changed(0, b"GGUF"), Code::BadMagic, "steps"),
        ("a later version", changed(4, &[2]), Code::Unsupported, "steps version"),
        ("reserved bytes", changed(20, &[1]), Code::Corrupt, "steps reserved bytes"),
        ("a bit of a step", changed(last, &[good[last] ^ 1]), Code::Corrupt, "steps checksum"),
        ("a bit of the id", changed(28, &[good[28] ^ 1]), Code::Corrupt, "steps checksum"),
        ("no number", sealed(last, f32::NAN), Code::Corrupt, "step"),
        ("infinity", sealed(header, f32::INFINITY), Code::Corrupt, "step"),
        ("no step", sealed(header, 0.0), Code::Corrupt, "step"),
        ("a negative step", sealed(header, -1.0), Code::Corrupt, "step"),
        ("more layers", layers, Code::Mismatch, "steps layers"),
        ("fewer heads", heads, Code::Mismatch, "steps kv_heads"),
        ("greater heads", dim, Code::Mismatch, "steps head_dim"),
    ]
}

#[test]
fn a_damaged_or_foreign_step_profile_is_refused_at_open_and_the_memory_serves_the_next() {
    let folder = manager::folder("profiles");
    let model = std::fs::File::create(folder.join("model")).unwrap();
    model.set_len(u64::from(SHAPE.layers + 1) * UNIT_BYTES).unwrap();
    let paths = ["model", "swap"].map(|name| c_path(&folder.join(name)));
    let ports = leak(HostPorts::open(&paths[0], Some(&paths[1])).unwrap()).ports();
    let bytes = 64 << 20;
    let memory = NonNull::from(map_arena(bytes).unwrap());
    let arena = |needed| {
        assert!(needed <= bytes);
        // SAFETY: the mapping stays, and what was placed in it before is gone: either the open was
        // refused or the runtime was dropped.
        unsafe { &mut *memory.as_ptr() }
    };
    let refusing = Ports { memory: &Forbidden, threads: Some(&Forbidden), ..ports };
    for codec in [CodecId::Kv4, CodecId::Kvh] {
        let setup = |steps| Setup { codec, steps: Some(steps), ..Setup::default() };
        for (name, steps, code, what) in refused_profiles() {
            let error = open_in(&setup(steps), refusing, arena).err().expect(name);
            assert_eq!((error.code, error.what), (code, what), "{name}");
        }
        let good = profile(SHAPE);
        let runtime = open_in(&setup(good.clone()), ports, arena).unwrap();
        let mut bytes = vec![0; good.len()];
        runtime.steps().unwrap().write(&mut bytes).unwrap();
        assert!(bytes == good);
        runtime.check().unwrap();
    }
    // A codec that uses no steps does not look at them.
    let setup = Setup { steps: Some(vec![1, 2, 3]), ..Setup::default() };
    assert_eq!(open_in(&setup, ports, arena).unwrap().steps(), None);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_codec_without_rates_is_refused_with_the_key_that_lacks() {
    for (codec, key) in
        [(CodecId::Raw, "unpack_bytes_per_s.raw"), (CodecId::Q8, "unpack_bytes_per_s.q8")]
    {
        let mut options = Options { codec, ..Options::default() };
        let config = |options| Config { shape: manager::SHAPE, weights: &[], options };
        assert!(required_bytes(&config(options)).is_ok());
        options.profile.codecs[codec as usize] = None;
        let error = required_bytes(&config(options)).unwrap_err();
        assert_eq!((error.code, error.what), (Code::Mismatch, key));
    }
}

/// Flips one bit of a file.
fn flip_bit(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= 0x10;
    file.write_all_at(&byte, offset).unwrap();
}
