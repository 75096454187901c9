//! The flash swap on storage that lies: whatever became of the bytes, a read gives back what was
//! written, or an error.
//!
//! ```text
//! 0 slots: layers (2 bits), chunks (2 bits), pages of a slot (2 bits)
//! then one operation a byte, low bits what, high bits on which slot; operands follow
//! ```

use super::memory::with_memory;
use super::reader::Reader;
use mzcache::arena::{Arena, Sizer};
use mzcache::kernel::{CpuFlags, Kernels};
use mzcache::port::Storage;
use mzcache::swap::file::{Slots, SwapFile};
use mzcache::units::{ChunkId, ChunkIndex, FlashRecord, LayerIndex};
use mzcache::{Code, Error, Result};
use std::sync::Mutex;

const PAGE: usize = 4096;

/// What the storage does next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mood {
    #[default]
    Well,
    Fails,
    /// Less is read, or written, than asked for.
    Short,
    /// A write is forgotten.
    Lost,
    SyncFails,
}

#[derive(Default)]
struct Disk(Mutex<(Vec<u8>, Mood)>);

/// Plays the bytes; whether something was read back.
pub fn swapfile(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let setup = reader.byte();
    let slots = Slots {
        layers: 1 + u16::from(setup & 3),
        chunks: 1 + u16::from(setup >> 2 & 3),
        slot_bytes: 4096 * (1 + u32::from(setup >> 4 & 3)),
    };
    let mut sizer = Sizer::new();
    SwapFile::size(&mut sizer, &slots).unwrap();
    let disk = Box::into_raw(Box::<Disk>::default());
    // SAFETY: the disk was just made, and is given up below, after the file that refers to it.
    let storage: &'static Disk = unsafe { &*disk };
    // SAFETY: the file, which alone refers to the memory, ends with the closure.
    let has_read = unsafe {
        with_memory(sizer.required().unwrap(), |memory| {
            let mut arena = Arena::new(memory).unwrap();
            let crc = Kernels::select(CpuFlags::detect()).crc32c;
            let file = SwapFile::new(&mut arena, storage, &slots, crc).unwrap();
            let count = usize::from(slots.layers * slots.chunks);
            let known = vec![None; count];
            let mut run = Run { file, disk: storage, slots, known, has_read: false };
            while let Some(byte) = reader.next() {
                run.happen(byte, &mut reader);
            }
            run.has_read
        })
    };
    // SAFETY: it came from a box, and the file is gone.
    drop(unsafe { Box::from_raw(disk) });
    has_read
}

struct Run {
    file: SwapFile,
    disk: &'static Disk,
    slots: Slots,
    /// What each slot was told to hold, and its record.
    known: Vec<Option<(FlashRecord, Vec<u8>)>>,
    has_read: bool,
}

