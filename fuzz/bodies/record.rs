//! The head of a swap file as anything: a checkpoint in it is refused, or becomes a context that
//! the state machine takes for one; and the next checkpoint is found.
//!
//! ```text
//!  0 mode: 1 checksum superblocks anew, 2 tables too, 4 ask for the tag in the first superblock
//!  1 front of superblock 0, 76 bytes
//! 77 front of superblock 1, 76 bytes
//! 153 table 0, up to 512 bytes, then table 1
//! ```

use super::memory::with_memory;
use mzcache::arena::{Arena, Sizer};
use mzcache::codec::{ChunkLayout, Steps};
use mzcache::kernel::{CpuFlags, Kernels};
use mzcache::limits::CHUNK_TOKENS;
use mzcache::policy::{Plan, Profile, Scheme, Setup, Times};
use mzcache::port::Storage;
use mzcache::state::{Config, Event, Machine, SavedChunk};
use mzcache::swap::file::{Side, Slots, SwapFile};
use mzcache::swap::manifest::{Fingerprint, Manifest, SUPERBLOCK_BYTES, Stored, head_bytes};
use mzcache::units::{ByteCount, ChunkId, CodecId, FlashRecord, KvShape, Tag, TokenCount};
use mzcache::{Code, Error, Result};
use std::sync::Mutex;

const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 1, head_dim: 32 };
const SLOTS: Slots = Slots { layers: 2, chunks: 4, slot_bytes: 36864 };
const OWN: Fingerprint = Fingerprint {
    shape: SHAPE,
    layout: ChunkLayout::TokenMajor,
    codec: CodecId::Kv4,
    slots: SLOTS,
    model: 7,
};
const FRONT_BYTES: usize = 76;
const TABLE_BYTES: usize = 512;
const WEIGHT_BYTES: [u64; 2] = [4096, 4096];

#[derive(Default)]
struct Disk(Mutex<Vec<u8>>);

