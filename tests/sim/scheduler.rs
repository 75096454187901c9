//! Threads that run one at a time, in an order that the seed fixes, and the time that they see.
//!
//! A thread goes on until it reaches a point (each port call is one), waits or ends; then somebody
//! who can run is drawn. Nobody else runs meanwhile, so a run is the same every time. Time passes
//! only by what calls take, and by waiting when nobody can run. When a run ends early, by a power
//! cut or a failure, every thread unwinds from the point where it is.

use crate::random::Random;
use mzcache::port::{Body, Clock, Park, ThreadId, ThreadSpec, Threads};
use mzcache::sync::Word;
use mzcache::units::Nanos;
use mzcache::{Code, Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{JoinHandle, panicking};

thread_local! {
    static ME: Cell<usize> = const { Cell::new(0) };
}

/// Why threads unwind.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    PowerCut,
    /// The test is over for them.
    Over,
    Failure(String),
}

/// What they unwind with.
struct Ended;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Status {
    Ready,
    Waiting {
        word: usize,
        until: Option<u64>,
    },
    /// Never runs again.
    Dead,
    Done,
}

struct Task {
    turn: Arc<Condvar>,
    status: Status,
}

impl Task {
    fn new() -> Self {
        Task { turn: Arc::default(), status: Status::Ready }
    }
}

/// How threads take turns.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Somebody else goes on at one point in so many.
    pub switch_one_in: u64,
    /// A wait ends for no reason, one in so many.
    pub spurious_one_in: u64,
}

struct State {
    random: Random,
    pace: Pace,
    now: u64,
    heat: u64,
    current: usize,
    tasks: Vec<Task>,
    handles: Vec<JoinHandle<()>>,
    points: u64,
    points_max: u64,
    power_cut_at: Option<u64>,
    end: Option<End>,
}

impl State {
    /// Somebody who can go on now.
    fn choose(&mut self) -> Option<usize> {
        let (now, is_over) = (self.now, self.end.is_some());
        for task in &mut self.tasks {
            if matches!(task.status, Status::Waiting { until: Some(until), .. } if until <= now) {
                task.status = Status::Ready;
            }
        }
        let can = |task: &Task| match is_over {
            true => task.status != Status::Done,
            false => task.status == Status::Ready,
        };
        let count = self.tasks.iter().filter(|task| can(task)).count();
        let nth = self.random.below(count.max(1) as u64);
        let able = self.tasks.iter().enumerate().filter(|(_, task)| can(task));
        able.map(|(index, _)| index).nth(usize::try_from(nth).unwrap())
    }

    /// Nobody can go on: lets time pass until somebody has waited long enough.
    fn sleep(&mut self) {
        let until = |task: &Task| match task.status {
            Status::Waiting { until, .. } => until,
            _ => None,
        };
        match self.tasks.iter().filter_map(until).min() {
            Some(until) => self.now = self.now.max(until),
            None => self.fail("everybody waits"),
        }
    }

    fn fail(&mut self, why: &str) {
        if !matches!(self.end, Some(End::Failure(_))) {
            self.end = Some(End::Failure(why.into()));
        }
    }
}

/// All threads of a run; clones are the same.
#[derive(Clone)]
pub struct Scheduler(Arc<Mutex<State>>);

