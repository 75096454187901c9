//! The head over a storage in memory: what it says comes back, whatever is damaged does not.

mod edges;

use super::table::id_at;
use super::*;
use crate::arena::{Arena, Sizer};
use crate::codec::ChunkLayout;
use crate::error::{Code, Error, Result};
use crate::kernel::{Crc32c, Kernels};
use crate::port::Storage;
use crate::swap::file::{Side, SwapFile};
use crate::units::{ChunkId, CodecId, FlashRecord, KvShape, Tag, TokenCount};
use std::boxed::Box;
use std::sync::Mutex;
use std::vec;
use std::vec::Vec;

const PAGE: usize = IO_ALIGN;
const CRC: Crc32c = Kernels::portable().crc32c;
const SHAPE: KvShape = KvShape { layers: 3, kv_heads: 1, head_dim: 32 };
const SLOTS: Slots = Slots { layers: 3, chunks: 100, slot_bytes: 40960 };
const OWN: Fingerprint = Fingerprint {
    shape: SHAPE,
    layout: ChunkLayout::TokenMajor,
    codec: CodecId::Q8,
    slots: SLOTS,
    model: 0x1234_5678_9ABC_DEF0,
};
const TOKENS: TokenCount = TokenCount::new(90 * 256 + 7);
const TAG: Tag = Tag::new(77);

/// What the storage was asked to do, and a failure of one such call.
#[derive(Default)]
struct Disk {
    bytes: Mutex<Vec<u8>>,
    log: Mutex<Vec<(&'static str, u64)>>,
    failure: Mutex<Option<(usize, Error)>>,
}

impl Disk {
    fn called(&self, what: &'static str, offset: u64) -> Result<()> {
        let mut log = self.log.lock().unwrap();
        log.push((what, offset));
        match *self.failure.lock().unwrap() {
            Some((at, error)) if at == log.len() => Err(error),
            _ => Ok(()),
        }
    }

