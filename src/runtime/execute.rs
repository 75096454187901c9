//! One action at a time: transfers, packing, memory. Runs outside the lock.

use super::open::{Scratch, Shared};
use crate::arena::view;
use crate::codec::{ChunkLayout, Geometry, Work};
use crate::error::{Code, Error, Result};
use crate::limits::CHUNK_TOKENS;
use crate::port::Use;
use crate::state::{Action, Outcome, part_bytes};
use crate::swap::stack::Reserve;
use crate::units::{ChunkId, FlashRecord, LayerIndex, RamRecord, Unit};

/// Tries for a segment that another worker copies into at this moment, before yielding to it.
const LEASE_TRIES: u32 = 1000;

pub(super) const NO_SWAP_FILE: Error = Error::new(Code::BadState, "there is no swap file");
const MISALIGNED: Error = Error::new(Code::BadState, "shared buffer is misaligned");

impl Shared {
    pub(super) fn execute(&self, worker: usize, action: &Action) -> Outcome {
        let result = match *action {
            Action::Pack { id, tokens } => self.pack(worker, id, tokens).map(Outcome::Packed),
            Action::Write { id } => self.write(id).map(Outcome::Written),
            Action::Spill { id, record } => self.spill(worker, id, record).map(Outcome::Written),
            Action::Release { unit } => self.release(unit),
            Action::Allocate { unit, is_new } => self.allocate(unit, is_new),
            Action::ReadWeights { layer, part } => self.read_weights(layer, part),
            Action::ReadChunk { id, record, tokens } => self.read_chunk(worker, id, record, tokens),
            Action::Unpack { id, record, tokens } => self.unpack_record(worker, id, record, tokens),
        };
        result.unwrap_or_else(Outcome::Failed)
    }

    fn geometry(&self, id: ChunkId, tokens: u16) -> Geometry {
        Geometry { shape: self.shape, id, tokens, layout: ChunkLayout::TokenMajor }
    }

    /// What the codec works with on a chunk.
    fn work<'a>(&'a self, id: ChunkId, scratch: &'a mut [u8]) -> Work<'a> {
        Work { kernels: &self.kernels, steps: self.profile.layer(id.layer), scratch }
    }

    fn pack(&self, worker: usize, id: ChunkId, tokens: u16) -> Result<RamRecord> {
        self.freeze_steps()?;
        let mut scratch = self.scratch[worker].lock();
        let Scratch { chunk: packed, codec: scratch } = &mut *scratch;
        let bytes = {
            let chunk = self.buffers.lease(self.slot(Unit::Kv(id)))?;
            let values = view::numbers::<u16>(&chunk).ok_or(MISALIGNED)?;
            let mut work = self.work(id, scratch);
            self.codec.pack(&mut work, &self.geometry(id, tokens), values, packed)?
        };
        let record = self.reserve(worker, bytes)?;
        let copied =
            self.patiently(|| self.segments.write_record(&self.buffers, record, &packed[..bytes]));
        if let Err(error) = copied {
            self.forget(record);
            return Err(error);
        }
        Ok(record)
    }

    /// Room in the RAM swap, growing it by a segment where needed.
    fn reserve(&self, worker: usize, bytes: usize) -> Result<RamRecord> {
        let bytes = u32::try_from(bytes)
            .map_err(|_| Error::new(Code::LimitExceeded, "packed chunk").with(bytes))?;
        loop {
            let segment = match self.core.lock().stack.reserve(worker, bytes)? {
                Reserve::At(record) => return Ok(record),
                Reserve::NeedSegment(segment) => segment,
            };
            let allocated = self.segments.allocate(&self.buffers, segment);
            let mut core = self.core.lock();
            if let Err(error) = allocated {
                core.stack.segment_failed(segment)?;
                return Err(error);
            }
            core.stack.segment_ready(worker, segment)?;
        }
    }

    /// Frees a record that the table does not know.
    fn forget(&self, record: RamRecord) {
        let freed = self.core.lock().stack.free(record);
        match freed {
            Ok(segment) => self.release_segment(segment),
            Err(error) => unreachable!("a record just reserved: {error}"),
        }
    }

