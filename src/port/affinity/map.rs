//! The cores of each role.

use super::topology::{Core, Topology};
use crate::limits::CORES_MAX;

/// Some cores, each once, in order of preference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoreList {
    ids: [u16; CORES_MAX],
    count: usize,
}

impl CoreList {
    /// No core.
    pub const EMPTY: CoreList = CoreList { ids: [0; CORES_MAX], count: 0 };

    const fn of(ids: &[u16]) -> Self {
        let mut list = Self::EMPTY;
        while list.count < ids.len() {
            list.ids[list.count] = ids[list.count];
            list.count += 1;
        }
        list
    }

    fn ranked(cores: &[Core]) -> Self {
        let mut list = Self::EMPTY;
        for core in cores {
            list.push(core.id);
        }
        list
    }

    /// Adds a core as the last choice; false when it is there already, or [`CORES_MAX`] are.
    pub fn push(&mut self, id: u16) -> bool {
        if self.contains(&id) {
            return false;
        }
        let Some(place) = self.ids.get_mut(self.count) else { return false };
        *place = id;
        self.count += 1;
        true
    }
}

impl core::ops::Deref for CoreList {
    type Target = [u16];

    fn deref(&self) -> &[u16] {
        &self.ids[..self.count]
    }
}

impl core::fmt::Debug for CoreList {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The cores of each role; one without any runs anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreMap {
    /// Where buffers are allocated and given back.
    pub allocate: CoreList,
    /// Where storage is read and written.
    pub read: CoreList,
    /// Where chunks are unpacked and packed.
    pub unpack: CoreList,
}

impl CoreMap {
    /// Nothing is pinned.
    pub const ANYWHERE: CoreMap =
        CoreMap { allocate: CoreList::EMPTY, read: CoreList::EMPTY, unpack: CoreList::EMPTY };

    /// Snapdragon 8 Elite: six middle cores, 0 to 5, and two big ones. As the paper's authors
    /// published it: unlike the rule it keeps readers, which mostly wait, off the two cores that
    /// unpack.
    pub const SM8750: CoreMap = CoreMap {
        // Those of the readers last.
        allocate: CoreList::of(&[2, 3, 4, 5, 0, 1]),
        read: CoreList::of(&[0, 1]),
        unpack: CoreList::of(&[6, 7]),
    };

    /// Snapdragon 8 Gen 3: little cores 0 and 1, which do nothing, middle cores 2 to 6, one big
    /// core. As the paper's authors published it: four cores unpack and read and two allocate, as
    /// by the rule, with cores 6 and 7 exchanged.
    pub const SM8650: CoreMap = CoreMap {
        allocate: CoreList::of(&[5, 7]),
        read: CoreList::of(&[2, 3]),
        unpack: CoreList::of(&[4, 6, 3]),
    };

    /// The map of a machine, by the rule that [`super`] gives.
    pub fn rank(topology: &Topology) -> CoreMap {
        let classes = topology.classes();
        if classes.is_symmetric() {
            return Self::ANYWHERE;
        }
        let big = CoreList::ranked(classes.big());
        CoreMap { allocate: CoreList::ranked(classes.middle()), read: big, unpack: big }
    }
}
