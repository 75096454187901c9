//! What outlives the process: a checkpoint has every chunk copied to the swap file and written down
//! there; a fresh runtime recovers it, and restores it like anything else that was evicted.

use super::Runtime;
use super::config::Config;
use super::evict::remaining;
use super::execute::NO_SWAP_FILE;
use super::open::{Core, Shared};
use crate::arena::Arena;
use crate::codec::ChunkLayout;
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::lock::Lock;
use crate::state::{Event, SaveReport, SavedChunk, Stop};
use crate::swap::file::{Slots, SwapFile};
use crate::swap::manifest::{Fingerprint, Manifest, Stored};
use crate::units::{ByteCount, ChunkId, CodecId, Nanos, Tag, TokenCount};

/// What a checkpoint did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointReport {
    /// Bytes written to the swap file meanwhile.
    pub written: ByteCount,
    /// Tokens of the context, from the first on, that outlive the process from now on.
    pub durable: TokenCount,
    /// How long it took.
    pub elapsed: Nanos,
    /// Why it ended: `Reached` when all was written that there was; `Deadline`; or `Cancelled`, by
    /// an eviction, a pass or a cut of the context that came first.
    pub stop: Stop,
}

/// What was found of an earlier process's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Tokens of the context.
    pub tokens: TokenCount,
    /// The first of those that are known to be gone, as [`Runtime::lost`] says: truncate to it and
    /// compute the rest again. Restoration may find more.
    pub lost: Option<TokenCount>,
}

/// The head of the swap file, and what it must say to be this runtime's.
pub(super) struct Keeping {
    manifest: Manifest,
    codec: CodecId,
    slots: Slots,
    /// Digest of the model file, once somebody asked.
    model: Option<u64>,
}

impl Keeping {
    pub(super) fn new(arena: &mut Arena, config: &Config<'_>) -> Result<Self> {
        let slots = config.slots()?;
        let manifest = Manifest::new(arena, &slots, config.steps_bytes())?;
        Ok(Keeping { manifest, codec: config.options.codec, slots, model: None })
    }

    fn fingerprint(&mut self, shared: &Shared) -> Result<Fingerprint> {
        let model = match self.model {
            Some(model) => model,
            None => shared.model_digest()?,
        };
        self.model = Some(model);
        let layout = ChunkLayout::TokenMajor;
        Ok(Fingerprint { shape: shared.shape, layout, codec: self.codec, slots: self.slots, model })
    }
}

impl Runtime {
    /// Makes the context outlive the process: writes every chunk that has no good copy in the swap
    /// file, evicting nothing, then makes all of it durable under the caller's name for its tokens.
    /// Chunks that did not change since the last checkpoint cost nothing. Call it between passes: a
    /// pass that begins meanwhile cancels it, and one under way may find the context's last chunk
    /// in use, and be `Cancelled`.
    ///
    /// Ends soon after `deadline` (a duration from now). Then, if more of the context is on flash
    /// than was durable before, that much becomes so; else the last checkpoint stays as it was, as
    /// it does after an error. What was written counts for the next call either way.
    ///
    /// # Errors
    ///
    /// `BadState` without a swap file; `Corrupt` while a chunk is lost; `Leased` while compute
    /// writes to a chunk; those of the storage. After `SyncFailed` and `Poisoned` nothing in the
    /// file counts any more.
    pub fn checkpoint(&self, tag: Tag, deadline: Option<Nanos>) -> Result<CheckpointReport> {
        let shared = self.shared;
        let start = shared.ports.clock.now();
        let (swap, keeping) = shared.swap_and_keeping()?;
        // One caller at a time; others wait for their turn.
        let mut keeping = keeping.lock();
        let before = swap.stats().written_bytes;
        let own = keeping.fingerprint(shared)?;
        let manifest = &mut keeping.manifest;
        manifest.prepare(swap, &own)?;
        shared.event_on(self.when_at_rest(), Event::Save)?;
        let report = shared.finish_save(start, deadline, |core, tokens| {
            manifest.collect(&own.slots, tokens, |id| {
                let SavedChunk { record, tokens } = core.machine.saved_chunk(id)?;
                Some(Stored { record, tokens, side: swap.side(id).ok()? })
            });
        });
        if let Some(error) = report.error {
            return Err(error);
        }
        if report.to_seal {
            let steps = shared.profile.get();
            let sealed = manifest.seal(swap, &own, tag, report.tokens, steps);
            shared.event(Event::Sealed(sealed))?;
            sealed?;
        }
        Ok(CheckpointReport {
            written: ByteCount::new(swap.stats().written_bytes - before),
            durable: shared.core.lock().machine.durable(),
            elapsed: shared.ports.clock.now().since(start),
            stop: report.stop,
        })
    }