/// Bytes at an address that the file takes.
fn with_pages<T>(bytes: usize, run: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![0x5A; bytes + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    run(&mut memory[start..][..bytes])
}

impl Run {
    fn happen(&mut self, byte: u8, reader: &mut Reader<'_>) {
        let place = usize::from(byte >> 3) % self.known.len();
        match byte & 7 {
            0 => self.write(place, reader, false),
            1 => self.write(place, reader, true),
            2 | 3 => self.read(place),
            4 => self.damage(reader),
            5 => {
                let moods = [Mood::Fails, Mood::Short, Mood::Lost, Mood::SyncFails];
                self.disk.0.lock().unwrap().1 = moods[place % moods.len()];
            }
            6 => self.read_anything(place, reader),
            _ if byte >> 3 & 1 != 0 => self.discard(place),
            _ => self.sync(),
        }
        let stats = self.file.stats();
        assert!(stats.slots_used <= self.known.len() as u64);
    }

    fn id(&self, place: usize) -> ChunkId {
        let place = u16::try_from(place).unwrap();
        let layer = LayerIndex::new(place % self.slots.layers);
        ChunkId { layer, chunk: ChunkIndex::new(place / self.slots.layers) }
    }

    fn write(&mut self, place: usize, reader: &mut Reader<'_>, packed: bool) {
        let slot_bytes = self.slots.slot_bytes as usize;
        let share = usize::from(reader.byte());
        let bytes = match packed {
            true => 1 + (slot_bytes - 1) * share / 255,
            false => PAGE * (1 + (slot_bytes / PAGE - 1) * share / 255),
        };
        let seed = reader.byte();
        let id = self.id(place);
        let (written, content) = with_pages(slot_bytes, |pages| {
            for (byte, at) in pages.iter_mut().zip(0u32..) {
                *byte = at.wrapping_mul(0x9E37_79B9).to_le_bytes()[3] ^ seed;
            }
            let content = pages[..bytes].to_vec();
            let written = match packed {
                true => self.file.write_packed(id, pages, bytes),
                false => self.file.write_raw(id, &pages[..bytes]),
            };
            (written, content)
        });
        self.known[place] = match written {
            Ok(record) => {
                assert!(!self.file.is_poisoned());
                assert_eq!((record.bytes as usize, record.packed), (bytes, packed));
                Some((record, content))
            }
            Err(error) => {
                self.check_error(error);
                None
            }
        };
    }

    fn read(&mut self, place: usize) {
        let Some((record, expected)) = self.known[place].clone() else { return };
        let id = self.id(place);
        let read = with_pages(self.slots.slot_bytes as usize, |pages| match record.packed {
            true => self.file.read_packed(id, pages, record).map(<[u8]>::to_vec),
            false => {
                let pages = &mut pages[..record.bytes as usize];
                self.file.read_raw(id, pages, record).map(|()| pages.to_vec())
            }
        });
        match read {
            Ok(found) => {
                assert!(found == expected, "something else was read than was written");
                assert!(!self.file.is_poisoned());
                self.has_read = true;
            }
            Err(error) => self.check_error(error),
        }
    }

    /// At most 32 bits in a row change, or everything behind a place is gone: what a checksum of
    /// 32 bits must see.
    fn damage(&mut self, reader: &mut Reader<'_>) {
        let place = usize::from(u16::from_le_bytes([reader.byte(), reader.byte()]));
        let mask = [reader.byte(), reader.byte(), reader.byte(), reader.byte()];
        let mut disk = self.disk.0.lock().unwrap();
        let length = disk.0.len();
        if length == 0 {
            return;
        }
        if mask == [0; 4] {
            return disk.0.truncate(place * 7 % length);
        }
        let bytes = disk.0[place * 7 % length..].iter_mut();
        bytes.zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }

    /// A record that nobody gave out.
    fn read_anything(&mut self, place: usize, reader: &mut Reader<'_>) {
        let bytes = u32::from_le_bytes([reader.byte(), reader.byte(), reader.byte(), 0]);
        let record = FlashRecord { bytes, crc: 1, packed: bytes & 1 != 0 };
        let id = ChunkId {
            layer: LayerIndex::new(u16::try_from(place).unwrap() % 7),
            chunk: ChunkIndex::new(u16::try_from(place).unwrap() / 2),
        };
        with_pages(self.slots.slot_bytes as usize, |pages| {
            let read = match record.packed {
                true => self.file.read_packed(id, pages, record).map(|_| ()),
                false => self.file.read_raw(id, pages, record),
            };
            self.check_error(read.expect_err("a checksum that fits by chance"));
        });
    }

    fn discard(&mut self, place: usize) {
        self.known[place] = None;
        if let Err(error) = self.file.discard(self.id(place)) {
            self.check_error(error);
        }
    }

    fn sync(&mut self) {
        if let Err(error) = self.file.sync() {
            assert!(self.file.is_poisoned());
            self.check_error(error);
        }
    }

    fn check_error(&self, error: Error) {
        assert!(!error.what.is_empty());
        let is_poison = matches!(error.code, Code::Poisoned | Code::SyncFailed);
        assert!(!is_poison || self.file.is_poisoned(), "{error}");
    }
}

impl Disk {
    fn mood(&self) -> Mood {
        std::mem::take(&mut self.0.lock().unwrap().1)
    }
}

impl Storage for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mood = self.mood();
        if mood == Mood::Fails {
            return Err(Error::new(Code::Io, "disk"));
        }
        let offset = usize::try_from(offset).unwrap();
        let bytes = &self.0.lock().unwrap().0;
        let there = bytes.get(offset..).unwrap_or_default();
        let mut length = there.len().min(into.len());
        if mood == Mood::Short {
            length = length.saturating_sub(PAGE);
        }
        into[..length].copy_from_slice(&there[..length]);
        Ok(length)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mood = self.mood();
        let offset = usize::try_from(offset).unwrap();
        let bytes = &mut self.0.lock().unwrap().0;
        let length = match mood {
            Mood::Well => from.len(),
            Mood::Short => PAGE.min(from.len()),
            _ => 0,
        };
        let end = bytes.len().max(offset + length);
        bytes.resize(end, 0);
        bytes[offset..][..length].copy_from_slice(&from[..length]);
        match mood {
            Mood::Fails => Err(Error::new(Code::Io, "disk")),
            Mood::SyncFails => Err(Error::new(Code::SyncFailed, "disk")),
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        match self.mood() {
            Mood::SyncFails => Err(Error::new(Code::SyncFailed, "disk")),
            _ => Ok(()),
        }
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<()> {
        match self.mood() {
            Mood::Fails => Err(Error::new(Code::Io, "disk")),
            _ => Ok(()),
        }
    }

    fn length(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().0.len() as u64)
    }

    fn is_direct(&self) -> bool {
        true
    }
}
