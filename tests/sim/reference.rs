//! The reference: what every copy of every chunk must hold. It is told by the runtime's trace what
//! was done, and by compute what was written; it knows nothing of when and why.
//!
//! A chunk's content has two names. `base` is the commit that its valid tokens come from, `draft`
//! the pass that wrote behind them. What compute finds in a buffer must have the last commit as one
//! of the two (else it is stale), and must be the very bits that the copies on its way held.

use crate::world::Setup;
use mzcache::codec::{ChunkLayout, Geometry, Steps, Work, codec};
use mzcache::kernel::Kernels;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::runtime::Trace;
use mzcache::state::{Action, Outcome};
use mzcache::units::{ChunkId, CodecId, Kind, KvShape, LayerIndex, Nanos, Unit};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// What one copy of a chunk holds.
#[derive(Debug)]
pub struct Content {
    base: u32,
    draft: u32,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Plain(Vec<u16>),
    /// Packed and unpacked; worked out when somebody looks.
    Cycled {
        of: Arc<Content>,
        id: ChunkId,
        tokens: u16,
        result: OnceLock<Vec<u16>>,
    },
}

impl Content {
    fn is_of(&self, commit: u32) -> bool {
        self.base == commit || self.draft == commit
    }

    /// How many tokens it held when it was last packed, if it was.
    fn packed_as(&self) -> Option<u16> {
        match self.values {
            Values::Plain(_) => None,
            Values::Cycled { tokens, .. } => Some(tokens),
        }
    }
}

/// What was last seen of a chunk, so that a second cycle is noticed to change something.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    commit: u32,
    tokens: u16,
    packed_as: Option<u16>,
    hash: u64,
}

#[derive(Debug, Default)]
struct Known {
    buffer: Option<Arc<Content>>,
    ram: Option<Arc<Content>>,
    flash: Option<Arc<Content>>,
    /// The last commit; 0 when it holds no tokens.
    commit: u32,
    /// A pass asks for its tokens to be committed: its name, and the tokens that there are then.
    pending: Option<(u32, u16)>,
    seen: Option<Seen>,
}

#[derive(Debug, Default)]
struct Books {
    chunks: BTreeMap<(u16, u16), Known>,
    /// Weight units that have a buffer.
    weights: BTreeMap<u16, bool>,
    actions: u64,
    passes: u32,
}

type Saved = (Option<Arc<Content>>, u32);

/// What flash holds, as a later process may find it: each chunk's last copy there, and the commit
/// that it must be of.
#[derive(Clone, Debug)]
pub struct Snapshot {
    chunks: BTreeMap<(u16, u16), Saved>,
    passes: u32,
}

#[derive(Debug)]
pub struct Reference {
    shape: KvShape,
    codec: CodecId,
    /// Whether some values are so wild that steps made for them suit no others.
    is_wild: bool,
    tells: bool,
    steps: OnceLock<Steps<'static>>,
    books: Mutex<Books>,
}

fn key(id: ChunkId) -> (u16, u16) {
    (id.layer.get(), id.chunk.get())
}

