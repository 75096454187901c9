//! What every step promises to those who wait at gates, and to the worker that it gives work to.

use super::super::table::chunk_id;
use super::super::*;
use crate::units::{Kind, LayerIndex, Nanos, Unit};
use std::vec::Vec;

fn each_gate(machine: &Machine) -> impl Iterator<Item = (LayerIndex, Kind)> {
    let layers = (0..machine.table.weight_units()).map(LayerIndex::new);
    layers.flat_map(|layer| [(layer, Kind::Weights), (layer, Kind::Kv)])
}

/// Which gates are open.
pub(super) fn gates(machine: &Machine) -> Vec<bool> {
    each_gate(machine).map(|(layer, kind)| machine.is_ready(layer, kind)).collect()
}

pub(super) fn check(before: &(Vec<bool>, Tally), event: Event, step: &Step, machine: &Machine) {
    for ((layer, kind), (before, after)) in
        each_gate(machine).zip(before.0.iter().zip(gates(machine)))
    {
        let is_said = [Touched::All, Touched::Gate(layer, kind)].contains(&step.touched);
        assert!(*before == after || is_said, "{event:?} touched {layer:?} {kind:?}: {step:?}");
    }
    if let (Event::Next(roles), Some(action)) = (event, step.action) {
        assert!(fits(roles, &action), "{action:?} for {roles:?}");
    }
    if let Event::Done(action, Outcome::Done) = event {
        assert_eq!(step.publish, completes(machine, &action).then_some(action.unit()));
    }
    let tally = machine.tally();
    assert_eq!(*tally, counted(machine), "{event:?}");
    if let (Event::Next(_), None) = (event, step.action) {
        // Whoever got no work although something was done is to ask again.
        assert!(step.again || before.1 == *tally, "{step:?}");
    }
    assert!(!machine.is_idle() || tally.busy + tally.prepared == 0, "idle with work under way");
    let goals = [machine.is_idle(), machine.is_evicting(), machine.is_restoring()];
    assert!(goals.iter().filter(|is_it| **is_it).count() <= 1);
}

fn sum<T>(units: &[T], share: impl Fn(&T) -> u64) -> u64 {
    units.iter().map(share).sum()
}

fn count<T>(units: &[T], is_meant: impl Fn(&T) -> bool) -> u32 {
    u32::try_from(units.iter().filter(|unit| is_meant(unit)).count()).unwrap()
}

/// The copies that are left when what is under way is over.
fn copies_then(chunk: &Chunk) -> Copies {
    let (without, with) = match chunk.phase {
        Phase::Packing => (Copies::RESIDENT, Copies::RAM),
        Phase::Writing => (Copies::RESIDENT, Copies::FLASH),
        Phase::Spilling => (Copies::RAM, Copies::FLASH),
        Phase::Releasing => (Copies::RESIDENT, Copies::empty()),
        _ => (Copies::empty(), Copies::empty()),
    };
    chunk.copies.difference(without) | with
}

