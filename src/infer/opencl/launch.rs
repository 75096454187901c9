//! One command: a kernel and its arguments in order.

use super::programs::number;
use crate::error::Result;
use crate::kernel::opencl::Launch;
use crate::port::DeviceRegion;
use crate::port::opencl::{Event, Kernel, Queue, WorkSize};

/// A kernel whose arguments are being set. The first failure is the answer at the end.
pub(super) struct Call<'a> {
    kernel: &'a mut Kernel,
    next: u32,
    result: Result<()>,
}

impl<'a> Call<'a> {
    pub(super) fn new(kernel: &'a mut Kernel) -> Self {
        Call { kernel, next: 0, result: Ok(()) }
    }

    fn set(mut self, set: impl FnOnce(&mut Kernel, u32) -> Result<()>) -> Self {
        if self.result.is_ok() {
            self.result = set(self.kernel, self.next);
        }
        self.next += 1;
        self
    }

    pub(super) fn memory(self, region: DeviceRegion) -> Self {
        self.set(|kernel, index| kernel.set_memory(index, region))
    }

    /// A tensor: the unit, and where in it the tensor starts.
    pub(super) fn tensor(self, unit: DeviceRegion, offset: usize) -> Self {
        // Of a buffer the kernel gets the whole, and the unit's place in it with the offset.
        let offset = u64::try_from(offset).unwrap_or(u64::MAX).saturating_add(unit.offset);
        self.memory(unit).set(|kernel, index| kernel.set_value(index, offset))
    }

    pub(super) fn number(self, value: usize) -> Self {
        self.word(number(value))
    }

    pub(super) fn word(self, value: u32) -> Self {
        self.set(|kernel, index| kernel.set_value(index, value))
    }

    pub(super) fn float(self, value: f32) -> Self {
        self.set(|kernel, index| kernel.set_value(index, value))
    }

    /// The buffer of all chunks, where tables hold offsets.
    pub(super) fn pool(self, pool: Option<DeviceRegion>) -> Self {
        match pool {
            Some(pool) => self.memory(pool),
            None => self,
        }
    }

    /// Shared memory that the kernel reaches through the table.
    pub(super) fn listed(self, addresses: &[u64]) -> Self {
        let Call { kernel, next, result } = self;
        let result = result.and_then(|()| kernel.list_memory(addresses));
        Call { kernel, next, result }
    }

    pub(super) fn launch(self, queue: &Queue, launch: Launch) -> Result<()> {
        self.result?;
        queue.run(self.kernel, WorkSize::groups(launch.groups, launch.local))
    }

    /// Work-items in groups of the driver's choice.
    pub(super) fn items(self, queue: &Queue, global: [usize; 3]) -> Result<()> {
        self.result?;
        queue.run(self.kernel, WorkSize { global, local: None })
    }

    /// The same, with the command's completion.
    pub(super) fn items_event(self, queue: &Queue, global: [usize; 3]) -> Result<Event> {
        self.result?;
        queue.run_after(self.kernel, WorkSize { global, local: None }, &[])
    }
}
