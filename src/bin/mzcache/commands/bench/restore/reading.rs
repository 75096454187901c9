//! How storage is read fastest here, and what that costs the cores.
//!
//! Storage that is shared gives twice as much in one second as in another, so it is measured again
//! beside whatever is compared with it.

use super::subject::rate;
use crate::failure::{Failure, Outcome};
use crate::measure::{Aligned, REQUEST_BYTES};
use mzcache::limits::{IO_ALIGN, PART_BYTES_MIN};
use mzcache::port::Storage;
use mzcache::port::linux::File;
use mzcache::sync::Word;
use std::time::{Duration, Instant};

const ROUNDS: usize = 2;

/// A file from its start, in requests of one size, so many at a time.
pub struct Reading {
    file: File,
    how: How,
}

#[derive(Clone, Copy, Debug, Default)]
struct How {
    total: u64,
    request: u64,
    threads: u64,
}

impl Reading {
    /// The fastest of two files, of each so many bytes: they may lie on storage in different ways,
    /// and what one of them gives, it can give.
    pub fn fastest(files: [(File, u64); 2]) -> Outcome<Reading> {
        let of = |(file, bytes)| -> Outcome<(f64, Reading)> {
            let (rate, how) = best(&file, bytes)?;
            Ok((rate, Reading { file, how }))
        };
        let [first, second] = files.map(of);
        let (first, second) = (first?, second?);
        Ok(if second.0 > first.0 { second.1 } else { first.1 })
    }

    /// Bytes a second now, and the seconds of cores that a byte costs this system.
    pub fn now(&self) -> Outcome<(f64, f64)> {
        let before = core_time();
        let read = self.how.rate(&self.file)?;
        let cost = core_time().saturating_sub(before);
        Ok((read, 1.0 / rate(self.how.total, cost)))
    }
}

/// What this process has had of cores.
fn core_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// In requests of two sizes, by up to eight at a time: the best, and its bytes a second.
fn best(file: &File, bytes: u64) -> Outcome<(f64, How)> {
    let mut best = (0.0, How::default());
    for largest in [PART_BYTES_MIN, REQUEST_BYTES as u64] {
        // Of a small model, smaller requests, so that there are some to share.
        let smallest = IO_ALIGN as u64;
        let request = (bytes / 8 / smallest * smallest).clamp(smallest, largest);
        let total = bytes / request * request;
        if total == 0 {
            return Err(Failure::new("the model file is too small to measure reads with"));
        }
        for threads in [1, 2, 4, 8] {
            let how = How { total, request, threads };
            for _ in 0..ROUNDS {
                let rate = how.rate(file)?;
                if rate > best.0 {
                    best = (rate, how);
                }
            }
        }
    }
    Ok(best)
}

impl How {
    fn rate(&self, file: &File) -> Outcome<f64> {
        let start = Instant::now();
        self.read(file)?;
        Ok(rate(self.total, start.elapsed()))
    }

    /// Threads take requests in turns.
    fn read(&self, file: &File) -> Outcome<()> {
        let How { total, request, threads } = *self;
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
        on_threads(threads, &|| read(next.increment().into()))
    }
}

/// Does something on so many threads.
pub fn on_threads(threads: u64, work: &(dyn Fn() -> mzcache::Result<()> + Sync)) -> Outcome<()> {
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