impl Storage for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock().unwrap();
        let from = &bytes[bytes.len().min(usize::try_from(offset).unwrap())..];
        let read = from.len().min(into.len());
        into[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let bytes = &mut self.0.lock().unwrap();
        let offset = usize::try_from(offset).unwrap();
        let end = bytes.len().max(offset + from.len());
        bytes.resize(end, 0);
        bytes[offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn is_direct(&self) -> bool {
        true
    }
}

/// The head that the input stands for, and the tag to ask for.
fn head(data: &[u8], kernels: &Kernels) -> (Vec<u8>, Tag) {
    let mode = data.first().copied().unwrap_or(0);
    let bytes = usize::try_from(head_bytes(&SLOTS)).unwrap();
    let table_bytes = bytes / 2 - SUPERBLOCK_BYTES;
    let mut head = vec![0; bytes];
    let mut copy = |from: usize, length: usize, to: usize| {
        let from = data.get(from..).unwrap_or_default();
        let length = length.min(from.len());
        head[to..][..length].copy_from_slice(&from[..length]);
    };
    for place in 0..2 {
        copy(1 + FRONT_BYTES * place, FRONT_BYTES, SUPERBLOCK_BYTES * place);
        let table = 2 * SUPERBLOCK_BYTES + place * table_bytes;
        copy(1 + 2 * FRONT_BYTES + TABLE_BYTES * place, TABLE_BYTES, table);
    }
    for place in 0..2 {
        let table = 2 * SUPERBLOCK_BYTES + place * table_bytes;
        let start = SUPERBLOCK_BYTES * place;
        if mode & 2 != 0 {
            // All tables of so few records are one page.
            let crc = kernels.crc32c.call(0, &head[table..][..4096]);
            head[start + 72..][..4].copy_from_slice(&crc.to_le_bytes());
        }
        if mode & 1 != 0 {
            let end = start + SUPERBLOCK_BYTES - 4;
            let crc = kernels.crc32c.call(0, &head[start..end]);
            head[end..][..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let tag = head[48..64].try_into().map_or(0, u128::from_le_bytes);
    (head, if mode & 4 != 0 { Tag::new(tag) } else { Tag::EMPTY })
}

fn machine(arena: &mut Arena) -> Machine {
    let setup = Setup {
        codec: OWN.codec,
        chunk_bytes: ByteCount::new(SHAPE.chunk_bytes() as u64),
        packed_bytes: ByteCount::new(20000),
        stored_bytes: ByteCount::new(SHAPE.chunk_bytes() as u64),
        unpackers: 1,
        ram_is_open: true,
        flash_is_open: true,
    };
    let times = Times::new(&Profile::DEFAULT, &setup).unwrap();
    let config = Config {
        shape: SHAPE,
        columns_max: SLOTS.chunks,
        weight_bytes: &WEIGHT_BYTES,
        packed_bytes_max: 20000,
        lossless: false,
        plan: Plan { scheme: Scheme::Hybrid, threshold: 4, times },
    };
    Machine::new(arena, &config).unwrap()
}

/// Looks for a checkpoint in the bytes; whether there is one.
pub fn record(data: &[u8]) -> bool {
    let kernels = Kernels::select(CpuFlags::detect());
    let (head, tag) = head(data, &kernels);
    let disk = Box::into_raw(Box::new(Disk(Mutex::new(head))));
    // SAFETY: the disk was just made, and is given up below, after all that refers to it.
    let storage: &'static Disk = unsafe { &*disk };
    let steps_bytes = Steps::serialised_bytes(&SHAPE);
    let mut sizer = Sizer::new();
    SwapFile::size(&mut sizer, &SLOTS).unwrap();
    Manifest::size(&mut sizer, &SLOTS, steps_bytes).unwrap();
    Machine::size(&mut sizer, WEIGHT_BYTES.len(), SHAPE.layers, SLOTS.chunks).unwrap();
    // SAFETY: what is made in the memory ends with the closure.
    let found = unsafe {
        with_memory(sizer.required().unwrap(), |memory| {
            let mut arena = Arena::new(memory).unwrap();
            let file = SwapFile::new(&mut arena, storage, &SLOTS, kernels.crc32c).unwrap();
            let mut manifest = Manifest::new(&mut arena, &SLOTS, steps_bytes).unwrap();
            let mut machine = machine(&mut arena);
            let found = look(&file, &mut manifest, &mut machine, tag, &kernels);
            go_on(&file, &mut manifest);
            found
        })
    };
    // SAFETY: it came from a box, and the file is gone.
    drop(unsafe { Box::from_raw(disk) });
    found
}

fn look(
    file: &SwapFile,
    manifest: &mut Manifest,
    machine: &mut Machine,
    tag: Tag,
    kernels: &Kernels,
) -> bool {
    let found = match manifest.find(file, &OWN, tag) {
        Ok(found) => found,
        Err(Error { code, what, .. }) => {
            let codes = [Code::BadMagic, Code::Corrupt, Code::Mismatch, Code::Unsupported];
            assert!(codes.contains(&code) && !what.is_empty(), "{code:?} {what}");
            return false;
        }
    };
    assert_eq!(found.tag, tag);
    let mut memory = vec![0f32; Steps::values(&SHAPE)];
    // Refused, or no profile: either way no panic.
    let _ = Steps::parse(kernels, SHAPE, manifest.steps(&OWN, &found), &mut memory);
    let saved = |id| {
        let Stored { record, tokens, .. } = manifest.stored(&OWN, &found, id).unwrap()?;
        assert!(record.bytes > 0 && record.bytes <= SLOTS.slot_bytes);
        assert!(tokens > 0 && tokens <= CHUNK_TOKENS);
        Some(SavedChunk { record, tokens })
    };
    machine.recover(found.tokens, saved).unwrap();
    machine.check().unwrap();
    assert_eq!(machine.tokens(), found.tokens);
    let restore = Event::Restore { tokens: found.tokens, allocate_first: false };
    assert_eq!(machine.step(restore).is_ok(), machine.lost().is_none());
    machine.check().unwrap();
    manifest.adopt(file, &OWN, &found).unwrap();
    true
}

/// Whatever was there, the next checkpoint counts.
fn go_on(file: &SwapFile, manifest: &mut Manifest) {
    let (tag, tokens) = (Tag::new(0xFEED), TokenCount::new(300));
    let stored = |id: ChunkId| {
        let record = FlashRecord { bytes: 9, crc: u32::from(id.chunk.get()), packed: true };
        Some(Stored { record, tokens: 256, side: Side::Second })
    };
    manifest.prepare(file, &OWN).unwrap();
    manifest.collect(&SLOTS, tokens, stored);
    if let Err(error) = manifest.seal(file, &OWN, tag, tokens, None) {
        // Somebody had forged the last number there is.
        return assert_eq!(error.code, Code::LimitExceeded);
    }
    let found = manifest.find(file, &OWN, tag).unwrap();
    let id = ChunkId::default();
    assert_eq!(manifest.stored(&OWN, &found, id).unwrap(), stored(id));
}
