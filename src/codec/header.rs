//! The 64 bytes before every packed chunk, and the only code that reads or writes them.
//!
//! ```text
//!  0  magic "mzKV"          8  kv_heads u16     16  chunk u16              24  payload's CRC-32C
//!  4  header version u8    10  head_dim u16     18  zero, 2 bytes          28  id of the steps u32
//!  5  codec id u8          12  tokens u16       20  payload bytes u32      32  zero, 28 bytes
//!  6  codec version u8     14  layer u16                                   60  CRC-32C, 0..60 u32
//!  7  flags u8: bit 0 = raw payload, bit 1 = channel-major
//! ```
//!
//! Little-endian. The payload follows at once; its size is a multiple of 64 within what geometry,
//! codec and flags allow, and is believed only after the header's checksum. The id of the steps is
//! 0 where none were used. Invariant: [`open`] returns a payload only when every byte of header and
//! payload is what [`seal`] wrote for this very geometry, codec and steps. It never reads past what
//! it has checked, and writes nothing.

use super::{ChunkLayout, Geometry, Opened};
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::units::CodecId;
use core::ops::RangeInclusive;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Alignment of the payload and of every plane in it.
pub const PLANE_ALIGN: usize = 64;

const MAGIC: [u8; 4] = *b"mzKV";
const HEADER_VERSION: u8 = 1;
/// The payload is that of the raw codec, because a value does not fit the codec's own format.
const FLAG_RAW: u8 = 0b01;
/// The chunk it was packed from is [`ChunkLayout::ChannelMajor`].
const FLAG_CHANNEL_MAJOR: u8 = 0b10;

const VERSION_AT: usize = 4;
const FLAGS_AT: usize = 7;
const GEOMETRY_AT: usize = 8;
const PAYLOAD_BYTES_AT: usize = 20;
const PAYLOAD_CRC_AT: usize = 24;
const STEPS_AT: usize = 28;
const HEADER_CRC_AT: usize = 60;
/// Bytes that are zero in this version.
const RESERVED: [core::ops::Range<usize>; 2] = [18..20, 32..HEADER_CRC_AT];

/// What a codec expects its chunks to be.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pub id: CodecId,
    pub version: u8,
    /// The id of the steps that it uses; 0 for none.
    pub steps_id: u32,
    /// Payload bytes that the codec's own format can have for the geometry.
    pub payload_bytes: RangeInclusive<usize>,
    /// Whether the codec stores raw payloads for chunks that do not fit its own format.
    pub has_raw_fallback: bool,
}

/// A payload, either in the codec's own format or raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload<T> {
    Own(T),
    Raw(T),
}

/// The part of `packed` behind the header that a payload of `payload_bytes` takes, for writing.
pub(super) fn payload_mut(packed: &mut [u8], payload_bytes: usize) -> Result<&mut [u8]> {
    let total_bytes = HEADER_BYTES + payload_bytes;
    match packed.get_mut(HEADER_BYTES..total_bytes) {
        Some(payload) => Ok(payload),
        None => Err(Error::new(Code::MemoryTooSmall, "packed buffer").with(total_bytes)),
    }
}

/// Writes the header of a finished payload; returns the bytes of both. `payload` says which of the
/// two formats it has, and its size.
pub(super) fn seal(
    kernels: &Kernels,
    geometry: &Geometry,
    format: &Format,
    payload: Payload<usize>,
    packed: &mut [u8],
) -> Result<usize> {
    let (raw_flag, payload_bytes) = match payload {
        Payload::Own(bytes) => (0, bytes),
        Payload::Raw(bytes) => (FLAG_RAW, bytes),
    };
    assert!(payload_bytes.is_multiple_of(PLANE_ALIGN));
    let flags = raw_flag | layout_flag(geometry);
    let payload_crc = kernels.crc32c.call(0, payload_mut(packed, payload_bytes)?);
    let Ok(payload_bytes_field) = u32::try_from(payload_bytes) else {
        return Err(Error::new(Code::LimitExceeded, "packed payload").with(payload_bytes));
    };
    let mut header = [0; HEADER_BYTES];
    put(&mut header, 0, MAGIC);
    put(&mut header, VERSION_AT, [HEADER_VERSION, format.id as u8, format.version, flags]);
    for (index, (_, value)) in geometry_fields(geometry).into_iter().enumerate() {
        put(&mut header, GEOMETRY_AT + 2 * index, value.to_le_bytes());
    }
    put(&mut header, PAYLOAD_BYTES_AT, payload_bytes_field.to_le_bytes());
    put(&mut header, PAYLOAD_CRC_AT, payload_crc.to_le_bytes());
    put(&mut header, STEPS_AT, format.steps_id.to_le_bytes());
    let header_crc = kernels.crc32c.call(0, &header[..HEADER_CRC_AT]);
    put(&mut header, HEADER_CRC_AT, header_crc.to_le_bytes());
    put(packed, 0, header);
    Ok(HEADER_BYTES + payload_bytes)
}

