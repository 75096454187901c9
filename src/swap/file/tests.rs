//! The flash swap over a storage that fails as told.

use super::*;
use crate::units::{ChunkIndex, LayerIndex};
use std::boxed::Box;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

const SLOTS: Slots = Slots { layers: 3, chunks: 30, slot_bytes: 8192 };
const PAGE: usize = IO_ALIGN;
const CRC32C: Crc32c = crate::kernel::Kernels::portable().crc32c;

/// What the storage does instead of its work.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Fail(Code),
    /// Reads end this many bytes early.
    Short(usize),
    /// One bit of what is read is the other way round.
    Flip(usize),
    /// Reads answer from that many bytes further on.
    Misdirect(u64),
    /// Writes report success and do nothing.
    Lose,
}

struct Disk {
    bytes: Mutex<Vec<u8>>,
    fault: Mutex<Fault>,
    calls: Counter,
}

impl Disk {
    fn leaked() -> &'static Disk {
        Box::leak(Box::new(Disk {
            bytes: Mutex::new(Vec::new()),
            fault: Mutex::new(Fault::None),
            calls: Counter::new(),
        }))
    }

    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn enter(&self) -> Result<Fault> {
        self.calls.add(1);
        match *self.fault.lock().unwrap() {
            Fault::Fail(code) => Err(Error::new(code, "disk").with(5)),
            fault => Ok(fault),
        }
    }
}

impl Storage for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let fault = self.enter()?;
        assert!(offset.is_multiple_of(PAGE as u64) && into.len().is_multiple_of(PAGE));
        assert!(into.as_ptr().addr().is_multiple_of(PAGE));
        let bytes = self.bytes.lock().unwrap();
        let shift = if let Fault::Misdirect(shift) = fault { shift } else { 0 };
        let from = &bytes[bytes.len().min((offset + shift) as usize)..];
        let mut read = from.len().min(into.len());
        into[..read].copy_from_slice(&from[..read]);
        match fault {
            Fault::Flip(bit) => into[bit / 8] ^= 1 << (bit % 8),
            Fault::Short(missing) => read -= missing,
            _ => {}
        }
        Ok(read)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        if self.enter()? == Fault::Lose {
            return Ok(());
        }
        assert!(offset.is_multiple_of(PAGE as u64) && from.len().is_multiple_of(PAGE));
        assert!(from.as_ptr().addr().is_multiple_of(PAGE));
        let mut bytes = self.bytes.lock().unwrap();
        let end = offset as usize + from.len();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.enter().map(drop)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.enter()?;
        let mut disk = self.bytes.lock().unwrap();
        let end = disk.len().min((offset + bytes) as usize);
        disk[(offset as usize).min(end)..end].fill(0);
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn is_direct(&self) -> bool {
        false
    }
}

fn swap_file(disk: &'static Disk) -> SwapFile {
    let mut sizer = Sizer::new();
    SwapFile::size(&mut sizer, &SLOTS).unwrap();
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    let file = SwapFile::new(&mut arena, disk, &SLOTS, CRC32C).unwrap();
    assert_eq!(arena.seal(), sizer.used());
    file
}

fn id(layer: u16, chunk: u16) -> ChunkId {
    ChunkId { layer: LayerIndex::new(layer), chunk: ChunkIndex::new(chunk) }
}

#[repr(align(4096))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// Different in every slot.
fn chunk<const BYTES: usize>(seed: u8) -> Box<Aligned<BYTES>> {
    Box::new(Aligned(core::array::from_fn(|i| (i * 7 + i / 256) as u8 ^ seed)))
}

/// Where the first slot of a chunk begins.
fn offset(id: ChunkId) -> u64 {
    SLOTS.offset(id, Side::First).unwrap()
}

fn code<T: fmt::Debug>(result: Result<T>) -> Code {
    result.unwrap_err().code
}

