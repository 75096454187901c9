//! A device: two files and memory, with the mishaps of `main`'s fault model, each as often as the
//! weather says.

use crate::scheduler::Scheduler;
use crate::world::{PAGE, model_fill};
use mzcache::port::{Region, SharedMemory, Storage, Use};
use mzcache::swap::file::Slots;
use mzcache::swap::manifest::head_bytes;
use mzcache::{Code, Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    ModelFails,
    ModelEnds,
    ReadFails,
    ReadEnds,
    ReadElsewhere,
    ReadFlips,
    WriteFails,
    DiskFull,
    WriteLost,
    WriteTorn,
    WriteElsewhere,
    SyncFails,
    NoMemory,
    NoDevice,
    NoThread,
}

impl Mishap {
    pub const ALL: [Mishap; 15] = [
        Mishap::ModelFails,
        Mishap::ModelEnds,
        Mishap::ReadFails,
        Mishap::ReadEnds,
        Mishap::ReadElsewhere,
        Mishap::ReadFlips,
        Mishap::WriteFails,
        Mishap::DiskFull,
        Mishap::WriteLost,
        Mishap::WriteTorn,
        Mishap::WriteElsewhere,
        Mishap::SyncFails,
        Mishap::NoMemory,
        Mishap::NoDevice,
        Mishap::NoThread,
    ];
}

#[derive(Debug, Default)]
struct Sky {
    calm: bool,
    /// One call in so many, by mishap; 0 is never.
    one_in: [u64; Mishap::ALL.len()],
    /// What callers were told since somebody asked.
    told: Vec<Code>,
    /// Slots of the swap file that hold, or gave, something wrong.
    damaged: BTreeSet<u64>,
    /// The same of its head, at any time.
    head_is_damaged: bool,
    /// Slots may have been written to after what was recovered named them.
    all_is_doubtful: bool,
    poisoned: bool,
    mishaps: [u64; Mishap::ALL.len()],
}

/// When what goes wrong, and what did.
#[derive(Clone)]
pub struct Weather {
    pub scheduler: Scheduler,
    sky: Arc<Mutex<Sky>>,
}

impl Weather {
    pub fn new(scheduler: Scheduler, one_in: [u64; Mishap::ALL.len()]) -> Self {
        let sky = Sky { one_in, ..Sky::default() };
        Weather { scheduler, sky: Arc::new(Mutex::new(sky)) }
    }

    fn sky(&self) -> MutexGuard<'_, Sky> {
        self.sky.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// No more mishaps.
    pub fn calm_down(&self) {
        self.sky().calm = true;
    }

    pub fn happens(&self, mishap: Mishap) -> bool {
        let mut sky = self.sky();
        let one_in = sky.one_in[mishap as usize];
        let happens = !sky.calm && self.scheduler.draw(|random| random.one_in(one_in));
        sky.mishaps[mishap as usize] += u64::from(happens);
        happens
    }

    fn tell<T>(&self, code: Code) -> Result<T> {
        self.sky().told.push(code);
        Err(Error::new(code, "simulated").with(5))
    }

    /// The codes that callers were given since the last question.
    pub fn take_told(&self) -> Vec<Code> {
        std::mem::take(&mut self.sky().told)
    }

    /// How many of each kind there were.
    pub fn mishaps(&self) -> [u64; Mishap::ALL.len()] {
        self.sky().mishaps
    }

    pub fn is_poisoned(&self) -> bool {
        self.sky().poisoned
    }

    /// Whether one of these chunks, each of which has two slots, may be lost.
    pub fn may_be_lost(&self, mut places: impl Iterator<Item = u64>) -> bool {
        let sky = self.sky();
        let is_damaged = |place| [2 * place, 2 * place + 1].map(|slot| sky.damaged.contains(&slot));
        sky.poisoned || sky.all_is_doubtful || places.any(|place| is_damaged(place) != [false; 2])
    }

    /// Whether the head of the swap file ever held, or gave, something wrong.
    pub fn head_is_damaged(&self) -> bool {
        self.sky().head_is_damaged
    }

    /// Says whether what was recovered may name slots that were written to since.
    pub fn doubt_all(&self, is_doubtful: bool) {
        self.sky().all_is_doubtful = is_doubtful;
    }

    /// What [`Weather::doubt_all`] was told.
    pub fn all_is_doubtful(&self) -> bool {
        self.sky().all_is_doubtful
    }

    /// `None` is the head.
    fn damage(&self, slot: Option<u64>) {
        let mut sky = self.sky();
        match slot {
            Some(slot) => drop(sky.damaged.insert(slot)),
            None => sky.head_is_damaged = true,
        }
    }

    /// A new process has the same swap file, with all that is wrong in it.
    pub fn reboot(&self) {
        let mut sky = self.sky();
        sky.poisoned = false;
        sky.told.clear();
    }
}

