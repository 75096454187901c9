//! Measures what eviction and restoration are planned by: how fast this storage is read in large
//! requests, and how fast one core packs and unpacks KV chunks.
//!
//! Rates are medians over rounds, so that one disturbance does not decide. Bytes of a chunk count
//! unpacked. Nothing here knows a file system: storage and codecs come as the library's traits.

use crate::failure::{Failure, Outcome};
use crate::random::Random;
use indicatif::ProgressBar;
use mzcache::codec::{ChunkLayout, Codec, Geometry, Steps, Work, mean_square};
use mzcache::kernel::Kernels;
use mzcache::limits::{CHUNK_TOKENS, IO_ALIGN};
use mzcache::port::Storage;
use mzcache::units::{ChunkId, CodecId, KvShape};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of one read: storage saturates at 512 KiB, and larger requests cost fewer calls.
pub const REQUEST_BYTES: usize = 4 << 20;
/// Least bytes to measure with.
pub const READ_BYTES_MIN: u64 = 8 * REQUEST_BYTES as u64;
const ROUNDS: u64 = 8;

/// How fast one core packs and unpacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecRate {
    pub codec: CodecId,
    pub pack_bytes_per_second: u64,
    pub unpack_bytes_per_second: u64,
    /// Bytes of a chunk as it is, and packed.
    pub chunk_bytes: u64,
    pub packed_bytes: u64,
}

/// The rate at which `bytes` that do not compress are written and synced, for [`read_rate`].
pub fn write_rate(storage: &dyn Storage, bytes: u64, bar: &ProgressBar) -> Outcome<u64> {
    let mut buffer = Aligned::<u8>::new(REQUEST_BYTES);
    let mut random = Random::new(bytes);
    let mut time = Duration::ZERO;
    let total = requests(bytes)?;
    for request in 0..total {
        for word in buffer.slice().chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        let start = Instant::now();
        storage.write_at(request * REQUEST_BYTES as u64, buffer.slice())?;
        time += start.elapsed();
        bar.inc(REQUEST_BYTES as u64);
    }
    let start = Instant::now();
    storage.sync()?;
    Ok(rate(total * REQUEST_BYTES as u64, time + start.elapsed()))
}

/// The rate at which what [`write_rate`] wrote is read, from front to back.
pub fn read_rate(storage: &dyn Storage, bytes: u64, bar: &ProgressBar) -> Outcome<u64> {
    let mut buffer = Aligned::<u8>::new(REQUEST_BYTES);
    let total = requests(bytes)?;
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let range = total * round / ROUNDS..total * (round + 1) / ROUNDS;
        let count = range.end - range.start;
        let start = Instant::now();
        for request in range {
            let offset = request * REQUEST_BYTES as u64;
            if storage.read_at(offset, buffer.slice())? != REQUEST_BYTES {
                return Err(Failure::new("the file that was just written ends early")
                    .hint("leave the cache directory alone while mzcache profile runs"));
            }
            bar.inc(REQUEST_BYTES as u64);
        }
        rates.push(rate(count * REQUEST_BYTES as u64, start.elapsed()));
    }
    Ok(median(rates))
}

/// Packs and unpacks a chunk of that shape for about `budget` each, on this core.
pub fn codec_rate(
    codec: &dyn Codec,
    kernels: &Kernels,
    shape: KvShape,
    budget: Duration,
) -> Outcome<CodecRate> {
    on_chunks(codec, kernels, shape, 1, |chunks| {
        let bytes = chunks.codec_rate(0, 0).chunk_bytes;
        let pack = repeat(bytes, budget, || chunks.pack(0))?;
        let unpack = repeat(bytes, budget, || chunks.unpack(0))?;
        Ok(chunks.codec_rate(pack, unpack))
    })
}

