//! One restore as a trace that Perfetto opens (the JSON of Chrome's Trace Event Format).
//!
//! A track for each worker, one for the answer as its caller sees it, and one for what computes:
//! the processor, or the accelerator's queue by the times that the device gives its commands,
//! moved to the host's clock. Gates are flows from where they opened to the layer that waited for
//! them.

use super::super::stopwatch::{Clock, Sample, Stopwatch, now};
use super::recorder::Record;
use super::subject::Subject;
use super::table::write;
use crate::amount::Percent;
use crate::failure::Outcome;
use mzcache::infer::Part;
use mzcache::state::Action;
use mzcache::units::{Kind, LayerIndex, Nanos, Unit};
use serde_json::{Value, json};
use std::path::Path;

/// Tracks that are no workers.
const CALLER: usize = 1000;
const COMPUTE: usize = 1001;

/// Evicts, answers, and writes what happened meanwhile.
pub fn write_restore(subject: &mut Subject, level: Percent, path: &Path) -> Outcome<()> {
    subject.evict_to(level, subject.policy())?;
    let watch: &'static Stopwatch = Box::leak(Box::new(Stopwatch::new()));
    subject.engine.session.watch(Some(watch));
    let start = now();
    watch.begin();
    let answered = subject.ask();
    let over = now();
    subject.engine.session.watch(None);
    // What comes behind the first token is not the answer's.
    let took = u64::try_from(answered?.as_nanos()).unwrap_or(u64::MAX);
    let end = Nanos::new(start.get().saturating_add(took));
    let samples = watch.take(over)?;
    let record = subject.recorder.read();
    let events = events(&record, &samples, watch.clock(), (start, end));
    let trace = json!({ "displayTimeUnit": "ms", "traceEvents": events });
    write(path, &format!("{trace}\n"))
}

/// What happened from the question to its answer.
fn events(
    record: &Record,
    samples: &[Sample],
    clock: Clock,
    (start, end): (Nanos, Nanos),
) -> Vec<Value> {
    let mut events = vec![name(CALLER, "caller")];
    events.push(span("answer", CALLER, Nanos::new(0), end.since(start)));
    let workers = record.acts.iter().map(|act| act.worker).max().map_or(0, |last| last + 1);
    for worker in 0..workers {
        let does = record.acts.iter().find(|act| act.worker == worker);
        let does = does.map_or("idle", |act| role(&act.action));
        events.push(name(worker, &format!("worker {worker}: {does}")));
    }
    events.push(name(
        COMPUTE,
        match clock {
            Clock::Events => "accelerator queue",
            Clock::Wall => "compute",
        },
    ));
    for act in &record.acts {
        let failed = if act.has_failed { " failed" } else { "" };
        let title = format!("{} {}{failed}", verb(&act.action), unit(act.action.unit()));
        events.push(span(&title, act.worker, act.start.since(start), act.end.since(act.start)));
    }
    let layers = layers(record, samples, start);
    for (title, begin, took) in &layers.spans {
        events.push(span(title, COMPUTE, *begin, *took));
    }
    for (id, (opened, waited)) in layers.flows.iter().enumerate() {
        events.push(flow("s", id, opened.0, opened.1));
        events.push(flow("f", id, COMPUTE, *waited));
    }
    events
}

#[derive(Default)]
struct Layers {
    /// Title, begin since the start, duration.
    spans: Vec<(String, Nanos, Nanos)>,
    /// The worker and time that opened a gate, and when the layer behind it began.
    flows: Vec<((usize, Nanos), Nanos)>,
}

/// The samples with their layers; a part that waited for a gate begins when the gate opened.
fn layers(record: &Record, samples: &[Sample], start: Nanos) -> Layers {
    let mut layers = Layers::default();
    let mut layer = None;
    for sample in samples {
        if sample.part == Part::Project {
            layer = Some(layer.map_or(0, |layer: u16| layer + 1));
        }
        let (mut begin, end) = (sample.start.since(start), sample.end.since(start));
        let kind = match sample.part {
            Part::Project => Some(Kind::Weights),
            Part::Heads => Some(Kind::Kv),
            _ => None,
        };
        let opening = kind.zip(layer).and_then(|(kind, layer)| {
            let layer = LayerIndex::new(layer);
            record.openings.iter().find(|opening| (opening.layer, opening.kind) == (layer, kind))
        });
        if let Some(opening) = opening {
            let now = opening.now.since(start);
            if now > begin && now < end {
                begin = now;
            }
            layers.flows.push(((opener(record, opening.now), now), begin));
        }
        let part = sample.part;
        let title = match layer.filter(|_| part != Part::Head) {
            Some(layer) => format!("{part:?} {layer}"),
            None => format!("{part:?}"),
        };
        layers.spans.push((title, begin, end.since(begin)));
    }
    layers
}

