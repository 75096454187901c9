//! Each layer's table of chunks on the device.
//!
//! Invariant: every entry that names no chunk of the present pass points nowhere, so that a kernel
//! that read it would fault instead of computing with freed memory. A table is written only when
//! its chunks have moved, and never while commands that read it are enqueued.

use super::Accelerator;
use crate::arena::{Arena, Sizer};
use crate::error::Result;
use crate::kernel::opencl::TableEntry;
use crate::limits::CHUNK_TOKENS;
use crate::port::DeviceRegion;
use crate::port::opencl::{Block, Queue};
use core::mem::ManuallyDrop;

const ENTRY_BYTES: usize = size_of::<TableEntry>();

/// No address and no offset of anything, and a multiple of 16.
const NOWHERE: u64 = 0x7fff_ffff_ffff_fff0;

pub(super) struct Tables {
    /// One a layer; freed by hand, since the arena drops nothing. Written through a queue of their
    /// own, so that a write does not wait for the layers before.
    blocks: &'static mut [ManuallyDrop<Option<Block>>],
    /// What the blocks hold: `[layer][chunk]`.
    written: &'static mut [u64],
    /// A row as it is about to be written.
    bytes: &'static mut [u8],
    columns: usize,
    transfer: Queue,
}

impl Tables {
    pub(super) fn size(sizer: &mut Sizer, layers: usize, columns: usize) -> Result<()> {
        sizer.slice::<ManuallyDrop<Option<Block>>>(layers)?;
        sizer.slice::<u64>(layers.saturating_mul(columns))?;
        sizer.bytes(columns.saturating_mul(ENTRY_BYTES), ENTRY_BYTES)
    }

    pub(super) fn new(
        arena: &mut Arena,
        accelerator: &Accelerator,
        layers: usize,
        columns: usize,
    ) -> Result<Tables> {
        let tables = Tables {
            blocks: arena.slice(layers, |_| ManuallyDrop::new(None))?,
            // Unlike anything, so that the first pass writes all.
            written: arena.slice(layers.saturating_mul(columns), |_| u64::MAX)?,
            bytes: arena.bytes(columns.saturating_mul(ENTRY_BYTES), ENTRY_BYTES)?,
            columns,
            transfer: accelerator.transfer.share()?,
        };
        let (context, mode) = (&accelerator.context, accelerator.mode);
        for block in tables.blocks.iter_mut() {
            **block = Some(Block::new(context, &tables.transfer, mode, tables.bytes.len())?);
        }
        Ok(tables)
    }

    /// Makes a layer's table hold these addresses or offsets and nothing else.
    pub(super) fn update(&mut self, layer: usize, entries: &[u64]) -> Result<DeviceRegion> {
        assert!(entries.len() <= self.columns);
        let Some(block) = self.blocks[layer].as_mut() else {
            unreachable!("made at open, dropped with the tables")
        };
        let row = &mut self.written[layer * self.columns..][..self.columns];
        let wanted = || entries.iter().copied().chain(core::iter::repeat(NOWHERE));
        if row.iter().zip(wanted()).all(|(written, wanted)| *written == wanted) {
            return Ok(block.region());
        }
        // Whatever becomes of the write, the row is not what it was.
        row.fill(u64::MAX);
        for (to, address) in self.bytes.chunks_exact_mut(ENTRY_BYTES).zip(wanted()) {
            let entry = match address {
                NOWHERE => TableEntry { address, kind: 0, tokens: 0 },
                _ => TableEntry::f16(address, CHUNK_TOKENS.into()),
            };
            to.copy_from_slice(&entry.to_bytes());
        }
        block.write(0, self.bytes)?;
        // The kernels run on another queue.
        self.transfer.finish()?;
        for (written, wanted) in row.iter_mut().zip(wanted()) {
            *written = wanted;
        }
        Ok(block.region())
    }

    /// The addresses in a layer's table, as the device has them.
    pub(super) fn read(&mut self, layer: usize, mut see: impl FnMut(usize, u64)) -> Result<()> {
        let Some(block) = self.blocks[layer].as_ref() else { return Ok(()) };
        block.read(0, self.bytes)?;
        for (column, bytes) in self.bytes.chunks_exact(ENTRY_BYTES).enumerate() {
            if let Some(address) = bytes.first_chunk() {
                see(column, u64::from_ne_bytes(*address));
            }
        }
        Ok(())
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        for block in self.blocks.iter_mut() {
            drop(block.take());
        }
    }
}
