//! Worker threads by a core map.

use super::config::Worker;
use crate::error::{Code, Error, Result};
use crate::limits::WORKERS_MAX;
use crate::port::affinity::{CoreList, CoreMap};
use crate::state::Roles;
use core::ops::Deref;

/// How many workers each role should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Workers that allocate.
    pub allocate: usize,
    /// Workers that read.
    pub read: usize,
    /// Workers that unpack.
    pub unpack: usize,
}

/// Workers of one role each, for [`super::Options::workers`].
#[derive(Clone, Copy, Debug)]
pub struct WorkerList {
    workers: [Worker; WORKERS_MAX],
    count: usize,
}

impl WorkerList {
    /// Workers on the map's cores: each on the core of its role that has the fewest workers so far,
    /// of those the one with the fewest of this role, of those the role's first. There are never
    /// more unpackers or allocators than their role has cores, since they would only take turns;
    /// readers mostly wait, and may share.
    pub fn new(map: &CoreMap, counts: WorkerCounts) -> Result<Self> {
        let nobody = Worker::new(Roles::empty());
        let mut list = WorkerList { workers: [nobody; WORKERS_MAX], count: 0 };
        let at_most = |count: usize, cores: &CoreList| match cores.len() {
            0 => count,
            cores => count.min(cores),
        };
        list.deal(Roles::UNPACK, &map.unpack, at_most(counts.unpack, &map.unpack))?;
        list.deal(Roles::ALLOCATE, &map.allocate, at_most(counts.allocate, &map.allocate))?;
        list.deal(Roles::READ, &map.read, counts.read)?;
        Ok(list)
    }

    /// The same workers, who read and unpack also when that is not what they are there for: for
    /// machines with a core for each, where an idle one helps nobody.
    pub fn helping(mut self) -> Self {
        for worker in &mut self.workers[..self.count] {
            worker.helps = (Roles::READ | Roles::UNPACK).difference(worker.roles);
        }
        self
    }

    fn deal(&mut self, roles: Roles, cores: &CoreList, count: usize) -> Result<()> {
        for _ in 0..count {
            let load =
                |core: &u16| (self.count_on(*core, Roles::all()), self.count_on(*core, roles));
            let core = cores.iter().copied().min_by_key(load);
            let too_many = Error::new(Code::LimitExceeded, "workers").with(self.count + 1);
            *self.workers.get_mut(self.count).ok_or(too_many)? =
                Worker { core, ..Worker::new(roles) };
            self.count += 1;
        }
        Ok(())
    }

    fn count_on(&self, core: u16, roles: Roles) -> usize {
        let is_there = |worker: &&Worker| worker.core == Some(core);
        self.iter().filter(is_there).filter(|worker| roles.contains(worker.roles)).count()
    }
}

impl Deref for WorkerList {
    type Target = [Worker];

    fn deref(&self) -> &[Worker] {
        &self.workers[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn cores(list: &WorkerList, roles: Roles) -> Vec<Option<u16>> {
        list.iter().filter(|worker| worker.roles == roles).map(|worker| worker.core).collect()
    }

    fn counts(allocate: usize, read: usize, unpack: usize) -> WorkerCounts {
        WorkerCounts { allocate, read, unpack }
    }

    #[test]
    fn workers_spread_over_their_role_s_cores() {
        let list = WorkerList::new(&CoreMap::SM8650, counts(9, 2, 9)).unwrap();
        assert_eq!(cores(&list, Roles::UNPACK), [Some(4), Some(6), Some(3)]);
        assert_eq!(cores(&list, Roles::ALLOCATE), [Some(5), Some(7)]);
        assert_eq!(cores(&list, Roles::READ), [Some(2), Some(3)]);
        // A core that nobody has is taken before one is shared.
        let list = WorkerList::new(&CoreMap::SM8750, counts(1, 2, 1)).unwrap();
        assert_eq!(cores(&list, Roles::ALLOCATE), [Some(2)]);
        assert_eq!(cores(&list, Roles::READ), [Some(0), Some(1)]);
        let list = WorkerList::new(&CoreMap::SM8650, counts(1, 1, 3)).unwrap();
        assert_eq!(cores(&list, Roles::READ), [Some(2)]);
    }

    #[test]
    fn without_cores_there_are_as_many_as_wanted_and_they_run_anywhere() {
        let list = WorkerList::new(&CoreMap::ANYWHERE, counts(1, 2, 6)).unwrap();
        assert_eq!(list.len(), 9);
        assert!(list.iter().all(|worker| worker.core.is_none()));
        assert_eq!(cores(&list, Roles::UNPACK).len(), 6);
    }

    #[test]
    fn helpers_do_what_they_are_there_for_and_more() {
        let list = WorkerList::new(&CoreMap::ANYWHERE, counts(1, 1, 1)).unwrap().helping();
        let both = Roles::READ | Roles::UNPACK;
        let helps: Vec<_> = list.iter().map(|worker| (worker.roles, worker.helps)).collect();
        let expected =
            [(Roles::UNPACK, Roles::READ), (Roles::ALLOCATE, both), (Roles::READ, Roles::UNPACK)];
        assert_eq!(helps, expected);
        assert_eq!(list[1].all(), Roles::all());
    }

    #[test]
    fn there_are_never_more_than_the_limit() {
        let most = counts(1, WORKERS_MAX - 2, 1);
        assert_eq!(WorkerList::new(&CoreMap::ANYWHERE, most).unwrap().len(), WORKERS_MAX);
        for more in [counts(2, WORKERS_MAX - 2, 1), counts(0, usize::MAX, 0)] {
            let error = WorkerList::new(&CoreMap::SM8750, more).unwrap_err();
            let expected = Error::new(Code::LimitExceeded, "workers").with(WORKERS_MAX + 1);
            assert_eq!(error, expected);
        }
    }
}
