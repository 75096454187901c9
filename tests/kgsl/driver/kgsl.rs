//! KGSL as its source describes it, as far as memory goes.

use super::process::{PAGE, commit, held, long, word};
use super::supervisor::{Answer, Notice, Report, Supervisor};
use super::{Process, memfd};
use std::collections::BTreeMap;
use std::fs::File;

const CACHED: u64 = 3 << 26;
const USE_CPU_MAP: u64 = 1 << 28;
const IOCOHERENT: u64 = 1 << 31;
const ALIGN: u64 = 0xFF << 16;
/// Where the GPU sees what the host's addresses are not those of.
const APART: u64 = 0x40_0000_0000;
const FILE: &str = "kgsl";

struct Object {
    size: u64,
    footprint: u64,
    is_imported: bool,
    /// The last sync.
    synced: u32,
}

pub struct Kgsl {
    pub file: File,
    objects: BTreeMap<u32, Object>,
}

impl Kgsl {
    pub fn new() -> Kgsl {
        Kgsl { file: memfd(FILE, 1 << 40), objects: BTreeMap::new() }
    }

    /// What a process that ended has left.
    pub fn finish(self, report: &mut Report) {
        let left: Vec<u32> = self.objects.keys().copied().collect();
        if !left.is_empty() || held(&self.file) != 0 {
            report.complaints.push(format!("objects {left:?} and {} bytes", held(&self.file)));
        }
    }

    pub fn control(&mut self, to: &mut Supervisor<'_>, from: &Process, notice: &Notice) -> Answer {
        let (request, at) = (notice.arguments[1] as u32, notice.arguments[2]);
        if to.world.is_old && (0x45..=0x49).contains(&(request & 0xFF)) {
            return Err(libc::ENOTTY);
        }
        let done = match request {
            0xC018_0902 => self.property(to, from, at),
            0xC030_0945 => self.allocate(to, from, at),
            0x4020_0946 => self.free(to, from, at),
            0xC030_0947 => self.info(to, from, at),
            0xC020_0948 => self.import(to, from, at),
            0x4010_0949 => self.sync(to, from, at),
            0xC030_0934 => self.old_allocate(to, from, at),
            0xC008_0935 => self.old_free(to, from, at),
            0xC048_0936 => self.old_info(to, from, at),
            0x4020_0937 => self.old_sync(to, from, at),
            other => {
                to.complain(format!("request {other:#x}"));
                Err(libc::ENOTTY)
            }
        };
        done.map(|()| 0)
    }

    fn property(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GETPROPERTY")?;
        let argument: [u8; 24] = from.bytes(at);
        to.expect(word(&argument, 4) == 0, "padding of a property");
        let (value, bytes) = (long(&argument, 8), long(&argument, 16));
        let answer: Vec<u8> = match (word(&argument, 0), bytes) {
            (1, 40) => [1u64 | 0x0605_0001 << 32, 1, 0x10_0000, 830, 12 << 20]
                .iter()
                .flat_map(|part| part.to_le_bytes())
                .collect(),
            (8, 16) => [3u32, 14, 3, 1].iter().flat_map(|part| part.to_le_bytes()).collect(),
            (0x29, 32) => {
                let mut name = b"Adreno830v2".to_vec();
                name.resize(32, 0);
                name
            }
            _ => return Err(libc::EINVAL),
        };
        from.put(value, &answer);
        Ok(())
    }

    /// The first free range; its number, footprint and granted flags.
    fn make(&mut self, to: &mut Supervisor<'_>, size: u64, flags: u64) -> (u32, u64, u64) {
        let whole = size.next_multiple_of(PAGE);
        let power = (flags & ALIGN) >> 16;
        let expected = match size {
            0x20_0000.. => 21,
            0x10_0000.. => 20,
            0x1_0000.. => 16,
            _ => 12,
        };
        to.expect(power == expected, ("alignment", size, power));
        to.expect(flags & !ALIGN == CACHED | USE_CPU_MAP | IOCOHERENT, ("flags", flags));
        to.expect(size.is_multiple_of(PAGE), ("size", size));
        let footprint = whole + if to.world.has_guards { PAGE } else { 0 };
        let id = self.gap(footprint);
        commit(&self.file, u64::from(id) * PAGE, footprint, true);
        let object = Object { size: whole, footprint, is_imported: false, synced: 2 };
        self.objects.insert(id, object);
        let mut granted = flags;
        if !to.world.is_coherent {
            granted &= !IOCOHERENT;
        }
        if to.world.is_apart {
            granted &= !USE_CPU_MAP;
        }
        (id, to.world.footprint.unwrap_or(footprint), granted)
    }

    fn gap(&self, bytes: u64) -> u32 {
        let mut next = 1;
        for (id, object) in &self.objects {
            if u64::from(*id) >= next + bytes / PAGE {
                break;
            }
            next = u64::from(*id) + object.footprint / PAGE;
        }
        next.try_into().unwrap()
    }

    fn allocate(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUOBJ_ALLOC")?;
        let argument: [u8; 48] = from.bytes(at);
        let (size, flags) = (long(&argument, 0), long(&argument, 8));
        to.expect(argument[16..].iter().all(|byte| *byte == 0), "rest of an allocation");
        if size == 0 || size > u64::from(u32::MAX) {
            return Err(libc::EINVAL);
        }
        let (id, footprint, granted) = self.make(to, size, flags);
        from.put(at + 8, &granted.to_le_bytes());
        from.put(at + 24, &footprint.to_le_bytes());
        from.put(at + 32, &id.to_le_bytes());
        Ok(())
    }