#[test]
fn chunks_come_back_from_slots_that_do_not_overlap() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let mut records = vec![];
    for index in 0..90u16 {
        let id = id(index % 3, index / 3);
        assert_eq!(offset(id), manifest::head_bytes(&SLOTS) + u64::from(index) * 2 * 8192);
        let mut data = chunk::<8192>(index as u8);
        records.push(match index % 2 {
            0 => file.write_raw(id, &data.0).unwrap(),
            _ => file.write_packed(id, &mut data.0, 4000 + usize::from(index)).unwrap(),
        });
    }
    let packed_bytes: u64 = (0..45).map(|i| if 4001 + 2 * i > 4096 { 8192 } else { 4096 }).sum();
    let expected = FileStats { written_bytes: 45 * 8192 + packed_bytes, ..file.stats() };
    assert_eq!(file.stats(), FileStats { slots_used: 90, ..expected });
    for (index, record) in (0..90u16).zip(records) {
        let id = id(index % 3, index / 3);
        let expected = chunk::<8192>(index as u8);
        let mut data = chunk::<8192>(255);
        if record.packed {
            let packed = file.read_packed(id, &mut data.0, record).unwrap();
            assert_eq!(packed, &expected.0[..4000 + usize::from(index)]);
        } else {
            file.read_raw(id, &mut data.0, record).unwrap();
            assert_eq!(data.0, expected.0);
        }
    }
    assert_eq!(file.stats().read_bytes, file.stats().written_bytes);
}

#[test]
fn what_lies_behind_a_packed_chunk_is_zeroed_on_flash() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let mut data = chunk::<8192>(0);
    let rest = chunk::<8192>(0);
    file.write_packed(id(0, 0), &mut data.0, 100).unwrap();
    let bytes = disk.bytes.lock().unwrap();
    let bytes = &bytes[offset(id(0, 0)) as usize..];
    assert_eq!(bytes.len(), PAGE);
    assert!(bytes[100..].iter().all(|byte| *byte == 0));
    assert_eq!(data.0[PAGE..], rest.0[PAGE..], "no more than the transfer is touched");
}

#[test]
fn a_flipped_bit_anywhere_is_corrupt() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let id = id(1, 1);
    let mut data = chunk::<PAGE>(3);
    let raw = file.write_raw(id, &data.0).unwrap();
    for bit in 0..PAGE * 8 {
        disk.set(Fault::Flip(bit));
        let error = file.read_raw(id, &mut data.0, raw).unwrap_err();
        assert_eq!((error.code, error.value), (Code::Corrupt, offset(id) as i64), "bit {bit}");
    }
    disk.set(Fault::None);
    file.read_raw(id, &mut data.0, raw).unwrap();
    let packed = file.write_packed(id, &mut data.0, 1000).unwrap();
    for bit in 0..PAGE * 8 {
        disk.set(Fault::Flip(bit));
        assert_eq!(code(file.read_packed(id, &mut data.0, packed)), Code::Corrupt, "bit {bit}");
    }
    let read_bytes = file.stats().read_bytes;
    assert_eq!(read_bytes, PAGE as u64, "only what was sound counts");
}

#[test]
fn misdirected_reads_lost_writes_and_discarded_slots_are_corrupt() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let mut data = chunk::<8192>(1);
    let first = file.write_raw(id(0, 0), &data.0).unwrap();
    file.write_raw(id(1, 0), &chunk::<8192>(2).0).unwrap();
    for shift in [4096, 8192] {
        disk.set(Fault::Misdirect(shift));
        assert_eq!(code(file.read_raw(id(0, 0), &mut data.0, first)), Code::Corrupt);
    }
    disk.set(Fault::Lose);
    let lost = file.write_raw(id(0, 0), &chunk::<8192>(3).0).unwrap();
    disk.set(Fault::None);
    assert_eq!(code(file.read_raw(id(0, 0), &mut data.0, lost)), Code::Corrupt);
    file.read_raw(id(0, 0), &mut data.0, first).unwrap();
    file.discard(id(0, 0)).unwrap();
    assert_eq!(code(file.read_raw(id(0, 0), &mut data.0, first)), Code::Corrupt);
}

#[test]
fn a_read_that_ends_early_is_short() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let mut data = chunk::<8192>(1);
    let record = file.write_raw(id(1, 0), &data.0).unwrap();
    for missing in [1, 4096, 8192] {
        disk.set(Fault::Short(missing));
        let error = file.read_raw(id(1, 0), &mut data.0, record).unwrap_err();
        assert_eq!((error.code, error.value), (Code::ShortRead, offset(id(1, 0)) as i64));
    }
    disk.set(Fault::None);
    let beyond = file.read_raw(id(2, 0), &mut data.0, record);
    assert_eq!(code(beyond), Code::ShortRead, "a slot behind the end of the file");
}

