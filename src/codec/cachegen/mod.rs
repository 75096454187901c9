//! CacheGen as it was released: symbols of 5 or 4 bits in arithmetic codes. It is here to be
//! compared with; `kv4` and `kvh` are better in every respect.
//!
//! A value is a code from -15 to 15, or from -7 to 7 in later layers, times its token's step, which
//! is the 15th or 7th part of the greatest magnitude of all the layer's K, or V, of that token. The
//! finer codes are for K of layers 0 to 9 and V of 0 and 1, and for all of models with fewer than
//! ten layers. A channel's codes are coded with frequencies of its own, which are stored before
//! them. There are neither anchors nor differences of tokens, of which the paper tells.
//! (After the release of "CacheGen", SIGCOMM '24, which LMCache has taken over.)
//!
//! The payload, little-endian, each plane filled up with zeros to a multiple of 64 bytes:
//!
//! ```text
//! scales    u16   [K, V][token]            the greatest magnitude
//! places    u32   [parts + 1]              first byte of each part's streams, and where they end
//! lengths   u32   [part][channel]          bytes of a stream
//! cdfs      u16   [part][channel][33]      where a symbol's share of the frequencies begins
//! streams         [part][channel]          one behind the other, then at least 16 zeros
//! ```
//!
//! Symbols are codes without a sign, and `kernel::cachegen` says how streams are made of them. The
//! shares are `floor(65503 n / tokens) + i` for symbol `i`, where `n` tokens have a lower one: of
//! the 33 entries none is left out or packed, as in the release.
//!
//! Packing what was unpacked gives the same bytes: greatest magnitudes come back as they were, and
//! with them steps and codes. Minus zero becomes zero. A chunk with a value that is not finite, or
//! whose payload would not be smaller, is stored raw; that is every chunk of few tokens.

mod pack;
mod unpack;

use super::header::{self, Format, HEADER_BYTES, PLANE_ALIGN, Payload, word};
use super::{Codec, Geometry, Idempotence, LayerSteps, Opened, Properties, StepsUse, Work, raw};
use crate::arena::view;
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::kernel::cachegen::{BYTES_BEHIND_STREAMS, SYMBOLS};
use crate::kernel::portable::F16_INFINITY;
use crate::units::CodecId;

const VERSION: u8 = 1;
/// Entries of a channel's frequencies.
const CDF_VALUES: usize = SYMBOLS + 1;

/// The cachegen codec.
#[derive(Clone, Copy, Debug)]
pub struct CacheGen;

impl Codec for CacheGen {
    fn id(&self) -> CodecId {
        CodecId::CacheGen
    }

    fn version(&self) -> u8 {
        VERSION
    }

    fn properties(&self) -> Properties {
        Properties {
            idempotence: Idempotence::Strong,
            is_lossless: false,
            steps: StepsUse::Ignored,
        }
    }

    fn packed_bytes_max(&self, geometry: &Geometry) -> usize {
        HEADER_BYTES + geometry.raw_payload_bytes()
    }

    fn packed_bytes_usual(&self, geometry: &Geometry) -> usize {
        // 2.75 bits a symbol: what chunks of real models take, and a little more.
        let streams_end = Planes::new(geometry).streams + geometry.valid_values() * 11 / 32;
        HEADER_BYTES + payload_bytes(streams_end).min(geometry.raw_payload_bytes())
    }

    fn scratch_bytes(&self, _geometry: &Geometry) -> usize {
        pack::SCRATCH_BYTES
    }

    fn pack(
        &self,
        work: &mut Work<'_>,
        geometry: &Geometry,
        chunk: &[u16],
        packed: &mut [u8],
    ) -> Result<usize> {
        geometry.check(chunk.len())?;
        let (kernels, format) = (work.kernels, format(geometry));
        let scratch = work.scratch(self.scratch_bytes(geometry))?;
        let own_bytes = match format.payload_bytes.is_empty() {
            true => None,
            false => {
                let room = packed.get_mut(HEADER_BYTES..).unwrap_or_default();
                pack::write(kernels, scratch, geometry, chunk, room)?
            }
        };
        match own_bytes.filter(|bytes| format.payload_bytes.contains(bytes)) {
            Some(bytes) => {
                header::payload_mut(packed, bytes)?;
                header::seal(kernels, geometry, &format, Payload::Own(bytes), packed)
            }
            None => raw::seal(kernels, geometry, &format, chunk, packed),
        }
    }

    fn open<'a>(
        &self,
        kernels: &Kernels,
        geometry: &Geometry,
        _steps: Option<LayerSteps<'_>>,
        packed: &'a [u8],
    ) -> Result<Opened<'a>> {
        geometry.check_numbers()?;
        header::open(kernels, geometry, &format(geometry), packed)?.checked(check)
    }

    fn unpack_part(
        &self,
        work: &mut Work<'_>,
        opened: &Opened<'_>,
        part: usize,
        values: &mut [u16],
    ) -> Result<()> {
        let (kernels, geometry) = (work.kernels, &opened.geometry);
        let scratch = work.scratch(self.scratch_bytes(geometry))?;
        match opened.own_payload(CodecId::CacheGen, part, values)? {
            Some(payload) => unpack::read(kernels, scratch, geometry, payload, part, values),
            None => Ok(()),
        }
    }
}