    fn take_log(&self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn change(&self, at: usize, change: impl Fn(u8) -> u8) {
        let byte = &mut self.bytes.lock().unwrap()[at];
        *byte = change(*byte);
    }
}

impl Storage for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.called("read", offset)?;
        let bytes = self.bytes.lock().unwrap();
        let from = &bytes[bytes.len().min(offset as usize)..];
        let read = from.len().min(into.len());
        into[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.called("write", offset)?;
        let mut bytes = self.bytes.lock().unwrap();
        let end = offset as usize + from.len();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.called("sync", 0)
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn is_direct(&self) -> bool {
        false
    }
}

fn leaked() -> &'static Disk {
    Box::leak(Box::default())
}

/// A process that has the file open.
fn open(disk: &'static Disk) -> (SwapFile, Manifest) {
    open_for(disk, 0)
}

/// The same with room for steps.
fn open_for(disk: &'static Disk, steps_bytes: usize) -> (SwapFile, Manifest) {
    let mut sizer = Sizer::new();
    SwapFile::size(&mut sizer, &SLOTS).unwrap();
    Manifest::size(&mut sizer, &SLOTS, steps_bytes).unwrap();
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    let file = SwapFile::new(&mut arena, disk, &SLOTS, CRC).unwrap();
    let manifest = Manifest::new(&mut arena, &SLOTS, steps_bytes).unwrap();
    assert_eq!(arena.seal(), sizer.used());
    (file, manifest)
}

/// A record that says where it is from.
fn stored(id: ChunkId, salt: u32) -> Option<Stored> {
    let packed = id.layer.get() == 1;
    let bytes = if packed { 100 + u32::from(id.chunk.get()) } else { 32768 };
    let record = FlashRecord { bytes, crc: salt + u32::from(id.chunk.get()), packed };
    let side = if id.layer.get() == 2 { Side::Second } else { Side::First };
    (id.chunk.get() != 5).then_some(Stored { record, tokens: 256, side })
}

fn seal(file: &SwapFile, manifest: &mut Manifest, tag: Tag, salt: u32) -> Result<()> {
    manifest.prepare(file, &OWN)?;
    manifest.collect(&SLOTS, TOKENS, |id| stored(id, salt));
    manifest.seal(file, &OWN, tag, TOKENS, None)
}

/// Which salt a fresh process finds.
fn find(disk: &'static Disk, tag: Tag) -> Result<u32> {
    let (file, mut manifest) = open(disk);
    let found = manifest.find(&file, &OWN, tag)?;
    assert_eq!((found.tokens, found.tag, found.steps_id), (TOKENS, tag, 0));
    let salt = manifest.stored(&OWN, &found, id_at(0, 3)).unwrap().unwrap().record.crc;
    for index in 0..SLOTS.places() {
        let id = id_at(index, 3);
        let expected = stored(id, salt).filter(|_| index < 91 * 3);
        assert_eq!(manifest.stored(&OWN, &found, id).unwrap(), expected);
    }
    assert!(manifest.steps(&OWN, &found).is_empty());
    manifest.adopt(&file, &OWN, &found).unwrap();
    assert_eq!(file.stats().slots_used, 90 * 3);
    assert_eq!(file.side(id_at(2, 3)).unwrap(), Side::Second);
    Ok(salt)
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> (Code, &'static str) {
    let error = result.unwrap_err();
    (error.code, error.what)
}

#[test]
fn the_newest_of_two_is_found_or_the_older_by_its_tag() {
    let disk = leaked();
    assert_eq!(code(find(disk, TAG)), (Code::BadMagic, "checkpoint"));
    let (file, mut manifest) = open(disk);
    let tags = [Tag::new(1), Tag::new(2), Tag::new(3)];
    for (tag, salt) in tags.into_iter().zip([10, 20, 30]) {
        disk.take_log();
        seal(&file, &mut manifest, tag, salt).unwrap();
        let (table, page) =
            (table_at(&SLOTS, u64::from(salt / 10)), u64::from(salt / 10 % 2 * 4096));
        let log: Vec<_> = disk.take_log().into_iter().filter(|(what, _)| *what != "read").collect();
        let order = ["write", "sync", "write", "sync"];
        assert_eq!(log, Vec::from_iter(order.into_iter().zip([table, 0, page, 0])));
    }
    assert_eq!(find(disk, tags[2]), Ok(30));
    assert_eq!(find(disk, tags[1]), Ok(20));
    assert_eq!(code(find(disk, tags[0])), (Code::Mismatch, "checkpoint tag"));
    // Whoever goes on from the older one spares it and outnumbers the newer.
    let (file, mut manifest) = open(disk);
    manifest.find(&file, &OWN, tags[1]).unwrap();
    seal(&file, &mut manifest, TAG, 40).unwrap();
    assert_eq!((find(disk, TAG), find(disk, tags[1])), (Ok(40), Ok(20)));
    assert_eq!(code(find(disk, tags[2])), (Code::Mismatch, "checkpoint tag"));
    // Whoever goes on from the newest takes the other place.
    let (file, mut manifest) = open(disk);
    assert_eq!(manifest.find(&file, &OWN, TAG).unwrap().generation, 5);
    seal(&file, &mut manifest, Tag::new(5), 50).unwrap();
    assert_eq!((find(disk, Tag::new(5)), find(disk, TAG)), (Ok(50), Ok(40)));
    assert_eq!(manifest.find(&file, &OWN, Tag::new(5)).unwrap().generation, 6);
}

#[test]
fn the_head_is_two_pages_and_two_tables_for_the_largest_context() {
    // 16 bytes a record, 32 for the head of steps and a 256th of a slot a layer for those.
    for (layers, chunks, slot_bytes, table) in
        [(3, 100, 40960, 8192), (4, 1000, 1 << 20, 81920), (1, 253, 4096, 4096)]
    {
        let slots = Slots { layers, chunks, slot_bytes };
        let starts = [1, 2, 3].map(superblock_at);
        assert_eq!(starts, [4096, 0, 4096]);
        let starts = [1, 2, 3].map(|generation| table_at(&slots, generation));
        assert_eq!(starts, [8192 + table, 8192, 8192 + table]);
        assert_eq!(head_bytes(&slots), 8192 + 2 * table);
    }
    // In memory the steps are as large as they are.
    let slots = Slots { layers: 1, chunks: 256, slot_bytes: 4096 };
    for (steps_bytes, table) in [(0, 4096), (1, 8192)] {
        let mut sizer = Sizer::new();
        Manifest::size(&mut sizer, &slots, steps_bytes).unwrap();
        assert_eq!(sizer.used(), 4096 + table);
    }
}

#[test]
fn any_flipped_bit_of_the_newer_head_leaves_the_older_one() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    seal(&file, &mut manifest, TAG, 1).unwrap();
    seal(&file, &mut manifest, TAG, 2).unwrap();
    let table = table_at(&SLOTS, 2) as usize;
    let bytes = (91 * 3 * RECORD_BYTES).next_multiple_of(PAGE);
    let in_page = (0..80).chain((80..PAGE).step_by(37));
    for at in in_page.chain((table..table + bytes).step_by(41)) {
        for bit in [0, 7] {
            disk.change(at, |byte| byte ^ 1 << bit);
            assert_eq!(find(disk, TAG), Ok(1), "byte {at}");
            disk.change(at, |byte| byte ^ 1 << bit);
        }
    }
    assert_eq!(find(disk, TAG), Ok(2));
    disk.change(PAGE + 20, |byte| byte ^ 1);
    disk.change(20, |byte| byte ^ 1);
    assert_eq!(code(find(disk, TAG)), (Code::Corrupt, "checkpoint"));
}

/// Changes a byte of the only superblock there is and makes its checksum anew.
fn forged(at: usize, change: impl Fn(u8) -> u8) -> &'static Disk {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    seal(&file, &mut manifest, TAG, 1).unwrap();
    disk.change(PAGE + at, change);
    sum_anew(disk, PAGE);
    disk
}

