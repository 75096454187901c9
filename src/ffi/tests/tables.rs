//! Tables of other sizes than this version's, and configurations that nobody should write.

use super::super::leases::*;
use super::super::raw::Table;
use super::super::types::*;
use super::super::*;
use super::world::*;
use core::ptr;
use std::vec;

const INVALID: c_int = MzErr::InvalidArgument as c_int;
const UNSUPPORTED: c_int = MzErr::Unsupported as c_int;
const LIMIT: c_int = MzErr::LimitExceeded as c_int;

/// A caller's table with room for fields of a later version.
#[repr(C)]
#[derive(Clone, Copy)]
struct Longer<T> {
    known: T,
    unknown: [u64; 2],
}

fn open_with(change: impl FnOnce(&mut MzConfig)) -> c_int {
    let mut world = World::new();
    let ports = world.ports();
    change(&mut world.config);
    world.try_open(&ports).0
}

#[test]
fn a_table_that_is_too_short_or_absurd_is_refused() {
    // The first version ended before the steps.
    let first = u32::try_from(MzConfig::FIRST_BYTES).unwrap();
    assert_eq!(open_with(|config| config.struct_bytes = first), MZ_OK);
    for bytes in [0, 4, first - 1, 1025, u32::MAX] {
        assert_eq!(open_with(|config| config.struct_bytes = bytes), INVALID, "{bytes}");
    }
    let world = World::open();
    for bytes in [0, 31, 1025, u32::MAX] {
        let mut span = MzSpan { struct_bytes: bytes, ..no_span() };
        // SAFETY: the handle is open; a wrong size is refused before anything else is touched.
        assert_eq!(unsafe { mz_wait_weights(world.handle, 0, &mut span) }, INVALID);
        let mut error = answer::details(None);
        error.struct_bytes = bytes;
        // SAFETY: as above.
        assert_eq!(unsafe { mz_last_error(world.handle, &mut error) }, INVALID);
        let mut world = World::new();
        let mut ports = world.ports();
        ports.struct_bytes = bytes;
        assert_eq!(world.try_open(&ports).0, INVALID);
        world.swap_table.struct_bytes = bytes;
        let ports = world.ports();
        assert_eq!(world.try_open(&ports).0, INVALID);
    }
}

#[test]
fn a_later_table_is_accepted_while_its_new_fields_are_unused() {
    let mut world = World::new();
    let mut bytes = 0;
    world.config.struct_bytes += 16;
    let mut longer = Longer { known: world.config, unknown: [0; 2] };
    let size = |longer: &Longer<MzConfig>, bytes: &mut usize| {
        // SAFETY: the table is as long as it says.
        unsafe { mz_required_bytes(ptr::from_ref(longer).cast(), bytes, ptr::null_mut()) }
    };
    assert_eq!(size(&longer, &mut bytes), MZ_OK);
    longer.unknown[1] = 1 << 63;
    assert_eq!(size(&longer, &mut bytes), UNSUPPORTED);
    longer.unknown[1] = 0;
    longer.known.struct_bytes -= 8;
    assert_eq!(size(&longer, &mut bytes), MZ_OK);
}

#[test]
fn a_later_answer_table_is_filled_with_zeroes_at_its_end() {
    let world = World::filled();
    assert_eq!(world.call(mz_restore), MZ_OK);
    // SAFETY: zeroes are a table.
    let mut known: MzStats = unsafe { core::mem::zeroed() };
    known.struct_bytes = MzStats::own_bytes() + 8;
    let mut longer = Longer { known, unknown: [u64::MAX; 2] };
    let place: *mut MzStats = (&raw mut longer).cast();
    // SAFETY: the handle is open; the table is longer than it says.
    assert_eq!(unsafe { mz_stats_get(world.handle, place) }, MZ_OK);
    assert_eq!(longer.unknown, [0, u64::MAX]);
    assert_eq!(longer.known.struct_bytes, MzStats::own_bytes() + 8);
    assert_eq!((longer.known.tokens, longer.known.chunks_per_layer), (TOKENS, CHUNKS));
    assert_eq!(longer.known.weight_bytes, u64::from(UNITS) * UNIT_BYTES);

    let known = MzSpan { struct_bytes: 48, ..no_span() };
    let mut spans = [Longer { known, unknown: [u64::MAX; 2] }; 4];
    let mut count = 4;
    // SAFETY: the handle is open; there are four tables as long as the first one says.
    let waited = unsafe { mz_wait_kv(world.handle, 1, spans.as_mut_ptr().cast(), &mut count) };
    assert_eq!((waited, count), (MZ_OK, CHUNKS));
    for (index, span) in spans[..3].iter().enumerate() {
        assert_eq!((span.known.index as usize, span.known.bytes), (index, CHUNK_BYTES));
        assert_eq!((span.known.struct_bytes, span.unknown), (48, [0; 2]));
    }
    assert_eq!(spans[3].unknown, [u64::MAX; 2], "beyond the last chunk");
    spans[0].known.struct_bytes = 44;
    // SAFETY: as above; a distance that is no multiple of the alignment is refused.
    let waited = unsafe { mz_wait_kv(world.handle, 1, spans.as_mut_ptr().cast(), &mut count) };
    assert_eq!(waited, INVALID);
}

/// As if this version's table had grown by its second number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grown {
    struct_bytes: u32,
    old: u32,
    new: u64,
}

// SAFETY: repr(C), numbers only, no padding.
unsafe impl Table for Grown {
    const NAME: &'static str = "grown";
    const FIRST_BYTES: usize = 8;
}

