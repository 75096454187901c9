//! What passes between a codec and its callers: what it works with, and a packed chunk that was
//! found sound.

use super::header::Payload;
use super::{Geometry, LayerSteps, PLANE_ALIGN, raw};
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::units::CodecId;

/// What a codec works with; one for each thread.
#[derive(Debug)]
pub struct Work<'a> {
    /// The inner loops.
    pub kernels: &'a Kernels,
    /// The steps of the chunk's layer, for codecs that use them.
    pub steps: Option<LayerSteps<'a>>,
    /// Memory that starts at a multiple of 64; its contents mean nothing before and after.
    pub scratch: &'a mut [u8],
}

impl<'a> Work<'a> {
    /// For codecs that use neither scratch nor steps in the chunk's layout.
    pub fn new(kernels: &'a Kernels) -> Work<'a> {
        Work { kernels, steps: None, scratch: &mut [] }
    }

    /// The first bytes of the scratch.
    pub(super) fn scratch(&mut self, bytes: usize) -> Result<&mut [u8]> {
        if !self.scratch.as_ptr().addr().is_multiple_of(PLANE_ALIGN) {
            return Err(Error::new(Code::InvalidArgument, "codec scratch alignment"));
        }
        match self.scratch.get_mut(..bytes) {
            Some(scratch) => Ok(scratch),
            None => Err(Error::new(Code::MemoryTooSmall, "codec scratch").with(bytes)),
        }
    }
}

/// A packed chunk whose header, checksum and planes were right. Several threads may unpack parts
/// of it at once.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    pub(super) codec: CodecId,
    pub(super) geometry: Geometry,
    pub(super) payload: Payload<&'a [u8]>,
}

impl<'a> Opened<'a> {
    /// What was packed.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The same, once `check` found the codec's own payload sound; a raw one is checked here.
    pub(super) fn checked(
        self,
        check: impl FnOnce(&Geometry, &[u8]) -> Result<()>,
    ) -> Result<Self> {
        match self.payload {
            Payload::Own(payload) => check(&self.geometry, payload)?,
            Payload::Raw(payload) => raw::check(&self.geometry, payload)?,
        }
        Ok(self)
    }

    /// Checks the arguments of `unpack_part`. A part of a raw payload is unpacked at once; of the
    /// codec's own format the payload is returned.
    pub(super) fn own_payload(
        &self,
        codec: CodecId,
        part: usize,
        values: &mut [u16],
    ) -> Result<Option<&'a [u8]>> {
        let refuse = |what, value: usize| Err(Error::new(Code::InvalidArgument, what).with(value));
        if codec != self.codec {
            return refuse("opened chunk's codec", usize::from(self.codec as u8));
        }
        if part >= self.geometry.parts() {
            return refuse("part", part);
        }
        if values.len() < self.geometry.part_values() {
            return refuse("part buffer", values.len());
        }
        match self.payload {
            Payload::Own(payload) => Ok(Some(payload)),
            Payload::Raw(payload) => {
                raw::read_part(&self.geometry, payload, part, values);
                Ok(None)
            }
        }
    }
}
