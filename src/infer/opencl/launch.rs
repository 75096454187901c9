//! One command: a kernel and its arguments in order, and the queue it goes to.

use super::programs::number;
use crate::error::Result;
use crate::infer::model::Tensor;
use crate::infer::{Part, Watch};
use crate::kernel::opencl::{Launch, NOWHERE};
use crate::port::DeviceRegion;
use crate::port::opencl::{Event, Kernel, Queue, WorkSize};

/// Where the commands of a pass go, and who hears of them.
pub(super) struct Commands<'a> {
    queue: &'a Queue,
    watch: Option<&'a dyn Watch>,
    part: Part,
}

impl<'a> Commands<'a> {
    pub(super) fn new(queue: &'a Queue, watch: Option<&'a dyn Watch>) -> Self {
        Commands { queue, watch, part: Part::Start }
    }

    /// What the next commands belong to.
    pub(super) fn part(&mut self, part: Part) {
        self.part = part;
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.queue.flush()
    }

    fn run(&self, kernel: &Kernel, size: WorkSize) -> Result<()> {
        match self.watch {
            None => self.queue.run(kernel, size),
            Some(_) => self.run_event(kernel, size).map(drop),
        }
    }

    /// The answer is the command's completion.
    fn run_event(&self, kernel: &Kernel, size: WorkSize) -> Result<Event> {
        let event = self.queue.run_after(kernel, size, &[])?;
        if let Some(watch) = self.watch {
            watch.enqueued(self.part, kernel.name(), event.share()?);
        }
        Ok(event)
    }
}

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

    /// Where in its unit a tensor starts, or that it is not there.
    pub(super) fn place(self, unit: DeviceRegion, tensor: Option<&Tensor>) -> Self {
        // Of a buffer the kernel gets the whole, so the unit's place in it counts.
        let place = tensor.map_or(NOWHERE, |tensor| {
            u64::try_from(tensor.offset).unwrap_or(u64::MAX).saturating_add(unit.offset)
        });
        self.set(|kernel, index| kernel.set_value(index, place))
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

    pub(super) fn launch(self, commands: &Commands<'_>, launch: Launch) -> Result<()> {
        self.result?;
        commands.run(self.kernel, WorkSize::groups(launch.groups, launch.local))
    }

    /// The same, with the command's completion.
    pub(super) fn launch_event(self, commands: &Commands<'_>, launch: Launch) -> Result<Event> {
        self.result?;
        commands.run_event(self.kernel, WorkSize::groups(launch.groups, launch.local))
    }
}