/// The same of so many cores together, each with `count` chunks that it takes in turns: more than
/// caches hold, as in a restore.
pub fn codec_rate_together(
    codec: &dyn Codec,
    kernels: &Kernels,
    shape: KvShape,
    budget: Duration,
    (cores, count): (usize, usize),
) -> Outcome<CodecRate> {
    let all_there = Barrier::new(cores);
    let work = || {
        let found = on_chunks(codec, kernels, shape, count, |chunks| {
            let bytes = chunks.codec_rate(0, 0).chunk_bytes;
            // All begin together, whether or not one of them failed.
            let timed = |work: &mut dyn FnMut(usize) -> mzcache::Result<()>| {
                all_there.wait();
                let start = Instant::now();
                let mut done = 0;
                while done < count || start.elapsed() < budget {
                    work(done % count)?;
                    done += 1;
                }
                Ok::<_, Failure>(rate(bytes * done as u64, start.elapsed()))
            };
            let pack = timed(&mut |index| chunks.pack(index));
            let unpack = timed(&mut |index| chunks.unpack(index));
            Ok((pack, unpack, chunks.codec_rate(0, 0)))
        });
        if found.is_err() {
            // Of the two rounds that the others wait for.
            all_there.wait();
            all_there.wait();
        }
        let (pack, unpack, rate) = found?;
        let (pack_bytes_per_second, unpack_bytes_per_second) = (pack?, unpack?);
        Ok::<_, Failure>(CodecRate { pack_bytes_per_second, unpack_bytes_per_second, ..rate })
    };
    std::thread::scope(|scope| {
        let others = (1..cores).map(|_| scope.spawn(work)).collect::<Vec<_>>();
        let mut sum = work();
        for other in others {
            let found = match other.join() {
                Ok(found) => found,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            sum = sum.and_then(|sum| {
                let found = found?;
                Ok(CodecRate {
                    pack_bytes_per_second: sum.pack_bytes_per_second + found.pack_bytes_per_second,
                    unpack_bytes_per_second: sum.unpack_bytes_per_second
                        + found.unpack_bytes_per_second,
                    ..sum
                })
            });
        }
        sum
    })
}

/// Chunks of one layer, raw and packed.
struct Chunks<'a> {
    codec: &'a dyn Codec,
    geometry: Geometry,
    work: Work<'a>,
    raw: Vec<Aligned<u16>>,
    packed: Vec<Aligned<u8>>,
    packed_bytes: usize,
}

/// Makes `count` chunks of bell-shaped values, packs each once, and hands them over.
fn on_chunks<T>(
    codec: &dyn Codec,
    kernels: &Kernels,
    shape: KvShape,
    count: usize,
    run: impl FnOnce(&mut Chunks<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let layout = ChunkLayout::TokenMajor;
    let one_layer = KvShape { layers: 1, ..shape };
    let geometry =
        Geometry { shape: one_layer, id: ChunkId::default(), tokens: CHUNK_TOKENS, layout };
    let mut raw: Vec<_> =
        (0..count).map(|_| Aligned::<u16>::new(shape.block_values() * 2)).collect();
    let mut random = Random::new(1);
    let values: Vec<f32> = (0..shape.block_values() * 2).map(|_| bell(&mut random)).collect();
    raw.iter_mut().for_each(|chunk| kernels.f32_to_f16.call(&values, chunk.slice()));
    let packed_bytes_max = codec.packed_bytes_max(&geometry);
    let packed = (0..count).map(|_| Aligned::new(packed_bytes_max)).collect();
    let mut scratch = Aligned::<u8>::new(codec.scratch_bytes(&geometry));
    let mut memory = vec![0.0; Steps::values(&one_layer)];
    let squares = [mean_square(std::iter::once(&raw[0].slice()[..shape.block_values()]))];
    let steps = Steps::uniform(kernels, one_layer, &squares, &mut memory)?;
    let steps = steps.layer(geometry.id.layer);
    let work = Work { kernels, steps, scratch: scratch.slice() };
    let mut chunks = Chunks { codec, geometry, work, raw, packed, packed_bytes: 0 };
    (0..count).try_for_each(|index| chunks.pack(index))?;
    if chunks.packed_bytes > packed_bytes_max {
        let name = codec.id().name();
        return Err(Failure::new(format!("codec {name} says it wrote more than fits")));
    }
    run(&mut chunks)
}

impl Chunks<'_> {
    fn pack(&mut self, index: usize) -> mzcache::Result<()> {
        let (raw, packed) = (self.raw[index].slice(), self.packed[index].slice());
        self.packed_bytes = self.codec.pack(&mut self.work, &self.geometry, raw, packed)?;
        Ok(())
    }

    fn unpack(&mut self, index: usize) -> mzcache::Result<()> {
        let (raw, packed) = (self.raw[index].slice(), self.packed[index].slice());
        let packed = &packed[..self.packed_bytes];
        self.codec.unpack(&mut self.work, &self.geometry, packed, raw)
    }

    fn codec_rate(&self, pack_bytes_per_second: u64, unpack_bytes_per_second: u64) -> CodecRate {
        CodecRate {
            codec: self.codec.id(),
            pack_bytes_per_second,
            unpack_bytes_per_second,
            chunk_bytes: self.geometry.shape.chunk_bytes() as u64,
            packed_bytes: self.packed_bytes as u64,
        }
    }
}

/// Bell-shaped about 0, as keys and values are.
#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is meant")]
fn bell(random: &mut Random) -> f32 {
    (random.unit() + random.unit() + random.unit() + random.unit() - 2.0) as f32
}