    fn old_allocate(
        &mut self,
        to: &mut Supervisor<'_>,
        from: &Process,
        at: u64,
    ) -> Result<(), i32> {
        to.count("GPUMEM_ALLOC_ID")?;
        let argument: [u8; 48] = from.bytes(at);
        let (flags, size) = (word(&argument, 4), long(&argument, 8));
        to.expect(word(&argument, 0) == 0, "number of an allocation");
        to.expect(argument[16..].iter().all(|byte| *byte == 0), "rest of an allocation");
        let (id, footprint, granted) = self.make(to, size, flags.into());
        from.put(at, &id.to_le_bytes());
        from.put(at + 4, &u32::try_from(granted).unwrap().to_le_bytes());
        from.put(at + 16, &footprint.to_le_bytes());
        Ok(())
    }

    fn free(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUOBJ_FREE")?;
        let argument: [u8; 32] = from.bytes(at);
        to.expect(argument[..16].iter().all(|byte| *byte == 0), "flags of a free");
        to.expect(argument[20..].iter().all(|byte| *byte == 0), "rest of a free");
        self.forget(to, from, word(&argument, 16))
    }

    fn old_free(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUMEM_FREE_ID")?;
        let argument: [u8; 8] = from.bytes(at);
        to.expect(word(&argument, 4) == 0, "padding of a free");
        self.forget(to, from, word(&argument, 0))
    }

    fn forget(&mut self, to: &mut Supervisor<'_>, from: &Process, id: u32) -> Result<(), i32> {
        let Some(object) = self.objects.remove(&id) else {
            to.complain(format!("freed {id}, which is none"));
            return Err(libc::EINVAL);
        };
        if object.is_imported {
            return Ok(());
        }
        let (offset, bytes) = (u64::from(id) * PAGE, object.footprint);
        let mapped = from.address_of(FILE, offset, bytes);
        to.expect(mapped.is_none(), ("freed while mapped", id));
        commit(&self.file, offset, bytes, false);
        let live: u64 = self.objects.values().map(|object| object.footprint).sum();
        to.expect(held(&self.file) <= live, ("pages of freed objects", held(&self.file), live));
        Ok(())
    }

    fn address(&self, from: &Process, id: u32) -> Result<u64, i32> {
        let object = self.objects.get(&id).ok_or(libc::EINVAL)?;
        let offset = u64::from(id) * PAGE;
        match object.is_imported {
            true => Ok(APART + offset),
            false => Ok(from.address_of(FILE, offset, object.footprint).unwrap_or(0)),
        }
    }

    fn info(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUOBJ_INFO")?;
        let argument: [u8; 48] = from.bytes(at);
        to.expect(argument[..40].iter().all(|byte| *byte == 0), "answers of a question");
        to.expect(word(&argument, 44) == 0, "padding of a question");
        let address = self.address(from, word(&argument, 40))?;
        from.put(at, &address.to_le_bytes());
        Ok(())
    }

    fn old_info(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUMEM_GET_INFO")?;
        let argument: [u8; 72] = from.bytes(at);
        to.expect(argument[12..].iter().all(|byte| *byte == 0), "answers of a question");
        let address = self.address(from, word(&argument, 8))?;
        from.put(at, &address.to_le_bytes());
        Ok(())
    }

    fn import(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUOBJ_IMPORT")?;
        let argument: [u8; 32] = from.bytes(at);
        let (place, bytes) = (long(&argument, 0), long(&argument, 8));
        to.expect((bytes, long(&argument, 16)) == (4, 0), ("import", bytes));
        to.expect((word(&argument, 24), word(&argument, 28)) == (3, 0), "kind of an import");
        let fd = i32::from_le_bytes(from.bytes(place));
        to.dma_buf(from, fd)?;
        let id = self.gap(PAGE);
        let object = Object { size: PAGE, footprint: PAGE, is_imported: true, synced: 2 };
        self.objects.insert(id, object);
        from.put(at + 28, &id.to_le_bytes());
        Ok(())
    }

    fn sync(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUOBJ_SYNC")?;
        let argument: [u8; 16] = from.bytes(at);
        to.expect((word(&argument, 8), word(&argument, 12)) == (24, 1), "items of a sync");
        let item: [u8; 24] = from.bytes(long(&argument, 0));
        let (id, operation) = (word(&item, 16), word(&item, 20));
        self.synced(to, id, operation, long(&item, 0), long(&item, 8))
    }

    fn old_sync(&mut self, to: &mut Supervisor<'_>, from: &Process, at: u64) -> Result<(), i32> {
        to.count("GPUMEM_SYNC_CACHE")?;
        let argument: [u8; 32] = from.bytes(at);
        to.expect(long(&argument, 0) == 0, "address of a sync");
        let (id, operation) = (word(&argument, 8), word(&argument, 12));
        to.expect(operation & 1 << 31 != 0, "a sync without a range");
        let range = (long(&argument, 16), long(&argument, 24));
        self.synced(to, id, operation & !(1 << 31), range.0, range.1)
    }

    /// All of an object, to the GPU and back in turns.
    fn synced(
        &mut self,
        to: &mut Supervisor<'_>,
        id: u32,
        operation: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(), i32> {
        let object = self.objects.get_mut(&id).ok_or(libc::EINVAL)?;
        to.expect((offset, bytes) == (0, object.size), ("range of a sync", offset, bytes));
        to.expect(operation + object.synced == 3, ("order of syncs", operation));
        object.synced = operation;
        *to.report.calls.entry(if operation == 1 { "to GPU" } else { "from GPU" }).or_default() +=
            1;
        Ok(())
    }
}
