//! Cores as the system describes them, and their order.

use crate::limits::CORES_MAX;

/// One core as the system describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Core {
    /// The system's number for it.
    pub id: u16,
    /// Relative speed, 1024 for the strongest; 0 where the system does not say.
    pub capacity: u32,
    /// Highest frequency, in kHz; 0 where the system does not say.
    pub max_khz: u32,
    /// Whether it runs.
    pub is_online: bool,
    /// Whether this process may use it.
    pub is_allowed: bool,
}

impl Core {
    const fn is_usable(&self) -> bool {
        self.is_online && self.is_allowed
    }

    const fn strength(&self) -> (u32, u32) {
        (self.capacity, self.max_khz)
    }

    /// Whether it is weaker than half of the strongest.
    fn is_little(&self, strongest: &Core) -> bool {
        let below_half = |own: u32, best: u32| u64::from(own) * 2 < u64::from(best);
        match self.capacity == strongest.capacity {
            true => below_half(self.max_khz, strongest.max_khz),
            false => below_half(self.capacity, strongest.capacity),
        }
    }

    /// Whether it is of the cluster whose strongest core that is.
    fn is_like(&self, leader: &Core) -> bool {
        let near = u64::from(self.max_khz) * 8 > u64::from(leader.max_khz) * 7;
        self.capacity == leader.capacity && (near || self.max_khz == leader.max_khz)
    }
}

/// The cores of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    cores: [Core; CORES_MAX],
    count: usize,
}

impl Topology {
    /// No core.
    pub const fn new() -> Self {
        const NONE: Core =
            Core { id: 0, capacity: 0, max_khz: 0, is_online: false, is_allowed: false };
        Topology { cores: [NONE; CORES_MAX], count: 0 }
    }

    /// Adds a core; false when there are [`CORES_MAX`] already.
    pub fn push(&mut self, core: Core) -> bool {
        let Some(place) = self.cores.get_mut(self.count) else { return false };
        *place = core;
        self.count += 1;
        true
    }

    /// All of them.
    pub fn cores(&self) -> &[Core] {
        &self.cores[..self.count]
    }

    /// The cores by what they are good for.
    pub(super) fn classes(&self) -> Classes {
        let usable = self.usable();
        let mut strong = Topology::new();
        for core in usable.cores().iter().filter(|core| !core.is_little(&usable.cores[0])) {
            strong.push(*core);
        }
        let mut leader = 0;
        for (index, core) in strong.cores().iter().enumerate() {
            if !core.is_like(&strong.cores[leader]) {
                leader = index;
            }
        }
        Classes { has_little: strong.count < usable.count, strong, big: leader }
    }

    /// The usable cores, strongest first, with what is known of all.
    fn usable(&self) -> Topology {
        let all = || self.cores().iter().filter(|core| core.is_usable());
        let rates_capacity = all().all(|core| core.capacity > 0);
        let rates_khz = all().all(|core| core.max_khz > 0);
        let mut usable = Topology::new();
        for core in all() {
            usable.push(Core {
                capacity: if rates_capacity { core.capacity } else { 0 },
                max_khz: if rates_khz { core.max_khz } else { 0 },
                ..*core
            });
        }
        let key = |core: &Core| (core::cmp::Reverse(core.strength()), core.id);
        usable.cores[..usable.count].sort_unstable_by_key(key);
        usable
    }
}

impl Default for Topology {
    fn default() -> Self {
        Self::new()
    }
}

/// The usable cores that are not little, strongest first.
pub(super) struct Classes {
    strong: Topology,
    /// How many of them are above the weakest cluster.
    big: usize,
    has_little: bool,
}

impl Classes {
    /// Whether there is nothing to choose between.
    pub(super) fn is_symmetric(&self) -> bool {
        self.big == 0 && !self.has_little
    }

    /// Those that unpack and read.
    pub(super) fn big(&self) -> &[Core] {
        match self.big {
            0 => self.strong.cores(),
            big => &self.strong.cores()[..big],
        }
    }

    /// Those that allocate.
    pub(super) fn middle(&self) -> &[Core] {
        &self.strong.cores()[self.big..]
    }
}