fn format(geometry: &Geometry) -> Format {
    let bytes_max = geometry.raw_payload_bytes().saturating_sub(PLANE_ALIGN);
    Format {
        id: CodecId::CacheGen,
        version: VERSION,
        steps_id: 0,
        payload_bytes: payload_bytes(Planes::new(geometry).streams)..=bytes_max,
        has_raw_fallback: true,
    }
}

const MISALIGNED: Error = Error::new(Code::InvalidArgument, "packed buffer alignment");
const MISALIGNED_SCRATCH: Error = Error::new(Code::InvalidArgument, "codec scratch alignment");

/// The greatest code.
fn code_max(geometry: &Geometry, is_k: bool) -> u8 {
    const FEW_LAYERS: u16 = 10;
    let fine_layers = if is_k { 10 } else { 2 };
    match geometry.shape.layers < FEW_LAYERS || geometry.id.layer.get() < fine_layers {
        true => 15,
        false => 7,
    }
}

/// Whether a part is of K.
fn is_k(geometry: &Geometry, part: usize) -> bool {
    part < usize::from(geometry.shape.kv_heads)
}

/// Where the planes begin; scales begin at 0.
#[derive(Clone, Copy, Debug)]
struct Planes {
    /// Streams of K and V.
    rows: usize,
    places: usize,
    lengths: usize,
    cdfs: usize,
    streams: usize,
}

impl Planes {
    fn new(geometry: &Geometry) -> Self {
        let rows = geometry.parts() * geometry.head_dim();
        let behind = |start: usize, bytes: usize| start + bytes.next_multiple_of(PLANE_ALIGN);
        let places = behind(0, 4 * usize::from(geometry.tokens));
        let lengths = behind(places, 4 * (geometry.parts() + 1));
        let cdfs = behind(lengths, 4 * rows);
        let streams = behind(cdfs, 2 * CDF_VALUES * rows);
        Planes { rows, places, lengths, cdfs, streams }
    }

    /// Where the bytes of all planes but the last end.
    fn ends(&self, geometry: &Geometry) -> [(usize, usize); 4] {
        [
            (4 * usize::from(geometry.tokens), self.places),
            (self.places + 4 * (geometry.parts() + 1), self.lengths),
            (self.lengths + 4 * self.rows, self.cdfs),
            (self.cdfs + 2 * CDF_VALUES * self.rows, self.streams),
        ]
    }
}

/// Bytes of a payload whose streams end there.
fn payload_bytes(streams_end: usize) -> usize {
    (streams_end + BYTES_BEHIND_STREAMS).next_multiple_of(PLANE_ALIGN)
}

/// A number of a plane of these, as an index.
fn index(payload: &[u8], plane: usize, at: usize) -> Option<usize> {
    usize::try_from(word(&payload[plane..], at)?).ok()
}

/// Checks what the checksum does not, but for the streams and their frequencies: the magnitudes
/// are finite, the streams of each part fill its place, and what fills planes up is zero.
fn check(geometry: &Geometry, payload: &[u8]) -> Result<()> {
    const PLACE: Error = Error::new(Code::Corrupt, "packed part's place");
    let planes = Planes::new(geometry);
    let scales = view::numbers::<u16>(&payload[..planes.places]).ok_or(MISALIGNED)?;
    if let Some(scale) = scales.iter().find(|&&scale| scale >= F16_INFINITY) {
        return Err(Error::new(Code::Corrupt, "packed scale").with(*scale));
    }
    let mut end = planes.streams;
    for part in 0..geometry.parts() {
        if index(payload, planes.places, part) != Some(end) {
            return Err(PLACE.with(part));
        }
        for row in part * geometry.head_dim()..(part + 1) * geometry.head_dim() {
            let length = index(payload, planes.lengths, row).unwrap_or(usize::MAX);
            end = end.saturating_add(length);
            if payload.get(..end).is_none() {
                return Err(Error::new(Code::Corrupt, "packed stream's length").with(length));
            }
        }
    }
    if index(payload, planes.places, geometry.parts()) != Some(end) {
        return Err(PLACE.with(geometry.parts()));
    }
    if payload_bytes(end) != payload.len() {
        return Err(Error::new(Code::Corrupt, "packed streams").with(end));
    }
    let mut paddings = planes.ends(geometry).into_iter().chain([(end, payload.len())]);
    match paddings.all(|(from, to)| payload[from..to].iter().all(|&byte| byte == 0)) {
        true => Ok(()),
        false => Err(Error::new(Code::Corrupt, "packed padding")),
    }
}
