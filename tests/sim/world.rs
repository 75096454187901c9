//! A small manager whose every byte is known, on whatever ports it is given, and a stand-in for
//! compute. Each thing done to it is checked: what it answers, what it holds afterwards, what
//! compute then finds in memory.

use crate::reference::Reference;
use mzcache::Result;
use mzcache::arena::view;
use mzcache::codec::{ChunkLayout, Geometry, codec};
use mzcache::kernel::CpuFlags;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::policy::{self, Order, Profile, Scheme, Stage, Times};
use mzcache::port::{Ports, Use};
use mzcache::runtime::{Config, Options, Report, Runtime, Worker, required_bytes};
use mzcache::state::{EvictPolicy, Paths, Roles, Stop, Tally};
use mzcache::swap::file::Slots;
use mzcache::units::{
    ByteCount, ChunkId, ChunkIndex, CodecId, Extent, Kind, KvShape, LayerIndex, Nanos, TokenCount,
    WeightUnit,
};
use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit};

pub const PAGE: u64 = 4096;
/// The model file's last window passes its end by that much.
const CUT_BYTES: u64 = 1000;

/// What a world is made from.
#[derive(Clone, Debug)]
pub struct Setup {
    pub shape: KvShape,
    /// Pages of each weight unit.
    pub unit_pages: Vec<u64>,
    pub tokens_max: u32,
    pub codec: CodecId,
    pub evict: EvictPolicy,
    pub workers: Vec<Worker>,
    pub swap_file: bool,
    pub segment_bytes: u32,
    pub profile: Profile,
    pub cpu: CpuFlags,
    /// K and V hold infinities and what is no number, too.
    pub is_wild: bool,
    /// Print every action, for whoever looks into a failure.
    pub tells: bool,
}

impl Setup {
    pub fn model_bytes(&self) -> u64 {
        self.unit_pages.iter().sum::<u64>() * PAGE - CUT_BYTES
    }

    fn geometry(&self) -> Geometry {
        let (shape, id) = (self.shape, ChunkId::default());
        Geometry { shape, id, tokens: CHUNK_TOKENS, layout: ChunkLayout::TokenMajor }
    }

    /// Bytes of a chunk in the swap file.
    fn slot_bytes(&self) -> u64 {
        let packed = codec(self.codec).packed_bytes_max(&self.geometry());
        (self.shape.chunk_bytes().max(packed) as u64).next_multiple_of(PAGE)
    }

    /// Shape of the swap file.
    pub fn slots(&self) -> Slots {
        let chunks = u16::try_from(self.tokens_max / 256).unwrap();
        let slot_bytes = u32::try_from(self.slot_bytes()).unwrap();
        Slots { layers: self.shape.layers, chunks, slot_bytes }
    }

    /// The second half of a unit first, where it has two pages or more.
    fn extents(&self) -> Vec<Vec<Extent>> {
        let mut start = 0;
        let extents = self.unit_pages.iter().map(|pages| {
            let (first, bytes) = (start, pages * PAGE);
            start += bytes;
            let half = pages / 2 * PAGE;
            let rest = bytes - half;
            let mut extents =
                vec![Extent { file_offset: first + half, bytes: rest, buffer_offset: 0 }];
            if half > 0 {
                extents.push(Extent { file_offset: first, bytes: half, buffer_offset: rest });
            }
            extents
        });
        extents.collect()
    }
}

