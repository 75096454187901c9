//! Work of which a part fails.

use super::*;

/// Works until nothing is left to do; what `is_hit` names ends with that error. How often it did.
pub(super) fn settle_failing(
    run: &mut Run,
    error: Error,
    is_hit: impl Fn(&Action) -> bool,
) -> usize {
    let mut failures = 0;
    for _ in 0..10_000 {
        if let Some(at) = run.world.in_flight.iter().position(&is_hit) {
            let action = run.world.in_flight.remove(at);
            failures += 1;
            run.step(Event::Done(action, Outcome::Failed(error))).unwrap();
        } else if run.machine.is_idle() && run.world.in_flight.is_empty() {
            return failures;
        } else {
            run.work();
        }
    }
    panic!("no end: {:?}", run.machine.tally());
}

/// Whether it uses the swap file.
pub(super) fn is_transfer(action: &Action) -> bool {
    matches!(action, Action::Write { .. } | Action::Spill { .. } | Action::ReadChunk { .. })
}