/// The rate of `work`, which handles `bytes` each time: once to warm up, then for `budget`.
fn repeat(
    bytes: u64,
    budget: Duration,
    mut work: impl FnMut() -> mzcache::Result<()>,
) -> Outcome<u64> {
    work()?;
    let start = Instant::now();
    let mut rates = Vec::new();
    while rates.len() < 3 || start.elapsed() < budget {
        let round = Instant::now();
        work()?;
        rates.push(rate(bytes, round.elapsed()));
    }
    Ok(median(rates))
}

fn requests(bytes: u64) -> Outcome<u64> {
    if bytes < READ_BYTES_MIN {
        let least = crate::amount::Size(READ_BYTES_MIN);
        return Err(Failure::usage(format!("--read-bytes must be at least {least}")));
    }
    Ok(bytes / REQUEST_BYTES as u64)
}

fn rate(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn median(mut rates: Vec<u64>) -> u64 {
    rates.sort_unstable();
    rates.get(rates.len() / 2).copied().unwrap_or(0)
}

/// A buffer that begins at a multiple of what storage and kernels want.
pub struct Aligned<T> {
    memory: Vec<T>,
    start: usize,
    length: usize,
}

impl<T: Copy + Default> Aligned<T> {
    pub fn new(length: usize) -> Self {
        let memory = vec![T::default(); length + IO_ALIGN];
        let start = memory.as_ptr().align_offset(IO_ALIGN);
        assert!(start <= IO_ALIGN);
        Aligned { memory, start, length }
    }

    pub fn slice(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mzcache::codec::{LayerSteps, Opened, Properties, Raw};
    use mzcache::{Code, Error};
    use std::sync::Mutex;

    /// A file in memory that checks the alignment rules and may end early or fail.
    #[derive(Default)]
    struct Memory {
        bytes: Mutex<Vec<u8>>,
        is_full: bool,
        sync_fails: bool,
    }

    fn check(offset: u64, buffer: &[u8]) {
        assert!(offset.is_multiple_of(IO_ALIGN as u64));
        assert!(buffer.len().is_multiple_of(IO_ALIGN));
        assert_eq!(buffer.as_ptr().align_offset(IO_ALIGN), 0);
    }

    impl Storage for Memory {
        fn read_at(&self, offset: u64, into: &mut [u8]) -> mzcache::Result<usize> {
            check(offset, into);
            let bytes = self.bytes.lock().unwrap();
            let rest = bytes.get(offset as usize..).unwrap_or(&[]);
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> mzcache::Result<()> {
            check(offset, from);
            if self.is_full {
                return Err(Error::new(Code::NoSpace, "swap file"));
            }
            let mut bytes = self.bytes.lock().unwrap();
            let end = offset as usize + from.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[offset as usize..end].copy_from_slice(from);
            Ok(())
        }

        fn sync(&self) -> mzcache::Result<()> {
            match self.sync_fails {
                true => Err(Error::new(Code::SyncFailed, "swap file")),
                false => Ok(()),
            }
        }

        fn discard(&self, _: u64, _: u64) -> mzcache::Result<()> {
            Ok(())
        }

        fn length(&self) -> mzcache::Result<u64> {
            Ok(self.bytes.lock().unwrap().len() as u64)
        }

        fn is_direct(&self) -> bool {
            false
        }
    }

    /// Copies; says how often it was asked.
    #[derive(Default)]
    struct Copying {
        calls: Mutex<(u32, u32)>,
        unpack_fails: bool,
    }

    impl Codec for Copying {
        fn id(&self) -> CodecId {
            CodecId::Raw
        }

        fn version(&self) -> u8 {
            Raw.version()
        }

        fn properties(&self) -> Properties {
            Raw.properties()
        }

        fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
            Raw.packed_bytes_max(geometry)
        }

        fn scratch_bytes(&self, _: &Geometry) -> usize {
            7
        }

        fn pack(
            &self,
            work: &mut Work<'_>,
            geometry: &Geometry,
            chunk: &[u16],
            packed: &mut [u8],
        ) -> mzcache::Result<usize> {
            assert_eq!(packed.as_ptr().align_offset(64), 0);
            assert_eq!(work.scratch.as_ptr().align_offset(64), 0);
            assert_eq!(work.scratch.len(), 7);
            self.calls.lock().unwrap().0 += 1;
            Raw.pack(work, geometry, chunk, packed)
        }

        fn open<'a>(
            &self,
            kernels: &Kernels,
            geometry: &Geometry,
            steps: Option<LayerSteps<'_>>,
            packed: &'a [u8],
        ) -> mzcache::Result<Opened<'a>> {
            assert_eq!(packed.len(), self.packed_bytes_max(geometry));
            self.calls.lock().unwrap().1 += 1;
            match self.unpack_fails {
                true => Err(Error::new(Code::Corrupt, "checksum")),
                false => Raw.open(kernels, geometry, steps, packed),
            }
        }

        fn unpack_part(
            &self,
            work: &mut Work<'_>,
            opened: &Opened<'_>,
            part: usize,
            values: &mut [u16],
        ) -> mzcache::Result<()> {
            Raw.unpack_part(work, opened, part, values)
        }
    }

    const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 2, head_dim: 32 };

    #[test]
    fn what_was_written_is_read_and_counted() {
        let storage = Memory::default();
        let bar = ProgressBar::hidden();
        assert!(write_rate(&storage, READ_BYTES_MIN, &bar).unwrap() > 0);
        assert_eq!(storage.length().unwrap(), READ_BYTES_MIN);
        let bytes = storage.bytes.lock().unwrap().clone();
        let (first, rest) = bytes.split_at(REQUEST_BYTES);
        assert!(first != &rest[..REQUEST_BYTES]);
        assert!(read_rate(&storage, READ_BYTES_MIN, &bar).unwrap() > 0);
        assert_eq!(bar.position(), 2 * READ_BYTES_MIN);
    }

    #[test]
    fn a_file_that_shrank_and_a_full_or_failing_disk_are_errors() {
        let bar = ProgressBar::hidden();
        let storage = Memory::default();
        write_rate(&storage, READ_BYTES_MIN, &bar).unwrap();
        storage.bytes.lock().unwrap().pop();
        let failure = read_rate(&storage, READ_BYTES_MIN, &bar).unwrap_err();
        assert!(failure.message.contains("ends early"), "{failure}");
        let full = Memory { is_full: true, ..Memory::default() };
        let failure = write_rate(&full, READ_BYTES_MIN, &bar).unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("--cache-dir")));
        let failing = Memory { sync_fails: true, ..Memory::default() };
        assert!(write_rate(&failing, READ_BYTES_MIN, &bar).is_err());
    }

    #[test]
    fn too_few_bytes_are_a_usage_error() {
        let bar = ProgressBar::hidden();
        let failure = write_rate(&Memory::default(), READ_BYTES_MIN - 1, &bar).unwrap_err();
        assert_eq!(failure.exit, crate::failure::Exit::Usage);
    }

    #[test]
    fn a_codec_is_measured_both_ways() {
        let codec = Copying::default();
        let rate = codec_rate(&codec, &Kernels::portable(), SHAPE, Duration::ZERO).unwrap();
        assert_eq!(rate.chunk_bytes, SHAPE.chunk_bytes() as u64);
        assert_eq!(rate.packed_bytes, rate.chunk_bytes + 64);
        assert!(rate.pack_bytes_per_second > 0);
        assert!(rate.unpack_bytes_per_second > 0);
        assert_eq!(*codec.calls.lock().unwrap(), (5, 4));
    }

    #[test]
    fn cores_together_count_together() {
        let codec = Copying::default();
        let measure = |cores, count| {
            let kernels = Kernels::portable();
            codec_rate_together(&codec, &kernels, SHAPE, Duration::ZERO, (cores, count)).unwrap()
        };
        let rate = measure(3, 5);
        assert_eq!(rate.chunk_bytes, SHAPE.chunk_bytes() as u64);
        assert!(rate.pack_bytes_per_second > 0 && rate.unpack_bytes_per_second > 0);
        // Each packs its chunks twice, the first time to have them, and unpacks them once.
        assert_eq!(*codec.calls.lock().unwrap(), (30, 15));
        let failing = Copying { unpack_fails: true, ..Copying::default() };
        let budget = Duration::ZERO;
        let kernels = Kernels::portable();
        let failure = codec_rate_together(&failing, &kernels, SHAPE, budget, (2, 1)).unwrap_err();
        assert!(failure.message.contains("checksum"), "{failure}");
    }

    #[test]
    fn a_codec_that_fails_is_an_error() {
        let codec = Copying { unpack_fails: true, ..Copying::default() };
        let failure = codec_rate(&codec, &Kernels::portable(), SHAPE, Duration::ZERO).unwrap_err();
        assert!(failure.message.contains("checksum"), "{failure}");
    }

    #[test]
    fn rates_and_medians() {
        assert_eq!(rate(1_000, Duration::from_micros(1)), 1_000_000_000);
        assert_eq!(rate(u64::MAX, Duration::ZERO), u64::MAX);
        assert_eq!(median(vec![9, 1, 5]), 5);
        assert_eq!(median(vec![]), 0);
    }
}