    /// Tries again while somebody else uses the same buffer. That never takes longer than one
    /// chunk's copy, packing or transfer.
    pub(super) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match crate::swap::record::retry_leased(LEASE_TRIES, &mut attempt) {
                Err(error) if error.code == Code::Leased => {
                    let seen = self.work.load();
                    let pause = crate::units::Nanos::new(50_000);
                    self.ports.park.wait(&self.work, seen, Some(pause));
                }
                done => return done,
            }
        }
    }

    fn write(&self, id: ChunkId) -> Result<FlashRecord> {
        let swap = self.swap.as_ref().ok_or(NO_SWAP_FILE)?;
        let chunk = self.buffers.lease(self.slot(Unit::Kv(id)))?;
        swap.write_raw(id, &chunk)
    }

    fn spill(&self, worker: usize, id: ChunkId, record: RamRecord) -> Result<FlashRecord> {
        let swap = self.swap.as_ref().ok_or(NO_SWAP_FILE)?;
        let mut scratch = self.scratch[worker].lock();
        let bytes = record.bytes as usize;
        {
            let packed = self.patiently(|| self.segments.read_record(&self.buffers, record))?;
            scratch.chunk[..bytes].copy_from_slice(&packed);
        }
        swap.write_packed(id, scratch.chunk, bytes)
    }

    fn release(&self, unit: Unit) -> Result<Outcome> {
        self.buffers.release(self.slot(unit)).map(|()| Outcome::Done)
    }

    fn allocate(&self, unit: Unit, is_new: bool) -> Result<Outcome> {
        let too_large = |_| Error::new(Code::LimitExceeded, "weight unit");
        let (usage, bytes, part) = match unit {
            Unit::Weights(layer) => {
                let bytes = self.weights.bytes(layer);
                let part = usize::try_from(part_bytes(bytes)).map_err(too_large)?;
                (Use::Weights, usize::try_from(bytes).map_err(too_large)?, part)
            }
            Unit::Kv(_) => {
                let bytes = self.shape.chunk_bytes();
                (Use::Kv, bytes, bytes)
            }
        };
        let slot = self.slot(unit);
        match is_new {
            true => self.buffers.allocate_zeroed(slot, usage, bytes)?,
            false => self.buffers.allocate(slot, usage, bytes, part)?,
        }
        Ok(Outcome::Done)
    }

    fn read_weights(&self, layer: LayerIndex, part: u32) -> Result<Outcome> {
        let mut part = self.buffers.part(self.slot(Unit::Weights(layer)), part)?;
        let range = part.range();
        self.weights.read(self.ports.model, layer, range, part.bytes())?;
        part.finish().map(|()| Outcome::Done)
    }

    fn read_chunk(
        &self,
        worker: usize,
        id: ChunkId,
        record: FlashRecord,
        tokens: u16,
    ) -> Result<Outcome> {
        let swap = self.swap.as_ref().ok_or(NO_SWAP_FILE)?;
        if record.packed {
            let mut scratch = self.scratch[worker].lock();
            let Scratch { chunk, codec } = &mut *scratch;
            let packed = swap.read_packed(id, chunk, record)?;
            return self.unpack(id, packed, tokens, codec);
        }
        let mut chunk = self.buffers.part(self.slot(Unit::Kv(id)), 0)?;
        swap.read_raw(id, chunk.bytes(), record)?;
        chunk.finish().map(|()| Outcome::Done)
    }

    fn unpack_record(
        &self,
        worker: usize,
        id: ChunkId,
        record: RamRecord,
        tokens: u16,
    ) -> Result<Outcome> {
        let mut scratch = self.scratch[worker].lock();
        let packed = self.patiently(|| self.segments.read_record(&self.buffers, record))?;
        self.unpack(id, &packed, tokens, scratch.codec)
    }

    fn unpack(
        &self,
        id: ChunkId,
        packed: &[u8],
        tokens: u16,
        scratch: &mut [u8],
    ) -> Result<Outcome> {
        let mut chunk = self.buffers.part(self.slot(Unit::Kv(id)), 0)?;
        let bytes = chunk.bytes();
        if tokens < CHUNK_TOKENS {
            // Codecs write the rows of the tokens that there are.
            bytes.fill(0);
        }
        let values = view::numbers_mut::<u16>(bytes).ok_or(MISALIGNED)?;
        let mut work = self.work(id, scratch);
        self.codec.unpack(&mut work, &self.geometry(id, tokens), packed, values)?;
        chunk.finish().map(|()| Outcome::Done)
    }
}
