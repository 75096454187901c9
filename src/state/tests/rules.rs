//! What a machine may be made for, what it says of itself, and that its check finds what is broken.

use super::*;
use crate::limits::{CHUNKS_PER_LAYER_MAX, LAYERS_MAX};
use crate::units::ChunkIndex;

/// Makes a machine for so many units of these.
fn make(weight_bytes: &[u64], shape: KvShape, columns_max: u16) -> Result<Machine, Error> {
    let plan = machine(Scheme::Hybrid, true, true).plan;
    let packed_bytes_max = CHUNK_BYTES + 64;
    let config =
        Config { shape, columns_max, weight_bytes, packed_bytes_max, lossless: true, plan };
    let mut sizer = Sizer::new();
    Machine::size(&mut sizer, weight_bytes.len(), shape.layers, columns_max)?;
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required()?];
    Machine::new(&mut Arena::new(Box::leak(memory.into_boxed_slice()))?, &config)
}

#[test]
fn a_machine_is_made_within_its_limits_and_not_beyond() {
    let shape = |layers| KvShape { layers, ..SHAPE };
    let units = |count: u16| vec![4096; usize::from(count)];
    for (weights, layers, columns) in [
        (units(1), 1, 1),
        (units(5), 5, 8),
        (units(LAYERS_MAX), 1, 1),
        (units(1), 1, CHUNKS_PER_LAYER_MAX),
    ] {
        let made = make(&weights, shape(layers), columns).unwrap();
        assert_eq!((made.kv_layers(), made.columns()), (layers, 0));
    }
    let refused = |weights: &[u64], shape, columns| make(weights, shape, columns).err().unwrap();
    let limit = |what, value: u16| Error::new(Code::LimitExceeded, what).with(value);
    assert_eq!(refused(&[], shape(1), 1), limit("weight units", 0));
    let many = LAYERS_MAX + 1;
    assert_eq!(refused(&units(many), shape(1), 1), limit("weight units", many));
    for layers in [0, 6] {
        assert_eq!(refused(&units(5), shape(layers), 1), limit("KV layers", layers));
    }
    for columns in [0, CHUNKS_PER_LAYER_MAX + 1] {
        assert_eq!(refused(&units(5), SHAPE, columns), limit("context chunks", columns));
    }
    let nothing = Error::new(Code::InvalidArgument, "unit of zero bytes");
    assert_eq!(refused(&[9, 9, 0, 9, 9], SHAPE, 1), nothing);
    assert_eq!(refused(&units(5), KvShape { head_dim: 0, ..SHAPE }, 1), nothing);
}

#[test]
fn too_little_memory_is_said() {
    let plan = machine(Scheme::Hybrid, true, true).plan;
    let (weight_bytes, lossless) = (&WEIGHT_BYTES, true);
    let packed_bytes_max = CHUNK_BYTES;
    let config =
        Config { shape: SHAPE, columns_max: 8, weight_bytes, packed_bytes_max, lossless, plan };
    let mut sizer = Sizer::new();
    Machine::size(&mut sizer, WEIGHT_BYTES.len(), SHAPE.layers, 8).unwrap();
    for bytes in (0..sizer.used()).step_by(8) {
        let memory = vec![core::mem::MaybeUninit::uninit(); bytes];
        let made = Arena::new(Box::leak(memory.into_boxed_slice()))
            .and_then(|mut arena| Machine::new(&mut arena, &config));
        assert_eq!(made.err().map(|error| error.code), Some(Code::MemoryTooSmall));
    }
}

#[test]
fn there_are_no_units_behind_the_last() {
    let mut run = full(Order::BackwardOut, Scheme::Hybrid);
    for id in [chunk_id(4, 0), chunk_id(0, 8)] {
        assert_eq!(run.machine.chunk(id), None);
        let done = Event::Done(Action::Write { id }, Outcome::Done);
        assert_eq!(run.machine.step(done).unwrap_err().code, Code::InvalidArgument);
    }
    assert!(run.machine.weights(LayerIndex::new(4)).is_some());
    assert_eq!(run.machine.weights(LayerIndex::new(5)), None);
    assert!(run.machine.step(Event::Used(LayerIndex::new(5))).is_err());
}

