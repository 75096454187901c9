//! What the process holds follows what the shared buffers hold, page by page.
//!
//! One test alone in its process, so that nothing else changes the numbers meanwhile.
#![cfg(feature = "host")]

use mzcache::port::linux::{AnonymousMemory, ChunkMemory, ProcessMeter, ResidentBytes};
use mzcache::port::{Meter, Region, SharedMemory, Use};
use mzcache::{Code, Error};

const MIB: usize = 1 << 20;
const HUGE: usize = 2 * MIB;

/// The test's own stack and heap may touch one page each between two measurements.
const TOLERANCE: u64 = 2 * 4096;

fn measure() -> ResidentBytes {
    ProcessMeter.fields().unwrap()
}

fn assert_grown(before: ResidentBytes, after: ResidentBytes, bytes: usize) {
    let grown = after.charged() as i64 - before.charged() as i64;
    // Shrinking is a size below 0.
    let off = (grown - bytes as i64).unsigned_abs();
    assert!(off <= TOLERANCE, "grew by {grown}, not by {bytes}");
}

fn whole_pages(bytes: usize) -> usize {
    // SAFETY: sysconf only answers a question.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    bytes.next_multiple_of(page_bytes)
}

fn allocate(bytes: usize) -> Region {
    AnonymousMemory.allocate(Use::Kv, bytes).unwrap()
}

fn release(region: Region) {
    // SAFETY: each test below releases what it allocated, once, and uses it no more.
    unsafe { AnonymousMemory.release(Use::Kv, region) };
}

fn bytes_of(region: &mut Region) -> &mut [u8] {
    // SAFETY: the region is live, zero-filled at first, and borrowed here alone.
    unsafe { std::slice::from_raw_parts_mut(region.start.as_ptr(), region.bytes) }
}

#[test]
fn memory_grows_by_what_is_allocated_and_shrinks_by_what_is_released() {
    // The first calls touch pages of their own.
    release(allocate(31 * MIB));
    measure();
    one_buffer_of_each_size();
    every_other_of_many();
    a_buffer_is_written_and_released_whole();
    advice_ends_where_the_huge_pages_end();
    wrong_sizes_are_errors();
    small_buffers_share_huge_pages();
    small_buffers_never_overlap();
    other_buffers_are_their_own();
    a_rehearsal_leaves_nothing();
    the_port_and_the_meter_agree_on_the_sum();
}

fn one_buffer_of_each_size() {
    let sizes = [
        1,
        4096,
        4097,
        192 << 10,
        MIB,
        HUGE - 1,
        HUGE,
        HUGE + 1,
        3 * HUGE - 4096,
        31 * MIB,
        31 * MIB + 4097,
    ];
    for bytes in sizes {
        let before = measure();
        let mut region = allocate(bytes);
        let during = measure();
        assert_grown(before, during, whole_pages(bytes));
        let huge = during.anonymous_huge.saturating_sub(before.anonymous_huge);
        assert!(
            huge <= (whole_pages(bytes) / HUGE * HUGE) as u64,
            "{huge} in huge pages of {bytes}"
        );
        assert!(region.bytes >= bytes);
        let align = if whole_pages(bytes) >= HUGE { HUGE } else { 4096 };
        assert_eq!(region.start.addr().get() % align, 0);
        assert!(bytes_of(&mut region).iter().all(|byte| *byte == 0));
        release(region);
        assert_grown(before, measure(), 0);
    }
}

/// Neighbours in one mapping must not keep each other's pages.
fn every_other_of_many() {
    for (bytes, count) in [(MIB, 64), (192 << 10, 64), (5 * MIB, 16)] {
        let mut regions: Vec<Option<Region>> = Vec::with_capacity(count);
        let before = measure();
        regions.extend((0..count).map(|_| Some(allocate(bytes))));
        assert_grown(before, measure(), bytes * count);
        regions.iter_mut().step_by(2).filter_map(Option::take).for_each(release);
        assert_grown(before, measure(), bytes * count / 2);
        regions.into_iter().flatten().for_each(release);
        assert_grown(before, measure(), 0);
    }
}

fn a_buffer_is_written_and_released_whole() {
    let before = measure();
    let mut region = allocate(31 * MIB);
    bytes_of(&mut region).fill(0xA5);
    assert_grown(before, measure(), 31 * MIB);
    release(region);
    assert_grown(before, measure(), 0);
    let mut region = allocate(31 * MIB);
    assert!(bytes_of(&mut region).iter().all(|byte| *byte == 0), "old content came back");
    release(region);
}

/// Not the huge pages themselves, which the system may lack, but what was asked of it.
fn advice_ends_where_the_huge_pages_end() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        println!("NOT CHECKED: this kernel has no transparent huge pages");
        return;
    }
    let region = allocate(31 * MIB);
    let start = region.start.addr().get();
    assert!(flags_at(start).contains("hg"));
    assert!(flags_at(start + 30 * MIB - 1).contains("hg"));
    assert!(flags_at(start + 30 * MIB).contains("nh"), "the tail must not become a huge page");
    release(region);
    let region = allocate(MIB);
    assert!(flags_at(region.start.addr().get()).contains("nh"));
    release(region);
}

