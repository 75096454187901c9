//! Power cuts: a short life is lived once, with every write and sync of its swap file on record.
//! Then power fails behind each of them, in every state that the writes which were not synced may
//! be in, and a new process begins on what is left: it must find the last durable checkpoint, or
//! the one under way, with every byte, whatever happened since.
//!
//! States are not all tried, as there are too many: all unsynced writes absent or all whole, but
//! for up to `MZ_CRASH_DEPTH` of them (default 1), which are absent, whole or torn instead.

use crate::kept::Kept;
use crate::world::{Lent, PAGE, Setup, World, model_fill};
use mzcache::kernel::CpuFlags;
use mzcache::policy::{Profile, Scheme};
use mzcache::port::linux::{AnonymousMemory, FutexPark, MonotonicClock};
use mzcache::port::{Ports, Storage};
use mzcache::runtime::Evictor;
use mzcache::state::{EvictPolicy, Paths, Stop};
use mzcache::units::{ByteCount, CodecId, KvShape, Nanos, Tag};
use mzcache::{Code, Result};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// What happened to the swap file, or to the life.
#[derive(Clone)]
enum Entry {
    Write(usize, Vec<u8>),
    Sync,
    /// A checkpoint began.
    Begins(Tag),
    /// One ended and was said to be durable.
    Durable(Tag),
}

/// A swap file that keeps a record of its life.
#[derive(Default)]
struct Tape {
    bytes: Mutex<Vec<u8>>,
    entries: Mutex<Vec<Entry>>,
    /// Who evicts, from another thread, when the next write comes.
    pressure: Mutex<Option<Evictor>>,
    has_pressed: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn store(bytes: &mut Vec<u8>, offset: usize, from: &[u8]) {
    let end = bytes.len().max(offset + from.len());
    bytes.resize(end, 0);
    bytes[offset..][..from.len()].copy_from_slice(from);
}

impl Tape {
    fn note(&self, entry: Entry) {
        locked(&self.entries).push(entry);
    }

    /// Somebody wants all memory back at this moment.
    fn press(&self) {
        let Some(evictor) = locked(&self.pressure).take() else { return };
        // The eviction ends only after this write has; so nobody waits for it here.
        std::thread::spawn(move || evictor.evict(ByteCount::new(u64::MAX), None).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.has_pressed.store(true, Ordering::Relaxed);
    }
}

impl Storage for Tape {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = locked(&self.bytes);
        let from = &bytes[bytes.len().min(usize::try_from(offset).unwrap())..];
        let read = from.len().min(into.len());
        into[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.press();
        let offset = usize::try_from(offset).unwrap();
        store(&mut locked(&self.bytes), offset, from);
        self.note(Entry::Write(offset, from.to_vec()));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.note(Entry::Sync);
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(locked(&self.bytes).len() as u64)
    }

    fn is_direct(&self) -> bool {
        true
    }
}

/// The model file, computed.
struct Model(u64);

impl Storage for Model {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = usize::try_from(self.0.saturating_sub(offset)).unwrap().min(into.len());
        model_fill(offset, &mut into[..bytes]);
        Ok(bytes)
    }

    fn write_at(&self, _offset: u64, _from: &[u8]) -> Result<()> {
        unreachable!("the model file is never written")
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(self.0)
    }

    fn is_direct(&self) -> bool {
        true
    }
}

fn setup(codec: CodecId) -> Setup {
    Setup {
        shape: KvShape { layers: 2, kv_heads: 1, head_dim: 32 },
        unit_pages: vec![1, 1],
        tokens_max: 768,
        codec,
        evict: EvictPolicy::default(),
        workers: vec![],
        swap_file: true,
        segment_bytes: 64 << 10,
        profile: Profile::DEFAULT,
        cpu: CpuFlags::detect(),
        is_wild: false,
        tells: false,
    }
}

/// Runs `body` as one process on a swap file.
fn process<R>(setup: &Setup, tape: &'static Tape, body: impl FnOnce(&mut World) -> R) -> R {
    let model = Lent::new(Box::new(Model(setup.model_bytes())));
    let ports = Ports {
        model: model.get(),
        swap: Some(tape),
        memory: &AnonymousMemory,
        clock: &MonotonicClock,
        park: &FutexPark,
        threads: None,
        meter: None,
    };
    let mut world = World::open(setup, ports).unwrap();
    let result = body(&mut world);
    // SAFETY: closing waits for evictors, and the model is used by nobody else.
    unsafe {
        world.close();
        model.end();
    }
    result
}

/// A life under way, and what it promised.
struct Life<'a> {
    world: &'a mut World,
    tape: &'static Tape,
    kept: &'a mut Vec<Kept>,
}