/// Checks header and payload against what is expected. Bytes behind the payload are not looked at,
/// so that `packed` may be a whole slot of a file.
pub(super) fn open<'a>(
    kernels: &Kernels,
    geometry: &Geometry,
    format: &Format,
    packed: &'a [u8],
) -> Result<Opened<'a>> {
    let Some((header, rest)) = packed.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Error::new(Code::Truncated, "packed header").with(packed.len()));
    };
    check_codec(kernels, format, header)?;
    check_geometry(geometry, header)?;
    let steps_id = u32::from_le_bytes(get(header, STEPS_AT));
    if steps_id != format.steps_id {
        return Err(Error::new(Code::Mismatch, "packed steps").with(steps_id));
    }
    let is_raw = header[FLAGS_AT] & FLAG_RAW != 0;
    let raw_bytes = geometry.raw_payload_bytes();
    let allowed = if is_raw { raw_bytes..=raw_bytes } else { format.payload_bytes.clone() };
    let payload_bytes_field = u32::from_le_bytes(get(header, PAYLOAD_BYTES_AT));
    let payload_bytes = usize::try_from(payload_bytes_field).unwrap_or(usize::MAX);
    if !allowed.contains(&payload_bytes) || !payload_bytes.is_multiple_of(PLANE_ALIGN) {
        return Err(Error::new(Code::Corrupt, "packed payload bytes").with(payload_bytes_field));
    }
    let Some(payload) = rest.get(..payload_bytes) else {
        return Err(Error::new(Code::Truncated, "packed payload").with(rest.len()));
    };
    let payload_crc = u32::from_le_bytes(get(header, PAYLOAD_CRC_AT));
    if kernels.crc32c.call(0, payload) != payload_crc {
        return Err(Error::new(Code::Corrupt, "packed payload checksum").with(payload_crc));
    }
    let payload = if is_raw { Payload::Raw(payload) } else { Payload::Own(payload) };
    Ok(Opened { codec: format.id, geometry: *geometry, payload })
}

/// What the header says of the chunk, against what is expected.
fn check_geometry(geometry: &Geometry, header: &[u8; HEADER_BYTES]) -> Result<()> {
    for (index, (name, expected)) in geometry_fields(geometry).into_iter().enumerate() {
        let value = u16::from_le_bytes(get(header, GEOMETRY_AT + 2 * index));
        if value != expected {
            return Err(Error::new(Code::Mismatch, name).with(value));
        }
    }
    let flags = header[FLAGS_AT];
    match flags & FLAG_CHANNEL_MAJOR == layout_flag(geometry) {
        true => Ok(()),
        false => Err(Error::new(Code::Mismatch, "packed layout").with(flags)),
    }
}

fn layout_flag(geometry: &Geometry) -> u8 {
    match geometry.layout {
        ChunkLayout::TokenMajor => 0,
        ChunkLayout::ChannelMajor => FLAG_CHANNEL_MAJOR,
    }
}

/// The fields that do not depend on the geometry: kind, versions, checksum, reserved bytes.
fn check_codec(kernels: &Kernels, format: &Format, header: &[u8; HEADER_BYTES]) -> Result<()> {
    if get(header, 0) != MAGIC {
        return Err(Error::new(Code::BadMagic, "packed chunk"));
    }
    let [version, codec, codec_version, flags] = get(header, VERSION_AT);
    if version != HEADER_VERSION {
        return Err(Error::new(Code::Unsupported, "packed header version").with(version));
    }
    let header_crc = u32::from_le_bytes(get(header, HEADER_CRC_AT));
    if kernels.crc32c.call(0, &header[..HEADER_CRC_AT]) != header_crc {
        return Err(Error::new(Code::Corrupt, "packed header checksum").with(header_crc));
    }
    match CodecId::from_number(codec) {
        None => return Err(Error::new(Code::Unsupported, "packed codec").with(codec)),
        Some(id) if id != format.id => {
            return Err(Error::new(Code::Mismatch, "packed codec").with(codec));
        }
        Some(_) => {}
    }
    if codec_version != format.version {
        return Err(Error::new(Code::Unsupported, "packed codec version").with(codec_version));
    }
    let raw_flag = if format.has_raw_fallback { FLAG_RAW } else { 0 };
    if flags & !(raw_flag | FLAG_CHANNEL_MAJOR) != 0 {
        return Err(Error::new(Code::Unsupported, "packed flags").with(flags));
    }
    if RESERVED.iter().any(|range| header[range.clone()].iter().any(|&byte| byte != 0)) {
        return Err(Error::new(Code::Corrupt, "packed reserved bytes"));
    }
    Ok(())
}

/// The geometry's fields in the order of the header, each with its name.
fn geometry_fields(geometry: &Geometry) -> [(&'static str, u16); 5] {
    [
        ("packed kv_heads", geometry.shape.kv_heads),
        ("packed head_dim", geometry.shape.head_dim),
        ("packed tokens", geometry.tokens),
        ("packed layer", geometry.id.layer.get()),
        ("packed chunk", geometry.id.chunk.get()),
    ]
}

/// The array at a fixed place of the header.
fn get<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

/// The number at a multiple of four, in a payload's plane of these.
pub(super) fn word(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.as_chunks::<4>().0.get(index).map(|&bytes| u32::from_le_bytes(bytes))
}

/// Writes an array at a fixed place.
fn put<const N: usize>(header: &mut [u8], at: usize, bytes: [u8; N]) {
    header[at..at + N].copy_from_slice(&bytes);
}