impl Reference {
    pub fn new(setup: &Setup) -> Self {
        let Setup { shape, codec, is_wild, tells, .. } = *setup;
        Reference { shape, codec, is_wild, tells, steps: OnceLock::new(), books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Whoever panicked while he had it has ended the test.
        self.books.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Actions so far.
    pub fn actions(&self) -> u64 {
        self.books().actions
    }

    /// The steps that packing goes by, once there are any.
    pub fn set_steps(&self, steps: Option<Steps<'static>>) {
        if let Some(steps) = steps {
            assert!(*self.steps.get_or_init(|| steps) == steps, "steps were frozen");
        }
    }

    /// Buffers of chunks and of weight units that exist, forward.
    pub fn residency(&self) -> (Vec<(u16, u16)>, Vec<u16>) {
        let books = self.books();
        let chunks = books.chunks.iter().filter(|(_, known)| known.buffer.is_some());
        let weights = books.weights.iter().filter(|(_, has_buffer)| **has_buffer);
        (chunks.map(|(key, _)| *key).collect(), weights.map(|(layer, _)| *layer).collect())
    }

    /// What is on flash now.
    pub fn snapshot(&self) -> Snapshot {
        let books = self.books();
        let chunks = books.chunks.iter();
        let chunks = chunks.map(|(key, known)| (*key, (known.flash.clone(), known.commit)));
        Snapshot { chunks: chunks.collect(), passes: books.passes }
    }

    /// An earlier process's context was taken over.
    pub fn recover(&self, snapshot: &Snapshot) {
        let mut books = self.books();
        assert!(books.chunks.values().all(|known| known.buffer.is_none()));
        books.passes = snapshot.passes;
        let chunks = snapshot.chunks.iter().map(|(key, (flash, commit))| {
            (*key, Known { flash: flash.clone(), commit: *commit, ..Known::default() })
        });
        books.chunks = chunks.collect();
    }

    /// A pass begins to write; its name.
    pub fn begin_pass(&self) -> u32 {
        let mut books = self.books();
        books.passes += 1;
        books.passes
    }

    /// Compute wrote to a chunk, whose buffer now holds `values`.
    pub fn wrote(&self, id: ChunkId, values: &[u16], pass: u32) {
        let mut books = self.books();
        let known = books.chunks.get_mut(&key(id)).unwrap();
        let before = known.buffer.as_ref().unwrap();
        let base = if before.is_of(known.commit) { known.commit } else { before.base };
        let values = Values::Plain(values.to_vec());
        known.buffer = Some(Arc::new(Content { base, draft: pass, values }));
    }

    /// A pass asks for what it wrote to be committed, as so many tokens of each chunk. Whether all
    /// of it is still there; else it must be told to begin again.
    pub fn begin_commit(&self, chunks: &[(ChunkId, u16)], pass: u32) -> bool {
        let mut books = self.books();
        let mut is_intact = true;
        for (id, tokens) in chunks {
            let known = books.chunks.get_mut(&key(*id)).unwrap();
            is_intact &= known.buffer.as_ref().is_some_and(|content| content.draft == pass);
            known.pending = Some((pass, *tokens));
        }
        is_intact
    }

    /// The runtime took it for the context, or did not.
    pub fn end_commit(&self, chunks: &[(ChunkId, u16)], is_committed: bool) {
        let mut books = self.books();
        for (id, _) in chunks {
            let known = books.chunks.get_mut(&key(*id)).unwrap();
            let pending = known.pending.take();
            if let Some((pass, _)) = pending.filter(|_| is_committed) {
                (known.commit, known.seen) = (pass, None);
            }
        }
    }

    /// The context was cut: chunks from `columns` on are gone, the last one may have changed.
    pub fn truncated(&self, columns: u16) {
        for (key, known) in &mut self.books().chunks {
            known.seen = None;
            if key.1 >= columns {
                assert!(known.buffer.is_none(), "{key:?} is beyond the end and has a buffer");
                *known = Known::default();
            }
        }
    }

    /// Compute looks at a chunk that is ready: `found` must be what it wrote, `tokens` of it.
    pub fn check(&self, id: ChunkId, found: &[u16], tokens: u16) {
        let mut books = self.books();
        let known = books.chunks.get_mut(&key(id)).unwrap();
        let content = known.buffer.clone();
        let content = content.unwrap_or_else(|| panic!("{id:?} is ready without a buffer"));
        if tokens == 0 {
            return;
        }
        assert!(content.is_of(known.commit), "{id:?} is stale: {} {content:?}", known.commit);
        let expected = self.values(&content);
        let mut hasher = DefaultHasher::new();
        for rows in self.valid(tokens) {
            if found[rows.clone()] != expected[rows.clone()] {
                let at = rows.clone().find(|at| found[*at] != expected[*at]);
                panic!("{id:?} differs first at value {at:?} of {rows:?}");
            }
            found[rows].hash(&mut hasher);
        }
        let packed_as = content.packed_as();
        let seen = Seen { commit: known.commit, tokens, packed_as, hash: hasher.finish() };
        if let Some(before) = known.seen.replace(seen)
            && (before.commit, before.tokens) == (seen.commit, tokens)
            && before.hash != seen.hash
        {
            let is_lossless = codec(self.codec).properties().is_lossless;
            // A codec may look at all tokens of a chunk to pack each.
            let is_first = packed_as.is_some() && packed_as != before.packed_as;
            assert!(is_first && !is_lossless, "{id:?} changed: {before:?} {seen:?}");
        }
    }

    /// Where a chunk's valid values lie, head by head.
    fn valid(&self, tokens: u16) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let dim = usize::from(self.shape.head_dim);
        let block = usize::from(CHUNK_TOKENS) * dim;
        let bytes = usize::from(tokens) * dim;
        (0..2 * usize::from(self.shape.kv_heads))
            .map(move |head| head * block..head * block + bytes)
    }

    fn values<'a>(&self, content: &'a Content) -> &'a [u16] {
        match &content.values {
            Values::Plain(values) => values,
            Values::Cycled { of, id, tokens, result } => {
                result.get_or_init(|| self.cycle(self.values(of), *id, *tokens))
            }
        }
    }

    /// Packs and unpacks with the portable kernels.
    fn cycle(&self, values: &[u16], id: ChunkId, tokens: u16) -> Vec<u16> {
        let codec = codec(self.codec);
        let layout = ChunkLayout::TokenMajor;
        let geometry = Geometry { shape: self.shape, id, tokens, layout };
        let kernels = Kernels::portable();
        let steps = self.steps.get().and_then(|steps| steps.layer(id.layer));
        let mut memory = vec![0u8; codec.scratch_bytes(&geometry) + 63];
        let start = memory.as_ptr().align_offset(64);
        let scratch = &mut memory[start..][..codec.scratch_bytes(&geometry)];
        let mut work = Work { kernels: &kernels, steps, scratch };
        let mut packed = vec![0u64; codec.packed_bytes_max(&geometry).div_ceil(8)];
        // SAFETY: numbers of eight bytes are bytes, eight times as many.
        let packed = unsafe { packed.align_to_mut::<u8>().1 };
        let bytes = codec.pack(&mut work, &geometry, values, packed).unwrap();
        let mut back = vec![0; values.len()];
        codec.unpack(&mut work, &geometry, &packed[..bytes], &mut back).unwrap();
        let pairs = self.valid(tokens).flat_map(|rows| rows.map(|at| (values[at], back[at])));
        match codec.properties().is_lossless {
            true => check_loss(pairs, 0.0),
            false if self.is_wild => {}
            false => check_loss(pairs, 0.25),
        }
        back
    }

    fn book(&self, books: &mut Books, action: &Action, outcome: &Outcome) {
        let failed = matches!(outcome, Outcome::Failed(_));
        let id = match action.unit() {
            Unit::Kv(id) => id,
            Unit::Weights(layer) => {
                match action {
                    Action::Allocate { .. } if !failed => books.weights.insert(layer.get(), true),
                    Action::Release { .. } if !failed => books.weights.insert(layer.get(), false),
                    _ => None,
                };
                return;
            }
        };
        let values = 2 * self.shape.block_values();
        let known = books.chunks.entry(key(id)).or_default();
        match *action {
            Action::Write { .. } | Action::Spill { .. } if failed => known.flash = None,
            _ if failed => {}
            Action::Pack { tokens, .. } => {
                let of = known.buffer.clone().unwrap();
                let base = match known.pending {
                    // Somebody evicts between the commit and its answer.
                    Some((pass, after)) if after == tokens && of.is_of(pass) => pass,
                    _ if of.is_of(known.commit) => known.commit,
                    _ => of.base,
                };
                let values = Values::Cycled { of, id, tokens, result: OnceLock::new() };
                known.ram = Some(Arc::new(Content { base, draft: 0, values }));
            }
            Action::Write { .. } => known.flash = known.buffer.clone(),
            Action::Spill { .. } => known.flash = known.ram.clone(),
            Action::Release { .. } => assert!(known.buffer.take().is_some(), "{id:?} had a buffer"),
            Action::Allocate { .. } => {
                let values = Values::Plain(vec![0; values]);
                let before = known.buffer.replace(Arc::new(Content { base: 0, draft: 0, values }));
                assert!(before.is_none(), "{id:?} has one buffer");
            }
            Action::Unpack { .. } => known.buffer = Some(known.ram.clone().unwrap()),
            Action::ReadChunk { .. } => known.buffer = Some(known.flash.clone().unwrap()),
            Action::ReadWeights { .. } => unreachable!("chunks are not read from the model"),
        }
    }
}