#[test]
fn errors_of_the_storage_pass_through_and_do_not_stick() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let mut data = chunk::<8192>(1);
    for fault in [Code::Io, Code::NoSpace] {
        disk.set(Fault::Fail(fault));
        let expected = Error::new(fault, "disk").with(5);
        assert_eq!(file.write_raw(id(0, 0), &data.0), Err(expected));
        assert_eq!(file.write_packed(id(1, 0), &mut data.0, 10), Err(expected));
        assert_eq!(file.discard(id(0, 0)), Err(expected));
        let record = FlashRecord { bytes: 8192, crc: 0, packed: false };
        assert_eq!(file.read_raw(id(0, 0), &mut data.0, record), Err(expected));
        assert_eq!(file.stats(), FileStats { slots_used: 2, ..FileStats::default() });
        disk.set(Fault::None);
        let data = chunk::<8192>(1);
        let record = file.write_raw(id(0, 0), &data.0).unwrap();
        file.read_raw(id(0, 0), &mut chunk::<8192>(2).0, record).unwrap();
        file.discard(id(0, 0)).unwrap();
        file.discard(id(1, 0)).unwrap();
        assert_eq!(file.stats().slots_used, 0);
        file.discard(id(1, 0)).unwrap();
        assert_eq!(file.stats().slots_used, 0, "a slot is given back once");
        return_to_zero(&file);
    }
}

fn return_to_zero(file: &SwapFile) {
    file.written_bytes.sub(file.written_bytes.get());
    file.read_bytes.sub(file.read_bytes.get());
}

#[test]
fn after_a_failed_sync_nothing_is_believed() {
    for (fault, by_sync) in [
        (Code::SyncFailed, true),
        (Code::Io, true),
        (Code::SyncFailed, false),
        (Code::Poisoned, false),
    ] {
        let disk = Disk::leaked();
        let file = swap_file(disk);
        let mut data = chunk::<8192>(1);
        let record = file.write_raw(id(0, 0), &data.0).unwrap();
        file.sync().unwrap();
        assert!(!file.is_poisoned());
        disk.set(Fault::Fail(fault));
        // The storage may tell of an earlier failure through any call.
        let told = if by_sync { file.sync() } else { file.discard(id(1, 1)) };
        assert_eq!(code(told), fault);
        assert!(file.is_poisoned());
        disk.set(Fault::None);
        let calls = disk.calls.get();
        assert_eq!(code(file.sync()), Code::Poisoned);
        assert_eq!(code(file.write_raw(id(0, 0), &data.0)), Code::Poisoned);
        assert_eq!(code(file.write_packed(id(0, 0), &mut data.0, 1)), Code::Poisoned);
        assert_eq!(code(file.read_raw(id(0, 0), &mut data.0, record)), Code::Poisoned);
        assert_eq!(code(file.discard(id(0, 0))), Code::Poisoned);
        assert_eq!(disk.calls.get(), calls, "the storage is not asked any more");
    }
}

