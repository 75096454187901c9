//! The machine that is put to the test: few units, and all of its settings.

use mzcache::arena::{Arena, Sizer};
use mzcache::policy::{Order, Plan, Profile, Scheme, Setup, Times, threshold};
use mzcache::state::{Config, Machine};
use mzcache::units::{ByteCount, CodecId, KvShape};
use std::mem::MaybeUninit;

pub const SHAPE: KvShape = KvShape { layers: 3, kv_heads: 1, head_dim: 32 };
pub const COLUMNS: u16 = 4;
pub const CHUNKS: usize = SHAPE.layers as usize * COLUMNS as usize;
pub const CHUNK_BYTES: u64 = 32 << 10;
pub const PACKED_BYTES: u32 = 17 << 10;
/// A chunk that does not compress, with its header.
pub const PACKED_BYTES_MAX: u32 = (32 << 10) + 64;
/// Units of several parts and of one.
pub const WEIGHT_BYTES: [u64; 4] = [9 << 20, 5 << 20, 3 << 20, 20 << 20];

/// What a byte says about a machine.
pub struct Choices {
    pub order: Order,
    pub ram: bool,
    pub flash: bool,
    pub lossless: bool,
    pub packs_badly: bool,
}

impl Choices {
    pub fn new(byte: u8) -> Self {
        let orders = [Order::BackwardOut, Order::ForwardOut, Order::Lru, Order::Random(5)];
        let bit = |n: u32| byte >> n & 1 != 0;
        Choices {
            order: orders[usize::from(byte & 3)],
            // Most bytes are small: zeros leave the paths open.
            ram: !bit(2),
            flash: !bit(3),
            lossless: bit(4),
            packs_badly: bit(5),
        }
    }
}

fn sizer() -> Sizer {
    let mut sizer = Sizer::new();
    Machine::size(&mut sizer, WEIGHT_BYTES.len(), SHAPE.layers, COLUMNS).unwrap();
    sizer
}

pub fn memory_bytes() -> usize {
    sizer().required().unwrap()
}

pub fn machine(choices: &Choices, memory: &'static mut [MaybeUninit<u8>]) -> Machine {
    let times = Times::new(
        &Profile::DEFAULT,
        &Setup {
            codec: CodecId::Q8,
            chunk_bytes: ByteCount::new(CHUNK_BYTES),
            packed_bytes: ByteCount::new(PACKED_BYTES.into()),
            stored_bytes: ByteCount::new(CHUNK_BYTES),
            unpackers: 1,
            ram_is_open: choices.ram,
            flash_is_open: choices.flash,
        },
    )
    .unwrap();
    let sizes = WEIGHT_BYTES.map(ByteCount::new);
    // A small threshold, so that few chunks suffice to pass through all stages.
    let plan = Plan { scheme: Scheme::Hybrid, threshold: threshold(&times, sizes).min(5), times };
    let config = Config {
        shape: SHAPE,
        columns_max: COLUMNS,
        weight_bytes: &WEIGHT_BYTES,
        packed_bytes_max: PACKED_BYTES_MAX.into(),
        lossless: choices.lossless,
        plan,
    };
    let mut arena = Arena::new(memory).unwrap();
    let machine = Machine::new(&mut arena, &config).unwrap();
    assert_eq!(arena.seal(), sizer().used());
    machine
}
