//! The rates that evictions are planned by: what both paths reach in a restore of this run.
//!
//! Of each path counts what it brought back before the other one ran out of work: with as many
//! workers as the engine has, into fresh buffers of its backend, while they take cores, storage and
//! memory from each other. A rate measured alone promises more than a path keeps beside the other.

use super::recorder::{Act, Record, is_reading, is_unpacking};
use super::subject::Subject;
use super::table::median;
use crate::amount::Percent;
use crate::engine::Engine;
use crate::failure::Outcome;
use mzcache::policy::Profile;
use mzcache::state::Action;
use mzcache::units::Nanos;
use std::time::Duration;

/// Trials from each level.
const ROUNDS: usize = 3;
/// As long as a context has to be for both paths to be busy for a while.
const TOKENS_MAX: u32 = 8192;

/// Bytes a second of all workers of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reached {
    unpack: f64,
    read: f64,
}

/// A profile by trial restores of a context of up to so many tokens. Where never both paths had
/// something to do, they keep the rates that the engine was opened with.
pub fn profile(subject: &mut Subject, tokens: u32) -> Outcome<Profile> {
    subject.renew(tokens.min(TOKENS_MAX))?;
    let mut reached = Vec::new();
    // With nothing left, nothing is left to unpack either.
    for level in Percent::LEVELS.into_iter().filter(|level| level.get() > 0.0) {
        for _ in 0..ROUNDS {
            subject.evict_to(level, subject.policy())?;
            subject.restore()?;
            let bytes = |action: &Action| filled_bytes(subject, action);
            reached.extend(Reached::of(&subject.recorder.read(), bytes));
        }
    }
    let engine = &subject.engine;
    let mut profile = Profile { write_bytes_per_s: whole(subject.rates.write), ..engine.profile };
    let codec = profile.rates_mut(engine.codec);
    codec.pack_bytes_per_s = whole(subject.rates.pack);
    if !reached.is_empty() {
        let unpack = median(reached.iter().map(|reached| reached.unpack).collect());
        codec.unpack_bytes_per_s = whole(unpack / f64::from(engine.unpackers.max(1)));
        profile.read_bytes_per_s = whole(median(reached.iter().map(|r| r.read).collect()));
    }
    Ok(profile)
}

/// What evictions are planned by, for people.
pub fn describe(profile: &Profile, engine: &Engine) -> String {
    let gb = |bytes_per_s: u64| Duration::from_nanos(bytes_per_s).as_secs_f64();
    let unpack = profile.rates(engine.codec).map_or(0, |rates| rates.unpack_bytes_per_s);
    format!(
        "planning by what trial restores reached: {} unpack {:.2} GB/s each, reads {:.2} GB/s",
        engine.unpackers,
        gb(unpack),
        gb(profile.read_bytes_per_s),
    )
}

impl Reached {
    /// `None` where one of the paths had nothing to do.
    fn of(record: &Record, bytes: impl Fn(&Action) -> u64) -> Option<Reached> {
        let (start, _) = record.span(|_| true)?;
        let end = record.span(is_unpacking)?.1.min(record.span(is_reading)?.1);
        let done = |act: &Act| {
            // Of an action that went on, the part that lies before.
            let whole = seconds(act.start, act.end).max(1e-9);
            let share = seconds(act.start, act.end.min(end)) / whole;
            #[expect(clippy::cast_precision_loss, reason = "sizes for a rate")]
            let bytes = bytes(&act.action) as f64;
            share * bytes
        };
        let rate = |is_meant: fn(&Action) -> bool| {
            let acts = record.acts.iter().filter(|act| is_meant(&act.action));
            acts.map(done).sum::<f64>() / seconds(start, end).max(1e-9)
        };
        let reached = Reached { unpack: rate(is_unpacking), read: rate(is_reading) };
        (reached.unpack > 0.0 && reached.read > 0.0).then_some(reached)
    }
}

/// Bytes of a buffer that an action of a restore fills.
fn filled_bytes(subject: &Subject, action: &Action) -> u64 {
    match *action {
        Action::ReadWeights { layer, part } => subject.part_bytes(layer, part),
        _ => subject.unit_bytes(action.unit()),
    }
}

/// None backwards.
fn seconds(from: Nanos, to: Nanos) -> f64 {
    Duration::from_nanos(to.since(from).get()).as_secs_f64()
}

/// A rate of a profile is never 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn whole(rate: f64) -> u64 {
    (rate as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mzcache::units::{ChunkId, LayerIndex, RamRecord};

    fn act(action: Action, start: u64, end: u64) -> Act {
        let at = |ms: u64| Nanos::new(ms * 1_000_000);
        Act { worker: 0, action, has_failed: false, start: at(start), end: at(end) }
    }

    fn unpack(start: u64, end: u64) -> Act {
        let (id, record) = (ChunkId::default(), RamRecord::default());
        act(Action::Unpack { id, record, tokens: 256 }, start, end)
    }

    fn read(start: u64, end: u64) -> Act {
        act(Action::ReadWeights { layer: LayerIndex::new(0), part: 0 }, start, end)
    }

    fn reached(acts: Vec<Act>) -> Option<Reached> {
        Reached::of(&Record { acts, openings: Vec::new() }, |_| 1_000_000)
    }

    #[test]
    fn what_a_path_does_alone_does_not_count() {
        // Both are busy for 20 ms: two chunks, a read and a half.
        let found = reached(vec![
            unpack(100, 110),
            read(100, 115),
            unpack(110, 120),
            read(115, 125),
            read(125, 130),
        ]);
        let found = found.unwrap();
        assert!((found.unpack - 100e6).abs() < 1.0 && (found.read - 75e6).abs() < 1.0, "{found:?}");
        assert_eq!(reached(vec![read(0, 1)]), None);
        // One had ended before the other began.
        assert_eq!(reached(vec![unpack(0, 1), read(2, 3)]), None);
        assert_eq!(reached(vec![]), None);
    }

    #[test]
    fn rates_of_a_profile_are_whole_and_not_0() {
        assert_eq!([whole(0.0), whole(2.9), whole(f64::MAX)], [1, 2, u64::MAX]);
    }
}
