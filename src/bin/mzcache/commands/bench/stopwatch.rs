//! How long each part of a pass takes: by the accelerator's own clock where its events have one,
//! else by the host's, which then waits for every command.

use super::device::seconds;
use mzcache::infer::{Part, Watch};
use mzcache::port::opencl::{Event, EventTimes};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Where times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The device's profile of each command.
    Events,
    /// The host's clock, launches included.
    Wall,
}

impl Clock {
    pub const fn name(self) -> &'static str {
        match self {
            Clock::Events => "events",
            Clock::Wall => "wall",
        }
    }
}

/// One run of a part in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub part: Part,
    /// Commands; 0 on the processor.
    pub commands: usize,
    /// What its commands took, without what is between them.
    pub seconds: f64,
    /// From the first one's start to the last one's end.
    pub start: f64,
    pub end: f64,
}

enum Took {
    Event(Event),
    Seconds { start: f64, end: f64 },
}

struct Mark {
    part: Part,
    is_command: bool,
    took: Took,
}

struct State {
    marks: Vec<Mark>,
    /// Set by the first command.
    clock: Option<Clock>,
    last: Instant,
}

/// Hears of parts, and gathers what they took.
pub struct Stopwatch {
    start: Instant,
    state: Mutex<State>,
}

impl Stopwatch {
    pub fn new() -> Stopwatch {
        let start = Instant::now();
        let state = State { marks: Vec::new(), clock: None, last: start };
        Stopwatch { start, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn clock(&self) -> Clock {
        self.state().clock.unwrap_or(Clock::Wall)
    }

    /// The next part begins now.
    pub fn begin(&self) {
        self.state().last = Instant::now();
    }

    /// What was heard since the last time; the pass is over.
    pub fn take(&self) -> mzcache::Result<Vec<Sample>> {
        let mut samples: Vec<Sample> = Vec::new();
        for mark in std::mem::take(&mut self.state().marks) {
            let (start, end) = match mark.took {
                Took::Event(event) => ends(&event.times()?),
                Took::Seconds { start, end } => (start, end),
            };
            let commands = usize::from(mark.is_command);
            match samples.last_mut().filter(|sample| sample.part == mark.part) {
                Some(sample) => {
                    sample.commands += commands;
                    sample.seconds += end - start;
                    sample.end = end;
                }
                None => {
                    let (part, seconds) = (mark.part, end - start);
                    samples.push(Sample { part, commands, seconds, start, end });
                }
            }
        }
        Ok(samples)
    }

    fn mark(&self, state: &mut State, part: Part, is_command: bool) {
        let now = Instant::now();
        let start = state.last.duration_since(self.start).as_secs_f64();
        let end = now.duration_since(self.start).as_secs_f64();
        state.marks.push(Mark { part, is_command, took: Took::Seconds { start, end } });
        state.last = Instant::now();
    }
}

fn ends(times: &EventTimes) -> (f64, f64) {
    (seconds(times.started), seconds(times.ended))
}

impl Watch for Stopwatch {
    fn computed(&self, part: Part) {
        self.mark(&mut self.state(), part, false);
    }

    fn enqueued(&self, part: Part, _kernel: &'static str, event: Event) {
        let mut state = self.state();
        if state.clock != Some(Clock::Events) {
            // A command that failed is the pass's own error.
            let _failed = event.wait();
        }
        let clock = *state.clock.get_or_insert(match event.times() {
            Ok(_) => Clock::Events,
            Err(_) => Clock::Wall,
        });
        match clock {
            Clock::Events => {
                state.marks.push(Mark { part, is_command: true, took: Took::Event(event) });
            }
            Clock::Wall => self.mark(&mut state, part, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_one_part_are_one_sample() {
        let watch = Stopwatch::new();
        for part in [Part::Start, Part::Project, Part::Project, Part::Heads, Part::Project] {
            watch.computed(part);
        }
        let samples = watch.take().unwrap();
        let parts: Vec<Part> = samples.iter().map(|sample| sample.part).collect();
        assert_eq!(parts, [Part::Start, Part::Project, Part::Heads, Part::Project]);
        for sample in &samples {
            assert!(sample.seconds >= 0.0 && sample.end >= sample.start && sample.commands == 0);
        }
        assert!(samples.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(watch.take().unwrap(), []);
        assert_eq!(watch.clock(), Clock::Wall);
    }
}
