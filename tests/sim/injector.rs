//! Real ports with one planned fault: the Nth call of a kind fails, once or from then on.

use mzcache::port::{
    Body, Clock, Meter, Ports, Region, SharedMemory, Storage, ThreadId, ThreadSpec, Threads, Use,
};
use mzcache::units::Nanos;
use mzcache::{Code, Error, Result};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// Kinds of port calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    ModelLength,
    ModelRead,
    SwapRead,
    SwapWrite,
    Allocate,
    /// The host takes a region that it could share with an accelerator.
    Begin,
    Spawn,
    Now,
    Measure,
}

/// What becomes of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done but to say so.
    Error(Code),
    /// A page less is read; of a write only the first page arrives, and it fails.
    Short,
    /// One bit is wrong, and nobody says so.
    Flip,
    /// A minute passes.
    Jump,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub call: Call,
    pub fault: Fault,
    /// From 0.
    pub nth: u64,
    pub forever: bool,
}

#[derive(Default)]
struct State {
    plan: Option<Plan>,
    /// Calls of the planned kind so far.
    calls: u64,
    fired: bool,
    jumped: u64,
    live: [u64; 3],
}

pub struct Injector {
    inner: Ports,
    state: Mutex<State>,
}

/// One of two files.
struct InjectedFile {
    injector: &'static Injector,
    read: Call,
}

impl Injector {
    pub fn new(inner: Ports) -> Self {
        Injector { inner, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn arm(&self, plan: Plan) {
        let mut state = self.state();
        (state.plan, state.calls, state.fired) = (Some(plan), 0, false);
    }

    /// No more faults from here on; whether there was one.
    pub fn heal(&self) -> bool {
        let mut state = self.state();
        state.plan = None;
        state.fired
    }

    pub fn has_fired(&self) -> bool {
        self.state().fired
    }

    pub fn live(&self, usage: Use) -> u64 {
        self.state().live[usage as usize]
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let mut state = self.state();
        let plan = state.plan.filter(|plan| plan.call == call)?;
        let nth = state.calls;
        state.calls += 1;
        let hits = nth == plan.nth || plan.forever && nth > plan.nth;
        state.fired |= hits;
        hits.then_some(plan.fault)
    }

    fn refuse(&self, call: Call) -> Result<()> {
        match self.fault(call) {
            Some(Fault::Error(code)) => Err(Error::new(code, "injected").with(5)),
            _ => Ok(()),
        }
    }

    /// Ports that lead here; `files` keeps what they refer to besides.
    pub fn ports(&'static self, files: &'static Files) -> Ports {
        Ports {
            model: &files.model,
            swap: self.inner.swap.map(|_| &files.swap as &dyn Storage),
            memory: self,
            clock: self,
            threads: self.inner.threads.map(|_| self as &dyn Threads),
            meter: Some(self),
            ..self.inner
        }
    }
}

/// The two files of an [`Injector`].
pub struct Files {
    model: InjectedFile,
    swap: InjectedFile,
}

impl Files {
    pub fn new(injector: &'static Injector) -> Self {
        let file = |read| InjectedFile { injector, read };
        Files { model: file(Call::ModelRead), swap: file(Call::SwapRead) }
    }
}

impl InjectedFile {
    fn inner(&self) -> &'static dyn Storage {
        match self.read {
            Call::ModelRead => self.injector.inner.model,
            _ => self.injector.inner.swap.unwrap(),
        }
    }
}

impl Storage for InjectedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match self.injector.fault(self.read) {
            Some(Fault::Error(code)) => Err(Error::new(code, "injected").with(5)),
            Some(Fault::Short) => {
                let end = into.len() - 4096;
                self.inner().read_at(offset, &mut into[..end])
            }
            Some(Fault::Flip) => {
                let bytes = self.inner().read_at(offset, into)?;
                into[bytes / 2] ^= 0x10;
                Ok(bytes)
            }
            _ => self.inner().read_at(offset, into),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        match self.injector.fault(Call::SwapWrite) {
            Some(Fault::Error(code)) => Err(Error::new(code, "injected").with(5)),
            Some(Fault::Short) => {
                self.inner().write_at(offset, &from[..4096])?;
                Err(Error::new(Code::Io, "injected").with(5))
            }
            _ => self.inner().write_at(offset, from),
        }
    }

    fn sync(&self) -> Result<()> {
        self.inner().sync()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.inner().discard(offset, bytes)
    }

    fn length(&self) -> Result<u64> {
        self.injector.refuse(Call::ModelLength)?;
        self.inner().length()
    }

    fn is_direct(&self) -> bool {
        self.inner().is_direct()
    }
}

// SAFETY: regions are the inner port's, handed through as they are.
unsafe impl SharedMemory for Injector {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        self.refuse(Call::Allocate)?;
        let region = self.inner.memory.allocate(usage, bytes)?;
        self.state().live[usage as usize] += region.bytes as u64;
        Ok(region)
    }

    unsafe fn release(&self, usage: Use, region: Region) {
        self.state().live[usage as usize] -= region.bytes as u64;
        // SAFETY: the caller's promise, handed on.
        unsafe { self.inner.memory.release(usage, region) };
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        self.refuse(Call::Begin)?;
        // SAFETY: the caller's promise, handed on.
        unsafe { self.inner.memory.begin_host(region) }
    }

    unsafe fn end(&self, region: &Region) {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.inner.memory.end(region) };
    }

    fn trim(&self) {
        self.inner.memory.trim();
    }
}

impl Clock for Injector {
    fn now(&self) -> Nanos {
        let jumps = self.fault(Call::Now) == Some(Fault::Jump);
        let mut state = self.state();
        state.jumped += u64::from(jumps) * 60_000_000_000;
        Nanos::new(self.inner.clock.now().get() + state.jumped)
    }
}

impl Threads for Injector {
    fn spawn(&self, spec: ThreadSpec<'_>, body: &'static dyn Body) -> Result<ThreadId> {
        self.refuse(Call::Spawn)?;
        self.inner.threads.unwrap().spawn(spec, body)
    }

    fn join(&self, thread: ThreadId) {
        self.inner.threads.unwrap().join(thread);
    }

    fn pin(&self, core: u16) -> Result<()> {
        self.inner.threads.unwrap().pin(core)
    }
}

impl Meter for Injector {
    fn resident_bytes(&self) -> Result<u64> {
        self.refuse(Call::Measure)?;
        self.inner.meter.unwrap().resident_bytes()
    }
}
