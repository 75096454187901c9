//! What this machine can do, measured in the run that is compared with it.

use super::super::device::Device;
use super::subject::rate;
use crate::cli;
use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::measure::{
    Aligned, CodecRate, READ_BYTES_MIN, REQUEST_BYTES, codec_rate_together, write_rate,
};
use crate::paths::{self, CacheDir};
use indicatif::ProgressBar;
use mzcache::codec::codec;
use mzcache::kernel::Kernels;
use mzcache::limits::{IO_ALIGN, PART_BYTES_MIN};
use mzcache::port::linux::{File, host_cpu};
use mzcache::port::opencl::MemoryMode;
use mzcache::port::{Storage, Use};
use mzcache::state::part_bytes;
use mzcache::sync::{Flag, Word};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes a second, unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of storage, with as many requests at once as serve it best.
    pub read: f64,
    /// What a read costs the cores: what a busy loop on each loses meanwhile.
    pub read_core_seconds_per_byte: f64,
    /// Of storage, one request at a time, synced.
    pub write: f64,
    /// F16 bytes of one core while all cores do the same, out of memory and into it.
    pub unpack: f64,
    pub pack: f64,
    /// Of the way to a device that has memory of its own.
    pub link: f64,
    /// Fresh buffers of one worker; set by the first restore.
    pub allocate: f64,
    /// Memory, all cores, read and written bytes counted.
    pub copy: f64,
    pub cores: usize,
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
const ROUNDS: usize = 2;
/// For the pace of busy loops that nobody disturbs.
const ALONE: Duration = Duration::from_millis(200);

/// Measures them.
pub struct MeasureRates<'a> {
    pub path: &'a Path,
    pub engine: &'a Engine,
    pub accelerator: &'a cli::Accelerator,
    pub cache: &'a CacheDir,
}