    /// Takes over the context of an earlier process that used the same swap file, opened with what
    /// it holds: the newest checkpoint with this tag. Its chunks are then on flash, and the next
    /// pass or [`Runtime::restore`] brings them back, with every byte checked; what turns out to be
    /// damaged is lost, as [`Runtime::lost`] says. Only before anything else is in the context.
    ///
    /// # Errors
    ///
    /// `BadMagic` where there is no checkpoint; `Mismatch` with the part that differs: model,
    /// layout, codec, steps, context length, tag; `Corrupt` when none is sound; `BadState` when
    /// there is a context, or no swap file; those of the storage. The context is then empty, and
    /// may be computed anew.
    pub fn recover(&self, tag: Tag) -> Result<Recovered> {
        let shared = self.shared;
        let (swap, keeping) = shared.swap_and_keeping()?;
        let mut keeping = keeping.lock();
        let own = keeping.fingerprint(shared)?;
        self.wait_idle();
        if self.chunks() > 0 {
            return Err(Error::new(Code::BadState, "recover: there is a context"));
        }
        let manifest = &mut keeping.manifest;
        let found = manifest.find(swap, &own, tag)?;
        if found.steps_id != 0 {
            let steps = manifest.steps(&own, &found);
            shared.profile.adopt(&shared.kernels, own.shape, found.steps_id, steps)?;
        }
        let saved = |id: ChunkId| {
            // Every record was looked at.
            let stored = manifest.stored(&own, &found, id).ok().flatten()?;
            Some(SavedChunk { record: stored.record, tokens: stored.tokens })
        };
        let mut core = shared.core.lock();
        let step = core.machine.recover(found.tokens, saved)?;
        shared.apply(&mut core, &step);
        manifest.adopt(swap, &own, &found)?;
        let lost = core.machine.lost().map(TokenCount::new);
        Ok(Recovered { tokens: found.tokens, lost })
    }
}

impl Shared {
    fn swap_and_keeping(&self) -> Result<(&SwapFile, &Lock<Keeping>)> {
        self.swap.as_ref().zip(self.keeping.as_ref()).ok_or(NO_SWAP_FILE)
    }

    fn model_digest(&self) -> Result<u64> {
        let mut scratch = self.scratch[self.caller()].lock();
        self.weights.digest(self.ports.model, &mut scratch.chunk[..IO_ALIGN])
    }

    /// Waits for the end of a save. What is to be sealed is collected before anything can change.
    fn finish_save(
        &self,
        start: Nanos,
        deadline: Option<Nanos>,
        mut collect: impl FnMut(&Core, TokenCount),
    ) -> SaveReport {
        let mut stopped = false;
        loop {
            let seen = self.work.load();
            let mut core = self.core.lock();
            if let Some(report) = core.machine.take_saved() {
                if report.to_seal {
                    collect(&core, report.tokens);
                }
                return report;
            }
            drop(core);
            let deadline = if stopped { None } else { deadline };
            let left = deadline.map(|deadline| remaining(start, deadline, self.ports.clock.now()));
            if left == Some(Nanos::new(0)) {
                stopped = true;
                // It may have ended since it was looked at; then there is a report.
                let _ = self.event(Event::StopSave(Stop::Deadline));
                continue;
            }
            self.pass_time(seen, left);
        }
    }
}