impl Life<'_> {
    fn append(&mut self, tokens: u32) {
        self.world.pass(tokens).unwrap();
    }

    fn checkpoint(&mut self, deadline: Option<Nanos>) -> Stop {
        let tag = Tag::new(1 + self.kept.len() as u128);
        let before = self.world.runtime.stats().durable;
        self.tape.note(Entry::Begins(tag));
        let (result, kept) = self.world.checkpoint(tag, deadline);
        let report = result.unwrap();
        self.kept.push(kept);
        if report.stop == Stop::Reached || report.durable > before {
            self.tape.note(Entry::Durable(tag));
        }
        report.stop
    }

    fn evict(&mut self, policy: EvictPolicy) {
        self.world.evict(policy, u64::MAX, None).unwrap();
    }
}

const FLASH: EvictPolicy = EvictPolicy {
    scheme: Scheme::PartialOffload,
    order: mzcache::policy::Order::BackwardOut,
    paths: Paths { ram: false, flash: true },
};

type Script = fn(&mut Life<'_>);

/// Lives of a few steps, each with a checkpoint that something comes before, after or between.
const SCRIPTS: [(&str, Script); 8] = [
    ("checkpoint", |life| {
        life.append(300);
        life.checkpoint(None);
    }),
    ("append and checkpoint, twice", |life| {
        for tokens in [300, 20, 30] {
            life.append(tokens);
            life.checkpoint(None);
        }
    }),
    ("evict and checkpoint", |life| {
        life.append(300);
        life.evict(EvictPolicy::default());
        life.checkpoint(None);
        life.append(10);
        life.evict(EvictPolicy::default());
        life.checkpoint(None);
    }),
    ("checkpoint and evict what changed", |life| {
        life.append(500);
        life.checkpoint(None);
        for _ in 0..3 {
            life.append(3);
            life.evict(FLASH);
        }
        life.checkpoint(None);
    }),
    ("truncate, append and checkpoint", |life| {
        life.append(600);
        life.checkpoint(None);
        life.world.truncate(280).unwrap();
        life.append(300);
        life.evict(FLASH);
        life.checkpoint(None);
        life.world.truncate(0).unwrap();
        life.append(100);
        life.checkpoint(None);
    }),
    ("checkpoint that an eviction ends", |life| {
        life.append(600);
        life.checkpoint(None);
        life.world.truncate(100).unwrap();
        life.append(600);
        *locked(&life.tape.pressure) = Some(life.world.runtime.evictor());
        assert_eq!(life.checkpoint(None), Stop::Cancelled);
        assert!(life.tape.has_pressed.load(Ordering::Relaxed));
        // Begins once the eviction is over.
        assert_eq!(life.checkpoint(None), Stop::Reached);
    }),
    ("checkpoint without time", |life| {
        life.append(600);
        life.evict(FLASH);
        life.append(1);
        // All but the last chunks are on flash already.
        assert_eq!(life.checkpoint(Some(Nanos::new(0))), Stop::Deadline);
        life.append(50);
        life.checkpoint(None);
    }),
    ("packed and restored between checkpoints", |life| {
        life.append(400);
        life.checkpoint(None);
        life.evict(EvictPolicy {
            paths: Paths { ram: true, flash: false },
            ..life.world.setup.evict
        });
        life.world.restore().unwrap();
        life.checkpoint(None);
        life.evict(FLASH);
        life.append(7);
        life.checkpoint(None);
    }),
];

/// What became of a write that was not synced.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Absent,
    Whole,
    /// The first half of its pages, or the second, arrived.
    Torn(bool),
}

fn apply(bytes: &mut Vec<u8>, offset: usize, from: &[u8], fate: Fate) {
    let half = from.len() / PAGE as usize / 2 * PAGE as usize;
    // A page may be torn as well.
    let half = if half == 0 { from.len() / 2 } else { half };
    match fate {
        Fate::Absent => {}
        Fate::Whole => store(bytes, offset, from),
        Fate::Torn(false) => store(bytes, offset, &from[..half]),
        Fate::Torn(true) => store(bytes, offset + half, &from[half..]),
    }
}