/// The tally by what its fields say, from the units alone.
fn counted(machine: &Machine) -> Tally {
    let table = &machine.table;
    let ids = (0..table.columns_max())
        .flat_map(|column| (0..table.kv_layers).map(move |layer| chunk_id(layer, column)));
    let all: Vec<(bool, Chunk)> =
        ids.map(|id| (id.chunk.get() < table.columns, *table.chunk(id))).collect();
    let chunks: Vec<Chunk> = all.iter().map(|(_, chunk)| *chunk).collect();
    let weights: Vec<Weights> =
        (0..table.weight_units()).map(|unit| *table.weights(LayerIndex::new(unit))).collect();

    let is_on = |chunk: &Chunk, copy| {
        copies_then(chunk).contains(copy) && !copies_then(chunk).contains(Copies::RESIDENT)
    };
    let on_ram = |chunk: &Chunk| is_on(chunk, Copies::RAM);
    let on_flash = |chunk: &Chunk| is_on(chunk, Copies::FLASH) && !on_ram(chunk);
    let is_read = |chunk: &Chunk| on_flash(chunk) && chunk.copies.contains(Copies::FLASH);
    let is_packed = |chunk: &Chunk| {
        let is_at_rest = chunk.phase == Phase::Idle && !chunk.skipped;
        is_at_rest && chunk.copies.contains(Copies::RAM) && !chunk.is_ready()
    };
    let frees = |chunk: &Chunk| match chunk.phase {
        Phase::Packing => table.chunk_bytes.saturating_sub(table.packed_bytes_max),
        Phase::Writing | Phase::Releasing => table.chunk_bytes,
        Phase::Spilling => chunk.ram.bytes.into(),
        _ => 0,
    };
    let is_leaving = |unit: &Weights| unit.phase == Phase::Releasing;
    let is_prepared = |phase| phase == Phase::Prepared;
    Tally {
        kv_left: count(&chunks, |chunk| {
            chunk.is_ready() && chunk.phase != Phase::Saving && !chunk.skipped
        }),
        weights_left: count(&weights, |unit| unit.is_ready() && !unit.skipped),
        on_ram: count(&chunks, on_ram),
        on_flash: count(&chunks, on_flash),
        on_flash_packed: count(&chunks, |chunk| is_read(chunk) && chunk.flash.packed),
        on_flash_bytes: sum(&chunks, |c| if is_read(c) { c.flash.bytes.into() } else { 0 }),
        packed_idle: count(&chunks, is_packed),
        weights_out: Nanos::new(sum(&weights, |unit| {
            if unit.resident && !is_leaving(unit) { 0 } else { unit.read_ns.get() }
        })),
        busy: count(&chunks, |chunk| chunk.phase.is_busy())
            + count(&weights, |unit| unit.phase.is_busy()),
        prepared: count(&chunks, |chunk| is_prepared(chunk.phase))
            + count(&weights, |unit| is_prepared(unit.phase)),
        missing: count(&all, |(in_context, chunk)| *in_context && !chunk.is_ready())
            + count(&weights, |unit| !unit.is_ready()),
        lost: count(&chunks, Chunk::is_lost),
        weight_bytes: sum(&weights, |unit| if unit.has_buffer { unit.bytes } else { 0 }),
        kv_bytes: sum(&chunks, |c| if c.has_buffer { table.chunk_bytes } else { 0 }),
        ram_bytes: sum(&chunks, |chunk| {
            if chunk.copies.contains(Copies::RAM) { chunk.ram.bytes.into() } else { 0 }
        }),
        flash_chunks: count(&chunks, |chunk| chunk.copies.contains(Copies::FLASH)),
        pending_bytes: sum(&chunks, frees)
            + sum(&weights, |unit| if is_leaving(unit) { unit.bytes } else { 0 }),
    }
}

/// Whether a buffer is complete since an action has ended well.
fn completes(machine: &Machine, action: &Action) -> bool {
    match *action {
        Action::ReadWeights { layer, .. } => machine.table.weights(layer).is_ready(),
        Action::ReadChunk { .. } | Action::Unpack { .. } => true,
        Action::Allocate { is_new, .. } => is_new,
        _ => false,
    }
}

/// Whether a worker with these roles may have that action. A chunk's buffer is given back by
/// whoever would have saved its bytes, if there are none to save.
fn fits(roles: Roles, action: &Action) -> bool {
    match action {
        Action::Pack { .. } | Action::Unpack { .. } => roles.contains(Roles::UNPACK),
        Action::Write { .. } | Action::Spill { .. } => roles.contains(Roles::READ),
        Action::ReadWeights { .. } | Action::ReadChunk { .. } => roles.contains(Roles::READ),
        Action::Allocate { .. } => roles.contains(Roles::ALLOCATE),
        Action::Release { unit: Unit::Weights(_) } => roles.contains(Roles::ALLOCATE),
        Action::Release { unit: Unit::Kv(_) } => true,
    }
}
