use super::*;
use crate::port::DeviceRegion;
use crate::sync::Word;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

/// The test heap as a memory port. It gives more than was asked for, counts, and fails on demand.
struct Heap {
    live: Counter,
    fail: Word,
    /// Uses that began and have not ended.
    uses: Counter,
}

const SPARE_BYTES: usize = 100;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 4096).unwrap()
}

// SAFETY: the global allocator's contract.
unsafe impl SharedMemory for Heap {
    fn allocate(&self, _: Use, bytes: usize) -> Result<Region> {
        if self.fail.load() > 0 {
            return Err(Error::new(Code::OutOfMemory, "heap").with(12));
        }
        let bytes = bytes + SPARE_BYTES;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).unwrap();
        self.live.add(bytes as u64);
        Ok(Region { start, bytes, token: 42 })
    }

    unsafe fn release(&self, _: Use, region: Region) {
        assert_eq!(region.token, 42);
        self.live.sub(region.bytes as u64);
        // SAFETY: allocated above with this layout; the caller releases it once.
        unsafe { dealloc(region.start.as_ptr(), layout(region.bytes)) };
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        if self.fail.load() > 0 {
            return Err(Error::new(Code::Leased, "heap"));
        }
        self.uses.add(1);
        Ok(region.start)
    }

    unsafe fn begin_device(&self, region: &Region) -> Result<DeviceRegion> {
        // SAFETY: the caller's promise.
        unsafe { self.begin_host(region)? };
        Ok(DeviceRegion { address: 0, buffer: region.token, offset: 7 })
    }

    unsafe fn end(&self, _: &Region) {
        self.uses.sub(1);
    }
}

fn buffers(slots: usize) -> (Buffers, &'static Heap) {
    let heap: &Heap = Box::leak(Box::new(Heap {
        live: Counter::new(),
        fail: Word::new(0),
        uses: Counter::new(),
    }));
    let mut sizer = Sizer::new();
    Buffers::size(&mut sizer, slots).unwrap();
    let memory = Box::leak(vec![MaybeUninit::new(0); sizer.required().unwrap()].into_boxed_slice());
    let mut arena = Arena::new(memory).unwrap();
    let buffers = Buffers::new(&mut arena, slots, heap).unwrap();
    assert_eq!(arena.seal(), sizer.used());
    (buffers, heap)
}

fn code<T>(result: Result<T>) -> Option<Code> {
    result.err().map(|error| error.code)
}

fn fill(buffers: &Buffers, slot: usize, bytes: usize, value: u8) -> Result<()> {
    buffers.allocate(slot, Use::Kv, bytes, bytes)?;
    let mut part = buffers.part(slot, 0)?;
    part.bytes().fill(value);
    part.finish()?;
    buffers.publish(slot)
}