/// The states of `count` unsynced writes.
fn fates(count: usize, depth: u32) -> Vec<Vec<Fate>> {
    let mut all = vec![vec![Fate::Absent; count], vec![Fate::Whole; count]];
    for _ in 0..depth {
        for state in all.clone() {
            for at in 0..count {
                for fate in [Fate::Absent, Fate::Whole, Fate::Torn(false), Fate::Torn(true)] {
                    let mut other = state.clone();
                    other[at] = fate;
                    all.push(other);
                }
            }
        }
    }
    all
}

/// The power fails behind the last of these entries. How many states there were to find.
fn cut(
    setup: &Setup,
    entries: &[Entry],
    kept: &[Kept],
    depth: u32,
    seen: &mut BTreeSet<u64>,
) -> u64 {
    let (mut bytes, mut unsynced) = (Vec::new(), Vec::new());
    let (mut under_way, mut durable) = (None, None);
    for entry in entries {
        match entry {
            Entry::Write(offset, from) => unsynced.push((*offset, from)),
            Entry::Sync => {
                unsynced.drain(..).for_each(|(at, from)| apply(&mut bytes, at, from, Fate::Whole));
            }
            Entry::Begins(tag) => under_way = Some(*tag),
            Entry::Durable(tag) => durable = Some(*tag),
        }
    }
    let find = |tag: Option<Tag>| kept.iter().find(|kept| Some(kept.tag) == tag);
    let mut states = 0;
    for fates in fates(unsynced.len(), depth) {
        let mut bytes = bytes.clone();
        for ((at, from), fate) in unsynced.iter().zip(fates) {
            apply(&mut bytes, *at, from, fate);
        }
        let mut hasher = DefaultHasher::new();
        (&bytes, under_way.map(Tag::get), durable.map(Tag::get)).hash(&mut hasher);
        if seen.insert(hasher.finish()) {
            states += 1;
            begin_again(setup, bytes, find(under_way), find(durable));
        }
    }
    states
}

/// A new process on what is left, which must be one of the two; then it goes on.
fn begin_again(setup: &Setup, bytes: Vec<u8>, under_way: Option<&Kept>, durable: Option<&Kept>) {
    let tape = Lent::new(Box::new(Tape { bytes: Mutex::new(bytes), ..Tape::default() }));
    process(setup, tape.get(), |world| {
        let mut found = false;
        for kept in under_way.into_iter().chain(durable) {
            match world.recover(kept) {
                Ok(_) => {
                    found = true;
                    break;
                }
                Err(error) => {
                    let codes = [Code::BadMagic, Code::Corrupt, Code::Mismatch];
                    assert!(codes.contains(&error.code), "{error}");
                }
            }
        }
        assert!(found || durable.is_none(), "the durable checkpoint is gone");
        world.restore().unwrap();
        world.pass(9).unwrap();
        let (result, _) = world.checkpoint(Tag::new(99), None);
        assert_eq!(result.unwrap().durable.get(), world.tokens);
    });
    // SAFETY: the process that used it has ended.
    unsafe { tape.end() };
}

/// Lives a script, then cuts the power everywhere; points, and states.
fn try_script(name: &str, script: Script, codec: CodecId, depth: u32) -> (u64, u64) {
    let setup = setup(codec);
    let tape = Lent::new(Box::<Tape>::default());
    let mut kept = Vec::new();
    process(&setup, tape.get(), |world| {
        script(&mut Life { world, tape: tape.get(), kept: &mut kept });
    });
    let entries = locked(&tape.get().entries).clone();
    let mut seen = BTreeSet::new();
    let mut states = 0;
    for end in 0..=entries.len() {
        states += cut(&setup, &entries[..end], &kept, depth, &mut seen);
    }
    println!("{name}, {}: {states} states from {} points", codec.name(), entries.len() + 1);
    // SAFETY: the process that used it has ended.
    unsafe { tape.end() };
    (entries.len() as u64 + 1, states)
}

#[test]
fn crash_states_leave_the_last_checkpoint_or_the_one_under_way() {
    let depth = std::env::var("MZ_CRASH_DEPTH").map_or(1, |depth| depth.parse().unwrap());
    let (mut points, mut states) = (0, 0);
    for (name, script) in SCRIPTS {
        for codec in [CodecId::Q8, CodecId::Kv4] {
            let (some_points, some_states) = try_script(name, script, codec, depth);
            points += some_points;
            states += some_states;
        }
    }
    println!("{states} crash states from {points} crash points");
    assert!(points > 200 && states > 1000);
}
