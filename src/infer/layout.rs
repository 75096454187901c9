//! Which pieces of the file make up a weight unit, and where a tensor then lies in its buffer.
//!
//! Invariant: extents are page-aligned, in file order, disjoint, and cover every tensor of the
//! unit. Nothing of the file is converted or moved relative to its neighbours.

use super::gguf::TensorInfo;
use crate::error::{Code, Error, Result};
use crate::limits::{EXTENTS_PER_UNIT_MAX, IO_ALIGN};
use crate::units::{Extent, align_up};

/// Reading a gap of this size costs less than a second request.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// The extents of one unit.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    extents: [Extent; EXTENTS_PER_UNIT_MAX],
    count: usize,
}

impl Layout {
    /// Covers the tensors, which may come in any order.
    pub fn new<'a>(tensors: impl Iterator<Item = TensorInfo<'a>> + Clone) -> Result<Self> {
        let mut layout = Layout { extents: [Extent::default(); EXTENTS_PER_UNIT_MAX], count: 0 };
        let mut covered = None;
        // Selection in order of (offset, end): units have few tensors, and this needs no memory.
        while let Some(next) =
            tensors.clone().map(|t| range(&t)).filter(|r| Some(*r) > covered).min()
        {
            layout.cover(next)?;
            covered = Some(next);
        }
        Ok(layout)
    }

    fn cover(&mut self, (start, end): (u64, u64)) -> Result<()> {
        let align = IO_ALIGN as u64;
        let start = start / align * align;
        let end = align_up(end, align).ok_or(Error::new(Code::Corrupt, "gguf tensor data"))?;
        if let Some(last) = self.extents[..self.count].last_mut() {
            let last_end = last.file_offset + last.bytes;
            if start <= last_end.saturating_add(GAP_BYTES_MAX) {
                last.bytes = end.max(last_end) - last.file_offset;
                return Ok(());
            }
        }
        let buffer_offset = self.buffer_bytes();
        let extent = Extent { file_offset: start, bytes: end - start, buffer_offset };
        let Some(place) = self.extents.get_mut(self.count) else {
            return Err(Error::new(Code::LimitExceeded, "extents of a weight unit"));
        };
        *place = extent;
        self.count += 1;
        Ok(())
    }

    /// The extents in the order of the file.
    pub fn extents(&self) -> &[Extent] {
        &self.extents[..self.count]
    }

    /// Length of the unit's buffer.
    pub fn buffer_bytes(&self) -> u64 {
        self.extents().last().map_or(0, |last| last.buffer_offset + last.bytes)
    }

    /// Where in the buffer a covered tensor starts.
    pub fn buffer_offset(&self, tensor: &TensorInfo<'_>) -> Result<usize> {
        let holds = |extent: &&Extent| {
            (extent.file_offset..extent.file_offset + extent.bytes).contains(&tensor.file_offset)
        };
        let Some(extent) = self.extents().iter().find(holds) else {
            unreachable!("a layout covers its own tensors")
        };
        let offset = extent.buffer_offset + (tensor.file_offset - extent.file_offset);
        usize::try_from(offset).map_err(|_| Error::new(Code::LimitExceeded, "weight unit size"))
    }
}

fn range(tensor: &TensorInfo<'_>) -> (u64, u64) {
    (tensor.file_offset, tensor.file_offset + tensor.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn tensor(file_offset: u64, bytes: u64) -> TensorInfo<'static> {
        let mut tensor = TensorInfo::default();
        (tensor.file_offset, tensor.bytes) = (file_offset, bytes);
        tensor
    }

    #[test]
    fn neighbours_share_an_extent_and_far_tensors_get_their_own() {
        let far = 10 << 20;
        let tensors = [tensor(far + 100, 5000), tensor(5000, 100), tensor(9000, 4000)];
        let layout = Layout::new(tensors.into_iter()).unwrap();
        assert_eq!(
            layout.extents(),
            [
                Extent { file_offset: 4096, bytes: 12288, buffer_offset: 0 },
                Extent { file_offset: far, bytes: 8192, buffer_offset: 12288 },
            ]
        );
        assert_eq!(layout.buffer_bytes(), 12288 + 8192);
        assert_eq!(layout.buffer_offset(&tensors[0]).unwrap(), 12288 + 100);
        assert_eq!(layout.buffer_offset(&tensors[1]).unwrap(), 904);
        assert_eq!(layout.buffer_offset(&tensors[2]).unwrap(), 4904);
    }

    #[test]
    fn overlapping_and_equal_ranges_are_covered_once() {
        let tensors = [tensor(4096, 9000), tensor(4096, 9000), tensor(4096, 100), tensor(5000, 50)];
        let layout = Layout::new(tensors.into_iter()).unwrap();
        let extent = Extent { file_offset: 4096, bytes: 12288, buffer_offset: 0 };
        assert_eq!(layout.extents(), [extent]);
    }

    #[test]
    fn too_many_pieces_are_refused() {
        let scattered = |count: u64| (0..count).map(|i| tensor(i << 20, 10)).collect::<Vec<_>>();
        let most = EXTENTS_PER_UNIT_MAX as u64;
        assert!(Layout::new(scattered(most).into_iter()).is_ok());
        let error = Layout::new(scattered(most + 1).into_iter()).unwrap_err();
        assert_eq!(error.code, Code::LimitExceeded);
    }

    #[test]
    fn the_gap_that_is_read_through_has_a_limit() {
        let near = tensor(4096 + GAP_BYTES_MAX, 1);
        let far = tensor(8192 + GAP_BYTES_MAX, 1);
        let count = |other| Layout::new([tensor(0, 4096), other].into_iter()).unwrap().count;
        assert_eq!(count(near), 1);
        assert_eq!(count(far), 2);
    }
}