fn sum_anew(disk: &Disk, page: usize) {
    let mut bytes = disk.bytes.lock().unwrap();
    let (content, sum) = bytes[page..page + PAGE].split_at_mut(PAGE - 4);
    sum.copy_from_slice(&CRC.call(0, content).to_le_bytes());
}

#[test]
fn every_field_of_a_forged_superblock_is_checked() {
    let cases = [
        (0, Code::BadMagic, "checkpoint"),
        (8, Code::Unsupported, "checkpoint version"),
        (12, Code::Mismatch, "checkpoint chunk tokens"),
        (14, Code::Mismatch, "checkpoint chunk layout"),
        (15, Code::Mismatch, "checkpoint codec"),
        (16, Code::Mismatch, "checkpoint layers"),
        (18, Code::Mismatch, "checkpoint kv_heads"),
        (20, Code::Mismatch, "checkpoint head_dim"),
        (22, Code::Mismatch, "checkpoint context_tokens_max"),
        (24, Code::Mismatch, "checkpoint slot bytes"),
        (28, Code::Corrupt, "checkpoint steps"),
        (40, Code::Mismatch, "checkpoint model"),
        (48, Code::Mismatch, "checkpoint tag"),
        (63, Code::Mismatch, "checkpoint tag"),
        (66, Code::Corrupt, "checkpoint tokens"),
        (69, Code::Corrupt, "checkpoint steps"),
        (72, Code::Corrupt, "checkpoint table"),
        (76, Code::Corrupt, "checkpoint reserved bytes"),
        (4091, Code::Corrupt, "checkpoint reserved bytes"),
    ];
    for (at, expected, what) in cases {
        assert_eq!(code(find(forged(at, |byte| byte ^ 0x41), TAG)), (expected, what), "byte {at}");
    }
    assert_eq!(code(find(forged(32, |_| 0), TAG)), (Code::Corrupt, "checkpoint generation"));
    let (file, mut manifest) = open(forged(14, |layout| layout));
    let other = Fingerprint { layout: ChunkLayout::ChannelMajor, ..OWN };
    let expected = (Code::Mismatch, "checkpoint chunk layout");
    assert_eq!(code(manifest.find(&file, &other, TAG)), expected);
    // The highest bit of the generation.
    let disk = forged(39, |byte| byte | 0x80);
    assert_eq!(code(find(disk, TAG)), (Code::Corrupt, "checkpoint generation"));
    // Another name for steps, and room claimed for them that is not there.
    let disk = forged(28, |_| 9);
    assert_eq!(code(find(disk, TAG)), (Code::Corrupt, "checkpoint steps"));
}

