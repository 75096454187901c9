//! Fork-join over a [`Team`] with something mutable for each member.
//!
//! Invariant: a part is given to one member only, once, whatever the team does; so parts need no
//! lock. Makes no thread itself.

use super::Team;
use crate::limits::WORKERS_MAX;
use crate::sync::PartSet;
use core::marker::PhantomData;

const _: () = assert!(WORKERS_MAX <= u64::BITS as usize);

/// Parts behind a pointer, each claimed before it is turned into a reference.
struct Parts<'a, T> {
    first: *mut T,
    count: usize,
    claimed: PartSet,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a part is reachable only by the one member that claimed it, so sharing `Parts` only moves
// access to a T to another thread.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<T> Parts<'_, T> {
    #[expect(clippy::mut_from_ref, reason = "the claim hands out each part once")]
    fn take(&self, index: usize) -> Option<&mut T> {
        let part = u32::try_from(index).ok()?;
        if index >= self.count || !self.claimed.claim(part) {
            return None;
        }
        // SAFETY: index < count, so it is inside the borrowed slice; the claim above succeeds once
        // for each index, so this is the only reference to it while `Parts` lives.
        Some(unsafe { &mut *self.first.add(index) })
    }
}

/// Calls `work(i, &mut parts[i])` for each part, part `i` on member `i` of the team. At most
/// [`WORKERS_MAX`] parts, and no more than the team is wide.
pub fn parallel<T: Send>(team: &dyn Team, parts: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
    assert!(parts.len() <= WORKERS_MAX);
    assert!(parts.len() <= team.width());
    if let [only] = parts {
        return work(0, only);
    }
    let shared = Parts {
        first: parts.as_mut_ptr(),
        count: parts.len(),
        claimed: PartSet::new(),
        borrow: PhantomData,
    };
    team.run(&|index| {
        if let Some(part) = shared.take(index) {
            work(index, part);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Solo;
    use std::vec::Vec;

    /// A team that breaks its contract: calls members twice and some that do not exist.
    struct Unruly;

    impl Team for Unruly {
        fn width(&self) -> usize {
            4
        }

        fn run(&self, work: &(dyn Fn(usize) + Sync)) {
            for index in [3, 1, 1, 0, 99, 2, 2, usize::MAX, 64] {
                work(index);
            }
        }
    }

    #[test]
    fn each_part_is_worked_on_once_by_the_member_of_its_number() {
        let mut parts: Vec<(usize, u32)> = Vec::from([(9, 0); 3]);
        parallel(&Unruly, &mut parts, |index, part| *part = (index, part.1 + 1));
        assert_eq!(parts, [(0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn a_team_of_one_works_on_the_only_part() {
        let mut parts = [0];
        parallel(&Solo, &mut parts, |index, part| *part = index + 7);
        assert_eq!(parts, [7]);
    }
}
