//! Where weight units lie in the model file.

use crate::arena::{Arena, Sizer};
use crate::error::{Code, Error, Result};
use crate::limits::IO_ALIGN;
use crate::port::Storage;
use crate::units::{Extent, LayerIndex, WeightUnit};
use core::ops::Range;

/// Checks that a unit's extents are page-aligned and fill its buffer.
pub(super) fn validate(unit: &WeightUnit<'_>) -> Result<()> {
    let mut expected = 0u64;
    for extent in unit.extents {
        let sound = extent.buffer_offset == expected
            && extent.bytes > 0
            && extent.bytes.is_multiple_of(IO_ALIGN as u64)
            && extent.file_offset.is_multiple_of(IO_ALIGN as u64)
            && extent.file_offset.checked_add(extent.bytes).is_some();
        if !sound {
            let error = Error::new(Code::InvalidArgument, "extent of a weight unit");
            return Err(error.with(extent.file_offset));
        }
        expected = expected.saturating_add(extent.bytes);
    }
    match expected {
        0 => Err(Error::new(Code::InvalidArgument, "weight unit without extents")),
        _ => Ok(()),
    }
}

/// The extents of all units.
pub(super) struct WeightMap {
    extents: &'static [Extent],
    /// Unit `n` has the extents `first[n]..first[n + 1]`.
    first: &'static [usize],
    /// Length of the model file at open; reads up to there must succeed.
    file_bytes: u64,
}

impl WeightMap {
    pub(super) fn size(sizer: &mut Sizer, units: &[WeightUnit<'_>]) -> Result<()> {
        sizer.slice::<Extent>(units.iter().map(|unit| unit.extents.len()).sum())?;
        sizer.slice::<usize>(units.len() + 1)
    }

    pub(super) fn new(
        arena: &mut Arena,
        units: &[WeightUnit<'_>],
        file_bytes: u64,
    ) -> Result<Self> {
        let mut all = units.iter().flat_map(|unit| unit.extents.iter().copied());
        let count = units.iter().map(|unit| unit.extents.len()).sum();
        let extents = arena.slice(count, |_| all.next().unwrap_or_default())?;
        let mut sum = 0;
        let first = arena.slice(units.len() + 1, |unit| {
            let start = sum;
            sum += units.get(unit).map_or(0, |unit| unit.extents.len());
            start
        })?;
        for extent in extents.iter() {
            if extent.file_offset >= file_bytes {
                let error = Error::new(Code::InvalidArgument, "extent beyond the model file");
                return Err(error.with(extent.file_offset));
            }
        }
        Ok(WeightMap { extents, first, file_bytes })
    }

    fn extents(&self, layer: LayerIndex) -> &'static [Extent] {
        &self.extents[self.first[layer.index()]..self.first[layer.index() + 1]]
    }

    pub(super) fn bytes(&self, layer: LayerIndex) -> u64 {
        self.extents(layer).iter().map(|extent| extent.bytes).sum()
    }

    /// What tells this model file from another with units of the same sizes: where the units lie,
    /// a page from the middle of each, and the file's first page, where its names are.
    pub(super) fn digest(&self, model: &dyn Storage, page: &mut [u8]) -> Result<u64> {
        let mut digest = Digest::default();
        digest.add(&self.file_bytes.to_le_bytes());
        self.read_piece(model, 0, page)?;
        digest.add(page);
        for (index, extent) in self.extents.iter().enumerate() {
            digest.add(&extent.file_offset.to_le_bytes());
            digest.add(&extent.bytes.to_le_bytes());
            if self.first.contains(&index) {
                let middle = extent.bytes / 2 / IO_ALIGN as u64 * IO_ALIGN as u64;
                self.read_piece(model, extent.file_offset + middle, page)?;
                digest.add(page);
            }
        }
        Ok(digest.0)
    }

    /// Reads `range` of a unit's buffer from the model file. What the file's end cuts off is zeros.
    pub(super) fn read(
        &self,
        model: &dyn Storage,
        layer: LayerIndex,
        range: Range<usize>,
        into: &mut [u8],
    ) -> Result<()> {
        let range = range.start as u64..range.end as u64;
        for extent in self.extents(layer) {
            let start = range.start.max(extent.buffer_offset);
            let end = range.end.min(extent.buffer_offset + extent.bytes);
            if start >= end {
                continue;
            }
            let piece = into
                .get_mut(to_usize(start - range.start)?..to_usize(end - range.start)?)
                .ok_or(Error::new(Code::InvalidArgument, "part of a weight unit"))?;
            self.read_piece(model, extent.file_offset + (start - extent.buffer_offset), piece)?;
        }
        Ok(())
    }

    /// Only the file's own end may cut the last window short.
    fn read_piece(&self, model: &dyn Storage, offset: u64, piece: &mut [u8]) -> Result<()> {
        let read = model.read_at(offset, piece)?;
        let promised = self.file_bytes.saturating_sub(offset).min(piece.len() as u64);
        if (read as u64) < promised {
            return Err(Error::new(Code::ShortRead, "model file").with(offset + read as u64));
        }
        piece[read..].fill(0);
        Ok(())
    }
}

/// A running digest of words, which tells apart what nobody forged (FNV-1a, eight bytes at a time).
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xCBF2_9CE4_8422_2325)
    }
}

impl Digest {
    /// Whole words only.
    fn add(&mut self, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<8>();
        for word in words {
            let mixed = (self.0 ^ u64::from_le_bytes(*word)).wrapping_mul(0x0000_0100_0000_01B3);
            // Products carry upwards only.
            self.0 = mixed ^ mixed >> 32;
        }
    }
}

fn to_usize(value: u64) -> Result<usize> {
    usize::try_from(value).map_err(|_| Error::new(Code::LimitExceeded, "weight unit").with(value))
}
