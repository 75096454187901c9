//! Reading and writing of the head: which checkpoint is meant, which superblock comes next.

use super::superblock::{Fingerprint, GENERATION_MAX, Superblock};
use super::table::{self, RECORD_BYTES, Stored};
use super::{SUPERBLOCK_BYTES, superblock_at, table_at};
use crate::arena::{Arena, Sizer};
use crate::codec::Steps;
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::swap::file::{Slots, SwapFile};
use crate::units::{ChunkId, Tag, TokenCount};

/// The head of one swap file. Whoever has it is the only one who reads or writes that.
pub struct Manifest {
    page: &'static mut [u8],
    table: &'static mut [u8],
    /// The generation that comes next; 0 before the file was looked at.
    next: u64,
}

/// Memory for the largest table.
fn table_bytes(slots: &Slots, steps_bytes: usize) -> usize {
    (slots.places() * RECORD_BYTES + steps_bytes).next_multiple_of(IO_ALIGN)
}

impl Manifest {
    /// Adds what [`Manifest::new`] places, for step profiles of that size.
    pub fn size(sizer: &mut Sizer, slots: &Slots, steps_bytes: usize) -> Result<()> {
        slots.check()?;
        sizer.bytes(SUPERBLOCK_BYTES, IO_ALIGN)?;
        sizer.bytes(table_bytes(slots, steps_bytes), IO_ALIGN)
    }

    /// Reads nothing yet.
    pub fn new(arena: &mut Arena, slots: &Slots, steps_bytes: usize) -> Result<Self> {
        slots.check()?;
        let page = arena.bytes(SUPERBLOCK_BYTES, IO_ALIGN)?;
        let table = arena.bytes(table_bytes(slots, steps_bytes), IO_ALIGN)?;
        Ok(Manifest { page, table, next: 0 })
    }

    fn page(&mut self) -> Result<&mut [u8; SUPERBLOCK_BYTES]> {
        self.page.first_chunk_mut().ok_or(Error::new(Code::BadState, "manifest page"))
    }

    /// A file that was not recovered from is looked at before the first checkpoint goes there: the
    /// next one must outnumber what is sound, and what is not must never count again.
    pub fn prepare(&mut self, file: &SwapFile, own: &Fingerprint) -> Result<()> {
        if self.next != 0 {
            return Ok(());
        }
        let mut newest = 0;
        let mut is_blank = true;
        for place in 0..2 {
            match self.look(file, own, place) {
                Ok(superblock) => newest = newest.max(superblock.generation),
                Err(error) if !is_about_content(error.code) => return Err(error),
                Err(_) => is_blank &= self.page.iter().all(|byte| *byte == 0),
            }
        }
        if newest == 0 && !is_blank {
            self.page.fill(0);
            for place in 0..2 {
                file.write_head(superblock_at(place), self.page)?;
            }
            file.sync()?;
        }
        self.next = newest + 1;
        Ok(())
    }

    fn look(&mut self, file: &SwapFile, own: &Fingerprint, place: u64) -> Result<Superblock> {
        file.read_head(superblock_at(place), self.page)?;
        Superblock::parse(own, file.checksum(), self.page()?)
    }

    /// Notes the records of a context of `tokens` tokens, to be sealed next.
    pub fn collect(
        &mut self,
        slots: &Slots,
        tokens: TokenCount,
        mut stored: impl FnMut(ChunkId) -> Option<Stored>,
    ) {
        self.table.fill(0);
        let count = tokens.chunks() as usize * usize::from(slots.layers);
        let (records, _) = self.table.as_chunks_mut::<RECORD_BYTES>();
        for (index, record) in records.iter_mut().enumerate().take(count) {
            let id = table::id_at(index, slots.layers);
            table::write(record, id, stored(id));
        }
    }

    /// Makes the records collected, and the slots that they name, what a later process finds.
    /// Nothing is written to any slot between `collect` and the end of this. After an error it is
    /// what it was before; see the module for a superblock that may have arrived all the same.
    pub fn seal(
        &mut self,
        file: &SwapFile,
        own: &Fingerprint,
        tag: Tag,
        tokens: TokenCount,
        steps: Option<Steps<'_>>,
    ) -> Result<()> {
        let steps_id = steps.as_ref().map_or(0, Steps::id);
        let generation = self.next;
        if generation > GENERATION_MAX {
            return Err(Error::new(Code::LimitExceeded, "checkpoint generation"));
        }
        let mut superblock = Superblock { generation, tag, tokens, steps_id, table_crc: 0 };
        let bytes = superblock.table_bytes(own);
        let records = superblock.records(&own.slots) * RECORD_BYTES;
        let table = self.table.get_mut(..bytes).ok_or(TABLE)?;
        if let Some(steps) = steps {
            steps.write(table.get_mut(records..).ok_or(TABLE)?)?;
        }
        superblock.table_crc = file.checksum().call(0, table);
        if bytes > 0 {
            file.write_head(table_at(&own.slots, generation), table)?;
        }
        file.sync()?;
        superblock.write(own, file.checksum(), self.page()?);
        file.write_head(superblock_at(generation), self.page)?;
        file.sync()?;
        self.next = generation + 1;
        self.keep(file, own, &superblock)
    }

