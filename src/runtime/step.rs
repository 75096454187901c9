//! The critical section: one event, one step, applied under the lock.

use super::open::{Core, Shared};
use crate::error::Result;
use crate::port::lock::Guard;
use crate::state::{Action, Event, Outcome, Roles, Step, Touched};
use crate::units::{Kind, LayerIndex, SegmentIndex, Unit};

impl Shared {
    /// Steps the machine once and applies the step.
    pub(super) fn event(&self, event: Event) -> Result<()> {
        self.event_on(self.core.lock(), event)
    }

    /// The same for whoever has the lock.
    pub(super) fn event_on(&self, mut core: Guard<'_, Core>, event: Event) -> Result<()> {
        let step = core.machine.step(event)?;
        let segment = self.apply(&mut core, &step);
        drop(core);
        self.release_segment(segment);
        self.announce();
        Ok(())
    }

    /// Notes that compute uses a layer. Nobody waits for that, so nobody is told.
    pub(super) fn used(&self, layer: LayerIndex) -> Result<()> {
        self.core.lock().machine.step(Event::Used(layer)).map(|_| ())
    }

    /// Work for a worker with these roles.
    pub(super) fn next(&self, roles: Roles) -> Option<Action> {
        let roles = roles & Roles::from_bits_truncate(self.roles.load().to_le_bytes()[0]);
        loop {
            let mut core = self.core.lock();
            let Ok(step) = core.machine.step(Event::Next(roles)) else {
                unreachable!("asking for work is always legal")
            };
            let segment = self.apply(&mut core, &step);
            let found_nothing = step.action.is_none() && !step.again;
            let vacant = match found_nothing && roles.contains(Roles::ALLOCATE) {
                true => core.take_vacant(),
                false => None,
            };
            drop(core);
            self.release_segment(segment);
            if vacant.is_some() {
                self.release_segment(vacant);
                continue;
            }
            if step.action.is_some() || step.touched != Touched::Nothing {
                self.announce();
            }
            if !step.again {
                return step.action;
            }
        }
    }

    /// Books a finished action; the answer is what the same worker does next.
    pub(super) fn done(&self, action: Action, outcome: Outcome) -> Option<Action> {
        let mut core = self.core.lock();
        let step = match core.machine.step(Event::Done(action, outcome)) {
            Ok(step) => step,
            Err(error) => unreachable!("{action:?} was given out: {error}"),
        };
        let segment = self.apply(&mut core, &step);
        drop(core);
        self.release_segment(segment);
        self.announce();
        step.action
    }

    /// Publishes, forgets and sets gates. Returns a segment whose memory is to be given back once
    /// the lock is free.
    pub(super) fn apply(&self, core: &mut Core, step: &Step) -> Option<SegmentIndex> {
        if let Some(unit) = step.publish {
            let published = self.buffers.publish(self.slot(unit));
            assert!(published.is_ok(), "a filled buffer can be published");
        }
        let segment = match step.forget.map(|record| core.stack.free(record)) {
            Some(Ok(Some(segment))) if core.machine.is_restoring() => {
                let kept = core.stack.segment_vacant(segment);
                assert!(kept.is_ok(), "the stack gave the segment out for release");
                None
            }
            Some(Ok(segment)) => segment,
            Some(Err(error)) => unreachable!("the table's record is the stack's: {error}"),
            None => None,
        };
        if let Some(restored) = core.machine.take_restored() {
            core.restore_error = restored.err();
        }
        match step.touched {
            Touched::Nothing => {}
            Touched::Gate(layer, kind) => {
                self.set_gate(core, Unit::Weights(layer), kind);
            }
            Touched::All => {
                for layer in self.layers() {
                    self.set_gate(core, Unit::Weights(layer), Kind::Weights);
                    self.set_gate(core, Unit::Weights(layer), Kind::Kv);
                }
            }
        }
        segment
    }

    fn set_gate(&self, core: &Core, unit: Unit, kind: Kind) {
        let layer = unit.layer();
        let ready = core.machine.is_ready(layer, kind);
        let restoring = core.machine.is_restoring();
        if self.gates.set(layer, kind, ready, restoring, self.ports.park) && ready {
            self.note_open(layer, kind);
        }
    }

    /// Tells everybody who is parked that something changed.
    pub(super) fn announce(&self) {
        self.work.increment();
        self.ports.park.wake_all(&self.work);
    }

    pub(super) fn release_segment(&self, segment: Option<SegmentIndex>) {
        let Some(segment) = segment else { return };
        let released = self.segments.release(&self.buffers, segment);
        assert!(released.is_ok(), "a segment without records has no readers");
        let booked = self.core.lock().stack.segment_released(segment);
        assert!(booked.is_ok(), "the stack gave the segment out for release");
        // Whoever waits for rest may wait for this alone.
        self.announce();
    }
}
