//! What a seed says about a run before it begins: the model, the device, the policy, which mishaps
//! there are and how often. Each run has few kinds of trouble, so that runs differ.

use crate::device::Mishap;
use crate::random::Random;
use crate::scheduler::Pace;
use crate::world::Setup;
use mzcache::codec::{ChunkLayout, Geometry, codec};
use mzcache::kernel::CpuFlags;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::policy::{Order, Profile, Scheme};
use mzcache::runtime::Worker;
use mzcache::state::{EvictPolicy, Paths, Roles};
use mzcache::units::{ChunkId, CodecId, KvShape};

#[derive(Clone, Debug)]
pub struct Options {
    pub setup: Setup,
    pub operations: u64,
    pub one_in: [u64; Mishap::ALL.len()],
    pub memory_bytes_max: u64,
    pub pace: Pace,
    /// Power fails in one operation of so many.
    pub power_cut_one_in: u64,
    /// The system asks for memory during one operation of so many.
    pub pressure_one_in: u64,
}

/// Worker threads, by their roles; none is inline.
const WORKERS: [&[Roles]; 6] = [
    &[],
    &[],
    &[Roles::all()],
    &[Roles::READ, Roles::UNPACK, Roles::ALLOCATE],
    &[Roles::READ.union(Roles::ALLOCATE), Roles::UNPACK, Roles::UNPACK],
    &[Roles::all(), Roles::all(), Roles::READ, Roles::UNPACK],
];

pub fn order(random: &mut Random) -> Order {
    let seed = random.next();
    random.pick(&[Order::BackwardOut, Order::ForwardOut, Order::Lru, Order::Random(seed)])
}

pub fn policy(random: &mut Random) -> EvictPolicy {
    let scheme = random.pick(&[Scheme::Hybrid, Scheme::Hybrid, Scheme::PartialOffload]);
    let [ram, flash] = [random.one_in(4), random.one_in(4)].map(|closed| !closed);
    let order = match random.one_in(2) {
        true => Order::BackwardOut,
        false => order(random),
    };
    EvictPolicy { scheme, order, paths: Paths { ram, flash } }
}

fn setup(random: &mut Random) -> Setup {
    let layers = u16::try_from(random.within(1, 4)).unwrap();
    let head_dim = random.pick(&[32, 32, 32, 40, 64]);
    let kv_heads = random.pick(&[1, 1, 2]);
    let shape = KvShape { layers, kv_heads, head_dim };
    let more = random.below(2);
    let mut unit_pages: Vec<u64> =
        (0..u64::from(layers) + more).map(|_| random.within(1, 5)).collect();
    if random.one_in(16) {
        // Of two parts.
        unit_pages[0] = 257 + random.below(3);
    }
    let id = random.pick(&CodecId::ALL);
    let full = Geometry {
        shape,
        id: ChunkId::default(),
        tokens: CHUNK_TOKENS,
        layout: ChunkLayout::TokenMajor,
    };
    let packed = u32::try_from(codec(id).packed_bytes_max(&full)).unwrap();
    let mut profile = Profile::DEFAULT;
    profile.read_bytes_per_s = 100_000_000 << random.below(7);
    profile.rates_mut(id).unpack_bytes_per_s = 100_000_000 << random.below(8);
    let workers = random.pick(&WORKERS);
    let helps = random.pick(&[Roles::empty(), Roles::READ | Roles::UNPACK]);
    let cpu = random.pick(&[CpuFlags::empty(), CpuFlags::detect()]);
    Setup {
        shape,
        unit_pages,
        tokens_max: 256 * u32::try_from(random.within(1, 4)).unwrap(),
        codec: id,
        evict: policy(random),
        workers: workers.iter().map(|roles| Worker { helps, ..Worker::new(*roles) }).collect(),
        swap_file: !random.one_in(5),
        segment_bytes: (packed * random.pick(&[1, 2, 3])).next_multiple_of(4096),
        profile,
        cpu,
        is_wild: random.one_in(8),
        tells: false,
    }
}

impl Options {
    pub fn new(random: &mut Random) -> Self {
        let setup = setup(random);
        // A third of the runs know no mishaps at all: then everything must succeed.
        let stormy = !random.one_in(3);
        let one_in = std::array::from_fn(|_| match stormy && random.one_in(4) {
            true => random.pick(&[4, 16, 64, 256]),
            false => 0,
        });
        let chunks = u64::from(setup.tokens_max / 256) * u64::from(setup.shape.layers);
        let all =
            chunks * setup.shape.chunk_bytes() as u64 + setup.unit_pages.iter().sum::<u64>() * 4096;
        // Room for everything, and sometimes too little.
        let memory_bytes_max = match stormy && random.one_in(6) {
            true => all / 4 * 3,
            false => u64::MAX,
        };
        let pace = Pace {
            switch_one_in: random.pick(&[1, 3, 10, 50]),
            spurious_one_in: random.pick(&[0, 0, 8]),
        };
        Options {
            setup,
            operations: random.within(4, 30),
            one_in,
            memory_bytes_max,
            pace,
            power_cut_one_in: random.pick(&[0, 8, 4]),
            pressure_one_in: random.pick(&[0, 4, 2]),
        }
    }
}