    /// Has the file keep the slots that a checkpoint names, and no others.
    fn keep(&self, file: &SwapFile, own: &Fingerprint, superblock: &Superblock) -> Result<()> {
        for index in 0..own.slots.places() {
            let id = table::id_at(index, own.slots.layers);
            let stored = self.stored(own, superblock, id)?;
            file.keep(id, stored.map(|stored| stored.side))?;
        }
        Ok(())
    }

    /// Finds the newest sound checkpoint with that tag and reads its table. What this answers is
    /// sound in itself; whether slots hold what it says is for those who read them to find out.
    ///
    /// # Errors
    ///
    /// Those of [`Superblock::parse`], [`Code::Mismatch`] for another tag, [`Code::Corrupt`] for a
    /// table: of the newest checkpoint there is. Those of the storage.
    pub fn find(&mut self, file: &SwapFile, own: &Fingerprint, tag: Tag) -> Result<Superblock> {
        let mut found = [None; 2];
        let mut refusal = Error::new(Code::BadMagic, "checkpoint");
        for (place, found) in (0..2).zip(&mut found) {
            match self.look(file, own, place) {
                Ok(superblock) => *found = Some(superblock),
                Err(error) if !is_about_content(error.code) => return Err(error),
                Err(error) if error.code != Code::BadMagic => refusal = error,
                Err(_) => {}
            }
        }
        let generation = |found: &Option<Superblock>| found.map_or(0, |found| found.generation);
        found.sort_unstable_by_key(|found| core::cmp::Reverse(generation(found)));
        let newest = generation(&found[0]);
        for (index, superblock) in found.into_iter().flatten().enumerate() {
            match self.read_table(file, own, &superblock, tag) {
                Ok(()) => {
                    // The next one must outnumber both, and spare the one found.
                    let is_other_place = newest % 2 != superblock.generation % 2;
                    self.next = newest + 1 + u64::from(is_other_place);
                    return Ok(superblock);
                }
                Err(error) if !is_about_content(error.code) => return Err(error),
                Err(error) if index == 0 => refusal = error,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    fn read_table(
        &mut self,
        file: &SwapFile,
        own: &Fingerprint,
        superblock: &Superblock,
        tag: Tag,
    ) -> Result<()> {
        if superblock.tag != tag {
            return Err(Error::new(Code::Mismatch, "checkpoint tag"));
        }
        let bytes = superblock.table_bytes(own);
        // A profile that this codec would not use has no room here.
        let table = self.table.get_mut(..bytes).ok_or(STEPS)?;
        if bytes > 0 {
            file.read_head(table_at(&own.slots, superblock.generation), table)?;
        }
        if file.checksum().call(0, table) != superblock.table_crc {
            let error = Error::new(Code::Corrupt, "checkpoint table");
            return Err(error.with(superblock.generation));
        }
        (0..superblock.records(&own.slots)).try_for_each(|index| {
            let id = table::id_at(index, own.slots.layers);
            self.stored(own, superblock, id).map(drop)
        })
    }

    /// What the checkpoint last found or sealed says of a chunk.
    pub fn stored(
        &self,
        own: &Fingerprint,
        superblock: &Superblock,
        id: ChunkId,
    ) -> Result<Option<Stored>> {
        let index = id.chunk.index() * usize::from(own.slots.layers) + id.layer.index();
        let (records, _) = self.table.as_chunks::<RECORD_BYTES>();
        match records.get(index).filter(|_| index < superblock.records(&own.slots)) {
            Some(record) => table::parse(own, record, id),
            None => Ok(None),
        }
    }

    /// The step profile of the checkpoint last found, as [`Steps::write`] wrote it.
    pub fn steps(&self, own: &Fingerprint, superblock: &Superblock) -> &[u8] {
        let start = superblock.records(&own.slots) * RECORD_BYTES;
        let steps = start..start + superblock.steps_bytes(&own.shape);
        self.table.get(steps).unwrap_or_default()
    }

    /// Takes a checkpoint's slots over: reads of chunks go there from now on, and writes do not.
    pub fn adopt(&self, file: &SwapFile, own: &Fingerprint, superblock: &Superblock) -> Result<()> {
        for index in 0..superblock.records(&own.slots) {
            let id = table::id_at(index, own.slots.layers);
            if let Some(stored) = self.stored(own, superblock, id)? {
                file.set_side(id, stored.side)?;
            }
        }
        self.keep(file, own, superblock)
    }
}

/// Whether an error says what the bytes are, and not that they could not be had.
fn is_about_content(code: Code) -> bool {
    matches!(code, Code::BadMagic | Code::Corrupt | Code::Unsupported | Code::Mismatch)
}

const TABLE: Error = Error::new(Code::LimitExceeded, "checkpoint table");
const STEPS: Error = Error::new(Code::Mismatch, "checkpoint steps");