/// The codec is the manager's own, so it is not believed: nothing is lost by one that says so, and
/// by others far less than there is, unless some values are so wild that few are all there is.
fn check_loss(pairs: impl Iterator<Item = (u16, u16)>, loss_max: f64) {
    let (mut lost, mut all) = (0.0, 0.0);
    for (before, after) in pairs {
        assert!(before == after || loss_max > 0.0, "a lossless codec changed {before} to {after}");
        lost += (number(before) - number(after)).abs();
        all += number(before).abs();
    }
    assert!(lost <= all * loss_max, "{lost} of {all} is lost");
}

/// The number that the bits of a normal half stand for; smaller ones count as 0.
fn number(bits: u16) -> f64 {
    let exponent = u64::from(bits >> 10 & 31);
    let magnitude = match exponent {
        0 => 0.0,
        _ => f64::from_bits((exponent + 1008) << 52 | u64::from(bits & 0x3FF) << 42),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

impl Trace for Reference {
    fn acted(&self, worker: usize, action: &Action, outcome: &Outcome, _: Nanos, _: Nanos) {
        if self.tells {
            println!("    {worker}: {action:?} {outcome:?}");
        }
        let mut books = self.books();
        books.actions += 1;
        self.book(&mut books, action, outcome);
    }

    fn opened(&self, _layer: LayerIndex, _kind: Kind, _now: Nanos) {}
}
