//! How long each part of a pass takes: by the accelerator's own clock where its events have one,
//! else by the host's, which then waits for every command.
//!
//! Whatever the clock, moments are told on the host's. The device's is ahead of it by a constant,
//! for as long as a pass takes: at least by what shows when a command says that it was enqueued
//! later than the host heard of it, or that it ended after the pass was over. Over all commands
//! the largest of these is right to within the time of one call. (Drivers that could be asked for
//! both clocks at once are rare, and loaders pass the question on to those that cannot.)

use mzcache::infer::{Part, Watch};
use mzcache::port::Clock as _;
use mzcache::port::linux::MonotonicClock;
use mzcache::port::opencl::Event;
use mzcache::units::Nanos;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    pub took: Nanos,
    /// From the first one's start to the last one's end, on the host's clock.
    pub start: Nanos,
    pub end: Nanos,
}

enum Took {
    Command { event: Event, heard: Nanos },
    Times { start: Nanos, end: Nanos },
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
    last: Nanos,
}

/// On the clock of the runtime's trace.
pub fn now() -> Nanos {
    MonotonicClock.now()
}

/// Hears of parts, and gathers what they took.
pub struct Stopwatch(Mutex<State>);

impl Stopwatch {
    pub fn new() -> Stopwatch {
        let state = State { marks: Vec::new(), clock: None, last: now() };
        Stopwatch(Mutex::new(state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn clock(&self) -> Clock {
        self.state().clock.unwrap_or(Clock::Wall)
    }

    /// The next part begins now.
    pub fn begin(&self) {
        self.state().last = now();
    }

    /// What was heard since the last time, of a pass that was over by then.
    pub fn take(&self, over: Nanos) -> mzcache::Result<Vec<Sample>> {
        let mut samples: Vec<Sample> = Vec::new();
        let marks = std::mem::take(&mut self.state().marks);
        let ahead = ahead(&marks, over)?;
        for mark in marks {
            let (start, end) = match mark.took {
                Took::Command { event, .. } => {
                    let times = event.times()?;
                    (moved(times.started, ahead), moved(times.ended, ahead))
                }
                Took::Times { start, end } => (start, end),
            };
            let took = end.since(start);
            let commands = usize::from(mark.is_command);
            match samples.last_mut().filter(|sample| sample.part == mark.part) {
                Some(sample) => {
                    sample.commands += commands;
                    sample.took = Nanos::new(sample.took.get() + took.get());
                    sample.end = end;
                }
                None => {
                    samples.push(Sample { part: mark.part, commands, took, start, end });
                }
            }
        }
        Ok(samples)
    }

    fn mark(&self, state: &mut State, part: Part, is_command: bool) {
        let (start, end) = (state.last, now());
        state.marks.push(Mark { part, is_command, took: Took::Times { start, end } });
        state.last = now();
    }
}

/// By how much the device's clock is ahead of the host's.
fn ahead(marks: &[Mark], over: Nanos) -> mzcache::Result<i64> {
    let by = |device: Nanos, host: Nanos| device.get().cast_signed() - host.get().cast_signed();
    let mut ahead = i64::MIN;
    for mark in marks {
        if let Took::Command { event, heard } = &mark.took {
            let times = event.times()?;
            ahead = ahead.max(by(times.queued, *heard)).max(by(times.ended, over));
        }
    }
    Ok(ahead)
}

/// A moment of the device's clock on the host's.
fn moved(time: Nanos, ahead: i64) -> Nanos {
    Nanos::new(time.get().saturating_add_signed(ahead.saturating_neg()))
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
                let took = Took::Command { event, heard: now() };
                state.marks.push(Mark { part, is_command: true, took });
            }
            Clock::Wall => self.mark(&mut state, part, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mzcache::port::opencl::{Api, Block, Choice, Context, Devices, MemoryMode, Queue};

    /// Two commands of one part, and what was heard of them, all between two moments.
    fn copies(context: &Context, has_clock: bool) -> (Vec<Sample>, Clock) {
        const BYTES: usize = 1 << 20;
        let queue = Queue::new(context, has_clock).unwrap();
        let block = || Block::new(context, &queue, MemoryMode::Buffers, BYTES).unwrap();
        let (from, mut to) = (block(), block());
        let start = now();
        let watch = Stopwatch::new();
        for _ in 0..2 {
            watch.enqueued(Part::Output, "copy", from.copy_to(&mut to, BYTES).unwrap());
        }
        queue.finish().unwrap();
        let over = now();
        let samples = watch.take(over).unwrap();
        assert!(samples.iter().all(|sample| sample.start >= start && sample.end <= over));
        (samples, watch.clock())
    }

    #[test]
    fn commands_without_a_clock_of_their_own_are_timed_by_the_host_s() {
        let device = Api::load(None).and_then(|api| {
            let api: &'static Api = Box::leak(Box::new(api));
            Context::new(api, &Devices::enumerate(api)?.choose(Choice::Best)?)
        });
        let context = match device {
            Ok(context) => context,
            Err(error) => {
                assert!(std::env::var_os("MZ_CI").is_none(), "{error}");
                eprintln!("NOT CHECKED: no accelerator: {error}");
                return;
            }
        };
        for (has_clock, expected) in [(true, Clock::Events), (false, Clock::Wall)] {
            let (samples, clock) = copies(&context, has_clock);
            assert_eq!(clock, expected);
            assert_eq!(samples.len(), 1);
            let sample = samples[0];
            assert_eq!((sample.part, sample.commands), (Part::Output, 2));
            assert!(sample.took.get() > 0 && sample.end.since(sample.start) >= sample.took);
        }
    }

    #[test]
    fn marks_of_one_part_are_one_sample() {
        let watch = Stopwatch::new();
        for part in [Part::Start, Part::Project, Part::Project, Part::Heads, Part::Project] {
            watch.computed(part);
        }
        let samples = watch.take(now()).unwrap();
        let parts: Vec<Part> = samples.iter().map(|sample| sample.part).collect();
        assert_eq!(parts, [Part::Start, Part::Project, Part::Heads, Part::Project]);
        for sample in &samples {
            assert!(sample.end >= sample.start && sample.commands == 0);
        }
        assert!(samples.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(watch.take(now()).unwrap(), []);
        assert_eq!(watch.clock(), Clock::Wall);
    }
}
