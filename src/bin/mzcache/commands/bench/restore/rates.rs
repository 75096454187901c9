//! What this machine can do, measured in the run that is compared with it.

use super::super::device::Device;
use super::reading::{Reading, on_threads};
use super::subject::rate;
use crate::cli;
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::measure::{CodecRate, READ_BYTES_MIN, codec_rate_together, write_rate};
use crate::paths::{self, CacheDir};
use indicatif::ProgressBar;
use mzcache::codec::codec;
use mzcache::kernel::Kernels;
use mzcache::port::linux::{File, host_cpu};
use mzcache::port::opencl::MemoryMode;
use mzcache::port::{Storage, Use};
use mzcache::state::part_bytes;
use mzcache::sync::Word;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes a second, unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of storage, with as many requests at once as serve it best; set beside what is compared.
    pub read: f64,
    /// What the system's own work in a read costs the cores. Set then, too.
    pub read_core_seconds_per_byte: f64,
    /// Of storage, one request at a time, synced.
    pub write: f64,
    /// F16 bytes of one core while all cores do the same, out of memory and into it; set anew for
    /// what is compared, as well.
    pub unpack: f64,
    pub pack: f64,
    /// Of the way to a device that has memory of its own.
    pub link: f64,
    /// Fresh buffers of one worker; set beside what is compared.
    pub allocate: f64,
    /// Memory, all cores, read and written bytes counted.
    pub copy: f64,
    pub cores: usize,
    /// The share of their time that a hypervisor left; set by each restore.
    pub cores_left: f64,
}

/// More than one layer, less than a long wait.
const READ_BYTES: u64 = 512 << 20;
const COPY_BYTES: usize = 256 << 20;
/// Of each core.
const CHUNKS_MIN: usize = 4;
const CHUNKS_MAX: usize = 256;
/// A unit, and its parts, as weights come to a device.
const LINK_BYTES: usize = 48 << 20;
const LINK_UNITS: usize = 8;

/// Measures them.
pub struct MeasureRates<'a> {
    pub path: &'a Path,
    pub engine: &'a Engine,
    pub accelerator: &'a cli::Accelerator,
    pub cache: &'a CacheDir,
}

impl MeasureRates<'_> {
    /// They, and how storage is to be measured again.
    pub fn all(&self) -> Outcome<(Rates, Reading)> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let swap = self.swap_file()?;
        let bytes = READ_BYTES_MIN.max(128 << 20);
        let write = per_second(write_rate(&swap, bytes, &ProgressBar::hidden())?);
        let model = File::open_model(&paths::c_path(self.path)?)?;
        let model_bytes = model.length()?.min(READ_BYTES);
        let reading = Reading::fastest([(model, model_bytes), (swap, bytes)])?;
        let mut rates = Rates {
            read: f64::INFINITY,
            read_core_seconds_per_byte: 0.0,
            write,
            unpack: 0.0,
            pack: 0.0,
            link: match self.engine.is_accelerated {
                true => link_rate(self.accelerator)?,
                false => f64::INFINITY,
            },
            allocate: f64::INFINITY,
            copy: copy_bytes_per_s(cores),
            cores,
            cores_left: 1.0,
        };
        rates.set_codec(&codec_rate_of(self.engine, cores)?);
        Ok((rates, reading))
    }

    /// A file that goes with the process.
    fn swap_file(&self) -> Outcome<File> {
        let path = self.cache.root().join(format!("rate-{}", std::process::id()));
        let file = File::create_swap(&paths::c_path(&path)?);
        let removed = std::fs::remove_file(&path);
        let file = file.map_err(|error| Failure::from(error).about(path.display()))?;
        removed.map_err(|error| Failure::file("remove", &path, &error))?;
        Ok(file)
    }
}

impl Rates {
    /// Of all cores together.
    pub fn set_codec(&mut self, together: &CodecRate) {
        let of_one = |all: u64| per_second(all / self.cores as u64);
        self.unpack = of_one(together.unpack_bytes_per_second);
        self.pack = of_one(together.pack_bytes_per_second);
    }
}

/// How fast all cores together pack and unpack an engine's chunks.
pub fn codec_rate_of(engine: &Engine, cores: usize) -> Outcome<CodecRate> {
    let shape = engine.session.model().shape.kv();
    let kernels = Kernels::select(host_cpu());
    let budget = Duration::from_millis(300);
    let chunks = (COPY_BYTES / cores / shape.chunk_bytes()).clamp(CHUNKS_MIN, CHUNKS_MAX);
    codec_rate_together(codec(engine.codec), &kernels, shape, budget, (cores, chunks))
}

/// Bytes a second that one, two and four threads bring to a device's own memory; the best.
fn link_rate(options: &cli::Accelerator) -> Outcome<f64> {
    let device = Device::open(options)?;
    if device.mode != MemoryMode::Buffers {
        return Ok(f64::INFINITY);
    }
    let buffers = device.buffers(device.mode, LINK_UNITS)?;
    let part_bytes = part_bytes(LINK_BYTES as u64);
    let parts = u32::try_from(LINK_BYTES as u64 / part_bytes).unwrap_or(u32::MAX);
    let mut best: f64 = 0.0;
    // The first round makes pages resident.
    for threads in [1, 1, 2, 4] {
        for slot in 0..LINK_UNITS {
            buffers.allocate(slot, Use::Weights, LINK_BYTES, part_bytes as usize)?;
        }
        let next = Word::new(0);
        let bring = || -> mzcache::Result<()> {
            loop {
                let number = next.increment();
                let slot = (number / parts) as usize;
                if slot >= LINK_UNITS {
                    return Ok(());
                }
                buffers.part(slot, number % parts)?.finish()?;
            }
        };
        let start = Instant::now();
        on_threads(threads, &bring)?;
        best = best.max(rate((LINK_UNITS * LINK_BYTES) as u64, start.elapsed()));
        for slot in 0..LINK_UNITS {
            buffers.publish(slot)?;
            buffers.release(slot)?;
        }
    }
    Ok(best)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for a comparison")]
const fn per_second(bytes: u64) -> f64 {
    bytes as f64
}

/// Bytes a second that so many threads move when each copies its share (read and written bytes
/// counted), best of a few.
#[expect(clippy::cast_precision_loss, reason = "a rate for display")]
pub fn copy_bytes_per_s(threads: usize) -> f64 {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![2u8; COPY_BYTES];
    let share = COPY_BYTES.div_ceil(threads.max(1));
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&to);
    2.0 * COPY_BYTES as f64 / best
}
