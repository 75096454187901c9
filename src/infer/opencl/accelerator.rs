//! A device that was opened for computing.

use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::infer::Model;
use crate::port::SharedMemory;
use crate::port::opencl::{
    Api, Choice, Context, DeviceBuffers, DeviceInfo, Devices, MemoryMode, Queue, STAGING_BYTES,
};
use crate::units::{ByteCount, TokenCount};
use core::mem::ManuallyDrop;

/// One device, its queues, and how it shares memory with the host.
pub struct Accelerator {
    pub(super) context: Context,
    /// Kernels.
    pub(super) queue: Queue,
    /// What must not wait for kernels.
    pub(super) transfer: Queue,
    pub(super) mode: MemoryMode,
    spare_bytes: ByteCount,
}

impl Accelerator {
    /// Opens the device that a choice means, in a mode of memory or in its best one. `NoDevice`
    /// where there is none, `Unsupported` where it has not got that mode.
    pub fn open(
        api: &'static Api,
        choice: Choice<'_>,
        mode: Option<MemoryMode>,
    ) -> Result<Accelerator> {
        let device = Devices::enumerate(api)?.choose(choice)?;
        Self::new(api, &device, mode)
    }

    /// Opens a device out of a list.
    pub fn new(
        api: &'static Api,
        device: &DeviceInfo,
        mode: Option<MemoryMode>,
    ) -> Result<Accelerator> {
        let mode = mode.unwrap_or(MemoryMode::best(device));
        if !mode.is_offered(device) {
            return Err(Error::new(Code::Unsupported, mode.name()));
        }
        let context = Context::new(api, device)?;
        let queue = Queue::new(&context, false)?;
        let transfer = Queue::new(&context, false)?;
        Ok(Accelerator { context, queue, transfer, mode, spare_bytes: ByteCount::new(0) })
    }

    /// The same, whose sessions keep up to that many bytes of shared memory that evictions
    /// released, so that the restore after them need not ask a slow driver for it again. They are
    /// given back when the session is closed.
    pub fn with_spares(self, bytes_max: ByteCount) -> Accelerator {
        Accelerator { spare_bytes: bytes_max, ..self }
    }

    /// The same device, whose commands know when they ran.
    pub fn measuring(self) -> Result<Accelerator> {
        let queue = Queue::new(&self.context, true)?;
        Ok(Accelerator { queue, ..self })
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        self.context.device()
    }

    /// How memory is shared.
    pub fn mode(&self) -> MemoryMode {
        self.mode
    }

    /// Adds what [`Accelerator::buffers`] places.
    pub fn size_buffers(
        model: &Model,
        context_tokens_max: TokenCount,
        sizer: &mut Sizer,
    ) -> Result<()> {
        DeviceBuffers::size(sizer, regions(model, context_tokens_max))?;
        sizer.value::<ManuallyDrop<DeviceBuffers>>()
    }

    /// Shared buffers for a model's weights and a context of so many tokens: the memory port of the
    /// runtime. They keep the device open for good, since a port is there for good.
    pub fn buffers(
        &self,
        model: &Model,
        context_tokens_max: TokenCount,
        arena: &mut Arena,
    ) -> Result<&'static dyn SharedMemory> {
        self.check_memory(model)?;
        let regions_max = regions(model, context_tokens_max);
        let pool = chunks(model, context_tokens_max).saturating_mul(model.shape.kv().chunk_bytes());
        let most = usize::try_from(self.device().alloc_bytes_max).unwrap_or(usize::MAX);
        let pool_bytes = pool.min(most);
        let (context, queue, mode) = (&self.context, &self.queue, self.mode);
        let buffers = DeviceBuffers::new(arena, regions_max, context, queue, mode, pool_bytes)?;
        let spare_bytes = usize::try_from(self.spare_bytes.get()).unwrap_or(usize::MAX);
        let buffers = buffers.with_spares(spare_bytes).with_staging(STAGING_BYTES);
        Ok(&**arena.value(ManuallyDrop::new(buffers))?)
    }

    /// A pass needs all weights at once.
    fn check_memory(&self, model: &Model) -> Result<()> {
        let device = self.device();
        let sizes = || model.units.iter().map(|unit| unit.bytes());
        if let Some(bytes) = sizes().find(|bytes| *bytes > device.alloc_bytes_max) {
            return Err(Error::new(Code::LimitExceeded, "weight unit on the device").with(bytes));
        }
        let all = sizes().fold(0u64, u64::saturating_add);
        if all > device.memory_bytes {
            return Err(Error::new(Code::OutOfMemory, "weights in the device's memory").with(all));
        }
        Ok(())
    }
}

fn chunks(model: &Model, context_tokens_max: TokenCount) -> usize {
    let columns = usize::try_from(context_tokens_max.chunks()).unwrap_or(usize::MAX);
    columns.saturating_mul(model.shape.layers.into())
}

fn regions(model: &Model, context_tokens_max: TokenCount) -> usize {
    model.units.len().saturating_add(chunks(model, context_tokens_max))
}
