//! An accelerator that a bench runs on.

use crate::cli::Accelerator;
use crate::failure::{Failure, Outcome};
use crate::paths;
use mzcache::arena::{Arena, Sizer};
use mzcache::kernel::opencl::{Launch, Macro, Source};
use mzcache::port::buffers::Buffers;
use mzcache::port::linux::map_arena;
use mzcache::port::opencl::{
    Api, Block, BuildLog, BuildOptions, Choice, Context, DeviceBuffers, DeviceInfo, Devices, Event,
    Kernel, MemoryMode, Program, Queue, STAGING_BYTES, WorkSize,
};
use mzcache::units::Nanos;
use mzcache::{Code, Error};

/// An opened device with a queue that knows when commands ran.
pub struct Device {
    context: Context,
    queue: Queue,
    pub mode: MemoryMode,
}

impl Device {
    pub fn open(options: &Accelerator) -> Outcome<Device> {
        let path = options.library.as_deref().map(paths::c_path).transpose()?;
        // Drivers leave threads and exit handlers behind, so the library stays for good.
        let api: &'static Api = Box::leak(Box::new(Api::load(path.as_deref())?));
        let choice = options.device.as_deref().map_or(Choice::Best, Choice::Named);
        let info = Devices::enumerate(api)?.choose(choice)?;
        let context = Context::new(api, &info)?;
        let queue = Queue::new(&context, true)?;
        let mode = options.mode()?.unwrap_or(MemoryMode::best(&info));
        match mode.is_offered(&info) {
            true => Ok(Device { context, queue, mode }),
            false => Err(Error::new(Code::Unsupported, mode.name()).into()),
        }
    }

    pub fn info(&self) -> &DeviceInfo {
        self.context.device()
    }

    /// Name and driver, for reports.
    pub fn name(&self) -> String {
        let info = self.info();
        format!("{}, driver {}", info.name, info.driver_text)
    }

    /// The same with the kind of memory.
    pub fn describe(&self) -> String {
        format!("{}, {}", self.name(), self.mode.name())
    }

    /// Shared buffers in a mode that the device has, for that many units. They stay for good.
    pub fn buffers(&self, mode: MemoryMode, units: usize) -> Outcome<Buffers> {
        let mut sizer = Sizer::new();
        DeviceBuffers::size(&mut sizer, units)?;
        Buffers::size(&mut sizer, units)?;
        let mut arena = Arena::new(map_arena(sizer.required()?)?)?;
        let (context, queue) = (&self.context, &self.queue);
        let port = DeviceBuffers::new(&mut arena, units, context, queue, mode, 0)?
            .with_staging(STAGING_BYTES);
        Ok(Buffers::new(&mut arena, units, Box::leak(Box::new(port)))?)
    }

    /// A kernel of a program that must build.
    pub fn kernel(&self, source: Source, macros: &[Macro], flags: &[&str]) -> Outcome<Kernel> {
        let mut options = BuildOptions::for_device(self.info())?.with("-cl-mad-enable")?;
        for (name, value) in macros {
            options = options.define(name, value)?;
        }
        for flag in flags {
            options = options.define(flag, 1)?;
        }
        let mut memory = vec![0; 1 << 16];
        let mut log = BuildLog::new(&mut memory);
        let program = Program::build(&self.context, source.pieces, &options, &mut log);
        let program = program.map_err(|error| {
            let name = source.name.to_string_lossy();
            Failure::from(error).about(format!("building {name}: {}", log.text().trim()))
        })?;
        Ok(program.kernel(source.name)?)
    }

    /// Zero-filled memory of the device.
    pub fn block(&self, bytes: usize) -> Outcome<Block> {
        Ok(Block::new(&self.context, &self.queue, self.mode, bytes)?)
    }

    pub fn run(&self, kernel: &Kernel, launch: Launch) -> Outcome<Event> {
        Ok(self.queue.run_after(kernel, WorkSize::groups(launch.groups, launch.local), &[])?)
    }

    pub fn finish(&self) -> Outcome<()> {
        Ok(self.queue.finish()?)
    }

    /// Bytes a second that the device moves when it copies (read and written bytes counted), best
    /// of a few, for copies of `bytes`.
    pub fn copy_bytes_per_s(&self, bytes: usize) -> Outcome<f64> {
        let from = self.block(bytes)?;
        let mut to = self.block(bytes)?;
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            let event = from.copy_to(&mut to, bytes)?;
            event.wait()?;
            best = best.min(seconds(event.times()?.run()));
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
        Ok(2.0 * bytes as f64 / best)
    }
}

/// A duration in seconds.
pub fn seconds(time: Nanos) -> f64 {
    time.as_millis_f64() / 1e3
}
