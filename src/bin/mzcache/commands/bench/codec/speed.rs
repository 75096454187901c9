//! How fast a cache is packed and unpacked, beside a copy of the same bytes.

use super::cache::{Cache, Chunk};
use super::packing::Packing;
use crate::failure::Outcome;
use mzcache::limits::CHUNK_TOKENS;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Rounds over the whole cache; the median counts.
const ROUNDS: usize = 5;
/// At most this long for a median, rounds permitting: slow codecs are measured once.
const BUDGET: Duration = Duration::from_secs(3);

/// Rates in GB/s of F16 bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    pub pack_gb_per_s: f64,
    pub unpack_gb_per_s: f64,
    pub unpack_all_cores_gb_per_s: f64,
    /// Copying the same bytes on one core.
    pub memcpy_gb_per_s: f64,
}

impl Speed {
    /// Measures with chunks that are already packed.
    pub fn measure(packing: &dyn Packing, cache: &Cache, packed: &[Vec<u8>]) -> Outcome<Speed> {
        let mut out = targets(cache);
        let (mut scratch, mut again) = (Vec::new(), Vec::new());
        let pack = median(|| {
            for chunk in &cache.chunks {
                packing.pack(chunk, &mut again, &mut scratch)?;
            }
            Ok(())
        })?;
        let unpack = median(|| {
            for ((chunk, packed), out) in cache.chunks.iter().zip(packed).zip(&mut out) {
                packing.unpack(chunk, packed, out, &mut scratch)?;
            }
            Ok(())
        })?;
        let unpack_all_cores = median(|| unpack_in_parallel(packing, cache, packed, &mut out))?;
        let memcpy = median(|| {
            for (chunk, out) in cache.chunks.iter().zip(&mut out) {
                let row = usize::from(chunk.geometry.shape.head_dim);
                let valid = usize::from(chunk.geometry.tokens) * row;
                let block = usize::from(CHUNK_TOKENS) * row;
                let heads = out.chunks_exact_mut(block).zip(chunk.values.chunks_exact(block));
                heads.for_each(|(to, from)| to[..valid].copy_from_slice(&from[..valid]));
            }
            Ok(())
        })?;
        Ok(Speed {
            pack_gb_per_s: rate(cache, pack),
            unpack_gb_per_s: rate(cache, unpack),
            unpack_all_cores_gb_per_s: rate(cache, unpack_all_cores),
            memcpy_gb_per_s: rate(cache, memcpy),
        })
    }
}

/// Threads that run at once here.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Each chunk packed.
pub fn pack_all(packing: &dyn Packing, cache: &Cache) -> Outcome<Vec<Vec<u8>>> {
    let mut scratch = Vec::new();
    let pack = |chunk| {
        let mut packed = Vec::new();
        packing.pack(chunk, &mut packed, &mut scratch)?;
        packed.shrink_to_fit();
        Ok(packed)
    };
    cache.chunks.iter().map(pack).collect()
}

/// Each chunk as it comes back.
pub fn unpack_all(
    packing: &dyn Packing,
    cache: &Cache,
    packed: &[Vec<u8>],
) -> Outcome<Vec<Vec<u16>>> {
    let mut out = targets(cache);
    let mut scratch = Vec::new();
    for ((chunk, packed), out) in cache.chunks.iter().zip(packed).zip(&mut out) {
        packing.unpack(chunk, packed, out, &mut scratch)?;
    }
    Ok(out)
}

/// Zeroed chunks.
fn targets(cache: &Cache) -> Vec<Vec<u16>> {
    cache.chunks.iter().map(|chunk| vec![0; chunk.values.len()]).collect()
}

/// A chunk to unpack, and where to.
struct Item<'a> {
    chunk: &'a Chunk,
    packed: &'a [u8],
    out: &'a mut [u16],
}

/// Each core takes every so many-th chunk.
fn unpack_in_parallel(
    packing: &dyn Packing,
    cache: &Cache,
    packed: &[Vec<u8>],
    out: &mut [Vec<u16>],
) -> Outcome<()> {
    let cores = cores();
    let mut shares: Vec<Vec<Item>> = (0..cores).map(|_| Vec::new()).collect();
    for (index, ((chunk, packed), out)) in cache.chunks.iter().zip(packed).zip(out).enumerate() {
        shares[index % cores].push(Item { chunk, packed, out });
    }
    let work = |share: Vec<Item>| {
        let mut scratch = Vec::new();
        let unpack = |Item { chunk, packed, out }| packing.unpack(chunk, packed, out, &mut scratch);
        share.into_iter().try_for_each(unpack)
    };
    std::thread::scope(|scope| {
        let start = |share| scope.spawn(|| work(share));
        let threads: Vec<_> = shares.into_iter().map(start).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn median(mut work: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < ROUNDS && (times.is_empty() || started.elapsed() < BUDGET) {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn rate(cache: &Cache, time: Duration) -> f64 {
    cache.bytes() as f64 / time.as_secs_f64().max(1e-9) / 1e9
}