#[test]
fn every_field_of_a_forged_record_is_checked() {
    let cases = [
        (0, "checkpoint record bytes"),
        (8, "checkpoint record"),
        (10, "checkpoint record"),
        (13, "checkpoint record tokens"),
        (14, "checkpoint record flags"),
        (15, "checkpoint record"),
    ];
    for (at, what) in cases {
        let mut record = [0; RECORD_BYTES];
        let id = id_at(0, 3);
        table::write(&mut record, id, stored(id, 1));
        assert_eq!(table::parse(&OWN, &record, id), Ok(stored(id, 1)));
        record[at] ^= 0x19;
        assert_eq!(code(table::parse(&OWN, &record, id)), (Code::Corrupt, what), "byte {at}");
    }
    // A packed one of no bytes, or of more than a slot; one that is not there, and says something.
    let id = id_at(1, 3);
    let of = |bytes, tokens| {
        let record = FlashRecord { bytes, crc: 1, packed: true };
        let mut bytes = [0; RECORD_BYTES];
        table::write(&mut bytes, id, Some(Stored { record, tokens, side: Side::First }));
        bytes
    };
    for record in [of(0, 256), of(40961, 256), of(1, 0), of(1, 257)] {
        assert!(table::parse(&OWN, &record, id).is_err());
    }
    assert!(table::parse(&OWN, &of(40960, 256), id).is_ok());
    let mut absent = [0; RECORD_BYTES];
    table::write(&mut absent, id, None);
    assert_eq!(table::parse(&OWN, &absent, id), Ok(None));
    let flags = (Code::Corrupt, "checkpoint record flags");
    for at in [4, 12] {
        let mut absent = absent;
        absent[at] = 1;
        assert_eq!(code(table::parse(&OWN, &absent, id)), flags, "byte {at}");
    }
    let mut unknown = of(1, 256);
    unknown[14] |= 8;
    assert_eq!(code(table::parse(&OWN, &unknown, id)), flags);
}

#[test]
fn what_was_not_recovered_from_is_outnumbered_and_what_is_unsound_is_wiped() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    (1..4).for_each(|salt| seal(&file, &mut manifest, TAG, salt).unwrap());
    let (file, mut manifest) = open(disk);
    seal(&file, &mut manifest, TAG, 4).unwrap();
    assert_eq!(find(disk, TAG), Ok(4));
    // Both superblocks read wrong once: what they hold must never come back.
    disk.change(100, |byte| byte ^ 1);
    disk.change(PAGE + 100, |byte| byte ^ 1);
    let (file, mut manifest) = open(disk);
    manifest.prepare(&file, &OWN).unwrap();
    assert!(disk.bytes.lock().unwrap()[..2 * PAGE].iter().all(|byte| *byte == 0));
    seal(&file, &mut manifest, TAG, 5).unwrap();
    assert_eq!(find(disk, TAG), Ok(5));
    // Another model's is wiped as well.
    let (file, mut manifest) = open(disk);
    let other = Fingerprint { model: 1, ..OWN };
    assert_eq!(code(manifest.find(&file, &other, TAG)), (Code::Mismatch, "checkpoint model"));
    manifest.prepare(&file, &other).unwrap();
    assert_eq!(code(find(disk, TAG)), (Code::BadMagic, "checkpoint"));
}

#[test]
fn a_failure_of_any_call_leaves_the_last_checkpoint_and_a_later_one_succeeds() {
    for error in [Error::new(Code::Io, "disk"), Error::new(Code::SyncFailed, "disk")] {
        for call in 1.. {
            let disk = leaked();
            let (file, mut manifest) = open(disk);
            seal(&file, &mut manifest, TAG, 1).unwrap();
            disk.take_log();
            *disk.failure.lock().unwrap() = Some((call, error));
            let result = seal(&file, &mut manifest, TAG, 2);
            let is_sync = disk.log.lock().unwrap().last().unwrap().0 == "sync";
            *disk.failure.lock().unwrap() = None;
            if result.is_ok() {
                assert_eq!(call, 5, "there are four calls");
                break;
            }
            assert_eq!(result, Err(error));
            // The last sync may have done its work, whatever it said.
            let newest = if call == 4 { 2 } else { 1 };
            assert_eq!(find(disk, TAG), Ok(newest));
            let again = seal(&file, &mut manifest, TAG, 3);
            if is_sync || error.code == Code::SyncFailed {
                assert_eq!(code(again).0, Code::Poisoned);
            } else {
                again.unwrap();
                assert_eq!(find(disk, TAG), Ok(3));
            }
        }
    }
    // Storage that cannot be read is no storage without a checkpoint.
    let disk = leaked();
    for call in 1..3 {
        let (file, mut manifest) = open(disk);
        disk.take_log();
        *disk.failure.lock().unwrap() = Some((call, Error::new(Code::Io, "disk")));
        assert_eq!(code(manifest.find(&file, &OWN, TAG)).0, Code::Io);
        disk.take_log();
        assert_eq!(code(manifest.prepare(&file, &OWN)).0, Code::Io);
    }
    // Nor is an older checkpoint the answer where the newest cannot be read.
    *disk.failure.lock().unwrap() = None;
    let (file, mut manifest) = open(disk);
    (1..3).for_each(|salt| seal(&file, &mut manifest, TAG, salt).unwrap());
    for call in 1..4 {
        disk.take_log();
        *disk.failure.lock().unwrap() = Some((call, Error::new(Code::Io, "disk")));
        assert_eq!(code(find(disk, TAG)).0, Code::Io, "call {call}");
    }
}

