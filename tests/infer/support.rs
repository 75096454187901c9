//! An all-resident memory, a file in memory and a team of threads, for tests of the transformer.

use mzcache::arena::{Arena, Sizer};
use mzcache::infer::cpu::{ComputeConfig, ComputePorts, Transformer};
use mzcache::infer::gguf::Gguf;
use mzcache::infer::{Memory, Model};
use mzcache::kernel::math::MathKernels;
use mzcache::limits::{CHUNK_TOKENS, IO_ALIGN};
use mzcache::port::buffers::{Buffers, Exclusive, Lease};
use mzcache::port::{Region, RowReader, SharedMemory, Solo, Team, Use};
use mzcache::units::{ChunkId, LayerIndex};
use mzcache::{Code, Error, Result};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Shared buffers from the allocator.
pub struct Heap;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(IO_ALIGN), IO_ALIGN).unwrap()
}

// SAFETY: each region is a fresh zeroed allocation of its own, freed only by `release`.
unsafe impl SharedMemory for Heap {
    fn allocate(&self, _usage: Use, bytes: usize) -> Result<Region> {
        let layout = layout(bytes);
        // SAFETY: the size is not zero (callers ask for at least one byte).
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Ok(Region { start, bytes: layout.size(), token: 0 })
    }

    unsafe fn release(&self, _usage: Use, region: Region) {
        // SAFETY: it came from `allocate` with this size (caller's promise).
        unsafe { dealloc(region.start.as_ptr(), layout(region.bytes)) }
    }
}

/// A file whose bytes are all here.
pub struct Bytes(pub Vec<u8>);

impl RowReader for Bytes {
    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap();
        match self.0.get(start..start + into.len()) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => return Err(Error::new(Code::ShortRead, "model file").with(offset)),
        }
        Ok(())
    }
}

/// A team of threads that live as long as one run.
pub struct Threads(pub usize);

impl Team for Threads {
    fn width(&self) -> usize {
        self.0
    }

    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for index in 0..self.0 {
                scope.spawn(move || work(index));
            }
        });
    }
}

/// Memory for an arena, leaked.
pub fn memory(sizer: &Sizer) -> &'static mut [MaybeUninit<u8>] {
    Box::leak(vec![MaybeUninit::new(0xA5u8); sizer.required().unwrap()].into_boxed_slice())
}

/// Every unit resident from the start.
pub struct Resident {
    buffers: Buffers,
    layers: u16,
    chunks: usize,
}

impl Resident {
    /// Reads all weights from `file` and makes room for `chunks` chunks of each layer.
    pub fn new(model: &Model, file: &[u8], chunks: usize) -> Self {
        let layers = model.shape.layers;
        let weights = usize::from(layers) + 1;
        let slots = weights + usize::from(layers) * chunks;
        let mut sizer = Sizer::new();
        Buffers::size(&mut sizer, slots).unwrap();
        let mut arena = Arena::new(memory(&sizer)).unwrap();
        let buffers = Buffers::new(&mut arena, slots, &Heap).unwrap();
        for (slot, unit) in model.units.iter().enumerate() {
            let bytes = unit.bytes() as usize;
            buffers.allocate(slot, Use::Weights, bytes, bytes).unwrap();
            let mut part = buffers.part(slot, 0).unwrap();
            for extent in unit.extents {
                let start = extent.file_offset as usize;
                let bytes = (extent.bytes as usize).min(file.len() - start);
                let to = extent.buffer_offset as usize;
                part.bytes()[to..to + bytes].copy_from_slice(&file[start..start + bytes]);
            }
            part.finish().unwrap();
            buffers.publish(slot).unwrap();
        }
        for slot in weights..slots {
            let bytes = model.shape.kv().chunk_bytes();
            buffers.allocate(slot, Use::Kv, bytes, bytes).unwrap();
            buffers.publish(slot).unwrap();
        }
        Resident { buffers, layers, chunks }
    }

    fn slot(&self, id: ChunkId) -> Result<usize> {
        let (layer, chunk) = (id.layer.index(), id.chunk.index());
        if chunk >= self.chunks {
            return Err(Error::new(Code::BadState, "no such chunk").with(chunk));
        }
        Ok(usize::from(self.layers) + 1 + layer * self.chunks + chunk)
    }

    /// The buffers, to take units away.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }
}

impl Memory for Resident {
    fn weights(&self, layer: LayerIndex) -> Result<Lease<'_>> {
        self.buffers.lease(layer.index())
    }

    fn wait_kv(&self, _layer: LayerIndex) -> Result<()> {
        Ok(())
    }

    fn kv(&self, id: ChunkId) -> Result<Lease<'_>> {
        self.buffers.lease(self.slot(id)?)
    }

    fn kv_mut(&self, id: ChunkId) -> Result<Exclusive<'_>> {
        self.buffers.lock(self.slot(id)?)
    }
}

/// A model with everything it needs.
pub struct Bench {
    pub file: Bytes,
    pub memory: Resident,
    pub transformer: Transformer,
}

impl Bench {
    pub fn open(path: &Path, context: usize, kernels: MathKernels, config: ComputeConfig) -> Self {
        let file = Bytes(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())));
        let gguf = Gguf::parse(&file.0).unwrap();
        let mut sizer = Sizer::new();
        Model::size(&gguf, &mut sizer).unwrap();
        let mut arena = Arena::new(memory(&sizer)).unwrap();
        let model = Model::open(&gguf, &mut arena).unwrap();
        assert_eq!(arena.seal(), sizer.used());
        let mut sizer = Sizer::new();
        Transformer::size(&model, &config, &mut sizer).unwrap();
        let mut arena = Arena::new(memory(&sizer)).unwrap();
        let transformer = Transformer::open(model, kernels, config, &mut arena).unwrap();
        assert_eq!(arena.seal(), sizer.used());
        let chunks = context.div_ceil(usize::from(CHUNK_TOKENS));
        let memory = Resident::new(&model, &file.0, chunks);
        Bench { file, memory, transformer }
    }

    /// A forward pass on the calling thread.
    pub fn forward(&mut self, tokens: &[u32], position: usize, rows: usize) -> Result<Vec<f32>> {
        self.forward_on(&Solo, tokens, position, rows)
    }

    /// A forward pass on a team.
    pub fn forward_on(
        &mut self,
        team: &dyn Team,
        tokens: &[u32],
        position: usize,
        rows: usize,
    ) -> Result<Vec<f32>> {
        let ports = ComputePorts { memory: &self.memory, rows: &self.file, team };
        let logits = self.transformer.forward(ports, tokens, position as u32, rows)?;
        Ok(logits.to_vec())
    }
}

/// A file under tests/fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A JSON fixture.
pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

/// A JSON array of token numbers.
pub fn tokens(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}
