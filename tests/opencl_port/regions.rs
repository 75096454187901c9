//! Shared buffers that host and device use in turns.

use crate::planted::{FAULTS, plant};
use crate::support::*;
use mzcache::arena::{Arena, Sizer};
use mzcache::port::buffers::Buffers;
use mzcache::port::opencl::{Block, DeviceBuffers, Kernel, MemoryMode, WorkSize};
use mzcache::port::{DeviceRegion, SharedMemory, Use};
use mzcache::{Code, Result};
use std::mem::MaybeUninit;

const CHUNK: usize = 64 << 10;
const REGIONS: usize = 8;
const POOL_CHUNKS: usize = 6;

/// Chunks are found by address, or by an offset from the pool.
const KERNELS: &str = "
#ifdef OFFSETS
#define CHUNK(table, pool, c) ((global uint *)((pool) + (table)[c]))
#else
#define CHUNK(table, pool, c) ((global uint *)(table)[c])
#endif
kernel void sums(global const ulong *table, global uchar *pool, global uint *out, uint words) {
    size_t c = get_global_id(0);
    uint sum = 0;
    for (uint i = 0; i < words; i++) sum += CHUNK(table, pool, c)[i];
    out[c] = sum;
}
kernel void fill(global const ulong *table, global uchar *pool, uint c, uint value) {
    CHUNK(table, pool, c)[get_global_id(0)] = value;
}";

struct Fixture {
    opened: Opened,
    mode: MemoryMode,
    port: &'static DeviceBuffers,
    buffers: Buffers,
}

/// Memory that never goes away.
pub fn memory(sizer: &Sizer) -> Arena {
    let bytes = vec![MaybeUninit::new(0xA5); sizer.required().unwrap()];
    Arena::new(Box::leak(bytes.into_boxed_slice())).unwrap()
}

/// Granules of a quarter of a chunk.
const STAGING: usize = 64 * CHUNK / 4;

fn fixture(mode: MemoryMode, staging: usize) -> Fixture {
    fixture_on(open().unwrap(), mode, 0, staging)
}

fn fixture_on(opened: Opened, mode: MemoryMode, spares: usize, staging: usize) -> Fixture {
    let mut sizer = Sizer::new();
    DeviceBuffers::size(&mut sizer, REGIONS).unwrap();
    let (context, queue) = (&opened.context, &opened.queue);
    let pool_bytes = POOL_CHUNKS * CHUNK + 100;
    let port =
        DeviceBuffers::new(&mut memory(&sizer), REGIONS, context, queue, mode, pool_bytes).unwrap();
    let port = if staging > 0 { port.with_staging(staging) } else { port };
    let port: &'static DeviceBuffers = Box::leak(Box::new(port.with_spares(spares)));
    assert_eq!(port.mode(), mode);
    let mut sizer = Sizer::new();
    Buffers::size(&mut sizer, 16).unwrap();
    let buffers = Buffers::new(&mut memory(&sizer), 16, port).unwrap();
    Fixture { opened, mode, port, buffers }
}

impl Fixture {
    fn kernel(&self, name: &'static std::ffi::CStr) -> Kernel {
        let offsets = if self.mode == MemoryMode::Buffers { "#define OFFSETS\n" } else { "" };
        kernel(&self.opened.context, &format!("{offsets}{KERNELS}"), name)
    }

    fn block(&self, bytes: usize) -> Block {
        Block::new(&self.opened.context, &self.opened.queue, self.mode, bytes).unwrap()
    }

    /// A chunk whose every word is that number.
    fn chunk(&self, slot: usize, word: u32) {
        self.buffers.allocate(slot, Use::Kv, CHUNK, CHUNK / 2).unwrap();
        for part in [1, 0] {
            let mut part = self.buffers.part(slot, part).unwrap();
            part.bytes().chunks_exact_mut(4).for_each(|w| w.copy_from_slice(&word.to_ne_bytes()));
            part.finish().unwrap();
        }
        self.buffers.publish(slot).unwrap();
    }

    /// A new chunk, which the device finds empty.
    fn zeros(&self, slot: usize) {
        self.buffers.allocate_zeroed(slot, Use::Kv, CHUNK).unwrap();
        self.buffers.publish(slot).unwrap();
        let lease = self.buffers.lease_device(slot).unwrap();
        assert_eq!(self.sums(&[lease.region()]), [0], "{:?}", self.mode);
        drop(lease);
        assert!(self.words_are(slot, 0), "{:?}", self.mode);
    }