#[test]
fn the_largest_table_fits_into_its_place() {
    use crate::limits::{CHUNKS_PER_LAYER_MAX, LAYERS_MAX};
    for (layers, chunks, kv_heads, head_dim) in
        [(1, 1, 1, 32), (256, 1, 64, 256), (LAYERS_MAX, CHUNKS_PER_LAYER_MAX, 8, 128)]
    {
        let shape = KvShape { layers, kv_heads, head_dim };
        let slot_bytes = u32::try_from(shape.chunk_bytes()).unwrap();
        let slots = Slots { layers, chunks, slot_bytes };
        let own = Fingerprint { shape, slots, ..OWN };
        let tokens = TokenCount::new(u32::from(chunks) * 256);
        let superblock = Superblock { generation: 3, tag: TAG, tokens, steps_id: 1, table_crc: 2 };
        assert!(superblock.table_bytes(&own) as u64 <= table_bytes_max(&slots));
        let mut page = [0; SUPERBLOCK_BYTES];
        superblock.write(&own, CRC, &mut page);
        assert_eq!(Superblock::parse(&own, CRC, &page), Ok(superblock));
    }
}

#[test]
fn what_a_checkpoint_names_is_not_written_to() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    #[repr(align(4096))]
    struct Chunk([u8; 32768]);
    let id = id_at(4, 3);
    let write = |fill: u8| file.write_raw(id, &Chunk([fill; 32768]).0).unwrap();
    let read = |record| {
        let mut chunk = Box::new(Chunk([0; 32768]));
        file.read_raw(id, &mut chunk.0, record).map(|()| chunk.0[0])
    };
    let mut keep = |record| {
        let side = file.side(id).unwrap();
        manifest.prepare(&file, &OWN).unwrap();
        let one = Some(Stored { record, tokens: 256, side });
        manifest.collect(&SLOTS, TOKENS, |other| one.filter(|_| other == id));
        manifest.seal(&file, &OWN, TAG, TOKENS, None).unwrap();
        side
    };
    // Before the first checkpoint a copy is replaced where it is.
    write(1);
    let second = write(2);
    assert_eq!((file.side(id).unwrap(), file.stats().slots_used), (Side::First, 1));
    assert_eq!(keep(second), Side::First);
    file.discard(id).unwrap();
    assert_eq!(read(second), Ok(2), "it is kept");
    let third = write(3);
    let fourth = write(4);
    assert_eq!(file.side(id).unwrap(), Side::Second);
    assert_eq!((read(third).map_err(|e| e.code), read(fourth)), (Err(Code::Corrupt), Ok(4)));
    let (next, mut found) = open(disk);
    let superblock = found.find(&next, &OWN, TAG).unwrap();
    found.adopt(&next, &OWN, &superblock).unwrap();
    let mut chunk = Box::new(Chunk([0; 32768]));
    next.read_raw(id, &mut chunk.0, second).unwrap();
    assert_eq!(chunk.0[0], 2, "the checkpoint's copy is untouched");
    assert_eq!(keep(fourth), Side::Second);
    write(5);
    assert_eq!((file.side(id).unwrap(), file.stats().slots_used), (Side::First, 2));
    // A checkpoint that names neither frees both.
    manifest.collect(&SLOTS, TOKENS, |_| None);
    manifest.seal(&file, &OWN, TAG, TOKENS, None).unwrap();
    write(6);
    assert_eq!(file.side(id).unwrap(), Side::First);
}