/// What the model file holds from an offset on.
pub fn model_fill(offset: u64, into: &mut [u8]) {
    let mut at = offset;
    for bytes in into.chunks_mut(8) {
        let word = (at / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
        at += 8;
    }
}

/// Something that lives until its owner says so, for what must be `'static`.
pub struct Lent<T: ?Sized>(*mut T);

impl<T: ?Sized> Lent<T> {
    pub fn new(value: Box<T>) -> Self {
        Lent(Box::into_raw(value))
    }

    pub fn get(&self) -> &'static T {
        // SAFETY: it came from a box that only `end` takes back.
        unsafe { &*self.0 }
    }

    /// Gives it back.
    ///
    /// # Safety
    ///
    /// Nobody uses what `get` returned any more.
    pub unsafe fn end(self) {
        // SAFETY: it came from a box, once; the caller says that nobody else has it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Bytes that the memory port says are out, by use.
pub type Live<'a> = &'a dyn Fn(Use) -> u64;

pub struct World {
    pub runtime: ManuallyDrop<Runtime>,
    pub setup: Setup,
    pub reference: Lent<Reference>,
    memory: Lent<[MaybeUninit<u8>]>,
    extents: Vec<Vec<Extent>>,
    /// Tokens that were committed.
    pub tokens: u32,
    /// There is a swap file, and it has not failed to sync.
    pub flash_works: bool,
    /// How often the order and the balance that an eviction left were looked at.
    pub looks: Cell<[u64; 2]>,
}

pub fn chunk_id(layer: u16, token: u32) -> ChunkId {
    let chunk = ChunkIndex::new(u16::try_from(token / 256).unwrap());
    ChunkId { layer: LayerIndex::new(layer), chunk }
}

/// The F16 value that the model writes there: of many sizes, never the same in two passes, finite
/// unless it is a wild one.
fn value(layer: u16, place: usize, pass: u32, is_wild: bool) -> u16 {
    let mixed = (u64::from(layer) << 48 ^ u64::from(pass) << 24 ^ place as u64)
        .wrapping_mul(0xD129_0D3F_1B2C_4E05);
    let bits = (mixed >> 48) as u16;
    if is_wild && mixed >> 32 & 63 == 0 {
        return bits;
    }
    // Exponents 10 to 17 of 31.
    (bits & 0x83FF) | (10 + (bits >> 10 & 7)) << 10
}

impl World {
    /// Opens a runtime on these ports. When that fails all memory is given back.
    pub fn open(setup: &Setup, ports: Ports) -> Result<World> {
        let extents = setup.extents();
        let units: Vec<_> = extents.iter().map(|extents| WeightUnit { extents }).collect();
        let reference = Lent::new(Box::new(Reference::new(setup)));
        let config = Config {
            shape: setup.shape,
            weights: &units,
            options: Options {
                context_tokens_max: TokenCount::new(setup.tokens_max),
                codec: setup.codec,
                profile: setup.profile,
                evict: setup.evict,
                workers: &setup.workers,
                swap_file: setup.swap_file,
                segment_bytes: setup.segment_bytes,
                cpu: setup.cpu,
                trace: Some(reference.get()),
                ..Options::default()
            },
        };
        // Exactly what the size query says, so that using more shows.
        let bytes = required_bytes(&config)?;
        let memory = Lent::new(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
        // SAFETY: the runtime gets it for itself; `end` and the arm below take it back after it.
        let opened = Runtime::open(&config, unsafe { &mut *memory.0 }, ports);
        match opened {
            Ok(runtime) => {
                let (runtime, setup) = (ManuallyDrop::new(runtime), setup.clone());
                let flash_works = setup.swap_file;
                let (tokens, looks) = (0, Cell::default());
                Ok(World { runtime, setup, reference, memory, extents, tokens, flash_works, looks })
            }
            Err(error) => {
                // SAFETY: a runtime that did not open has ended its threads and keeps nothing.
                unsafe {
                    memory.end();
                    reference.end();
                }
                Err(error)
            }
        }
    }

    /// Closes the runtime in order.
    ///
    /// # Safety
    ///
    /// No evictor of it is left.
    pub unsafe fn close(mut self) {
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.runtime) };
        // SAFETY: the runtime is gone, its threads have been joined.
        unsafe { self.abandon() };
    }

    /// Forgets the runtime, as the end of a process does.
    ///
    /// # Safety
    ///
    /// No thread is inside of it, and none will be.
    pub unsafe fn abandon(self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.memory.end();
            self.reference.end();
        }
    }

    pub fn layers(&self) -> u16 {
        self.setup.shape.layers
    }

    fn units(&self) -> u16 {
        u16::try_from(self.setup.unit_pages.len()).unwrap()
    }

    /// More actions than any one call may take: each unit leaves and comes back over every path
    /// that it has, and as often again because something failed.
    pub fn actions_max(&self) -> u64 {
        let chunks = u64::from(self.layers()) * u64::from(self.setup.tokens_max / 256 + 1);
        let parts: u64 = self.setup.unit_pages.iter().map(|pages| pages / 1024 + 1).sum();
        2 * (6 * chunks + 3 * u64::from(self.units()) + parts)
    }

    /// One pass of `tokens` more: waits at every gate, looks at weights and at K and V, writes the
    /// new tokens, commits.
    pub fn pass(&mut self, tokens: u32) -> Result<()> {
        let end = self.tokens + tokens;
        self.runtime.begin_pass(TokenCount::new(end))?;
        self.compute(end)
    }

    /// The part of a pass behind its beginning.
    pub fn compute(&mut self, end: u32) -> Result<()> {
        let pass = self.reference.get().begin_pass();
        for layer in 0..self.units() {
            self.check_weights(layer)?;
            if layer >= self.layers() {
                continue;
            }
            self.runtime.wait(LayerIndex::new(layer), Kind::Kv)?;
            for start in (0..self.tokens).step_by(256) {
                self.check_chunk(layer, start)?;
            }
            for start in (self.tokens / 256 * 256..end).step_by(256) {
                self.write(layer, start, end, pass)?;
            }
        }
        self.commit(end, pass)?;
        assert_eq!(self.runtime.tokens().get(), end);
        Ok(())
    }

    fn commit(&mut self, end: u32, pass: u32) -> Result<()> {
        let first = if end > self.tokens { self.tokens / 256 * 256 } else { end };
        let in_layer = |layer| {
            let starts = (first..end).step_by(256);
            let tokens = move |start: u32| u16::try_from((end - start).min(256)).unwrap();
            starts.map(move |start| (chunk_id(layer, start), tokens(start)))
        };
        let chunks: Vec<_> = (0..self.layers()).flat_map(in_layer).collect();
        let is_intact = self.reference.get().begin_commit(&chunks, pass);
        let result = self.runtime.commit(TokenCount::new(end));
        assert!(is_intact || result.is_err(), "committed, but what was written is gone");
        self.reference.get().end_commit(&chunks, result.is_ok());
        result?;
        self.tokens = end;
        Ok(())
    }

    /// Writes the tokens from the context's end to `end` that fall into the chunk at `start`.
    fn write(&self, layer: u16, start: u32, end: u32, pass: u32) -> Result<()> {
        let id = chunk_id(layer, start);
        let mut chunk = self.runtime.kv_mut(id)?;
        let values = view::numbers_mut::<u16>(&mut chunk).unwrap();
        let rows = self.tokens.max(start) - start..end.min(start + 256) - start;
        let dim = usize::from(self.setup.shape.head_dim);
        for head in 0..2 * usize::from(self.setup.shape.kv_heads) {
            let from = (head * 256 + rows.start as usize) * dim;
            let to = (head * 256 + rows.end as usize) * dim;
            for (at, place) in values[from..to].iter_mut().enumerate() {
                *place = value(layer, from + at, pass, self.setup.is_wild);
            }
        }
        self.reference.get().wrote(id, values, pass);
        Ok(())
    }

    fn check_chunk(&self, layer: u16, start: u32) -> Result<()> {
        let id = chunk_id(layer, start);
        let chunk = self.runtime.kv(id)?;
        let tokens = u16::try_from((self.tokens - start).min(256)).unwrap();
        let values = view::numbers::<u16>(&chunk).unwrap();
        self.reference.get().set_steps(self.runtime.steps());
        self.reference.get().check(id, values, tokens);
        Ok(())
    }

    fn check_weights(&self, layer: u16) -> Result<()> {
        let weights = self.runtime.weights(LayerIndex::new(layer))?;
        let mut expected = vec![];
        for extent in &self.extents[usize::from(layer)] {
            expected.resize(usize::try_from(extent.bytes).unwrap(), 0);
            model_fill(extent.file_offset, &mut expected);
            let in_file = self.setup.model_bytes().saturating_sub(extent.file_offset);
            let in_file = usize::try_from(in_file.min(extent.bytes)).unwrap();
            let start = usize::try_from(extent.buffer_offset).unwrap();
            assert!(weights[start..][..in_file] == expected[..in_file], "weights of {layer}");
        }
        Ok(())
    }

    /// Brings everything back and looks at all of it.
    pub fn restore(&self) -> Result<()> {
        self.runtime.restore()?;
        self.check_all()
    }

    /// Looks at everything, which must be in memory.
    pub fn check_all(&self) -> Result<()> {
        for layer in 0..self.units() {
            self.check_weights(layer)?;
            for start in (0..self.tokens).step_by(256).filter(|_| layer < self.layers()) {
                self.check_chunk(layer, start)?;
            }
        }
        Ok(())
    }

    /// Evicts while nobody else does anything, and checks the report.
    pub fn evict(
        &self,
        policy: EvictPolicy,
        bytes: u64,
        deadline: Option<Nanos>,
    ) -> Result<Report> {
        let before = self.runtime.stats().tally;
        let was_prefix = self.is_prefix();
        let report = self.runtime.evict_by(policy, ByteCount::new(bytes), deadline)?;
        let after = self.runtime.stats().tally;
        let booked = report.booked;
        let freed = before.total_bytes().saturating_sub(after.total_bytes());
        assert_eq!(booked.freed.get(), freed, "{report:?}");
        assert_eq!(booked.asked.get(), bytes);
        assert_eq!(booked.stop == Stop::Reached, freed >= bytes, "{report:?}");
        assert!(deadline.is_some() || booked.stop != Stop::Deadline, "{report:?}");
        if booked.stop == Stop::Exhausted {
            assert_eq!(after.weights_left, 0, "weights could have been dropped: {report:?}");
            let open = policy.paths.flash && self.flash_works && booked.error.is_none();
            assert!(!open || after.kv_left + after.packed_idle == 0, "{report:?} {after:?}");
        }
        if booked.leased == 0 && booked.error.is_none() {
            let stays = was_prefix && policy.order == Order::BackwardOut;
            assert!(!stays || self.is_prefix(), "{:?}", self.reference.get().residency());
            self.look_at(0, stays);
            if before.missing == 0 && policy.paths == Paths::BOTH {
                self.check_balance(policy.scheme, booked.stage, &after);
            }
        }
        Ok(report)
    }

    /// Whether of each kind of unit the front is in memory, and nothing behind it.
    fn is_prefix(&self) -> bool {
        let (chunks, weights) = self.reference.get().residency();
        let columns = self.runtime.chunks();
        let mut all =
            (0..self.layers()).flat_map(|layer| (0..columns).map(move |chunk| (layer, chunk)));
        chunks.iter().all(|chunk| all.next() == Some(*chunk))
            && (0..).zip(&weights).all(|(at, layer)| *layer == at)
    }

    /// After everything was in memory both ways back take equally long, to within one unit, for as
    /// long as there are units for both.
    fn check_balance(&self, scheme: Scheme, stage: Stage, tally: &Tally) {
        let times = self.times();
        let (Some(unpack), Some(read)) = (times.unpack_chunk, times.read_chunk) else { return };
        let is_balanced = matches!(stage, Stage::KvOnly | Stage::KvAndW);
        if scheme != Scheme::Hybrid || !is_balanced || !self.flash_works || tally.lost > 0 {
            return;
        }
        self.look_at(1, true);
        let ram = u64::from(tally.on_ram) * unpack.get();
        let flash = u64::from(tally.on_flash) * read.get() + tally.weights_out.get();
        let weights = self.setup.unit_pages.iter().max().unwrap() * PAGE;
        let weights = times.read_weights(ByteCount::new(weights)).get();
        let one = unpack.get().max(read.get()).max(weights);
        assert!(ram.abs_diff(flash) <= one, "{ram} and {flash} differ by more than {one}");
    }

    fn look_at(&self, what: usize, looks: bool) {
        let mut all = self.looks.get();
        all[what] += u64::from(looks);
        self.looks.set(all);
    }

    fn times(&self) -> Times {
        let setup = &self.setup;
        let unpackers = setup.workers.iter().filter(|w| w.all().contains(Roles::UNPACK)).count();
        let chunk_bytes = ByteCount::new(setup.shape.chunk_bytes() as u64);
        let packed = codec(setup.codec).packed_bytes_usual(&setup.geometry());
        let setup = policy::Setup {
            codec: setup.codec,
            chunk_bytes,
            packed_bytes: ByteCount::new(packed as u64),
            stored_bytes: chunk_bytes,
            unpackers: u16::try_from(unpackers).unwrap(),
            ram_is_open: true,
            flash_is_open: setup.swap_file,
        };
        Times::new(&self.setup.profile, &setup).unwrap()
    }

    /// Asks for everything while compute has a weight unit and a chunk, which must stay as is.
    pub fn hold_and_evict(&self, layer: u16, policy: EvictPolicy) -> Result<()> {
        self.runtime.begin_pass(self.runtime.tokens())?;
        let layer = LayerIndex::new(layer % self.layers());
        let weights = self.runtime.weights(layer)?;
        self.runtime.wait(layer, Kind::Kv)?;
        let chunk = match self.tokens {
            0 => None,
            _ => Some(self.runtime.kv(chunk_id(layer.get(), self.tokens - 1))?),
        };
        self.runtime.finish_restore()?;
        let before = (weights.to_vec(), chunk.as_ref().map(|chunk| chunk.to_vec()));
        let report = self.evict(policy, u64::MAX, None)?;
        assert!(report.booked.leased >= 1, "{report:?}");
        assert!(*weights == *before.0, "weights changed while they were leased");
        let after = chunk.as_ref().map(|chunk| chunk.to_vec());
        assert!(after == before.1, "a chunk changed while it was leased");
        Ok(())
    }

    pub fn truncate(&mut self, tokens: u32) -> Result<()> {
        self.runtime.truncate(TokenCount::new(tokens))?;
        self.tokens = tokens;
        let columns = u16::try_from(tokens.div_ceil(256)).unwrap();
        assert_eq!(self.runtime.chunks(), columns);
        self.reference.get().truncated(columns);
        Ok(())
    }

    /// What must hold whenever nothing is under way: the books agree with each other, with the
    /// reference and with what the memory port gave out.
    pub fn check_books(&self, live: Live<'_>) {
        self.runtime.check().unwrap();
        let stats = self.runtime.stats();
        let tally = stats.tally;
        assert_eq!((tally.busy, tally.prepared, tally.pending_bytes), (0, 0, 0), "{tally:?}");
        assert_eq!(stats.tokens.get(), self.tokens);
        let segments = u64::from(stats.ram.segments) * u64::from(self.setup.segment_bytes);
        assert_eq!(live(Use::Weights), tally.weight_bytes, "weights: {tally:?}");
        assert_eq!(live(Use::Kv), tally.kv_bytes, "chunks: {tally:?}");
        assert_eq!(live(Use::Swap), segments, "segments: {:?}", stats.ram);
        assert_eq!(stats.allocated_bytes, tally.weight_bytes + tally.kv_bytes + segments);
        assert_eq!(stats.ram.live_bytes, tally.ram_bytes);
        let (chunks, weights) = self.reference.get().residency();
        let chunk_bytes = self.setup.shape.chunk_bytes() as u64;
        assert_eq!(chunks.len() as u64 * chunk_bytes, tally.kv_bytes);
        let bytes = |layer: &u16| self.setup.unit_pages[usize::from(*layer)] * PAGE;
        assert_eq!(weights.iter().map(bytes).sum::<u64>(), tally.weight_bytes);
    }
}

/// What must not be left where a runtime was closed.
pub fn check_closed(live: Live<'_>) {
    for usage in [Use::Weights, Use::Kv, Use::Swap] {
        assert_eq!(live(usage), 0, "{usage:?} is never given back");
    }
}