impl MeasureRates<'_> {
    pub fn all(&self) -> Outcome<Rates> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let swap = self.swap_file()?;
        let bytes = READ_BYTES_MIN.max(128 << 20);
        let write = per_second(write_rate(&swap, bytes, &ProgressBar::hidden())?);
        // Two files may lie on storage in different ways; what one of them gives, it can give.
        let model = File::open_model(&paths::c_path(self.path)?)?;
        let of_model = best_read(&model, model.length()?.min(READ_BYTES))?;
        let of_swap = best_read(&swap, bytes)?;
        let (file, best) = match of_model.rate > of_swap.rate {
            true => (&model, of_model),
            false => (&swap, of_swap),
        };
        let codec = self.codec(cores)?;
        Ok(Rates {
            read: best.rate,
            read_core_seconds_per_byte: core_seconds(file, &best, cores)?,
            write,
            unpack: per_second(codec.unpack_bytes_per_second / cores as u64),
            pack: per_second(codec.pack_bytes_per_second / cores as u64),
            link: match self.engine.is_accelerated {
                true => link_rate(self.accelerator)?,
                false => f64::INFINITY,
            },
            allocate: f64::INFINITY,
            copy: copy_bytes_per_s(cores),
            cores,
        })
    }

    /// All cores together.
    fn codec(&self, cores: usize) -> Outcome<CodecRate> {
        let shape = self.engine.session.model().shape.kv();
        let kernels = Kernels::select(host_cpu());
        let budget = Duration::from_millis(300);
        let chunks = (COPY_BYTES / cores / shape.chunk_bytes()).clamp(CHUNKS_MIN, CHUNKS_MAX);
        codec_rate_together(codec(self.engine.codec), &kernels, shape, budget, (cores, chunks))
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

/// How storage was read, and how fast, in bytes a second.
#[derive(Clone, Copy, Default)]
struct Reading {
    rate: f64,
    total: u64,
    request: u64,
    threads: u64,
}

/// A file from its start, in requests of two sizes, by one, two and four at a time: the best.
fn best_read(file: &File, bytes: u64) -> Outcome<Reading> {
    let mut best = Reading::default();
    for largest in [PART_BYTES_MIN, REQUEST_BYTES as u64] {
        // Of a small model, smaller requests, so that there are some to share.
        let smallest = IO_ALIGN as u64;
        let request = (bytes / 8 / smallest * smallest).clamp(smallest, largest);
        let total = bytes / request * request;
        if total == 0 {
            return Err(Failure::new("the model file is too small to measure reads with"));
        }
        for threads in [1, 2, 4] {
            for _ in 0..ROUNDS {
                let start = Instant::now();
                read_all(file, total, request, threads)?;
                let rate = rate(total, start.elapsed());
                if rate > best.rate {
                    best = Reading { rate, total, request, threads };
                }
            }
        }
    }
    Ok(best)
}

/// What such a read costs the cores, in seconds a byte: the system's own work in it and, on the
/// guest of a hypervisor, that of its host, which takes the same cores. The least of a few.
#[expect(clippy::cast_precision_loss, reason = "counts for a ratio")]
fn core_seconds(file: &File, how: &Reading, cores: usize) -> Outcome<f64> {
    let (alone, ()) = beside_busy_cores(cores, || {
        std::thread::sleep(ALONE);
        Ok(())
    })?;
    let mut least = f64::INFINITY;
    for _ in 0..2 * ROUNDS {
        let start = Instant::now();
        let read = || read_all(file, how.total, how.request, how.threads);
        let (beside, ()) = beside_busy_cores(cores, read)?;
        let lost = 1.0 - (beside / alone).min(1.0);
        least = least.min(lost * start.elapsed().as_secs_f64() * cores as f64);
    }
    Ok(least / how.total as f64)
}

/// Does something while a loop keeps each core busy; turns of all loops a second.
#[expect(clippy::cast_precision_loss, reason = "counts for a ratio")]
fn beside_busy_cores<T>(cores: usize, work: impl FnOnce() -> Outcome<T>) -> Outcome<(f64, T)> {
    let stop = Flag::new();
    std::thread::scope(|scope| {
        let busy = || {
            let mut turns = 0u64;
            while !stop.is_raised() {
                for turn in 0..100 {
                    std::hint::black_box(turn);
                }
                turns += 1;
            }
            turns
        };
        let loops = (0..cores).map(|_| scope.spawn(busy)).collect::<Vec<_>>();
        let start = Instant::now();
        let done = work();
        stop.raise();
        let turns: u64 = loops.into_iter().map(|one| one.join().unwrap_or_default()).sum();
        Ok((turns as f64 / start.elapsed().as_secs_f64(), done?))
    })
}

/// Threads take requests in turns.
fn read_all(file: &File, total: u64, request: u64, threads: u64) -> Outcome<()> {
    let read = |thread: u64| -> mzcache::Result<()> {
        let mut buffer = Aligned::<u8>::new(usize::try_from(request).unwrap_or(REQUEST_BYTES));
        let mut offset = thread * request;
        while offset < total {
            file.read_at(offset, buffer.slice())?;
            offset += threads * request;
        }
        Ok(())
    };
    let next = Word::new(0);
    all(threads, &|| read(next.increment().into()))
}

/// Does something on so many threads.
fn all(threads: u64, work: &(dyn Fn() -> mzcache::Result<()> + Sync)) -> Outcome<()> {
    std::thread::scope(|scope| {
        for thread in (0..threads).map(|_| scope.spawn(work)).collect::<Vec<_>>() {
            match thread.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })
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
        all(threads, &bring)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_loops_end_with_the_work_and_with_its_failure() {
        let (turns, answer) = beside_busy_cores(2, || Ok(7)).unwrap();
        assert!(turns.is_finite() && answer == 7);
        let failure = beside_busy_cores::<()>(1, || Err(Failure::new("test"))).unwrap_err();
        assert_eq!(failure.message, "test");
    }
}