/// Whose action had ended last when a gate opened.
fn opener(record: &Record, now: Nanos) -> usize {
    let before = record.acts.iter().filter(|act| act.end <= now);
    before.max_by_key(|act| act.end).map_or(0, |act| act.worker)
}

fn role(action: &Action) -> &'static str {
    match action {
        Action::Allocate { .. } | Action::Release { .. } => "allocates",
        Action::ReadWeights { .. } | Action::ReadChunk { .. } => "reads",
        Action::Write { .. } | Action::Spill { .. } => "writes",
        Action::Pack { .. } | Action::Unpack { .. } => "unpacks",
    }
}

fn verb(action: &Action) -> &'static str {
    match action {
        Action::Pack { .. } => "pack",
        Action::Write { .. } => "write",
        Action::Spill { .. } => "spill",
        Action::Release { .. } => "release",
        Action::Allocate { .. } => "allocate",
        Action::ReadWeights { .. } | Action::ReadChunk { .. } => "read",
        Action::Unpack { .. } => "unpack",
    }
}

fn unit(unit: Unit) -> String {
    match unit {
        Unit::Weights(layer) => format!("weights {}", layer.get()),
        Unit::Kv(id) => format!("KV {}.{}", id.layer.get(), id.chunk.get()),
    }
}

/// Microseconds, as the format counts.
fn micros(nanos: Nanos) -> f64 {
    nanos.as_millis_f64() * 1e3
}

fn name(track: usize, text: &str) -> Value {
    json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": track, "args": { "name": text } })
}

fn span(title: &str, track: usize, begin: Nanos, took: Nanos) -> Value {
    let (begin, took) = (micros(begin), micros(took));
    json!({ "ph": "X", "name": title, "pid": 1, "tid": track, "ts": begin, "dur": took })
}

fn flow(phase: &str, id: usize, track: usize, at: Nanos) -> Value {
    json!({
        "ph": phase, "bp": "e", "id": id, "name": "gate", "cat": "gate", "pid": 1, "tid": track,
        "ts": micros(at)
    })
}

#[cfg(test)]
mod tests {
    use super::super::recorder::{Act, Opening};
    use super::*;

    #[test]
    fn a_restore_becomes_tracks_spans_and_flows() {
        let at = |ms: u64| Nanos::new(ms * 1_000_000);
        let layer = LayerIndex::new(0);
        let action = Action::ReadWeights { layer, part: 0 };
        let act = Act { worker: 1, action, has_failed: false, start: at(101), end: at(104) };
        let opening = Opening { layer, kind: Kind::Weights, now: at(105) };
        let record = Record { acts: vec![act], openings: vec![opening] };
        let sample = |part, start: u64, end: u64| Sample {
            part,
            commands: 0,
            took: at(end - start),
            start: at(100 + start),
            end: at(100 + end),
        };
        let samples = [sample(Part::Start, 0, 1), sample(Part::Project, 1, 8)];
        let events = events(&record, &samples, Clock::Wall, (at(100), at(109)));
        let of = |phase: &str| -> Vec<&Value> {
            events.iter().filter(|event| event["ph"] == phase).collect()
        };
        assert_eq!(of("M").len(), 4);
        let spans = of("X");
        assert_eq!(
            (spans[0]["name"].as_str(), spans[0]["dur"].as_f64()),
            (Some("answer"), Some(9e3))
        );
        assert_eq!(
            (spans[1]["name"].as_str(), spans[1]["tid"].as_u64()),
            (Some("read weights 0"), Some(1))
        );
        assert_eq!((spans[1]["ts"].as_f64(), spans[1]["dur"].as_f64()), (Some(1e3), Some(3e3)));
        // The projection waited for the gate, which opened 5 ms after the start.
        assert_eq!(
            (spans[3]["name"].as_str(), spans[3]["ts"].as_f64()),
            (Some("Project 0"), Some(5e3))
        );
        assert_eq!(spans[3]["dur"].as_f64(), Some(3e3));
        assert_eq!((of("s")[0]["tid"].as_u64(), of("f")[0]["tid"].as_u64()), (Some(1), Some(1001)));
    }
}