impl Scheduler {
    /// With the calling thread as the only one.
    pub fn new(random: Random) -> Self {
        ME.set(0);
        let pace = Pace { switch_one_in: 0, spurious_one_in: 0 };
        Scheduler(Arc::new(Mutex::new(State {
            random,
            pace,
            now: 1,
            heat: 1,
            current: 0,
            tasks: vec![Task::new()],
            handles: vec![],
            points: 0,
            points_max: u64::MAX,
            power_cut_at: None,
            end: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn draw<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(&mut self.state().random)
    }

    pub fn set_pace(&self, pace: Pace) {
        self.state().pace = pace;
    }

    /// Everything takes so many times as long.
    pub fn set_heat(&self, heat: u64) {
        self.state().heat = heat;
    }

    /// Power fails after so many points, or not.
    pub fn cut_power_after(&self, points: Option<u64>) {
        let mut state = self.state();
        state.power_cut_at = points.map(|points| state.points + points);
    }

    /// More points than these from here on are a failure.
    pub fn allow_points(&self, points: u64) {
        let mut state = self.state();
        state.points_max = state.points + points;
    }

    pub fn points(&self) -> u64 {
        self.state().points
    }

    pub fn end(&self) -> Option<End> {
        self.state().end.clone()
    }

    pub fn spend(&self, nanos: u64) {
        let mut state = self.state();
        state.now += nanos * state.heat;
    }

    /// Somebody else may go on here.
    pub fn point(&self) {
        if panicking() {
            return;
        }
        let mut state = self.state();
        state.points += 1;
        state.now += 20;
        if state.power_cut_at.is_some_and(|at| state.points >= at) && state.end.is_none() {
            state.end = Some(End::PowerCut);
        }
        if state.points > state.points_max {
            state.fail("no end: more points than a call can have");
        }
        let one_in = state.pace.switch_one_in;
        let is_over = state.end.is_some();
        if is_over || state.tasks.len() > 1 && state.random.one_in(one_in) {
            self.pass_turn(state);
        }
    }

    /// Lets somebody run, and returns when it is this thread's turn again.
    fn pass_turn(&self, mut state: MutexGuard<'_, State>) {
        let me = ME.get();
        if state.end.is_some() {
            // Each unwinds in its turn; this one has it.
            drop(state);
            resume_unwind(Box::new(Ended));
        }
        let next = loop {
            match state.choose() {
                Some(next) => break next,
                None => state.sleep(),
            }
        };
        self.give_turn(&mut state, next);
        let turn = state.tasks[me].turn.clone();
        while state.current != me {
            state = turn.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        let is_over = state.end.is_some();
        drop(state);
        if is_over {
            resume_unwind(Box::new(Ended));
        }
    }

    fn give_turn(&self, state: &mut State, next: usize) {
        state.current = next;
        state.tasks[next].turn.notify_one();
    }

    /// Starts a thread, which runs when it is drawn.
    pub fn start(&self, work: impl FnOnce() + Send + 'static) -> usize {
        let mut state = self.state();
        let index = state.tasks.len();
        let turn = Arc::new(Condvar::new());
        state.tasks.push(Task { turn: turn.clone(), status: Status::Ready });
        let scheduler = self.clone();
        let body = move || {
            ME.set(index);
            let mut state = scheduler.state();
            while state.current != index {
                state = turn.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            let is_over = state.end.is_some();
            drop(state);
            let result = match is_over {
                true => Ok(()),
                false => catch_unwind(AssertUnwindSafe(work)),
            };
            scheduler.leave(index, result.err());
        };
        let handle = std::thread::Builder::new().stack_size(512 << 10).spawn(body).unwrap();
        state.handles.push(handle);
        index
    }

    fn leave(&self, index: usize, panic: Option<Box<dyn std::any::Any + Send>>) {
        let mut state = self.state();
        state.tasks[index].status = Status::Done;
        if let Some(panic) = panic
            && !panic.is::<Ended>()
        {
            state.fail(&message(&*panic));
        }
        // Who joins this thread waits at its number.
        wake(&mut state, index);
        let next = loop {
            match state.choose() {
                Some(next) => break next,
                None => state.sleep(),
            }
        };
        self.give_turn(&mut state, next);
    }

    /// Waits until a thread has ended, or has died.
    pub fn wait_for(&self, index: usize) {
        while !panicking() {
            let mut state = self.state();
            if matches!(state.tasks[index].status, Status::Done | Status::Dead) {
                return;
            }
            state.tasks[ME.get()].status = Status::Waiting { word: index, until: None };
            self.pass_turn(state);
        }
    }

    /// Lets that much time pass.
    pub fn pause(&self, nanos: u64) {
        let mut state = self.state();
        let until = Some(state.now + nanos);
        state.tasks[ME.get()].status = Status::Waiting { word: usize::MAX, until };
        self.pass_turn(state);
    }

    /// One of the threads that wait dies there, if they all do; the caller is not one of them.
    pub fn kill_one(&self) -> bool {
        self.pause(1 << 40);
        let mut state = self.state();
        let waits = |task: &Task| matches!(task.status, Status::Waiting { until: None, .. });
        let waiting: Vec<_> = (1..state.tasks.len()).filter(|i| waits(&state.tasks[*i])).collect();
        if waiting.is_empty() {
            return false;
        }
        let index = state.random.pick(&waiting);
        state.tasks[index].status = Status::Dead;
        true
    }

    /// The first thread is about to leave: all others unwind, one after the other.
    pub fn finish(&self) {
        let mut state = self.state();
        state.end.get_or_insert(End::Over);
        let alive = |state: &State| {
            (1..state.tasks.len()).find(|index| state.tasks[*index].status != Status::Done)
        };
        let turn = state.tasks[0].turn.clone();
        while let Some(next) = alive(&state) {
            self.give_turn(&mut state, next);
            while state.current != 0 {
                state = turn.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        for handle in handles {
            handle.join().unwrap();
        }
    }

    /// After `finish`: the first thread begins again, on its own.
    pub fn restart(&self) {
        let mut state = self.state();
        state.tasks.truncate(1);
        state.tasks[0].status = Status::Ready;
        (state.end, state.power_cut_at) = (None, None);
    }
}

fn wake(state: &mut State, word: usize) {
    for task in &mut state.tasks {
        if matches!(task.status, Status::Waiting { word: at, .. } if at == word) {
            task.status = Status::Ready;
        }
    }
}

/// What a panic says.
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
    text.unwrap_or_else(|| "a panic without words".into())
}

/// Whether it unwound because the run ended.
pub fn is_end(panic: &(dyn std::any::Any + Send)) -> bool {
    panic.is::<Ended>()
}

impl Clock for Scheduler {
    fn now(&self) -> Nanos {
        self.point();
        Nanos::new(self.state().now)
    }
}

impl Park for Scheduler {
    fn wait(&self, word: &Word, expected: u32, timeout: Option<Nanos>) {
        if panicking() {
            return;
        }
        let mut state = self.state();
        state.points += 1;
        if state.points > state.points_max {
            state.fail("no end: more waits than a call can have");
        }
        let one_in = state.pace.spurious_one_in;
        if word.load() != expected || state.random.one_in(one_in) {
            return;
        }
        let until = timeout.map(|timeout| state.now + timeout.get());
        let word = std::ptr::from_ref(word).addr();
        state.tasks[ME.get()].status = Status::Waiting { word, until };
        self.pass_turn(state);
    }

    fn wake_all(&self, word: &Word) {
        wake(&mut self.state(), std::ptr::from_ref(word).addr());
        self.point();
    }
}

/// Worker threads as the scheduler's.
pub struct Workers {
    pub scheduler: Scheduler,
    /// Whether the next thread cannot be started.
    pub refuse: Box<dyn Fn() -> bool + Sync>,
}

impl Threads for Workers {
    fn spawn(&self, _spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        if (self.refuse)() {
            return Err(Error::new(Code::LimitExceeded, "simulated thread"));
        }
        Ok(ThreadId(self.scheduler.start(|| body.run()) as u64))
    }

    fn join(&self, thread: ThreadId) {
        self.scheduler.wait_for(usize::try_from(thread.0).unwrap());
    }

    fn pin(&self, core: u16) -> Result<()> {
        Err(Error::new(Code::Unsupported, "simulated core").with(core))
    }
}