#[test]
fn the_machine_says_what_it_does_and_what_is_ready() {
    let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
    let goals = |run: &Run| {
        let machine = &run.machine;
        [machine.is_idle(), machine.is_evicting(), machine.is_restoring()]
    };
    let ready = |run: &Run, layer, kind| run.machine.is_ready(LayerIndex::new(layer), kind);
    assert_eq!(goals(&run), [true, false, false]);
    for layer in 0..6 {
        assert!(!ready(&run, layer, Kind::Weights));
        // There is no context yet, and no such layer as the last.
        assert_eq!(ready(&run, layer, Kind::Kv), layer < 5);
    }
    run.step(restore(TokenCount::new(1))).unwrap();
    assert_eq!(goals(&run), [false, false, true]);
    assert!((0..6).all(|layer| ready(&run, layer, Kind::Kv) == (layer == 4)));
    run.finish_restore().unwrap();
    assert!((0..6).all(|layer| ready(&run, layer, Kind::Weights) == (layer < 5)));
    run.step(evict(run.policy, u64::MAX)).unwrap();
    assert_eq!(goals(&run), [false, true, false]);
    run.settle();
    run.append(5);
    run.step(Event::Truncate(TokenCount::new(0))).unwrap();
    assert_eq!(goals(&run), [false; 3]);
    run.settle();
    assert_eq!(goals(&run), [true, false, false]);
}

/// What the check says of a machine that something was done to.
fn found(run: &mut Run, harm: impl FnOnce(&mut Machine)) -> &'static str {
    harm(&mut run.machine);
    run.machine.check().unwrap_err().what
}

#[test]
fn the_check_finds_every_broken_invariant() {
    let (first, beyond) = (chunk_id(0, 0), chunk_id(0, 7));
    let layer = LayerIndex::new(1);
    let fresh = || {
        let mut run = idle(Order::BackwardOut, Scheme::Hybrid);
        run.append(300);
        run
    };
    let chunk = |id, change: fn(&mut Chunk)| {
        found(&mut fresh(), |machine| machine.table.update_chunk(id, change))
    };
    let weights = |change: fn(&mut Weights)| {
        found(&mut fresh(), |machine| machine.table.update_weights(layer, change))
    };
    assert_eq!(beyond.chunk, ChunkIndex::new(7));
    assert_eq!(found(&mut fresh(), |machine| machine.table.tally.busy += 1), "tally");
    let counts = |machine: &mut Machine| machine.table.layers[0].kv_left += 1;
    assert_eq!(found(&mut fresh(), counts), "layer counts");

    assert_eq!(chunk(first, |c| c.has_buffer = false), "resident chunk without a buffer");
    let unfilled = "idle chunk with an unfilled buffer";
    assert_eq!(chunk(first, |c| c.copies = Copies::FLASH), unfilled);
    assert_eq!(chunk(beyond, |c| c.has_buffer = true), unfilled);
    let twin = |c: &mut Chunk| (c.copies, c.ram_tokens) = (c.copies | Copies::RAM, 256);
    assert_eq!(chunk(first, twin), "resident chunk with a packed twin");
    let unfounded = |c: &mut Chunk| (c.copies, c.phase) = (Copies::FLASH, Phase::Saving);
    assert_eq!(chunk(first, unfounded), "saving without a source");
    let durable = |machine: &mut Machine| machine.durable = TokenCount::new(301);
    assert_eq!(found(&mut fresh(), durable), "durable tokens");
    assert_eq!(chunk(beyond, |c| c.copies = Copies::FLASH), "copy beyond the context");
    // The first column behind the last one in use.
    assert_eq!(chunk(chunk_id(3, 2), |c| c.copies = Copies::RAM), "copy beyond the context");
    let lacks = "copy that lacks tokens";
    let short = |c: &mut Chunk| (c.copies, c.flash_tokens) = (c.copies | Copies::FLASH, 255);
    assert_eq!(chunk(first, short), lacks);
    let only_short = |c: &mut Chunk| {
        (c.has_buffer, c.copies, c.ram_tokens) = (false, Copies::RAM, 255);
    };
    assert_eq!(chunk(first, only_short), lacks);

    assert_eq!(weights(|w| w.has_buffer = false), "resident weights without a buffer");
    assert_eq!(weights(|w| w.parts_given = 0), "weight parts");
    assert_eq!(weights(|w| w.parts_busy = 1), "weight parts");
    assert_eq!(weights(|w| w.parts_failed = 1), "weight parts");
    let too_many = |w: &mut Weights| (w.parts_given, w.parts_done) = (w.parts + 1, w.parts + 1);
    assert_eq!(weights(too_many), "weight parts");
}