/// The model file, which is computed, or the swap file.
pub struct Disk {
    weather: Weather,
    model_bytes: Option<u64>,
    head_bytes: u64,
    slot_bytes: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Disk {
    pub fn model(weather: &Weather, bytes: u64) -> Self {
        let (weather, bytes) = (weather.clone(), Some(bytes));
        let (head_bytes, slot_bytes) = (0, PAGE);
        Disk { weather, model_bytes: bytes, head_bytes, slot_bytes, bytes: Mutex::default() }
    }

    pub fn swap(weather: &Weather, slots: Slots) -> Self {
        let weather = weather.clone();
        let (head_bytes, slot_bytes) = (head_bytes(&slots), u64::from(slots.slot_bytes));
        Disk { weather, model_bytes: None, head_bytes, slot_bytes, bytes: Mutex::default() }
    }

    /// Which slot is there; `None` in the head.
    fn slot(&self, offset: u64) -> Option<u64> {
        Some(offset.checked_sub(self.head_bytes)? / self.slot_bytes)
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn draw(&self, bound: u64) -> u64 {
        self.weather.scheduler.draw(|random| random.below(bound))
    }

    /// A transfer that goes somewhere else goes to a slot.
    fn elsewhere(&self) -> u64 {
        let bytes = (self.bytes().len() as u64).saturating_sub(self.head_bytes);
        self.head_bytes + self.draw((bytes / self.slot_bytes).max(1)) * self.slot_bytes
    }

    /// One bit changes while nobody looks.
    pub fn rot(&self) {
        let bytes = self.bytes().len() as u64;
        if bytes > 0 {
            let at = self.draw(bytes);
            self.bytes()[usize::try_from(at).unwrap()] ^= 1 << self.draw(8);
            self.weather.damage(self.slot(at));
        }
    }

    fn read_model(&self, length: u64, offset: u64, into: &mut [u8]) -> Result<usize> {
        if self.weather.happens(Mishap::ModelFails) {
            return self.weather.tell(Code::Io);
        }
        let mut bytes = (length - offset.min(length)).min(into.len() as u64);
        if self.weather.happens(Mishap::ModelEnds) {
            bytes = self.draw(bytes.div_ceil(PAGE).max(1)) * PAGE;
            self.sky_told(Code::ShortRead);
        }
        let bytes = usize::try_from(bytes).unwrap();
        model_fill(offset, &mut into[..bytes]);
        Ok(bytes)
    }

    fn sky_told(&self, code: Code) {
        self.weather.sky().told.push(code);
    }

    fn read_swap(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let weather = &self.weather;
        if weather.happens(Mishap::ReadFails) {
            return weather.tell(Code::Io);
        }
        let slot = self.slot(offset);
        let mut from = offset;
        if weather.happens(Mishap::ReadElsewhere) {
            from = self.elsewhere();
            weather.damage(slot);
        }
        let from = usize::try_from(from).unwrap().min(self.bytes().len());
        let mut length = (self.bytes().len() - from).min(into.len());
        if weather.happens(Mishap::ReadEnds) {
            length =
                usize::try_from(self.draw(into.len() as u64 / PAGE) * PAGE).unwrap().min(length);
            weather.damage(slot);
        }
        into[..length].copy_from_slice(&self.bytes()[from..][..length]);
        if length > 0 && weather.happens(Mishap::ReadFlips) {
            into[usize::try_from(self.draw(length as u64)).unwrap()] ^= 1 << self.draw(8);
            weather.damage(slot);
        }
        Ok(length)
    }

    fn store(&self, offset: u64, from: &[u8]) {
        let offset = usize::try_from(offset).unwrap();
        let mut bytes = self.bytes();
        let end = bytes.len().max(offset + from.len());
        bytes.resize(end, 0);
        bytes[offset..][..from.len()].copy_from_slice(from);
    }

    /// Some pages from the beginning; power may fail between them.
    fn store_part(&self, offset: u64, from: &[u8]) {
        let pages = self.draw(from.len() as u64 / PAGE + 1);
        self.store(offset, &from[..usize::try_from(pages * PAGE).unwrap()]);
        self.weather.scheduler.point();
    }

    fn write_swap(&self, offset: u64, from: &[u8]) -> Result<()> {
        let weather = &self.weather;
        if weather.is_poisoned() {
            return weather.tell(Code::Poisoned);
        }
        if weather.happens(Mishap::SyncFails) {
            weather.sky().poisoned = true;
            // Others may hear of it before this caller's answer is booked.
            self.sky_told(Code::Poisoned);
            return weather.tell(Code::SyncFailed);
        }
        let slot = self.slot(offset);
        slot.map(|slot| weather.sky().damaged.remove(&slot));
        for (mishap, code) in [(Mishap::WriteFails, Code::Io), (Mishap::DiskFull, Code::NoSpace)] {
            if weather.happens(mishap) {
                self.store_part(offset, from);
                return weather.tell(code);
            }
        }
        if weather.happens(Mishap::WriteLost) {
            weather.damage(slot);
            return Ok(());
        }
        if weather.happens(Mishap::WriteTorn) {
            weather.damage(slot);
            self.store_part(offset, from);
            return Ok(());
        }
        if weather.happens(Mishap::WriteElsewhere) {
            let other = self.elsewhere();
            weather.damage(slot);
            weather.damage(self.slot(other));
            self.store(other, from);
            return Ok(());
        }
        self.store_part(offset, from);
        self.store(offset, from);
        Ok(())
    }
}

impl Storage for Disk {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        assert!(offset.is_multiple_of(PAGE) && (into.len() as u64).is_multiple_of(PAGE));
        self.weather.scheduler.point();
        self.weather.scheduler.spend(into.len() as u64);
        match self.model_bytes {
            Some(length) => self.read_model(length, offset, into),
            None => self.read_swap(offset, into),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        assert!(self.model_bytes.is_none(), "the model file is never written");
        assert!(offset.is_multiple_of(PAGE) && (from.len() as u64).is_multiple_of(PAGE));
        self.weather.scheduler.point();
        self.weather.scheduler.spend(4 * from.len() as u64);
        self.write_swap(offset, from)
    }

    fn sync(&self) -> Result<()> {
        self.weather.scheduler.point();
        if self.weather.is_poisoned() {
            return self.weather.tell(Code::Poisoned);
        }
        if self.weather.happens(Mishap::SyncFails) {
            self.weather.sky().poisoned = true;
            self.sky_told(Code::Poisoned);
            return self.weather.tell(Code::SyncFailed);
        }
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<()> {
        self.weather.scheduler.point();
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.model_bytes.unwrap_or_else(|| self.bytes().len() as u64))
    }

    fn is_direct(&self) -> bool {
        true
    }
}

/// What a released region is filled with, and must still hold when it is given up for good.
const GONE: u8 = 0xA5;
/// Released regions that are kept to be looked at.
const KEPT: usize = 8;

#[derive(Default)]
struct Heap {
    live: [u64; 3],
    regions: BTreeSet<(usize, usize)>,
    gone: Vec<(usize, usize)>,
}

/// Shared memory out of the heap, watched.
pub struct Memory {
    weather: Weather,
    bytes_max: u64,
    heap: Mutex<Heap>,
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, usize::try_from(PAGE).unwrap()).unwrap()
}

impl Memory {
    pub fn new(weather: &Weather, bytes_max: u64) -> Self {
        Memory { weather: weather.clone(), bytes_max, heap: Mutex::default() }
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn live(&self, usage: Use) -> u64 {
        self.heap().live[usage as usize]
    }

    /// The process has ended, or the run: nothing is in use.
    pub fn free_all(&self) {
        let mut heap = self.heap();
        heap.live = [0; 3];
        for (start, bytes) in std::mem::take(&mut heap.regions) {
            free(start, bytes, false);
        }
        for (start, bytes) in std::mem::take(&mut heap.gone) {
            free(start, bytes, true);
        }
    }
}

fn free(start: usize, bytes: usize, is_gone: bool) {
    let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
    if is_gone {
        // SAFETY: it was allocated with that many bytes and is initialised.
        let found = unsafe { std::slice::from_raw_parts(start, bytes) };
        // Eight at a time, as this is done often.
        let (words, _) = found.as_chunks::<8>();
        let is_gone = words.iter().all(|word| *word == [GONE; 8]);
        assert!(is_gone, "memory was written to after its release");
    }
    // SAFETY: it was allocated with this layout, and nobody uses it any more.
    unsafe { dealloc(start, layout(bytes)) };
}

// SAFETY: the allocator's memory is exclusive, writable and zeroed until `release` gives it up.
unsafe impl SharedMemory for Memory {
    fn allocate(&self, usage: Use, bytes: usize) -> Result<Region> {
        self.weather.scheduler.point();
        self.weather.scheduler.spend(bytes as u64 / 4);
        let live: u64 = self.heap().live.iter().sum();
        let is_full = !self.weather.sky().calm && live + bytes as u64 > self.bytes_max;
        if is_full || self.weather.happens(Mishap::NoMemory) {
            return self.weather.tell(Code::OutOfMemory);
        }
        // SAFETY: no buffer has zero bytes.
        let start = unsafe { alloc_zeroed(layout(bytes)) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout(bytes)) };
        let mut heap = self.heap();
        heap.live[usage as usize] += bytes as u64;
        assert!(heap.regions.insert((start.as_ptr().expose_provenance(), bytes)));
        Ok(Region { start, bytes, token: bytes as u64 })
    }

    unsafe fn release(&self, usage: Use, region: Region) {
        self.weather.scheduler.point();
        let start = region.start.as_ptr();
        let mut heap = self.heap();
        let known = (start.expose_provenance(), region.bytes);
        assert!(heap.regions.remove(&known), "released once, as it was allocated");
        heap.live[usage as usize] -= region.bytes as u64;
        // SAFETY: the region was live until now, and the caller gives it up.
        unsafe { start.write_bytes(GONE, region.bytes) };
        heap.gone.push(known);
        if heap.gone.len() > KEPT {
            let (start, bytes) = heap.gone.remove(0);
            free(start, bytes, true);
        }
    }

    unsafe fn begin_host(&self, region: &Region) -> Result<NonNull<u8>> {
        self.weather.scheduler.point();
        match self.weather.happens(Mishap::NoDevice) {
            true => self.weather.tell(Code::DeviceFailed),
            false => Ok(region.start),
        }
    }
}