/// The flags of the mapping that holds an address.
fn flags_at(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((from, to)) = bounds {
            let parse = |text: &str| usize::from_str_radix(text, 16);
            if let (Ok(from), Ok(to)) = (parse(from), parse(to)) {
                inside = (from..to).contains(&address);
            }
        }
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return flags.to_owned();
        }
    }
    panic!("{address:#x} is not mapped");
}

fn wrong_sizes_are_errors() {
    let ports: [&dyn SharedMemory; 2] = [&AnonymousMemory, &ChunkMemory::new()];
    for port in ports {
        let error = port.allocate(Use::Kv, 0).unwrap_err();
        assert_eq!(error, Error::new(Code::InvalidArgument, "shared buffer"));
        for bytes in [usize::MAX, isize::MAX as usize, isize::MAX as usize - 4095, 1 << 60] {
            let error = port.allocate(Use::Kv, bytes).unwrap_err();
            let found = (error.code, error.what);
            assert_eq!(found, (Code::OutOfMemory, "shared buffer"), "{bytes:#x}");
        }
    }
}

/// Grown by no less than that, and by no more than a huge page beyond.
fn assert_grown_about(before: ResidentBytes, bytes: usize) {
    let grown = measure().charged() as i64 - before.charged() as i64;
    let beyond = grown - bytes as i64 + TOLERANCE as i64;
    assert!((0..=(HUGE + TOLERANCE as usize) as i64).contains(&beyond), "{grown}, {bytes}");
}

fn small_buffers_share_huge_pages() {
    let has_huge = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    for (bytes, count) in [(MIB, 30), (192 << 10, 64), (4096, 3), (3 * MIB / 2, 50)] {
        let mut regions: Vec<Region> = Vec::with_capacity(count);
        let before = measure();
        let memory = ChunkMemory::new();
        for _ in 0..count {
            regions.push(memory.allocate(Use::Kv, bytes).unwrap());
            assert_grown_about(before, regions.len() * bytes);
        }
        assert!(!has_huge || flags_at(regions[0].start.addr().get()).contains("hg"));
        let address = |index: usize| regions[index].start.addr().get();
        assert_eq!(address(1), address(0) + bytes, "side by side");
        // Neighbours do not keep each other's pages.
        let all = measure();
        for region in regions.iter().skip(1).step_by(2) {
            // SAFETY: each was allocated above and is released once.
            unsafe { memory.release(Use::Kv, *region) };
        }
        assert_grown(all, measure(), 0usize.wrapping_sub(count / 2 * bytes));
        for region in regions.iter().step_by(2) {
            // SAFETY: as above; these were skipped.
            unsafe { memory.release(Use::Kv, *region) };
        }
        assert_grown_about(before, 0);
        memory.trim();
        assert_grown(before, measure(), 0);
        let region = memory.allocate(Use::Kv, bytes).unwrap();
        // SAFETY: as above.
        unsafe { memory.release(Use::Kv, region) };
        drop(memory);
        assert_grown(before, measure(), 0);
    }
}

fn small_buffers_never_overlap() {
    const COUNT: usize = 40;
    let memory = ChunkMemory::new();
    let fill = |number: u8| {
        let sizes = [MIB, 4096, 3 * MIB / 2 + 1, 300_000];
        let allocate = |index: usize| {
            let mut region = memory.allocate(Use::Kv, sizes[index % sizes.len()]).unwrap();
            let bytes = bytes_of(&mut region);
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(number);
            region
        };
        (0..COUNT).map(allocate).map(|region| Kept(region, number)).collect::<Vec<_>>()
    };
    let all = std::thread::scope(|scope| {
        let threads = [1, 2, 3].map(|number| scope.spawn(move || fill(number)));
        threads.map(|thread| thread.join().unwrap())
    });
    for Kept(mut region, number) in all.into_iter().flatten() {
        assert!(bytes_of(&mut region).iter().all(|byte| *byte == number));
        // SAFETY: allocated above, released once.
        unsafe { memory.release(Use::Kv, region) };
    }
}

/// A region, and what a thread filled it with.
struct Kept(Region, u8);

// SAFETY: memory that nobody else refers to.
unsafe impl Send for Kept {}

fn a_rehearsal_leaves_nothing() {
    let before = measure();
    AnonymousMemory.rehearse(5 * MIB).unwrap();
    assert_grown(before, measure(), 0);
    assert_eq!(AnonymousMemory.rehearse(1 << 60).unwrap_err().code, Code::OutOfMemory);
}

fn other_buffers_are_their_own() {
    let memory = ChunkMemory::new();
    let before = measure();
    let region = memory.allocate(Use::Weights, 5 * MIB).unwrap();
    assert_eq!(region.start.addr().get() % HUGE, 0);
    assert_grown(before, measure(), 5 * MIB);
    let segment = memory.allocate(Use::Swap, MIB).unwrap();
    assert_grown(before, measure(), 5 * MIB);
    // SAFETY: both allocated above, released once.
    unsafe {
        memory.release(Use::Weights, region);
        memory.release(Use::Swap, segment);
    }
    assert_grown(before, measure(), 0);
}

fn the_port_and_the_meter_agree_on_the_sum() {
    let fields = measure();
    let sum = ProcessMeter.resident_bytes().unwrap();
    assert!(sum.abs_diff(fields.anonymous + fields.shared + fields.swap) <= TOLERANCE);
}