#[test]
fn a_transfer_that_overlaps_a_failed_sync_does_not_count() {
    /// Poisons the swap file in the middle of a transfer.
    struct Meanwhile(Mutex<Option<&'static SwapFile>>);
    impl Storage for Meanwhile {
        fn read_at(&self, _: u64, into: &mut [u8]) -> Result<usize> {
            self.0.lock().unwrap().unwrap().health.store(POISONED);
            Ok(into.len())
        }
        fn write_at(&self, offset: u64, _: &[u8]) -> Result<()> {
            self.read_at(offset, &mut []).map(drop)
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
        fn length(&self) -> Result<u64> {
            Ok(0)
        }
        fn is_direct(&self) -> bool {
            false
        }
    }
    let storage: &Meanwhile = Box::leak(Box::new(Meanwhile(Mutex::new(None))));
    let inner = swap_file(Disk::leaked());
    let file: &SwapFile = Box::leak(Box::new(SwapFile { storage, ..inner }));
    *storage.0.lock().unwrap() = Some(file);
    let mut data = chunk::<8192>(1);
    assert_eq!(code(file.write_raw(id(0, 0), &data.0)), Code::Poisoned);
    file.health.store(SOUND);
    let record = FlashRecord { bytes: 8192, crc: CRC32C.call(0, &data.0), packed: false };
    assert_eq!(code(file.read_raw(id(0, 0), &mut data.0, record)), Code::Poisoned);
    assert_eq!(file.stats().written_bytes + file.stats().read_bytes, 0);
}

#[test]
fn arguments_are_checked_before_the_storage_is_asked() {
    let disk = Disk::leaked();
    let file = swap_file(disk);
    let mut data = chunk::<12288>(1);
    let record = FlashRecord { bytes: 8192, crc: 0, packed: false };
    let packed = FlashRecord { packed: true, ..record };
    let here = id(0, 0);
    for wrong in [id(3, 0), id(0, 30), id(u16::MAX, u16::MAX)] {
        assert_eq!(code(file.write_raw(wrong, &data.0[..8192])), Code::InvalidArgument);
        assert_eq!(code(file.write_packed(wrong, &mut data.0, 1)), Code::InvalidArgument);
        assert_eq!(code(file.read_raw(wrong, &mut data.0[..8192], record)), Code::InvalidArgument);
        assert_eq!(code(file.read_packed(wrong, &mut data.0, packed)), Code::InvalidArgument);
        assert_eq!(code(file.discard(wrong)), Code::InvalidArgument);
    }
    // Nothing, beyond a slot, ragged, misaligned.
    for range in [0..0, 0..12288, 0..4097, 1..4097] {
        assert_eq!(code(file.write_raw(here, &data.0[range])), Code::InvalidArgument);
    }
    for bytes in [0, 8193, 12289, usize::MAX - 8191, usize::MAX] {
        assert_eq!(code(file.write_packed(here, &mut data.0, bytes)), Code::InvalidArgument);
    }
    assert_eq!(code(file.write_packed(here, &mut data.0[1..], 1)), Code::InvalidArgument);
    // A record of the other kind, of another size, of no bytes, larger than slot or scratch.
    let slot = 0..8192;
    assert_eq!(code(file.read_raw(here, &mut data.0[slot.clone()], packed)), Code::InvalidArgument);
    assert_eq!(code(file.read_raw(here, &mut data.0[..4096], record)), Code::InvalidArgument);
    assert_eq!(code(file.read_packed(here, &mut data.0, record)), Code::InvalidArgument);
    for bytes in [0, 8193, 12289, u32::MAX] {
        let record = FlashRecord { bytes, ..packed };
        assert_eq!(code(file.read_packed(here, &mut data.0, record)), Code::InvalidArgument);
    }
    assert_eq!(disk.calls.get(), 0);
    assert_eq!(file.stats(), FileStats::default());
}

#[test]
fn it_shows_its_shape_and_what_was_moved() {
    let file = swap_file(Disk::leaked());
    let shown = std::format!("{file:?}");
    assert!(shown.contains("chunks: 30") && shown.contains("written_bytes: 0"), "{shown}");
}

#[test]
fn shapes_beyond_the_limits_are_refused() {
    for (slots, expected) in [
        (Slots { layers: 0, ..SLOTS }, Code::LimitExceeded),
        (Slots { layers: LAYERS_MAX + 1, ..SLOTS }, Code::LimitExceeded),
        (Slots { chunks: 0, ..SLOTS }, Code::LimitExceeded),
        (Slots { chunks: CHUNKS_PER_LAYER_MAX + 1, ..SLOTS }, Code::LimitExceeded),
        (Slots { slot_bytes: 0, ..SLOTS }, Code::InvalidArgument),
        (Slots { slot_bytes: 4097, ..SLOTS }, Code::InvalidArgument),
    ] {
        assert_eq!(code(SwapFile::size(&mut Sizer::new(), &slots)), expected);
        let memory = Box::leak(vec![core::mem::MaybeUninit::uninit(); 8192].into_boxed_slice());
        let mut arena = Arena::new(memory).unwrap();
        assert_eq!(code(SwapFile::new(&mut arena, Disk::leaked(), &slots, CRC32C)), expected);
    }
    let slot_bytes = u32::MAX - 4095;
    let largest = Slots { layers: LAYERS_MAX, chunks: CHUNKS_PER_LAYER_MAX, slot_bytes };
    largest.check().unwrap();
    let last = id(LAYERS_MAX - 1, CHUNKS_PER_LAYER_MAX - 1);
    let slots = u64::from(LAYERS_MAX) * u64::from(CHUNKS_PER_LAYER_MAX);
    let end = manifest::head_bytes(&largest) + (2 * slots - 1) * u64::from(slot_bytes);
    assert_eq!(largest.offset(last, Side::Second).unwrap(), end);
}

#[test]
fn it_shows_its_shape_and_its_sums() {
    let file = swap_file(Disk::leaked());
    assert_eq!(file.slots(), SLOTS);
    let shown = std::format!("{file:?}");
    assert!(shown.contains(&std::format!("{SLOTS:?}")) && shown.contains("FileStats"), "{shown}");
}
