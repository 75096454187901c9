//! Bytes as events.

use super::super::reader::Reader;
use super::run::Run;
use super::setup::{COLUMNS, SHAPE};
use super::world::chunk_id;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::policy::Scheme;
use mzcache::state::{Action, Event, EvictPolicy, Outcome, Paths, Roles, Stop};
use mzcache::units::{ByteCount, FlashRecord, LayerIndex, RamRecord, TokenCount, Unit};
use mzcache::{Code, Error};

/// How ports fail; the first two are not the copy's fault.
const CODES: [Code; 8] = [
    Code::Io,
    Code::Leased,
    Code::Corrupt,
    Code::ShortRead,
    Code::Truncated,
    Code::BadMagic,
    Code::Unsupported,
    Code::Mismatch,
];

/// One event, or a short run of work without faults; operands follow.
pub fn happen(run: &mut Run, byte: u8, reader: &mut Reader<'_>) {
    let tally = *run.machine.tally();
    let event = match byte % 16 {
        0 => Event::Next(Roles::from_bits_truncate(byte >> 4)),
        1 => return end_one(run, reader),
        2 | 3 => {
            for _ in 0..byte >> 4 {
                run.work(Roles::all());
            }
            return;
        }
        4 => restore(run.machine.tokens(), byte),
        5 => restore(tokens(run, reader), byte),
        6 => Event::Commit(tokens(run, reader)),
        7 => Event::Truncate(tokens(run, reader)),
        8 => {
            let share = u64::from(reader.byte());
            // 255 asks for more than there is.
            let bytes = ByteCount::new(tally.total_bytes() / 250 * share);
            let paths = Paths { ram: byte & 16 == 0, flash: byte & 32 == 0 };
            let scheme = if byte & 64 == 0 { Scheme::Hybrid } else { Scheme::PartialOffload };
            let order = run.choices.order;
            Event::Evict { bytes, policy: EvictPolicy { scheme, order, paths } }
        }
        9 => Event::StopEvict(if byte & 16 == 0 { Stop::Deadline } else { Stop::Cancelled }),
        10 => Event::Cancel,
        11 => Event::Used(LayerIndex::new(u16::from(byte >> 4) % (SHAPE.layers + 3))),
        12 => return run.world.compute(&run.machine),
        13 => return end_what_was_not_begun(run, reader),
        14 => match byte >> 4 {
            0..10 => Event::Save,
            10 | 11 => Event::StopSave(Stop::Deadline),
            12 | 13 => Event::Sealed(Ok(())),
            _ => Event::Sealed(Err(Error::new(Code::Io, "injected"))),
        },
        _ => return run.settle(),
    };
    let result = run.step(event);
    if matches!(event, Event::Commit(_)) && result.is_err_and(|e| e.code == Code::Cancelled) {
        // Compute is told to do its pass again.
        run.world.forget_drafts();
    }
}

fn restore(tokens: TokenCount, byte: u8) -> Event {
    Event::Restore { tokens, allocate_first: byte & 16 != 0 }
}

/// A length around the context's, or far from it.
fn tokens(run: &Run, reader: &mut Reader<'_>) -> TokenCount {
    let now = run.machine.tokens().get();
    let most = u32::from(COLUMNS) * u32::from(CHUNK_TOKENS);
    TokenCount::new(match u32::from(reader.byte()) {
        255 => u32::MAX,
        254 => most + 1,
        byte @ 200.. => now.saturating_sub(1 + (byte - 200) * 5),
        byte @ 150.. => (byte - 150) * 22,
        byte => (now + byte * 4).min(most),
    })
}

/// An action that was given out ends, well or badly or in nonsense.
fn end_one(run: &mut Run, reader: &mut Reader<'_>) {
    let byte = reader.byte();
    let count = run.world.in_flight.len();
    if count == 0 {
        return;
    }
    let index = usize::from(byte & 15) % count;
    match byte >> 4 {
        0..10 => {
            let action = run.world.in_flight.remove(index);
            let outcome = run.world.perform(action);
            run.step(Event::Done(action, outcome)).unwrap();
        }
        10..14 => run.fail(index, reader.pick(&CODES)),
        _ => {
            let action = run.world.in_flight[index];
            let wrong = match action {
                Action::Pack { .. } | Action::Spill { .. } | Action::Write { .. } => Outcome::Done,
                _ if byte & 16 == 0 => Outcome::Packed(RamRecord::default()),
                _ => Outcome::Written(FlashRecord::default()),
            };
            run.step(Event::Done(action, wrong)).unwrap_err();
        }
    }
}

/// A worker reports an action that was never given out, or reports it twice.
fn end_what_was_not_begun(run: &mut Run, reader: &mut Reader<'_>) {
    let kind = reader.byte();
    let place = reader.byte();
    let detail = reader.byte();
    let id = chunk_id(u16::from(place & 15) % (SHAPE.layers + 2), u16::from(place >> 4) % 6);
    let weights = Unit::Weights(id.layer);
    let unit = if detail & 1 == 0 { weights } else { Unit::Kv(id) };
    let known = run.machine.chunk(id);
    let ram = known.map_or(RamRecord::default(), |chunk| chunk.ram);
    let flash = known.map_or(FlashRecord::default(), |chunk| chunk.flash);
    let record = RamRecord { bytes: ram.bytes ^ u32::from(detail >> 7), ..ram };
    let tokens = known.map_or(0, |chunk| chunk.ram_tokens) ^ u16::from(detail >> 6 & 1);
    let is_new = unit == Unit::Kv(id) && known.is_some_and(|chunk| chunk.tokens == 0);
    let action = match kind % 8 {
        0 => Action::Pack { id, tokens },
        1 => Action::Write { id },
        2 => Action::Spill { id, record },
        3 => Action::Release { unit },
        4 => Action::Allocate { unit, is_new },
        5 => Action::ReadWeights { layer: id.layer, part: u32::from(detail & 63) },
        6 => Action::ReadChunk { id, record: flash, tokens },
        _ => Action::Unpack { id, record, tokens },
    };
    if run.world.in_flight.contains(&action) {
        return;
    }
    let outcome = match action {
        Action::Pack { .. } => Outcome::Packed(RamRecord::default()),
        Action::Write { .. } | Action::Spill { .. } => Outcome::Written(FlashRecord::default()),
        _ => Outcome::Done,
    };
    run.step(Event::Done(action, outcome)).unwrap_err();
}