static_assertions::assert_impl_all!(Lease<'static>: Send, Sync);
static_assertions::assert_impl_all!(DeviceLease<'static>: Send, Sync);
static_assertions::assert_not_impl_any!(Part<'static>: Send, Sync);
static_assertions::assert_not_impl_any!(Exclusive<'static>: Send, Sync);

#[test]
fn a_buffer_goes_through_its_life() {
    let (buffers, heap) = buffers(2);
    buffers.allocate(1, Use::Weights, 1000, 1000).unwrap();
    assert_eq!(buffers.allocated_bytes(), 1100);
    {
        let mut part = buffers.part(1, 0).unwrap();
        assert_eq!(part.range(), 0..1000);
        assert!(part.bytes().iter().all(|byte| *byte == 0));
        part.bytes().fill(7);
    }
    buffers.publish(1).unwrap();
    buffers.lock(1).unwrap()[999] = 8;
    let lease = buffers.lease(1).unwrap();
    assert_eq!((lease.len(), lease[998], lease[999]), (1000, 7, 8));
    assert!(buffers.is_leased(1));
    assert!(!buffers.is_leased(0));
    drop(lease);
    assert!(!buffers.is_leased(1));
    buffers.release(1).unwrap();
    assert_eq!((buffers.allocated_bytes(), heap.live.get()), (0, 0));
    // The slot can be used again, with another size; its parts are all there again.
    fill(&buffers, 1, 10, 1).unwrap();
    assert_eq!(&*buffers.lease(1).unwrap(), &[1; 10]);
    buffers.release(1).unwrap();
    assert_eq!(heap.live.get(), 0);
}

/// A slot of a new table in each of its states, and what holds it there.
struct Situation {
    buffers: &'static Buffers,
    _part: Option<Part<'static>>,
    _lease: Option<Lease<'static>>,
    _exclusive: Option<Exclusive<'static>>,
    _device_lease: Option<DeviceLease<'static>>,
    _device_exclusive: Option<DeviceExclusive<'static>>,
}

fn situation(state: &str) -> Situation {
    let buffers: &'static Buffers = Box::leak(Box::new(buffers(1).0));
    let mut all = Situation {
        buffers,
        _part: None,
        _lease: None,
        _exclusive: None,
        _device_lease: None,
        _device_exclusive: None,
    };
    if state == "absent" {
        return all;
    }
    buffers.allocate(0, Use::Kv, 200, 100).unwrap();
    match state {
        "prepared" => return all,
        "filling" => {
            all._part = Some(buffers.part(0, 1).unwrap());
            return all;
        }
        _ => buffers.publish(0).unwrap(),
    }
    match state {
        "resident" => {}
        "leased" => all._lease = Some(buffers.lease(0).unwrap()),
        "exclusive" => all._exclusive = Some(buffers.lock(0).unwrap()),
        "leased by device" => all._device_lease = Some(buffers.lease_device(0).unwrap()),
        "exclusive by device" => all._device_exclusive = Some(buffers.lock_device(0).unwrap()),
        _ => panic!("{state}"),
    }
    all
}

#[test]
fn every_call_in_every_state_succeeds_or_says_why_not() {
    const BAD: Option<Code> = Some(Code::BadState);
    const LEASED: Option<Code> = Some(Code::Leased);
    const OK: Option<Code> = None;
    // allocate, part, publish, lock, lease, release; a device locks and leases as the host does
    let expected = [
        ("absent", [OK, BAD, BAD, BAD, BAD, BAD]),
        ("prepared", [BAD, OK, OK, BAD, BAD, OK]),
        ("filling", [BAD, OK, BAD, LEASED, LEASED, LEASED]),
        ("resident", [BAD, BAD, BAD, OK, OK, OK]),
        ("leased", [BAD, BAD, BAD, LEASED, OK, LEASED]),
        ("exclusive", [BAD, BAD, BAD, LEASED, LEASED, LEASED]),
        ("leased by device", [BAD, BAD, BAD, LEASED, OK, LEASED]),
        ("exclusive by device", [BAD, BAD, BAD, LEASED, LEASED, LEASED]),
    ];
    for (state, expected) in expected {
        let calls: [fn(&'static Buffers) -> Option<Code>; 6] = [
            |b| code(b.allocate(0, Use::Kv, 50, 50)),
            |b| code(b.part(0, 0)),
            |b| code(b.publish(0)),
            |b| code(b.lock(0)),
            |b| code(b.lease(0)),
            |b| code(b.release(0)),
        ];
        for (index, call) in calls.into_iter().enumerate() {
            let situation = situation(state);
            assert_eq!(call(situation.buffers), expected[index], "call {index} when {state}");
        }
        let held = situation(state);
        assert_eq!(code(held.buffers.lock_device(0)), expected[3], "{state}");
        assert_eq!(code(held.buffers.lease_device(0)), expected[4], "{state}");
    }
}

#[test]
fn what_the_port_refuses_to_hand_over_leaves_the_buffer_as_it_was() {
    let (buffers, heap) = buffers(1);
    buffers.allocate(0, Use::Kv, 100, 50).unwrap();
    heap.fail.store(1);
    assert_eq!(code(buffers.part(0, 0)), Some(Code::Leased));
    heap.fail.store(0);
    // The part can still be had, and a refused part does not keep the buffer from being published.
    drop(buffers.part(0, 0).unwrap());
    buffers.publish(0).unwrap();
    heap.fail.store(1);
    assert_eq!(code(buffers.lock(0)), Some(Code::Leased));
    assert_eq!(code(buffers.lease(0)), Some(Code::Leased));
    assert_eq!(code(buffers.lock_device(0)), Some(Code::Leased));
    assert_eq!(code(buffers.lease_device(0)), Some(Code::Leased));
    heap.fail.store(0);
    assert_eq!((buffers.is_leased(0), heap.uses.get()), (false, 0));
    {
        let lease = buffers.lease_device(0).unwrap();
        let named = DeviceRegion { address: 0, buffer: 42, offset: 7 };
        assert_eq!((lease.region(), lease.bytes(), named.entry()), (named, 100, 7));
        let _host = buffers.lease(0).unwrap();
        assert_eq!(heap.uses.get(), 2);
    }
    {
        let exclusive = buffers.lock_device(0).unwrap();
        assert_eq!((exclusive.region().buffer, exclusive.bytes()), (42, 100));
    }
    drop(buffers.lock(0).unwrap());
    assert_eq!(heap.uses.get(), 0);
    buffers.release(0).unwrap();
}

/// A port that needs no handing over names the address.
#[test]
fn memory_that_both_see_is_named_by_its_address() {
    let heap = crate::port::heap::Heap::leaked(1 << 20);
    let region = heap.allocate(Use::Kv, 64).unwrap();
    // SAFETY: the region is live, and released once.
    unsafe {
        let named = heap.begin_device(&region).unwrap();
        assert_eq!(named.address, region.start.addr().get() as u64);
        assert_eq!((named.buffer, named.offset, named.entry()), (0, 0, named.address));
        heap.begin_host(&region).unwrap();
        heap.end(&region);
        heap.end(&region);
        heap.release(Use::Kv, region);
    }
}

#[test]
fn parts_are_disjoint_cover_the_buffer_and_are_handed_out_once() {
    let (buffers, _) = buffers(1);
    for (bytes, part_bytes) in [(1, 1), (64, 1), (1000, 300), (900, 300), (5, usize::MAX)] {
        buffers.allocate(0, Use::Weights, bytes, part_bytes).unwrap();
        let count = bytes.div_ceil(part_bytes) as u32;
        let mut parts: Vec<_> = (0..count).map(|part| buffers.part(0, part).unwrap()).collect();
        let mut end = 0;
        for (index, part) in parts.iter_mut().enumerate() {
            assert_eq!(part.range().start, end);
            end = part.range().end;
            assert_eq!(part.bytes().len(), part.range().len());
            part.bytes().fill(index as u8 + 1);
        }
        assert_eq!(end, bytes);
        for part in [0, count - 1, count, 64, u32::MAX] {
            assert_eq!(code(buffers.part(0, part)), Some(Code::InvalidArgument), "{part}");
        }
        assert_eq!(code(buffers.publish(0)), Some(Code::BadState));
        drop(parts);
        // A dropped part is not handed out again.
        assert_eq!(code(buffers.part(0, 0)), Some(Code::InvalidArgument));
        buffers.publish(0).unwrap();
        let lease = buffers.lease(0).unwrap();
        for (index, byte) in lease.iter().enumerate() {
            assert_eq!(usize::from(*byte), index / part_bytes + 1);
        }
        drop(lease);
        buffers.release(0).unwrap();
    }
}

#[test]
fn wrong_sizes_and_slots_are_errors_and_change_nothing() {
    let (buffers, heap) = buffers(1);
    for (bytes, part_bytes) in [(0, 1), (1, 0), (65, 1), (1 << 40, 4096)] {
        let error = buffers.allocate(0, Use::Kv, bytes, part_bytes);
        assert_eq!(code(error), Some(Code::InvalidArgument), "{bytes} in {part_bytes}");
    }
    for slot in [1, usize::MAX] {
        assert_eq!(code(buffers.allocate(slot, Use::Kv, 1, 1)), Some(Code::InvalidArgument));
        assert_eq!(code(buffers.lease(slot)), Some(Code::InvalidArgument));
        assert_eq!(code(buffers.release(slot)), Some(Code::InvalidArgument));
        assert!(!buffers.is_leased(slot));
    }
    heap.fail.store(1);
    let error = buffers.allocate(0, Use::Kv, 1, 1).unwrap_err();
    assert_eq!(error, Error::new(Code::OutOfMemory, "heap").with(12), "the port's own error");
    heap.fail.store(0);
    assert_eq!((buffers.allocated_bytes(), heap.live.get()), (0, 0));
    fill(&buffers, 0, 1, 1).unwrap();
}

#[test]
fn a_prepared_buffer_can_be_given_up() {
    let (buffers, heap) = buffers(1);
    buffers.allocate(0, Use::Kv, 100, 100).unwrap();
    drop(buffers.part(0, 0).unwrap());
    buffers.release(0).unwrap();
    assert_eq!(heap.live.get(), 0);
    fill(&buffers, 0, 100, 3).unwrap();
}

#[test]
fn leases_never_see_a_buffer_change_while_others_release_and_refill() {
    const BYTES: usize = 512;
    let (buffers, heap) = buffers(2);
    let (leases, releases, exclusives) = (Counter::new(), Counter::new(), Counter::new());
    let done = Word::new(0);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (buffers, leases, done) = (&buffers, &leases, &done);
            scope.spawn(move || {
                let mut turn = reader;
                while done.load() < 2 {
                    turn += 1;
                    let Ok(lease) = buffers.lease(turn % 2) else {
                        std::thread::yield_now();
                        continue;
                    };
                    let first = lease[0];
                    assert_ne!(first, 0, "published before it was filled");
                    for _ in 0..4 {
                        assert!(lease.iter().all(|byte| *byte == first));
                    }
                    leases.add(1);
                    drop(lease);
                    std::thread::yield_now();
                }
            });
        }
        for writer in 0..2_usize {
            let (buffers, done) = (&buffers, &done);
            let (leases, releases, exclusives) = (&leases, &releases, &exclusives);
            scope.spawn(move || {
                for round in 0.. {
                    // Long enough for the readers to have had their share.
                    if round >= 4000 && leases.get() >= 100 && exclusives.get() > 0 {
                        break;
                    }
                    let value = (round % 250) as u8 + 1;
                    // Each fills its own slot only, and takes both away.
                    let slot = (round + writer) % 2;
                    if slot == writer && fill_in_parts(buffers, slot, BYTES, value).is_ok() {
                        continue;
                    }
                    if let Ok(mut exclusive) = buffers.lock(slot) {
                        exclusive.fill(value);
                        exclusives.add(1);
                    }
                    if round % 4 == 0 {
                        releases.add(u64::from(buffers.release(slot).is_ok()));
                    }
                    std::thread::yield_now();
                }
                done.increment();
            });
        }
    });
    assert!(releases.get() > 0);
    for slot in 0..2 {
        let _absent = buffers.release(slot);
    }
    assert_eq!((buffers.allocated_bytes(), heap.live.get(), heap.uses.get()), (0, 0, 0));
}

fn fill_in_parts(buffers: &Buffers, slot: usize, bytes: usize, value: u8) -> Result<()> {
    buffers.allocate(slot, Use::Kv, bytes, bytes / 4)?;
    for part in 0..4 {
        // The other writer may give the unfilled buffer up between two parts.
        let mut part = buffers.part(slot, part)?;
        part.bytes().fill(value);
        part.finish()?;
    }
    buffers.publish(slot)
}