#[test]
fn an_earlier_table_reads_as_zero_where_it_has_nothing() {
    let mut table = Grown { struct_bytes: 8, old: 7, new: 9 };
    // SAFETY: the table is longer than it says.
    let read = unsafe { raw::read(&raw const table) };
    assert_eq!(read, Ok(Grown { struct_bytes: 8, old: 7, new: 0 }));
    // SAFETY: as above.
    let place = unsafe { raw::Tables::one(&raw mut table) }.unwrap();
    place.write(0, &Grown { struct_bytes: 16, old: 1, new: 2 });
    assert_eq!(table, Grown { struct_bytes: 8, old: 1, new: 9 });
}

#[test]
fn hostile_configurations_name_what_is_wrong() {
    assert_eq!(open_with(|_| {}), MZ_OK);
    for (expected, change) in [
        (LIMIT, (|config| config.kv_layers = 0) as fn(&mut MzConfig)),
        (LIMIT, |config| config.kv_layers = UNITS + 1),
        (LIMIT, |config| config.kv_layers = u32::MAX),
        (LIMIT, |config| config.kv_heads = 0),
        (LIMIT, |config| config.kv_heads = 65537),
        (LIMIT, |config| config.head_dim = 12),
        (LIMIT, |config| config.head_dim = 1 << 20),
        (LIMIT, |config| config.context_tokens_max = 0),
        (LIMIT, |config| config.context_tokens_max = u32::MAX),
        (LIMIT, |config| config.weight_units = u32::MAX),
        (LIMIT, |config| (config.weight_units, config.extent_count) = (0, 0)),
        (INVALID, |config| config.weight_units = 2),
        (INVALID, |config| config.extent_count = 2),
        (LIMIT, |config| config.extent_count = u32::MAX),
        (LIMIT, |config| config.extent_count = 256 * 64 + 1),
        (INVALID, |config| config.extents = ptr::null()),
        (INVALID, |config| config.extents = config.extents.wrapping_byte_add(1)),
        (INVALID, |config| config.extents_per_unit = ptr::without_provenance(2)),
        (INVALID, |config| config.segment_bytes = 1),
        (UNSUPPORTED, |config| config.codec = 99),
        (UNSUPPORTED, |config| config.codec = u32::MAX),
        (UNSUPPORTED, |config| config.order = 4),
        (UNSUPPORTED, |config| config.scheme = 2),
        (UNSUPPORTED, |config| config.swap_file = 2),
    ] {
        let mut world = World::new();
        let ports = world.ports();
        change(&mut world.config);
        let (result, error) = world.try_open(&ports);
        assert_eq!(result, expected, "{}", what(&error));
        assert_eq!(error.code, expected);
        assert_ne!(error.what[0], 0);
    }
}

#[test]
fn windows_are_dealt_out_to_units_and_checked() {
    let mut world = World::new();
    let ports = world.ports();
    let page = |offset, buffer_offset| MzExtent { file_offset: offset, bytes: 4096, buffer_offset };
    world.extents = vec![page(0, 0), page(4096, 4096), page(8192, 0), page(16384, 0)];
    world.config.extents = world.extents.as_ptr();
    world.config.extent_count = 4;
    for (counts, expected) in [
        ([2, 1, 1], MZ_OK),
        ([1, 2, 1], INVALID),
        ([2, 1, 2], INVALID),
        ([2, 1, 0], INVALID),
        ([4, 0, 0], INVALID),
        ([u32::MAX, 1, 1], INVALID),
    ] {
        world.config.extents_per_unit = counts.as_ptr();
        let (result, error) = world.try_open(&ports);
        assert_eq!(result, expected, "{counts:?} {}", what(&error));
        if result == MZ_OK {
            assert_eq!(world.close(), MZ_OK);
        }
    }
    world.extents[3].file_offset = 1 << 40;
    world.config.extents_per_unit = [2, 1, 1].as_ptr();
    let (result, error) = world.try_open(&ports);
    assert_eq!((result, error.value), (INVALID, 1 << 40));
    world.extents[3].file_offset = u64::MAX - 4095;
    assert_eq!(world.try_open(&ports).0, INVALID);
    world.handle = ptr::null_mut();
}

#[test]
fn random_configurations_never_panic() {
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 16
    };
    let mut opened = 0;
    for _ in 0..2000 {
        let mut world = World::new();
        let ports = world.ports();
        let wild = next().is_multiple_of(4);
        let number = |value: u64, usual: u64| {
            if wild && value.is_multiple_of(3) {
                (value >> 8) as u32
            } else {
                (value >> 8 & usual) as u32
            }
        };
        let config = &mut world.config;
        config.kv_layers = number(next(), 3);
        config.kv_heads = number(next(), 3);
        config.head_dim = number(next(), 3).wrapping_mul(32);
        config.context_tokens_max = number(next(), 2047);
        config.swap_file = number(next(), 1);
        config.codec = number(next(), 3);
        config.order = number(next(), 3);
        config.scheme = number(next(), 1);
        config.segment_bytes = number(next(), 1) << 20;
        config.read_bytes_per_s = next() >> (next() % 64);
        config.write_bytes_per_s = next() >> (next() % 64);
        config.pack_bytes_per_s = next() >> (next() % 64);
        config.unpack_bytes_per_s = next() >> (next() % 64);
        config.order_seed = next();
        let (result, _) = world.try_open(&ports);
        assert!(result <= 0);
        opened += u32::from(result == MZ_OK);
    }
    assert!(opened > 100, "{opened}");
}