    fn table(&self, regions: &[DeviceRegion]) -> Block {
        let mut table = self.block(regions.len() * 8);
        let entries: Vec<u8> = regions.iter().flat_map(|r| r.entry().to_ne_bytes()).collect();
        table.write(0, &entries).unwrap();
        table
    }

    /// Sums the words of each region on the device.
    fn sums(&self, regions: &[DeviceRegion]) -> Vec<u32> {
        let mut kernel = self.kernel(c"sums");
        let (table, out) = (self.table(regions), self.block(regions.len() * 4));
        kernel.set_memory(0, table.region()).unwrap();
        kernel.set_memory(1, regions[0]).unwrap();
        kernel.set_memory(2, out.region()).unwrap();
        kernel.set_value(3, (CHUNK / 4) as u32).unwrap();
        if self.mode != MemoryMode::Buffers {
            let list: Vec<u64> = regions.iter().map(|region| region.address).collect();
            kernel.list_memory(&list).unwrap();
        }
        let size = WorkSize { global: [regions.len(), 1, 1], local: None };
        self.opened.queue.run(&kernel, size).unwrap();
        let mut read = vec![0; regions.len() * 4];
        out.read(0, &mut read).unwrap();
        read.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    /// Writes a number to every word of a region on the device.
    fn fill(&self, region: DeviceRegion, value: u32) {
        let mut kernel = self.kernel(c"fill");
        let table = self.table(&[region]);
        kernel.set_memory(0, table.region()).unwrap();
        kernel.set_memory(1, region).unwrap();
        kernel.set_value(2, 0u32).unwrap();
        kernel.set_value(3, value).unwrap();
        self.opened.queue.run(&kernel, WorkSize::linear(CHUNK / 4, 64)).unwrap();
        self.opened.queue.finish().unwrap();
    }

    fn words_are(&self, slot: usize, word: u32) -> bool {
        let lease = self.buffers.lease(slot).unwrap();
        lease.chunks_exact(4).all(|bytes| bytes == word.to_ne_bytes())
    }
}

fn code<T>(result: Result<T>) -> Option<Code> {
    result.err().map(|error| error.code)
}

fn each_mode(test: impl Fn(Fixture)) {
    let Some(opened) = open() else { return };
    for mode in modes(&opened) {
        test(fixture(mode, 0));
        if mode == MemoryMode::Buffers {
            test(fixture(mode, STAGING));
        }
    }
}

#[test]
fn chunks_go_to_the_device_and_back() {
    each_mode(|f| {
        for slot in 0..5 {
            f.chunk(slot, slot as u32 + 1);
        }
        let words = (CHUNK / 4) as u32;
        // Twice: the second pass finds the chunks where the first one left them.
        for _ in 0..2 {
            let leases: Vec<_> = (0..5).map(|slot| f.buffers.lease_device(slot).unwrap()).collect();
            assert_eq!(leases[0].bytes(), CHUNK);
            let regions: Vec<_> = leases.iter().map(|lease| lease.region()).collect();
            let expected: Vec<u32> = (1..6).map(|word| word * words).collect();
            assert_eq!(f.sums(&regions), expected, "{:?}", f.mode);
        }
        assert!(f.words_are(3, 4));
        {
            let last = f.buffers.lock_device(4).unwrap();
            assert_eq!(last.bytes(), CHUNK);
            f.fill(last.region(), 77);
        }
        assert!(f.words_are(4, 77));
        f.buffers.lock(4).unwrap().fill(0x01);
        let lease = f.buffers.lease_device(4).unwrap();
        assert_eq!(f.sums(&[lease.region()]), [0x0101_0101u32.wrapping_mul(words)]);
        drop(lease);
        // What is used again is zero again, wherever it was released from.
        for slot in [4, 3] {
            f.buffers.release(slot).unwrap();
            f.zeros(slot);
        }
        for slot in 0..5 {
            f.buffers.release(slot).unwrap();
        }
        assert_eq!(f.buffers.allocated_bytes(), 0);
    });
}

/// More parts at once than there is staging for, some given up, in an order of their own.
#[test]
fn parts_are_filled_through_what_memory_there_is() {
    each_mode(|f| {
        let words = (CHUNK / 4) as u32;
        for round in 0..2 {
            for slot in 0..POOL_CHUNKS {
                f.buffers.allocate(slot, Use::Kv, CHUNK, CHUNK / 16).unwrap();
            }
            let number = |slot: usize, part: u32| 16 * slot as u32 + part + round;
            let mut parts: Vec<_> = (0..POOL_CHUNKS)
                .flat_map(|slot| (0..16).map(move |part| (slot, part)))
                .map(|(slot, part)| (number(slot, part), f.buffers.part(slot, part).unwrap()))
                .collect();
            for (number, part) in &mut parts {
                part.bytes().chunks_exact_mut(4).for_each(|word| {
                    word.copy_from_slice(&number.to_ne_bytes());
                });
            }
            // The last chunk is given up.
            parts.truncate(16 * (POOL_CHUNKS - 1));
            parts.into_iter().rev().for_each(|(_, part)| part.finish().unwrap());
            f.buffers.release(POOL_CHUNKS - 1).unwrap();
            for slot in 0..POOL_CHUNKS - 1 {
                f.buffers.publish(slot).unwrap();
                let lease = f.buffers.lease_device(slot).unwrap();
                let sum = (0..16).map(|part| number(slot, part) * words / 16).sum();
                assert_eq!(f.sums(&[lease.region()]), [sum], "{:?}", f.mode);
                drop(lease);
                let host = f.buffers.lease(slot).unwrap();
                let last = host.last_chunk::<4>().unwrap();
                assert_eq!(u32::from_ne_bytes(*last), number(slot, 15));
                assert_eq!(host.as_ptr().addr() % 4096, 0);
            }
            for slot in 0..POOL_CHUNKS - 1 {
                f.buffers.release(slot).unwrap();
            }
        }
    });
}

#[test]
fn one_party_at_a_time_where_both_cannot_see() {
    each_mode(|f| {
        f.chunk(0, 5);
        let both = f.mode == MemoryMode::Fine;
        let leased = if both { None } else { Some(Code::Leased) };
        {
            let _device = f.buffers.lease_device(0).unwrap();
            assert_eq!(code(f.buffers.lease(0)), leased, "{:?}", f.mode);
            let _second = f.buffers.lease_device(0).unwrap();
            assert_eq!(code(f.buffers.lock_device(0)), Some(Code::Leased));
            assert_eq!(code(f.buffers.release(0)), Some(Code::Leased));
        }
        assert!(!f.buffers.is_leased(0));
        {
            let _host = f.buffers.lease(0).unwrap();
            assert_eq!(code(f.buffers.lease_device(0)), leased, "{:?}", f.mode);
            let _second = f.buffers.lease(0).unwrap();
        }
        {
            let _device = f.buffers.lock_device(0).unwrap();
            assert_eq!(code(f.buffers.lease(0)), Some(Code::Leased));
            assert_eq!(code(f.buffers.lease_device(0)), Some(Code::Leased));
        }
        assert!(f.words_are(0, 5));
        assert_eq!(code(f.buffers.lease_device(1)), Some(Code::BadState));
        assert_eq!(code(f.buffers.lock_device(1)), Some(Code::BadState));
        assert_eq!(code(f.buffers.lease_device(99)), Some(Code::InvalidArgument));
        f.buffers.release(0).unwrap();
    });
}

#[test]
fn weights_have_memory_of_their_own_and_the_swap_ordinary_memory() {
    each_mode(|f| {
        f.buffers.allocate(0, Use::Weights, 3 * CHUNK + 5, 3 * CHUNK + 5).unwrap();
        let mut part = f.buffers.part(0, 0).unwrap();
        part.bytes().fill(0);
        part.bytes()[3 * CHUNK + 4] = 7;
        part.finish().unwrap();
        f.buffers.publish(0).unwrap();
        let lease = f.buffers.lease_device(0).unwrap();
        assert_eq!(lease.region().offset, 0);
        f.fill(lease.region(), 3);
        drop(lease);
        let host = f.buffers.lease(0).unwrap();
        assert_eq!((host[0], host[CHUNK], host[3 * CHUNK + 4]), (3, 0, 7));
        assert_eq!(host.as_ptr().addr() % 4096, 0);
        drop(host);
        f.buffers.allocate(1, Use::Swap, CHUNK, CHUNK).unwrap();
        f.buffers.publish(1).unwrap();
        f.buffers.lock(1).unwrap().fill(1);
        assert_eq!(code(f.buffers.lease_device(1)), Some(Code::InvalidArgument));
        // Nothing holds it: the refusal gave its lease back.
        f.buffers.release(1).unwrap();
        f.buffers.release(0).unwrap();
    });
}

#[test]
fn limits_are_errors_and_leave_nothing_behind() {
    each_mode(|f| {
        assert_eq!(code(f.port.allocate(Use::Kv, 0)), Some(Code::InvalidArgument));
        assert_eq!(code(f.port.allocate(Use::Weights, 1 << 50)), Some(Code::LimitExceeded));
        for _ in 0..2 {
            let limit = if f.mode == MemoryMode::Buffers { POOL_CHUNKS } else { REGIONS };
            for slot in 0..limit {
                f.chunk(slot, 1);
            }
            let refused = f.buffers.allocate(limit, Use::Kv, CHUNK, CHUNK);
            let expected = match f.mode {
                MemoryMode::Buffers => Code::OutOfMemory,
                _ => Code::LimitExceeded,
            };
            assert_eq!(code(refused), Some(expected));
            if f.mode == MemoryMode::Buffers {
                let larger = f.buffers.allocate(limit, Use::Kv, CHUNK + 4096, CHUNK + 4096);
                assert_eq!(code(larger), Some(Code::LimitExceeded));
            }
            for slot in 0..limit {
                f.buffers.release(slot).unwrap();
            }
        }
        if f.mode == MemoryMode::Buffers {
            let larger_than_the_pool = f.port.allocate(Use::Kv, (POOL_CHUNKS + 1) * CHUNK);
            assert_eq!(code(larger_than_the_pool), Some(Code::OutOfMemory));
        }
    });
}

#[test]
fn what_was_released_is_taken_again_within_a_bound() {
    if load(LOADER).is_none() {
        return;
    }
    let library = plant("regions-spares", FAULTS, true);
    for mode in [MemoryMode::Fine, MemoryMode::Coarse] {
        let f = fixture_on(open_by(&library.path).unwrap(), mode, 2 * CHUNK + 100, 0);
        let allocations = |work: &dyn Fn()| {
            library.set(c"clSVMAlloc_calls", 0);
            work();
            library.get(c"clSVMAlloc_calls")
        };
        // New memory is zero, wherever it comes from. Some is the device's when it is released.
        let cycle = || {
            for slot in 0..4 {
                f.buffers.allocate_zeroed(slot, Use::Kv, CHUNK).unwrap();
                f.buffers.publish(slot).unwrap();
                assert!(f.words_are(slot, 0), "{mode:?}");
                f.buffers.lock(slot).unwrap().fill(7);
            }
            drop(f.buffers.lease_device(1).unwrap());
            for slot in 0..4 {
                f.buffers.release(slot).unwrap();
            }
        };
        let larger = || {
            f.buffers.allocate(0, Use::Weights, CHUNK + 1, CHUNK + 1).unwrap();
            f.buffers.publish(0).unwrap();
            f.buffers.release(0).unwrap();
        };
        assert_eq!(allocations(&cycle), 4);
        assert_eq!(allocations(&cycle), 2);
        assert_eq!(allocations(&larger), 1);
        f.port.trim();
        assert_eq!(allocations(&cycle), 4);
        // What the driver failed to wait for is not kept.
        f.port.trim();
        library.set(c"clFinish_fails", i32::MAX);
        cycle();
        library.set(c"clFinish_fails", 0);
        assert_eq!(allocations(&cycle), 4, "{mode:?}");
    }
}

/// Staging is a help, not a need.
#[test]
fn a_driver_that_pins_no_memory_is_done_without() {
    if load(LOADER).is_none() {
        return;
    }
    let library = plant("regions-staging", FAULTS, true);
    let opened = open_by(&library.path).unwrap();
    library.set(c"clCreateBuffer_calls", 0);
    library.set(c"clCreateBuffer_fails", 1);
    let f = fixture_on(opened, MemoryMode::Buffers, 0, STAGING);
    assert_eq!(library.get(c"clCreateBuffer_calls"), 1);
    library.set(c"clCreateBuffer_fails", 0);
    f.chunk(0, 5);
    drop(f.buffers.lease_device(0).unwrap());
    assert!(f.words_are(0, 5));
    f.buffers.release(0).unwrap();
    f.zeros(0);
    f.buffers.release(0).unwrap();
}

/// Workers and compute take turns on the same chunks; nobody reads what is not there.
#[test]
fn parties_race_for_a_chunk() {
    each_mode(|f| {
        f.chunk(0, 5);
        let patiently = |attempt: &dyn Fn() -> Result<()>| {
            loop {
                match attempt() {
                    Ok(()) => return,
                    Err(error) => assert_eq!(error.code, Code::Leased),
                }
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        patiently(&|| {
                            let lease = f.buffers.lease(0)?;
                            assert!(lease.iter().step_by(4).all(|byte| *byte == 5));
                            Ok(())
                        });
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    patiently(&|| f.buffers.lease_device(0).map(|_| ()));
                }
            });
        });
        f.buffers.release(0).unwrap();
    });
}
